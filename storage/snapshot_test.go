package storage

import (
	"bytes"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

// noKeys is the state of no keyed request.
func noKeys() *keys { return newKeys(newKeyring(0, 0)) }

// someProducers is a state of n producers with windows of every size.
func someProducers(n int, now time.Time) *producers {
	p := newProducers(0, 0)
	offset := int64(0)
	for i := range n {
		for j := range i % 7 {
			s := sequence{pid: int64(1000 + i), epoch: int16(i % 3), first: int32(10 * j), last: int32(10*j + 9), timestamp: -1}
			s.base, s.lastOffset = offset, offset+9
			offset += 10
			p.record(s, now.Add(time.Duration(i)*time.Second))
		}
	}
	p.record(sequence{pid: 7, epoch: 4, first: -1, last: -1}, now.Add(time.Duration(n)*time.Second))
	return p
}

// TestSnapshotRoundTrip proves that a snapshot brings back every producer with
// its window, its epoch and the time of its last write, in the same order.
func TestSnapshotRoundTrip(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	for _, n := range []int{0, 1, 8, 300} {
		was := someProducers(n, now)
		later := now.Add(time.Hour)
		s, err := decodeSnapshot(encodeSnapshot(was, noKeys(), 1<<40, later), 1<<40)
		if err != nil {
			t.Fatal(err)
		}
		is := newProducers(0, 0)
		is.load(s, later)
		if is.len() != was.len() {
			t.Fatalf("%d producers, want %d", is.len(), was.len())
		}
		for a, b := was.byAge.Front(), is.byAge.Front(); a != nil; a, b = a.Next(), b.Next() {
			x, y := *a.Value.(*producer), *b.Value.(*producer)
			if !x.lastWrite.Equal(y.lastWrite) {
				t.Errorf("producer %d wrote last at %v, want %v", x.id, y.lastWrite, x.lastWrite)
			}
			for i := range x.window[:x.count] {
				x.window[i].timestamp = max(x.window[i].timestamp, -1)
			}
			x.lastWrite = y.lastWrite
			if x.count < producerWindow {
				clear(x.window[x.count:])
			}
			if x != y {
				t.Errorf("%+v, want %+v", y, x)
			}
		}
	}
}

// TestSnapshotExpiry proves that a snapshot leaves out who has expired, that a
// clock that was set back over the restart keeps nobody longer than the time of
// expiry from the restart on, and that one that ran on counts.
func TestSnapshotExpiry(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	p := newProducers(24*time.Hour, 0)
	p.record(sequence{pid: 1}, now)
	p.record(sequence{pid: 2, base: 1, lastOffset: 1}, now.Add(23*time.Hour))
	load := func(taken, at time.Time) *producers {
		s, err := decodeSnapshot(encodeSnapshot(p, noKeys(), 2, taken), 2)
		if err != nil {
			t.Fatal(err)
		}
		is := newProducers(24*time.Hour, 0)
		is.load(s, at)
		return is
	}
	for _, c := range []struct {
		taken, loaded, then time.Duration
		want                int
	}{
		{23 * time.Hour, 23 * time.Hour, 23 * time.Hour, 2},
		{23 * time.Hour, 23 * time.Hour, 24 * time.Hour, 1},
		{23 * time.Hour, 24*time.Hour - time.Second, 24 * time.Hour, 1},
		{23 * time.Hour, 47 * time.Hour, 47 * time.Hour, 0},
		{24 * time.Hour, 24 * time.Hour, 24 * time.Hour, 1},
		{23 * time.Hour, -1000 * time.Hour, -977 * time.Hour, 2},
		{23 * time.Hour, -1000 * time.Hour, -976 * time.Hour, 0},
	} {
		is := load(now.Add(c.taken), now.Add(c.loaded))
		is.forget(now.Add(c.then))
		if is.len() != c.want {
			t.Errorf("%+v: %d producers", c, is.len())
		}
	}
}

// TestSnapshotClockBack proves that a state whose clock went back can be written
// and read again.
func TestSnapshotClockBack(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_000_000)
	p := newProducers(0, 0)
	p.record(sequence{pid: 1}, now)
	p.record(sequence{pid: 2, base: 1, lastOffset: 1}, now.Add(-time.Hour))
	p.record(sequence{pid: 1, first: 1, last: 1, base: 2, lastOffset: 2}, now.Add(-2*time.Hour))
	for _, at := range []time.Time{now.Add(-3 * time.Hour), now, now.Add(time.Hour)} {
		if s, err := decodeSnapshot(encodeSnapshot(p, noKeys(), 3, at), 3); err != nil || len(s.producers) != 2 {
			t.Errorf("%v: %d producers, %v", at, len(s.producers), err)
		}
	}
}

