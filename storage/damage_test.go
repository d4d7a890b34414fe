package storage

import (
	"errors"
	"fmt"
	"math"
	"path"
	"syscall"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// damagedLog is a log of 12 batches in four sealed segments and an active one, as
// a clean stop left it, and the place of its directory.
func damagedLog(t *testing.T) (*disk.Mem, *model, string) {
	t.Helper()
	fs, m := disk.NewMem(), &model{}
	d := openDir(t, fs)
	l := openLog(t, d, damageConfig)
	for i := range 12 {
		b := batchOf(t, record.None, nil, fmt.Sprintf("value %02d", i))
		if _, err := l.Append(Append{Batch: b, Epoch: 1}); err != nil {
			t.Fatal(err)
		}
		m.add(b)
	}
	waitDurable(t, l)
	mustClose(t, d)
	return fs, m, path.Join("/data/logs", testID.dirName())
}

var damageConfig = Config{SegmentBytes: 260, IndexInterval: 1}

// readAround reads a log with holes from each offset and compares all that it
// gives out with the model. It returns which offsets cannot be read.
func readAround(t *testing.T, l *Log, m *model) map[int64]bool {
	t.Helper()
	lost := map[int64]bool{}
	end := l.Offsets().End
	for from := range m.end() {
		s, err := l.Read(from, math.MaxInt32, end)
		if errors.Is(err, ErrCorrupt) {
			lost[from] = true
			continue
		}
		if err != nil || s == nil {
			t.Fatalf("read from %d: %v, %v", from, s, err)
		}
		p := make([]byte, s.Len())
		if _, err := s.ReadAt(p, 0); err != nil {
			t.Fatal(err)
		}
		s.Release()
		if err := m.checkRead(p, from, math.MaxInt32, end); err != nil {
			t.Fatalf("read from %d: %v; holes %+v", from, err, l.Holes())
		}
	}
	return lost
}

// TestFlippedHeader proves B1: whichever bit of a batch's header flips in a
// sealed segment while the server is down, no read gives out wrong bytes, only
// that batch is lost, and a repair keeps the others.
func TestFlippedHeader(t *testing.T) {
	unraced(t)
	t.Parallel()
	left, m, dir := damagedLog(t)
	size := int64(len(m.batches[0]))
	per := 260 / size
	for bit := range int64(8 * record.HeaderSize) {
		fs := left.CrashClone(1, nil)
		name := path.Join(dir, segmentName(per, 0)+logSuffix)
		p := fileBytes(t, fs, name)
		p[size+bit/8] ^= 1 << (bit % 8) // of the segment's second batch
		setFile(t, fs, name, p)
		d := openDir(t, fs)
		l := openLog(t, d, damageConfig)
		lost := readAround(t, l, m)
		// Of two epochs that fall, either may be the one that is wrong.
		if want := per + 1; !lost[want] || len(lost) > 1 && (bit/8 < 12 || bit/8 > 15 || len(lost) > 2) {
			t.Fatalf("bit %d: lost %v, want %d", bit, lost, want)
		}
		if _, err := l.Append(Append{Batch: batchOf(t, record.None, nil, "v"), Epoch: 1}); !errors.Is(err, ErrDamaged) {
			t.Fatalf("bit %d: append: %v", bit, err)
		}
		if bit%40 == 0 {
			done, err := l.Repair(t.Context())
			if err != nil || len(done.Holes) != 1 {
				t.Fatalf("bit %d: %+v, %v", bit, done, err)
			}
			checkRepaired(t, l, m, lost)
			mustClose(t, d)
			d = openDir(t, fs)
			l = openLog(t, d, damageConfig)
			checkRepaired(t, l, m, lost)
		}
		mustClose(t, d)
		if bit%40 == 0 {
			r, err := Check(t.Context(), CheckOptions{FS: fs, Path: "/data"})
			if err != nil || r.Damages > 0 {
				t.Fatalf("bit %d: %v\n%s", bit, err, r.lines())
			}
		}
	}
}

// checkRepaired proves that a repaired log has all of the model but what was
// lost, in its place, and takes records behind it.
func checkRepaired(t *testing.T, l *Log, m *model, lost map[int64]bool) {
	t.Helper()
	if l.Fenced() || len(l.Holes()) > 0 {
		t.Fatalf("it is still fenced: %+v", l.Holes())
	}
	got := map[int64]string{}
	end := l.Offsets().End
	for _, b := range readAll(t, l, l.Offsets().Start, end, math.MaxInt32) {
		if b.Count() > 0 {
			got[b.BaseOffset()] = string(b)
		}
	}
	for _, b := range m.batches {
		if at := b.BaseOffset(); lost[at] == (got[at] == string(b)) {
			t.Fatalf("offset %d: %q, lost %v", at, got[at], lost[at])
		}
	}
	if end < m.end() {
		t.Fatalf("it ends at %d, before %d", end, m.end())
	}
	a, err := l.Append(Append{Batch: batchOf(t, record.None, nil, "after"), Epoch: 1})
	if err != nil || a.Base != end {
		t.Fatalf("appended at %d, want %d: %v", a.Base, end, err)
	}
	waitDurable(t, l)
}

// A repair that finds no file descriptors for the sync of a directory waits for
// some, and the data directory does not fail.
func TestRepairWithoutDescriptors(t *testing.T) {
	t.Parallel()
	fs, m, dir := damagedLog(t)
	name := path.Join(dir, segmentName(0, 0)+logSuffix)
	p := fileBytes(t, fs, name)
	p[70] ^= 1
	setFile(t, fs, name, p)
	d := openDir(t, fs)
	l := openLog(t, d, damageConfig)
	readAround(t, l, m)
	calls, noted := 0, false
	fs.SetFault(func(op disk.Op) error {
		noted = noted || op.Kind == disk.OpRename && path.Base(op.To) == swapFile
		switch {
		case op.Kind != disk.OpSyncDir:
		case noted: // the one of COMPACT, which gives up at once
			noted = false
		default:
			if calls++; calls%4 != 0 {
				return syscall.EMFILE
			}
		}
		return nil
	})
	if _, err := l.Repair(t.Context()); err != nil || d.Failed() != nil {
		t.Fatalf("repair: %v, failed: %v", err, d.Failed())
	}
	fs.SetFault(nil)
	if calls < 8 {
		t.Errorf("%d syncs of directories", calls)
	}
	checkRepaired(t, l, m, map[int64]bool{0: true})
	mustClose(t, d)
}

// A hole that is found while a repair ends keeps the log fenced, and the next
// repair accepts it; and no lock is held while a hole is told.
func TestHoleFoundDuringRepair(t *testing.T) {
	t.Parallel()
	fs, m, dir := damagedLog(t)
	size := int64(len(m.batches[0]))
	per := 260 / size
	p := fileBytes(t, fs, path.Join(dir, segmentName(per, 0)+logSuffix))
	p[70] ^= 1
	setFile(t, fs, path.Join(dir, segmentName(per, 0)+logSuffix), p)
	told := 0
	d := openDir(t, fs, func(o *Options) {
		o.OnDamage = func(l *Log, _ Hole) {
			told++
			if !l.examining.TryLock() {
				t.Error("told under the lock that a read may need")
				return
			}
			l.examining.Unlock()
		}
	})
	l := openLog(t, d, damageConfig)
	readAround(t, l, m)
	if err := l.repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := l.mu.segments[0]
	l.wound(first, gap{to: point{offset: 1, pos: size}, why: errChanged})
	if err := l.unfence(); !errors.Is(err, ErrDamaged) || !l.Fenced() {
		t.Fatalf("unfence: %v, fenced %v", err, l.Fenced())
	}
	if _, err := l.Repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkRepaired(t, l, m, map[int64]bool{0: true, per: true})
	if told != 2 {
		t.Errorf("told of %d holes", told)
	}
	mustClose(t, d)
}

// TestRepairCrash proves that a repair that dies at any operation leaves a log
// that is repaired or can be, with every record that was not lost.
func TestRepairCrash(t *testing.T) {
	t.Parallel()
	left, m, dir := damagedLog(t)
	size := int64(len(m.batches[0]))
	per := 260 / size
	name := path.Join(dir, segmentName(per, 0)+logSuffix)
	p := fileBytes(t, left, name)
	p[size+70] ^= 1
	setFile(t, left, name, p)
	lost := map[int64]bool{per + 1: true}
	for n := 1; ; n++ {
		fs := left.CrashClone(1, nil)
		d := openDir(t, fs)
		l := openLog(t, d, damageConfig)
		readAround(t, l, m)
		var clone *disk.Mem
		count := 0
		fs.SetFault(func(disk.Op) error {
			if count++; count == n {
				clone = fs.CrashClone(0, nil)
			}
			return nil
		})
		if _, err := l.Repair(t.Context()); err != nil {
			t.Fatal(err)
		}
		fs.SetFault(nil)
		mustClose(t, d)
		if clone == nil {
			break
		}
		d = openDir(t, clone)
		l = openLog(t, d, damageConfig)
		if s, err := l.Read(per+1, 1, l.Offsets().End); err == nil { // what was not durable may not be known any more
			s.Release()
		}
		if l.Fenced() {
			if got := readAround(t, l, m); len(got) != 1 || !got[per+1] {
				t.Fatalf("operation %d: lost %v", n, got)
			}
		}
		if _, err := l.Repair(t.Context()); err != nil {
			t.Fatalf("operation %d: %v", n, err)
		}
		checkRepaired(t, l, m, lost)
		mustClose(t, d)
	}
}

// proveAnew: a log that was lost begins anew at its end, and what was left of it
// is in the quarantine, whatever happens after the repair.
func proveAnew(t testing.TB, w *world) {
	fs := w.disk()
	d := w.openDir(t, fs)
	if err := d.Create([]LogName{{ID: testID, Topic: "orders"}}); err != nil {
		t.Fatal(err)
	}
	l := openLog(t, d, Config{})
	for range 3 {
		mustAppend(t, l, batchOf(t, record.None, nil, "v"))
	}
	waitDurable(t, l)
	mustClose(t, d)
	if err := fs.Remove(path.Join(l.path, segmentName(0, 0)+logSuffix)); err != nil {
		t.Fatal(err)
	}
	d = w.openDir(t, fs)
	l = openLog(t, d, Config{})
	done, err := l.Repair(t.Context())
	if err != nil || done.Start != 3 || len(done.Holes) != 1 || done.Holes[0].To != 3 {
		t.Fatalf("%+v, %v", done, err)
	}
	left := fs.CrashClone(0, nil)
	if names, err := left.List(path.Join("/data", quarantineDir)); err != nil || len(names) != 1 {
		t.Fatalf("in quarantine: %v, %v", names, err)
	}
	d = w.openDir(t, w.reopened(left))
	l = openLog(t, d, Config{})
	if o := l.Offsets(); l.Fenced() || o.Start != 3 || o.End != 3 {
		t.Fatalf("%+v, holes %+v", o, l.Holes())
	}
	if a := mustAppend(t, l, batchOf(t, record.None, nil, "v")); a.Base != 3 {
		t.Fatalf("appended at %d", a.Base)
	}
}
