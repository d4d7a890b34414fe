package storage

import (
	"bytes"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestExpired is the table of which segments a log lets go: the oldest first,
// none behind one that stays, none past the bound, by size while enough is left,
// by age by a time that no record can put further ahead than the topic lets it.
func TestExpired(t *testing.T) {
	t.Parallel()
	const (
		now   = 10_000
		ahead = 100
	)
	type seg struct{ next, size, maxTimestamp, lastAppend int64 }
	none := Retention{MaxBytes: -1, MaxAge: -1, Bound: math.MaxInt64}
	age := func(ms int64) Retention {
		r := none
		r.MaxAge = time.Duration(ms) * time.Millisecond
		return r
	}
	size := func(n int64) Retention {
		r := none
		r.MaxBytes = n
		return r
	}
	both := func(ms, n int64) Retention {
		r := age(ms)
		r.MaxBytes = n
		return r
	}
	upTo := func(r Retention, bound int64) Retention {
		r.Bound = bound
		return r
	}
	// Four segments of 10 records and 100 bytes, the last one grows.
	four := []seg{{10, 100, 1000, 1000}, {20, 100, 2000, 2000}, {30, 100, 3000, 3000}, {40, 100, 4000, 4000}}
	with := func(i int, s seg) []seg {
		out := slices.Clone(four)
		out[i] = s
		return out
	}
	for _, c := range []struct {
		what  string
		segs  []seg
		start int64
		r     Retention
		want  Expired
	}{
		{"no limit", four, 0, none, Expired{0, 0, 0}},
		{"no limit, old start", four, 3, none, Expired{3, 0, 0}},

		{"older than the age", four, 0, age(7999), Expired{20, 0, 200}},
		{"as old as the age", four, 0, age(8000), Expired{10, 0, 100}},
		{"none is old", four, 0, age(9000), Expired{0, 0, 0}},
		{"all are, the one that grows too", four, 0, age(0), Expired{40, 0, 400}},
		{"the longest age", four, 0, age(math.MaxInt64 / 1_000_000), Expired{0, 0, 0}},
		{"start within a segment", four, 15, age(7999), Expired{20, 0, 100}},
		{"start within one that stays", four, 25, age(7999), Expired{25, 0, 0}},
		{"all is below the start", four, 40, age(0), Expired{40, 0, 0}},
		{"empty", []seg{{0, 0, -1, 0}}, 0, both(0, 0), Expired{0, 0, 0}},
		{"empty one that grows", append(slices.Clone(four[:2]), seg{20, 0, -1, 0}), 0, age(0), Expired{20, 0, 200}},
		{"empty one that grows, by size", append(slices.Clone(four[:2]), seg{20, 0, -1, 0}), 0, size(0), Expired{20, 200, 0}},

		{"a young one keeps what is behind it", with(0, seg{10, 100, 9990, 1000}), 0, age(8500), Expired{10, 0, 100}},
		{"a young one, by its append too", with(0, seg{10, 100, 9990, 9990}), 0, age(7000), Expired{0, 0, 0}},
		{"a time in the future pins nothing", with(0, seg{10, 100, 1 << 60, 1000}), 0, age(7999), Expired{20, 0, 200}},
		{"a time in the future counts as much as it may", with(0, seg{10, 100, 1 << 60, 1000}), 0, age(8900), Expired{0, 0, 0}},
		{"and no more", with(0, seg{10, 100, 1 << 60, 1000}), 0, age(8899), Expired{10, 0, 100}},
		{"the largest time and append", with(0, seg{10, 100, math.MaxInt64, math.MaxInt64}), 0, age(0), Expired{0, 0, 0}},
		{"old records appended today go", with(3, seg{40, 100, 5, 9999}), 0, age(5000), Expired{40, 0, 400}},
		{"no times", with(0, seg{10, 100, -1, 1000}), 0, age(8999), Expired{10, 0, 100}},
		{"no times, young", with(0, seg{10, 100, -1, 9000}), 0, age(1000), Expired{0, 0, 0}},
		{"time zero is a time", with(0, seg{10, 100, 0, 9999}), 0, age(9999), Expired{10, 0, 100}},

		{"more than the size", four, 0, size(299), Expired{10, 100, 0}},
		{"just the size is left", four, 0, size(300), Expired{10, 100, 0}},
		{"less than the size would be left", four, 0, size(301), Expired{0, 0, 0}},
		{"smaller than the size", four, 0, size(401), Expired{0, 0, 0}},
		{"nothing is to be left", four, 0, size(0), Expired{40, 400, 0}},
		{"what is below the start does not count", four, 20, size(100), Expired{30, 100, 0}},
		{"a segment with the start counts whole", four, 19, size(200), Expired{20, 100, 0}},

		{"size, then age", four, 0, both(6999, 300), Expired{30, 100, 200}},
		{"age gets further", four, 0, both(7999, 300), Expired{20, 100, 100}},
		{"size gets further", four, 0, both(8999, 100), Expired{30, 300, 0}},

		{"bound within the first", four, 0, upTo(both(0, 0), 9), Expired{0, 0, 0}},
		{"bound at an end", four, 0, upTo(age(0), 10), Expired{10, 0, 100}},
		{"bound within a later one", four, 0, upTo(size(0), 29), Expired{20, 200, 0}},
		{"bound within the one that grows", four, 0, upTo(age(0), 39), Expired{30, 0, 300}},

		{"the clock is behind all records", []seg{{10, 100, 20_000, 20_000}}, 0, age(0), Expired{0, 0, 0}},
	} {
		base := int64(0)
		var segs []*segment
		for _, s := range c.segs {
			sg := newSegment("d", base, 0)
			sg.next, sg.size, sg.maxTimestamp, sg.lastAppend = s.next, s.size, s.maxTimestamp, s.lastAppend
			segs, base = append(segs, sg), s.next
		}
		if got := expired(segs, c.start, now, ahead, &c.r); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}

// TestExpiredFollowed proves that an idle log that is told to let all go ends
// its last segment and is empty on the disk, that the next record has the next
// offset, and that what no flush has covered stays.
func TestExpiredFollowed(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d, l, want := startFixture(t, m, 20)
	old := time.Now().Add(time.Hour)
	all := Retention{MaxBytes: -1, MaxAge: time.Minute, Bound: 39}
	if e := l.Expired(old, all); e.Start != l.mu.segments[l.Segments()-1].base {
		t.Errorf("below the last record: %+v", e)
	}
	all.Bound = 40
	e := l.Expired(old, all)
	if (e != Expired{Start: 40, ByAge: l.Size()}) {
		t.Errorf("all: %+v", e)
	}
	if err := l.SetStart(e.Start); err != nil {
		t.Fatal(err)
	}
	want.start = e.Start
	eventually(t, "all ended segments to leave", func() bool { return l.Segments() == 1 && l.Size() == 0 })
	forceCheckpoint(t, d)
	eventually(t, "the files to go", func() bool {
		logs, trash := segmentFiles(t, m)
		return len(logs) == 1+3 && len(trash) == 0
	})
	want.check(t, l, rand.New(rand.NewPCG(1, 1)))
	if e := l.Expired(old, all); (e != Expired{Start: 40}) {
		t.Errorf("of an empty log: %+v", e)
	}

	lazy := startConfig
	lazy.FlushMessages = math.MaxInt64
	l.SetConfig(lazy)
	segments := l.Segments()
	b := batchOf(t, record.None, nil, strings.Repeat("v", 300))
	for l.Segments() < segments+2 {
		mustAppend(t, l, bytes.Clone(b))
		want.add(b)
	}
	all.Bound, all.MaxAge = math.MaxInt64, 0
	if e, o := l.Expired(old, all), l.Offsets(); e.Start > o.Durable {
		t.Errorf("let go up to %d of %+v", e.Start, o)
	}
	eventually(t, "the flush that a second brings", func() bool { return l.Expired(old, all).Start == l.Offsets().End })
	mustClose(t, d)
}

// TestClockWatch is the table of what is a step of the clock: back by more than
// a minute, ahead by more than a day; and of when it is trusted again.
func TestClockWatch(t *testing.T) {
	t.Parallel()
	const minute, hour = 60_000, 3_600_000
	const then = 1_700_000_000_000
	type look struct {
		wall, mono int64
		steady     bool
		step       int64
	}
	for _, c := range []struct {
		what       string
		last, wall int64
		looks      []look
	}{
		{"even", then, then, []look{{then, 0, true, 0}, {then + 5*minute, 5 * minute, true, 0}, {then + 9*24*hour, 9 * 24 * hour, true, 0}}},
		{"a fresh directory", 0, then, []look{{then + 10, 10, true, 0}}},
		{"off for a month", then, then + 720*hour, []look{{then + 720*hour, 0, true, 0}}},
		{"a stop of the process", then, then, []look{{then + 23*hour, 23 * hour, true, 0}}},
		{"a short sleep of the machine", then, then, []look{{then + 23*hour, 10, true, 0}}},
		{"a minute back", then, then, []look{{then + minute, 2 * minute, true, 0}, {then + minute, 3 * minute, true, 0}}},
		{"back", then, then, []look{
			{then - minute, 1, false, -minute - 1},
			{then + 8*minute, 9 * minute, false, 0},
			{then + 9*minute, 10 * minute, false, 0},
			{then + 9*minute + 1, 10*minute + 1, true, 0},
			{then + 10*minute, 11 * minute, true, 0},
		}},
		{"back over a restart", then, then - 2*minute, []look{{then - 2*minute, 0, false, -2 * minute}, {then + 8*minute, 10 * minute, true, 0}}},
		{"1970 over a restart", then, 5, []look{{5, 0, false, 5 - then}, {15, 10, false, 0}, {then, 20, false, then - 15 - 10}, {then + 10*minute, 20 + 10*minute, true, 0}}},
		{"a day ahead", then, then, []look{{then + 24*hour, 0, true, 0}, {then + 48*hour + 1, 0, false, 24*hour + 1}}},
		{"ahead and back", then, then, []look{
			{then + 100*24*hour, 0, false, 100 * 24 * hour},
			{then + 5*minute, 5 * minute, false, -100 * 24 * hour},
			{then + 14*minute, 14 * minute, false, 0},
			{then + 15*minute, 15 * minute, true, 0},
		}},
	} {
		w := newClockWatch(c.last, c.wall, 0)
		for i, l := range c.looks {
			if steady, step := w.look(l.wall, l.mono); steady != l.steady || step != l.step {
				t.Errorf("%s, look %d: steady %v, step %d, want %v, %d", c.what, i, steady, step, l.steady, l.step)
			}
		}
	}
}

// TestSteady proves that a clock that went back over a restart is noticed by the
// checkpoint's, told in one line, and shown by a metric.
func TestSteady(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	d, _, _ := startFixture(t, m, 2)
	now := time.Now()
	if !d.Steady(now) {
		t.Error("the clock is not steady at first")
	}
	mustClose(t, d)
	now = now.Add(-time.Hour)
	var lines bytes.Buffer
	registry := prometheus.NewRegistry()
	d = openDir(t, m, func(o *Options) {
		o.Now = func() time.Time { return now }
		o.Logger, o.Registerer = slog.New(slog.NewTextHandler(&lines, nil)), registry
	})
	for range 3 {
		if d.Steady(now) {
			t.Error("the clock went back by an hour and is steady")
		}
	}
	if n := strings.Count(lines.String(), "wall clock was set"); n != 1 || gathered(t, registry, "clock_unsteady") != 1 {
		t.Errorf("told %d times, metric %v:\n%s", n, gathered(t, registry, "clock_unsteady"), lines.String())
	}
	d.wall.since -= clockSettles.Milliseconds()
	for range 2 {
		if !d.Steady(now) {
			t.Error("the clock ran evenly for a while and is not steady")
		}
	}
	if n := strings.Count(lines.String(), "runs evenly"); n != 1 || gathered(t, registry, "clock_unsteady") != 0 {
		t.Errorf("told %d times, metric %v:\n%s", n, gathered(t, registry, "clock_unsteady"), lines.String())
	}
	mustClose(t, d)
}
