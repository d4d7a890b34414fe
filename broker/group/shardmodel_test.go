package group

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Whatever clients, disks and elections do, on three replicas that crash, come
// back with a view that is behind, ahead or wrong, and lead without knowing that
// another does: a view is the fold of the log up to where it says, and that is
// committed (I19); what a client was told of an offset stays true or grows, is
// committed, and goes back neither for it nor for others, and generations never
// fall (I20); every request is answered once, and once all is well again each
// shard serves and each view has all.
func TestShardModel(t *testing.T) {
	seeds := 150
	if n, err := strconv.Atoi(os.Getenv("LEAT_SEEDS")); err == nil {
		seeds = n
	}
	var sum shardCounts
	for seed := range uint64(seeds) {
		m := newShardModel(t, seed)
		for range 600 {
			m.step()
		}
		m.heal()
		sum.add(&m.counts)
	}
	t.Logf("%+v", sum)
	for i, v := range reflect.ValueOf(sum).Fields() {
		if v.Int() == 0 {
			t.Errorf("none of %s: the model does not reach it", i.Name)
		}
	}
}

// shardCounts is what the model has met.
type shardCounts struct {
	Acked, Fetched, Synced, Refused, NotCoordinator, Loading, NotAvailable int
	Elections, Crashes, Wipes, Zombies, Unknown, Truncations               int
}

func (c *shardCounts) add(o *shardCounts) {
	v, w := reflect.ValueOf(c).Elem(), reflect.ValueOf(o).Elem()
	for i := range v.NumField() {
		v.Field(i).SetInt(v.Field(i).Int() + w.Field(i).Int())
	}
}

// replica is a node of the model, with what a crash leaves of it.
type replica struct {
	*node
	up   bool
	hw   int64 // that it was told
	told int32 // the leader epoch that its shard knows
	// What is durable of the view.
	kept        *memView
	keptApplied Applied
}

type shardModel struct {
	*testing.T
	seed   uint64
	rng    *rand.Rand
	now    time.Time
	cfg    Config
	topics everyTopic
	nodes  [3]*replica
	counts shardCounts

	leader int // -1 for none
	epoch  int32
	office int64 // the end of the leader's log when it took office
	isr    map[int]bool

	// What is committed, for ever: records by offset, and where each value of an
	// offset is.
	committed []Change
	epochs    []int32
	at        map[int64]int64

	value   int64
	token   Token
	asked   map[Token]shardRequest
	seen    map[offsetAt]int64 // the offset in the log of the newest value that anybody was told of
	synced  map[string]int32
	ids     int
	clients []shardClient
}

type shardRequest struct {
	what   string
	at     offsetAt
	value  int64
	client int
	node   *replica
}

// shardClient is what a member knows of itself.
type shardClient struct {
	group, id  string
	generation int32
	members    []Member
}

func newShardModel(t *testing.T, seed uint64) *shardModel {
	m := &shardModel{
		T: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 7)), now: start, leader: -1, epoch: -1, topics: everyTopic{},
		isr: map[int]bool{0: true, 1: true, 2: true}, at: map[int64]int64{}, asked: map[Token]shardRequest{}, seen: map[offsetAt]int64{}, synced: map[string]int32{},
	}
	m.cfg = Config{
		MinSession: time.Second, MaxSession: time.Hour, MaxSize: 5,
		NewMemberID: func(string) string { m.ids++; return fmt.Sprint("m", m.ids) },
	}
	for i := range m.nodes {
		r := &replica{node: &node{log: &memLog{}, view: newMemView(), applied: Applied{Epoch: -1}}, up: true, kept: newMemView(), keptApplied: Applied{Epoch: -1}, told: -1}
		r.tell = func(a Answer) { m.answered(r, a) }
		r.trace = func(format string, _ ...any) {
			if format == "wipe" {
				m.counts.Wipes++
			}
		}
		m.nodes[i] = r
		m.open(r)
	}
	for i := range 4 {
		m.clients = append(m.clients, shardClient{group: fmt.Sprint("g", i/2)})
	}
	return m
}

func (m *shardModel) fail(format string, args ...any) {
	m.Helper()
	m.Fatalf("seed %d: %s", m.seed, fmt.Sprintf(format, args...))
}

func (m *shardModel) open(r *replica) {
	o := r.options(&m.cfg, m.topics)
	o.MaxRounds = 1 + m.rng.IntN(3)
	r.shard = NewShard(o)
	r.batches = 1 + m.rng.IntN(5)
	m.check(r)
	r.told, r.hw = -1, 0
}

func (m *shardModel) check(r *replica) {
	if err := r.shard.Check(m.now, r.log); err != nil {
		m.fail("check: %v", err)
	}
	r.hw = min(r.hw, r.log.end())
}

