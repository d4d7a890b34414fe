package storage

import (
	"bytes"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// proveSnapshot: a producer is known when its batches were deleted and the power
// failed.
func proveSnapshot(t testing.TB, w *world) {
	fs := w.disk()
	cfg := Config{SegmentBytes: 100}
	d := w.openDir(t, fs)
	l := openWhole(t, d, cfg, 0)
	sent := withProducer(batchOf(t, record.None, nil, strings.Repeat("p", 100)), 7, 0, 0)
	mustAppend(t, l, sent)
	for range 4 {
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 100)))
		waitDurable(t, l)
	}
	if err := l.SetStart(4); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the segments to leave", func() bool { return l.Segments() == 1 })
	forceCheckpoint(t, d)
	eventually(t, "the files to go", func() bool {
		_, err := fs.Stat(path.Join(l.path, segmentName(0, 0)+logSuffix))
		return err != nil
	})
	var cuts []*disk.Mem
	for seed := range uint64(40) {
		cuts = append(cuts, fs.CrashClone(0.5, rand.New(rand.NewPCG(seed, 0))))
	}
	mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 100)))
	waitDurable(t, l) // with its segment's name, and with the others' going
	cuts = append(cuts, fs.CrashClone(0, nil))
	mustClose(t, d)
	for i, left := range cuts {
		d := w.openDir(t, w.reopened(left))
		l := openWhole(t, d, cfg, 4)
		if at := mustAppend(t, l, sent); !at.Duplicate || at.Base != 0 {
			t.Fatalf("cut %d: a batch that was deleted is taken again: %+v", i, at)
		}
		mustClose(t, d)
	}
}

// proveStale: a snapshot of what the log has lost does not come back when the
// log has grown past it again.
func proveStale(t testing.TB, w *world) {
	fs := w.disk()
	d := w.openDir(t, fs)
	l := openWhole(t, d, Config{}, 0)
	mustAppend(t, l, batchOf(t, record.None, nil, "v"))
	kept := l.Size()
	lost := withProducer(batchOf(t, record.None, nil, "p"), 7, 0, 0)
	mustAppend(t, l, bytes.Clone(lost))
	mustClose(t, d)
	stem := path.Join(l.path, segmentName(0, 0))
	p := fileBytes(t, fs, stem+logSuffix)
	setFile(t, fs, stem+logSuffix, p[:kept])
	if err := fs.SyncAll("/"); err != nil { // the kernel has had its time
		t.Fatal(err)
	}
	remove(t, fs, path.Join("/data", cleanName), checkpointSlot("/data", 0), checkpointSlot("/data", 1))

	d = w.openDir(t, fs)
	l = openWhole(t, d, Config{}, 0)
	forceCheckpoint(t, d)
	mustAppend(t, l, batchOf(t, record.None, nil, "w"))
	waitDurable(t, l)
	left := w.reopened(fs.CrashClone(0, nil))
	mustClose(t, d)
	d = w.openDir(t, left)
	if at := mustAppend(t, openWhole(t, d, Config{}, 0), lost); at.Duplicate {
		t.Fatalf("a batch that was lost is said to be there: %+v", at)
	}
	mustClose(t, d)
}
