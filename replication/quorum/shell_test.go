package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"leat/replication/quorum"
	"leat/replication/quorum/quorumtest"
)

const tick = 25 * time.Millisecond

// mesh is the network between shells.
type mesh struct {
	mu    sync.Mutex
	nodes map[uint64]*quorum.Quorum
	cut   map[uint64]bool
}

// Send implements quorum.Transport.
func (n *mesh) Send(m quorum.Message) {
	n.mu.Lock()
	to, cut := n.nodes[m.To], n.cut[m.From] || n.cut[m.To]
	n.mu.Unlock()
	if to != nil && !cut {
		to.Step(m)
	}
}

// gate is a store whose saves can be held up or fail.
type gate struct {
	*quorumtest.Store
	mu   sync.Mutex
	hold chan struct{} // a Save waits until it is closed
	err  error
}

// Save implements quorum.Store.
func (g *gate) Save(w quorum.Write) error {
	g.mu.Lock()
	hold, err := g.hold, g.err
	g.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if err != nil {
		return err
	}
	return g.Store.Save(w)
}

func (g *gate) set(hold chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold, g.err = hold, err
}

// shells are running members.
type shells struct {
	net    *mesh
	stores map[uint64]*gate
	// acted is which node was told that it is active, by term.
	mu    sync.Mutex
	acted map[uint64]uint64
}

func startShells(t *testing.T, voters ...uint64) *shells {
	t.Helper()
	s := &shells{
		net:    &mesh{nodes: map[uint64]*quorum.Quorum{}, cut: map[uint64]bool{}},
		stores: map[uint64]*gate{}, acted: map[uint64]uint64{},
	}
	for _, id := range voters {
		s.stores[id] = &gate{Store: quorumtest.NewStore()}
		s.start(t, id, voters)
	}
	t.Cleanup(func() {
		for _, id := range voters {
			s.node(id).Close()
		}
	})
	return s
}

func (s *shells) start(t *testing.T, id uint64, voters []uint64) {
	t.Helper()
	q, err := quorum.OpenQuorum(quorum.ShellOptions{
		Options: quorum.Options{ID: id, Voters: voters}, Transport: s.net, Tick: tick,
		After: func(_ *quorum.Core, out quorum.Output) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if other := s.acted[out.Term]; out.Active && other != 0 && other != id {
				t.Errorf("nodes %d and %d lead in term %d", other, id, out.Term)
			}
			if out.Active {
				s.acted[out.Term] = id
			}
		},
	}, s.stores[id], &quorumtest.Machine{})
	if err != nil {
		t.Fatal(err)
	}
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	s.net.nodes[id] = q
}

func (s *shells) node(id uint64) *quorum.Quorum {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	return s.net.nodes[id]
}

// leader waits for an active leader other than not and returns it with how long
// that took.
func (s *shells) leader(t *testing.T, not uint64) (id uint64, took time.Duration) {
	t.Helper()
	began := time.Now()
	for time.Since(began) < 5*time.Second {
		synctest.Wait()
		for id := range s.stores {
			if id != not && s.node(id).Lead().Active {
				return id, time.Since(began)
			}
		}
		time.Sleep(tick)
	}
	t.Fatal("no leader in 5 s")
	return 0, 0
}

func pid(n byte) quorum.ProposalID { return quorum.ProposalID{1, n} }

