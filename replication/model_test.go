package replication

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"leat/replication/controller"
	"leat/storage"
	"leat/storage/record"
)

// shared is how many batches two logs have in common at their begin.
func shared(a, b *toyLog) int {
	n := 0
	for n < min(len(a.batches), len(b.batches)) && a.batches[n] == b.batches[n] {
		n++
	}
	return n
}

// pastLogs makes logs as elections leave them behind: in each epoch one of them
// appends, and others take over a part of what it has.
func pastLogs(rng *rand.Rand, logs, epochs int) []*toyLog {
	out := make([]*toyLog, logs)
	for i := range out {
		out[i] = &toyLog{}
	}
	for e := range epochs {
		l := out[rng.IntN(logs)]
		for i := range rng.IntN(4) {
			l.append(int32(e), 1+rng.Int64N(3), fmt.Sprintf("%d.%d", e, i), false)
		}
		for _, f := range out {
			if f == l || rng.IntN(2) == 0 {
				continue
			}
			f.truncate(l.offsetOf(shared(f, l)))
			for _, b := range l.batches[len(f.batches):] {
				if rng.IntN(4) == 0 {
					break
				}
				f.append(b.epoch, b.count, b.value, false)
			}
		}
	}
	return out
}

// offsetOf is where the batch of an index begins.
func (l *toyLog) offsetOf(i int) int64 {
	if i == len(l.batches) {
		return l.end
	}
	return l.batches[i].base
}

// Whatever elections left behind, a follower ends with the leader's log, batch
// for batch, has cut nothing that the two had in common, and needs no more rounds
// than there are epochs (KIP-279).
func TestFollowerConverges(t *testing.T) {
	cuts, most := 0, 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		epochs := 1 + rng.IntN(9)
		logs := pastLogs(rng, 3, epochs)
		p := controller.Partition{Leader: 1, LeaderEpoch: int32(epochs), Replicas: []int32{1, 2}, ISR: []int32{1}}
		leader, follower := NewReplica(Options{Self: 1}, logs[0], 0), NewReplica(Options{Self: 2}, logs[1], 0)
		for _, r := range []*Replica{leader, follower} {
			if _, err := r.Decide(p, everyone{}, 0); err != nil {
				t.Fatal(err)
			}
		}
		if rng.IntN(2) == 0 {
			logs[0].append(int32(epochs), 1, "new", false)
		}
		kept, truncations := logs[1].offsetOf(shared(logs[0], logs[1])), 0
		for round := 0; !slices.Equal(logs[0].batches, logs[1].batches); round++ {
			if round > 2*epochs+2 {
				t.Fatalf("seed %d: no end after %d rounds:\n%v\n%v", seed, round, logs[0], logs[1])
			}
			ask, ok := follower.NextFetch(0)
			if !ok {
				t.Fatalf("seed %d: %v", seed, follower)
			}
			ask.BrokerEpoch = 1
			before := leader.String()
			got, _, err := leader.Fetch(&ask, 0)
			if (err != nil || got.Diverging != nil) && leader.String() != before {
				t.Fatalf("seed %d: a fetch that did not count changed the leader:\n%s\n%s", seed, before, leader)
			}
			a := follower.Fetched(&ask, &got, err, 0)
			switch a.Kind {
			case Append:
				for _, b := range logs[0].batches {
					if b.base >= ask.Offset {
						logs[1].append(b.epoch, b.count, b.value, false)
					}
				}
			case Truncate:
				truncations++
				if a.Offset < kept {
					t.Fatalf("seed %d: cut at %d, common to %d:\n%v\n%v", seed, a.Offset, kept, logs[0], logs[1])
				}
				logs[1].truncate(a.Offset)
			case Ignore, Restart, Raise, Fail:
				t.Fatalf("seed %d: %v after %+v, %v", seed, a, got, err)
			}
			follower.Did(a, &got, 0)
		}
		cuts, most = cuts+truncations, max(most, truncations)
	}
	if most < 2 {
		t.Errorf("%d cuts, at most %d for one follower: the histories are too simple", cuts, most)
	}
}