// TestSnapshotDamage proves that a snapshot with any bit flipped, cut anywhere
// or under another name is refused.
func TestSnapshotDamage(t *testing.T) {
	t.Parallel()
	good := encodeSnapshot(someProducers(9, time.UnixMilli(1e12)), noKeys(), 5000, time.UnixMilli(1e12))
	if _, err := decodeSnapshot(good, 5000); err != nil {
		t.Fatal(err)
	}
	if _, err := decodeSnapshot(good, 5001); !errors.Is(err, errBadSnapshot) {
		t.Errorf("another offset: %v", err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1 << (i % 8)
		if _, err := decodeSnapshot(bad, 5000); !errors.Is(err, errBadSnapshot) {
			t.Errorf("byte %d flipped: %v", i, err)
		}
		if _, err := decodeSnapshot(good[:i], 5000); !errors.Is(err, errBadSnapshot) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
}

// FuzzSnapshot proves that whatever is in a file of the right checksum, it is
// refused or says the same when it is written again, and takes no more memory
// than it has bytes for.
func FuzzSnapshot(f *testing.F) {
	now := time.UnixMilli(1e12)
	for _, n := range []int{0, 1, 6, 20} {
		b := encodeSnapshot(someProducers(n, now.Add(-time.Hour)), noKeys(), 1<<20, now)
		f.Add(b[:len(b)-4], int64(1<<20))
	}
	huge := encodeSnapshot(newProducers(0, 0), noKeys(), 1, now)
	le.PutUint32(huge[24:], 1<<31)
	f.Add(huge[:len(huge)-4], int64(1))
	f.Fuzz(func(t *testing.T, body []byte, next int64) {
		b := le.AppendUint32(bytes.Clone(body), crc32.Checksum(body, castagnoli))
		s, err := decodeSnapshot(b, next)
		if err != nil {
			if !errors.Is(err, errBadSnapshot) {
				t.Fatal(err)
			}
			return
		}
		if cap(s.producers)*producerSize > len(b) {
			t.Fatalf("%d producers of %d bytes", cap(s.producers), len(b))
		}
		p := newProducers(1<<62, 0)
		p.load(s, time.UnixMilli(1<<40))
		if p.len() != len(s.producers) {
			t.Fatalf("%d producers of %d", p.len(), len(s.producers))
		}
	})
}

// snapshotsOf are the offsets of the snapshot files of the test's log.
func snapshotsOf(t *testing.T, fs *disk.Mem) (at []int64) {
	t.Helper()
	names, err := fs.List("/data/logs/" + testID.dirName())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if next, ok := parseSnapshotName(name); ok {
			at = append(at, next)
		}
	}
	return at
}

func snapshotPath(next int64) string {
	return filepath.Join("/data/logs", testID.dirName(), snapshotName(next))
}

// send appends the n-th batch of a producer, two records of 100 bytes each.
func send(t *testing.T, l *Log, pid int64, n int32) Appended {
	t.Helper()
	b := batchOf(t, record.None, nil, strings.Repeat("v", 100), "second")
	return mustAppend(t, l, withProducer(b, pid, 0, 2*n))
}

// wantKnown proves that the n-th batch of a producer is known to have been
// appended at base.
func wantKnown(t *testing.T, l *Log, pid int64, n int32, base int64) {
	t.Helper()
	if at := send(t, l, pid, n); !at.Duplicate || at.Base != base {
		t.Errorf("batch %d of producer %d, sent again, gave %+v, want offset %d", n, pid, at, base)
	}
}

// TestSnapshotTimes proves when snapshots are written: at the end of a segment
// once it is sealed, after so much traffic, and at a clean stop; that two are
// kept; and that there are none where no idempotent producer wrote, or nothing
// since the last.
func TestSnapshotTimes(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, startConfig)
	for range 12 {
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 150)))
	}
	eventually(t, "the seals", func() bool { return l.Segments() > 1 && sealedCount(l) == l.Segments()-1 })
	mustClose(t, d)
	if at := snapshotsOf(t, fs); len(at) > 0 {
		t.Fatalf("without a producer: %v", at)
	}
	d = openDir(t, fs)
	l = openLog(t, d, startConfig)
	send(t, l, 1, 0)
	for n, before := int32(1), l.Segments(); l.Segments() == before; n++ {
		send(t, l, 1, n)
	}
	base := l.mu.segments[l.Segments()-1].base
	eventually(t, "the snapshot of the seal", func() bool { return slices.Equal(snapshotsOf(t, fs), []int64{base}) })
	mustClose(t, d)
	atStop := l.Offsets().End
	if at := snapshotsOf(t, fs); !slices.Equal(at, []int64{base, atStop}) {
		t.Fatalf("after a stop at %d: %v", atStop, at)
	}
	d = openDir(t, fs)
	l = openLog(t, d, startConfig)
	mustClose(t, d)
	if at := snapshotsOf(t, fs); !slices.Equal(at, []int64{base, atStop}) {
		t.Fatalf("after another stop: %v", at)
	}
	d = openDir(t, fs)
	l = openLog(t, d, Config{})
	l.writing.Lock()
	l.writing.unsaved = snapshotTraffic - 1
	l.writing.Unlock()
	last := send(t, l, 2, 0).Last + 1
	d.keeper.signal()
	eventually(t, "the snapshot of the traffic", func() bool {
		d.keeper.signal()
		return slices.Equal(snapshotsOf(t, fs), []int64{atStop, last})
	})
	mustClose(t, d)
}

