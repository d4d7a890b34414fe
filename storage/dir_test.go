package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

// opLog notes the operations on a file system that change something durable.
type opLog struct {
	mu  sync.Mutex
	ops []string
}

func watch(m *disk.Mem) *opLog {
	o := &opLog{}
	m.SetFault(func(op disk.Op) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.ops = append(o.ops, op.Kind.String()+" "+op.Path)
		return nil
	})
	return o
}

// take returns the operations so far whose kind begins with prefix.
func (o *opLog) take(prefix string) (found []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, op := range o.ops {
		if strings.HasPrefix(op, prefix) {
			found = append(found, op)
		}
	}
	o.ops = nil
	return found
}

// TestOpenSyncs proves how few syncs a start needs: three for a fresh
// directory, one after a clean stop (CLEAN is gone for good before anything
// else changes), none after a crash.
func TestOpenSyncs(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	o := watch(m)
	d := openDir(t, m)
	if got := o.take("sync"); len(got) != 3 {
		t.Errorf("fresh: %q", got)
	}
	if d.Unclean() || d.Identity().NodeID != 1 || d.MetaPath() != "/data/db" {
		t.Errorf("fresh: unclean=%v, %+v", d.Unclean(), d.Identity())
	}
	mustClose(t, d)
	crashed := m.CrashClone(0, nil)
	o.take("")
	d = openDir(t, m)
	if got := o.take("sync"); len(got) != 1 || d.Unclean() {
		t.Errorf("after a clean stop: %q, unclean=%v", got, d.Unclean())
	}
	// A crash right after the start is unclean: CLEAN was removed.
	left := m.CrashClone(0, nil)
	mustClose(t, d)
	o = watch(left)
	d = openDir(t, left)
	if got := o.take("sync"); len(got) != 0 || !d.Unclean() {
		t.Errorf("after a crash: %q, unclean=%v", got, d.Unclean())
	}
	mustClose(t, d)
	d = openDir(t, crashed)
	if d.Unclean() {
		t.Error("the mark of a clean stop is not durable")
	}
	mustClose(t, d)
}

// TestForeignDirectory proves that a directory of somebody else is refused and
// left as it is, while what a first start leaves behind is taken.
func TestForeignDirectory(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		names string
		ok    bool
	}{
		{"passwd", false},
		{"LOCK logs postgresql.conf", false},
		{"CLEAN", false},
		{"lost+found .snapshot", true},
		{"LOCK", true},
		{"LOCK meta.json.tmp logs trash quarantine", true},
	} {
		m := disk.NewMem()
		for name := range strings.FieldsSeq(tc.names) {
			if err := m.MkdirAll("/data"); err != nil {
				t.Fatal(err)
			}
			if slices.Contains([]string{logsDir, trashDir, quarantineDir}, name) {
				if err := m.MkdirAll("/data/" + name); err != nil {
					t.Fatal(err)
				}
				continue
			}
			putFile(t, m, "/data/"+name, []byte("x"))
		}
		d, err := Open(t.Context(), Options{FS: m, Path: "/data", Logger: quiet()})
		if tc.ok {
			if err != nil {
				t.Errorf("%s: %v", tc.names, err)
				continue
			}
			mustClose(t, d)
			continue
		}
		if damaged, is := errors.AsType[*DamagedError](err); !is || damaged.Path != "/data" {
			t.Errorf("%s: %v", tc.names, err)
		}
		if names, err := m.List("/data"); err != nil || len(names) != len(strings.Fields(tc.names)) {
			t.Errorf("%s: %q is there now, %v", tc.names, names, err)
		}
	}
	m := disk.NewMem()
	putFile(t, m, "/data", []byte("x"))
	if _, err := Open(t.Context(), Options{FS: m, Path: "/data", Logger: quiet()}); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a file: %v", err)
	} else if _, is := errors.AsType[*DamagedError](err); !is {
		t.Errorf("a file: %v", err)
	}
}

