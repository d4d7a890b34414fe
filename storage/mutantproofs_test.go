package storage

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"leat/storage/disk"
	"leat/storage/record"
)

// proveCreated: when Create returns a power cut leaves the logs whole, with
// syncfs and without.
func proveCreated(t testing.TB, w *world) {
	for _, noSyncAll := range []bool{false, true} {
		fs := disk.NewMem()
		w.fault(fs, func(op disk.Op) error {
			if noSyncAll && op.Kind == disk.OpSyncAll {
				return disk.ErrUnsupported
			}
			return nil
		})
		d := w.openDir(t, fs)
		if err := d.Create([]LogName{{ID: testID, Topic: "orders"}, {ID: goneID, Topic: "other"}}); err != nil {
			t.Fatal(err)
		}
		left := fs.CrashClone(0, nil)
		for _, id := range []ID{testID, goneID} {
			dir := path.Join("/data", logsDir, id.dirName())
			if p := fileBytes(t, left, path.Join(dir, partitionFile)); !bytes.Contains(p, []byte("created:")) {
				t.Fatalf("%s says %q", partitionFile, p)
			}
			fileBytes(t, left, path.Join(dir, segmentName(0, 0)+logSuffix))
		}
		mustClose(t, d)
	}
}

// proveRemoved: the files of segments below the start leave the disk.
func proveRemoved(t testing.TB, w *world) {
	fs := w.disk()
	d := w.openDir(t, fs)
	l := openWhole(t, d, Config{SegmentBytes: 100}, 0)
	for range 4 {
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 100)))
	}
	waitDurable(t, l)
	if err := l.SetStart(2); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the segments to leave", func() bool { return l.Segments() == 2 })
	forceCheckpoint(t, d)
	mustClose(t, d)
	for base, want := range []bool{false, false, true, true} {
		if _, err := fs.Stat(path.Join(l.path, segmentName(int64(base), 0)+logSuffix)); (err == nil) != want {
			t.Fatalf("segment %d: %v", base, err)
		}
	}
}

// proveCheckpoint: when the files of segments are gone for good, so that a
// power cut does not bring them back, the checkpoint that says so does not come
// back without it either.
func proveCheckpoint(t testing.TB, w *world) {
	for _, checkpoints := range []int{1, 2, 3} {
		fs := w.disk()
		d := w.openDir(t, fs)
		if err := d.Create([]LogName{{ID: testID, Topic: "orders"}}); err != nil {
			t.Fatal(err)
		}
		l := openWhole(t, d, Config{SegmentBytes: 100}, 0)
		one := func() {
			mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 100)))
			waitDurable(t, l)
		}
		for i := range checkpoints - 1 {
			one()
			forceCheckpoint(t, d)
			// The name of the first slot is durable, and that of the second is not.
			if err := d.Create([]LogName{{ID: ID{Topic: TopicID{5}, Partition: int32(i)}, Topic: "other"}}); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			one()
		}
		if err := l.SetStart(l.Offsets().End - 1); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the segments to leave", func() bool { return l.Segments() == 1 })
		forceCheckpoint(t, d)
		eventually(t, "the files to go", func() bool {
			_, err := fs.Stat(l.path + "/" + segmentName(int64(checkpoints), 0) + logSuffix)
			return err != nil
		})
		one() // its name takes the others' going with it
		left := w.reopened(fs.CrashClone(0, nil))
		if r := check(t, left); r.Damages > 0 {
			t.Fatalf("check:\n%s", r.lines())
		}
		mustClose(t, d)
	}
}

