package replication

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"leat/replication/controller"
	"leat/storage"
)

// toyBatch is one batch of a toy log: the offsets [base, base+count).
type toyBatch struct {
	base, count int64
	epoch       int32
	value       string
}

// toyLog is a log in a slice.
type toyLog struct {
	start   int64
	durable int64
	end     int64
	batches []toyBatch
	err     error // of EpochEnd
}

func (l *toyLog) Offsets() storage.Offsets {
	return storage.Offsets{Start: l.start, Durable: l.durable, End: l.end}
}

func (l *toyLog) EpochEnd(epoch int32) (found int32, end int64, err error) {
	found, end = -1, l.start
	for i := range l.batches {
		b := &l.batches[i]
		if b.epoch > epoch {
			return found, max(b.base, l.start), l.err
		}
		found, end = b.epoch, b.base+b.count
	}
	return found, max(end, l.start), l.err
}

// append adds a batch that is on disk at once unless lazy.
func (l *toyLog) append(epoch int32, count int64, value string, lazy bool) {
	l.batches = append(l.batches, toyBatch{base: l.end, count: count, epoch: epoch, value: value})
	l.end += count
	if !lazy {
		l.durable = l.end
	}
}

func (l *toyLog) truncate(offset int64) {
	for len(l.batches) > 0 {
		b := l.batches[len(l.batches)-1]
		if b.base+b.count <= offset {
			break
		}
		l.batches, l.end = l.batches[:len(l.batches)-1], b.base
	}
	l.end = max(l.end, l.start)
	l.durable = min(l.durable, l.end)
}

func (l *toyLog) restart(offset int64) {
	*l = toyLog{start: offset, durable: offset, end: offset}
}

// raise drops what is below start.
func (l *toyLog) raise(start int64) {
	l.start = start
	l.batches = slices.DeleteFunc(l.batches, func(b toyBatch) bool { return b.base+b.count <= start })
	l.end, l.durable = max(l.end, start), max(l.durable, start)
}

// everyone is a cluster in which each broker is in its life number 1.
type everyone struct{ gone []int32 }

func (e everyone) Broker(id int32) (controller.Broker, bool) {
	return controller.Broker{ID: id, Epoch: 1}, true
}

func (e everyone) Eligible(id int32, epoch int64) bool {
	return (epoch == -1 || epoch == 1) && !slices.Contains(e.gone, id)
}

const ms = time.Millisecond

// led is a leader of three with n records of epoch 3 behind it.
func led(t *testing.T, o Options, n int64) (*Replica, *toyLog) {
	t.Helper()
	l := &toyLog{}
	if n > 0 {
		l.append(2, n, "old", false)
	}
	o.Self = 1
	r := NewReplica(o, l, 0)
	r.Lease(Forever)
	c, err := r.Decide(controller.Partition{Leader: 1, LeaderEpoch: 3, Epoch: 5, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 2, 3}}, everyone{}, 0)
	if err != nil || c.Role != Leader || !c.NewEpoch {
		t.Fatal(c, err)
	}
	return r, l
}

func ask(id int32, offset int64) *FetchRequest {
	return &FetchRequest{Replica: id, BrokerEpoch: 1, LeaderEpoch: 3, LastEpoch: 2, Offset: offset, Flushed: -1}
}

// fetched lets a follower of the same log fetch, which must be taken.
func fetched(t *testing.T, r *Replica, f *FetchRequest, now Instant) FetchResponse {
	t.Helper()
	resp, _, err := r.Fetch(f, now)
	if err != nil || resp.Diverging != nil {
		t.Fatalf("%+v: %+v, %v", f, resp, err)
	}
	return resp
}

// A leader answers each fetch that is not a follower's of this epoch and life by
// the error that tells the follower what to do, and learns nothing from it.
func TestFetchRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(f *FetchRequest)
		want   error
	}{
		{"an epoch that has ended", func(f *FetchRequest) { f.LeaderEpoch = 2 }, ErrFencedLeaderEpoch},
		{"an epoch to come", func(f *FetchRequest) { f.LeaderEpoch = 4 }, ErrUnknownLeaderEpoch},
		{"no replica yet", func(f *FetchRequest) { f.Replica = 9 }, ErrUnknownLeaderEpoch},
		{"an earlier life", func(f *FetchRequest) { f.BrokerEpoch = 0 }, ErrStaleBrokerEpoch},
		{"below the start", func(f *FetchRequest) { f.Offset = 1 }, ErrOffsetOutOfRange},
		{"below the start and diverging", func(f *FetchRequest) { f.Offset, f.LastEpoch = 1, 1 }, ErrOffsetOutOfRange},
		{"a last epoch that cannot be", func(f *FetchRequest) { f.LastEpoch = 4 }, ErrOffsetOutOfRange},
		{"past the end without an epoch", func(f *FetchRequest) { f.Offset, f.LastEpoch = 11, -1 }, ErrOffsetOutOfRange},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, l := led(t, Options{}, 10)
			l.raise(2)
			fetched(t, r, ask(2, 5), 0)
			before := r.String()
			f := ask(2, 10)
			c.change(f)
			if _, _, err := r.Fetch(f, ms); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if got := r.String(); got != before {
				t.Errorf("the leader learned from it:\n%s\nbefore\n%s", got, before)
			}
		})
	}
}