// TestLogIsNoDirectory proves that a file in a log's place is damage of that
// log, which does not keep others from opening.
func TestLogIsNoDirectory(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	putFile(t, m, d.logPath(testID), []byte("x"))
	l := openLog(t, d, Config{})
	holes := l.Holes()
	if len(holes) != 1 || holes[0].Path != d.logPath(testID) || !l.Fenced() {
		t.Errorf("holes: %+v", holes)
	}
	if _, err := l.Append(Append{Batch: batchOf(t, record.None, nil, "v")}); !errors.Is(err, ErrDamaged) {
		t.Errorf("append: %v", err)
	}
	mustClose(t, d)
}

// TestBusy proves that a second process is told who has the directory.
func TestBusy(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	_, err := Open(t.Context(), Options{FS: m, Path: "/data", Logger: quiet()})
	var busy *BusyError
	if !errors.As(err, &busy) || busy.PID != os.Getpid() || !errors.Is(err, ErrBusy) {
		t.Errorf("second open: %v", err)
	}
	mustClose(t, d)
	if err := d.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("second close: %v", err)
	}
	mustClose(t, openDir(t, m))
}

// TestCreateTogether proves that many partitions cost one sync, or the needed
// ones where there is no syncfs, and are durable either way; and that one that
// exists is an error that leaves it alone and creates none of the others.
func TestCreateTogether(t *testing.T) {
	t.Parallel()
	for _, syncAll := range []bool{true, false} {
		m := disk.NewMem()
		d := openDir(t, m)
		var names []LogName
		for i := range int32(50) {
			names = append(names, LogName{ID: ID{Topic: TopicID{1}, Partition: i}, Topic: "many"})
		}
		var syncs int
		m.SetFault(func(op disk.Op) error {
			switch {
			case op.Kind == disk.OpSyncAll && !syncAll:
				return disk.ErrUnsupported
			case op.Kind == disk.OpSyncAll, op.Kind == disk.OpSyncDir, op.Kind == disk.OpSync:
				syncs++ // one at a time: the fallback is a loop
			}
			return nil
		})
		if err := d.Create(names); err != nil {
			t.Fatal(err)
		}
		if want := map[bool]int{true: 1, false: 2*len(names) + 1}[syncAll]; syncs != want {
			t.Errorf("syncfs=%v: %d syncs, want %d", syncAll, syncs, want)
		}
		m.SetFault(nil)
		left := m.CrashClone(0, nil)
		for _, n := range names {
			if _, err := left.Stat(path.Join("/data/logs", n.dirName(), segmentName(0, 0)+logSuffix)); err != nil {
				t.Errorf("syncfs=%v: %v", syncAll, err)
			}
		}
		more := []LogName{{ID: ID{Topic: TopicID{2}}}, names[7]}
		if err := d.Create(more); !errors.Is(err, fs.ErrExist) {
			t.Errorf("create again: %v", err)
		}
		if _, err := m.Stat(d.logPath(more[0].ID)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a partition of a refused request: %v", err)
		}
		if _, err := m.Stat(d.logPath(names[7].ID)); err != nil {
			t.Errorf("the one that was there: %v", err)
		}
		mustClose(t, d)
	}
}

