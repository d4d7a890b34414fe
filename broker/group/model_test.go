package group

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Whatever clients do, and in whatever order: every request is answered once,
// generations grow, nobody waits without a deadline, who owns something in a
// generation is the only one, and a group left alone becomes empty.
func TestModel(t *testing.T) {
	seeds := 300
	if n, err := strconv.Atoi(os.Getenv("LEAT_SEEDS")); err == nil {
		seeds = n
	}
	for seed := range uint64(seeds) {
		m := newModel(t, seed)
		for range 300 {
			m.step()
		}
		m.drain()
	}
}

type model struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	g    *Group
	cfg  Config
	now  time.Time

	token   Token
	waiting map[Token]bool
	last    *Record
	high    int32                       // highest generation seen
	owners  map[int32]map[string]string // generation → what → member
	clients []client
}

// client is what a real one knows of itself.
type client struct {
	id, instance string
	generation   int32
	leader       bool
	members      []Member
}

func newModel(t *testing.T, seed uint64) *model {
	m := &model{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), now: start, waiting: map[Token]bool{}, owners: map[int32]map[string]string{}}
	ids := 0
	m.cfg = Config{
		MinSession: time.Second, MaxSession: time.Minute, InitialDelay: time.Duration(m.rng.IntN(3)) * time.Second, MaxSize: 2 + m.rng.IntN(6),
		NewMemberID: func(name string) string { ids++; return fmt.Sprintf("%s-%d", name, ids) },
	}
	m.g = New("g", &m.cfg, m.now)
	m.clients = make([]client, 5)
	for i := range m.clients {
		if i >= 3 {
			m.clients[i].instance = fmt.Sprint("static", i)
		}
	}
	return m
}

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("seed %d: %s", m.seed, fmt.Sprintf(format, args...))
}

func (m *model) ask(i int) Token {
	m.token++
	m.waiting[m.token] = true
	return m.token<<8 | Token(i)
}

func (m *model) answered(t Token) int {
	if !m.waiting[t>>8] {
		m.fail("token %d was answered twice", t>>8)
	}
	delete(m.waiting, t>>8)
	return int(t & 0xff)
}

func (m *model) take(e Effects) {
	if e.Record != nil {
		m.last = e.Record
		if e.Record.Generation < m.high {
			m.fail("generation %d was persisted after %d", e.Record.Generation, m.high)
		}
	}
	for _, r := range e.Joins {
		c := &m.clients[m.answered(r.Token)]
		switch {
		case errors.Is(r.Err, ErrMemberIDRequired):
			c.id = r.MemberID
		case r.Err != nil:
			if errors.Is(r.Err, ErrUnknownMember) || errors.Is(r.Err, ErrFencedInstance) {
				c.id = ""
			}
		default:
			if r.Generation < m.high {
				m.fail("generation went from %d to %d", m.high, r.Generation)
			}
			m.high = r.Generation
			c.id, c.generation, c.leader, c.members = r.MemberID, r.Generation, r.Leader == r.MemberID && !r.SkipAssignment, r.Members
		}
	}
	for _, r := range e.Syncs {
		c := &m.clients[m.answered(r.Token)]
		if r.Err == nil && len(r.Assignment) > 0 {
			m.owns(c.generation, string(r.Assignment), c)
		}
	}
	if m.g.Size() > m.cfg.MaxSize {
		m.fail("%d members of %d", m.g.Size(), m.cfg.MaxSize)
	}
	if _, ok := m.g.Deadline(); !ok && !m.g.Idle() {
		m.fail("a group in state %v has no deadline", m.g.state)
	}
}

// owns notes that the client owns something. A static member's successor owns
// the same.
func (m *model) owns(generation int32, what string, c *client) {
	name := c.id
	if c.instance != "" {
		name = c.instance
	}
	if m.owners[generation] == nil {
		m.owners[generation] = map[string]string{}
	}
	if other, ok := m.owners[generation][what]; ok && other != name {
		m.fail("%s is owned by %s and %s in generation %d", what, other, name, generation)
	}
	m.owners[generation][what] = name
}

func (m *model) step() {
	i := m.rng.IntN(len(m.clients))
	c := &m.clients[i]
	ref := MemberRef{ID: c.id, InstanceID: c.instance, Generation: c.generation}
	switch n := m.rng.IntN(100); {
	case n < 35:
		m.take(m.g.Join(m.now, m.ask(i), m.joinRequest(c)))
	case n < 60:
		r := &SyncRequest{MemberRef: ref, Assignments: map[string][]byte{}}
		if c.leader {
			for j, member := range c.members {
				r.Assignments[member.ID] = fmt.Append(nil, "p", j)
			}
		}
		m.take(m.g.Sync(m.now, m.ask(i), r))
	case n < 75:
		if err := m.g.Heartbeat(m.now, ref); err == nil && c.generation != m.g.Generation() {
			m.fail("a heartbeat of generation %d was taken in %d", c.generation, m.g.Generation())
		}
	case n < 80:
		if err := m.g.MayCommit(m.now, ref); err == nil && m.g.state == Completing {
			m.fail("a commit was allowed while the assignment is awaited")
		}
	case n < 84:
		e, err := m.g.Leave(m.now, ref)
		if err == nil {
			c.id = ""
		}
		m.take(e)
	case n < 86 && len(m.waiting) > 0:
		for t := range m.waiting {
			for j := range m.clients {
				m.take(m.g.Cancel(m.now, t<<8|Token(j)))
			}
			delete(m.waiting, t)
			break
		}
	case n < 88 && m.last != nil && m.g.Generation() == m.last.Generation:
		m.take(m.g.Kill(m.now, ErrGone))
		m.g = Restore("g", &m.cfg, m.last, m.now)
	default:
		m.wait(time.Duration(m.rng.IntN(3000)) * time.Millisecond)
	}
}

func (m *model) joinRequest(c *client) *JoinRequest {
	r := &JoinRequest{
		Member: Member{
			ID: c.id, InstanceID: c.instance, ClientID: "c",
			Session: time.Duration(1+m.rng.IntN(10)) * time.Second, RebalanceTimeout: time.Duration(1+m.rng.IntN(20)) * time.Second,
		},
		ProtocolType: "consumer", IDFirst: m.rng.IntN(2) == 0, MaySkip: m.rng.IntN(2) == 0,
	}
	if c.instance != "" && m.rng.IntN(3) == 0 {
		r.ID = ""
	}
	r.Protocols = []Protocol{{Name: "range", Metadata: []byte{byte(m.rng.IntN(2))}}}
	if m.rng.IntN(2) == 0 {
		r.Protocols = append(r.Protocols, Protocol{Name: "sticky"})
	}
	return r
}

func (m *model) wait(d time.Duration) {
	end := m.now.Add(d)
	for {
		at, ok := m.g.Deadline()
		if !ok || at.After(end) {
			break
		}
		if at.Before(m.now) {
			m.fail("a deadline lies %v back", m.now.Sub(at))
		}
		m.now = at
		m.take(m.g.Tick(at))
		if next, ok := m.g.Deadline(); ok && !next.After(at) {
			m.fail("in state %v: what was due at %v still is, at %v", m.g.state, at, next)
		}
	}
	m.now = end
}

// drain leaves the group alone until it is empty.
func (m *model) drain() {
	m.wait(2 * newMemberTimeout)
	if m.g.state != Empty || m.g.Size() != 0 || !m.g.Idle() {
		m.fail("a group left alone is %v with %d members", m.g.state, m.g.Size())
	}
	if len(m.waiting) > 0 {
		m.fail("%d requests were never answered", len(m.waiting))
	}
}
