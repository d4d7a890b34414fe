package sim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"leat/broker/group"
	"leat/replication"
	"leat/replication/controller"
)

// groupBatch is what a batch of the group partition holds.
type groupBatch struct{ changes []group.Change }

// clockStart is the wall clock at the start of a world.
var clockStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *world) wall() time.Time { return clockStart.Add(w.now) }

// groupView is the committed view of a group partition, which a broker keeps in
// its store: what the log says up to applied.
type groupView struct {
	applied group.Applied
	members map[string]*group.Record
	exists  map[string]bool
	offsets map[groupPlace]*group.Offset
}

type groupPlace struct {
	group, topic string
	partition    int32
}

func newGroupView() *groupView {
	return &groupView{
		applied: group.Applied{Epoch: -1}, members: map[string]*group.Record{}, exists: map[string]bool{}, offsets: map[groupPlace]*group.Offset{},
	}
}

func (v *groupView) clone() *groupView {
	return &groupView{applied: v.applied, members: maps.Clone(v.members), exists: maps.Clone(v.exists), offsets: maps.Clone(v.offsets)}
}

// change puts one change into the view.
func (v *groupView) change(c *group.Change) {
	switch {
	case c.Topic != "" && c.Offset == nil:
		delete(v.offsets, groupPlace{c.Group, c.Topic, c.Partition})
	case c.Topic != "":
		v.exists[c.Group] = true
		v.offsets[groupPlace{c.Group, c.Topic, c.Partition}] = c.Offset
	case c.OfGroup() && c.Members == nil:
		delete(v.members, c.Group)
		delete(v.exists, c.Group)
	case c.OfGroup():
		v.exists[c.Group] = true
		v.members[c.Group] = c.Members
	}
}

// Members implements group.View.
func (v *groupView) Members(id string) (*group.Record, error) { return v.members[id], nil }

// Exists implements group.View.
func (v *groupView) Exists(id string) (bool, error) { return v.exists[id], nil }

// EachGroup implements group.View.
func (v *groupView) EachGroup(fn func(id string) error) error {
	for _, id := range slices.Sorted(maps.Keys(v.exists)) {
		if err := fn(id); err != nil {
			return err
		}
	}
	return nil
}

// EachMembers implements group.View.
func (v *groupView) EachMembers(fn func(id string, r *group.Record) error) error {
	for _, id := range slices.Sorted(maps.Keys(v.members)) {
		if err := fn(id, v.members[id]); err != nil {
			return err
		}
	}
	return nil
}

// EachOffset implements group.View.
func (v *groupView) EachOffset(id string, fn func(topic string, partition int32, o *group.Offset) error) error {
	var places []groupPlace
	for at := range v.offsets {
		if at.group == id {
			places = append(places, at)
		}
	}
	slices.SortFunc(places, func(a, b groupPlace) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
	})
	for _, at := range places {
		if err := fn(at.topic, at.partition, v.offsets[at]); err != nil {
			return err
		}
	}
	return nil
}

// EachLease implements group.View.
func (v *groupView) EachLease(string, func(group.Partition, *group.LeaseRecord) error) error {
	return nil
}

// Offset implements group.View.
func (v *groupView) Offset(id, topic string, partition int32) (*group.Offset, error) {
	return v.offsets[groupPlace{id, topic, partition}], nil
}

// Topic implements group.Topics.
func (p *process) Topic(id [16]byte) (name string, partitions int32, ok bool) {
	if t := p.meta.shown.Topic(id); t != nil {
		return t.Name, int32(t.Partitions.Len()), true
	}
	return "", 0, false
}

// Bounds implements group.Log.
func (l *simLog) Bounds() (start, end int64) { return l.start, l.end }

// coordinator is the shell of a group.Shard: it has the log and the view, and who
// waits for answers.
type coordinator struct {
	r       *replica
	shard   *group.Shard
	asked   map[group.Token]func(group.Answer)
	token   group.Token
	timer   time.Time
	pumping bool
	// led is since when it leads, changed says that somebody has joined or left since.
	led     time.Duration
	changed bool
}

var (
	groupConfig = group.Config{MinSession: time.Second, MaxSession: time.Minute, InitialDelay: 100 * time.Millisecond, MaxSize: 10}
	leaseConfig = group.LeaseConfig{MaxWaiting: 10, Aside: time.Second, Linger: time.Minute}
)

// coordinate opens the shard of a group partition.
func (r *replica) coordinate() {
	p := r.p
	if r.log.view == nil {
		r.log.view = newGroupView()
		r.log.saved = r.log.view.clone()
	}
	c := &coordinator{r: r, asked: map[group.Token]func(group.Answer){}}
	groups := groupConfig
	groups.NewMemberID = func(name string) string {
		p.w.memberIDs++
		return fmt.Sprintf("%s-%d", name, p.w.memberIDs)
	}
	c.shard = group.NewShard(group.ShardOptions{
		Groups: &groups, Leases: &leaseConfig, MaxRounds: 4, MaxBatch: 4096, View: r.log.view, Topics: p, Applied: r.log.view.applied,
	})
	r.groups = c
	c.check()
}