// step does something, somewhere.
func (m *shardModel) step() {
	i := m.rng.IntN(len(m.nodes))
	r := m.nodes[i]
	if m.leader < 0 && m.rng.IntN(10) == 0 {
		m.elect()
	}
	if !r.up {
		if m.rng.IntN(10) == 0 {
			m.restart(r)
		}
		return
	}
	switch n := m.rng.IntN(400); {
	case n < 160:
		if m.leader >= 0 && m.rng.IntN(5) > 0 {
			r = m.nodes[m.leader]
		}
		m.request(r)
	case n < 250:
		m.replicate(i)
	case n < 320:
		m.advance()
	case n < 323:
		m.elect()
	case n < 340:
		m.tellRole(i)
	case n < 342:
		m.crash(i)
	case n < 346:
		m.disk(r)
	case n < 360:
		m.shrinkOrExpand(i)
	case n < 370:
		m.wait(time.Duration(m.rng.IntN(3000)) * time.Millisecond)
	case n < 385:
		r.kept, r.keptApplied = clonedView(r.view), r.applied
	default:
		r.holdAppend, r.holdApply = m.rng.IntN(3) == 0, m.rng.IntN(4) == 0
		m.finish(r)
	}
	r.drive(m.now)
	m.invariants(r)
}

// finish ends what is held.
func (m *shardModel) finish(r *replica) {
	r.endLate(m.now)
	if r.asked != nil && !r.holdAppend {
		r.append(m.now)
	}
	if r.due != nil && !r.holdApply {
		r.apply(m.now)
	}
}

func clonedView(v *memView) *memView {
	return &memView{groups: maps.Clone(v.groups), exists: maps.Clone(v.exists), offsets: maps.Clone(v.offsets), leases: maps.Clone(v.leases)}
}

// request sends a client's request to a replica, which need not be the leader.
func (m *shardModel) request(r *replica) {
	k := m.rng.IntN(len(m.clients))
	c := &m.clients[k]
	q := shardRequest{client: k, node: r, at: offsetAt{c.group, "t", m.rng.Int32N(2)}}
	ref := MemberRef{ID: c.id, Generation: c.generation}
	if c.id == "" {
		ref.Generation = -1
	}
	switch n := m.rng.IntN(100); {
	case n < 40:
		m.value++
		q.what, q.value = "commit", m.value
		r.shard.Commit(m.now, m.ask(q), c.group, ref, []Change{{Group: c.group, Topic: "t", Partition: q.at.partition, Offset: &Offset{
			Topic: topicNamed("t"), Offset: m.value, Epoch: int32(m.value), At: m.now.UnixMilli(), Expires: -1,
		}}})
	case n < 65:
		if r.told != m.epoch {
			return // it has no lease to tell of offsets
		}
		q.what = "fetch"
		r.shard.Fetch(m.now, m.ask(q), c.group, "t", []int32{q.at.partition})
	case n < 78:
		q.what = "join"
		r.shard.Join(m.now, m.ask(q), c.group, &JoinRequest{
			Member:       Member{ID: c.id, ClientID: "c", Session: 10 * time.Second, RebalanceTimeout: 5 * time.Second},
			ProtocolType: "consumer", Protocols: []Protocol{{Name: "range"}},
		})
	case n < 90:
		q.what, q.value = "sync", int64(c.generation)
		to := map[string][]byte{}
		for _, o := range c.members {
			to[o.ID] = []byte("work")
		}
		r.shard.Sync(m.now, m.ask(q), c.group, &SyncRequest{MemberRef: ref, Assignments: to})
	case n < 97:
		q.what = "heartbeat"
		r.shard.Heartbeat(m.now, m.ask(q), c.group, ref)
	default:
		q.what = "leave"
		r.shard.Leave(m.now, m.ask(q), c.group, []MemberRef{ref})
	}
}

func (m *shardModel) ask(q shardRequest) Token {
	m.token++
	m.asked[m.token] = q
	return m.token
}

// replicate has a replica fetch from the leader, after it has cut what the leader
// does not have.
func (m *shardModel) replicate(i int) {
	if m.leader < 0 || m.leader == i || !m.nodes[m.leader].up || m.nodes[i].told != m.epoch {
		return
	}
	r, from := m.nodes[i], m.nodes[m.leader].log.batches
	same := 0
	for same < min(len(from), len(r.log.batches)) && from[same].epoch == r.log.batches[same].epoch && reflect.DeepEqual(from[same].changes, r.log.batches[same].changes) {
		same++
	}
	if same < len(r.log.batches) {
		m.counts.Truncations++
		r.log.batches = slices.Clone(r.log.batches[:same])
		m.check(r)
	}
	for n := m.rng.IntN(4); n > 0 && same < len(from); n-- {
		r.log.batches = append(r.log.batches, from[same])
		same++
	}
	m.hear(r, min(m.nodes[m.leader].hw, r.log.end()))
}

// hear tells a replica the watermark.
func (m *shardModel) hear(r *replica, hw int64) {
	r.hw = max(r.hw, hw)
	r.shard.Committed(hw)
}

