package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"leat/broker/group"
	"leat/replication/controller"
)

// crew is a consumer group with members, who read all partitions of a topic.
type crew struct {
	w       *world
	name    string
	id      partID // of the coordinator
	topic   partID // partition 0 of the topic that they read
	session time.Duration
	members []*member
	// read has the first value of each batch that some member has read.
	read map[uint64]bool
	// passed is where a log began at the latest that a member has gone on from: a
	// leader after that one may begin before it.
	passed map[partID]int64
}

// member is a client that is in a group while it lives: it joins, reads what it is
// given from the committed offsets on, commits and sends heartbeats. It ends
// without a word, or leaves, stops for a while, and comes back.
type member struct {
	w    *world
	c    *crew
	at   addr
	name string
	// instance is not empty for a static member.
	instance string
	// life counts the starts; what a former life waits for does not come.
	life    int
	up      bool
	stopped time.Duration // SIGSTOP until then
	process int

	node       int32 // of the coordinator, 0 if it looks for it
	id         string
	generation int32 // -1: in none
	joining    bool
	partitions int // that it assigned as leader, 0 if it does not lead
	owned      []partID
	// turn counts what the member was given: one generation may give twice, and
	// what was asked before that is not taken any more.
	turn       int
	next       map[partID]*reader
	kept       map[partID]int64 // committed
	committing bool
	// served is the leader epoch of the coordinator that has answered the last
	// heartbeat in this generation.
	served int32
}

func (w *world) addCrew(next func() addr, id, topic partID) {
	c := &crew{w: w, name: "crew", id: id, topic: topic, session: pick(w.rng, 2*time.Second, 4*time.Second), read: map[uint64]bool{}, passed: map[partID]int64{}}
	w.crew = c
	w.hist.coordinator(c.name, id)
	for i := range w.cfg.members {
		m := &member{w: w, c: c, at: next(), name: fmt.Sprintf("m%d", i)}
		if w.cfg.static && i%2 == 0 {
			m.instance = fmt.Sprintf("static-%d", i)
		}
		c.members = append(c.members, m)
		w.at(w.between(0, time.Second), nil, m.start)
		w.at(w.between(0, 2*w.cfg.crewEvery), nil, m.trouble)
	}
}

// parts are the partitions that there are to read.
func (c *crew) parts() (out []partID) {
	for _, id := range c.w.partitions {
		if id.Topic == c.topic.Topic {
			out = append(out, id)
		}
	}
	return out
}

// assign deals the partitions out to members.
func (c *crew) assign(members []group.Member, generation int32) (given map[string][]byte, partitions int) {
	given = map[string][]byte{}
	parts := c.parts()
	for i := range members {
		b := binary.BigEndian.AppendUint32(nil, uint32(generation))
		for j := i; j < len(parts); j += len(members) {
			b = binary.BigEndian.AppendUint32(b, uint32(parts[j].Partition))
		}
		given[members[i].ID] = b
	}
	return given, len(parts)
}

// assigned reads what assign has written; nothing is given to who is not in it.
func (c *crew) assigned(b []byte) (out []partID) {
	for len(b) >= 8 {
		b = b[4:]
		out = append(out, partID{Topic: c.topic.Topic, Partition: int32(binary.BigEndian.Uint32(b))})
	}
	return out
}

// later has run called unless the member's life has ended by then.
func (m *member) later(d time.Duration, run func()) {
	life := m.life
	m.w.at(d, nil, func() {
		switch {
		case m.life != life || !m.up:
		case m.stopped > m.w.now:
			m.later(m.stopped-m.w.now, run)
		default:
			run()
		}
	})
}

func (m *member) start() {
	if m.up {
		return
	}
	m.life++
	m.up, m.id, m.node, m.process = true, "", 0, m.w.newProcess()
	m.joining, m.committing = false, false
	m.lose()
	m.join()
	m.poll()
	m.commits()
}

// lose ends a member's part in a generation.
func (m *member) lose() {
	if m.generation > 0 && len(m.next) > 0 && m.w.chance(0.5) {
		m.zombie()
	}
	m.generation, m.owned, m.partitions = -1, nil, 0
	m.turn++
	m.next, m.kept = map[partID]*reader{}, map[partID]int64{}
}

