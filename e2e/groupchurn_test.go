package e2e

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	churnTopic      = "t"
	churnGroups     = 20
	churnMembers    = 5 // of each group
	churnPartitions = 64
	churnSession    = 2 * time.Second
)

// groupChurn is groups whose members come and go without end, and a producer that feeds them.
type groupChurn struct {
	*testing.T
	s      *server
	proxy  *proxy // its address is the server's for all clients, whatever becomes of the process
	rng    *rand.Rand
	groups []*churnGroup
	work   sync.WaitGroup // of members that end, and of those that are cut off for a while

	kills, closes, pauses int
}

// churnGroup is one group, its living members, and what it was given and answered.
type churnGroup struct {
	t       *testing.T
	name    string
	members []*churnMember // of the goroutine of the test
	mu      struct {
		sync.Mutex
		read   [churnPartitions]int64 // the records before were given to some member
		acked  [churnPartitions]int64 // the greatest commit that was answered
		owners map[claim]string       // the member

		assigned, commits, refused int
	}
}

// claim is a partition in a generation.
type claim struct {
	generation int32
	partition  int32
}

// churnMember is a member of a group: it commits each poll before the next.
type churnMember struct {
	*kgo.Client
	g      *churnGroup
	dialer severed
	work   sync.WaitGroup
	cancel context.CancelFunc
	owned  map[int32]int64 // partition -> what was committed when it was assigned; guarded by g.mu
	freeze atomic.Pointer[freeze]
}

// freeze is a pause of a member between the read of records and their commit.
type freeze struct{ held, thaw chan struct{} }

// churnBalancers are how the groups share their partitions, in turn.
var churnBalancers = []kgo.GroupBalancer{kgo.CooperativeStickyBalancer(), kgo.RangeBalancer(), kgo.StickyBalancer()}

// TestGroupChurn proves that 20 groups of 5 members each read 64 partitions without a record left out, while members
// die, leave, or are cut off and come back, and the server itself is killed: no partition has two owners in a
// generation, nobody begins behind what was committed before, and committed offsets never go back, neither for who
// asks nor in the log of the offsets topic. Members that were cut off go on with what they have, so commits of an older
// generation are refused.
func TestGroupChurn(t *testing.T) {
	span, kills, pace := 12*time.Second, 1, 100*time.Millisecond
	if long() {
		span, kills, pace = 10*time.Minute, 30, 250*time.Millisecond
	}
	if v := os.Getenv("LEAT_CHURN"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil {
			t.Fatal(err)
		}
		span, kills = d, max(1, int(d/(20*time.Second)))
	}
	seed := rand.Uint64()
	t.Logf("seed %d, %v", seed, span)
	c := &groupChurn{T: t, proxy: newProxy(t).forgetful(), rng: rand.New(rand.NewPCG(seed, 0))}
	c.s = start(t, append(slices.Clone(groupArgs), "--kafka-advertise", c.proxy.addr)...)
	c.s.createTopic(churnTopic, churnPartitions)
	c.proxy.point(c.s.Kafka)
	for i := range churnGroups {
		g := &churnGroup{t: t, name: fmt.Sprint("g", i)}
		g.mu.owners = map[claim]string{}
		c.groups = append(c.groups, g)
		for range churnMembers {
			g.members = append(g.members, c.join(g, i))
		}
	}
	stop, fed := make(chan struct{}), make(chan struct{})
	var feeding sync.WaitGroup
	feeding.Go(func() { c.feed(fed) })
	feeding.Go(func() { c.watch(stop) })

	every := span / time.Duration(kills+1)
	nextKill := time.Now().Add(every)
	for end := time.Now().Add(span); time.Now().Before(end) && !t.Failed(); after(pace) {
		c.disturb()
		if time.Now().After(nextKill) {
			c.s.kill()
			c.s.restart()
			c.proxy.point(c.s.Kafka)
			nextKill = nextKill.Add(every)
		}
	}
	close(fed)
	c.work.Wait()
	c.caughtUp()
	close(stop)
	feeding.Wait()
	c.compare()
	c.report()
}

