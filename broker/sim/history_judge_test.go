package sim

import (
	"fmt"
	"slices"
)

// anomaly is something in a history that no correct cluster can show. The names
// follow Jepsen's checker for Kafka.
type anomaly struct {
	name   string
	id     partID
	offset int64
	text   string
}

func (a anomaly) String() string {
	return fmt.Sprintf("%s: partition %d offset %d: %s", a.name, a.id.Partition, a.offset, a.text)
}

// maxAnomalies bounds a report. The first one matters; the rest follow from it.
const maxAnomalies = 20

// seen is a record that a reader got or that a replica held at the end. Its
// batch is nil where nothing is known.
type seen struct {
	b     *batch
	value uint64
}

// grave is a place in data that was lost with an excuse.
type grave struct {
	id     partID
	killer int
	offset int64
}

// judge goes over a history, each operation and record a constant number of
// times.
type judge struct {
	h     *history
	found []anomaly
	// writers has the send of each value, plus one.
	writers []int32
	// living is the log of each partition by offset, as far as anybody saw it.
	// at is where in it a value is, -1 if nobody saw it.
	living map[partID][]seen
	at     []int64
	// What was lost with an excuse, so that it too had one order and one value
	// for an offset while it was there.
	dead   map[grave]seen
	deadAt map[[2]uint64]int64 // by value and killer
	// work counts the innermost steps.
	work int
}

// check judges the history. It gives at most maxAnomalies, in a fixed order.
func (h *history) check() []anomaly {
	j := &judge{h: h, living: map[partID][]seen{}, dead: map[grave]seen{}, deadAt: map[[2]uint64]int64{}}
	return j.judge()
}

func (j *judge) judge() []anomaly {
	h := j.h
	j.index()
	for _, id := range sortedParts(h.finals) {
		j.final(id, h.finals[id])
	}
	j.polls()
	j.sends()
	j.order()
	j.found = append(j.found, h.checkGroups()...)
	return j.found[:min(len(j.found), maxAnomalies)]
}

func (j *judge) add(name string, id partID, offset int64, format string, args ...any) {
	j.found = append(j.found, anomaly{name, id, offset, fmt.Sprintf(format, args...)})
}

func (j *judge) index() {
	for i := range j.h.ops {
		o := &j.h.ops[i]
		if o.kind != opSend {
			continue
		}
		for v := o.value; v < o.value+uint64(o.count); v++ {
			j.work++
			for uint64(len(j.writers)) <= v {
				j.writers = append(j.writers, 0)
			}
			if j.writers[v] != 0 {
				panic(fmt.Sprintf("the world sent value %d twice", v))
			}
			j.writers[v] = int32(i + 1)
		}
	}
	j.at = slices.Repeat([]int64{-1}, len(j.writers))
}

func (j *judge) writer(value uint64) *op {
	if value >= uint64(len(j.writers)) || j.writers[value] == 0 {
		return nil
	}
	return &j.h.ops[j.writers[value]-1]
}

// final takes in what the replicas hold at the end.
func (j *judge) final(id partID, dumps []dump) {
	leader := &dumps[0]
	next := leader.start
	for i := range leader.batches {
		b := &leader.batches[i]
		if b.base > next || b.next() <= leader.start {
			j.add("hole", id, next, "the leader's log goes on at %d", b.base)
		}
		next = b.next()
		for r := range b.count {
			// Another unclean election may choose one who missed the loss.
			losses := j.h.losses[id]
			if k := j.h.killer(id, b.epoch, b.base+int64(r)); k < len(losses) && losses[k].epoch >= j.h.unclean[id] {
				j.add("resurrected", id, b.base, "epoch %d was given up as lost here and is in the log again", b.epoch)
				break
			}
		}
		j.see(id, b)
	}
	if next > leader.hw {
		j.add("unseen", id, leader.hw, "the log of node %d goes on to %d, readers never see that", leader.node, next)
	}
	for i := range dumps[1:] {
		j.equal(id, leader, &dumps[1+i])
	}
}

// equal compares two replicas where both have records that are committed.
func (j *judge) equal(id partID, a, b *dump) {
	from, to := max(a.start, b.start), min(a.hw, b.hw)
	within := func(d *dump) []batch {
		first, _ := slices.BinarySearchFunc(d.batches, from, func(b batch, o int64) int { return int(b.next() - 1 - o) })
		last, _ := slices.BinarySearchFunc(d.batches, to, func(b batch, o int64) int { return int(b.base - o) })
		return d.batches[first:max(first, last)]
	}
	mine, theirs := within(a), within(b)
	for i := range max(len(mine), len(theirs)) {
		j.work++
		switch {
		case i >= len(mine) || i >= len(theirs):
			j.add("replicas-differ", id, to, "node %d has %d batches below it, node %d has %d", a.node, len(mine), b.node, len(theirs))
			return
		case !same(&mine[i], &theirs[i]):
			j.add("replicas-differ", id, mine[i].base, "node %d has %+v, node %d has %+v", a.node, mine[i], b.node, theirs[i])
			return
		}
	}
}

