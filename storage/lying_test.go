package storage

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

var lyingProof = disktest.Proof{Name: "TestLyingDisk", Short: 40, Body: proveLying}

// TestLyingDisk proves that a disk which ignored syncs for a while before the
// power failed costs at most what was written then, or is reported as damage:
// what can be read is what was appended.
func TestLyingDisk(t *testing.T) { disktest.Run(t, lyingProof) }

func proveLying(t testing.TB, seed uint64, c *disktest.Counts) {
	rng := rand.New(rand.NewPCG(seed, 0))
	fs := disk.NewMem()
	d := openDir(t, fs)
	defer func() { _ = d.Close() }()
	if err := d.Create([]LogName{{ID: testID, Topic: "orders"}}); err != nil {
		t.Fatal(err)
	}
	l := openLog(t, d, scriptConfig)
	var m model
	fill := func(n int) {
		for range n {
			b := batchOf(t, record.None, nil, string(bytes.Repeat([]byte("v"), rng.IntN(500))), "second")
			mustAppend(t, l, b)
			m.add(b)
			if rng.IntN(4) == 0 {
				forceCheckpoint(t, d)
			}
		}
		waitDurable(t, l)
	}
	fill(rng.IntN(8))
	honest := l.Offsets().Durable
	fs.SetFault(func(op disk.Op) error {
		if disktest.Asks(op.Kind) && op.Kind != disk.OpRename {
			return disk.ErrSkip
		}
		return nil
	})
	fill(1 + rng.IntN(8))
	left := fs.CrashClone([]float64{0, 0.1, 0.5, 0.9}[rng.IntN(4)], rng)
	fs.SetFault(nil)
	c.Crashes.Add(1)
	c.Operations.Add(m.end())
	judgeLying(t, left, &m, honest)
}

// judgeLying opens what is left, if it opens, and reads all of it.
func judgeLying(t testing.TB, left *disk.Mem, m *model, honest int64) {
	d := openDir(t, left)
	defer func() { _ = d.Close() }()
	l, err := d.OpenLog(t.Context(), testID, "orders", scriptConfig, 0)
	if errors.Is(err, ErrCorrupt) {
		return // it is reported
	}
	if err != nil {
		t.Fatal(err)
	}
	o := l.Offsets()
	reported := false
	for from := o.Start; from < o.End; {
		s, err := l.Read(from, 1, o.End)
		if errors.Is(err, ErrCorrupt) {
			reported = true
			from++
			continue
		}
		if err != nil || s == nil {
			t.Fatalf("read from %d of %+v: %v", from, o, err)
		}
		p := make([]byte, s.Len())
		_, err = s.ReadAt(p, 0)
		s.Release()
		if err != nil {
			t.Fatal(err)
		}
		if err := m.checkRead(p, from, 1, o.End); err != nil {
			t.Fatalf("read from %d: %v", from, err)
		}
		from = record.Batch(p).NextOffset()
	}
	if o.End < honest && !reported {
		t.Fatalf("the log is %+v, and was durable up to %d before the disk lied", o, honest)
	}
}
