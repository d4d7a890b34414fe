package sim

import (
	"fmt"
	"slices"
	"strings"

	"leat/replication/controller"
)

// counts is what a seed, or many, covered.
type counts struct {
	seeds, long, steps int
	// What clients did.
	sent, read, duplicates, gaveUp int
	// What went wrong.
	faults                           [faultKinds]int
	lost, doubled, late, cut         int
	stalled, eioSync, eioWrite       int
	torn, cutsUndone, flips, damaged int
	// What became of it.
	registered, cleanStops, fenced             int
	controllers, transfers, joined, installed  int
	chunks                                     int
	elections, resigned, unclean               int
	alters, truncations, restarts, belowHW     int
	eligible, deleted                          int
	commits, groupBatches, applies, viewsWiped int
	// Groups with members.
	synced, heartbeats, survived   int
	refusedOld, readByGroup        int
	renewed, topicsDeleted         int
	forgotten, campaigns, drifting int
	apart                          int
	// Disks that were lost.
	losses [lossKinds]int
	// Seeds with topics of both modes, and what was answered and lost in them: in
	// fsync mode nothing may be.
	mixed, ackedDurable, ackedCached, shortened int
	removed, newVoters, givenUp                 int
	unregistered, notUnregistered               int
	evacuated, successors                       int
	// Clusters that became one of a single broker, and who came back: to be refused
	// with its old disk, or as another member.
	shrinks, shrunk, visits, refusedMembers int
	undisturbed, returned, leftAlone        int
	// Faults that are aimed at who has an office, and what came of disks that are slow
	// or full, and of messages that are very late.
	rolled, asides, seconds, killedMoving     int
	lostDecider, lostBoth                     int
	crawled, noRoom, eioRead                  int
	staleAlters, staleRegisters, staleFetches int
	staleHeartbeats                           int
	// Leaderships that moved, and what readers saw of it.
	moved, outdated, epochsRefused             int
	placesGood, placesCut                      int
	membersKilled, membersLeft, membersStopped int
	groupAsked                                 [len(groupInvariants)]int
	admin, adminDone                           [adminKinds]int
}

// count is one of them, by name.
type count struct {
	name string
	n    *int
}

