package sim

import (
	"errors"
	"testing"
	"time"
)

// Errors of a call. None of them says whether the other side has done it, but
// errRefused: nobody was there.
var (
	errTimeout = errors.New("no answer in time")
	errReset   = errors.New("connection reset")
	errRefused = errors.New("connection refused")
)

// addr is an end of the network: nodes count from 1, clients from clientBase.
type addr int

const clientBase addr = 16

// maxAddr bounds the ends.
const maxAddr = 32

// link is one direction between two ends.
type link struct {
	cut bool
	// far is added to each delay, for it is a long way, and slow for a while. loss
	// is the share of messages lost on it, beside those that are lost everywhere.
	far, slow time.Duration
	loss      float64
	// resets counts the connections that were broken: what was under way on one
	// does not arrive.
	resets int
}

// netFaults is how a network misbehaves while faults are on.
type netFaults struct {
	delay, jitter time.Duration
	loss          float64 // share of messages lost
	double        float64 // that arrive twice
	late          float64 // that arrive up to lateness later
	lateness      time.Duration
}

// network carries messages between ends. They overtake one another: each has a
// delay of its own. A connection that keeps order is one whose jitter is 0.
type network struct {
	k      *kernel
	links  [maxAddr][maxAddr]link
	faults netFaults
	counts *counts
	// there reports what stands at an end: a process that listens, a machine
	// that refuses, or nothing. A process that is stopped listens after a while.
	there func(addr) (presence, time.Duration)
}

type presence uint8

const (
	listening presence = iota
	refusing           // the machine is up, the process is not
	silent
)

func newNetwork(k *kernel, c *counts) *network {
	return &network{k: k, counts: c, there: func(addr) (presence, time.Duration) { return listening, 0 }, faults: netFaults{delay: 200 * time.Microsecond, jitter: 300 * time.Microsecond}}
}

// heal ends every fault of the network.
func (n *network) heal() {
	for i := range n.links {
		for j := range n.links[i] {
			n.links[i][j].cut, n.links[i][j].slow, n.links[i][j].loss = false, 0, 0
		}
	}
	n.faults = netFaults{delay: 200 * time.Microsecond, jitter: 300 * time.Microsecond}
}

// send has arrive called at the other end, once, twice or never. lost is
// called, if it is given, when the sender learns that it did not arrive.
func (n *network) send(from, to addr, arrive func(), lost func(error)) {
	copies := 1
	if n.k.chance(n.faults.double) {
		n.counts.doubled++
		copies = 2
	}
	n.sendCopies(copies, from, to, arrive, lost)
}

func (n *network) sendCopies(copies int, from, to addr, arrive func(), lost func(error)) {
	if from == to {
		n.k.at(0, nil, func() { n.arrive(to, arrive, lost) }) // it does not travel
		return
	}
	l := &n.links[from][to]
	f := &n.faults
	if n.k.chance(f.loss) || n.k.chance(l.loss) {
		n.counts.lost++
		return
	}
	resets := l.resets
	for i := range copies {
		d := f.delay + l.far + l.slow + n.k.between(0, f.jitter)
		if n.k.chance(f.late) {
			n.counts.late++
			d += n.k.between(0, f.lateness)
		}
		n.k.at(d, nil, func() {
			switch {
			case l.cut:
				n.counts.cut++
			case l.resets != resets:
				if lost != nil && i == 0 {
					lost(errReset)
				}
			default:
				n.arrive(to, arrive, lost)
			}
		})
	}
}

func (n *network) arrive(to addr, arrive func(), lost func(error)) {
	p, stopped := n.there(to)
	switch p {
	case listening:
		if stopped > 0 {
			n.k.at(stopped, nil, func() { n.arrive(to, arrive, lost) })
			return
		}
		arrive()
	case refusing:
		if lost != nil {
			n.k.at(n.faults.delay, nil, func() { lost(errRefused) })
		}
	case silent:
	}
}

// reset breaks the connections between two ends.
func (n *network) reset(a, b addr) {
	n.links[a][b].resets++
	n.links[b][a].resets++
}

// isolate cuts an end off from others, both ways or one.
func (n *network) isolate(a addr, others []addr, in, out bool) {
	for _, b := range others {
		if a != b {
			n.links[b][a].cut = n.links[b][a].cut || in
			n.links[a][b].cut = n.links[a][b].cut || out
		}
	}
}