// proveCleanStop: a power cut after a clean stop takes nothing of it back, and
// one after the next start does not bring it back.
func proveCleanStop(t testing.TB, w *world) {
	fs := w.disk()
	for i := range 3 {
		d := w.openDir(t, fs)
		if i == 0 {
			if err := d.Create([]LogName{{ID: testID, Topic: "orders"}}); err != nil {
				t.Fatal(err)
			}
		}
		l := openWhole(t, d, Config{}, 0)
		mustAppend(t, l, batchOf(t, record.None, nil, "v"))
		waitDurable(t, l)
		again := w.openDir(t, w.reopened(fs.CrashClone(0, nil)))
		if !again.Unclean() {
			t.Fatal("a power cut is taken for a clean stop")
		}
		mustClose(t, again)
		mustClose(t, d)
		fs = w.reopened(fs.CrashClone(0, nil))
		if c := check(t, fs); !c.Clean || len(c.Findings) > 0 {
			t.Fatalf("after a clean stop and a power cut:\n%s", c.lines())
		}
	}
}

// proveMany: logs that a round makes durable together are durable.
func proveMany(t testing.TB, w *world) {
	fs := disk.NewMem()
	var once sync.Once
	begun, open := make(chan struct{}), make(chan struct{})
	w.fault(fs, func(op disk.Op) error {
		if op.Kind == disk.OpSyncData && strings.HasPrefix(op.Path, "/data/logs/") {
			once.Do(func() {
				close(begun)
				<-open
			})
		}
		return nil
	})
	d := w.openDir(t, fs)
	logs := make([]*Log, syncAllFrom+2)
	names := make([]LogName, len(logs))
	for i := range names {
		names[i] = LogName{ID: ID{Topic: TopicID{5}, Partition: int32(i)}, Topic: "many"}
	}
	if err := d.Create(names); err != nil {
		t.Fatal(err)
	}
	for i, n := range names {
		var err error
		if logs[i], err = d.OpenLog(t.Context(), n.ID, n.Topic, Config{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	mustAppend(t, logs[0], batchOf(t, record.None, nil, "v"))
	<-begun
	for _, l := range logs[1:] { // all for the next round
		mustAppend(t, l, batchOf(t, record.None, nil, "v"))
	}
	close(open)
	for _, l := range logs {
		waitDurable(t, l)
	}
	d2 := w.openDir(t, w.reopened(fs.CrashClone(0, nil)))
	for _, n := range names {
		l, err := d2.OpenLog(t.Context(), n.ID, n.Topic, Config{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if o := l.Offsets(); o.End != 1 {
			t.Fatalf("partition %d: %+v", n.Partition, o)
		}
	}
	mustClose(t, d2)
	mustClose(t, d)
}

// proveKilled: what a start finds in the page cache is durable before it counts
// as durable, whatever the process was doing when it was killed.
func proveKilled(t testing.TB, w *world) {
	for n := range 8 {
		fs := w.disk()
		d := w.openDir(t, fs)
		names := []LogName{{ID: testID, Topic: "orders"}}
		for i := range n / 6 * syncLeftLogs { // so many that one syncfs takes all
			names = append(names, LogName{ID: ID{Topic: TopicID{5}, Partition: int32(i)}, Topic: "other"})
		}
		if err := d.Create(names); err != nil {
			t.Fatal(err)
		}
		l := openWhole(t, d, lazyConfig, 0)
		var m model
		for range n {
			b := batchOf(t, record.None, nil, strings.Repeat("v", 300))
			mustAppend(t, l, b)
			m.add(b)
		}
		w.kill(fs, d)
		d = w.openDir(t, fs)
		o := openWhole(t, d, lazyConfig, 0).Offsets()
		left := w.reopened(fs.CrashClone(0, nil))
		mustClose(t, d)
		d = w.openDir(t, left)
		l = openWhole(t, d, lazyConfig, 0)
		if o.End != int64(n) || o.Durable != o.End || l.Offsets().End != o.End {
			t.Fatalf("appended %d, after kill -9 %+v, after a power cut %+v", n, o, l.Offsets())
		}
		m.check(t, l, rand.New(rand.NewPCG(1, 1)))
		mustClose(t, d)
	}
}

// proveRebuilt: an index that was rebuilt stays so.
func proveRebuilt(t testing.TB, w *world) {
	fs := w.disk()
	cfg := Config{SegmentBytes: 2000, IndexInterval: 1}
	d := w.openDir(t, fs)
	l := openWhole(t, d, cfg, 0)
	for range 20 {
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 300)))
	}
	waitDurable(t, l)
	mustClose(t, d)
	name := path.Join(l.path, segmentName(0, 0)+indexSuffix)
	p := fileBytes(t, fs, name)
	p[len(p)-1] ^= 1
	setFile(t, fs, name, p)
	rebuilt := func(fs *disk.Mem) (float64, *disk.Mem) {
		reg := prometheus.NewRegistry()
		d := w.openDir(t, fs, func(o *Options) { o.Registerer = reg })
		readAll(t, openWhole(t, d, cfg, 0), 3, 4, 1)
		left := w.reopened(fs.CrashClone(0, nil))
		mustClose(t, d)
		return gathered(t, reg, "indexes_rebuilt_total"), left
	}
	first, left := rebuilt(fs)
	second, _ := rebuilt(left)
	if first != 1 || second != 0 {
		t.Fatalf("rebuilt %v times, and after a power cut %v times", first, second)
	}
}

// proveSealOrder: when a segment is sealed those before it have their names, or
// a crash would leave a hole that looks like damage.
func proveSealOrder(t testing.TB, w *world) {
	fs := w.disk()
	cfg := Config{SegmentBytes: 100, FlushMessages: 1 << 40}
	d := w.openDir(t, fs)
	l := openWhole(t, d, cfg, 0)
	for range 6 {
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 100)))
	}
	eventually(t, "the seals", func() bool { return sealedCount(l) == l.Segments()-1 })
	for seed := range uint64(40) {
		left := w.reopened(fs.CrashClone(0.5, rand.New(rand.NewPCG(seed, 0))))
		again := w.openDir(t, left)
		openWhole(t, again, cfg, 0)
		mustClose(t, again)
	}
	mustClose(t, d)
}

