package storage

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

var modelProof = disktest.Proof{Name: "TestModel", Short: 60, Body: func(t testing.TB, seed uint64, c *disktest.Counts) {
	r := newModelRun(t, seed)
	r.counts = c
	defer func() { _ = r.dir.Close() }()
	r.run(120)
}}

// TestModel proves that whatever is appended, and however often the start is
// raised, the end cut, a batch damaged and the log repaired, the process restarted
// or killed, or the power off, the log has the same batches in the same order as a
// plain slice: all that was durable and not deleted, and of the rest a prefix; and
// knows where each epoch ends. Check finds no damage in what a crash leaves.
func TestModel(t *testing.T) { disktest.Run(t, modelProof) }

// modelRun drives one log at random.
type modelRun struct {
	t      testing.TB
	counts *disktest.Counts
	rng    *rand.Rand
	fs     *disk.Mem
	dir    *Dir
	log    *Log
	cfg    Config
	model  model
	start  atomic.Int64    // what the log's owner has durable
	epoch  int32           // of the leader
	pids   map[int64]int32 // next sequence of each producer
	wrote  []record.Batch  // all that producers wrote, deleted or not
	last   map[int64]sent  // the newest batch of each producer, to send again
	keyed  []sent          // batches of keyed requests, two of each
	ids    int64           // how many of them there were
}

type sent struct {
	batch record.Batch
	at    Appended
}

func newModelRun(t testing.TB, seed uint64) *modelRun {
	r := &modelRun{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), fs: disk.NewMem(),
		pids: make(map[int64]int32), last: make(map[int64]sent),
	}
	r.cfg = r.randomConfig()
	r.open()
	if err := r.dir.Create([]LogName{{ID: testID, Topic: "orders"}}); err != nil {
		t.Fatal(err)
	}
	r.log = openLog(t, r.dir, r.cfg)
	return r
}

// randomConfig has tiny segments and index intervals, so that every edge is
// near.
func (r *modelRun) randomConfig() Config {
	pick := func(of ...int64) int64 { return of[r.rng.IntN(len(of))] }
	return Config{
		SegmentBytes:      pick(300, 2000, 20_000, 1<<30),
		IndexInterval:     int(pick(1, 200, 4096)),
		SegmentIndexBytes: int(pick(24, 200, 1<<20)),
		FlushMessages:     pick(1, 1, 3, 1<<40),
		HeaderOnly:        r.rng.IntN(2) == 0,
		TimestampAfter:    1 << 62,
	}
}

func (r *modelRun) open() { r.dir = openDir(r.t, r.fs) }

func (r *modelRun) run(steps int) {
	for range steps {
		r.counts.Operations.Add(1)
		switch n := r.rng.IntN(100); {
		case n < 50:
			r.append()
		case n < 52:
			r.epoch += r.rng.Int32N(3)
		case n < 55:
			r.truncate()
		case n < 60:
			r.raise()
		case n < 70:
			r.repeat()
		case n < 80:
			r.model.check(r.t, r.log, r.rng)
			r.checkEpochs()
		case n < 85:
			waitDurableOrLazy(r.t, r.log, r.cfg)
		case n < 88:
			r.cfg = r.randomConfig()
			r.log.SetConfig(r.cfg)
		case n < 91:
			r.restart()
		case n < 92:
			r.damage()
		default:
			r.crash()
		}
	}
	r.model.check(r.t, r.log, r.rng)
	r.checkEpochs()
	r.restart()
	r.checkEpochs()
	mustClose(r.t, r.dir)
}

// waitDurableOrLazy waits where a flush comes at once.
func waitDurableOrLazy(t testing.TB, l *Log, cfg Config) {
	if cfg.FlushMessages == 1 {
		waitDurable(t, l)
	}
}

func (r *modelRun) randomBatch() record.Batch {
	var w record.Builder
	w.Reset(record.Options{Codec: record.Codec(r.rng.IntN(5))})
	size := []int{10, 10, 100, 3000}[r.rng.IntN(4)]
	for range 1 + r.rng.IntN(5) {
		value := make([]byte, r.rng.IntN(size))
		for i := range value {
			value[i] = byte(r.rng.Uint32())
		}
		w.Add(r.rng.Int64N(1_000_000), nil, value, nil)
	}
	b, err := w.Finish()
	if err != nil {
		r.t.Fatal(err)
	}
	return bytes.Clone(b)
}