// TestSetAside proves that unknown partitions go to the quarantine if they
// have records and to the trash if not, and that deleted ones go either way.
func TestSetAside(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	id := func(n byte) ID { return ID{Topic: TopicID{n}} }
	if err := d.Create([]LogName{{ID: id(1)}, {ID: id(2)}, {ID: id(3)}, {ID: id(4)}}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []byte{1, 2, 3} {
		l, err := d.OpenLog(t.Context(), id(n), "t", Config{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		mustAppend(t, l, batchOf(t, record.None, nil, "v"))
	}
	mustClose(t, d)
	setFile(t, m, "/data/logs/lost+found", []byte("x"))
	d = openDir(t, m)
	err := d.SetAside(func(i ID) Fate { return map[ID]Fate{id(1): Keep, id(2): Trash, id(3): Unknown, id(4): Unknown}[i] })
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, d) // waits for the trash
	list := func(dir string) string {
		names, err := m.List("/data/" + dir)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(len(names), names)
	}
	if got := list(logsDir); got != fmt.Sprint(1, []string{id(1).dirName()}) {
		t.Errorf("logs: %s", got)
	}
	if got := list(quarantineDir); !strings.HasPrefix(got, "2 ["+id(3).dirName()) || !strings.Contains(got, "lost+found") {
		t.Errorf("quarantine: %s", got)
	}
	if got := list(trashDir); got != "0 []" {
		t.Errorf("trash: %s", got)
	}
}

// TestTimers proves what happens without an append: page-cache mode is flushed
// after a second, a segment is ended by its age, and a checkpoint is written
// after five seconds but only if something changed.
func TestTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := disk.NewMem()
		d := openDir(t, m)
		l := openLog(t, d, Config{FlushMessages: 1 << 40, SegmentAge: 20 * time.Second})
		mustAppend(t, l, batchOf(t, record.None, nil, "v"))
		synctest.Wait()
		if o := l.Offsets(); o.Durable != 0 {
			t.Errorf("page-cache mode was flushed at once: %+v", o)
		}
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if o := l.Offsets(); o.Durable != 1 {
			t.Errorf("after a second: %+v", o)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got, n := l.Segments(), generation(d); got != 1 || n != 1 {
			t.Errorf("after eleven seconds: %d segments, checkpoint %d", got, n)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := l.Segments(); got != 2 {
			t.Errorf("after its age: %d segments", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := l.Segments(); got != 2 {
			t.Errorf("an empty segment was ended: %d segments", got)
		}
		mustClose(t, d)
	})
}

// TestBacklogInFlush proves that what is being flushed is no backlog of a
// page-cache-mode log: an append that comes meanwhile asks for no round of its
// own, and waits for no longer than flush.ms from then on.
func TestBacklogInFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := disk.NewMem()
		d := openDir(t, m)
		l := openLog(t, d, Config{FlushMessages: 2})
		var syncs atomic.Int32
		open := make(chan struct{})
		m.SetFault(func(op disk.Op) error {
			if op.Kind == disk.OpSyncData && path.Ext(op.Path) == logSuffix && syncs.Add(1) == 1 {
				<-open
			}
			return nil
		})
		mustAppend(t, l, batchOf(t, record.None, nil, "a", "b"))
		synctest.Wait()
		mustAppend(t, l, batchOf(t, record.None, nil, "c"))
		time.Sleep(pageCacheDelay / 2) // the disk takes its time
		close(open)
		synctest.Wait()
		if o, n := l.Offsets(), syncs.Load(); o.Durable != 2 || n != 1 {
			t.Errorf("after the flush: %+v, %d syncs, want 2 durable by 1", o, n)
		}
		time.Sleep(pageCacheDelay / 2)
		synctest.Wait()
		if o, n := l.Offsets(), syncs.Load(); o.Durable != 3 || n != 2 {
			t.Errorf("flush.ms after the append: %+v, %d syncs, want 3 durable by 2", o, n)
		}
		if n := d.flusher.lazyBytes.Load(); n != 0 {
			t.Errorf("%d bytes count as unflushed, want 0", n)
		}
		mustClose(t, d)
	})
}