// Who does not lead, or leads without a lease, answers nobody.
func TestChecks(t *testing.T) {
	r, l := led(t, Options{}, 10)
	r.Lease(10 * ms)
	all := func(now Instant) []error {
		_, latest := r.Latest(now)
		return []error{r.CheckAppend(true, now), r.CheckRead(now), r.CheckAck(3, now), latest}
	}
	want := func(when string, got []error, want ...error) {
		t.Helper()
		for i := range want {
			if !errors.Is(got[i], want[i]) || want[i] == nil && got[i] != nil {
				t.Errorf("%s: check %d: got %v, want %v", when, i, got[i], want[i])
			}
		}
	}
	want("a new leader", all(9*ms), nil, nil, nil, ErrOffsetNotAvailable)
	fetched(t, r, ask(2, 10), 0)
	fetched(t, r, ask(3, 10), 0)
	want("in office", all(9*ms), nil, nil, nil, nil)
	want("the lease is over", all(10*ms), ErrLeaseExpired, ErrLeaseExpired, ErrLeadershipLost, ErrLeaseExpired)
	want("it is a kind of not leading", all(10*ms), ErrNotLeader, ErrNotLeader, ErrNotLeader, ErrNotLeader)
	want("of an append of an earlier epoch", []error{r.CheckAck(2, 0), r.Committed(2, 10)}, ErrLeadershipLost, ErrLeadershipLost)
	l.append(3, 1, "x", false)
	want("in flight", []error{r.Committed(3, 10), r.Committed(3, 11)}, nil, ErrPending)

	p := r.Partition()
	p.ISR, p.Epoch = []int32{1}, 6
	if c, err := r.Decide(p, nil, 0); err != nil || c.Rose || c.Resigned {
		t.Fatal(c, err)
	}
	want("alone of two", []error{r.CheckAppend(true, 0), r.CheckAppend(false, 0), r.Committed(3, 10)}, ErrNotEnoughReplicas, nil, ErrNotEnoughReplicasAfterAppend)
	back := ask(2, 11)
	back.LastEpoch = 3
	fetched(t, r, back, 0)
	if a, ok := r.Alter(0); !ok || len(a.ISR) < 2 {
		t.Fatal(a, ok)
	}
	want("with one that may be in sync again", []error{r.CheckAppend(true, 0), r.Committed(3, 10)}, ErrNotEnoughReplicas, nil)
	p.LeaderEpoch, p.Epoch = 4, 7
	if c, err := r.Decide(p, nil, 0); err != nil || c.Role != Leader || !c.Resigned || !c.NewEpoch {
		t.Fatal(c, err)
	}
	want("in a later epoch", []error{r.CheckAck(3, 0), r.Committed(3, 10)}, ErrLeadershipLost, ErrLeadershipLost)
	p.Leader, p.LeaderEpoch, p.Epoch, p.ISR = 2, 5, 8, []int32{2}
	if c, err := r.Decide(p, nil, 0); err != nil || c.Role != Follower || !c.Resigned || !c.NewEpoch {
		t.Fatal(c, err)
	}
	want("a follower", append(all(0), r.Committed(3, 10), r.Committed(5, 10)), ErrNotLeader, ErrNotLeader, ErrNotLeader, ErrNotLeader, ErrNotLeader, ErrNotLeader)
}