// join starts a member of the i-th group; it ends with the test at the latest.
func (c *groupChurn) join(g *churnGroup, i int) *churnMember {
	c.Helper()
	m := &churnMember{g: g, owned: map[int32]int64{}}
	gone := func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, p := range parts[churnTopic] {
			delete(m.owned, p)
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(c.proxy.addr), kgo.Dialer(m.dialer.dial), kgo.ConsumerGroup(g.name), kgo.ConsumeTopics(churnTopic),
		kgo.Balancers(churnBalancers[i%len(churnBalancers)]), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(churnSession), kgo.HeartbeatInterval(churnSession/5),
		kgo.OnPartitionsAssigned(m.assigned), kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.FetchMaxWait(500*time.Millisecond), kgo.RequestRetries(1000),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.RequestRetries(tireless),
	)
	if err != nil {
		c.Fatal(err)
	}
	m.Client = client
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	m.work.Go(func() { m.consume(ctx) })
	c.Cleanup(m.die)
	return m
}

// assigned notes what the member owns from now on. It is called before the member asks where to begin.
func (m *churnMember) assigned(_ context.Context, client *kgo.Client, parts map[string][]int32) {
	id, generation := client.GroupMetadata()
	g := m.g
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.assigned++
	for _, p := range parts[churnTopic] {
		m.owned[p] = g.mu.acked[p]
	}
	for p := range m.owned {
		k := claim{generation, p}
		if other, ok := g.mu.owners[k]; ok && other != id {
			g.t.Errorf("%s: partition %d has two owners in generation %d: %s and %s", g.name, p, generation, other, id)
		}
		g.mu.owners[k] = id
	}
}

func (m *churnMember) consume(ctx context.Context) {
	for ctx.Err() == nil {
		records := m.PollRecords(ctx, 500).Records()
		if len(records) > 0 && m.take(records) {
			if f := m.freeze.Swap(nil); f != nil {
				close(f.held)
				<-f.thaw
			}
			err := m.CommitRecords(ctx, records...)
			m.committed(records, err)
		}
		m.AllowRebalance()
	}
}

// take notes that the group was given records; it reports whether they are where they should be.
func (m *churnMember) take(records []*kgo.Record) bool {
	g := m.g
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range records {
		read := &g.mu.read[r.Partition]
		if r.Offset > *read {
			g.t.Errorf("%s: partition %d: record %d was given out, the group has read up to %d", g.name, r.Partition, r.Offset, *read)
			return false
		}
		if begin, ok := m.owned[r.Partition]; ok && r.Offset < begin {
			g.t.Errorf("%s: partition %d: record %d was given out again, %d had been committed before", g.name, r.Partition, r.Offset, begin)
			return false
		}
		*read = max(*read, r.Offset+1)
	}
	return true
}

func (m *churnMember) committed(records []*kgo.Record, err error) {
	g := m.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.mu.refused++
		return
	}
	g.mu.commits++
	for _, r := range records {
		g.mu.acked[r.Partition] = max(g.mu.acked[r.Partition], r.Offset+1)
	}
}

// die ends a member without a word to the server.
func (m *churnMember) die() {
	m.dialer.cut()
	m.cancel()
	m.work.Wait()
	m.AllowRebalance()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_ = m.LeaveGroupContext(gone) // it cannot: the word finds no connection
	m.Close()
}

// leave ends a member as it should.
func (m *churnMember) leave() {
	m.cancel()
	m.work.Wait()
	m.CloseAllowingRebalance()
}

// pause cuts a member off for longer than its session, while it has records that it has not committed; then it goes on as
// if nothing had been.
func (m *churnMember) pause() {
	f := &freeze{make(chan struct{}), make(chan struct{})}
	m.freeze.Store(f)
	select {
	case <-f.held:
	case <-time.After(time.Second): // it has nothing to read
	}
	m.dialer.cut()
	after(churnSession * 3 / 2)
	m.dialer.mend()
	m.freeze.CompareAndSwap(f, nil)
	close(f.thaw)
}

