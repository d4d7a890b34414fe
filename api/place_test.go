package api

import (
	"errors"
	"slices"
	"testing"

	"leat/auth"
	"leat/broker"
)

// Every way to say where to begin finds its offsets, in all partitions or in
// those asked.
func TestPlaces(t *testing.T) {
	b := openBroker(t)
	topic := makeTopic(t, b, "t", 3)
	produce(t, b, "t", 0, "a", "b", "c")
	produce(t, b, "t", 2, "d")
	parsed := func(text string) Place {
		pl, err := ParsePlace(text)
		if err != nil {
			t.Fatal(err)
		}
		return pl
	}
	starts := func(at ...int64) (out []broker.TailStart) {
		for i := 0; i < len(at); i += 2 {
			out = append(out, broker.TailStart{Partition: int32(at[i]), Offset: at[i+1]})
		}
		return out
	}
	known := Cursor{Topic: topic.ID, At: []broker.TailStart{{Partition: 0, Offset: 2}, {Partition: 2, Offset: 1}}}
	for name, tc := range map[string]struct {
		place      Place
		partitions []int32
		want       []broker.TailStart
	}{
		"earliest":       {parsed("earliest"), nil, starts(0, 0, 1, 0, 2, 0)},
		"latest":         {parsed("latest"), nil, starts(0, 3, 1, 0, 2, 1)},
		"zero":           {Place{}, []int32{0}, starts(0, 3)},
		"tail":           {parsed("tail:2"), nil, starts(0, 1, 1, 0, 2, 0)},
		"time":           {parsed("ts:0"), nil, starts(0, 0, 1, 0, 2, 0)},
		"time to come":   {PlaceTime(1 << 50), nil, starts(0, 3, 1, 0, 2, 1)},
		"some":           {parsed("latest"), []int32{2, 0}, starts(0, 3, 2, 1)},
		"offsets":        {PlaceOffsets(map[int32]int64{2: 1, 0: 2}), nil, starts(0, 2, 2, 1)},
		"more than said": {PlaceOffsets(map[int32]int64{2: 1}), []int32{1, 2}, starts(1, 0, 2, 1)},
		"cursor":         {PlaceCursor(known), nil, starts(0, 2, 1, 0, 2, 1)},
		"part of cursor": {PlaceCursor(known), []int32{1, 2}, starts(1, 0, 2, 1)},
	} {
		got, err := tc.place.Starts(t.Context(), b, auth.Anonymous, topic, tc.partitions)
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, tc.want)
		}
	}
	for name, tc := range map[string]struct {
		place      Place
		partitions []int32
		want       error
	}{
		"no partition":      {Place{}, []int32{3}, broker.ErrUnknownPartition},
		"negative":          {Place{}, []int32{-1}, broker.ErrUnknownPartition},
		"offset of none":    {PlaceOffsets(map[int32]int64{7: 1}), nil, broker.ErrUnknownPartition},
		"other incarnation": {PlaceCursor(Cursor{Topic: topicID(7)}), nil, ErrStreamReset},
		"foreign cursor":    {PlaceCursor(Cursor{Topic: topic.ID, At: starts(3, 0)}), nil, ErrBadCursor},
	} {
		if got, err := tc.place.Starts(t.Context(), b, auth.Anonymous, topic, tc.partitions); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for _, bad := range []string{"", "begin", "ts:", "ts:-1", "tail:", "tail:-1", "tail:99999999999999999999", "EARLIEST"} {
		if _, err := ParsePlace(bad); ProblemOf(err).Parameter != "from" {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
