package sim

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"leat/storage"
)

var (
	errDamaged    = errors.New("log is damaged")
	errOutOfRange = errors.New("offset out of range")
	errSequence   = errors.New("out of order sequence")
	errStaleEpoch = errors.New("stale producer epoch")
)

// batch is a record batch. Its records are counted, not there: the value of
// record i is value+i, and no two values of a seed are equal. 0 is a batch that
// no client wrote.
type batch struct {
	base   int64
	count  int32
	epoch  int32 // of the leader
	pepoch int16
	seq    int32
	pid    int64 // of the producer, -1 for none
	value  uint64
	group  *groupBatch // what a coordinator wrote
	crc    uint32
}

func (b *batch) next() int64 { return b.base + int64(b.count) }

// sum is the checksum of the batch; unlike that of a real one it has the base
// offset and the leader's epoch in it.
func (b *batch) sum() uint32 {
	h := uint64(b.base)*0x9e3779b97f4a7c15 ^ uint64(b.count)<<32 ^ uint64(b.epoch)
	h = (h ^ b.value ^ uint64(b.pid)<<17 ^ uint64(b.seq)<<40 ^ uint64(b.pepoch)) * 0xbf58476d1ce4e5b9
	return uint32(h >> 32)
}

func (b *batch) sound() bool { return b.crc == b.sum() }

// epochStart is where a leader epoch begins in a log.
type epochStart struct {
	epoch int32
	start int64
}

// written is a batch of a producer that a log remembers.
type written struct {
	seq, count int32
	base       int64
}

// producerState is the fold of a log over one producer's batches.
type producerState struct {
	epoch int16
	last  []written // the newest 5
}

const remembered = 5

// simLog is one replica's log: what storage.Log is to a broker. Batches are
// never changed in place but by bit flips, so slices of them may be kept.
type simLog struct {
	id      storage.ID
	batches []batch
	start   int64
	durable int64
	end     int64
	epochs  []epochStart
	// producers is nil when it must be folded anew; before is the fold over what
	// was in front of the start, which a snapshot keeps.
	producers, before map[int64]*producerState
	// cutting is where a truncation is to cut that is on its way to the disk, -1
	// for none: a crash may come before, in the middle or behind it.
	cutting int64
	// cuts counts truncations, so that a sync that was under way is not credited
	// to other bytes.
	cuts int
	// damaged is set when something below the durable end does not hold.
	damaged bool
}

func newLog(id storage.ID) *simLog {
	return &simLog{id: id, producers: map[int64]*producerState{}, cutting: -1}
}

// Offsets implements replication.Log.
func (l *simLog) Offsets() storage.Offsets {
	return storage.Offsets{Start: l.start, Durable: l.durable, End: l.end}
}

// EpochEnd implements replication.Log, as storage.Log has it.
func (l *simLog) EpochEnd(epoch int32) (found int32, end int64, err error) {
	i := len(l.epochs) - 1
	end = l.end
	for ; i >= 0 && l.epochs[i].epoch > epoch; i-- {
		end = l.epochs[i].start
	}
	if i < 0 || end <= l.start {
		return -1, l.start, nil
	}
	return l.epochs[i].epoch, end, nil
}

// append adds a batch at the end, whose offset and epoch are set.
func (l *simLog) append(b batch) (*batch, error) {
	if l.damaged {
		return nil, errDamaged
	}
	if len(l.batches) == 0 && b.base < l.end && l.end < b.next() {
		l.end = b.base // the start is within the first batch
	}
	if b.base != l.end {
		return nil, errOutOfRange
	}
	l.batches = append(l.batches, b)
	l.end = b.next()
	if n := len(l.epochs); n == 0 || l.epochs[n-1].epoch < b.epoch {
		l.epochs = append(l.epochs, epochStart{epoch: b.epoch, start: b.base})
	}
	if l.producers != nil {
		fold(l.producers, &b)
	}
	return &l.batches[len(l.batches)-1], nil
}

// lead adds a producer's batch as the leader of an epoch does.
func (l *simLog) lead(b batch, epoch int32) (*batch, error) {
	b.base, b.epoch = l.end, epoch
	b.crc = b.sum()
	return l.append(b)
}

