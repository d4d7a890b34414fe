package group

import (
	"errors"
	"reflect"
	"slices"
	"time"
)

// answered checks an answer against what is committed.
func (m *shardModel) answered(r *replica, a Answer) {
	q, ok := m.asked[a.Token]
	if !ok {
		m.fail("token %d was answered twice", a.Token)
	}
	delete(m.asked, a.Token)
	c := &m.clients[q.client]
	m.count(a.Err)
	if errors.Is(a.Err, ErrUnknownMember) || q.what == "leave" && a.Err == nil {
		c.id, c.generation = "", -1
	}
	if a.Err != nil {
		return
	}
	switch q.what {
	case "commit":
		m.counts.Acked++
		m.saw(r, q.at, q.value, "a commit was answered")
	case "fetch":
		o := a.Value.([]*Offset)[0]
		if o == nil {
			if seen, ok := m.seen[q.at]; ok {
				m.fail("nothing of %v, of which offset %d of the log was told before", q.at, seen)
			}
			return
		}
		m.counts.Fetched++
		if o.Epoch != int32(o.Offset) {
			m.fail("offset %d has the epoch %d", o.Offset, o.Epoch)
		}
		m.saw(r, q.at, o.Offset, "an offset was told")
	case "join":
		v := a.Value.(JoinReply)
		c.id, c.generation, c.members = v.MemberID, v.Generation, v.Members
	case "sync":
		m.counts.Synced++
		if g := int32(q.value); g < m.synced[c.group] {
			m.fail("%s goes back to generation %d from %d", c.group, g, m.synced[c.group])
		}
		m.synced[c.group] = int32(q.value)
		if !slices.ContainsFunc(m.committed[:r.hw], func(ch Change) bool {
			return ch.OfGroup() && ch.Group == c.group && ch.Members.Generation == int32(q.value)
		}) {
			m.fail("an assignment of generation %d of %s was told, which is not committed", q.value, c.group)
		}
	}
}

func (m *shardModel) count(err error) {
	switch {
	case err == nil:
	case errors.Is(err, ErrNotCoordinator):
		m.counts.NotCoordinator++
	case errors.Is(err, ErrLoading):
		m.counts.Loading++
	case errors.Is(err, ErrNotAvailable):
		m.counts.NotAvailable++
	default:
		m.counts.Refused++
	}
}

// saw notes that somebody was told of a value: it must be committed, and not
// before one of which anybody was told.
func (m *shardModel) saw(r *replica, reg offsetAt, value int64, what string) {
	at, ok := m.at[value]
	if !ok || at >= r.hw {
		m.fail("%s that is not committed: %d of %v", what, value, reg)
	}
	if before, ok := m.seen[reg]; ok && at < before {
		m.fail("%s that goes back: %d of %v is at %d, and %d was told of", what, value, reg, at, before)
	}
	m.seen[reg] = at
}

// invariants is I19: what a view has is committed, and the fold of the log.
func (m *shardModel) invariants(r *replica) {
	if !r.up || r.due != nil {
		return
	}
	a := r.shard.Applied()
	if a.Next > r.hw && a.Next > int64(len(m.committed)) {
		m.fail("the view has %d, committed is %d", a.Next, len(m.committed))
	}
	if a != r.applied {
		m.fail("the view has %+v, the shard takes it for %+v", r.applied, a)
	}
	if a.Next > 0 && a.Epoch >= 0 && m.epochs[a.Next-1] != a.Epoch {
		m.fail("the view ends at %d with epoch %d, the log has %d", a.Next, a.Epoch, m.epochs[a.Next-1])
	}
	fold := newMemView()
	fold.apply(m.committed[:a.Next])
	if !reflect.DeepEqual(fold, r.view) {
		m.fail("the view at %d is not the fold of the log", a.Next)
	}
}

// heal mends everything, and sees that it works.
func (m *shardModel) heal() {
	for _, r := range m.nodes {
		if !r.up {
			m.restart(r)
		}
		r.holdAppend, r.holdApply, r.noRoom, r.refuse = false, false, false, nil
		r.shard.Retry()
		m.finish(r)
		r.drive(m.now)
	}
	m.elect()
	for range 2000 {
		for i, r := range m.nodes {
			m.tellRole(i)
			m.replicate(i)
			m.shrinkOrExpand(i)
			r.drive(m.now)
		}
		m.isr[m.leader] = true
		m.advance()
	}
	m.wait(time.Minute) // whoever waits for others, does so for so long
	for range 50 {
		for i, r := range m.nodes {
			m.replicate(i)
			r.drive(m.now)
		}
		m.advance()
	}
	l := m.nodes[m.leader]
	if err := l.shard.Serves(); err != nil {
		m.fail("after all is well: %v; it is at %+v of %d", err, l.shard.Applied(), l.log.end())
	}
	for i, r := range m.nodes {
		m.invariants(r)
		if got, end := r.shard.Applied().Next, l.log.end(); got != end || int64(len(m.committed)) != end {
			m.fail("after all is well replica %d has applied %d of %d", i, got, end)
		}
	}
	if len(m.asked) > 0 {
		m.fail("%d requests were never answered: %v", len(m.asked), m.asked)
	}
}