// TestSnapshotRestart proves that after a stop, a kill and a power cut retries
// of the newest five batches of each producer are answered as before, and that
// a start reads little: not the batches in front of the snapshot.
func TestSnapshotRestart(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, Config{SegmentBytes: 20_000})
	bases := make(map[int64][]int64)
	for n := range int32(40) {
		for pid := range int64(20) {
			bases[pid] = append(bases[pid], send(t, l, pid, n).Base)
		}
		if n%10 == 9 {
			waitDurable(t, l)
			eventually(t, "the seals and the snapshots", func() bool {
				d.keeper.signal()
				l.writing.Lock()
				defer l.writing.Unlock()
				return sealedCount(l) == l.Segments()-1 && l.writing.taken == nil
			})
		}
	}
	forceCheckpoint(t, d)
	power, kill := fs.CrashClone(0, rand.New(rand.NewPCG(1, 1))), fs.CrashClone(1, nil)
	mustClose(t, d)
	for what, left := range map[string]*disk.Mem{"stop": fs, "kill": kill, "power cut": power} {
		var bytes atomic.Int64
		left.SetFault(func(op disk.Op) error {
			if op.Kind == disk.OpRead && strings.HasSuffix(op.Path, logSuffix) {
				bytes.Add(int64(op.Len))
			}
			return nil
		})
		d := openDir(t, left)
		l := openLog(t, d, Config{SegmentBytes: 20_000})
		left.SetFault(nil)
		if n := bytes.Load(); n > 80_000 {
			t.Errorf("%s: the start read %d of %d bytes", what, n, l.Size())
		}
		for pid := range int64(20) {
			for n := range int32(producerWindow) {
				wantKnown(t, l, pid, 35+n, bases[pid][35+n])
			}
			if _, err := l.Append(Append{Batch: withProducer(batchOf(t, record.None, nil, "a", "b"), pid, 0, 2*34)}); !errors.Is(err, ErrOutOfOrderSequence) {
				t.Errorf("%s: a batch that is too old gave %v", what, err)
			}
			send(t, l, pid, 40)
		}
		mustClose(t, d)
	}
}

