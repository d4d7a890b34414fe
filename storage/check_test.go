package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

var checkConfig = Config{SegmentBytes: 900, IndexInterval: 150}

// fixtureStart is the start of the fixture's log, and fixtureEnd its end.
const fixtureStart, fixtureEnd = 21, 56

// checkFixture is a data directory after a clean stop: a log with sealed
// segments, a growing one that has index entries and producers, and a start
// that was raised; and a second log.
func checkFixture(t testing.TB) *disk.Mem {
	t.Helper()
	fs := disk.NewMem()
	d := openDir(t, fs)
	other := ID{Topic: TopicID{9}, Partition: 1}
	if err := d.Create([]LogName{{ID: testID, Topic: "orders"}, {ID: other, Topic: "other"}}); err != nil {
		t.Fatal(err)
	}
	l := openLog(t, d, checkConfig)
	for i := range 28 {
		b := batchOf(t, record.Codec(i%5), []int64{int64(1000 + 10*i), int64(900 + 20*i)}, strings.Repeat("v", 60+i), "second")
		if i%3 == 0 {
			b = withProducer(b, 7, 0, int32(i/3*2))
		}
		if _, err := l.Append(Append{Batch: b, Epoch: int32(i / 5)}); err != nil {
			t.Fatal(err)
		}
	}
	waitDurable(t, l)
	eventually(t, "the seals", func() bool { return sealedCount(l) == l.Segments()-1 })
	if err := l.SetStart(fixtureStart); err != nil {
		t.Fatal(err)
	}
	forceCheckpoint(t, d) // one for each slot
	o, err := d.OpenLog(t.Context(), other, "other", checkConfig, 0)
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, o, batchOf(t, record.None, nil, "one"))
	forceCheckpoint(t, d)
	mustClose(t, d)
	return fs
}

// firstBase is where the first segment of the fixture's log begins.
func firstBase(t testing.TB, m disk.FS) int64 {
	t.Helper()
	names, err := m.List(path.Join("/data/logs", testID.dirName()))
	if err != nil {
		t.Fatal(err)
	}
	base, _, _, ok := parseSegmentName(names[0])
	if !ok {
		t.Fatalf("%v", names)
	}
	return base
}

func check(t testing.TB, fs disk.FS, change ...func(*CheckOptions)) *Report {
	t.Helper()
	o := CheckOptions{FS: fs, Path: "/data", Records: true}
	for _, c := range change {
		c(&o)
	}
	r, err := Check(context.WithoutCancel(t.Context()), o)
	if err != nil {
		t.Fatalf("check: %v", err)
	}
	return r
}

// lines are the findings, one a line, with paths below the directory.
func (r *Report) lines() string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintln(&b, strings.ReplaceAll(f.String(), "/data/", ""))
	}
	return b.String()
}

