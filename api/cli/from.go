package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// start is where a consumer begins: the parsed form of --from.
type start struct {
	kind  startKind
	value int64 // the offset, milliseconds since 1970, or how many records before the end
}

type startKind int

const (
	fromEarliest startKind = iota
	fromLatest
	fromOffset
	fromTime
	fromTail
)

// parseStart reads the value of a flag: earliest, latest, OFFSET, ts:TIME or tail:N.
func parseStart(flag, s string) (start, error) {
	bad := usagef("%s %q: want earliest, latest, an offset, ts:TIME or tail:N", flag, s)
	switch s {
	case "earliest":
		return start{kind: fromEarliest}, nil
	case "latest":
		return start{kind: fromLatest}, nil
	}
	if text, ok := strings.CutPrefix(s, "ts:"); ok {
		ms, err := parseTime(text)
		if err != nil {
			return start{}, bad
		}
		return start{kind: fromTime, value: ms}, nil
	}
	kind, digits := fromOffset, s
	if n, ok := strings.CutPrefix(s, "tail:"); ok {
		kind, digits = fromTail, n
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 {
		return start{}, bad
	}
	return start{kind: kind, value: n}, nil
}

// parseTime reads milliseconds since 1970, or a time as in RFC 3339.
func parseTime(s string) (ms int64, err error) {
	if ms, err = strconv.ParseInt(s, 10, 64); err != nil {
		var t time.Time
		if t, err = time.Parse(time.RFC3339, s); err == nil {
			ms = t.UnixMilli()
		}
	}
	if err != nil || ms < 0 {
		return 0, fmt.Errorf("%q is no time: want milliseconds since 1970 or, for example, 2026-01-31T12:00:00Z", s)
	}
	return ms, nil
}

// span is what a partition holds, and what a consumer means to read of it: [next, end) when it stops at the end.
type span struct {
	partition   int32
	first, end  int64 // the oldest offset there is, and one past the newest
	next        int64 // the offset to begin with
	atTimestamp int64 // the offset that a time lookup gave, -1 if none; the end if no record is as late
	atTime      int64 // the timestamp of the record there, -1 if none
}

// holds says what a partition has, for one who asked for something else.
func (s span) holds() string {
	if s.first >= s.end {
		return fmt.Sprintf("is empty (next %d)", s.end)
	}
	return fmt.Sprintf("holds %d to %d (next %d)", s.first, s.end-1, s.end)
}

// plan decides where to begin in each partition. Only with one partition can an offset be meant, and it must exist
// (the end itself exists: it is the next record).
func plan(from start, spans []span) ([]span, error) {
	if from.kind == fromOffset && len(spans) > 1 {
		return nil, usagef("--from %d needs --partition: the topic has %d partitions", from.value, len(spans))
	}
	planned := slices.Clone(spans)
	for i := range planned {
		s := &planned[i]
		switch from.kind {
		case fromEarliest:
			s.next = s.first
		case fromLatest:
			s.next = s.end
		case fromOffset:
			if from.value < s.first || from.value > s.end {
				return nil, fmt.Errorf("offset %d is outside partition %d, which %s", from.value, s.partition, s.holds())
			}
			s.next = from.value
		case fromTail:
			s.next = max(s.first, s.end-from.value)
		case fromTime:
			s.next = s.atTimestamp
			if s.next < 0 {
				s.next = s.end
			}
		}
	}
	slices.SortFunc(planned, func(a, b span) int { return cmp.Compare(a.partition, b.partition) })
	return planned, nil
}
