package storage

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"path"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

var lyingProof = disktest.Proof{Name: "TestLyingDisk", Short: 40, Body: proveLying}

// TestLyingDisk proves that a disk which ignored syncs for a while before the
// power failed costs at most what was written then: every record from before is
// read as ever, whatever is read was appended, and where anything on the disk
// tells that more was there, it is said, as damage or as a torn end.
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

// judgeLying opens what is left and reads all of it.
func judgeLying(t testing.TB, left *disk.Mem, m *model, honest int64) {
	lines := &logLines{}
	told := witnessed(left)
	d := openDir(t, left, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(lines, nil)) })
	defer func() { _ = d.Close() }()
	l := openLog(t, d, scriptConfig)
	o := l.Offsets()
	reported := l.Fenced()
	for from := o.Start; from < o.End; {
		s, err := l.Read(from, 1, o.End)
		if hole, is := errors.AsType[*CorruptError](err); is {
			if hole.From < honest {
				t.Fatalf("a hole from %d to %d, and all up to %d was durable before the disk lied", hole.From, hole.To, honest)
			}
			reported = true
			from = max(from+1, min(hole.To, o.End))
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
	if o.End < honest {
		t.Fatalf("the log is %+v, and was durable up to %d before the disk lied", o, honest)
	}
	torn := lines.count("bytes_cut=0") < lines.count("log was recovered") || lines.count("segments_quarantined=0") < lines.count("log was recovered")
	if end := min(o.End, m.end()); told > end && !reported && !torn {
		t.Fatalf("the log is %+v, the disk tells of records up to %d, and nothing says that they are lost:\n%s", o, told, lines.text.String())
	}
}

// witnessed is the greatest offset of which anything on the disk tells that
// there was a record in front of it: a checkpoint, a seal, a segment that has
// something in it, or a header there.
func witnessed(fs *disk.Mem) (told int64) {
	dir := path.Join("/data", logsDir, testID.dirName())
	if r, ok := readCheckpoint(fs, "/data").records[testID]; ok {
		told = r.recoveryOffset
	}
	for _, s := range segmentsIn(fs, dir) {
		if p, err := readFile(fs, s.stem+indexSuffix, maxSegmentBytes); err == nil {
			if h, err := decodeSeal(p, indexMagic); err == nil {
				told = max(told, h.next)
			}
		}
		p, err := readFile(fs, s.logPath(), maxSegmentBytes)
		if err != nil || isZero(p) {
			continue // a name alone says nothing of records that count
		}
		told = max(told, s.base)
		for next := s.base; !isZero(p); {
			b, rest, failed := record.Next(p)
			if failed != nil || b.BaseOffset() != next {
				break
			}
			next, p = b.NextOffset(), rest
			told = max(told, next)
		}
	}
	return told
}
