package sim

import (
	"fmt"
	"slices"
	"strings"

	"leat/storage"
)

// partID names a partition.
type partID = storage.ID

// outcome is what a client learnt of its operation.
type outcome uint8

const (
	pending outcome = iota
	okay
	failed  // it certainly has not happened
	unknown // it may have happened, or may happen yet
)

func (o outcome) String() string { return [...]string{"pending", "ok", "failed", "unknown"}[o] }

type opKind uint8

const (
	opSend opKind = iota
	opPoll
	opSeek
	opReset
	opCommit
	opFetchCommitted
)

func (k opKind) String() string {
	return [...]string{"send", "poll", "seek", "reset", "commit", "fetch-committed"}[k]
}

// op is one operation of a client.
type op struct {
	kind       opKind
	outcome    outcome
	idempotent bool
	acks       int8
	count      int32
	epoch      int32 // of the leader that answered a send, -1 if not known
	process    int
	id         partID
	group      string
	// call and ret are numbers of events: of two operations, one came before
	// the other if its ret is smaller than the other's call.
	call, ret int
	value     uint64
	// offset is the base that a send was answered with, -1 if not known; where a
	// poll began; where a seek went; a committed offset, -1 for none.
	offset  int64
	hw      int64
	batches []batch
}

func (o *op) String() string {
	s := fmt.Sprintf("[%d,%d] p%d %s %s", o.call, o.ret, o.process, o.kind, o.outcome)
	switch o.kind {
	case opSend:
		s += fmt.Sprintf(" acks=%d values=%d+%d at %d epoch %d", o.acks, o.value, o.count, o.offset, o.epoch)
	case opPoll:
		s += fmt.Sprintf(" from %d hw %d:", o.offset, o.hw)
		for i := range o.batches {
			b := &o.batches[i]
			s += fmt.Sprintf(" %d+%d=%d/e%d", b.base, b.count, b.value, b.epoch)
		}
	case opSeek, opReset:
		s += fmt.Sprintf(" to %d", o.offset)
	case opCommit, opFetchCommitted:
		s += fmt.Sprintf(" %s %d", o.group, o.offset)
	}
	return s
}

// loss is committed data that a partition was allowed to lose: what leaders of
// epochs below epoch wrote at from and behind it, but for what the leader of epoch
// kept.
type loss struct {
	epoch int32
	from  int64
	kept  []batch
}

func (l *loss) keeps(epoch int32, offset int64) bool {
	return slices.ContainsFunc(l.kept, func(b batch) bool { return b.epoch == epoch && b.base <= offset && offset < b.next() })
}

// dump is what a replica holds at the end.
type dump struct {
	node      int32
	start, hw int64
	batches   []batch
}

// history is all that the clients of one run asked and were told. It is made by
// the world and judged once, at the end, by check.
type history struct {
	ops   []op
	clock int
	// losses are by epoch, ascending. elected is the event of the newest
	// election: what acks=1 wrote before it may be gone.
	losses  map[partID][]loss
	elected map[partID]int
	// taken is the newest leader epoch. A leader of an older one answers acks=1 until
	// its lease ends.
	taken map[partID]int32
	// unclean is the newest epoch that began with an unclean election.
	unclean map[partID]int32
	// finals begin with the leader's. A partition that nobody could lead at the
	// end has none.
	finals       map[partID][]dump
	coordinators map[string]partID
	// again has the values of batches that were taken twice, for the leader could
	// know nothing of the first time.
	again map[uint64]bool
	// judged counts the committed offsets whose history was judged.
	judged int
}

func newHistory() *history {
	return &history{
		losses: map[partID][]loss{}, elected: map[partID]int{}, taken: map[partID]int32{}, unclean: map[partID]int32{}, finals: map[partID][]dump{}, coordinators: map[string]partID{}, again: map[uint64]bool{},
	}
}

func (h *history) begin(o op) int {
	h.clock++
	o.call = h.clock
	h.ops = append(h.ops, o)
	return len(h.ops) - 1
}

func (h *history) end(i int, result outcome) *op {
	h.clock++
	o := &h.ops[i]
	o.ret, o.outcome = h.clock, result
	return o
}