// What a replica acknowledged, and the high watermark, are what a plain count over
// everything that was ever fetched says: no order of arrival, no copy and no
// request of another life or epoch raises them beyond that or lowers them.
func TestLeaderModel(t *testing.T) {
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 2))
		durable := rng.IntN(2) == 0
		r, l := led(t, Options{Durable: durable, MinInSync: 1 + rng.IntN(3)}, 5)
		acked := map[int32]int64{2: -1, 3: -1}
		var sent []*FetchRequest
		hw := int64(0)
		for range 200 {
			switch rng.IntN(5) {
			case 0:
				l.append(3, 1+rng.Int64N(3), "v", rng.IntN(2) == 0)
				r.Advance(0)
			case 1:
				l.durable = l.end
				r.Advance(0)
			case 2, 3:
				f := ask(2+rng.Int32N(2), 5+rng.Int64N(l.end-4))
				if f.Offset > 5 {
					f.LastEpoch = 3
				}
				if rng.IntN(2) == 0 {
					f.Flushed = rng.Int64N(f.Offset + 1)
				}
				sent = append(sent, f)
				fallthrough
			default:
				if len(sent) == 0 {
					continue
				}
				f := *sent[rng.IntN(len(sent))] // again and again, in any order
				counts := true
				switch rng.IntN(8) {
				case 0:
					f.LeaderEpoch, counts = 2, false
				case 1:
					f.BrokerEpoch, counts = 0, false
				case 2:
					f.Offset, counts = l.end+100, false
				}
				_, _, err := r.Fetch(&f, 0)
				if counts != (err == nil && f.Offset <= l.end) {
					t.Fatalf("seed %d: %+v: %v", seed, f, err)
				}
				if ack := f.Offset; counts {
					if durable && f.Flushed >= 0 {
						ack = f.Flushed
					}
					acked[f.Replica] = max(acked[f.Replica], ack)
				}
			}
			end := l.end
			if durable {
				end = l.durable
			}
			hw = max(hw, min(end, acked[2], acked[3]))
			if r.HighWatermark() > hw {
				t.Fatalf("seed %d: high watermark %d, acknowledged are %v, the leader %d\n%v", seed, r.HighWatermark(), acked, end, r)
			}
			// A fetch behind a later one is ignored as a whole, also what it says
			// was flushed, so the leader may know less, but not of a position.
			if !durable && r.HighWatermark() != hw {
				t.Fatalf("seed %d: high watermark %d, want %d; %v\n%v", seed, r.HighWatermark(), hw, acked, r)
			}
		}
	}
}

// No controller decides these; a replica that is told so stays as it is
// (KAFKA-9672: an ISR with others than the replicas confused the high watermark).
func TestDecideRefuses(t *testing.T) {
	for name, change := range map[string]func(p *controller.Partition){
		"a leader that is not in sync":            func(p *controller.Partition) { p.ISR = []int32{2, 3} },
		"one in sync that is no replica":          func(p *controller.Partition) { p.ISR = []int32{1, 4} },
		"one in sync twice":                       func(p *controller.Partition) { p.ISR = []int32{1, 2, 2} },
		"two leaders of one epoch":                func(p *controller.Partition) { p.Leader = 2 },
		"a leader that is no replica and in sync": func(p *controller.Partition) { p.Replicas, p.ISR = []int32{2, 3}, []int32{1, 2} },
	} {
		r, _ := led(t, Options{}, 5)
		before := r.String()
		p := r.Partition()
		p.Epoch++
		change(&p)
		if _, err := r.Decide(p, nil, 0); !errors.Is(err, controller.ErrInconsistent) {
			t.Errorf("%s: %v", name, err)
		}
		if r.String() != before {
			t.Errorf("%s: the replica changed: %v", name, r)
		}
	}
	r, _ := led(t, Options{}, 5)
	before := r.String()
	for _, old := range []controller.Partition{
		{Leader: 2, LeaderEpoch: 2, Epoch: 4, Replicas: []int32{1, 2, 3}, ISR: []int32{2}},
		{Leader: 1, LeaderEpoch: 3, Epoch: 4, Replicas: []int32{1, 2, 3}, ISR: []int32{1}},
	} {
		if c, err := r.Decide(old, nil, 0); err != nil || c.Resigned || c.NewEpoch || r.String() != before {
			t.Errorf("what is older counts: %+v, %v, %v", c, err, r)
		}
	}
}

// growing is a log that is appended to while a fetch looks at it.
type growing struct{ toyLog }

func (l *growing) EpochEnd(epoch int32) (int32, int64, error) {
	l.append(3, 1, "meanwhile", false)
	return l.toyLog.EpochEnd(epoch)
}

// The end of the log is taken once (KAFKA-9835): what is appended while a fetch is
// being answered neither is in its bounds nor makes the follower late.
func TestFetchTakesTheEndOnce(t *testing.T) {
	l := &growing{}
	l.append(2, 5, "old", false)
	r := NewReplica(Options{Self: 1}, l, 0)
	p := controller.Partition{Leader: 1, LeaderEpoch: 3, Replicas: []int32{1, 2}, ISR: []int32{1, 2}}
	if _, err := r.Decide(p, everyone{}, 0); err != nil {
		t.Fatal(err)
	}
	resp := fetched(t, r, ask(2, 5), ms)
	if resp.LeaderEnd != 5 || resp.HW != 5 || r.leader.peers[0].caughtUp != ms {
		t.Errorf("%+v, %v", resp, r)
	}
}