func (r *modelRun) append() {
	b := r.randomBatch()
	pid := int64(-1)
	if r.rng.IntN(3) == 0 {
		pid = r.rng.Int64N(4)
		b = withProducer(b, pid, 0, r.pids[pid])
	}
	if pid < 0 && r.rng.IntN(4) == 0 {
		pid = FirstKeyID + r.ids/2
		b = r.stamped(b, pid, int32(r.ids%2))
		r.ids++
	}
	original := bytes.Clone(b)
	at, err := r.log.Append(Append{Batch: b, Epoch: r.epoch})
	if err != nil {
		r.t.Fatalf("append: %v", err)
	}
	if at.Base != r.model.end() || at.Last != b.LastOffset() || at.Duplicate {
		r.t.Fatalf("appended at %+v, want offset %d", at, r.model.end())
	}
	r.model.add(b)
	switch {
	case pid >= FirstKeyID:
		r.keyed = append(r.keyed, sent{original, at})
	case pid >= 0:
		r.pids[pid] = b.LastSequence() + 1
		r.last[pid] = sent{original, at}
		r.wrote = append(r.wrote, b)
	}
}

// stamped makes a batch one of a keyed request that is tried now: its first or
// second, of which the sequences lie apart.
func (r *modelRun) stamped(b record.Batch, id int64, second int32) record.Batch {
	b = bytes.Clone(b)
	be64(b[27:], uint64(time.Now().UnixMilli()))
	return withProducer(b, id, int16(id&0x7fff), 1000*second)
}

// checkKeys proves that the log knows every batch of a keyed request that it has,
// where it is, and no other but what it had and deleted.
func (r *modelRun) checkKeys() {
	var wrote []sent
	for i, s := range r.keyed {
		wrote = append(wrote, s)
		id := s.batch.ProducerID()
		if i+1 < len(r.keyed) && r.keyed[i+1].batch.ProducerID() == id {
			continue
		}
		known, _ := r.log.KeyedRequest(id)
		for _, s := range wrote {
			at := slices.IndexFunc(known.Written, func(w Written) bool { return w.Base == s.at.Base })
			if at < 0 && s.at.Base < r.model.start {
				continue
			}
			want := Written{First: s.batch.BaseSequence(), Last: s.batch.LastSequence(), Base: s.at.Base, Timestamp: -1}
			if at < 0 || known.Written[at] != want {
				r.t.Fatalf("key %d wrote %+v, it is known as %+v", id-FirstKeyID, want, known)
			}
			if again := mustAppend(r.t, r.log, bytes.Clone(s.batch)); !again.Duplicate || again.Base != s.at.Base || again.Last != s.at.Last {
				r.t.Fatalf("key %d sent again: %+v, the first time %+v", id-FirstKeyID, again, s.at)
			}
			known.Written = slices.Delete(known.Written, at, at+1)
		}
		if len(known.Written) > 0 {
			r.t.Fatalf("key %d: %+v was not written", id-FirstKeyID, known.Written)
		}
		wrote = nil
	}
}

// repeat sends a producer's newest batch once more.
func (r *modelRun) repeat() {
	r.checkKeys()
	for _, pid := range []int64{0, 1, 2, 3} {
		s, ok := r.last[pid]
		if !ok {
			continue
		}
		again := mustAppend(r.t, r.log, bytes.Clone(s.batch))
		if !again.Duplicate || again.Base != s.at.Base || again.Last != s.at.Last {
			r.t.Fatalf("a repeated batch of producer %d gave %+v, the first time %+v", pid, again, s.at)
		}
		_, err := r.log.Append(Append{Batch: withProducer(s.batch, pid, 0, r.pids[pid]+5)})
		if !errors.Is(err, ErrOutOfOrderSequence) {
			r.t.Fatalf("a gap in the sequence gave %v", err)
		}
	}
}