// TestSnapshotBad proves that a start does without the newest snapshot, or
// without any, if they are damaged or were deleted, and with the same answers;
// and that what a snapshot says of offsets past the end is not believed.
func TestSnapshotBad(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, startConfig)
	var last Appended
	for n := range int32(12) {
		last = send(t, l, 1, n)
	}
	d.keeper.signal()
	eventually(t, "a snapshot", func() bool { return len(snapshotsOf(t, fs)) > 0 })
	mustClose(t, d)
	at := snapshotsOf(t, fs)
	if len(at) != 2 {
		t.Fatalf("snapshots %v", at)
	}
	for what, change := range map[string]func(*disk.Mem){
		"newest flipped": func(m *disk.Mem) { flipBit(t, m, snapshotPath(at[1]), 8*40+2) },
		"newest cut":     func(m *disk.Mem) { setFile(t, m, snapshotPath(at[1]), nil) },
		"newest huge":    func(m *disk.Mem) { setFile(t, m, snapshotPath(at[1]), make([]byte, maxSnapshotBytes+1)) },
		"both flipped": func(m *disk.Mem) {
			flipBit(t, m, snapshotPath(at[0]), 8*20+2)
			flipBit(t, m, snapshotPath(at[1]), 8*0+2)
		},
		"both deleted": func(m *disk.Mem) {
			if err := errors.Join(m.Remove(snapshotPath(at[0])), m.Remove(snapshotPath(at[1]))); err != nil {
				t.Fatal(err)
			}
		},
		"of another log": func(m *disk.Mem) {
			p := newProducers(0, 0)
			p.record(sequence{pid: 1, first: 90, last: 91}, time.Now())
			setFile(t, m, snapshotPath(last.Last+50), encodeSnapshot(p, noKeys(), last.Last+50, time.Now()))
		},
	} {
		m := fs.CrashClone(1, nil)
		change(m)
		d := openDir(t, m)
		l := openLog(t, d, startConfig)
		wantKnown(t, l, 1, 11, last.Base)
		wantKnown(t, l, 1, 7, last.Base-8)
		mustClose(t, d)
		if c := check(t, m); len(c.Findings) > 0 {
			t.Errorf("%s: after a restart:\n%s", what, c.lines())
		}
		if left := snapshotsOf(t, m); len(left) > 2 || slices.ContainsFunc(left, func(next int64) bool { return next > last.Last+1 }) {
			t.Errorf("%s: snapshots %v", what, left)
		}
	}
}

// TestSnapshotOutlivesRetention proves that a producer whose batches are all
// deleted is still known after a restart, until it expires by the broker's
// clock: 24 hours after its last write and not after the restart. It takes a
// restart after 23 hours, whether it comes after a stop or a kill.
func TestSnapshotOutlivesRetention(t *testing.T) {
	t.Parallel()
	for _, kill := range []bool{false, true} {
		fs := disk.NewMem()
		var now atomic.Int64
		now.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMilli())
		clock := func(o *Options) { o.Now = func() time.Time { return time.UnixMilli(now.Load()) } }
		d := openDir(t, fs, clock)
		l := openLog(t, d, startConfig)
		wrote := send(t, l, 1, 0)
		now.Add((23 * time.Hour).Milliseconds())
		for range 12 {
			mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 150)))
		}
		waitDurable(t, l)
		start := l.Offsets().End - 1
		if err := l.SetStart(start); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the removal", func() bool {
			d.keeper.bytes.Store(checkpointBytes)
			d.keeper.signal()
			names, err := fs.List("/data/logs/" + testID.dirName())
			return err == nil && !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, segmentName(0, 0)) })
		})
		old := d
		if kill {
			fs = fs.CrashClone(1, nil)
		} else {
			mustClose(t, d)
		}
		for _, c := range []struct {
			wait  time.Duration
			known bool
		}{{0, true}, {59 * time.Minute, true}, {time.Minute, false}} {
			now.Add(c.wait.Milliseconds())
			m := fs.CrashClone(1, nil)
			d := openDir(t, m, clock)
			l := openLogAt(t, d, startConfig, start)
			if at := send(t, l, 1, 0); at.Duplicate != c.known || c.known && at.Base != wrote.Base {
				t.Errorf("kill=%v, after %v more: %+v", kill, c.wait, at)
			}
			mustClose(t, d)
		}
		if kill {
			mustClose(t, old)
		}
	}
}

// TestSnapshotNoRoom proves that a full disk costs the snapshot and nothing
// else.
func TestSnapshotNoRoom(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, startConfig)
	fs.SetFault(func(op disk.Op) error {
		if op.Kind == disk.OpWrite && strings.HasSuffix(op.Path, snapshotSuffix) {
			return syscall.ENOSPC
		}
		return nil
	})
	var last Appended
	for n := range int32(12) {
		last = send(t, l, 1, n)
	}
	mustClose(t, d)
	fs.SetFault(nil)
	d = openDir(t, fs)
	if d.Unclean() {
		t.Error("the stop was not clean")
	}
	l = openLog(t, d, startConfig)
	wantKnown(t, l, 1, 11, last.Base)
	mustClose(t, d)
}