// disturb has some member die or leave, with another in its place, or cuts one off for longer than its session.
func (c *groupChurn) disturb() {
	i := c.rng.IntN(len(c.groups))
	g := c.groups[i]
	n := c.rng.IntN(len(g.members))
	m := g.members[n]
	switch (c.kills + c.closes + c.pauses) % 5 {
	case 0, 2:
		c.kills++
		c.work.Go(m.die)
	case 1, 3:
		c.closes++
		c.work.Go(m.leave)
	default:
		c.pauses++
		if i%len(churnBalancers) == 0 {
			// A cooperative client that is told in its join that it is no member any more joins as a new one with the
			// partitions that it has, goes on where it was, and commits that: offsets would go back by its word.
			m = c.groups[i+1].members[n]
		}
		c.work.Go(m.pause)
		return
	}
	g.members[n] = c.join(g, i)
}

// feed writes records all over the partitions until it is told to end.
func (c *groupChurn) feed(stop <-chan struct{}) {
	client, err := kgo.NewClient(kgo.SeedBrokers(c.proxy.addr), kgo.ProducerLinger(0), kgo.MetadataMinAge(20*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }), kgo.RequestRetries(tireless))
	if err != nil {
		c.Error(err)
		return
	}
	defer client.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; {
		var records []*kgo.Record
		for range 8 {
			records = append(records, &kgo.Record{Topic: churnTopic, Partition: int32(n % churnPartitions), Value: strconv.AppendInt(nil, int64(n), 10)})
			n++
		}
		if err := client.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
			c.Errorf("produce: %v", err)
			return
		}
		select {
		case <-stop:
			return
		case <-tick.C:
		}
	}
}

// watch asks all the time what the groups have committed: never less than was answered before it asked, nor than it
// was told before.
func (c *groupChurn) watch(stop <-chan struct{}) {
	told := make([][churnPartitions]int64, len(c.groups))
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i = (i + 1) % len(c.groups) {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		g := c.groups[i]
		g.mu.Lock()
		least := g.mu.acked
		g.mu.Unlock()
		now, err := c.s.askCommitted(c.proxy.addr, g.name)
		if err != nil {
			continue // the server is gone, or not ready
		}
		for p, offset := range now {
			if offset < max(least[p], told[i][p]) {
				c.Errorf("%s: committed for partition %d is %d; it was %d, and a commit of %d was answered", g.name, p, offset, told[i][p], least[p])
				return
			}
			told[i][p] = offset
		}
	}
}

// askCommitted is what a group has committed for the partitions, 0 for nothing, by a connection of its own.
func (s *server) askCommitted(addr, group string) (out [churnPartitions]int64, err error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return out, err
	}
	defer nc.Close() //nolint:errcheck // it was only read
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group = 7, group
	resp, err := newWire(s.t, nc).try(req)
	if err != nil {
		return out, err
	}
	fetched := resp.(*kmsg.OffsetFetchResponse)
	if fetched.ErrorCode != codeNone {
		return out, fmt.Errorf("code %d", fetched.ErrorCode)
	}
	for _, t := range fetched.Topics {
		for _, p := range t.Partitions {
			if p.ErrorCode != codeNone {
				return out, fmt.Errorf("partition %d: code %d", p.Partition, p.ErrorCode)
			}
			out[p.Partition] = p.Offset
		}
	}
	return out, nil
}