// truncate cuts the end off, and tries what must change nothing.
func (r *modelRun) truncate() {
	start, end := r.model.start, r.model.end()
	to := start + r.rng.Int64N(end-start+1)
	switch r.rng.IntN(3) {
	case 0:
		to = max(start, end-r.rng.Int64N(6))
	case 1: // at the end of a segment
		r.log.mu.RLock()
		to = max(start, r.log.mu.segments[r.rng.IntN(len(r.log.mu.segments))].base)
		r.log.mu.RUnlock()
	}
	r.model.cutAt(to)
	for _, offset := range []int64{to, to, end, end + 1} {
		if err := r.log.Truncate(r.t.Context(), offset); err != nil {
			r.t.Fatalf("truncate to %d of [%d, %d): %v", offset, start, end, err)
		}
	}
	var out *OffsetError
	if err := r.log.Truncate(r.t.Context(), start-1); !errors.As(err, &out) || out.Start != start {
		r.t.Fatalf("truncate below the start: %v", err)
	}
	if o := r.log.Offsets(); o.Start != start || o.End != r.model.end() || o.Durable != o.End && to < end {
		r.t.Fatalf("truncated to %d of [%d, %d): %+v, want the end %d", to, start, end, o, r.model.end())
	}
	r.forgetProducers(r.model.end())
}

// checkEpochs compares where epochs end with a walk over all batches.
func (r *modelRun) checkEpochs() {
	for epoch := max(r.epoch-4, -1); epoch <= r.epoch+1; epoch++ {
		wantFound, wantEnd := int32(-1), r.model.end()
		for _, b := range r.model.kept() {
			if b.LeaderEpoch() > epoch {
				wantEnd = max(b.BaseOffset(), r.model.start)
				break
			}
			wantFound = b.LeaderEpoch()
		}
		if wantFound < 0 {
			wantEnd = r.model.start
		}
		found, end, err := r.log.EpochEnd(epoch)
		if found != wantFound || end != wantEnd || err != nil {
			r.t.Fatalf("epoch %d: found %d, end %d, %v; want %d, %d", epoch, found, end, err, wantFound, wantEnd)
		}
	}
}

// raise raises the start, and tries what must change nothing.
func (r *modelRun) raise() {
	start, end := r.model.start, r.model.end()
	to := start + r.rng.Int64N(end-start+1)
	if r.rng.IntN(4) == 0 {
		to = end
	}
	r.start.Store(to)
	r.model.start = to
	for _, offset := range []int64{to, to, start - 1, start} {
		if err := r.log.SetStart(offset); err != nil {
			r.t.Fatalf("start %d: %v", offset, err)
		}
	}
	var out *OffsetError
	if err := r.log.SetStart(end + 1); !errors.As(err, &out) || out.Start != to || out.End != end {
		r.t.Fatalf("start past the end: %v", err)
	}
	if o := r.log.Offsets(); o.Start != to || o.End != end {
		r.t.Fatalf("after the start was set to %d: %+v", to, o)
	}
}

func (r *modelRun) restart() {
	mustClose(r.t, r.dir)
	if c := check(r.t, r.fs); len(c.Findings) > 0 || !c.Clean {
		r.t.Fatalf("after a clean stop:\n%s", c.lines())
	}
	r.open()
	if r.dir.Unclean() {
		r.t.Fatal("a clean stop was followed by an unclean start")
	}
	r.log = openWhole(r.t, r.dir, r.cfg, r.model.start)
	r.forgetProducers(r.model.end())
	r.model.check(r.t, r.log, r.rng)
	if o := r.log.Offsets(); o.Durable != o.End {
		r.t.Fatalf("after a clean stop %+v", o)
	}
}

// damage changes a batch on the disk while nothing runs. What is in front of it
// is read as ever; a repair gives it up, and more behind it maybe, which is cut
// off.
func (r *modelRun) damage() {
	kept := r.model.kept()
	if len(kept) == 0 {
		return
	}
	b := kept[r.rng.IntN(len(kept))]
	at := b.BaseOffset()
	if at < r.model.start {
		return // what is left of it is read as a whole
	}
	mustClose(r.t, r.dir)
	hurt(r.t, r.fs, b)
	r.open()
	r.log = openLogAt(r.t, r.dir, r.cfg, r.model.start)
	if _, err := r.log.Read(at, 1, r.model.end()); !errors.Is(err, ErrCorrupt) {
		r.t.Fatalf("offset %d was damaged, and is read: %v", at, err)
	}
	if at > r.model.start {
		front := model{batches: r.model.batches, start: r.model.start}
		front.cutAt(at)
		if err := sameBatches(readAll(r.t, r.log, front.start, at, 1<<20), front.kept()); err != nil {
			r.t.Fatalf("in front of offset %d, which is damaged: %v", at, err)
		}
	}
	done, err := r.log.Repair(r.t.Context())
	if err != nil || len(done.Holes) != 1 || done.Holes[0].From != at {
		r.t.Fatalf("offset %d was damaged: repaired %+v, %v", at, done, err)
	}
	if err := r.log.Truncate(r.t.Context(), at); err != nil {
		r.t.Fatal(err)
	}
	r.model.cutAt(at)
	r.forgetProducers(r.model.end())
	r.model.check(r.t, r.log, r.rng)
}