// TestShellOne proves that a cluster of one leads before any time has passed and
// without a timer, that many proposals at once share saves, and that what is
// proposed after Close is refused.
func TestShellOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startShells(t, 1)
		q := s.node(1)
		began := time.Now()
		synctest.Wait()
		if !q.Lead().Active || time.Since(began) != 0 {
			t.Fatalf("%+v after %s", q.Lead(), time.Since(began))
		}
		hold := make(chan struct{})
		s.stores[1].set(hold, nil)
		saves := s.stores[1].Saves()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				if _, err := q.Propose(t.Context(), pid(byte(i+1)), []byte("x")); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		s.stores[1].set(nil, nil)
		close(hold)
		wg.Wait()
		if n := s.stores[1].Saves() - saves; n > 3 {
			t.Errorf("%d saves for 100 proposals", n)
		}
		q.Close()
		if _, err := q.Propose(t.Context(), pid(200), nil); !errors.Is(err, quorum.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestShellFailover proves that the others elect a leader after an election timeout
// when one is cut off, and within a few ticks when they see its connections go.
func TestShellFailover(t *testing.T) {
	for _, told := range []bool{false, true} {
		t.Run(fmt.Sprint("told=", told), func(t *testing.T) {
			cryptotest.SetGlobalRandom(t, 1)
			synctest.Test(t, func(t *testing.T) {
				s := startShells(t, 1, 2, 3)
				old, _ := s.leader(t, 0)
				if _, err := s.node(old).Propose(t.Context(), pid(1), nil); err != nil {
					t.Fatal(err)
				}
				s.net.mu.Lock()
				s.net.cut[old] = true
				s.net.mu.Unlock()
				if told {
					for id := range s.stores {
						if id != old {
							if err := s.node(id).Lost(t.Context(), old); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
				id, took := s.leader(t, old)
				if limit := 6 * tick; told && took > limit {
					t.Errorf("a leader after %s, want %s", took, limit)
				}
				if _, err := s.node(id).Propose(t.Context(), pid(2), nil); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestShellStall proves that a leader whose disk hangs stops acting as leader after
// an election timeout, although its goroutine hangs in the save, that who waits
// hears of an unknown outcome, that another leads, and that the old one follows
// when the disk is back.
func TestShellStall(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	synctest.Test(t, func(t *testing.T) {
		s := startShells(t, 1, 2, 3)
		old, _ := s.leader(t, 0)
		hold := make(chan struct{})
		s.stores[old].set(hold, nil)
		outcome := make(chan error, 1)
		began := time.Now()
		go func() {
			_, err := s.node(old).Propose(t.Context(), pid(1), []byte("x"))
			outcome <- err
		}()
		if err := <-outcome; !errors.Is(err, quorum.ErrUnknownOutcome) || time.Since(began) > 12*tick {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if l := s.node(old).Lead(); l.Active {
			t.Errorf("it still leads: %+v", l)
		}
		if _, err := s.node(old).Propose(t.Context(), pid(2), nil); !errors.Is(err, quorum.ErrNotLeader) {
			t.Errorf("a proposal to a hung leader: %v", err)
		}
		id, took := s.leader(t, old)
		if took > 30*tick {
			t.Errorf("another leads after %s", took)
		}
		s.stores[old].set(nil, nil)
		close(hold)
		time.Sleep(20 * tick)
		synctest.Wait()
		if l := s.node(old).Lead(); l.Active || l.Leader != id {
			t.Errorf("when the disk is back: %+v, want leader %d", l, id)
		}
		if _, err := s.node(id).Propose(t.Context(), pid(3), nil); err != nil {
			t.Error(err)
		}
	})
}

// TestShellFails proves that a failed save ends the node once and for all: its
// waiters hear of an unknown outcome, the owner is told once, and later calls get
// the save's error.
func TestShellFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &gate{Store: quorumtest.NewStore()}
		broken := errors.New("broken")
		var fatal []error
		var ended []quorum.Ended
		q, err := quorum.OpenQuorum(quorum.ShellOptions{
			Options: quorum.Options{ID: 1, Voters: []uint64{1}}, OnFatal: func(err error) { fatal = append(fatal, err) },
			After: func(_ *quorum.Core, out quorum.Output) { ended = append(ended, out.Ended...) },
		}, store, &quorumtest.Machine{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		store.set(nil, broken)
		_, err = q.Propose(t.Context(), pid(1), []byte("x"))
		if !errors.Is(err, quorum.ErrUnknownOutcome) {
			t.Errorf("the proposal: %v", err)
		}
		store.set(nil, nil)
		err = q.Do(t.Context(), func(*quorum.Core) error { return nil })
		if !errors.Is(err, quorum.ErrFailed) || !errors.Is(err, broken) || q.Lead().Active {
			t.Errorf("afterwards: %v, %+v", err, q.Lead())
		}
		if len(fatal) != 1 || !errors.Is(fatal[0], broken) || len(ended) != 1 || ended[0].Outcome != quorum.Unknown {
			t.Errorf("told %v, %+v", fatal, ended)
		}
		q.Close()
	})
}

// TestShellWaiting proves that a call that waits while a save hangs ends with its
// context and is not made later, that Close waits for the save, and that who waits
// for an outcome then hears that it is unknown.
func TestShellWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startShells(t, 1)
		q := s.node(1)
		synctest.Wait()
		hold := make(chan struct{})
		s.stores[1].set(hold, nil)
		outcome := make(chan error, 1)
		go func() {
			_, err := q.Propose(t.Context(), pid(1), []byte("x"))
			outcome <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		made := false
		err := q.Do(ctx, func(*quorum.Core) error { made = true; return nil })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Do: %v", err)
		}
		closed := make(chan struct{})
		go func() {
			q.Close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close did not wait for the save")
		default:
		}
		close(hold)
		<-closed
		if err := <-outcome; err != nil && !errors.Is(err, quorum.ErrUnknownOutcome) {
			t.Errorf("the proposal: %v", err)
		}
		if made {
			t.Error("a call that was given up was made")
		}
	})
}

// TestShellBounds proves that messages and calls do not pile up behind a save that
// hangs: messages are dropped, calls wait.
func TestShellBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startShells(t, 1)
		q := s.node(1)
		synctest.Wait()
		hold := make(chan struct{})
		s.stores[1].set(hold, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() { _, _ = q.Propose(ctx, quorum.ProposalID{2, byte(i >> 8), byte(i)}, nil) })
		}
		synctest.Wait()
		took := 0
		for range 3000 {
			if q.Step(quorum.Message{From: 9, To: 1, Chunk: &quorum.Chunk{Kind: quorum.ChunkWanted}}) {
				took++
			}
		}
		if took == 0 || took > 1024 {
			t.Errorf("%d small messages were taken", took)
		}
		cancel()
		wg.Wait()
		s.stores[1].set(nil, nil)
		close(hold)
		if _, err := q.Propose(t.Context(), pid(1), nil); err != nil {
			t.Error(err)
		}
		big := quorum.Message{From: 9, To: 1, Chunk: &quorum.Chunk{Kind: quorum.ChunkWanted, Data: make([]byte, 1<<20)}}
		hold = make(chan struct{})
		s.stores[1].set(hold, nil)
		go func() { _, _ = q.Propose(t.Context(), pid(2), nil) }()
		synctest.Wait()
		took = 0
		for range 100 {
			if q.Step(big) {
				took++
			}
		}
		if took == 0 || took >= 64 {
			t.Errorf("%d messages of 1 MiB were taken", took)
		}
		close(hold)
	})
}
