package api

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"leat/auth"
	"leat/broker"
)

// Place says where reading begins, in words that are resolved to offsets when
// it does. The zero value is latest. It is immutable.
type Place struct {
	kind    placeKind
	n       int64 // of a time in ms, or of a tail
	offsets map[int32]int64
	cursor  Cursor
}

type placeKind uint8

const (
	placeLatest placeKind = iota
	placeEarliest
	placeTime
	placeTail
	placeOffsets
	placeCursor
)

// The words and prefixes of a Place.
const (
	FromEarliest = "earliest"
	FromLatest   = "latest"
	FromTime     = "ts:"
	FromTail     = "tail:"
)

// ParsePlace reads "earliest", "latest" (records to come), "ts:TIME" (the first
// record that is not older, in each partition, or records to come if there is
// none) or "tail:N" (the last N offsets of each partition). The error is a
// *Problem about the parameter "from".
func ParsePlace(text string) (Place, error) {
	switch text {
	case FromEarliest:
		return Place{kind: placeEarliest}, nil
	case FromLatest:
		return Place{kind: placeLatest}, nil
	}
	if t, ok := strings.CutPrefix(text, FromTime); ok {
		ms, ok := ParseTimestamp(t)
		if !ok {
			return Place{}, InvalidParameter("from", "want milliseconds since 1970, or a time as in RFC 3339")
		}
		return PlaceTime(ms), nil
	}
	if t, ok := strings.CutPrefix(text, FromTail); ok {
		n, err := strconv.ParseUint(t, 10, 63)
		if err != nil {
			return Place{}, InvalidParameter("from", "want tail:N with a whole number N of records")
		}
		return Place{kind: placeTail, n: int64(n)}, nil
	}
	return Place{}, InvalidParameter("from", "want earliest, latest, ts:TIME or tail:N")
}

// PlaceTime is the first record that is not older than ms, in milliseconds since
// 1970.
func PlaceTime(ms int64) Place { return Place{kind: placeTime, n: ms} }

// PlaceOffsets is an offset in each partition that is named. The caller must not
// change the map afterwards.
func PlaceOffsets(at map[int32]int64) Place { return Place{kind: placeOffsets, offsets: at} }

// PlaceCursor is where a cursor was taken.
func PlaceCursor(c Cursor) Place { return Place{kind: placeCursor, cursor: c} }

// Starts resolves the place in partitions of t, in the order of their numbers;
// nil means all of t, or for PlaceOffsets those that it names. A cursor of
// another incarnation of the topic is ErrStreamReset, one that does not fit t
// is ErrBadCursor; partitions that it does not know, because they were added
// later, begin at 0. Offsets are not compared with what there is: the first
// read does that.
func (pl Place) Starts(ctx context.Context, b *broker.Broker, p auth.Principal, t broker.Topic, partitions []int32) ([]broker.TailStart, error) {
	if partitions == nil && pl.kind == placeOffsets {
		partitions = slices.Collect(maps.Keys(pl.offsets))
	}
	if partitions == nil {
		for i := range t.Partitions {
			partitions = append(partitions, int32(i))
		}
	}
	starts := make([]broker.TailStart, len(partitions))
	for i, n := range slices.Sorted(slices.Values(partitions)) {
		if n < 0 || int(n) >= len(t.Partitions) {
			return nil, fmt.Errorf("%w: topic %q has no partition %d, it has %d", broker.ErrUnknownPartition, t.Name, n, len(t.Partitions))
		}
		starts[i].Partition = n
	}
	switch pl.kind {
	case placeOffsets:
		for i := range starts {
			starts[i].Offset = pl.offsets[starts[i].Partition]
		}
		return starts, nil
	case placeCursor:
		return starts, pl.fromCursor(t, starts)
	default:
		return starts, pl.lookUp(ctx, b, p, t, starts)
	}
}

func (pl Place) fromCursor(t broker.Topic, starts []broker.TailStart) error {
	if pl.cursor.Topic != t.ID {
		return StreamReset(t.Name)
	}
	at := pl.cursor.At
	if len(at) > 0 && int(at[len(at)-1].Partition) >= len(t.Partitions) {
		return fmt.Errorf("%w: topic %q has no partition %d", ErrBadCursor, t.Name, at[len(at)-1].Partition)
	}
	for i := range starts {
		// Both are in the order of the partitions.
		for len(at) > 0 && at[0].Partition < starts[i].Partition {
			at = at[1:]
		}
		if len(at) > 0 && at[0].Partition == starts[i].Partition {
			starts[i].Offset = at[0].Offset
		}
	}
	return nil
}

// lookUp asks the broker for the offsets.
func (pl Place) lookUp(ctx context.Context, b *broker.Broker, p auth.Principal, t broker.Topic, starts []broker.TailStart) error {
	var want []int64
	switch pl.kind {
	case placeEarliest:
		want = []int64{broker.OffsetEarliest}
	case placeTime:
		want = []int64{broker.OffsetLatest, pl.n}
	case placeTail:
		want = []int64{broker.OffsetLatest, broker.OffsetEarliest}
	default:
		want = []int64{broker.OffsetLatest}
	}
	queries := make([]broker.OffsetQuery, 0, len(want)*len(starts))
	for _, s := range starts {
		for _, ts := range want {
			queries = append(queries, broker.OffsetQuery{Topic: t.Name, Partition: s.Partition, Timestamp: ts, Epoch: -1})
		}
	}
	found := b.ListOffsets(ctx, p, queries)
	for i := range starts {
		mine := found[i*len(want) : (i+1)*len(want)]
		for j := range mine {
			if err := mine[j].Err; err != nil {
				return ProblemOf(err).At(t.Name, starts[i].Partition)
			}
		}
		offset := mine[0].Offset
		switch {
		case pl.kind == placeTime && mine[1].Offset >= 0:
			offset = mine[1].Offset
		case pl.kind == placeTail && pl.n < offset-mine[1].Offset:
			offset -= pl.n
		case pl.kind == placeTail:
			offset = mine[1].Offset
		}
		starts[i].Offset = offset
	}
	return nil
}