// crash cuts the power, or ends the process as kill -9 does, at this moment or
// within the next operations on the file system, and opens what is left. After a
// kill that is all there was, and as durable as it was.
func (r *modelRun) crash() {
	r.counts.Crashes.Add(1)
	keep := []float64{0, 0.1, 0.5, 0.9, 1}[r.rng.IntN(5)]
	leave := func(rng *rand.Rand) *disk.Mem { return r.fs.CrashClone(keep, rng) }
	if r.rng.IntN(3) == 0 {
		keep = 1
		leave = func(*rand.Rand) *disk.Mem { return r.fs.KillClone() }
	}
	was := r.log.Offsets()
	clone := leave(r.rng)
	if r.rng.IntN(2) == 0 {
		clone, was, r.model.start = r.crashWithin(leave)
		r.start.Store(r.model.start)
	}
	_ = r.dir.Close() // the old world may end as it likes
	r.fs = clone
	if c := check(r.t, r.fs); c.Damages > 0 {
		r.t.Fatalf("after a crash:\n%s", c.lines())
	}
	r.open()
	r.log = openWhole(r.t, r.dir, r.cfg, r.model.start)
	end := r.log.Offsets().End
	if end < was.Durable || end > r.model.end() {
		r.t.Fatalf("after a crash the log ends at %d, durable was %d, appended %d", end, was.Durable, r.model.end())
	}
	if keep == 1 && end < was.End {
		r.t.Fatalf("after kill -9 the log ends at %d of %d", end, was.End)
	}
	r.model.cutAt(end)
	r.forgetProducers(end)
	r.model.check(r.t, r.log, r.rng)
}

// crashWithin goes on until the end comes before some operation on the file
// system, of whichever goroutine, and leaves what leave says.
func (r *modelRun) crashWithin(leave func(*rand.Rand) *disk.Mem) (clone *disk.Mem, was Offsets, start int64) {
	var mu sync.Mutex
	left := 1 + r.rng.IntN(40)
	rng := rand.New(rand.NewPCG(r.rng.Uint64(), 0))
	cut := func(disk.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if left--; left == 0 {
			was, start = r.log.Offsets(), r.start.Load()
			clone = leave(rng)
		}
		return nil
	}
	r.fs.SetFault(cut)
	for range 40 {
		mu.Lock()
		done := clone != nil
		mu.Unlock()
		if done {
			break
		}
		if r.rng.IntN(6) == 0 {
			r.raise()
			r.dir.keeper.bytes.Store(checkpointBytes) // the files go at once
			r.dir.keeper.signal()
		}
		r.append()
	}
	r.fs.SetFault(nil)
	mu.Lock()
	defer mu.Unlock()
	if clone == nil {
		was, start = r.log.Offsets(), r.start.Load()
		clone = leave(rng)
	}
	left = 0 // a call that is still on its way changes nothing
	return clone, was, start
}

// forgetProducers goes back to what was written of what the log has, or had and
// deleted: a producer of which that is all may be known or not, but the log must
// not know it to be somewhere else.
func (r *modelRun) forgetProducers(end int64) {
	r.keyed = slices.DeleteFunc(r.keyed, func(s sent) bool { return s.at.Last >= end })
	r.checkKeys()
	clear(r.pids)
	r.wrote = slices.DeleteFunc(r.wrote, func(b record.Batch) bool { return b.NextOffset() > end })
	for _, b := range r.wrote {
		r.pids[b.ProducerID()] = b.LastSequence() + 1
	}
	for pid, s := range r.last {
		if s.at.Last >= end || s.at.Base < r.model.start {
			delete(r.last, pid)
		}
	}
}
