package sim

import (
	"slices"
	"time"
)

// faultKind is something that goes wrong, and is put right again a while later.
type faultKind uint8

const (
	faultKill     faultKind = iota // kill -9, started again
	faultPower                     // power cut of a machine
	faultPowerAll                  // of all machines
	faultStop                      // a clean stop, as an upgrade does it
	faultPause                     // SIGSTOP
	faultIsolate                   // a node hears nobody
	faultOneWay                    // a node hears others and they do not hear it, or the other way round
	faultLink                      // one direction between two ends is cut
	faultReset                     // connections break
	faultSlow                      // a direction gets slow
	faultStall                     // a disk hangs
	faultFlip                      // a bit on a disk flips
	faultTransfer                  // the controller moves
	// Those from here on are chosen with the chance of simConfig.more.
	faultCampaign // a node stands for election at once
	faultMove     // a leadership moves, and nobody is fenced
	faultReassign // a partition moves
	faultSite     // some machines lose their power, processes on others are killed
	faultLossy    // one direction between nodes loses much of what it carries
	// Those from here on are chosen with the chance of simConfig.troubled.
	faultKillAll  // kill -9 of all processes
	faultRoll     // all processes start anew, one after the other
	faultSplit    // nodes see each other in part
	faultAside    // a leader sees the controller or its followers, not both
	faultDouble   // a leader dies, and at once the next one
	faultRapid    // a leadership moves fifty times a second
	faultMoveKill // a partition moves, and a replica that is added or removed dies
	faultCrawl    // a disk takes half a second for each sync
	faultFull     // a disk has no room left
	faultKinds
)

var faultNames = [faultKinds]string{
	"kill", "power", "power-all", "stop", "pause", "isolate", "one-way", "link", "reset", "slow", "stall", "flip", "transfer", "campaign",
	"move", "reassign", "site", "lossy",
	"kill-all", "roll", "split", "aside", "double", "rapid", "move-kill", "crawl", "full",
}

func (f faultKind) String() string { return faultNames[f] }

// faults makes something go wrong now and then until the phase is over.
func (w *world) faults() {
	if w.phase != phaseFaults {
		return
	}
	if len(w.cfg.faults) > 0 {
		w.fault(pick(w.rng, w.cfg.faults...))
	}
	w.at(w.between(w.cfg.every/4, w.cfg.every*7/4), nil, w.faults)
}

// fault makes one thing go wrong.
func (w *world) fault(f faultKind) {
	n := pick(w.rng, w.nodes...)
	w.counts.faults[f]++
	if w.tracing() {
		w.trace("fault %s, node %d", f, n.id)
	}
	w.mix(uint64(f)<<8 | uint64(n.id))
	away := w.between(50*time.Millisecond, pick(w.rng, 500*time.Millisecond, 3*time.Second, 3*time.Second, 6*time.Second))
	switch f {
	case faultKill:
		w.crash(n, false, away)
	case faultPower:
		w.crash(n, true, away)
	case faultPowerAll:
		for _, n := range w.nodes {
			w.crash(n, true, w.between(0, away))
		}
	case faultStop:
		n.stop(func() { w.startAfter(n, away/2) })
	case faultPause:
		n.pause(away)
	case faultIsolate, faultOneWay, faultLink, faultReset, faultSlow, faultLossy:
		w.netFault(f, n, away)
	case faultStall:
		n.disk.stalled = max(n.disk.stalled, w.now+away)
	case faultFlip:
		w.flip(n)
	case faultTransfer:
		n.transfer(pick(w.rng, w.nodes...).id)
	case faultCampaign:
		n.campaign()
	case faultMove:
		w.move(w.anyPartition())
	case faultReassign:
		w.operation(adminReassign, w.anyPartition())
	case faultSite:
		w.site(away)
	default:
		w.trouble(f, n, away)
	}
}

// netFault makes something go wrong between ends, for a while.
func (w *world) netFault(f faultKind, n *node, away time.Duration) {
	ends := w.ends()
	other := pick(w.rng, ends...)
	if f == faultLossy {
		other = pick(w.rng, w.nodes...).addr()
	}
	if other == n.addr() {
		return
	}
	l := &w.net.links[n.addr()][other]
	if w.rng.IntN(2) == 0 {
		l = &w.net.links[other][n.addr()]
	}
	switch f {
	case faultIsolate:
		if w.rng.IntN(2) == 0 { // clients go on reaching it
			ends = slices.DeleteFunc(ends, func(a addr) bool { return a >= clientBase })
		}
		w.net.isolate(n.addr(), ends, true, true)
	case faultOneWay:
		in := w.rng.IntN(2) == 0
		w.net.isolate(n.addr(), ends, in, !in)
	case faultLink:
		l.cut = true
	case faultReset:
		w.net.reset(n.addr(), other)
		return
	case faultLossy:
		l.loss = 0.2 + 0.6*w.rng.Float64()
	default:
		l.slow = w.between(time.Millisecond, 400*time.Millisecond)
	}
	w.at(away, nil, func() {
		if w.phase != phaseFaults {
			return
		}
		switch f {
		case faultIsolate, faultOneWay:
			for _, a := range w.ends() {
				w.net.links[n.addr()][a].cut, w.net.links[a][n.addr()].cut = false, false
			}
		case faultLink:
			l.cut = false
		case faultLossy:
			l.loss = 0
		default:
			l.slow = 0
		}
	})
}

// crash ends a process, or cuts the power of its machine, and starts it again
// after a while.
func (w *world) crash(n *node, power bool, away time.Duration) {
	if n.crash(power, false) {
		w.startAfter(n, away)
	}
}

// site is what befalls a site whose power flickers: some machines lose it, others
// are started anew in a hurry, and some see nothing of it.
func (w *world) site(away time.Duration) {
	for _, n := range w.nodes {
		if w.rng.IntN(4) > 0 {
			power := w.rng.IntN(2) == 0
			w.at(w.between(0, 50*time.Millisecond), nil, func() { w.crash(n, power, w.between(0, away)) })
		}
	}
}

// startAfter starts a node that is down.
func (w *world) startAfter(n *node, away time.Duration) {
	starts := n.starts
	w.at(away, nil, func() {
		if n.starts == starts {
			n.start()
		}
	})
}

// flip turns a bit in a log of a node. Who reads it finds it, or the next start.
func (w *world) flip(n *node) {
	if !w.chance(0.25) { // a log that is given up excuses losses: not too often
		return
	}
	ids := n.logIDs()
	if len(ids) > 0 && n.logs[pick(w.rng, ids...)].flip(w.rng) {
		w.counts.flips++
	}
}
