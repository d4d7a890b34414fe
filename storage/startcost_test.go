package storage

import (
	"strings"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// crowd is a directory with many logs, each with one batch.
type crowd struct {
	fs    *disk.Mem
	dir   *Dir
	names []LogName
	logs  []*Log
}

func newCrowd(t *testing.T, n int32) *crowd {
	t.Helper()
	c := &crowd{fs: disk.NewMem()}
	for i := range n {
		c.names = append(c.names, LogName{ID: ID{Topic: TopicID{1}, Partition: i}, Topic: "many"})
	}
	c.dir = openDir(t, c.fs)
	if err := c.dir.Create(c.names); err != nil {
		t.Fatal(err)
	}
	c.open(t)
	for _, l := range c.logs {
		mustAppend(t, l, batchOf(t, record.None, nil, "first"))
	}
	for _, l := range c.logs {
		waitDurable(t, l)
	}
	forceCheckpoint(t, c.dir)
	return c
}

func (c *crowd) open(t *testing.T) {
	t.Helper()
	c.logs = nil
	for _, n := range c.names {
		l, err := c.dir.OpenLog(t.Context(), n.ID, n.Topic, Config{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		c.logs = append(c.logs, l)
	}
}

// TestStartSyncsOnce proves that after kill -9 many logs with records in the
// page cache alone become durable by one sync, their names included, and that
// what a start has read stays read when the power fails right after it.
func TestStartSyncsOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int32{syncLeftLogs, 2 * syncLeftLogs} {
		c := newCrowd(t, n)
		killed := &crowd{fs: c.fs.CrashClone(1, nil), names: c.names}
		mustClose(t, c.dir)
		for _, l := range c.logs {
			killed.addUnsynced(t, l)
		}
		o := watch(killed.fs)
		killed.dir = openDir(t, killed.fs)
		killed.open(t)
		if got := o.take("sync"); len(got) != 1 {
			t.Errorf("%d logs: a start did %d syncs: %v", n, len(got), got)
		}
		killed.fs.SetFault(nil)
		cut := &crowd{fs: killed.fs.CrashClone(0, nil), names: c.names}
		mustClose(t, killed.dir)
		cut.dir = openDir(t, cut.fs)
		cut.open(t)
		for _, logs := range [][]*Log{killed.logs, cut.logs} {
			for i, l := range logs {
				if o := l.Offsets(); o.Durable != 2 || o.End != 2 {
					t.Errorf("log %d of %d is durable to %d, ends at %d", i, n, o.Durable, o.End)
				}
			}
		}
		mustClose(t, cut.dir)
	}
}

// addUnsynced writes a second batch to the file of a log, as a process does
// that is killed before its sync.
func (c *crowd) addUnsynced(t *testing.T, l *Log) {
	t.Helper()
	b := batchOf(t, record.None, nil, "second")
	b.SetBaseOffset(1)
	seg := l.mu.segments[0]
	err := withFile(c.fs, seg.logPath(), func(f disk.File) error {
		_, err := f.WriteAt(b, seg.size)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestStartReadsLittle proves that what is preallocated behind a log's end is
// not read at a start: of each log that was written a page or so, not 256 KiB.
func TestStartReadsLittle(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 4)
	left := c.fs.CrashClone(1, nil)
	mustClose(t, c.dir)
	read := 0
	left.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpRead && strings.HasSuffix(op.Path, logSuffix) {
			read += op.Len
		}
		return nil
	})
	c.fs, c.dir = left, openDir(t, left)
	c.open(t)
	left.SetFault(nil)
	for i, l := range c.logs {
		if l.mu.segments[0].allocated < minPrealloc {
			t.Errorf("log %d has nothing preallocated", i)
		}
	}
	if most := len(c.logs) * 5 * pageSize; read > most {
		t.Errorf("%d bytes of %d logs were read, want at most %d", read, len(c.logs), most)
	}
	mustClose(t, c.dir)
}

// TestStartOpensLittle proves that a start after kill -9 opens only files that are
// there, and of a log with one batch behind the checkpoint no more than three: the
// text that says whose it is, the .log, and the header of its index.
func TestStartOpensLittle(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 40)
	left := c.fs.CrashClone(1, nil)
	mustClose(t, c.dir)
	for _, l := range c.logs {
		(&crowd{fs: left}).addUnsynced(t, l)
	}
	var opened []string
	left.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpOpen && strings.HasPrefix(op.Path, "/data/logs/") {
			opened = append(opened, op.Path)
		}
		return nil
	})
	c.fs, c.dir = left, openDir(t, left)
	c.open(t)
	left.SetFault(nil)
	for _, name := range opened {
		if _, err := left.Stat(name); err != nil {
			t.Errorf("%s was opened: %v", name, err)
		}
	}
	if most := 3 * len(c.logs); len(opened) > most {
		t.Errorf("%d files of %d logs were opened, want at most %d", len(opened), len(c.logs), most)
	}
	mustClose(t, c.dir)
}
