package api

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"

	"leat/broker"
)

func topicID(fill byte) (id broker.TopicID) {
	for i := range id {
		id[i] = fill
	}
	return id
}

// A cursor says again what it was made of, whatever the order, and is small.
func TestCursor(t *testing.T) {
	for _, at := range [][]broker.TailStart{
		nil,
		{{Partition: 0, Offset: 0}},
		{{Partition: 2147483647, Offset: 1<<63 - 1}},
		{{Partition: 0, Offset: 5}, {Partition: 1, Offset: 1 << 40}, {Partition: 7, Offset: 0}},
	} {
		text := Cursor{Topic: topicID(9), At: at}.String()
		got, err := ParseCursor(text)
		if err != nil || got.Topic != topicID(9) || !slices.Equal(got.At, at) {
			t.Errorf("%v: %v, %v", at, got, err)
		}
	}
	mixed := Cursor{At: []broker.TailStart{{Partition: 3, Offset: 1}, {Partition: 1, Offset: 2}}}
	got, err := ParseCursor(mixed.String())
	if err != nil || !slices.Equal(got.At, []broker.TailStart{{Partition: 1, Offset: 2}, {Partition: 3, Offset: 1}}) || mixed.At[0].Partition != 3 {
		t.Errorf("%v, %v", got, err)
	}
	many := Cursor{}
	for p := range int32(1000) {
		many.At = append(many.At, broker.TailStart{Partition: p, Offset: 1 << 20})
	}
	if n := len(many.String()); n > 7*1000 {
		t.Errorf("%d bytes for 1,000 partitions", n)
	}
}

// What was changed, cut, made by a later version or is too long is no cursor.
func TestBadCursor(t *testing.T) {
	good := Cursor{Topic: topicID(1), At: []broker.TailStart{{Partition: 0, Offset: 300}}}.String()
	for i := range len(good) {
		for _, bad := range []string{good[:i] + "!" + good[i+1:], good[:i] + "\n" + good[i:], good[:i]} {
			if _, err := ParseCursor(bad); !errors.Is(err, ErrBadCursor) {
				t.Errorf("%q: %v", bad, err)
			}
		}
		if c := good[:i] + "A" + good[i+1:]; c != good {
			if _, err := ParseCursor(c); !errors.Is(err, ErrBadCursor) {
				t.Errorf("%q: %v", c, err)
			}
		}
	}
	for _, bad := range []string{"earliest", "====", good + "=", strings.Repeat("A", maxCursorText+1), base64.RawURLEncoding.EncodeToString([]byte{2, 0, 0})} {
		if _, err := ParseCursor(bad); !errors.Is(err, ErrBadCursor) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
}

// Whatever the text, it is a cursor that is written just so or an error.
func FuzzCursor(f *testing.F) {
	for _, c := range []Cursor{{}, {Topic: topicID(3), At: []broker.TailStart{{Partition: 1, Offset: 1 << 50}, {Partition: 5}}}} {
		f.Add(c.String())
	}
	f.Add("AQ")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCursor(text)
		if err != nil {
			if !errors.Is(err, ErrBadCursor) {
				t.Fatal(err)
			}
			return
		}
		if c.String() != text {
			t.Fatalf("%q is read as %v, which is %q", text, c, c.String())
		}
		for i, s := range c.At {
			if s.Offset < 0 || s.Partition < 0 || i > 0 && c.At[i-1].Partition >= s.Partition {
				t.Fatalf("%q: %v", text, c.At)
			}
		}
	})
}