// proveSealed: a segment whose seal was written before the last checkpoint is
// not read when the log opens again.
func proveSealed(t testing.TB, w *world) {
	fs := w.disk()
	cfg := Config{SegmentBytes: 2000, IndexInterval: 1}
	d := w.openDir(t, fs)
	l := openWhole(t, d, cfg, 0)
	for range 20 {
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 300)))
	}
	waitDurable(t, l)
	eventually(t, "the seals", func() bool { return sealedCount(l) == l.Segments()-1 })
	forceCheckpoint(t, d)
	active := l.activeLocked().logPath()
	left := fs.CrashClone(0, nil)
	mustClose(t, d)
	var reads atomic.Int64
	w.fault(left, func(op disk.Op) error {
		if op.Kind == disk.OpRead && strings.HasSuffix(op.Path, logSuffix) && op.Path != active {
			reads.Add(1)
		}
		return nil
	})
	d = w.openDir(t, left)
	openWhole(t, d, cfg, 0)
	mustClose(t, d)
	if n := reads.Load(); n > 0 {
		t.Fatalf("sealed segments were read %d times", n)
	}
}

// proveOrphans: index files without a .log are removed before a new segment
// takes their names, or they would seem to be its seal.
func proveOrphans(t testing.TB, w *world) {
	fs := w.disk()
	cfg := Config{SegmentBytes: 100}
	d := w.openDir(t, fs)
	l := openWhole(t, d, cfg, 0)
	for range 3 {
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 100)))
	}
	mustClose(t, d)
	remove(t, fs, path.Join("/data", cleanName), checkpointSlot("/data", 0), checkpointSlot("/data", 1),
		l.path+"/"+segmentName(1, 0)+logSuffix, l.path+"/"+segmentName(2, 0)+logSuffix)
	d = w.openDir(t, fs)
	l = openWhole(t, d, Config{FlushMessages: 1 << 40}, 0)
	mustAppend(t, l, batchOf(t, record.None, nil, "short"))
	for seed := range uint64(40) {
		left := w.reopened(fs.CrashClone(0.5, rand.New(rand.NewPCG(seed, 0))))
		again := w.openDir(t, left)
		if o := openWhole(t, again, cfg, 0).Offsets(); o.End != 1 && o.End != 2 {
			t.Fatalf("the log is %+v", o)
		}
		mustClose(t, again)
	}
	mustClose(t, d)
}