func (c *coordinator) check() {
	if err := c.shard.Check(c.r.p.w.wall(), c.r.log); err != nil {
		c.r.p.w.failed("group", err.Error())
	}
}

// decided follows a change of role.
func (c *coordinator) decided(change replication.Change, epoch int32) {
	now := c.r.p.w.wall()
	switch {
	case !change.NewEpoch && !change.Resigned:
	case change.Role == replication.Leader:
		c.led, c.changed = c.r.p.w.now, false
		if err := c.shard.Lead(now, epoch, c.r.log); err != nil {
			c.r.p.w.failed("group", err.Error())
		}
	default:
		c.shard.Resign(now, epoch)
	}
}

// pump does what the shard has to be done.
func (c *coordinator) pump() {
	if c.pumping {
		return
	}
	c.pumping = true
	defer func() { c.pumping = false }()
	w := c.r.p.w
	c.shard.Committed(c.r.core.HighWatermark())
	for !c.r.p.over && !c.r.closed && !w.over() {
		t, ok := c.shard.Next(w.wall())
		if !ok {
			break
		}
		c.do(&t)
		c.shard.Committed(c.r.core.HighWatermark())
	}
	c.arm()
}

func (c *coordinator) do(t *group.Todo) {
	w, v := c.r.p.w, c.r.log.view
	now := w.wall()
	if t.Wipe {
		w.counts.viewsWiped++
		*v = *newGroupView()
		v.applied.Next = c.r.log.start
		c.shard.Wiped(now, nil)
	}
	if t.Apply != nil {
		c.apply(t.Apply)
	}
	if t.Append != nil {
		c.append(t.Append)
	}
	for _, a := range t.Answers {
		if fn := c.asked[a.Token]; fn != nil {
			delete(c.asked, a.Token)
			fn(a)
		}
	}
	for _, err := range t.Troubles {
		w.trace("node %d: group trouble: %v", c.r.p.n.id, err)
	}
}

// apply puts what is committed into the view.
func (c *coordinator) apply(a *group.Apply) {
	v, w := c.r.log.view, c.r.p.w
	to := group.Applied{Next: a.To, Epoch: a.Epoch}
	changes := a.Changes
	if a.Read {
		batches, err := c.r.log.read(a.From, a.To, 5)
		if err != nil || len(batches) == 0 {
			if err == nil {
				w.failed("group", fmt.Sprintf("nothing to apply from %d to %d: %v", a.From, a.To, c.r.log.batches))
			}
			c.shard.Did(w.wall(), a, group.Applied{}, cmp.Or(err, errDamaged))
			c.r.p.damaged(err)
			return
		}
		changes = nil
		for i := range batches {
			b := &batches[i]
			if b.group != nil {
				c.recorded(b.base, b.epoch, b.group.changes)
				changes = append(changes, b.group.changes...)
			}
			to = group.Applied{Next: b.next(), Epoch: b.epoch}
		}
	}
	if !a.Read {
		c.recorded(a.From, a.Epoch, changes)
	}
	for i := range changes {
		v.change(&changes[i])
	}
	v.applied = to
	w.counts.applies++
	c.shard.Did(w.wall(), a, to, nil)
	if w.chance(0.1) {
		c.r.log.saved = v.clone()
	}
	w.checks.folded(c.r.p.n.id, c.r.id, to.Next, !w.chance(0.05) || c.folds())
}

// recorded has the changes of groups checked that are at a base in the log, of a
// leader epoch.
func (c *coordinator) recorded(base int64, epoch int32, changes []group.Change) {
	for i := range changes {
		c.r.p.w.checks.recorded(c.r.p.n.id, c.r.id, base+int64(i), epoch, &changes[i])
	}
}

// folds reports whether the view is what the log says up to where it was applied.
func (c *coordinator) folds() bool {
	v, want := c.r.log.view, newGroupView()
	for i := range c.r.log.batches {
		b := &c.r.log.batches[i]
		if b.next() > v.applied.Next {
			break
		}
		if b.group != nil {
			for j := range b.group.changes {
				want.change(&b.group.changes[j])
			}
		}
	}
	return maps.Equal(v.exists, want.exists) && reflect.DeepEqual(v.members, want.members) && maps.Equal(v.offsets, want.offsets)
}

// append puts one round into the log.
func (c *coordinator) append(a *group.Append) {
	r := c.r
	now := r.p.w.wall()
	err := r.core.CheckAppend(true, r.p.now())
	if err == nil && r.core.LeaderEpoch() != a.Epoch {
		err = replication.ErrNotLeader
	}
	if err == nil {
		err = r.p.n.disk.write()
	}
	var at *batch
	if err == nil {
		at, err = r.log.lead(batch{count: int32(len(a.Changes)), pid: -1, group: &groupBatch{slices.Clone(a.Changes)}}, a.Epoch)
	}
	if err != nil {
		c.shard.Appended(now, a, r.log.end, err)
		return
	}
	r.p.w.counts.groupBatches++
	base := at.base
	r.appended(at)
	c.shard.Appended(now, a, base, nil)
	r.p.in(0, r.moved)
}

