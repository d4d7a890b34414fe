package rest

import (
	"testing"
	"time"

	"leat/api"
)

// An NDJSON stream is records and positions: it begins with one, whatever is
// sent ends with one, and one comes while nothing is sent.
func TestLines(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	atPace(d, func(p *pace) { p.position = 20 * time.Millisecond })
	d.append(0, 5, 6)
	for _, path := range []string{streamT0 + "?stream=true&offset=1", streamT + "?from=earliest&stream=true"} {
		l := d.follow(path, mediaNDJSON)
		place := func(s streamed) streamed {
			t.Helper()
			if s.Control != "position" {
				t.Fatalf("%+v is no position", s)
			}
			if path[:len(streamT)] != streamT {
				return s
			}
			c, err := api.ParseCursor(s.Cursor)
			if err != nil || len(c.At) != 2 {
				t.Fatalf("%+v: %v", s, err)
			}
			s.Next = c.At[0].Offset
			return s
		}
		first := place(l.item())
		if first.TopicID != d.topicID() {
			t.Errorf("%+v", first)
		}
		for offset := first.Next; offset < 2; offset++ {
			if s := l.item(); s.Offset != offset || s.Control != "" {
				t.Errorf("%+v", s)
			}
		}
		for range 3 {
			if s := place(l.item()); s.Next != 2 || s.TopicID != "" {
				t.Errorf("%+v", s)
			}
		}
		l.close()
	}
}

// Its last line says why it ends, as does the trailer, which is announced.
func TestCloseReason(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	atPace(d, func(p *pace) { p.life = 30 * time.Millisecond })
	l := d.follow(streamT0+"?stream=true", mediaNDJSON)
	if _, announced := l.Trailer[closeReason]; !announced {
		t.Errorf("trailer %v is announced", l.Trailer)
	}
	if s := l.control("end"); s.Reason != endLifetime {
		t.Errorf("%+v", s)
	}
	if _, err := l.line(); err == nil || l.Trailer.Get(closeReason) != endLifetime {
		t.Errorf("%v, trailer %v", err, l.Trailer)
	}
}
