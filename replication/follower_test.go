package replication

import (
	"errors"
	"testing"

	"leat/replication/controller"
	"leat/storage/record"
)

// following is a follower of broker 2 in epoch 3, whose log has ten records of epoch 2.
func following(t *testing.T) (*Replica, *toyLog) {
	t.Helper()
	l := &toyLog{}
	l.append(2, 10, "old", false)
	r := NewReplica(Options{Self: 1}, l, 4)
	p := controller.Partition{Leader: 2, LeaderEpoch: 3, Epoch: 5, Replicas: []int32{1, 2}, ISR: []int32{1, 2}}
	if c, err := r.Decide(p, everyone{}, 0); err != nil || c.Role != Follower {
		t.Fatal(c, err)
	}
	return r, l
}

// An answer that is not the one waited for, or not of this leader, changes nothing;
// after each that is of no use there is a pause.
func TestFetchedIsChecked(t *testing.T) {
	right := FetchResponse{LeaderEpoch: 3, HW: 10, LogStart: 2, LeaderEnd: 12}
	for _, c := range []struct {
		name   string
		change func(asked *FetchRequest, got *FetchResponse, l *toyLog) error
		want   ActionKind
		pauses bool
	}{
		{"the answer", func(*FetchRequest, *FetchResponse, *toyLog) error { return nil }, Append, false},
		{"to an earlier fetch", func(asked *FetchRequest, _ *FetchResponse, _ *toyLog) error { asked.Offset = 9; return nil }, Ignore, false},
		{"of another epoch", func(_ *FetchRequest, got *FetchResponse, _ *toyLog) error { got.LeaderEpoch = 4; return nil }, Ignore, true},
		{"the log has grown", func(_ *FetchRequest, _ *FetchResponse, l *toyLog) error { l.append(2, 1, "x", false); return nil }, Ignore, true},
		{"lost", func(*FetchRequest, *FetchResponse, *toyLog) error { return errNoAnswer }, Ignore, true},
		{"out of a range that has it", func(*FetchRequest, *FetchResponse, *toyLog) error { return ErrOffsetOutOfRange }, Ignore, true},
		{"out of the range of another epoch", func(_ *FetchRequest, got *FetchResponse, _ *toyLog) error {
			got.LeaderEpoch, got.LogStart = 2, 100
			return ErrOffsetOutOfRange
		}, Ignore, true},
		{"out of range, the leader's log begins later", func(_ *FetchRequest, got *FetchResponse, _ *toyLog) error {
			got.LogStart = 11
			return ErrOffsetOutOfRange
		}, Restart, false},
		{"where the leader's log begins", func(_ *FetchRequest, got *FetchResponse, _ *toyLog) error {
			got.LogStart = 10
			return ErrOffsetOutOfRange
		}, Ignore, true},
		{"the leader's log begins where this one ends", func(_ *FetchRequest, got *FetchResponse, _ *toyLog) error {
			got.LogStart = 10
			return nil
		}, Raise, false},
		{"diverging where it ends", func(_ *FetchRequest, got *FetchResponse, _ *toyLog) error {
			got.Diverging = &EpochEnd{Epoch: 2, End: 10}
			return nil
		}, Ignore, true},
		{"diverging before that", func(_ *FetchRequest, got *FetchResponse, _ *toyLog) error {
			got.Diverging = &EpochEnd{Epoch: 2, End: 9}
			return nil
		}, Truncate, false},
		{"out of range, the leader's log ends earlier", func(_ *FetchRequest, got *FetchResponse, _ *toyLog) error {
			got.LeaderEnd = 9
			return ErrOffsetOutOfRange
		}, Truncate, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, l := following(t)
			asked, ok := r.NextFetch(0)
			if !ok {
				t.Fatal("it asks nothing")
			}
			got := right
			err := c.change(&asked, &got, l)
			if a := r.Fetched(&asked, &got, err, 0); a.Kind != c.want {
				t.Errorf("%v, want %v", a, c.want)
			}
			if _, asks := r.NextFetch(20*ms - 1); asks {
				t.Error("it asks anew at once")
			}
			if _, asks := r.NextFetch(20 * ms); asks != c.pauses {
				t.Errorf("after a pause it asks: %t", asks)
			}
		})
	}
}

// A log with batches of an epoch that the leader has not come to yet cannot be
// followed with.
func TestFollowerOfALaterEpochFails(t *testing.T) {
	r, l := following(t)
	l.append(4, 1, "x", false)
	asked, _ := r.NextFetch(0)
	a := r.Fetched(&asked, &FetchResponse{LeaderEpoch: 3, LeaderEnd: 12}, ErrOffsetOutOfRange, 0)
	if _, asks := r.NextFetch(Forever); a.Kind != Fail || r.Failed() == nil || asks {
		t.Errorf("%v, %v, it asks: %t", a, r.Failed(), asks)
	}
}

// What an owner says of an action that is not under way changes nothing.
func TestActionsAreAnsweredOnce(t *testing.T) {
	r, l := following(t)
	damaged := func() {
		asked, ok := r.NextFetch(Forever)
		a := r.Fetched(&asked, &FetchResponse{LeaderEpoch: 3, HW: 10, LeaderEnd: 12}, nil, 0)
		if !ok || a.Kind != Append {
			t.Fatal(a, ok)
		}
		r.Undid(record.ErrCorrupt, 0)
	}
	damaged()
	for range maxCorrupt {
		r.Undid(record.ErrCorrupt, 0)
		r.Did(Action{Kind: Append}, &FetchResponse{HW: 10}, 0)
	}
	if r.Failed() != nil || r.HighWatermark() != 4 {
		t.Errorf("failed: %v, high watermark %d", r.Failed(), r.HighWatermark())
	}
	damaged()
	if r.Failed() != nil {
		t.Errorf("it fails after two: %v", r.Failed())
	}
	damaged()
	if !errors.Is(r.Failed(), record.ErrCorrupt) || l.end != 10 {
		t.Errorf("after three: %v, the log ends at %d", r.Failed(), l.end)
	}
}

// A log that cannot be read is not asked again at once.
func TestUnreadableLogPauses(t *testing.T) {
	r, l := following(t)
	l.err = errors.New("no disk")
	_, asks := r.NextFetch(0)
	l.err = nil
	_, soon := r.NextFetch(20*ms - 1)
	if _, later := r.NextFetch(20 * ms); asks || soon || !later {
		t.Errorf("it asks: %t, soon %t, later %t", asks, soon, later)
	}
}