// advance moves the watermark of the leader, as far as the replicas in sync have
// the log.
func (m *shardModel) advance() {
	if m.leader < 0 || !m.nodes[m.leader].up || len(m.isr) < 2 {
		return
	}
	l := m.nodes[m.leader]
	hw := l.log.end()
	for i := range m.isr { // the least, whatever the order
		hw = min(hw, m.agreeing(i))
	}
	if hw <= l.hw {
		return
	}
	m.hear(l, hw)
	n := int64(0)
	for _, b := range l.log.batches {
		for i := range b.changes {
			c := &b.changes[i]
			switch {
			case n >= hw:
			case n < int64(len(m.committed)):
				if !reflect.DeepEqual(m.committed[n], *c) || m.epochs[n] != b.epoch {
					m.fail("the model has lost what was committed at %d", n)
				}
			default:
				m.committed, m.epochs = append(m.committed, *c), append(m.epochs, b.epoch)
				m.commits(n, c)
			}
			n++
		}
	}
	l.drive(m.now)
}

// agreeing is up to where the log of a replica is that of the leader.
func (m *shardModel) agreeing(i int) (end int64) {
	a, b := m.nodes[i].log.batches, m.nodes[m.leader].log.batches
	for k := 0; k < min(len(a), len(b)) && a[k].epoch == b[k].epoch; k++ {
		end += int64(len(a[k].changes))
	}
	return end
}

// commits notes a record that is committed.
func (m *shardModel) commits(at int64, c *Change) {
	if c.Offset != nil {
		m.at[c.Offset.Offset] = at
	}
	if !c.OfGroup() {
		return
	}
	for _, before := range m.committed[:at] {
		if before.OfGroup() && before.Group == c.Group && before.Members.Generation > c.Members.Generation {
			m.fail("generation %d of %s is committed after %d", c.Members.Generation, c.Group, before.Members.Generation)
		}
	}
}

// elect makes another leader, of those in sync. Its predecessor need not know it.
func (m *shardModel) elect() {
	var may []int
	for i := range m.nodes {
		if m.isr[i] && m.nodes[i].up {
			may = append(may, i)
		}
	}
	if len(may) == 0 {
		return
	}
	if m.leader >= 0 && m.nodes[m.leader].up {
		m.counts.Zombies++
	}
	m.counts.Elections++
	m.leader = may[m.rng.IntN(len(may))]
	m.epoch++
	m.office = m.nodes[m.leader].log.end()
	m.tellRole(m.leader)
}

// tellRole tells a replica who leads, also when it knows.
func (m *shardModel) tellRole(i int) {
	r := m.nodes[i]
	if m.epoch < 0 {
		return
	}
	if i == m.leader {
		if err := r.shard.Lead(m.now, m.epoch, r.log); err != nil {
			m.fail("lead: %v", err)
		}
	} else {
		r.shard.Resign(m.now, m.epoch)
	}
	r.told = m.epoch
	r.drive(m.now)
}

// shrinkOrExpand takes a replica out of those in sync, or in if it has what the
// leader had when it took office and all that is committed.
func (m *shardModel) shrinkOrExpand(i int) {
	switch {
	case m.leader < 0 || i == m.leader || !m.nodes[m.leader].up:
	case m.isr[i]:
		if len(m.isr) > 2 {
			delete(m.isr, i)
		}
	case m.agreeing(i) >= max(m.office, m.nodes[m.leader].hw):
		m.isr[i] = true
	}
}

func (m *shardModel) crash(i int) {
	r := m.nodes[i]
	m.counts.Crashes++
	r.up, r.asked, r.late, r.due, r.holdAppend, r.holdApply, r.refuse, r.noRoom = false, nil, nil, nil, false, false, nil, false
	for t, q := range m.asked {
		if q.node == r {
			delete(m.asked, t)
		}
	}
	if m.leader == i {
		m.leader = -1
	}
}

// restart begins a process with what is durable of the view, or with one that has
// outlived its log, or is another's.
func (m *shardModel) restart(r *replica) {
	r.up = true
	r.view, r.applied = clonedView(r.kept), r.keptApplied
	junk := []Change{{Group: "junk", Topic: "t", Offset: &Offset{Offset: 1 << 50}}}
	switch m.rng.IntN(8) {
	case 0:
		r.view.apply(junk)
		r.applied.Next += int64(len(m.committed)) + 1000
	case 1:
		if r.applied.Next > 0 {
			r.view.apply(junk)
			r.applied.Epoch = m.epoch + 1
		}
	}
	m.open(r)
	r.drive(m.now)
}

// disk breaks a disk, or mends it.
func (m *shardModel) disk(r *replica) {
	switch m.rng.IntN(4) {
	case 0:
		r.refuse, r.lands = errors.New("disk is full"), false
	case 1:
		r.refuse, r.lands = ErrUnknownOutcome, m.rng.IntN(2) == 0
		m.counts.Unknown++
	case 2:
		r.noRoom = true
	default:
		r.noRoom = false
		r.shard.Retry()
	}
}

func (m *shardModel) wait(d time.Duration) {
	m.now = m.now.Add(d)
	for _, r := range m.nodes {
		if at, ok := r.shard.Deadline(); r.up && ok && !at.After(m.now) {
			r.shard.Tick(m.now)
			r.drive(m.now)
		}
	}
}
