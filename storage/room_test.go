package storage

import (
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

func TestRoomMarks(t *testing.T) {
	// Proves where the marks are on disks of every size, that half of a disk at
	// most is kept free, and that a ballast is larger than what a commit needs.
	t.Parallel()
	const mib, gib = 1 << 20, 1 << 30
	for _, c := range []struct{ total, configured, mark, ballast int64 }{
		{0, 0, 0, 0},
		{16 * mib, 0, 2 * mib, 0},
		{200 * mib, 0, 25 * mib, 200 * mib / 32},
		{gib, 0, 128 * mib, 16 * mib},
		{4 * gib, 0, 256 * mib, 16 * mib},
		{100 * gib, 0, 2 * gib, gib},
		{10_000 * gib, 0, 4 * gib, gib},
		{200 * mib, 10 * mib, 10 * mib, 200 * mib / 32},
		{200 * mib, gib, 100 * mib, 200 * mib / 32},
	} {
		if mark, ballast := lowWaterMark(c.total, c.configured), ballastSize(c.total); mark != c.mark || ballast != c.ballast {
			t.Errorf("a disk of %d bytes, %d asked for: mark %d, ballast %d; want %d, %d", c.total, c.configured, mark, ballast, c.mark, c.ballast)
		}
		if b := ballastSize(c.total); b > 0 && b < commitRoomOf(c.total)*2 {
			t.Errorf("a disk of %d bytes: a ballast of %d bytes does not make room for a commit", c.total, b)
		}
	}
	for _, c := range []struct {
		was  roomState
		free int64
		want roomState
	}{
		{roomOpen, 1000, roomOpen},
		{roomOpen, 999, roomLow},
		{roomOpen, 500, roomLow},
		{roomOpen, 499, roomFull},
		{roomLow, 1249, roomLow},
		{roomLow, 1250, roomOpen},
		{roomLow, 499, roomFull},
		{roomFull, 0, roomFull},
		{roomFull, 624, roomFull},
		{roomFull, 625, roomLow},
		{roomFull, 1249, roomLow},
		{roomFull, 1250, roomOpen},
	} {
		if got := nextRoomState(c.was, c.free, 1000); got != c.want {
			t.Errorf("%v with %d of 1000 bytes: %v, want %v", c.was, c.free, got, c.want)
		}
	}
}

// logLines collects the messages of a logger.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// small is a directory on a disk of 64 MiB: the mark is 8 MiB, the ballast 2.
type small struct {
	fs    *disk.Mem
	d     *Dir
	l     *Log
	lines *logLines
	model model
}

const smallDisk = 64 << 20

var smallConfig = Config{SegmentBytes: 4 << 20, MaxBatchBytes: 4 << 20}

func newSmall(t *testing.T) *small {
	t.Helper()
	s := &small{fs: disk.NewMem(), lines: &logLines{}}
	s.fs.SetCapacity(smallDisk)
	s.open(t)
	eventually(t, "the ballast", func() bool { return s.ballast() > 0 })
	return s
}

func (s *small) open(t *testing.T) {
	t.Helper()
	s.d = openDir(t, s.fs, func(o *Options) {
		o.Ballast, o.Logger = true, slog.New(slog.NewTextHandler(s.lines, nil))
	})
	s.l = openLogAt(t, s.d, smallConfig, s.model.start)
}

// ballast is the size of the file.
func (s *small) ballast() int64 {
	info, err := s.fs.Stat("/data/BALLAST")
	if err != nil {
		return 0
	}
	return info.Size()
}

func (s *small) free(t *testing.T) int64 {
	t.Helper()
	_, free, err := s.d.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return free
}

func (s *small) append(t *testing.T, size int, essential bool) error {
	t.Helper()
	b := batchOf(t, record.None, nil, strings.Repeat("x", size))
	_, err := s.l.Append(Append{Batch: b, Essential: essential})
	if err == nil {
		s.model.add(b)
	}
	return err
}

// fill appends until it is refused.
func (s *small) fill(t *testing.T) {
	t.Helper()
	for range 1000 {
		if err := s.append(t, 1<<20, false); err != nil {
			if !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("the disk does not fill")
}

// shrink lets the oldest records go.
func (s *small) shrink(t *testing.T, records int64) {
	t.Helper()
	s.model.start = s.l.Offsets().Start + records
	if err := s.l.SetStart(s.model.start); err != nil {
		t.Fatal(err)
	}
}

func (s *small) check(t *testing.T) {
	t.Helper()
	s.model.check(t, s.l, rand.New(rand.NewPCG(1, 1)))
	if err := s.d.Failed(); err != nil {
		t.Fatal(err)
	}
}

func TestLowWater(t *testing.T) {
	// Proves that appends end at the mark and not at the last byte, that the
	// server's own go on, and that reading, a clean stop, kill -9 and a restart
	// work there; that removing segments makes room, after which appends work
	// without a restart; and that the log has one line for each change.
	t.Parallel()
	s := newSmall(t)
	s.fill(t)
	if free, mark := s.free(t), int64(smallDisk/8); free > mark+2<<20 || free < mark-(1<<20) {
		t.Fatalf("appends ended with %d bytes free, the mark is %d", free, mark)
	}
	if err := s.d.Room(); !errors.Is(err, ErrFull) {
		t.Fatalf("Room = %v", err)
	}
	for range 20 {
		if err := s.append(t, 10, false); !errors.Is(err, ErrFull) {
			t.Fatalf("append below the mark: %v", err)
		}
	}
	if err := s.append(t, 10, true); err != nil {
		t.Fatalf("the server's own append: %v", err)
	}
	if err := s.d.Create([]LogName{{ID: ID{Topic: TopicID{9}}}}); err != nil {
		t.Fatalf("a partition within the reserve: %v", err)
	}
	if err := s.d.Create(make([]LogName, 1000)); !errors.Is(err, ErrFull) {
		t.Fatalf("partitions beyond the reserve: %v", err)
	}
	s.check(t)

	killed := s.fs.CrashClone(1, nil)
	mustClose(t, s.d)
	mustClose(t, openDir(t, killed))
	s.open(t)
	if err := s.append(t, 10, false); !errors.Is(err, ErrFull) {
		t.Fatalf("append after a restart: %v", err)
	}
	s.check(t)

	s.shrink(t, 20)
	eventually(t, "room", func() bool { return s.d.Room() == nil })
	if err := s.append(t, 10, false); err != nil {
		t.Fatalf("append after there was room again: %v", err)
	}
	s.check(t)
	mustClose(t, s.d)
	// Once before the restart, once at the restart.
	if low, open := s.lines.count("nearly full"), s.lines.count("has room again"); low != 2 || open != 1 {
		t.Errorf("%d lines of a full disk and %d of room", low, open)
	}
}

func TestFilledByOthers(t *testing.T) {
	// Proves that when somebody else takes the last byte the ballast goes and
	// makes room for commits, no append and no work in the background harms
	// anything, records can be removed, and with the room the appends and the
	// ballast come back.
	t.Parallel()
	s := newSmall(t)
	for range 20 {
		if err := s.append(t, 1<<20, false); err != nil {
			t.Fatal(err)
		}
	}
	other, err := s.fs.OpenFile("/other", 0o102)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	fillAll := func() {
		for s.free(t) > 0 {
			if err := other.Allocate(0, fileSize(t, other)+s.free(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
	fillAll()
	if err := s.d.CommitRoom(1000); err != nil {
		t.Fatalf("a commit on a disk that somebody filled: %v", err)
	}
	if s.ballast() != 0 || s.free(t) != smallDisk/32 {
		t.Fatalf("ballast %d, %d bytes free", s.ballast(), s.free(t))
	}
	if err := s.append(t, 10, true); !errors.Is(err, ErrFull) {
		t.Fatalf("append on a full disk: %v", err)
	}
	fillAll()
	if err := s.d.CommitRoom(1000); !errors.Is(err, ErrFull) {
		t.Fatalf("a commit without a byte free: %v", err)
	}
	if s.d.ReleaseBallast() {
		t.Fatal("the ballast went twice")
	}
	s.check(t)

	// Segments still go, and the stop is clean as far as there is room for it.
	s.shrink(t, 8)
	eventually(t, "the files to go", func() bool { return s.free(t) >= 4<<20 })
	if err := s.d.CommitRoom(1000); err != nil {
		t.Fatalf("a commit after segments went: %v", err)
	}
	s.check(t)
	if err := other.Truncate(0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "room and ballast", func() bool { return s.d.Room() == nil && s.ballast() == smallDisk/32 })
	if err := s.append(t, 10, false); err != nil {
		t.Fatal(err)
	}
	s.check(t)
	mustClose(t, s.d)
	s.open(t)
	if s.d.Unclean() {
		t.Error("the stop was not clean")
	}
	s.check(t)
	mustClose(t, s.d)
}

func fileSize(t *testing.T, f disk.File) int64 {
	t.Helper()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestAgeSurvivesRestarts(t *testing.T) {
	// Proves that the age of the segment that grows does not begin anew with a
	// restart, be it clean or a crash, with or without an index that holds.
	t.Parallel()
	for _, way := range []string{"clean", "crash", "crash without index"} {
		var clock atomic.Int64
		clock.Store(1_700_000_000_000)
		now := func() time.Time { return time.UnixMilli(clock.Load()) }
		fs := disk.NewMem()
		cfg := Config{SegmentAge: time.Hour, IndexInterval: 1}
		d := openDir(t, fs, func(o *Options) { o.Now = now })
		l := openLog(t, d, cfg)
		for range 5 {
			mustAppend(t, l, batchOf(t, record.None, nil, "x"))
			clock.Add(10 * time.Minute.Milliseconds())
		}
		waitDurable(t, l)
		forceCheckpoint(t, d)
		left := fs
		if way == "clean" {
			mustClose(t, d)
		} else {
			left = fs.CrashClone(1, nil)
			mustClose(t, d)
		}
		if way == "crash without index" {
			setFile(t, left, l.mu.segments[0].stem+indexSuffix, nil)
		}
		d = openDir(t, left, func(o *Options) { o.Now = now })
		l = openLog(t, d, cfg)
		if _, err := l.rollIfOver(now()); err != nil || l.Segments() != 1 {
			t.Errorf("%s: %d segments after 50 minutes, %v", way, l.Segments(), err)
		}
		clock.Add(10*time.Minute.Milliseconds() + 1000)
		if _, err := l.rollIfOver(now()); err != nil || l.Segments() != 2 {
			t.Errorf("%s: %d segments after an hour, %v", way, l.Segments(), err)
		}
		mustClose(t, d)
	}
}

// TestFullCompaction proves that a compaction for which there is no room is refused
// before it reads anything, and is done once there is.
func TestFullCompaction(t *testing.T) {
	t.Parallel()
	s := newSmall(t)
	c := smallConfig
	c.Compact, c.SegmentBytes = true, 1<<20
	s.l.SetConfig(c)
	for i := range 12 {
		mustAppend(t, s.l, keyedBatch(t, record.None, keyed{key: strconv.Itoa(i % 3), value: strings.Repeat("v", 500<<10)}))
	}
	waitDurable(t, s.l)
	eventually(t, "the seals", func() bool { return sealedCount(s.l) == s.l.Segments()-1 })
	other, err := s.fs.OpenFile("/other", 0o102)
	if err == nil {
		err = other.Allocate(0, s.free(t)-lowWaterMark(smallDisk, 0)-100<<10)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.d.room.measure()
	done, err := s.l.Compact(t.Context(), NewCleaner(CleanerOptions{}), math.MaxInt64)
	if !errors.Is(err, ErrFull) || done.Read > 0 {
		t.Errorf("%d bytes were read: %v", done.Read, err)
	}
	if err := errors.Join(other.Close(), s.fs.Remove("/other")); err != nil {
		t.Fatal(err)
	}
	s.d.room.measure()
	if done, err := s.l.Compact(t.Context(), NewCleaner(CleanerOptions{}), math.MaxInt64); err != nil || done.Removed == 0 {
		t.Errorf("with room: %+v, %v", done, err)
	}
	mustClose(t, s.d)
}
