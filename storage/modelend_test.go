package storage

import (
	"errors"
	"sync"

	"leat/storage/disk"
)

// What else TestModel does to a log: a batch that rots, and kill -9.

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

// kill ends the process as kill -9 does, at this moment or before one of the next
// operations on the file system: not one byte more is written, and what was is in
// the page cache, where it is not safe from a power cut yet.
func (r *modelRun) kill() {
	r.counts.Crashes.Add(1)
	var mu sync.Mutex
	left := r.rng.IntN(40) * r.rng.IntN(2)
	dead, was := false, Offsets{}
	r.fs.SetFault(func(op disk.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if !dead && left <= 0 {
			dead, was = true, r.log.Offsets()
		}
		left--
		if dead && op.Kind.Changes() {
			return disk.ErrSkip
		}
		return nil
	})
	over := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return dead
	}
	for range 40 {
		b := r.randomBatch()
		_, err := r.log.Append(Append{Batch: b, Epoch: r.epoch})
		if err != nil && !over() {
			r.t.Fatal(err)
		}
		if err == nil {
			r.model.add(b)
		}
		if over() {
			break
		}
	}
	_ = r.dir.Close() // it is dead
	r.fs.SetFault(nil)
	mu.Lock()
	defer mu.Unlock()
	if !dead {
		was = Offsets{End: r.model.end()}
	}
	if c := check(r.t, r.fs); c.Damages > 0 {
		r.t.Fatalf("after kill -9:\n%s", c.lines())
	}
	r.open()
	r.log = openWhole(r.t, r.dir, r.cfg, r.model.start)
	o := r.log.Offsets()
	if o.End < was.End || o.End > r.model.end() || o.Durable != o.End {
		r.t.Fatalf("killed with the log at %+v, at most up to %d, and now it is %+v", was, r.model.end(), o)
	}
	r.model.cutAt(o.End)
	r.forgetProducers(o.End)
	r.model.check(r.t, r.log, r.rng)
}