// call is a request and its answer. serve runs at the other end, maybe twice,
// maybe never; it may keep answer for later. done runs exactly once unless the
// caller's life ends before: with the first answer, or with an error that leaves
// open what the other end did.
func call[T any](n *network, of *life, from, to addr, timeout time.Duration, serve func(answer func(T)), done func(T, error)) {
	copies := 1
	if n.k.chance(n.faults.double) {
		n.counts.doubled++
		copies = 2
	}
	callCopies(n, copies, of, from, to, timeout, serve, done)
}

// callOnce is a call over one connection, that never doubles a request: where a
// refusal must mean that nothing was done.
func callOnce[T any](n *network, from, to addr, timeout time.Duration, serve func(answer func(T)), done func(T, error)) {
	callCopies(n, 1, nil, from, to, timeout, serve, done)
}

func callCopies[T any](n *network, copies int, of *life, from, to addr, timeout time.Duration, serve func(answer func(T)), done func(T, error)) {
	over := false
	var none T
	end := func(v T, err error) {
		if !over && (of == nil || !of.over) {
			over = true
			done(v, err)
		}
	}
	lost := func(err error) { end(none, err) }
	n.sendCopies(copies, from, to, func() {
		serve(func(v T) { n.send(to, from, func() { end(v, nil) }, lost) })
	}, lost)
	n.k.at(timeout, of, func() { lost(errTimeout) })
}

// Calls end exactly once, whatever the network does, and a cut works in its
// direction only.
func TestNetwork(t *testing.T) {
	k := newKernel(7)
	n := newNetwork(k, &counts{})
	n.faults = netFaults{delay: time.Millisecond, jitter: 5 * time.Millisecond, loss: 0.2, double: 0.3, late: 0.1, lateness: time.Second}
	served, ended, good := 0, 0, 0
	for i := range 1000 {
		k.at(time.Duration(i)*time.Millisecond, nil, func() {
			call(n, nil, 1, 2, 100*time.Millisecond, func(answer func(int)) {
				served++
				answer(i)
			}, func(v int, err error) {
				ended++
				if err == nil {
					good++
					if v != i {
						t.Errorf("call %d got the answer of %d", i, v)
					}
				}
			})
		})
	}
	k.run(time.Minute, func() bool { return false })
	if ended != 1000 || good < 500 || good > 800 || served < 900 {
		t.Errorf("%d served, %d ended, %d of them well", served, ended, good)
	}
	n.heal()
	n.isolate(2, []addr{1}, false, true)
	arrived := 0
	n.send(1, 2, func() { arrived++ }, nil)
	n.send(2, 1, func() { arrived += 10 }, nil)
	k.run(2*time.Minute, func() bool { return false })
	if arrived != 1 {
		t.Errorf("one-way cut: %d", arrived)
	}
}

// A reset loses what is under way and says so; a machine without its process
// refuses, a machine without power says nothing.
func TestNetworkErrors(t *testing.T) {
	k := newKernel(7)
	n := newNetwork(k, &counts{})
	at := listening
	n.there = func(a addr) (presence, time.Duration) {
		if a == 2 {
			return at, 0
		}
		return listening, 0
	}
	var got error
	once := func() {
		call(n, nil, 1, 2, time.Second, func(answer func(int)) { answer(1) }, func(_ int, e error) { got = e })
	}
	once()
	n.reset(1, 2)
	k.run(k.now+10*time.Second, func() bool { return false })
	if !errors.Is(got, errReset) {
		t.Errorf("reset: %v", got)
	}
	for p, want := range map[presence]error{refusing: errRefused, silent: errTimeout} {
		at = p
		once()
		k.run(k.now+10*time.Second, func() bool { return false })
		if !errors.Is(got, want) {
			t.Errorf("%d: %v, want %v", p, got, want)
		}
	}
}

// The same seed is the same run to the last event, another seed is another one.
func TestNetworkSame(t *testing.T) {
	run := func(seed uint64) uint64 {
		k := newKernel(seed)
		n := newNetwork(k, &counts{})
		d := newDisk(k, n.counts)
		n.faults = netFaults{delay: time.Millisecond, jitter: 5 * time.Millisecond, loss: 0.2, double: 0.3, late: 0.1, lateness: time.Second}
		left := 2000
		var bounce func(from, to addr)
		bounce = func(from, to addr) {
			if left--; left > 0 {
				d.sync(nil, func(time.Duration, error) { n.send(from, to, func() { bounce(to, from) }, nil) })
			}
		}
		for i := range 50 {
			k.at(time.Duration(i)*time.Second, nil, func() { bounce(1, 2) })
		}
		k.run(time.Hour, func() bool { return false })
		return k.sum
	}
	if a, b, c := run(1), run(1), run(2); a != b || a == c {
		t.Errorf("%x, %x, %x", a, b, c)
	}
}