// all names every count.
func (c *counts) all() []count {
	out := []count{
		{"seeds", &c.seeds},
		{"of them long", &c.long},
		{"steps", &c.steps},
		{"batches acknowledged", &c.sent},
		{"batches read", &c.read},
		{"duplicates recognised", &c.duplicates},
		{"batches given up", &c.gaveUp},
		{"messages lost", &c.lost},
		{"doubled", &c.doubled},
		{"very late", &c.late},
		{"cut off", &c.cut},
		{"syncs stalled", &c.stalled},
		{"syncs failed", &c.eioSync},
		{"writes failed", &c.eioWrite},
		{"torn ends", &c.torn},
		{"truncations undone by a crash", &c.cutsUndone},
		{"bits flipped", &c.flips},
		{"logs given up as damaged", &c.damaged},
		{"registrations", &c.registered},
		{"clean stops", &c.cleanStops},
		{"brokers fenced", &c.fenced},
		{"controllers", &c.controllers},
		{"controllers moved on request", &c.transfers},
		{"members added", &c.joined},
		{"chunks of snapshots", &c.chunks},
		{"snapshots installed", &c.installed},
		{"partition leaderships", &c.elections},
		{"ended while the broker lived", &c.resigned},
		{"unclean elections", &c.unclean},
		{"ISR changes asked for", &c.alters},
		{"truncations", &c.truncations},
		{"below the high watermark", &c.belowHW},
		{"logs begun anew", &c.restarts},
		{"leaders elected out of sync but eligible", &c.eligible},
		{"starts of logs raised", &c.deleted},
		{"group offsets committed", &c.commits},
		{"batches of group partitions", &c.groupBatches},
		{"applied to group views", &c.applies},
		{"group views wiped", &c.viewsWiped},
		{"assignments of members", &c.synced},
		{"heartbeats of members", &c.heartbeats},
		{"members kept over a fail-over of the coordinator", &c.survived},
		{"commits of an old generation refused", &c.refusedOld},
		{"batches read by groups", &c.readByGroup},
		{"members killed", &c.membersKilled},
		{"members that left", &c.membersLeft},
		{"members stopped for a while", &c.membersStopped},
		{"topics made again under the same name", &c.renewed},
		{"topics deleted", &c.topicsDeleted},
		{"peers of the quorum forgotten", &c.forgotten},
		{"candidates on request", &c.campaigns},
		{"seeds with clocks that drift", &c.drifting},
		{"seeds with topics of both modes", &c.mixed},
		{"in them acks=all of the fsync mode", &c.ackedDurable},
		{"of the page-cache mode", &c.ackedCached},
		{"logs of that mode shortened by a power cut", &c.shortened},
		{"seeds with nodes that are far apart", &c.apart},
		{"leaderships moved on request", &c.moved},
		{"metadata older than what a reader knew", &c.outdated},
		{"reads refused for their leader epoch", &c.epochsRefused},
		{"places of readers found good after a move", &c.placesGood},
		{"places of readers cut off", &c.placesCut},
		{"members of the quorum removed", &c.removed},
		{"nodes that vote again as another member", &c.newVoters},
		{"partitions given up with a disk", &c.givenUp},
		{"brokers unregistered that are gone", &c.unregistered},
		{"brokers in service not unregistered", &c.notUnregistered},
		{"reassignments from brokers that are gone", &c.evacuated},
		{"machines in the place of one that is gone", &c.successors},
		{"clusters that begin to shrink", &c.shrinks},
		{"that became one of a single broker", &c.shrunk},
		{"brokers that found themselves alone", &c.leftAlone},
		{"removed members that came back with their old disks", &c.visits},
		{"that were still refused in the end", &c.refusedMembers},
		{"looks at the only member, which led on", &c.undisturbed},
		{"removed nodes that came back as another member", &c.returned},
		{"nodes started anew one after the other", &c.rolled},
		{"leaders cut off from the controller or from their followers", &c.asides},
		{"leaders killed that led for less than a second", &c.seconds},
		{"replicas killed that were added or removed", &c.killedMoving},
		{"disks of controllers lost", &c.lostDecider},
		{"that led a partition, too", &c.lostBoth},
		{"syncs of half a second", &c.crawled},
		{"writes without room", &c.noRoom},
		{"reads failed", &c.eioRead},
		{"requests for ISR changes later than five seconds", &c.staleAlters},
		{"registrations later than that", &c.staleRegisters},
		{"fetches of followers later than that", &c.staleFetches},
		{"heartbeats of brokers later than that", &c.staleHeartbeats},
	}
	for k := range lossKinds {
		out = append(out, count{k.String(), &c.losses[k]})
	}
	for i := range c.groupAsked {
		out = append(out, count{groupInvariants[i] + " asked", &c.groupAsked[i]})
	}
	for f := range faultKinds {
		out = append(out, count{"fault " + f.String(), &c.faults[f]})
	}
	for k := range adminKinds {
		out = append(out, count{"asked: " + k.String(), &c.admin[k]}, count{"done: " + k.String(), &c.adminDone[k]})
	}
	return out
}

func (c *counts) String() string {
	var s strings.Builder
	for _, f := range c.all() {
		fmt.Fprintf(&s, "%12d %s\n", *f.n, f.name)
	}
	return s.String()
}

// countStep counts what an entry of the metadata has changed. Every node applies
// it; the first one counts.
func (w *world) countStep(index uint64, old, next *controller.State) {
	if index <= w.counted || old == next {
		return
	}
	w.counted = index
	for _, id := range next.Brokers() {
		was, _ := old.Broker(id)
		if is, _ := next.Broker(id); is.Fenced && !was.Fenced && was.Epoch == is.Epoch {
			w.counts.fenced++
		}
	}
	for _, t := range next.Topics() {
		before := old.Topic(t.ID)
		if before == t || before == nil {
			continue
		}
		for i := range min(t.Partitions.Len(), before.Partitions.Len()) {
			w.countChange(partID{Topic: t.ID, Partition: int32(i)}, before.Partitions.At(i), t.Partitions.At(i))
		}
	}
}

func (w *world) countChange(id partID, was, is *controller.Partition) {
	if w.tracing() && was.Epoch != is.Epoch {
		w.trace("decided: %s %+v", short(id), *is)
	}
	if is.Recovering && !was.Recovering {
		w.counts.unclean++
	}
	if is.Leader >= 0 && is.Leader != was.Leader && !slices.Contains(was.ISR, is.Leader) && slices.Contains(was.ELR, is.Leader) {
		w.counts.eligible++
	}
}