// A broker that is told another min.insync.replicas than the rest may ask for more,
// never for less than what the controller takes eligible leaders by, which is never
// more than there are replicas.
func TestMinInSync(t *testing.T) {
	for _, c := range []struct{ replicas, adding, ruling, own, want int }{
		{replicas: 1, want: 1},
		{replicas: 2, want: 1},
		{replicas: 3, want: 2},
		{replicas: 3, adding: 2, want: 1},
		{replicas: 3, ruling: 1, want: 1},
		{replicas: 3, ruling: 3, want: 3},
		{replicas: 1, ruling: 2, want: 2}, // refused, as in Kafka
		{replicas: 1, own: 2, want: 2},
		{replicas: 3, own: 1, want: 2},
		{replicas: 3, own: 3, want: 3},
		{replicas: 3, ruling: 3, own: 1, want: 3},
		{replicas: 3, ruling: 1, own: 2, want: 2},
		{replicas: 3, ruling: 5, own: 1, want: 3},
		{replicas: 1, ruling: 2, own: 1, want: 1},
		{replicas: 3, adding: 2, ruling: 2, own: 1, want: 1},
	} {
		r, _ := led(t, Options{MinInSync: c.ruling, OwnMinInSync: c.own}, 1)
		p := r.Partition()
		p.Replicas = []int32{1, 2, 3}[:c.replicas]
		p.ISR, p.Adding, p.Epoch = p.Replicas[:1], p.Replicas[c.replicas-c.adding:], p.Epoch+1
		if _, err := r.Decide(p, everyone{}, 0); err != nil {
			t.Fatal(err)
		}
		if got := r.minInSync(); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
		// The controller goes by this, and has eligible leaders only below it.
		if least := controllersMinimum(t, c.ruling, p.Factor()); r.minInSync() < least {
			t.Errorf("%+v: got %d, the controller goes by %d", c, r.minInSync(), least)
		}
		if err := r.CheckAppend(true, 0); (err == nil) != (c.want <= 1) {
			t.Errorf("%+v: an append to all with one in sync: %v", c, err)
		}
	}
}

// controllersMinimum is what the controller goes by, with a config of all brokers.
func controllersMinimum(t *testing.T, ruling, replicas int) int {
	t.Helper()
	s := controller.NewState()
	if ruling > 0 {
		v := strconv.Itoa(ruling)
		next, err := s.With([]controller.Record{&controller.FeatureLevel{Level: controller.Level}, &controller.BrokerConfigSet{Broker: controller.AllBrokers, Name: "min.insync.replicas", Value: &v}})
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	return s.MinInSync(&controller.Topic{}, replicas)
}

// In fsync mode a follower acknowledges what it has flushed of what it has, whatever
// it says beyond that; without the mode what it has.
func TestFlushed(t *testing.T) {
	for _, c := range []struct {
		durable       bool
		flushed, want int64
	}{
		{true, 3, 3}, {true, 0, 0}, {true, 10, 10}, {true, 12, 10}, {true, -1, 10}, {false, 3, 10},
	} {
		r, l := led(t, Options{Durable: c.durable}, 10)
		l.append(3, 5, "more", false)
		f := ask(2, 10)
		f.Flushed = c.flushed
		fetched(t, r, f, 0)
		if got := r.peer(2).ack; got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

// The high watermark that was noted is held within the log.
func TestNotedHighWatermark(t *testing.T) {
	l := &toyLog{}
	l.append(0, 10, "x", false)
	l.raise(5)
	for noted, want := range map[int64]int64{3: 5, 5: 5, 7: 7, 10: 10, 12: 10} {
		if got := NewReplica(Options{}, l, noted).HighWatermark(); got != want {
			t.Errorf("%d noted: got %d, want %d", noted, got, want)
		}
	}
}

// Options that ask for less let the high watermark go on at once.
func TestConfigureMoves(t *testing.T) {
	r, _ := led(t, Options{MinInSync: 2}, 10)
	p := r.Partition()
	p.ISR, p.Epoch = []int32{1}, 6
	if c, err := r.Decide(p, nil, 0); err != nil || c.Rose {
		t.Fatal(c, err)
	}
	if rose := r.Configure(Options{Self: 1, MinInSync: 1}, 0); !rose || r.HighWatermark() != 10 {
		t.Errorf("rose: %t, to %d", rose, r.HighWatermark())
	}
}

// Who is out of range learns where the log ends, not where it is durable: it cuts its
// own off there.
func TestOutOfRangeTellsTheEnd(t *testing.T) {
	r, l := led(t, Options{Durable: true}, 10)
	l.raise(2)
	r.Advance(0)
	l.append(3, 2, "x", true)
	f := ask(2, 20)
	f.LastEpoch = -1
	got, _, err := r.Fetch(f, 0)
	if want := (FetchResponse{LeaderEpoch: 3, HW: 2, LogStart: 2, LeaderEnd: 12}); !errors.Is(err, ErrOffsetOutOfRange) || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

// A follower whose newest epoch is older than all that is left of the leader's log is
// at one with it where that log begins, and diverges behind that.
func TestFetchBelowEveryEpoch(t *testing.T) {
	r, l := led(t, Options{}, 10)
	l.raise(2)
	f := ask(2, 2)
	f.LastEpoch = 1
	fetched(t, r, f, 0)
	f.Offset = 3
	got, _, err := r.Fetch(f, 0)
	if want := (EpochEnd{Epoch: 1, End: 2}); err != nil || got.Diverging == nil || *got.Diverging != want {
		t.Errorf("%+v, %v", got, err)
	}
}
