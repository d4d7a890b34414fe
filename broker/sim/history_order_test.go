package sim

import (
	"maps"
	"slices"
)

// sortedParts lists the keys in a fixed order.
func sortedParts[V any](m map[partID]V) []partID {
	return slices.SortedFunc(maps.Keys(m), comparePart)
}

func comparePart(a, b partID) int {
	if c := slices.Compare(a.Topic[:], b.Topic[:]); c != 0 {
		return c
	}
	return int(a.Partition) - int(b.Partition)
}

// sends asks of each send that was answered whether its records are there.
func (j *judge) sends() {
	for i := range j.h.ops {
		o := &j.h.ops[i]
		finals := j.h.finals[o.id]
		if o.kind != opSend || o.outcome != okay || o.acks == 0 || len(finals) == 0 {
			continue
		}
		for r := range int64(o.count) {
			if !j.kept(o, r, &finals[0]) {
				break
			}
		}
	}
}

// kept asks for one record of a send, and reports false if it found fault.
func (j *judge) kept(o *op, r int64, final *dump) bool {
	j.work++
	offset, value := o.offset+r, o.value+uint64(r)
	if offset < final.start || j.buried(o, offset) {
		return true
	}
	var s seen
	if log := j.living[o.id]; offset < int64(len(log)) {
		s = log[offset]
	}
	switch {
	case s.b != nil && s.value == value:
		return true
	case o.acks == 1 && (j.h.elected[o.id] > o.call || o.epoch >= 0 && j.h.taken[o.id] > o.epoch):
		// Another leader did not have it yet. Had anybody read it, it would be missed there.
		return true
	case s.b == nil:
		j.add("lost-write", o.id, offset, "value %d: %v", value, o)
	default:
		j.add("lost-write", o.id, offset, "value %d was answered for, value %d is there: %v", value, s.value, o)
	}
	return false
}

// buried reports whether what a send wrote at offset was lost with an excuse.
func (j *judge) buried(o *op, offset int64) bool {
	// Where the epoch is not known, the oldest is as good as any.
	return j.h.killer(o.id, o.epoch, offset) < len(j.h.losses[o.id])
}

// order asks of the sends whose records are there whether these are in the
// order in which they were sent: of one idempotent process, and in real time
// where one was answered before the other began.
func (j *judge) order() {
	type sender struct {
		process int
		id      partID
	}
	last := map[sender]*op{}
	// floors is, for each send, the end of what had been answered when it began.
	acked := map[partID]int64{}
	events := make([]int32, j.h.clock+1) // positive: a call, negative: a return, of the operation of that number, from 1
	for i := range j.h.ops {
		o := &j.h.ops[i]
		if o.kind == opSend {
			events[o.call] = int32(i + 1)
			events[o.ret] = -int32(i + 1) // a pending one returns at 0, which is nobody's
		}
	}
	for _, e := range events[1:] {
		j.work++
		switch {
		case e > 0:
			o := &j.h.ops[e-1]
			at := j.at[o.value]
			if at < 0 {
				continue
			}
			if o.outcome == okay && at < acked[o.id] {
				j.add("realtime-order", o.id, at, "%d had been answered for when it was sent: %v", acked[o.id]-1, o)
			}
			if !o.idempotent {
				continue
			}
			who := sender{o.process, o.id}
			if before := last[who]; before != nil && at < j.at[before.value] {
				j.add("nonmonotonic-send", o.id, at, "%v before %v", before, o)
			}
			last[who] = o
		case e < 0:
			o := &j.h.ops[-e-1]
			if at := j.at[o.value]; at >= 0 && o.outcome == okay && at == o.offset {
				acked[o.id] = max(acked[o.id], at+int64(o.count))
			}
		}
	}
}
