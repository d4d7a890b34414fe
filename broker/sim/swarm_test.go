package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"leat/storage"
)

// simConfig is what a seed runs: sizes, rules, timers, and which faults there are.
type simConfig struct {
	nodes, partitions    int
	rf, minISR           int
	fsync, unclean       bool
	mixed                bool // topics of both modes, fsync is that of the first
	lastResort           bool // an operator has anybody lead where nobody does
	session, heartbeat   time.Duration
	lag                  time.Duration
	lagMessages          int64
	tick                 time.Duration // of the quorum
	keepEntries          int           // of the log of metadata
	voters               int           // at the beginning
	eager                bool          // followers fetch on before their disk has answered
	admin                time.Duration // between things that an operator does
	producers, consumers int
	groups               int
	members              int           // of a group, 0 for no such group
	static               bool          // half of them
	crewEvery            time.Duration // between troubles of a member
	renew                time.Duration // between steps of a topic that is deleted and made again, 0 for none
	forget               bool          // the quorum hears of refused connections
	drift                []float64     // how fast the clocks of nodes are, nil for all alike
	losses               int           // nodes that lose their disks
	lossEvery            time.Duration // between them
	company              bool          // brokers know when they are the only one
	shrinks              int           // how often the cluster becomes one of a single broker
	shrinkEvery          time.Duration // between
	apart                time.Duration // how long messages between nodes are on their way at most, beside their delay
	writeBack            time.Duration // between syncs in page-cache mode
	window               int
	acks                 []int8
	pause                time.Duration // between writes of a producer
	timeout              time.Duration // of a client's call
	faulty               time.Duration // how long there are faults
	every                time.Duration // one fault in the mean
	net                  netFaults
	disk                 diskFaults
	faults               []faultKind
}

func (c *simConfig) String() string {
	var kinds []string
	for _, f := range c.faults {
		kinds = append(kinds, f.String())
	}
	return fmt.Sprintf("%d nodes, %d partitions, rf %d, min ISR %d, fsync %v, mixed %v, unclean %v, session %v, lag %v, acks %v, %v of %s",
		c.nodes, c.partitions, c.rf, c.minISR, c.fsync, c.mixed, c.unclean, c.session, c.lag, c.acks, c.faulty, strings.Join(kinds, " "))
}

// swarm makes the configuration of a seed: each seed has a random subset of the
// faults and random sizes, so that no fault hides another in every run. One
// seed in 50 is long.
func swarm(k *kernel) simConfig {
	r := k.rng
	c := simConfig{
		nodes:       pick(r, 1, 2, 3, 3, 3, 3, 3, 4, 5),
		partitions:  1 + r.IntN(3),
		fsync:       r.IntN(3) > 0,
		unclean:     r.IntN(6) == 0,
		session:     pick(r, time.Second, 2*time.Second, 2*time.Second, 4*time.Second),
		lag:         pick(r, 2*time.Second, 5*time.Second, 10*time.Second),
		lagMessages: pick[int64](r, 0, 0, 0, 20),
		tick:        pick(r, 25*time.Millisecond, 25*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond),
		producers:   1 + r.IntN(3),
		consumers:   1 + r.IntN(2),
		groups:      pick(r, 0, 0, 1, 2),
		window:      pick(r, 1, 3, 5),
		pause:       pick(r, 30*time.Millisecond, 80*time.Millisecond, 200*time.Millisecond),
		timeout:     pick(r, 500*time.Millisecond, 1500*time.Millisecond, 4000*time.Millisecond),
		faulty:      k.between(10*time.Second, 14*time.Second),
		every:       pick(r, 300*time.Millisecond, 800*time.Millisecond, 2000*time.Millisecond),
	}
	c.heartbeat = c.session / 8
	c.keepEntries = pick(r, 5, 50, 1000)
	c.voters = pick(r, 1, min(3, c.nodes), min(3, c.nodes))
	c.eager = r.IntN(2) == 0
	c.admin = pick(r, 500*time.Millisecond, 2*time.Second, time.Hour)
	c.lastResort = r.IntN(4) == 0
	c.rf = 1 + r.IntN(c.nodes)
	if c.nodes >= 3 && r.IntN(3) > 0 {
		c.rf = 3
	}
	c.minISR = 1 + r.IntN(c.rf)
	if c.rf >= 3 && r.IntN(2) == 0 {
		c.minISR = 2
	}
	c.acks = pick(r, []int8{-1}, []int8{-1}, []int8{-1, 1}, []int8{-1, 1, 0})
	if r.IntN(50) == 0 {
		c.faulty = k.between(30*time.Second, 60*time.Second)
	}
	c.net = netFaults{delay: 200 * time.Microsecond, jitter: pick(r, 0, 500*time.Microsecond, 20*time.Millisecond)}
	c.disk = soundDisk
	if r.IntN(3) == 0 {
		c.net.loss = pick(r, 0.005, 0.05)
	}
	if r.IntN(3) == 0 {
		c.net.double = 0.05
	}
	if r.IntN(3) == 0 {
		c.net.late, c.net.lateness = 0.01, 10*time.Second
	}
	if r.IntN(4) == 0 {
		c.disk.latency = pick(r, 5*time.Millisecond, 50*time.Millisecond)
	}
	if r.IntN(5) == 0 {
		c.disk.eioSync = 0.002
	}
	if r.IntN(5) == 0 {
		c.disk.eioWrite = 0.002
	}
	for f := range faultCampaign {
		if r.IntN(2) == 0 {
			c.faults = append(c.faults, f)
		}
	}
	c.more(k.more)
	return c
}

