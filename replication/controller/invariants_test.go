package controller

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"leat/storage"
)

// checkStep fails the test if a step broke an invariant, or if the records that
// it made do not come back from their bytes.
func checkStep(t *testing.T, before *State, ev Event, records []Record, after *State) {
	t.Helper()
	for _, r := range records {
		if got, err := Decode(Encode(r)); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%T: %s comes back as %v: %v", ev, show(r), got, err)
		}
	}
	for _, broken := range broken(before, after) {
		t.Errorf("%T%+v: %s", ev, ev, broken)
	}
	checkParts(t, before, ev, records)
	again, err := NewState().With(slices.Collect(after.Records()))
	if err != nil || again.Hash() != after.Hash() || again.nextEpoch != after.nextEpoch || again.nextProducerID != after.nextProducerID || !slices.Equal(again.DyingTopics(), after.DyingTopics()) {
		t.Errorf("%T: the state read back is another: %v", ev, err)
	}
}

// checkParts fails the test if a part of the records of an event, committed without
// the rest, breaks an invariant.
func checkParts(t *testing.T, before *State, ev Event, records []Record) {
	t.Helper()
	for n := 1; n < len(records); n++ {
		if !Divisible(ev, records, n) {
			continue
		}
		part, err := before.With(records[:n])
		if err != nil {
			t.Errorf("%T%+v: the first %d of %d records: %v", ev, ev, n, len(records), err)
			continue
		}
		for _, broken := range broken(before, part) {
			t.Errorf("%T%+v: the first %d of %d records: %s", ev, ev, n, len(records), broken)
		}
	}
}

// broken lists what invariants the step from before to after breaks, by number.
func broken(before, after *State) (out []string) {
	fail := func(id storage.ID, p *Partition, format string, args ...any) {
		out = append(out, fmt.Sprintf("%d/%d %s: %s", id.Topic[0], id.Partition, showPartition(p), fmt.Sprintf(format, args...)))
	}
	for _, id := range after.Brokers() {
		if old, now := before.brokers[id], after.brokers[id]; old != nil && now.Epoch < old.Epoch {
			out = append(out, fmt.Sprintf("I2: the epoch of broker %d goes from %d to %d", id, old.Epoch, now.Epoch))
		}
	}
	if after.nextEpoch < before.nextEpoch {
		out = append(out, fmt.Sprintf("I2: broker epochs go on at %d after %d", after.nextEpoch, before.nextEpoch))
	}
	for t, i := range after.partitions() {
		id, p := storage.ID{Topic: t.ID, Partition: int32(i)}, t.Partitions.At(i)
		for _, list := range [][]int32{p.ISR, p.ELR, p.Adding, p.Removing} {
			if len(without(list, p.Replicas)) > 0 {
				fail(id, p, "%v are no replicas", list)
			}
		}
		for _, list := range [][]int32{p.Replicas, p.ISR, p.ELR} {
			if sorted := slices.Sorted(slices.Values(list)); len(slices.Compact(sorted)) < len(list) {
				fail(id, p, "%v repeats itself", list)
			}
		}
		if p.Leader >= 0 && !slices.Contains(p.ISR, p.Leader) {
			fail(id, p, "I9: the leader is not in sync")
		}
		if p.Recovering && len(p.ISR) > 1 {
			fail(id, p, "a recovering leader has followers in sync")
		}
		if after.level >= clusterLevel {
			if (p.Leader < 0) != (len(p.ISR) == 0) {
				fail(id, p, "somebody is in sync without a leader")
			}
			if len(p.ELR) > 0 && len(p.ISR) >= after.MinInSync(t, p.Factor()) {
				fail(id, p, "I11: eligible leaders beside enough in sync")
			}
			for _, r := range p.ISR {
				if b := after.brokers[r]; b == nil || b.Fenced || b.ShuttingDown && p.Leader != r {
					fail(id, p, "I10: broker %d is in sync", r)
				}
			}
		}
		if slices.ContainsFunc(p.ELR, func(r int32) bool { return slices.Contains(p.ISR, r) }) {
			fail(id, p, "I11: in sync and eligible leader")
		}
		if _, old := before.find(id); old != nil {
			brokenChange(old, p, after, func(format string, args ...any) { fail(id, p, format, args...) })
		}
	}
	return out
}

// brokenChange looks at one partition before and after.
func brokenChange(old, p *Partition, after *State, fail func(string, ...any)) {
	switch {
	case p.LeaderEpoch < old.LeaderEpoch || p.Epoch < old.Epoch:
		fail("I2: an epoch goes back, it was %s", showPartition(old))
	case p.LeaderEpoch > old.LeaderEpoch+1 || p.Epoch > old.Epoch+1:
		fail("an epoch leaps, it was %s", showPartition(old))
	case p.Epoch == old.Epoch && !reflect.DeepEqual(old, p):
		fail("changed without an epoch, it was %s", showPartition(old))
	case p.LeaderEpoch == old.LeaderEpoch && p.Leader != old.Leader:
		fail("I1: two leaders in one epoch, it was %s", showPartition(old))
	case p.LeaderEpoch == old.LeaderEpoch && len(without(old.Replicas, p.Replicas)) > 0:
		fail("replicas went in the same leader epoch, it was %s", showPartition(old))
	}
	// I10: who enters is eligible, before and after.
	for _, r := range without(p.ISR, old.ISR) {
		if !after.Eligible(r, -1) {
			fail("I10: broker %d enters, it was %s", r, showPartition(old))
		}
	}
	// Nobody who left while the high watermark could move becomes an eligible leader.
	if left := without(p.ELR, slices.Concat(old.ISR, old.ELR)); len(left) > 0 {
		fail("I11: %v are eligible leaders and were neither that nor in sync, it was %s", left, showPartition(old))
	}
	// A clean election chooses who holds all that is committed (I7).
	if p.Leader >= 0 && p.Leader != old.Leader && !p.Recovering && len(old.ISR)+len(old.ELR) > 0 && !slices.Contains(slices.Concat(old.ISR, old.ELR, p.ISR), p.Leader) {
		fail("I7: %d is elected out of sync, it was %s", p.Leader, showPartition(old))
	}
}
