package rest

import (
	"testing"
	"time"
)

// The interval is nothing for few sends, grows to its bound under load, finds a
// level between, and is forgotten after a silence.
func TestPacer(t *testing.T) {
	for _, tc := range []struct {
		streams  int64
		records  int64 // a second
		from, to time.Duration
	}{
		{1, 1000, 0, 0},
		{100, 10, 0, 0},
		{100, 200, 10 * time.Millisecond, 25 * time.Millisecond},
		{1000, 1000, maxGather, maxGather},
	} {
		p, now := &pacer{}, time.Unix(1000, 0)
		var seen time.Duration
		for range 100 {
			rate := tc.records
			if i := p.interval(); i > 0 {
				rate = min(rate, int64(time.Second/i))
			}
			for range tc.streams * rate / 10 {
				p.sent(now)
			}
			now = now.Add(pacerWindow)
			seen = p.interval()
		}
		if seen < tc.from || seen > tc.to {
			t.Errorf("%d streams at %d records/s: %v", tc.streams, tc.records, seen)
		}
		for range 10 {
			now = now.Add(time.Second)
			p.sent(now)
		}
		if p.interval() != 0 {
			t.Errorf("after a silence: %v", p.interval())
		}
	}
}