// send is called when a process sends a batch for the first time; its retries
// are the same operation.
func (h *history) send(process int, id partID, acks int8, value uint64, count int32, idempotent bool) int {
	return h.begin(op{
		kind: opSend, process: process, id: id, acks: acks, value: value, count: count, idempotent: idempotent, offset: -1, epoch: -1,
	})
}

func (h *history) sent(i int, result outcome, offset int64, epoch int32) {
	o := h.end(i, result)
	o.offset, o.epoch = offset, epoch
}

func (h *history) poll(process int, id partID, from int64) int {
	return h.begin(op{kind: opPoll, process: process, id: id, offset: from})
}

func (h *history) polled(i int, batches []batch, hw int64, result outcome) {
	o := h.end(i, result)
	o.batches, o.hw = batches, hw
}

// seek is a consumer that changes its position by itself.
func (h *history) seek(process int, id partID, to int64) {
	h.end(h.begin(op{kind: opSeek, process: process, id: id, offset: to}), okay)
}

// reset is a consumer that was told that its position is not in the log.
func (h *history) reset(process int, id partID, to int64) {
	h.end(h.begin(op{kind: opReset, process: process, id: id, offset: to}), okay)
}

func (h *history) commit(process int, group string, id partID, offset int64) int {
	return h.begin(op{kind: opCommit, process: process, group: group, id: id, offset: offset})
}

func (h *history) committed(i int, result outcome) { h.end(i, result) }

func (h *history) fetchCommitted(process int, group string, id partID) int {
	return h.begin(op{kind: opFetchCommitted, process: process, group: group, id: id, offset: -1})
}

func (h *history) fetchedCommitted(i int, offset int64, result outcome) {
	h.end(i, result).offset = offset
}

// coordinator says which partition holds the offsets of a group.
func (h *history) coordinator(group string, id partID) { h.coordinators[group] = id }

// election is a leadership that began.
func (h *history) election(id partID) {
	h.clock++
	h.elected[id] = h.clock
}

// excuse allows a loss to a leader that holds, of all behind it, what it keeps.
func (h *history) excuse(id partID, epoch int32, from int64, kept ...batch) {
	h.losses[id] = append(h.losses[id], loss{epoch, from, kept})
}

// final is what a replica holds when all is quiet, the leader first.
func (h *history) final(id partID, node int32, start, hw int64, batches []batch) {
	h.finals[id] = append(h.finals[id], dump{node, start, hw, batches})
}

// killer is the first loss that took what epoch wrote at offset, or the number
// of losses if it lives: what a leader kept lives on, whatever was before.
func (h *history) killer(id partID, epoch int32, offset int64) int {
	losses := h.losses[id]
	first := len(losses)
	for i := len(losses) - 1; i >= 0; i-- {
		if l := &losses[i]; epoch < l.epoch && offset >= l.from {
			if l.keeps(epoch, offset) {
				break
			}
			first = i
		}
	}
	return first
}

// keeper is the epoch of the last leader that might have given up what epoch wrote
// at offset, if it kept that.
func (h *history) keeper(id partID, epoch int32, offset int64) (last int32, ok bool) {
	for _, l := range slices.Backward(h.losses[id]) {
		if epoch < l.epoch && offset >= l.from {
			return l.epoch, l.keeps(epoch, offset)
		}
	}
	return 0, false
}

// around shows what was done near an offset of a partition, for a report.
func (h *history) around(id partID, offset int64) string {
	const window = 5
	near := func(from, end int64) bool { return from <= offset+window && end >= offset-window }
	var s strings.Builder
	for i := range h.ops {
		o := &h.ops[i]
		if o.id != id {
			continue
		}
		show := false
		switch o.kind {
		case opSend:
			show = o.offset >= 0 && near(o.offset, o.offset+int64(o.count))
		case opPoll:
			for j := range o.batches {
				show = show || near(o.batches[j].base, o.batches[j].next())
			}
		case opSeek, opReset:
			show = near(o.offset, o.offset)
		case opCommit, opFetchCommitted:
		}
		if show {
			fmt.Fprintln(&s, o)
		}
	}
	return s.String()
}
