package storage

import (
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestShouldRoll is the table of when a segment ends before a batch.
func TestShouldRoll(t *testing.T) {
	cfg := Config{SegmentBytes: 1000, SegmentAge: time.Minute, SegmentIndexBytes: 80}.withDefaults()
	for _, c := range []struct {
		what        string
		tail        tail
		size, delta int64
		age         int64
		want        bool
	}{
		{"empty", tail{}, 5000, 0, 0, false},
		{"empty and old", tail{}, 10, 0, 100_000, false},
		{"fits", tail{size: 900, next: 9}, 100, 0, 0, false},
		{"too large", tail{size: 900, next: 9}, 101, 0, 0, true},
		{"old", tail{size: 10, next: 1}, 10, 0, 60_000, true},
		{"not yet old", tail{size: 10, next: 1}, 10, 0, 59_999, false},
		{"clock went back", tail{size: 10, next: 1}, 10, 0, -60_000, false},
		{"last delta fits", tail{size: 10, base: 5, next: 5 + math.MaxInt32}, 10, 0, 0, false},
		{"last delta does not fit", tail{size: 10, base: 5, next: 5 + math.MaxInt32}, 10, 1, 0, true},
		{"index full", tail{size: 10, next: 1, entries: make([]entry, 6)}, 10, 0, 0, true},
		{"time index full", tail{size: 10, next: 1, times: make([]timeEntry, 6)}, 10, 0, 0, true},
		{"indexes have room", tail{size: 10, next: 1, entries: make([]entry, 5), times: make([]timeEntry, 5)}, 10, 0, 0, false},
	} {
		if got := shouldRoll(&c.tail, 1_000_000, c.size, c.delta, 1_000_000+c.age, &cfg); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// TestPreallocStep is the table of how much is reserved.
func TestPreallocStep(t *testing.T) {
	const kb, mb, gb = 1 << 10, 1 << 20, 1 << 30
	for _, c := range []struct {
		what                                                string
		size, allocated, need, recent, segment, slack, free int64
		want                                                int64
	}{
		{"room is left", 10 * kb, 20 * kb, 10 * kb, gb, gb, 0, gb, 0},
		{"first append", 0, 0, kb, kb, gb, 0, gb, minPrealloc},
		{"busy", mb, mb, kb, 5 * mb, gb, 0, gb, 5 * mb},
		{"very busy", mb, mb, kb, gb, gb, 0, gb, maxPrealloc},
		{"batch larger than the step", 0, 0, mb, kb, gb, 0, gb, mb},
		{"end of the segment", mb, mb, kb, gb, mb + 100*kb, 0, gb, 100 * kb},
		{"share of the free space is taken", mb, mb, kb, kb, gb, 50 * mb, gb, minPrealloc},
		{"no more than the share", mb, mb, kb, kb, gb, 52 * mb, gb, 0},
		{"disk is full", 0, 0, kb, kb, gb, 0, 0, 0},
	} {
		if got := preallocStep(c.size, c.allocated, c.need, c.recent, c.segment, c.slack, c.free); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
}

// TestRate proves that the estimate follows what was appended in the last ten
// seconds.
func TestRate(t *testing.T) {
	var r rate
	r.add(20_000, 100)
	for _, c := range []struct{ at, want int64 }{{20_000, 100}, {29_999, 100}} {
		if got := r.bytes(c.at); got != c.want {
			t.Errorf("at %d: %d, want %d", c.at, got, c.want)
		}
	}
	r.add(35_000, 1)
	if got := r.bytes(35_000); got != 51 {
		t.Errorf("half a window later: %d, want 51", got)
	}
	r.add(60_000, 7)
	if got := r.bytes(60_000); got != 7 {
		t.Errorf("long after: %d, want 7", got)
	}
}

// TestPreferSyncAll is the table of the two ways to make files durable.
func TestPreferSyncAll(t *testing.T) {
	for _, c := range []struct {
		what  string
		costs flushCosts
		n     int
		want  bool
	}{
		{"few", flushCosts{}, syncAllFrom - 1, false},
		{"many, nothing known", flushCosts{}, syncAllFrom, true},
		{"many, files not known", flushCosts{syncAll: 5}, 100, false},
		{"syncfs is cheaper", flushCosts{syncAll: 1000, perFile: 100}, 11, true},
		{"syncfs is dearer", flushCosts{syncAll: 1000, perFile: 100}, 9, false},
		{"syncfs was dearer long ago", flushCosts{syncAll: 1000, perFile: 1, sinceAll: costExpires}, 9, true},
		{"files were dearer long ago", flushCosts{syncAll: 1, perFile: 100, sinceEach: costExpires}, 9, false},
	} {
		if got := c.costs.preferSyncAll(c.n); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
	var c flushCosts
	for range 50 {
		c.learn(true, 10, 3*time.Millisecond)
		c.learn(false, 10, 20*time.Millisecond)
	}
	c.learn(false, 1, time.Hour) // says nothing
	if c.perFile != 2*time.Millisecond || c.syncAll != 3*time.Millisecond || !c.preferSyncAll(10) {
		t.Errorf("learnt %+v", c)
	}
}

// TestJoinCRC proves that joined checksums are those of the joined bytes.
func TestJoinCRC(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{0, 1, 2, 7, 8, 63, 255, 256, 1000, 65_515, 65_536, 100_000} {
		a, b := make([]byte, rng.IntN(5000)), make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		want := crc32.Update(crcOf(a), castagnoli, b)
		if got := joinCRC(crcOf(a), crcOf(b), n); got != want {
			t.Errorf("%d bytes: %08x, want %08x", n, got, want)
		}
	}
	for _, n := range []int{1 << 16, 1<<24 - 1, 1 << 24, 1<<31 - 1} {
		if got, want := joinCRC(0x12345678, 9, n), multiply(0x12345678, xPower(8*int64(n)%xOrder))^9; got != want {
			t.Errorf("%d bytes: %08x, want %08x", n, got, want)
		}
	}
	big := batchOf(t, record.None, nil, string(make([]byte, 2*combineAbove)))
	if got, want := extendCRC(7, big), crc32.Update(7, castagnoli, big); got != want {
		t.Errorf("batch: %08x, want %08x", got, want)
	}
}

// TestFileBudget is the table of open idle files for a descriptor limit.
func TestFileBudget(t *testing.T) {
	for _, c := range []struct {
		limit uint64
		want  int
	}{{16, minFiles}, {64, 10}, {1024, 170}, {1 << 20, maxFiles}, {math.MaxUint64, maxFiles}} {
		if got := fileBudget(c.limit); got != c.want {
			t.Errorf("%d: %d, want %d", c.limit, got, c.want)
		}
	}
}

// TestSegmentName proves that names are read as they are written, and nothing
// else is taken for one.
func TestSegmentName(t *testing.T) {
	for _, base := range []int64{0, 1, math.MaxInt64} {
		for _, suffix := range []string{logSuffix, indexSuffix, timeSuffix} {
			b, g, s, ok := parseSegmentName(segmentName(base, 0xabc) + suffix)
			if !ok || b != base || g != 0xabc || s != suffix {
				t.Errorf("%d%s: %d %x %s %v", base, suffix, b, g, s, ok)
			}
		}
	}
	for _, name := range []string{
		"", ".log", partitionFile, "00000000000000000000.log", "00000000000000000000-00000g.log", "00000000000000000000-00000A.log",
		"-0000000000000000001-000000.log", "00000000000000000000-000000.txt", "99999999999999999999-000000.log",
	} {
		if _, _, _, ok := parseSegmentName(name); ok {
			t.Errorf("%q was taken for a segment", name)
		}
	}
}

// TestTimestamps proves the rules for the timestamps of a batch: bounds,
// a wrong maximum, log append time, no timestamp (cases 17 and 19).
func TestTimestamps(t *testing.T) {
	now := time.UnixMilli(1_000_000_000)
	for _, c := range []struct {
		what  string
		cfg   Config
		times []int64
		err   error
	}{
		{"now", Config{}, []int64{now.UnixMilli()}, nil},
		{"none", Config{TimestampBefore: time.Minute}, []int64{-1}, nil},
		{"an hour ahead", Config{}, []int64{now.UnixMilli() + 3_600_000}, nil},
		{"more than an hour ahead", Config{}, []int64{0, now.UnixMilli() + 3_600_001}, record.ErrTimestamp},
		{"microseconds", Config{}, []int64{now.UnixMicro()}, record.ErrTimestamp},
		{"old, no bound", Config{}, []int64{0}, nil},
		{"too old", Config{TimestampBefore: time.Minute}, []int64{now.UnixMilli(), now.UnixMilli() - 60_001}, record.ErrTimestamp},
		{"old as the bound", Config{TimestampBefore: time.Minute}, []int64{now.UnixMilli() - 60_000}, nil},
	} {
		d := openDir(t, disk.NewMem(), func(o *Options) { o.Now = func() time.Time { return now } })
		l := openLog(t, d, c.cfg)
		values := []string{"a", "b"}[:len(c.times)]
		_, err := l.Append(Append{Batch: batchOf(t, record.None, c.times, values...)})
		if !errors.Is(err, c.err) || c.err == nil && err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if end := l.Offsets().End; (end == 0) != (c.err != nil) {
			t.Errorf("%s: the log ends at %d", c.what, end)
		}
		mustClose(t, d)
	}
}

// TestMaxTimestampCorrected proves case 17: a header that lacks the maximum
// gets it, with a checksum that holds, and the record is found.
func TestMaxTimestampCorrected(t *testing.T) {
	d := openDir(t, disk.NewMem())
	l := openLog(t, d, Config{})
	b := batchOf(t, record.None, []int64{500}, "v")
	b.SetMaxTimestamp(-1, false)
	mustAppend(t, l, b)
	got := record.Batch(mustRead(t, l, 0, 1000, 1))
	if got.MaxTimestamp() != 500 || got.VerifyCRC() != nil {
		t.Errorf("stored maximum %d, checksum %v", got.MaxTimestamp(), got.VerifyCRC())
	}
	if offset, ts, err := l.FindTime(500, 1); offset != 0 || ts != 500 || err != nil {
		t.Errorf("found %d at %d, %v", offset, ts, err)
	}
	mustClose(t, d)
}

// TestLogAppendTime proves that the broker's clock is stamped on batches, never
// backwards, and told to the producer, also for a duplicate after a restart.
func TestLogAppendTime(t *testing.T) {
	fs := disk.NewMem()
	now := time.UnixMilli(5000)
	clock := func(o *Options) { o.Now = func() time.Time { return now } }
	d := openDir(t, fs, clock)
	l := openLog(t, d, Config{LogAppendTime: true})
	batch := func() record.Batch { return withProducer(batchOf(t, record.Gzip, []int64{1}, "v"), 9, 0, 0) }
	if at := mustAppend(t, l, batch()); at.Timestamp != 5000 {
		t.Errorf("stamped %d", at.Timestamp)
	}
	now = time.UnixMilli(4000)
	if at := mustAppend(t, l, batchOf(t, record.None, []int64{1}, "v")); at.Timestamp != 5000 {
		t.Errorf("stamped %d after the clock went back", at.Timestamp)
	}
	mustClose(t, d)
	d = openDir(t, fs, clock)
	l = openLog(t, d, Config{LogAppendTime: true})
	if at := mustAppend(t, l, batch()); !at.Duplicate || at.Base != 0 || at.Timestamp != 5000 {
		t.Errorf("the duplicate gave %+v", at)
	}
	if offset, ts, err := l.FindTime(2, 2); offset != 0 || ts != 5000 || err != nil {
		t.Errorf("found %d at %d, %v", offset, ts, err)
	}
	mustClose(t, d)
}

// TestAppendRefuses proves that a batch that breaks a rule changes nothing.
func TestAppendRefuses(t *testing.T) {
	d := openDir(t, disk.NewMem())
	good := batchOf(t, record.None, nil, "value")
	flipped := batchOf(t, record.None, nil, "value")
	flipped[len(flipped)-2] ^= 1
	for _, c := range []struct {
		what  string
		cfg   Config
		batch record.Batch
		want  error
	}{
		{"nothing", Config{}, nil, record.ErrCorrupt},
		{"half", Config{}, good[:len(good)-1], record.ErrCorrupt},
		{"two", Config{}, append(append(record.Batch{}, good...), good...), record.ErrCorrupt},
		{"too large", Config{MaxBatchBytes: len(good) - 1}, good, ErrTooLarge},
		{"bad checksum", Config{}, flipped, record.ErrCorrupt},
		{"bad checksum, header only", Config{HeaderOnly: true}, flipped, record.ErrCorrupt},
		{"no key", Config{RequireKeys: true, HeaderOnly: true}, good, record.ErrInvalid},
	} {
		l := openLog(t, d, c.cfg)
		if _, err := l.Append(Append{Batch: c.batch}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
		if l.Offsets().End != 0 {
			t.Errorf("%s: something was appended", c.what)
		}
		if err := d.Remove(l); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, d)
}

func crcOf(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }
