package storage

import (
	"math/rand/v2"
	"path"
	"slices"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// proveOrphanLog: a .log that is no part of the log is not in its way.
func proveOrphanLog(t testing.TB, w *world) {
	fs := w.disk()
	d := w.openDir(t, fs)
	l := openWhole(t, d, Config{}, 0)
	mustAppend(t, l, batchOf(t, record.None, nil, "v"))
	mustClose(t, d)
	name := path.Join(l.path, segmentName(0, 5)+logSuffix)
	setFile(t, fs, name, []byte("somebody's"))
	d = w.openDir(t, fs)
	openWhole(t, d, Config{}, 0)
	if _, err := fs.Stat(name); err == nil {
		t.Fatal("it is still there")
	}
	mustClose(t, d)
}

// proveSwap: whatever the power fails at while segments are replaced, and while
// that is finished or taken back by the next start, the log is whole.
func proveSwap(t testing.TB, w *world) {
	for _, keep := range []float64{0.5, 0} {
		fs := w.disk()
		d, l, want := swapLog(t, fs)
		t.Cleanup(func() { _ = d.Close() })
		forceCheckpoint(t, d)
		c := &cutter{}
		w.fault(fs, c.before(fs, keep))
		if err := rewriteFirst(t, l, 3); err != nil {
			t.Fatal(err)
		}
		c.say(func(p *promise) { p.gone = true }) // the old segments are
		mustClose(t, d)
		for _, left := range c.cuts {
			again := &cutter{promise: left.promise}
			w.fault(left.fs, again.before(left.fs, keep))
			judgeSwap(t, w, left, want)
			for i := left.n % 43; i < len(again.cuts); i += 43 {
				twice := again.cuts[i]
				w.fault(twice.fs, nil)
				judgeSwap(t, w, twice, want)
			}
		}
	}
}

// before has a cutter cut fs before each operation that changes something, and
// several times before the sync of a directory, for then there are many ways in
// which names are kept and lost.
func (c *cutter) before(fs *disk.Mem, keep float64) func(disk.Op) error {
	return func(op disk.Op) error {
		switch {
		case op.Kind == disk.OpSyncDir && keep > 0:
			c.at(fs, slices.Repeat([]float64{keep}, 4))
		case op.Kind.Changes():
			c.at(fs, []float64{keep})
		}
		return nil
	}
}

// judgeSwap opens what is left of a log after its segments were replaced, or not.
func judgeSwap(t testing.TB, w *world, left cut, want []record.Batch) {
	if r := check(t, left.fs); r.Damages > 0 {
		t.Fatalf("cut before operation %d:\n%s", left.n, r.lines())
	}
	d := w.openDir(t, left.fs)
	l := openWhole(t, d, Config{}, 0)
	m := model{batches: want}
	m.check(t, l, rand.New(rand.NewPCG(1, 1)))
	if gen := l.mu.segments[0].gen; left.promise.gone && gen == 0 {
		t.Fatalf("cut before operation %d: the old segments came back", left.n)
	}
	mustClose(t, d)
	if _, err := left.fs.Stat(path.Join(l.path, swapFile)); err == nil {
		t.Fatalf("cut before operation %d: %s stays after a start", left.n, swapFile)
	}
}