// arm has the shard's timers run.
func (c *coordinator) arm() {
	at, ok := c.shard.Deadline()
	if !ok || c.timer.Equal(at) {
		return
	}
	c.timer = at
	c.r.p.in(at.Sub(c.r.p.w.wall()), func() {
		if !c.r.closed && c.timer.Equal(at) {
			c.timer = time.Time{}
			c.shard.Tick(c.r.p.w.wall())
			c.pump()
		}
	})
}

// groupRequest is a request of a member or of who commits.
type groupRequest func(s *group.Shard, now time.Time, t group.Token)

// coordinated is a request to a group's coordinator. read says that what is
// answered must be current, which only a leader with a lease knows.
func (n *node) coordinated(id partID, read bool, req groupRequest, answer func(group.Answer)) {
	if n.p == nil {
		return
	}
	r := n.p.replicas[id]
	if r == nil || r.groups == nil {
		answer(group.Answer{Err: errNotHere})
		return
	}
	if err := r.core.CheckRead(n.p.now()); err != nil {
		answer(group.Answer{Err: err})
		return
	}
	c := r.groups
	if c.shard.Busy() {
		answer(group.Answer{Err: errRefused})
		return
	}
	c.token++
	c.asked[c.token] = func(a group.Answer) {
		if read && a.Err == nil && r.core.CheckRead(n.p.now()) != nil {
			a = group.Answer{Err: replication.ErrNotLeader}
		}
		answer(a)
	}
	req(c.shard, n.w.wall(), c.token)
	c.pump()
}

// committer commits offsets of a group and reads them again, without being a
// member: a register.
type committer struct {
	w       *world
	at      addr
	group   string
	of      partID // whose offsets
	id      partID // of the coordinator
	process int
	leader  int32
	done    bool
	pending bool
}

func (w *world) addCommitter(at addr, id, of partID) {
	c := &committer{w: w, at: at, group: "register", id: id, of: of, process: w.newProcess()}
	w.committers = append(w.committers, c)
	w.hist.coordinator(c.group, id)
	w.at(0, nil, c.step)
}

func (c *committer) step() {
	w := c.w
	if c.done {
		return
	}
	if c.leader == 0 {
		w.describe(c.at, func(s *controller.State) {
			c.leader = leaderOf(s, c.id)
			w.at(w.between(10*time.Millisecond, 100*time.Millisecond), nil, c.step)
		})
		return
	}
	c.pending = true
	again := func(err error) {
		c.pending = false
		if err != nil {
			c.leader = 0
		}
		w.at(w.between(w.cfg.pause, w.cfg.pause*5), nil, c.step)
	}
	if w.rng.IntN(2) == 0 {
		c.fetch(again)
	} else {
		c.commit(again)
	}
}

// uncommitted reports whether an error says that nothing was committed.
func uncommitted(err error) bool {
	return errors.Is(err, errRefused) || errors.Is(err, errNotHere) || errors.Is(err, group.ErrLoading) || errors.Is(err, replication.ErrNotLeader)
}

func (c *committer) commit(again func(error)) {
	w := c.w
	w.commits++
	offset := w.commits
	op := w.hist.commit(c.process, c.group, c.of, offset)
	topic := short(c.of)
	n := w.node(c.leader)
	callOnce(w.net, c.at, n.addr(), w.cfg.timeout, func(answer func(group.Answer)) {
		n.coordinated(c.id, false, func(s *group.Shard, now time.Time, t group.Token) {
			s.Commit(now, t, c.group, group.MemberRef{Generation: -1}, []group.Change{{
				Group: c.group, Topic: topic, Partition: c.of.Partition,
				Offset: &group.Offset{Topic: c.of.Topic, Offset: offset, Epoch: -1, At: now.UnixMilli(), Expires: -1},
			}})
		}, answer)
	}, func(a group.Answer, err error) {
		if err == nil {
			err = a.Err
		}
		switch {
		case err == nil:
			w.counts.commits++
			w.hist.committed(op, okay)
		case uncommitted(err):
			w.hist.committed(op, failed)
		default:
			w.hist.committed(op, unknown)
			c.process = w.newProcess()
		}
		again(err)
	})
}

func (c *committer) fetch(again func(error)) {
	w := c.w
	op := w.hist.fetchCommitted(c.process, c.group, c.of)
	n := w.node(c.leader)
	call(w.net, nil, c.at, n.addr(), w.cfg.timeout, func(answer func(group.Answer)) {
		n.coordinated(c.id, true, func(s *group.Shard, now time.Time, t group.Token) {
			s.Fetch(now, t, c.group, short(c.of), []int32{c.of.Partition})
		}, answer)
	}, func(a group.Answer, err error) {
		if err == nil {
			err = a.Err
		}
		if err != nil {
			w.hist.fetchedCommitted(op, -1, failed)
			again(err)
			return
		}
		offset := int64(-1)
		if got := a.Value.([]*group.Offset); len(got) == 1 && got[0] != nil {
			offset = got[0].Offset
		}
		w.hist.fetchedCommitted(op, offset, okay)
		again(nil)
	})
}