// TestFlushNow proves that in fsync mode an append is flushed at once and told
// by OnFlush, that a backlog in page-cache mode is, too, and that a round over
// many logs is one syncfs, but not while page-cache-mode logs hold much.
func TestFlushNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := disk.NewMem()
		var flushed sync.Map
		d := openDir(t, m, func(o *Options) { o.OnFlush = func(l *Log) { flushed.Store(l.ID(), l.Offsets().Durable) } })
		lazy, err := d.OpenLog(t.Context(), ID{Topic: TopicID{1}}, "lazy", Config{FlushMessages: 3}, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			mustAppend(t, lazy, batchOf(t, record.None, nil, "v"))
		}
		synctest.Wait()
		if o := lazy.Offsets(); o.Durable != 3 {
			t.Errorf("after flush.messages records: %+v", o)
		}
		var logs []*Log
		for i := range 2 * syncAllFrom {
			l, err := d.OpenLog(t.Context(), ID{Topic: TopicID{2}, Partition: int32(i)}, "each", Config{}, 0)
			if err != nil {
				t.Fatal(err)
			}
			logs = append(logs, l)
		}
		for _, backlog := range []int64{0, syncAllBacklog + 1} {
			d.flusher.lazyBytes.Add(backlog)
			// The first append's sync waits until all are dirty, so that the
			// next round has many.
			gate := make(chan struct{})
			var held atomic.Bool
			var all atomic.Int32
			m.SetFault(func(op disk.Op) error {
				if op.Kind == disk.OpSyncData && held.CompareAndSwap(false, true) {
					<-gate
				}
				if op.Kind == disk.OpSyncAll {
					all.Add(1)
				}
				return nil
			})
			for _, l := range logs {
				mustAppend(t, l, batchOf(t, record.None, nil, "v"))
			}
			synctest.Wait()
			close(gate)
			synctest.Wait()
			m.SetFault(nil)
			for _, l := range logs {
				o := l.Offsets()
				if told, _ := flushed.Load(l.ID()); o.Durable != o.End || told != o.End {
					t.Errorf("%+v, told %v", o, told)
				}
			}
			if n := all.Load(); backlog > 0 && n != 0 {
				t.Errorf("%d syncfs beside a backlog of page-cache mode", n)
			}
			if n := all.Load(); backlog == 0 && n != 1 {
				t.Errorf("%d syncfs for %d logs", n, len(logs))
			}
			d.flusher.lazyBytes.Add(-backlog)
		}
		mustClose(t, d)
	})
}

// TestRemoveDuringUse proves that a log can be removed while the disk is
// slow: Remove waits for the flush, and a removed directory is no failure.
func TestRemoveDuringUse(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	for i := range 50 {
		id := ID{Topic: TopicID{1}, Partition: int32(i)}
		l, err := d.OpenLog(t.Context(), id, "t", Config{SegmentBytes: 200}, 0)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 100)))
		}
		if err := d.Remove(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Failed(); err != nil {
		t.Error(err)
	}
	mustClose(t, d)
}

// TestRemoveMany proves that a topic of many partitions goes with one sync of
// each directory, and that a log that was closed keeps none of the others.
func TestRemoveMany(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	var logs []*Log
	for i := range 50 {
		l, err := d.OpenLog(t.Context(), ID{Topic: TopicID{1}, Partition: int32(i)}, "t", Config{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, l)
	}
	if err := d.Remove(logs[7]); err != nil {
		t.Fatal(err)
	}
	syncs := map[string]int{}
	m.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpSyncDir {
			syncs[path.Base(op.Path)]++
		}
		return nil
	})
	if err := d.Remove(logs...); !errors.Is(err, ErrClosed) {
		t.Errorf("one of them was closed: %v", err)
	}
	m.SetFault(nil)
	if syncs[trashDir] != 1 || syncs[logsDir] != 1 {
		t.Errorf("syncs of directories: %v, want one each", syncs)
	}
	mustClose(t, d)
	if names, err := m.List("/data/" + logsDir); err != nil || len(names) > 0 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// TestRemoveCountsBacklog proves that a page-cache-mode log removed in the
// middle of its flush leaves the count of unflushed bytes as it found it.
func TestRemoveCountsBacklog(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d := openDir(t, m)
	l := openLog(t, d, Config{FlushMessages: 2})
	entered, open := make(chan struct{}), make(chan struct{})
	m.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpSyncData && path.Ext(op.Path) == logSuffix {
			close(entered)
			<-open
		}
		return nil
	})
	mustAppend(t, l, batchOf(t, record.None, nil, "a", "b"))
	<-entered
	removed := make(chan error)
	go func() { removed <- d.Remove(l) }()
	eventually(t, "the log to be closed", func() bool {
		l.mu.RLock()
		defer l.mu.RUnlock()
		return l.mu.closed
	})
	close(open)
	if err := <-removed; err != nil {
		t.Error(err)
	}
	if n := d.flusher.lazyBytes.Load(); n != 0 {
		t.Errorf("%d bytes count as unflushed, want 0", n)
	}
	mustClose(t, d)
}

// len counts the handles.
func (l *handles) len() (n int) {
	for h := l.root.next; h != &l.root; h = h.next {
		n++
	}
	return n
}