// Batches that came damaged are asked for again, three times in a row; then the
// replica has failed, until another leads. What else goes wrong passes.
func TestDamagedAnswers(t *testing.T) {
	r := NewReplica(Options{Self: 2}, &toyLog{}, 0)
	p := controller.Partition{Leader: 1, LeaderEpoch: 0, Replicas: []int32{1, 2, 3}, ISR: []int32{1, 3}}
	decide := func() {
		t.Helper()
		if _, err := r.Decide(p, everyone{}, 0); err != nil {
			t.Fatal(err)
		}
	}
	now := Instant(0)
	round := func(err error) {
		t.Helper()
		now += 2 * ms * 1000
		ask, ok := r.NextFetch(now)
		if !ok {
			t.Fatalf("fetches nothing: %v", r)
		}
		got := FetchResponse{LeaderEpoch: p.LeaderEpoch}
		a := r.Fetched(&ask, &got, nil, now)
		if err != nil {
			r.Undid(err, now)
		} else {
			r.Did(a, &got, now)
		}
	}
	decide()
	damaged := fmt.Errorf("batch at 7: %w", record.ErrCorrupt)
	for _, err := range []error{damaged, damaged, nil, damaged, damaged, storage.ErrFull, storage.ErrFull, storage.ErrFull} {
		round(err)
	}
	if err := r.Failed(); err != nil {
		t.Fatalf("failed after two in a row: %v", err)
	}
	round(damaged)
	if _, ok := r.NextFetch(math.MaxInt64 / 2); ok || !errors.Is(r.Failed(), record.ErrCorrupt) {
		t.Errorf("goes on after three in a row: %v", r)
	}
	p.Leader, p.LeaderEpoch, p.Epoch = 3, 1, 1
	decide()
	round(nil)
}

// A log that begins behind what it has in common with the leader's goes as a
// whole, and that is told as a loss of what was committed, whether the leader's log
// ends before it or holds other records there; not so if the leader has only
// dropped more at its begin.
func TestRestart(t *testing.T) {
	for _, c := range []struct {
		name string
		got  FetchResponse
		err  error
		want Action
	}{
		{"other records", FetchResponse{LogStart: 2, LeaderEnd: 30, Diverging: &EpochEnd{Epoch: 0, End: 5}}, nil, Action{Kind: Restart, Offset: 2, BelowHW: true}},
		{"a shorter log", FetchResponse{LogStart: 2, LeaderEnd: 5}, ErrOffsetOutOfRange, Action{Kind: Restart, Offset: 2, BelowHW: true}},
		{"a log that begins later", FetchResponse{LogStart: 25, LeaderEnd: 30}, ErrOffsetOutOfRange, Action{Kind: Restart, Offset: 25}},
		{"a log that ends earlier", FetchResponse{LogStart: 2, LeaderEnd: 15}, ErrOffsetOutOfRange, Action{Kind: Truncate, Offset: 15, BelowHW: true}},
		{"nothing to be seen", FetchResponse{LogStart: 2, LeaderEnd: 30}, ErrOffsetOutOfRange, Action{}},
	} {
		l := &toyLog{}
		l.restart(10)
		l.append(1, 10, "x", false)
		r := NewReplica(Options{Self: 2}, l, 18)
		if _, err := r.Decide(controller.Partition{Leader: 1, LeaderEpoch: 2, Replicas: []int32{1, 2}, ISR: []int32{1}}, everyone{}, 0); err != nil {
			t.Fatal(err)
		}
		f, _ := r.NextFetch(0)
		c.got.LeaderEpoch, c.got.HW = 2, 30
		a := r.Fetched(&f, &c.got, c.err, 0)
		if a != c.want {
			t.Errorf("%s: %v, want %v", c.name, a, c.want)
		}
		if hw := r.HighWatermark(); a.BelowHW && hw > max(a.Offset, 10) {
			t.Errorf("%s: the high watermark is %d before the cut", c.name, hw)
		}
		if a.Kind == Restart {
			l.restart(a.Offset)
			if _, rose := r.Did(a, &c.got, 0); r.HighWatermark() != a.Offset {
				t.Errorf("%s: the high watermark is %d after it, rose %v", c.name, r.HighWatermark(), rose)
			}
		}
	}
}