// more is what came later: it has a chance of its own, so that the seeds before it
// run as they did where it adds nothing.
func (c *simConfig) more(r *rand.Rand) {
	c.members = pick(r, 0, 0, 1, 2, 3)
	c.static = r.IntN(3) == 0
	c.crewEvery = pick(r, 2*time.Second, 6*time.Second, time.Hour)
	c.forget = r.IntN(2) == 0
	c.renew = pick(r, 0, 0, 500*time.Millisecond, 2*time.Second)
	if r.IntN(4) == 0 {
		c.faults = append(c.faults, faultCampaign)
	}
	if r.IntN(3) == 0 {
		for range c.nodes { // the lease ends at three quarters of the session: a margin of a quarter
			c.drift = append(c.drift, 1+maxDrift*(2*r.Float64()-1))
		}
	}
	for f := faultMove; f < faultKillAll; f++ {
		if r.IntN(2) == 0 {
			c.faults = append(c.faults, f)
		}
	}
	c.apart = pick(r, 0, 0, 5*time.Millisecond, 40*time.Millisecond)
	c.writeBack = pick(r, 100*time.Millisecond, time.Second, 5*time.Second)
	if r.IntN(6) == 0 {
		c.net.loss = 0.2
	}
	if r.IntN(3) == 0 {
		c.fsync = false
	}
	if r.IntN(4) == 0 {
		c.minISR = c.rf
	}
}

// losing is what came after that, again by chance of its own.
func (c *simConfig) losing(r *rand.Rand) {
	if r.IntN(3) == 0 {
		c.losses = 1 + r.IntN(2)
	}
	c.lossEvery = pick(r, time.Second, 3*time.Second)
	if r.IntN(3) == 0 {
		c.mixed = true
		c.producers, c.consumers = max(2, c.producers), max(2, c.consumers)
	}
}

// shrinking has the cluster shrink in a sixth of the seeds. It came later, and so has a
// source of chance of its own: the older seeds are what they were.
func (c *simConfig) shrinking(r *rand.Rand) {
	if c.nodes == 1 || r.IntN(6) > 0 {
		return
	}
	c.company = true
	c.shrinks = 1 + r.IntN(2)
	c.shrinkEvery = pick(r, time.Second, 4*time.Second)
	c.faulty += time.Duration(10+r.IntN(10)) * time.Second
}

// troubled adds the faults that are aimed, disks that fail to read and messages that
// are very late, in a third of the seeds, by a source of its own too.
func (c *simConfig) troubled(r *rand.Rand) {
	if r.IntN(3) > 0 {
		return
	}
	for f := faultKillAll; f < faultKinds; f++ {
		if r.IntN(2) == 0 {
			c.faults = append(c.faults, f)
		}
	}
	if r.IntN(3) == 0 {
		c.disk.eioRead = 0.002
	}
	if r.IntN(3) == 0 {
		c.net.late, c.net.lateness = 0.03, 10*time.Second
	}
}

// durable reports whether a topic is of the fsync mode: its records count when they
// are on the disk, those of the page-cache mode when they are written. Where there
// are both, the id says so.
func (c *simConfig) durable(id storage.TopicID) bool {
	if c.mixed {
		return id[0]&1 == 1
	}
	return c.fsync
}

// maxDrift is how much faster or slower a clock is at most. Real ones are a
// thousand times better.
const maxDrift = 0.1