// trouble has something happen to the member now and then.
func (m *member) trouble() {
	w := m.w
	if w.phase != phaseFaults {
		return
	}
	away := w.between(50*time.Millisecond, pick(w.rng, time.Second, m.c.session*2))
	back := func() { w.at(away, nil, m.start) }
	switch {
	case !m.up:
	case w.chance(0.4):
		w.counts.membersKilled++
		m.lose()
		m.up = false
		back()
	case w.chance(0.5):
		w.counts.membersLeft++
		m.leave()
		m.lose()
		m.up = false
		back()
	default:
		w.counts.membersStopped++
		m.stopped = w.now + away
	}
	w.at(w.between(w.cfg.crewEvery/2, w.cfg.crewEvery*3/2), nil, m.trouble)
}

// ask makes a request to the coordinator. After an error the coordinator
// is looked for anew. done gets the token's answer.
func (m *member) ask(r *memberRequest, timeout time.Duration, done func(group.Answer)) {
	w, life := m.w, m.life
	if m.node == 0 {
		w.describe(m.at, func(s *controller.State) {
			if m.life != life {
				if r.ended != nil {
					r.ended(group.Answer{Err: errNotHere})
				}
				return
			}
			m.node = leaderOf(s, m.c.id)
			m.later(w.between(10*time.Millisecond, 100*time.Millisecond), func() { done(group.Answer{Err: errNotHere}) })
		})
		return
	}
	n := w.node(m.node)
	r.group, r.id = m.c.name, m.c.id
	callOnce(w.net, m.at, n.addr(), timeout, func(answer func(group.Answer)) { n.ofMember(r, answer) },
		func(a group.Answer, err error) {
			if err != nil {
				a = group.Answer{Err: err}
				// The connection ends, which the coordinator may notice.
				w.net.send(m.at, n.addr(), func() { n.cancel(r) }, nil)
			}
			if m.life != life || !m.up {
				if r.ended != nil {
					r.ended(a)
				}
				return
			}
			if a.Err != nil && !ofGroup(a.Err) {
				m.node = 0
			}
			run := func() { done(a) }
			if m.stopped > w.now {
				m.later(m.stopped-w.now, run)
				return
			}
			run()
		})
}