// TestCheckClean proves that a directory after a clean stop has no findings,
// that everything in it is counted, that progress ends at the total, and that
// nothing is changed or even opened for writing.
func TestCheckClean(t *testing.T) {
	t.Parallel()
	m := checkFixture(t)
	before := disktest.Tree(t, m, "/data")
	m.SetFault(func(op disk.Op) error {
		switch op.Kind {
		case disk.OpWrite, disk.OpTruncate, disk.OpAllocate, disk.OpSync, disk.OpSyncData, disk.OpSyncDir, disk.OpSyncAll,
			disk.OpMkdir, disk.OpRemove, disk.OpRename, disk.OpLink:
			return syscall.EROFS
		default:
			return nil
		}
	})
	var progress []CheckProgress
	for _, deep := range []bool{false, true} {
		progress = nil
		r := check(t, m, func(o *CheckOptions) {
			o.Records = deep
			o.Progress = func(p CheckProgress) { progress = append(progress, p) }
		})
		if len(r.Findings) > 0 || r.Damages > 0 || !r.Clean || r.Identity.NodeID != 1 {
			t.Fatalf("clean %t, node %d:\n%s", r.Clean, r.Identity.NodeID, r.lines())
		}
		// The segments below the start went.
		first := firstBase(t, m)
		if first == 0 || first > fixtureStart || r.Partitions != 2 || r.Segments < 4 ||
			r.Batches != (fixtureEnd-first)/2+1 || r.Records != fixtureEnd-first+1 {
			t.Errorf("counted %d partitions, %d segments, %d batches, %d records", r.Partitions, r.Segments, r.Batches, r.Records)
		}
		if last := progress[len(progress)-1]; last.Done != last.Total || last.Done != r.Bytes {
			t.Errorf("progress ended at %+v, %d bytes hold", last, r.Bytes)
		}
	}
	m.SetFault(nil)
	after := disktest.Tree(t, m, "/data")
	for name, was := range before {
		if after[name] != was {
			t.Errorf("%s was changed", name)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d files before, %d after", len(before), len(after))
	}
}

// TestCheckFlips proves that a changed bit anywhere in the directory is found.
func TestCheckFlips(t *testing.T) {
	unraced(t)
	t.Parallel()
	m := checkFixture(t)
	rng := rand.New(rand.NewPCG(3, 3))
	for name, content := range disktest.Tree(t, m, "/data") {
		if content == "" || path.Base(name) == lockFile {
			continue // the lock file has a process id for people
		}
		p := []byte(content)
		for at := range p {
			if path.Ext(name) == logSuffix && at%61 > 25 && at%3 != 0 {
				continue // every byte of the first headers, every third of the rest
			}
			flipped := bytes.Clone(p)
			flipped[at] ^= 1 << rng.IntN(8)
			clone := m.CrashClone(1, nil)
			setFile(t, clone, name, flipped)
			r, err := Check(t.Context(), CheckOptions{FS: clone, Path: "/data"})
			if err == nil && len(r.Findings) == 0 {
				t.Fatalf("byte %d of %s is missed", at, name)
			}
			if err != nil && !errors.As(err, new(*DamagedError)) {
				t.Fatalf("byte %d of %s: %v", at, name, err)
			}
			if err == nil && path.Ext(name) == logSuffix && r.Damages == 0 {
				t.Fatalf("byte %d of %s is no damage:\n%s", at, name, r.lines())
			}
		}
	}
}

// TestCheckDamage is the table of what is said about directories that are
// damaged in some way, worst first: everything that is wrong, not only the
// first of it.
func TestCheckDamage(t *testing.T) {
	t.Parallel()
	logDir := path.Join("/data/logs", testID.dirName())
	segs := func(t *testing.T, m *disk.Mem) (stems []string) {
		names, err := m.List(logDir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			if stem, ok := strings.CutSuffix(n, logSuffix); ok {
				stems = append(stems, path.Join(logDir, stem))
			}
		}
		return stems
	}
	change := func(t *testing.T, m *disk.Mem, name string, fn func(p []byte) []byte) {
		setFile(t, m, name, fn(fileBytes(t, m, name)))
	}
	swap := func(t *testing.T, m *disk.Mem, a, b string) {
		p, q := fileBytes(t, m, a), fileBytes(t, m, b)
		setFile(t, m, a, q)
		setFile(t, m, b, p)
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what    string
		damage  func(t *testing.T, m *disk.Mem)
		want    []string // each is part of some line
		damages int      // at least; 0 is none
	}{
		{"two batches in two segments", func(t *testing.T, m *disk.Mem) {
			for _, s := range segs(t, m)[:2] {
				change(t, m, s+logSuffix, func(p []byte) []byte { p[100] ^= 1; return p })
			}
		}, []string{"checksum of the bytes", "it goes on at byte"}, 2},
		{"a length", func(t *testing.T, m *disk.Mem) {
			change(t, m, segs(t, m)[1]+logSuffix, func(p []byte) []byte { p[8] = 0x7f; return p })
		}, []string{"does not hold", "it goes on at byte"}, 1},
		{"a segment cut short", func(t *testing.T, m *disk.Mem) {
			change(t, m, segs(t, m)[1]+logSuffix, func(p []byte) []byte { return p[:len(p)-3] })
		}, []string{"no batch behind it does", "are lost"}, 1},
		{"a segment missing in the middle", func(t *testing.T, m *disk.Mem) {
			must(t, m.Remove(segs(t, m)[1]+logSuffix))
		}, []string{"are missing", "index without a log"}, 1},
		{"the first segment missing", func(t *testing.T, m *disk.Mem) {
			must(t, m.Remove(segs(t, m)[0]+logSuffix))
		}, []string{"before it are missing"}, 1},
		{"the last segment missing", func(t *testing.T, m *disk.Mem) {
			s := segs(t, m)
			must(t, m.Remove(s[len(s)-1]+logSuffix))
		}, []string{"are missing"}, 1},
		{"all segments missing", func(t *testing.T, m *disk.Mem) {
			for _, s := range segs(t, m) {
				must(t, m.Remove(s+logSuffix))
			}
		}, []string{"all segments are missing"}, 1},
		{"a partition missing", func(t *testing.T, m *disk.Mem) {
			must(t, m.RemoveAll(logDir))
		}, []string{"directory is missing"}, 1},
		{"two segments swapped", func(t *testing.T, m *disk.Mem) {
			swap(t, m, segs(t, m)[0]+logSuffix, segs(t, m)[1]+logSuffix)
		}, []string{"base offset is"}, 2},
		{"two indexes swapped", func(t *testing.T, m *disk.Mem) {
			swap(t, m, segs(t, m)[0]+indexSuffix, segs(t, m)[1]+indexSuffix)
		}, []string{"the index is of the segment at offset"}, 0},
		{"an index that points elsewhere", func(t *testing.T, m *disk.Mem) {
			s := segs(t, m)[0] + indexSuffix
			h, err := decodeSeal(fileBytes(t, m, s), indexMagic)
			must(t, err)
			p := fileBytes(t, m, s)[sealSize:]
			p[4]++
			must(t, writeIndexFile(m, s, indexMagic, h, int(h.count), p))
		}, []string{"entry 1 has offset"}, 0},
		{"a time index that is wrong", func(t *testing.T, m *disk.Mem) {
			s := segs(t, m)[0] + timeSuffix
			h, err := decodeSeal(fileBytes(t, m, s), timeMagic)
			must(t, err)
			p := fileBytes(t, m, s)[sealSize:]
			p[0]++
			must(t, writeIndexFile(m, s, timeMagic, h, int(h.count), p))
		}, []string{"entry 1 has timestamp"}, 0},
		{"an index missing, one empty and one cut", func(t *testing.T, m *disk.Mem) {
			s := segs(t, m)
			must(t, m.Remove(s[0]+indexSuffix))
			setFile(t, m, s[1]+timeSuffix, nil)
			change(t, m, s[2]+indexSuffix, func(p []byte) []byte { return p[:len(p)-1] })
		}, []string{"the index is missing", "not sealed as the other", "has not the size"}, 0},
		{"partitions swapped", func(t *testing.T, m *disk.Mem) {
			other := path.Join("/data/logs", ID{Topic: TopicID{9}, Partition: 1}.dirName())
			must(t, m.Rename(logDir, "/data/logs/x"))
			must(t, m.Rename(other, logDir))
			must(t, m.Rename("/data/logs/x", other))
		}, []string{"the directory's name"}, 3},
		{"checkpoint slots swapped", func(t *testing.T, m *disk.Mem) {
			swap(t, m, "/data/checkpoint.0", "/data/checkpoint.1")
		}, []string{"does not belong here", "takes the stop for unclean"}, 0},
		{"garbage behind the active segment", func(t *testing.T, m *disk.Mem) {
			s := segs(t, m)
			change(t, m, s[len(s)-1]+logSuffix, func(p []byte) []byte { return append(p, bytes.Repeat([]byte{0xa5}, 100)...) })
		}, []string{"100 bytes behind the last batch"}, 0},
		{"zeros behind a sealed segment", func(t *testing.T, m *disk.Mem) {
			change(t, m, segs(t, m)[0]+logSuffix, func(p []byte) []byte { return append(p, make([]byte, 100)...) })
		}, []string{"100 zeros behind the last batch"}, 0},
		{"unknown things", func(t *testing.T, m *disk.Mem) {
			for _, name := range []string{"/data/notes", "/data/logs/x", path.Join(logDir, "x"), segs(t, m)[0][:len(segs(t, m)[0])-1] + "1.log"} {
				setFile(t, m, name, []byte("x"))
			}
		}, []string{"notes: it is nothing of Leat's", "x: it is no partition's directory", "/x: it is nothing of Leat's", "rewritten segment that is no part of the log"}, 0},
		{"no identity", func(t *testing.T, m *disk.Mem) {
			must(t, m.Rename("/data/meta.json", "/data/meta.json.tmp"))
		}, []string{"it is missing, but logs/ is not empty", "left over"}, 1},
		{"no lock", func(t *testing.T, m *disk.Mem) { must(t, m.Remove("/data/LOCK")) }, []string{"no server was kept away"}, 0},
	} {
		t.Run(c.what, func(t *testing.T) {
			m := checkFixture(t)
			c.damage(t, m)
			r := check(t, m)
			lines := r.lines()
			for _, want := range c.want {
				if !strings.Contains(lines, want) {
					t.Errorf("nothing about %q:\n%s", want, lines)
				}
			}
			if r.Damages < c.damages || c.damages == 0 && r.Damages > 0 {
				t.Errorf("%d damages, want %d:\n%s", r.Damages, c.damages, lines)
			}
		})
	}
}

// TestCheckRefuses proves that Check tells what it cannot judge from what is
// damaged: a directory in use, of somebody else, of a newer version, or none.
func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	_, err := Check(t.Context(), CheckOptions{FS: m, Path: "/data"})
	if busy := new(BusyError); !errors.As(err, &busy) || busy.PID == 0 {
		t.Errorf("while it is open: %v", err)
	}
	mustClose(t, d)
	for name, content := range map[string]string{"/empty/lost+found": "", "/other/notes.txt": "x", "/file": "x"} {
		if err := m.MkdirAll(path.Dir(name)); err != nil {
			t.Fatal(err)
		}
		setFile(t, m, name, []byte(content))
	}
	setFile(t, m, "/data/meta.json", bytes.Replace(fileBytes(t, m, "/data/meta.json"), []byte(`"min_reader": 1`), []byte(`"min_reader": 9`), 1))
	for _, name := range []string{"/empty", "/other", "/file", "/data"} {
		if _, err := Check(t.Context(), CheckOptions{FS: m, Path: name}); !errors.As(err, new(*DamagedError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Check(t.Context(), CheckOptions{FS: m, Path: "/none"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Check(ctx, CheckOptions{FS: checkFixture(t), Path: "/data"}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestCheckReadErrors proves that a file or directory that cannot be read is a
// finding and does not keep the others from being looked at.
func TestCheckReadErrors(t *testing.T) {
	t.Parallel()
	m := checkFixture(t)
	var failed []string
	m.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpRead && path.Ext(op.Path) == logSuffix && !slices.Contains(failed, op.Path) {
			failed = append(failed, op.Path)
			return syscall.EIO
		}
		return nil
	})
	r := check(t, m)
	m.SetFault(nil)
	if r.Damages != len(failed) || len(failed) != r.Segments {
		t.Errorf("%d of %d segments cannot be read, %d damages:\n%s", len(failed), r.Segments, r.Damages, r.lines())
	}
	m.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpList && op.Path != "/data" {
			return syscall.EIO
		}
		return nil
	})
	if r := check(t, m); r.Damages == 0 {
		t.Errorf("directories that cannot be read:\n%s", r.lines())
	}
}

// TestCheckOnDisk proves on the operating system's file system that a server
// keeps Check out and Check a server, and that not even the lock file changes.
func TestCheckOnDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func(path string) (*Dir, error) { return Open(t.Context(), Options{Path: path, Logger: quiet()}) }
	d, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	l := openLog(t, d, checkConfig)
	for range 20 {
		mustAppend(t, l, batchOf(t, record.Zstd, nil, strings.Repeat("v", 300), "second"))
	}
	if _, err := Check(t.Context(), CheckOptions{Path: dir}); !errors.Is(err, ErrBusy) {
		t.Errorf("check of an open directory: %v", err)
	}
	mustClose(t, d)
	lock := path.Join(dir, lockFile)
	before, err := os.Stat(lock)
	if err != nil {
		t.Fatal(err)
	}
	kept := false
	r, err := Check(t.Context(), CheckOptions{Path: dir, Progress: func(CheckProgress) {
		_, err := open(dir)
		kept = errors.Is(err, ErrBusy)
	}})
	if err != nil || len(r.Findings) > 0 || r.Records != 40 {
		t.Errorf("%v, %+v", err, r)
	}
	if after, err := os.Stat(lock); err != nil || !kept || !after.ModTime().Equal(before.ModTime()) || after.Size() != before.Size() {
		t.Errorf("server kept out %t; lock file before %v, after %v, %v", kept, before, after, err)
	}
}

// TestCheckDeep proves that only the deep check finds records that no reader
// can take apart: leat.validate=header let them in, the checksum holds.
func TestCheckDeep(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	cfg := checkConfig
	cfg.HeaderOnly = true
	l := openLog(t, d, cfg)
	b := batchOf(t, record.None, nil, "value")
	b[record.HeaderSize] = 0x7e // the record's length
	b.SetMaxTimestamp(b.MaxTimestamp(), false)
	mustAppend(t, l, batchOf(t, record.None, nil, "sound"))
	mustAppend(t, l, b)
	mustClose(t, d)
	if r := check(t, m, func(o *CheckOptions) { o.Records = false }); len(r.Findings) > 0 {
		t.Errorf("the plain check:\n%s", r.lines())
	}
	if r := check(t, m); r.Damages != 1 || !strings.Contains(r.lines(), "the records of the batch at offset 1 cannot be read") {
		t.Errorf("the deep check:\n%s", r.lines())
	}
}

// TestCheckManyFindings proves that a report does not grow without bound.
func TestCheckManyFindings(t *testing.T) {
	t.Parallel()
	c := &checker{report: &Report{}}
	for range maxFindings + 5 {
		c.found(Damage, "/data/x", 3, "broken")
	}
	if r := c.report; len(r.Findings) != maxFindings || r.Omitted != 5 || r.Damages != maxFindings+5 {
		t.Errorf("%d findings, %d omitted, %d damages", len(r.Findings), r.Omitted, r.Damages)
	}
}

// What the metadata store's own check says is a finding beside the others, and
// a check of the logs goes on.
func TestCheckAsksForMeta(t *testing.T) {
	m := disk.NewMem()
	d := openDir(t, m)
	openLog(t, d, Config{})
	mustClose(t, d)
	if err := m.MkdirAll(d.MetaPath()); err != nil {
		t.Fatal(err)
	}
	setFile(t, m, path.Join(d.MetaPath(), "table"), []byte("x"))
	var asked string
	r, err := Check(t.Context(), CheckOptions{FS: m, Path: "/data", Meta: func(_ context.Context, dir string) (*Metadata, error) {
		asked = dir
		return &Metadata{Findings: []Finding{{Severity: Damage, Path: dir, Pos: -1, What: "torn table"}}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if asked != d.MetaPath() || r.Damages != 1 || r.Partitions != 1 || !strings.Contains(r.Findings[0].String(), "torn table") {
		t.Errorf("asked for %q, report %+v", asked, r)
	}
}
