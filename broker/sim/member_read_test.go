package sim

import (
	"errors"
	"time"

	"leat/broker/group"
	"leat/replication/controller"
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
		offset := int64(-1)
		if got := a.Value.([]*group.Offset); len(got) == 1 && got[0] != nil {
			offset = got[0].Offset
		}
		w.hist.fetchedCommitted(op, offset, okay)
		if m.turn != turn || m.process != process {
			return
		}
		m.next[id], m.kept[id] = max(offset, 0), max(offset, 0)
		w.hist.seek(m.process, id, max(offset, 0))
	})
}

// poll reads one of the partitions that the member has, and comes again.
func (m *member) poll() {
	w := m.w
	again := func() { m.later(w.between(w.cfg.pause/2, w.cfg.pause*3/2), m.poll) }
	var ready []partID
	for _, id := range m.owned {
		if _, ok := m.next[id]; ok {
			ready = append(ready, id)
		}
	}
	if len(ready) == 0 {
		again()
		return
	}
	id, life := pick(w.rng, ready...), m.life
	w.describe(m.at, func(s *controller.State) {
		leader := leaderOf(s, id)
		from, ok := m.next[id]
		if m.life != life || !m.up {
			return
		}
		if leader == 0 || !ok {
			again()
			return
		}
		m.read(w.node(leader), id, from, again)
	})
}

func (m *member) read(n *node, id partID, from int64, again func()) {
	w, process, turn, life := m.w, m.process, m.turn, m.life
	op := w.hist.poll(process, id, from)
	call(w.net, nil, m.at, n.addr(), w.cfg.timeout, func(answer func(readAnswer)) { n.read(readRequest{id: id, from: from}, answer) },
		func(a readAnswer, err error) {
			if err == nil {
				err = a.err
			}
			mine := m.life == life && m.up && m.process == process && m.turn == turn
			switch {
			case errors.Is(err, errOutOfRange):
				w.hist.polled(op, nil, a.hw, failed)
				if !mine {
					break
				}
				to := min(max(from, a.start), a.hw)
				if from < a.start {
					m.c.passed[id] = max(m.c.passed[id], a.start)
					w.hist.seek(process, id, to)
				} else {
					w.hist.reset(process, id, to)
				}
				m.next[id] = to
			case err != nil || !mine:
				w.hist.polled(op, nil, -1, failed)
			default:
				w.hist.polled(op, a.batches, a.hw, okay)
				for i := range a.batches {
					w.counts.readByGroup++
					m.c.read[a.batches[i].value] = true
					m.next[id] = a.batches[i].next()
				}
			}
			if m.life == life && m.up {
				again()
			}
		})
}

// commits commits what was read, now and then.
func (m *member) commits() {
	m.later(m.w.between(100*time.Millisecond, 500*time.Millisecond), m.commits)
	if m.generation < 0 || m.committing || m.node == 0 {
		return
	}
	var what []partID
	for _, id := range m.owned {
		if next, ok := m.next[id]; ok && next > m.kept[id] {
			what = append(what, id)
		}
	}
	if len(what) == 0 {
		return
	}
	m.committing = true
	to := make([]int64, len(what))
	for i, id := range what {
		to[i] = m.next[id]
	}
	generation := m.generation
	m.commit(m.ref(), m.process, what, to, func(a group.Answer) {
		m.committing = false
		switch {
		case m.generation != generation:
		case a.Err == nil:
			for i, id := range what {
				m.kept[id] = to[i]
			}
		case !uncommitted(a.Err) && !ofGroup(a.Err):
			// It may come into force yet: what is asked from here on is somebody
			// else's, for the history.
			m.process = m.w.newProcess()
			for _, id := range m.owned {
				if next, ok := m.next[id]; ok {
					m.w.hist.seek(m.process, id, next)
				}
			}
		}
	})
}

// commit sends one commit; done is not called in another life.
func (m *member) commit(ref group.MemberRef, process int, what []partID, to []int64, done func(group.Answer)) {
	w := m.w
	ops := make([]int, len(what))
	changes := make([]group.Change, len(what))
	for i, id := range what {
		ops[i] = w.hist.commit(process, m.c.name, id, to[i])
		changes[i] = group.Change{
			Group: m.c.name, Topic: short(id), Partition: id.Partition,
			Offset: &group.Offset{Topic: id.Topic, Offset: to[i], Epoch: -1, At: w.wall().UnixMilli(), Expires: -1},
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
	var what []partID
	var to []int64
	for _, id := range m.owned {
		if next, ok := m.next[id]; ok {
			what, to = append(what, id), append(to, next)
		}
	}
	if len(what) == 0 || n == 0 {
		return
	}
	ghost := &member{w: w, c: m.c, at: m.at, name: m.name, up: true, node: n}
	w.at(w.between(0, m.c.session*2), nil, func() {
		ghost.commit(ref, w.newProcess(), what, to, func(a group.Answer) {
			if ofGroup(a.Err) {
				w.counts.refusedOld++
			}
		})
	})
}