// ofGroup says that an error is the group's word, not that there is no coordinator.
func ofGroup(err error) bool {
	for _, e := range []error{
		group.ErrUnknownMember, group.ErrIllegalGeneration, group.ErrRebalanceInProgress, group.ErrMemberIDRequired, group.ErrFencedInstance, group.ErrFull,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func (m *member) ref() group.MemberRef {
	return group.MemberRef{ID: m.id, InstanceID: m.instance, Generation: m.generation}
}

// join has the member join, or join again, until it is in a generation.
func (m *member) join() {
	if m.joining {
		return
	}
	m.joining = true
	m.lose()
	m.tryJoin()
}

func (m *member) tryJoin() {
	w := m.w
	first := w.rng.IntN(2) == 0
	id := m.id
	patience := m.c.session + time.Second
	req := &memberRequest{kind: askJoin, run: func(s *group.Shard, now time.Time, t group.Token) {
		s.Join(now, t, m.c.name, &group.JoinRequest{
			Member:       group.Member{ID: id, InstanceID: m.instance, ClientID: m.name, Host: "host", Session: m.c.session, RebalanceTimeout: m.c.session},
			ProtocolType: group.ConsumerType, Protocols: []group.Protocol{{Name: "range"}}, IDFirst: first,
		})
	}}
	m.ask(req, patience, func(a group.Answer) {
		reply, _ := a.Value.(group.JoinReply)
		switch {
		case a.Err == nil:
			m.id, m.generation = reply.MemberID, reply.Generation
			var given map[string][]byte
			if reply.Leader == m.id {
				given, m.partitions = m.c.assign(reply.Members, m.generation)
			}
			m.sync(given)
			return
		case errors.Is(a.Err, group.ErrMemberIDRequired):
			m.id = reply.MemberID
		case errors.Is(a.Err, group.ErrUnknownMember), errors.Is(a.Err, group.ErrFencedInstance):
			m.id = ""
		}
		m.later(w.between(5*time.Millisecond, 100*time.Millisecond), m.tryJoin)
	})
}

// sync asks what the member is to read.
func (m *member) sync(given map[string][]byte) {
	ref := m.ref()
	m.ask(&memberRequest{kind: askSync, ref: ref, run: func(s *group.Shard, now time.Time, t group.Token) {
		s.Sync(now, t, m.c.name, &group.SyncRequest{MemberRef: ref, Assignments: given})
	}}, m.c.session+time.Second, func(a group.Answer) {
		m.joining = false
		if a.Err != nil {
			m.out(a.Err)
			return
		}
		m.w.counts.synced++
		m.served = -1
		m.owned = m.c.assigned(a.Value.(group.SyncReply).Assignment)
		for _, id := range m.owned {
			m.resume(id, m.turn)
		}
		m.beat(m.generation)
	})
}

// out has the member join again.
func (m *member) out(err error) {
	if errors.Is(err, group.ErrUnknownMember) || errors.Is(err, group.ErrFencedInstance) {
		m.id = ""
	}
	m.later(m.w.between(0, 20*time.Millisecond), m.join)
}

// beat sends a heartbeat, and others while the generation lasts.
func (m *member) beat(generation int32) {
	if m.generation != generation {
		return
	}
	if m.partitions > 0 && m.partitions != len(m.c.parts()) {
		m.join() // there is more to assign
		return
	}
	ref, life := m.ref(), m.life
	req := &memberRequest{kind: askHeartbeat, ref: ref, run: func(s *group.Shard, now time.Time, t group.Token) { s.Heartbeat(now, t, m.c.name, ref) }}
	m.ask(req, m.c.session/4, func(a group.Answer) {
		if m.generation != generation || m.life != life {
			return
		}
		switch {
		case a.Err == nil:
			m.w.counts.heartbeats++
			if m.served >= 0 && m.served != req.epoch {
				m.w.counts.survived++
			}
			m.served = req.epoch
			m.later(m.c.session/4, func() { m.beat(generation) })
		case ofGroup(a.Err):
			m.out(a.Err)
		default:
			m.later(m.w.between(10*time.Millisecond, 100*time.Millisecond), func() { m.beat(generation) })
		}
	})
}

// leave says goodbye; nobody waits for the answer.
func (m *member) leave() {
	ref := m.ref()
	if m.id == "" || m.node == 0 {
		return
	}
	n := m.w.node(m.node)
	req := &memberRequest{kind: askLeave, group: m.c.name, id: m.c.id, ref: ref, run: func(s *group.Shard, now time.Time, t group.Token) {
		s.Leave(now, t, m.c.name, []group.MemberRef{ref})
	}}
	m.w.net.send(m.at, n.addr(), func() { n.ofMember(req, func(group.Answer) {}) }, nil)
}

// behind reports whether there is something that no member has read.
func (c *crew) behind() string {
	for _, id := range c.parts() {
		if len(c.w.hist.losses[id]) > 0 {
			continue // where a position lies behind the end of the log some may be passed over
		}
		for _, n := range c.w.nodes {
			if n.p == nil || n.p.replicas[id] == nil || n.p.replicas[id].core.CheckRead(n.p.now()) != nil {
				continue
			}
			r := n.p.replicas[id]
			for i := range r.log.batches {
				b := &r.log.batches[i]
				if b.value != 0 && b.base >= c.passed[id] && b.next() <= r.core.HighWatermark() && !c.read[b.value] {
					return fmt.Sprintf("%v: nobody of the group has read %+v", id, *b)
				}
			}
		}
	}
	return ""
}

// String tells what each member has, for a report.
func (c *crew) String() string {
	var out []string
	for _, m := range c.members {
		var at []string
		for _, id := range m.owned {
			if r := m.next[id]; r != nil {
				at = append(at, fmt.Sprintf("%s:%d", short(id), r.next))
			}
		}
		slices.Sort(at)
		out = append(out, fmt.Sprintf("\n  %s up %v id %q generation %d joining %v coordinator %d: %v", m.name, m.up, m.id, m.generation, m.joining, m.node, at))
	}
	return fmt.Sprint(out)
}