// caughtUp waits until every group has read and committed everything.
func (c *groupChurn) caughtUp() {
	c.Helper()
	w := c.s.wire()
	var ends [churnPartitions]int64
	for p := range ends {
		ends[p] = w.end(churnTopic, int32(p))
	}
	for _, g := range c.groups {
		eventually(c, g.name+" to have read everything", func() error {
			committed, err := c.s.askCommitted(c.proxy.addr, g.name)
			if err != nil {
				return err
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			for p, end := range ends {
				if g.mu.read[p] != end || committed[p] != end {
					return fmt.Errorf("partition %d: read up to %d, committed %d, its end is %d", p, g.mu.read[p], committed[p], end)
				}
			}
			return nil
		})
	}
}

// compare reads what the offsets topic has of the groups, from the beginning: offsets do not go back, generations grow,
// and in none a partition has two owners. Then it wants the last of each to be what the server answers, also after a
// kill.
func (c *groupChurn) compare() {
	c.Helper()
	for _, g := range c.groups {
		for _, m := range g.members {
			c.work.Go(m.leave)
		}
	}
	c.work.Wait()
	last := c.readOffsetsLog()
	c.s.kill()
	c.s.restart()
	for _, g := range c.groups {
		var got [churnPartitions]int64
		eventually(c, "the groups to be served", func() (err error) {
			got, err = c.s.askCommitted(c.s.Kafka, g.name)
			return err
		})
		if want := last[g.name]; got != *want {
			c.Errorf("%s has committed %v, the log says %v", g.name, got, *want)
		}
	}
}

// readOffsetsLog reads the offsets topic and returns what each group has committed last.
func (c *groupChurn) readOffsetsLog() map[string]*[churnPartitions]int64 {
	c.Helper()
	last, generations := map[string]*[churnPartitions]int64{}, map[string]int32{}
	w := c.s.wire()
	for partition := range int32(16) {
		for _, b := range mustSplit(c, w.fetchAll("__consumer_offsets", partition, 0)) {
			for _, r := range b.records(c) {
				switch version := binary.BigEndian.Uint16(r.Key); version {
				case 1:
					c.oneOffset(last, &r)
				case 2:
					c.oneGeneration(generations, &r)
				default:
					c.Errorf("a record of version %d in the offsets topic", version)
				}
			}
		}
	}
	return last
}

func (c *groupChurn) oneOffset(last map[string]*[churnPartitions]int64, r *kmsg.Record) {
	var k kmsg.OffsetCommitKey
	var v kmsg.OffsetCommitValue
	if err := errors.Join(k.ReadFrom(r.Key), v.ReadFrom(r.Value)); err != nil {
		c.Fatal(err)
	}
	if last[k.Group] == nil {
		last[k.Group] = new([churnPartitions]int64)
	}
	before := &last[k.Group][k.Partition]
	if v.Offset < *before {
		c.Errorf("%s: the log has a commit of %d for partition %d after one of %d", k.Group, v.Offset, k.Partition, *before)
	}
	*before = v.Offset
}

func (c *groupChurn) oneGeneration(generations map[string]int32, r *kmsg.Record) {
	var k kmsg.GroupMetadataKey
	var v kmsg.GroupMetadataValue
	if err := errors.Join(k.ReadFrom(r.Key), v.ReadFrom(r.Value)); err != nil {
		c.Fatal(err)
	}
	if v.Generation <= generations[k.Group] {
		c.Errorf("%s: the log has generation %d after %d", k.Group, v.Generation, generations[k.Group])
	}
	generations[k.Group] = v.Generation
	owners := map[int32]string{}
	for _, m := range v.Members {
		if len(m.Assignment) == 0 {
			continue
		}
		var a kmsg.ConsumerMemberAssignment
		if err := a.ReadFrom(m.Assignment); err != nil {
			c.Fatal(err)
		}
		for _, t := range a.Topics {
			for _, p := range t.Partitions {
				if other, ok := owners[p]; ok {
					c.Errorf("%s: in generation %d partition %d is assigned to %s and %s", k.Group, v.Generation, p, other, m.MemberID)
				}
				owners[p] = m.MemberID
			}
		}
	}
}

func (c *groupChurn) report() {
	var records int64
	var assigned, commits, refused int
	generations := map[string]int32{}
	for _, g := range c.groups {
		g.mu.Lock()
		for _, n := range g.mu.read {
			records += n
		}
		assigned, commits, refused = assigned+g.mu.assigned, commits+g.mu.commits, refused+g.mu.refused
		for k := range g.mu.owners {
			generations[g.name] = max(generations[g.name], k.generation)
		}
		g.mu.Unlock()
	}
	most := slices.MaxFunc(slices.Collect(maps.Values(generations)), cmp.Compare)
	c.Logf("%d members died, %d left, %d were cut off; %d assignments, at most %d generations; %d records read, %d commits, %d not answered or refused",
		c.kills, c.closes, c.pauses, assigned, most, records, commits, refused)
	if commits == 0 || refused == 0 || c.pauses == 0 {
		c.Errorf("%d commits, %d of them not answered or refused, %d members cut off: too little happened", commits, refused, c.pauses)
	}
}
