package sim

import (
	"time"

	"leat/broker/group"
)

// resume reads where the group has to go on with a partition, until it knows.
func (m *member) resume(id partID, turn int) {
	w := m.w
	if m.turn != turn {
		return
	}
	op := w.hist.fetchCommitted(m.process, m.c.name, id)
	req := &memberRequest{kind: askFetch, ended: func(group.Answer) { w.hist.fetchedCommitted(op, -1, failed) }}
	req.run = func(s *group.Shard, now time.Time, t group.Token) {
		s.Fetch(now, t, m.c.name, short(id), []int32{id.Partition})
	}
	process := m.process
	m.ask(req, w.cfg.timeout, func(a group.Answer) {
		if a.Err != nil {
			w.hist.fetchedCommitted(op, -1, failed)
			m.later(w.between(10*time.Millisecond, 100*time.Millisecond), func() { m.resume(id, turn) })
			return
		}
		offset, epoch := int64(-1), int32(-1)
		if got := a.Value.([]*group.Offset); len(got) == 1 && got[0] != nil {
			offset, epoch = got[0].Offset, got[0].Epoch
		}
		w.hist.fetchedCommitted(op, offset, okay)
		if m.turn != turn || m.process != process {
			return
		}
		offset = max(offset, 0)
		m.next[id], m.kept[id] = newReader(w, m.at, id, offset, epoch), offset
		w.hist.seek(m.process, id, offset)
	})
}

// poll reads one of the partitions that the member has, and comes again.
func (m *member) poll() {
	w := m.w
	again := func() { m.later(w.between(w.cfg.pause/2, w.cfg.pause*3/2), m.poll) }
	var ready []*reader
	for _, id := range m.owned {
		if r := m.next[id]; r != nil {
			ready = append(ready, r)
		}
	}
	if len(ready) == 0 {
		again()
		return
	}
	r, process, turn, life := pick(w.rng, ready...), m.process, m.turn, m.life
	if !r.ready() {
		again = func() { m.later(w.between(0, 40*time.Millisecond), m.poll) }
	}
	r.step(process, func() bool { return m.life == life && m.up && m.process == process && m.turn == turn },
		func(a *readAnswer) { m.got(r, a) },
		func() {
			if m.life == life && m.up {
				again()
			}
		})
}

// got takes what was read.
func (m *member) got(r *reader, a *readAnswer) {
	if r.next < a.start {
		m.c.passed[r.id] = max(m.c.passed[r.id], a.start)
	}
	for i := range a.batches {
		m.w.counts.readByGroup++
		m.c.read[a.batches[i].value] = true
	}
}

// commits commits what was read, now and then.
func (m *member) commits() {
	m.later(m.w.between(100*time.Millisecond, 500*time.Millisecond), m.commits)
	if m.generation < 0 || m.committing || m.node == 0 {
		return
	}
	var to []reader
	for _, id := range m.owned {
		if r := m.next[id]; r != nil && r.next > m.kept[id] {
			to = append(to, *r)
		}
	}
	if len(to) == 0 {
		return
	}
	m.committing = true
	generation := m.generation
	m.commit(m.ref(), m.process, to, func(a group.Answer) {
		m.committing = false
		switch {
		case m.generation != generation:
		case a.Err == nil:
			for i := range to {
				m.kept[to[i].id] = to[i].next
			}
		case !uncommitted(a.Err) && !ofGroup(a.Err):
			// It may come into force yet: what is asked from here on is somebody
			// else's, for the history.
			m.process = m.w.newProcess()
			for _, id := range m.owned {
				if r := m.next[id]; r != nil {
					m.w.hist.seek(m.process, id, r.next)
				}
			}
		}
	})
}

// commit sends one commit of places; done is not called in another life.
func (m *member) commit(ref group.MemberRef, process int, to []reader, done func(group.Answer)) {
	w := m.w
	ops := make([]int, len(to))
	changes := make([]group.Change, len(to))
	for i := range to {
		r := &to[i]
		ops[i] = w.hist.commit(process, m.c.name, r.id, r.next)
		changes[i] = group.Change{
			Group: m.c.name, Topic: short(r.id), Partition: r.id.Partition,
			Offset: &group.Offset{Topic: r.id.Topic, Offset: r.next, Epoch: r.epoch, At: w.wall().UnixMilli(), Expires: -1},
		}
	}
	noted := func(a group.Answer) {
		for _, op := range ops {
			switch {
			case a.Err == nil:
				w.counts.commits++
				w.hist.committed(op, okay)
			case uncommitted(a.Err) || ofGroup(a.Err):
				w.hist.committed(op, failed)
			default:
				w.hist.committed(op, unknown)
			}
		}
	}
	req := &memberRequest{kind: askCommit, ref: ref, ended: noted, run: func(s *group.Shard, now time.Time, t group.Token) {
		s.Commit(now, t, m.c.name, ref, changes)
	}}
	m.ask(req, w.cfg.timeout, func(a group.Answer) {
		noted(a)
		done(a)
	})
}

// zombie has a member that is out of its generation, without knowing, commit a
// while later.
func (m *member) zombie() {
	w, n, ref := m.w, m.node, m.ref()
	var to []reader
	for _, id := range m.owned {
		if r := m.next[id]; r != nil {
			to = append(to, *r)
		}
	}
	if len(to) == 0 || n == 0 {
		return
	}
	ghost := &member{w: w, c: m.c, at: m.at, name: m.name, up: true, node: n}
	w.at(w.between(0, m.c.session*2), nil, func() {
		ghost.commit(ref, w.newProcess(), to, func(a group.Answer) {
			if ofGroup(a.Err) {
				w.counts.refusedOld++
			}
		})
	})
}
