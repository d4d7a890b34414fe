package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// register names a committed offset.
type register struct {
	group string
	id    partID
}

// access is a write or a read of a register.
type access struct {
	write  bool
	offset int64
}

// registers is the model: a committed offset is what was committed last.
var registers = porcupine.Model{
	Init: func() any { return int64(-1) },
	Step: func(state, input, output any) (bool, any) {
		a := input.(access)
		if a.write {
			return true, a.offset
		}
		return output.(int64) == state.(int64), state
	},
}

// searchTime bounds the search for a linearization. A register that takes
// longer is reported as not judged, which is a fault of the workload: it has too
// many unknown outcomes at once.
const searchTime = 20 * time.Second

// checkGroups asks whether committed offsets are linearizable registers.
func (h *history) checkGroups() []anomaly {
	accesses := map[register][]porcupine.Operation{}
	for i := range h.ops {
		o := &h.ops[i]
		if o.kind != opCommit && o.kind != opFetchCommitted {
			continue
		}
		r := register{o.group, o.id}
		if len(h.losses[h.coordinators[o.group]]) > 0 {
			continue // what was committed may be gone
		}
		p := porcupine.Operation{ClientId: o.process, Call: int64(o.call), Return: int64(o.ret), Output: o.offset}
		switch {
		case o.outcome == failed || o.kind == opFetchCommitted && o.outcome != okay:
			continue
		case o.kind == opCommit:
			p.Input = access{write: true, offset: o.offset}
		default:
			p.Input = access{}
		}
		if o.outcome != okay {
			p.Return = math.MaxInt64
		}
		accesses[r] = append(accesses[r], p)
	}
	var found []anomaly
	keys := make([]register, 0, len(accesses))
	for r := range accesses {
		keys = append(keys, r)
	}
	slices.SortFunc(keys, func(a, b register) int { return cmp.Or(cmp.Compare(a.group, b.group), comparePart(a.id, b.id)) })
	for _, r := range keys {
		h.judged++
		ops := settle(accesses[r])
		switch porcupine.CheckOperationsTimeout(registers, ops, searchTime) {
		case porcupine.Illegal:
			found = append(found, anomaly{"not-linearizable", r.id, -1, "committed offsets of " + r.group + ":" + show(ops)})
		case porcupine.Unknown:
			found = append(found, anomaly{"not-judged", r.id, -1, "too many unknown commits of " + r.group + ":" + show(ops)})
		case porcupine.Ok:
		}
	}
	return found
}

// settle makes writes with an unknown outcome cheap to search. One whose value
// no later read returned can have happened last, or never: it says nothing. One
// that is the only writer of its value happened before the first read of it
// returned. Of those that write one value no more are needed than there are reads of
// it, and the first ones do for all that came later.
func settle(ops []porcupine.Operation) []porcupine.Operation {
	writers := map[int64]int{}
	firstRead := map[int64]int64{} // when the first read of a value returned
	lastRead := map[int64]int64{}
	reads, kept := map[int64]int{}, map[int64]int{}
	for _, p := range ops {
		if a := p.Input.(access); a.write {
			writers[a.offset]++
			continue
		}
		v := p.Output.(int64)
		reads[v]++
		if first, ok := firstRead[v]; !ok || p.Return < first {
			firstRead[v] = p.Return
		}
		lastRead[v] = max(lastRead[v], p.Return)
	}
	var out []porcupine.Operation
	for _, p := range ops {
		a := p.Input.(access)
		if a.write && p.Return == math.MaxInt64 {
			if lastRead[a.offset] < p.Call || kept[a.offset] == reads[a.offset] {
				continue
			}
			kept[a.offset]++
			if writers[a.offset] == 1 && firstRead[a.offset] > p.Call {
				p.Return = firstRead[a.offset]
			}
		}
		out = append(out, p)
	}
	return out
}

func show(ops []porcupine.Operation) string {
	var s []byte
	for _, p := range ops {
		a := p.Input.(access)
		word, v := " read ", p.Output.(int64)
		if a.write {
			word, v = " write ", a.offset
		}
		s = fmt.Appendf(s, "\n  [%d,%d]%s%d", p.Call, p.Return, word, v)
	}
	return string(s)
}