// same reports whether two batches are equal byte for byte.
func same(a, b *batch) bool {
	return a.base == b.base && a.count == b.count && a.epoch == b.epoch && a.pid == b.pid && a.pepoch == b.pepoch &&
		a.seq == b.seq && a.value == b.value && a.crc == b.crc
}

// see takes in a batch that somebody got.
func (j *judge) see(id partID, b *batch) {
	for i := range int64(b.count) {
		s := seen{b: b}
		if b.value != 0 {
			s.value = b.value + uint64(i)
		}
		j.record(id, b.base+i, s)
	}
}

func (j *judge) record(id partID, offset int64, s seen) {
	j.work++
	killer := j.h.killer(id, s.b.epoch, offset)
	lives := killer == len(j.h.losses[id])
	var before seen
	if lives {
		log := j.living[id]
		for int64(len(log)) <= offset {
			log = append(log, seen{})
		}
		before = log[offset]
		if before.b == nil {
			log[offset] = s
		}
		j.living[id] = log
	} else {
		before = j.dead[grave{id, killer, offset}]
		if before.b == nil {
			j.dead[grave{id, killer, offset}] = s
		}
	}
	switch {
	case before.b == nil:
		j.origin(id, offset, s, lives, killer)
	case before.value != s.value:
		j.add("inconsistent-offsets", id, offset, "value %d and value %d", before.value, s.value)
	case !same(before.b, s.b):
		j.add("reread-differs", id, offset, "%+v was %+v", *s.b, *before.b)
	}
}

// origin asks of a record that is seen for the first time who wrote it.
func (j *judge) origin(id partID, offset int64, s seen, lives bool, killer int) {
	if s.value == 0 {
		return
	}
	w := j.writer(s.value)
	switch {
	case w == nil || w.id != id:
		j.add("phantom", id, offset, "nobody sent value %d here", s.value)
		return
	case w.outcome == failed:
		j.add("aborted-read", id, offset, "value %d was refused: %v", s.value, w)
	case s.value-w.value != uint64(offset-s.b.base) || w.count != s.b.count:
		j.add("torn", id, offset, "the batch %+v is not what was sent: %v", *s.b, w)
	}
	var old int64
	var twice bool
	if lives {
		old = j.at[s.value]
		twice, j.at[s.value] = old >= 0, offset
	} else {
		key := [2]uint64{s.value, uint64(killer)}
		old, twice = j.deadAt[key]
		j.deadAt[key] = offset
	}
	if twice && w.idempotent && !j.h.again[w.value] {
		j.add("duplicate", id, offset, "value %d is at %d too: %v", s.value, old, w)
	}
}

// polls goes over what consumers read.
func (j *judge) polls() {
	type reader struct {
		process int
		id      partID
	}
	positions := map[reader]int64{}
	for i := range j.h.ops {
		o := &j.h.ops[i]
		who := reader{o.process, o.id}
		switch o.kind {
		case opPoll:
			if o.outcome != okay {
				continue
			}
			if at, ok := positions[who]; ok && at != o.offset {
				j.skipped("poll", o.id, o.offset, at, o)
			}
			positions[who] = j.poll(o)
		case opReset:
			at, ok := positions[who]
			if !ok || !slices.ContainsFunc(j.h.losses[o.id], func(l loss) bool { return l.from <= at }) {
				j.add("position-lost", o.id, o.offset, "a consumer at %d (known: %v) was told that this is not in the log", at, ok)
			}
			positions[who] = o.offset
		case opSeek:
			positions[who] = o.offset
		case opSend, opCommit, opFetchCommitted:
		}
	}
}

func (j *judge) skipped(kind string, id partID, got, want int64, o *op) {
	if got > want {
		j.add(kind+"-skip", id, got, "wanted %d: %v", want, o)
	} else {
		j.add("nonmonotonic-"+kind, id, got, "wanted %d: %v", want, o)
	}
}

// poll goes over one read and returns the position behind it.
func (j *judge) poll(o *op) int64 {
	next := o.offset
	finals := j.h.finals[o.id]
	for i := range o.batches {
		b := &o.batches[i]
		// The first batch may begin before the offset that it was asked for.
		if b.base > next || b.base < next && i > 0 || b.next() <= next {
			j.skipped("int-poll", o.id, b.base, next, o)
		}
		next = b.next()
		if next > o.hw {
			j.add("uncommitted-read", o.id, b.base, "the high watermark was %d: %v", o.hw, o)
		}
		gone := len(finals) > 0 && b.next() > finals[0].start && j.h.killer(o.id, b.epoch, b.next()-1) == len(j.h.losses[o.id])
		if log := j.living[o.id]; gone && (int64(len(log)) < b.next() || log[b.next()-1].b == nil) {
			j.add("lost-write", o.id, b.base, "a consumer got %+v, at the end it is not there: %v", *b, o)
			continue
		}
		j.see(o.id, b)
	}
	return next
}