func fold(to map[int64]*producerState, b *batch) {
	if b.pid < 0 {
		return
	}
	p := to[b.pid]
	if p == nil || p.epoch != b.pepoch {
		p = &producerState{epoch: b.pepoch}
		to[b.pid] = p
	}
	p.last = append(p.last, written{seq: b.seq, count: b.count, base: b.base})
	if len(p.last) > remembered {
		p.last = p.last[1:]
	}
}

// state is the fold over the batches.
func (l *simLog) state() map[int64]*producerState {
	if l.producers == nil {
		l.producers = l.refold()
	}
	return l.producers
}

// refold makes the fold anew.
func (l *simLog) refold() map[int64]*producerState {
	return foldAll(l.before, l.batches)
}

// forgot reports whether a batch that a producer had written at an offset was
// deleted there before the log began, which then knows nothing of it.
func (l *simLog) forgot(b *batch, at int64) bool {
	known := l.before[b.pid]
	return at < l.start && (known == nil || known.epoch < b.pepoch)
}

// foldAll is a fold with more batches; the one that it starts with stays as it is.
func foldAll(from map[int64]*producerState, batches []batch) map[int64]*producerState {
	to := make(map[int64]*producerState, len(from)+1)
	for pid, p := range from {
		to[pid] = &producerState{epoch: p.epoch, last: slices.Clone(p.last)}
	}
	for i := range batches {
		fold(to, &batches[i])
	}
	return to
}

// judge says whether a producer's batch is the next, or one that is there:
// then where.
func (l *simLog) judge(b *batch) (base int64, duplicate bool, err error) {
	p := l.state()[b.pid]
	switch {
	case b.pid < 0 || p == nil:
		return 0, false, nil // who is not known may begin anywhere
	case b.pepoch < p.epoch:
		return 0, false, errStaleEpoch
	case b.pepoch > p.epoch:
		if b.seq != 0 {
			return 0, false, errSequence
		}
		return 0, false, nil
	}
	for _, w := range p.last {
		if w.seq == b.seq && w.count == b.count {
			return w.base, true, nil
		}
	}
	last := p.last[len(p.last)-1]
	if b.seq != last.seq+last.count {
		return 0, false, errSequence
	}
	return 0, false, nil
}

