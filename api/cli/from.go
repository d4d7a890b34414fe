package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// start is where a consumer begins: the parsed form of --from.
type start struct {
	kind  startKind
	value int64 // the offset, or milliseconds since 1970
}

type startKind int

const (
	fromEarliest startKind = iota
	fromLatest
	fromOffset
	fromTime
)

// parseStart reads earliest, latest, OFFSET or ts:MS.
func parseStart(s string) (start, error) {
	bad := usagef("--from %q: want earliest, latest, an offset, or ts:MILLISECONDS", s)
	switch s {
	case "earliest":
		return start{kind: fromEarliest}, nil
	case "latest":
		return start{kind: fromLatest}, nil
	}
	kind, digits := fromOffset, s
	if ms, ok := strings.CutPrefix(s, "ts:"); ok {
		kind, digits = fromTime, ms
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 0 {
		return start{}, bad
	}
	return start{kind: kind, value: n}, nil
}

// span is what a partition holds, and what a consumer means to read of it: [next, end) when it stops at the end.
type span struct {
	partition   int32
	first, end  int64 // the oldest offset there is, and one past the newest
	next        int64 // the offset to begin with
	atTimestamp int64 // the offset that a time lookup gave, -1 if none
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
				return nil, fmt.Errorf("offset %d is outside partition %d, which holds %d to %d (next %d)",
					from.value, s.partition, s.first, s.end-1, s.end)
			}
			s.next = from.value
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
