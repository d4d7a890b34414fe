package storage

import (
	"testing"
	"testing/synctest"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestIdleLogsAreLeftAlone proves that the keeper does not look at logs whose
// newest segments need not end before long, however many there are, and that it
// looks again for a log that is opened, written, shortened or configured.
func TestIdleLogsAreLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := openDir(t, disk.NewMem())
		l := openLog(t, d, Config{SegmentAge: time.Hour})
		looks := func(what string, want int64) {
			t.Helper()
			time.Sleep(2 * keeperTick)
			synctest.Wait()
			if got := d.keeper.rolls.at.Load(); got != want {
				t.Errorf("%s: the next look is at %d, want %d", what, got, want)
			}
		}
		looks("an empty log", never)
		first := time.Now().UnixMilli()
		mustAppend(t, l, batchOf(t, record.None, []int64{first}, "a"))
		looks("one that was written", first+time.Hour.Milliseconds())
		time.Sleep(time.Minute)
		mustAppend(t, l, batchOf(t, record.None, []int64{first}, "b"))
		looks("one that was written again", first+time.Hour.Milliseconds())
		l.SetConfig(Config{SegmentAge: 30 * time.Minute})
		looks("one with another age", first+30*time.Minute.Milliseconds())
		if l.Segments() != 1 {
			t.Error("the segment has ended too soon")
		}
		if err := l.SetStart(2); err != nil {
			t.Fatal(err)
		}
		looks("one of which nothing is left", never)
		if base := l.mu.segments[0].base; base != 2 {
			t.Errorf("the segment with base %d is still there", base)
		}
		next := time.Now().UnixMilli()
		mustAppend(t, l, batchOf(t, record.None, []int64{next}, "c"))
		time.Sleep(30*time.Minute + 2*keeperTick)
		synctest.Wait()
		if l.Segments() != 2 {
			t.Error("the segment has not ended by its age")
		}
		mustClose(t, d)
	})
}