// find is the index of the batch that has an offset, or would.
func (l *simLog) find(offset int64) int {
	lo, hi := 0, len(l.batches)
	for lo < hi {
		mid := (lo + hi) / 2
		if l.batches[mid].next() <= offset {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// read gives at most n batches from an offset up to another. A batch that does
// not hold ends it; the first one is an error, and the log is damaged.
func (l *simLog) read(from, upTo int64, n int) ([]batch, error) {
	if from < l.start || from > l.end {
		return nil, errOutOfRange
	}
	i := l.find(from)
	j := i
	for j < len(l.batches) && j-i < n && l.batches[j].next() <= upTo {
		if !l.batches[j].sound() {
			l.damaged = true
			if i == j {
				return nil, errDamaged
			}
			break
		}
		j++
	}
	return l.batches[i:j:j], nil
}

// flushing is what a sync that begins now will have made durable.
type flushing struct {
	log  *simLog
	end  int64
	cuts int
}

func (l *simLog) flush() flushing { return flushing{log: l, end: l.end, cuts: l.cuts} }

// done credits the sync, unless the log was cut meanwhile.
func (f flushing) done() (moved bool) {
	if f.cuts != f.log.cuts || f.end <= f.log.durable {
		return false
	}
	f.log.durable = f.end
	return true
}

// truncate cuts the log off at an offset, down to the start of the batch that
// has it. What stays is durable. Set cutting while the disk works on it.
func (l *simLog) truncate(offset int64) {
	l.cutting = -1
	offset = max(offset, l.start)
	i := l.find(offset)
	if i < len(l.batches) && l.batches[i].base < l.start {
		// The start is within the first batch that would go: the log begins anew.
		l.restart(l.start)
		return
	}
	if i == len(l.batches) {
		return
	}
	l.cuts++
	l.end = l.batches[i].base
	l.batches = l.batches[:i:i]
	l.durable = l.end
	l.forget()
}

// restart empties the log and has it begin at an offset.
func (l *simLog) restart(at int64) {
	l.cuts++
	l.cutting = -1
	l.batches, l.before = nil, nil
	l.start, l.durable, l.end = at, at, at
	l.forget()
}

// settle says that all there is is on the disk.
func (l *simLog) settle() { l.durable = l.end }

// raise moves the start up; what is below is gone.
func (l *simLog) raise(start int64) {
	if start <= l.start || start > l.end {
		return
	}
	l.start = start
	i := l.find(start)
	l.before = foldAll(l.before, l.batches[:i])
	l.batches = l.batches[i:]
	l.epochs = nil
	l.relearn()
}

// forget has epochs and producers derived from the batches anew.
func (l *simLog) forget() {
	l.producers, l.epochs = nil, nil
	l.relearn()
}

func (l *simLog) relearn() {
	for i := range l.batches {
		b := &l.batches[i]
		if n := len(l.epochs); n == 0 || l.epochs[n-1].epoch < b.epoch {
			l.epochs = append(l.epochs, epochStart{epoch: b.epoch, start: b.base})
		}
	}
}

// crash leaves what the end of the process leaves, or a power cut: of what is
// not durable a part by chance, its last batch torn maybe; and of what a
// truncation was removing some or nothing.
func (l *simLog) crash(power bool, rng *rand.Rand, c *counts) {
	if l.cutting >= 0 {
		// The checkpoint says already that no more is durable.
		i := l.find(l.cutting)
		keep := i + rng.IntN(len(l.batches)-i+1)
		if keep > i {
			c.cutsUndone++
		}
		l.batches = l.batches[:keep:keep]
		l.durable = min(l.durable, l.cutting)
		l.cutting = -1
	}
	if power {
		first := l.find(l.durable)
		keep := first + rng.IntN(len(l.batches)-first+1)
		if rng.IntN(3) == 0 {
			keep = first // the strict disk
		}
		if keep < len(l.batches) {
			l.batches = slices.Clone(l.batches[:keep+1])
			torn := &l.batches[keep]
			torn.crc ^= 1 << rng.IntN(32)
			if rng.IntN(2) == 0 {
				l.batches = l.batches[:keep]
			} else {
				c.torn++
			}
		}
	}
	l.cuts++
	l.producers, l.epochs = nil, nil
}

// recover is the start: batches are scanned, a torn end is cut, what is damaged
// below the durable end is told. All that is left is durable then.
func (l *simLog) recover() {
	next := l.start
	for i := range l.batches {
		b := &l.batches[i]
		if i == 0 && b.base <= l.start {
			next = b.base
		}
		if !b.sound() || b.base != next {
			if b.base < l.durable {
				l.damaged = true
				break
			}
			l.batches = l.batches[:i:i]
			break
		}
		next = b.next()
	}
	if n := len(l.batches); n > 0 {
		l.end = l.batches[n-1].next()
	} else {
		l.end = l.start
	}
	l.durable = l.end
	l.forget()
}

// intact reports whether every batch holds.
func (l *simLog) intact() bool {
	for i := range l.batches {
		if !l.batches[i].sound() {
			return false
		}
	}
	return true
}

// flip turns a bit of one durable batch. It reports whether there was one.
func (l *simLog) flip(rng *rand.Rand) bool {
	n := l.find(l.durable)
	if n == 0 {
		return false
	}
	l.batches = slices.Clone(l.batches)
	l.batches[rng.IntN(n)].crc ^= 1 << rng.IntN(32)
	return true
}

func testBatch(pid int64, seq, count int32, value uint64) batch {
	return batch{count: count, pid: pid, seq: seq, value: value}
}

func mustLead(t *testing.T, l *simLog, b batch, epoch int32) {
	t.Helper()
	if _, err := l.lead(b, epoch); err != nil {
		t.Fatal(err)
	}
}

// EpochEnd answers as storage.Log does.
func TestLogEpochs(t *testing.T) {
	l := newLog(storage.ID{})
	ask := func(epoch, found int32, end int64) {
		t.Helper()
		if f, e, err := l.EpochEnd(epoch); err != nil || f != found || e != end {
			t.Errorf("EpochEnd(%d) = %d, %d, %v, want %d, %d", epoch, f, e, err, found, end)
		}
	}
	ask(5, -1, 0)
	mustLead(t, l, testBatch(-1, 0, 3, 1), 2)
	mustLead(t, l, testBatch(-1, 0, 2, 4), 2)
	mustLead(t, l, testBatch(-1, 0, 5, 6), 4)
	ask(1, -1, 0)
	ask(2, 2, 5)
	ask(3, 2, 5)
	ask(4, 4, 10)
	ask(9, 4, 10)
	l.truncate(7) // within a batch: all of it goes
	ask(9, 2, 5)
	l.raise(3)
	ask(2, 2, 5)
	ask(1, -1, 3)
	l.raise(5)
	ask(9, -1, 5)
}

// A producer's batch is written once, in order, and a truncation forgets what
// it cut.
func TestLogProducers(t *testing.T) {
	l := newLog(storage.ID{})
	for i := range int32(7) {
		b := testBatch(1, 2*i, 2, uint64(2*i+1))
		if _, dup, err := l.judge(&b); dup || err != nil {
			t.Fatal(dup, err)
		}
		mustLead(t, l, b, 0)
	}
	check := func(b batch, base int64, dup bool, want error) {
		t.Helper()
		if at, d, err := l.judge(&b); d != dup || !errors.Is(err, want) || d && at != base {
			t.Errorf("%+v: %d, %v, %v", b, at, d, err)
		}
	}
	check(testBatch(1, 12, 2, 0), 12, true, nil)
	check(testBatch(1, 4, 2, 0), 4, true, nil)
	check(testBatch(1, 2, 2, 0), 0, false, errSequence) // forgotten
	check(testBatch(1, 16, 2, 0), 0, false, errSequence)
	check(batch{pid: 1, pepoch: 1, seq: 3, count: 1}, 0, false, errSequence)
	check(batch{pid: 1, pepoch: 1, count: 1}, 0, false, nil)
	check(batch{pid: 1, pepoch: -1, count: 1}, 0, false, errStaleEpoch)
	l.truncate(8)
	check(testBatch(1, 8, 2, 0), 0, false, nil)
	check(testBatch(1, 6, 2, 0), 6, true, nil)
}

// A power cut keeps all that is durable and a whole prefix of the rest; kill -9
// keeps everything; neither credits a sync to bytes that came after a cut.
func TestLogCrash(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var c counts
	for range 500 {
		l := newLog(storage.ID{})
		for i := range 10 {
			mustLead(t, l, testBatch(-1, 0, 1, uint64(i+1)), 0)
			if i == 4 {
				f := l.flush()
				if !f.done() || l.durable != 5 {
					t.Fatal("flush")
				}
			}
		}
		stale := l.flush()
		power := rng.IntN(2) == 0
		cut := rng.IntN(2) == 0
		low, high := int64(5), int64(10)
		switch {
		case cut && rng.IntN(2) == 0:
			l.cutting = 7
		case cut:
			l.truncate(7)
			if stale.done() || l.durable != 7 {
				t.Fatal("a sync was credited to what was cut")
			}
			low = 7
		}
		l.crash(power, rng, &c)
		l.recover()
		if !power && !cut {
			low = 10
		}
		if l.end < low || l.end > high || l.durable != l.end || l.damaged {
			t.Fatalf("power %v cut %v: %+v", power, cut, l.Offsets())
		}
		for i := range l.batches {
			if b := &l.batches[i]; b.base != int64(i) || b.value != uint64(i+1) || !b.sound() {
				t.Fatalf("batch %d is %+v", i, b)
			}
		}
	}
	if c.torn == 0 || c.cutsUndone == 0 {
		t.Errorf("%+v", c)
	}
}

// A flipped bit is found by who reads it and at the start, and never passed on.
func TestLogFlip(t *testing.T) {
	l := newLog(storage.ID{})
	for i := range 4 {
		mustLead(t, l, testBatch(-1, 0, 1, uint64(i+1)), 0)
	}
	l.flush().done()
	l.batches[2].crc ^= 4
	if got, err := l.read(0, 4, 10); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := l.read(2, 4, 10); !errors.Is(err, errDamaged) {
		t.Error(err)
	}
	if _, err := l.lead(testBatch(-1, 0, 1, 9), 0); !errors.Is(err, errDamaged) {
		t.Errorf("a damaged log was appended to: %v", err)
	}
	l.damaged = false
	l.recover()
	if !l.damaged || len(l.batches) != 4 {
		t.Errorf("recovery: damaged %v, %d batches", l.damaged, len(l.batches))
	}
}