// remove removes files for good, if they are there.
func remove(t testing.TB, fs *disk.Mem, names ...string) {
	for _, name := range names {
		if err := fs.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if err := fs.SyncDir(path.Dir(name)); err != nil {
			t.Fatal(err)
		}
	}
}

// proveTorn: segments behind a torn end never come back, neither in the way of
// new ones nor as their content.
func proveTorn(t testing.TB, w *world) {
	for _, more := range []bool{false, true} {
		fs := w.disk()
		d := w.openDir(t, fs)
		l := openWhole(t, d, lazyConfig, 0)
		for range 3 { // two in the first segment
			mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 300)))
		}
		forceCheckpoint(t, d) // it knows the first segment, and nothing in it
		second := l.mu.segments[0].size / 2
		w.kill(fs, d)
		if err := fs.SyncAll("/"); err != nil { // the kernel has had its time
			t.Fatal(err)
		}
		stem := l.path + "/" + segmentName(0, 0)
		remove(t, fs, stem+indexSuffix, stem+timeSuffix)
		p := fileBytes(t, fs, stem+logSuffix)
		p[second+100] ^= 1
		setFile(t, fs, stem+logSuffix, p)

		d = w.openDir(t, fs)
		l = openWhole(t, d, scriptConfig, 0)
		if o := l.Offsets(); o.End != 1 {
			t.Fatalf("torn: %+v", o)
		}
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("w", 300)))
		if more {
			mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("w", 300)))
		}
		waitDurable(t, l)
		end := l.Offsets().End
		left := w.reopened(fs.CrashClone(0, nil))
		mustClose(t, d)
		d = w.openDir(t, left)
		if o := openWhole(t, d, scriptConfig, 0).Offsets(); o.End != end {
			t.Fatalf("the log ended at %d, after a power cut %+v", end, o)
		}
		mustClose(t, d)
	}
}

// proveGone: a log that was removed does not come back with a power cut.
func proveGone(t testing.TB, w *world) {
	fs := w.disk()
	d := w.openDir(t, fs)
	if err := d.Create([]LogName{{ID: testID, Topic: "orders"}, {ID: goneID, Topic: "gone"}}); err != nil {
		t.Fatal(err)
	}
	l := openWhole(t, d, Config{}, 0)
	if err := d.Remove(l); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.CrashClone(0, nil).Stat(l.path); err == nil {
		t.Fatal("a removed log came back")
	}
	mustClose(t, d)
}

// proveBegun: a log that OpenLog has made is as durable as one of Create's.
func proveBegun(t testing.TB, w *world) {
	fs := w.disk()
	d := w.openDir(t, fs)
	l := openWhole(t, d, Config{}, 0)
	mustAppend(t, l, batchOf(t, record.None, nil, "v"))
	waitDurable(t, l)
	left := w.reopened(fs.CrashClone(0, nil))
	mustClose(t, d)
	if p := fileBytes(t, left, path.Join(l.path, partitionFile)); !bytes.Contains(p, []byte("created:")) {
		t.Fatalf("%s says %q", partitionFile, p)
	}
	d = w.openDir(t, left)
	if o := openWhole(t, d, Config{}, 0).Offsets(); o.End != 1 {
		t.Fatalf("after a power cut: %+v", o)
	}
	mustClose(t, d)
}

// proveAside: what SetAside has moved does not come back with a power cut. Its
// owner forgets about it, and would not know it any more.
func proveAside(t testing.TB, w *world) {
	fs := w.disk()
	d := w.openDir(t, fs)
	l, err := d.OpenLog(t.Context(), goneID, "gone", Config{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, batchOf(t, record.None, nil, "v"))
	mustClose(t, d)
	d = w.openDir(t, fs)
	if err := d.SetAside(fateOf); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.CrashClone(0, nil).Stat(l.path); err == nil {
		t.Fatal("a log that was set aside came back")
	}
	mustClose(t, d)
}
