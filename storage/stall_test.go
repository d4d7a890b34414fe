package storage

import (
	"log/slog"
	"math/rand/v2"
	"path"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

func TestStallsCount(t *testing.T) {
	// Proves that the longest running operation counts, that more operations than
	// can be watched harm nothing, and that nothing is left when all have ended.
	t.Parallel()
	s := stalls{opened: time.Now().Add(-time.Hour)}
	if s.longest() != 0 {
		t.Fatal("something runs")
	}
	first := s.begin()
	first.Store(int64(time.Minute))
	slots := make([]*atomic.Int64, 2*stallSlots)
	for i := range slots {
		slots[i] = s.begin()
	}
	if got := s.longest(); got < 59*time.Minute || got > 60*time.Minute {
		t.Errorf("the longest runs for %v", got)
	}
	end(first)
	if got := s.longest(); got > 50*time.Minute {
		t.Errorf("the longest runs for %v after it ended", got)
	}
	for _, slot := range slots {
		end(slot)
	}
	if s.longest() != 0 {
		t.Error("something still runs")
	}
	end(nil)
}

func TestStalledDisk(t *testing.T) {
	// Proves that a disk that hangs in its syncs holds up only what must be on it:
	// appends return, what is in memory is read, other logs are, too; that Stalled
	// and the log say so, and that all is well, and durable, when it answers.
	t.Parallel()
	fs := disk.NewMem()
	lines := &logLines{}
	d := openDir(t, fs, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(lines, nil)) })
	l := openLog(t, d, Config{})
	other, err := d.OpenLog(t.Context(), ID{Topic: TopicID{8}}, "other", Config{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var m, o model
	put := func(l *Log, m *model, value string) {
		t.Helper()
		b := batchOf(t, record.None, nil, value)
		mustAppend(t, l, b)
		m.add(b)
	}
	put(l, &m, "first")
	put(other, &o, "first")
	waitDurable(t, l)
	waitDurable(t, other)

	entered := make(chan bool, 100)
	release := fs.Stall(func(op disk.Op) bool {
		syncs := op.Kind == disk.OpSync || op.Kind == disk.OpSyncData || op.Kind == disk.OpSyncAll || op.Kind == disk.OpSyncDir
		if syncs && (path.Dir(path.Dir(op.Path)) == "/data/logs" || op.Path == "/data") {
			entered <- true
			return true
		}
		return false
	})
	put(l, &m, "stalled")
	<-entered
	for range 100 {
		put(l, &m, "more")
		put(other, &o, "more")
	}
	rng := rand.New(rand.NewPCG(1, 1))
	m.check(t, l, rng)
	o.check(t, other, rng)
	eventually(t, "the stall to show", func() bool { return d.Stalled() > 100*time.Millisecond })
	if at := l.Offsets(); at.Durable != 1 {
		t.Errorf("durable up to %d on a disk that hangs", at.Durable)
	}
	if !d.tellStall(false, StallAfter) || d.tellStall(true, StallAfter-1) || lines.count("does not answer") != 1 || lines.count("answers again") != 1 {
		t.Errorf("log: %s", lines.text.String())
	}
	release()
	waitDurable(t, l)
	waitDurable(t, other)
	eventually(t, "the stall to be over", func() bool { return d.Stalled() == 0 })
	mustClose(t, d)
}

// TestStallOfFullDisk proves that a disk that hangs while it is full, so that even
// the measurement of its room waits, is told of all the same, and when it answers.
func TestStallOfFullDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSmall(t)
		release := s.fs.Stall(func(op disk.Op) bool { return op.Kind == disk.OpRemove && path.Base(op.Path) == ballastFile })
		other, err := s.fs.OpenFile("/other", 0o102)
		if err == nil {
			err = other.Allocate(0, s.free(t))
		}
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(StallAfter + 2*keeperTick)
		synctest.Wait()
		if lines := s.lines.count("does not answer"); lines != 1 || s.ballast() == 0 {
			t.Errorf("%d lines, %d bytes of ballast:\n%s", lines, s.ballast(), s.lines.text.String())
		}
		release()
		time.Sleep(2 * keeperTick)
		synctest.Wait()
		if s.lines.count("answers again") != 1 || s.ballast() != 0 {
			t.Errorf("%d bytes of ballast:\n%s", s.ballast(), s.lines.text.String())
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		mustClose(t, s.d)
	})
}
