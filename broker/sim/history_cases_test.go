package sim

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var (
	here  = partID{Partition: 0}
	there = partID{Partition: 1}
)

// story makes histories by hand.
type story struct{ *history }

// batchOf is a batch of one idempotent producer.
func batchOf(base int64, epoch int32, value uint64, count int32) batch {
	b := batch{base: base, count: count, epoch: epoch, pid: 7, seq: int32(value), value: value}
	b.crc = b.sum()
	return b
}

// wrote is a send that was answered.
func (s story) wrote(process int, acks int8, b batch) {
	s.sent(s.send(process, here, acks, b.value, b.count, true), okay, b.base, b.epoch)
}

func (s story) tried(process int, result outcome, value uint64, count int32) {
	s.sent(s.send(process, here, -1, value, count, true), result, -1, -1)
}

func (s story) read(process int, from, hw int64, batches ...batch) {
	s.polled(s.poll(process, here, from), batches, hw, okay)
}

// ends lets two replicas hold the same.
func (s story) ends(batches ...batch) {
	var hw int64
	if n := len(batches); n > 0 {
		hw = batches[n-1].next()
	}
	s.final(here, 1, 0, hw, batches)
	s.final(here, 2, 0, hw, slices.Clone(batches))
}

// Each anomaly is found by its name in a history that shows it and nothing
// else, and next to each one is a history that only looks like it and passes.
func TestHistory(t *testing.T) {
	a, b, c := batchOf(0, 0, 1, 2), batchOf(2, 0, 3, 1), batchOf(3, 1, 4, 2)
	for name, tc := range map[string]struct {
		want string
		make func(s story)
	}{
		"nothing": {"", func(story) {}},
		"clean": {"", func(s story) {
			s.wrote(1, -1, a)
			s.read(2, 0, 2, a)
			s.wrote(1, -1, b)
			s.tried(1, unknown, 4, 2)
			s.tried(3, failed, 6, 1)
			s.tried(3, unknown, 7, 1) // never came
			s.read(2, 2, 5, b, c)
			s.read(4, 1, 3, a, b) // from within a batch
			s.ends(a, b, c)
		}},

		"one offset, two values": {"inconsistent-offsets", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.tried(2, unknown, 3, 2)
			s.read(3, 0, 2, a)
			s.read(4, 0, 2, batchOf(0, 0, 3, 2))
		}},
		"one offset, other bytes": {"reread-differs", func(s story) {
			s.tried(1, unknown, 1, 2)
			other := a
			other.epoch = 1
			s.read(3, 0, 2, a)
			s.read(3, 2, 2)
			s.read(4, 0, 2, other)
		}},
		"written twice": {"duplicate", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.read(3, 0, 4, a, batchOf(2, 0, 1, 2))
		}},
		"written twice without idempotence": {"", func(s story) {
			s.sent(s.send(1, here, -1, 1, 2, false), unknown, -1, -1)
			s.read(3, 0, 4, a, batchOf(2, 0, 1, 2))
		}},
		"lost after acks=all": {"lost-write", func(s story) {
			s.wrote(1, -1, a)
			s.wrote(1, -1, b)
			s.election(here)
			s.ends(a)
		}},
		"replaced after acks=all": {"lost-write", func(s story) {
			s.wrote(1, -1, a)
			s.tried(2, unknown, 3, 2)
			s.election(here)
			s.ends(batchOf(0, 1, 3, 2))
		}},
		"lost after acks=1, a leader went": {"", func(s story) {
			s.wrote(1, 1, a)
			s.wrote(1, 1, b)
			s.election(here)
			s.ends(a)
		}},
		"lost after acks=1, no leader went": {"lost-write", func(s story) {
			s.election(here)
			s.wrote(1, 1, a)
			s.ends()
		}},
		"lost after acks=1, but it had been read": {"lost-write", func(s story) {
			s.wrote(1, 1, a)
			s.read(2, 0, 2, a)
			s.election(here)
			s.ends()
		}},
		"lost after acks=0": {"", func(s story) {
			s.sent(s.send(1, here, 0, 1, 2, true), okay, -1, -1)
			s.ends()
		}},
		"lost after acks=0, but it had been read": {"lost-write", func(s story) {
			s.sent(s.send(1, here, 0, 1, 2, true), okay, -1, -1)
			s.read(2, 0, 2, a)
			s.ends()
		}},
		"lost, and nothing is known of the end": {"", func(s story) {
			s.wrote(1, -1, a)
		}},
		"lost with an excuse": {"", func(s story) {
			s.wrote(1, -1, a)
			s.wrote(1, -1, b)
			s.read(2, 0, 3, a, b)
			s.excuse(here, 1, 2)
			s.tried(1, unknown, 4, 2)
			s.read(4, 2, 3, b) // an old leader serves it yet
			s.reset(2, here, 2)
			s.ends(a, batchOf(2, 1, 4, 2))
		}},
		"lost with an excuse for later data": {"lost-write", func(s story) {
			s.wrote(1, -1, a)
			s.wrote(1, -1, b)
			s.excuse(here, 1, 3)
			s.ends(a)
		}},
		"lost with an excuse for an older epoch": {"lost-write", func(s story) {
			s.excuse(here, 1, 2)
			s.wrote(1, -1, batchOf(2, 1, 1, 1))
			s.ends()
		}},
		"kept by the leader after a loss": {"", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.excuse(here, 2, 0, a)
			s.read(3, 0, 2, a)
			s.ends(a)
		}},
		"two values where data was lost": {"inconsistent-offsets", func(s story) {
			s.excuse(here, 1, 0)
			s.tried(1, unknown, 1, 2)
			s.tried(1, unknown, 3, 2)
			s.read(3, 0, 2, a)
			s.read(4, 0, 2, batchOf(0, 0, 3, 2))
		}},
		"written twice where data was lost": {"duplicate", func(s story) {
			s.excuse(here, 1, 0)
			s.tried(1, unknown, 1, 2)
			s.read(3, 0, 4, a, batchOf(2, 0, 1, 2))
		}},
		"sent again after a loss": {"", func(s story) {
			s.excuse(here, 1, 0)
			s.tried(1, unknown, 1, 2)
			s.read(3, 0, 2, a)
			s.read(4, 0, 2, batchOf(0, 1, 1, 2))
			s.ends(batchOf(0, 1, 1, 2))
		}},
		"lost, then there": {"resurrected", func(s story) {
			s.wrote(1, -1, a)
			s.excuse(here, 1, 0)
			s.ends(a)
		}},
		"lost, then there by another unclean election": {"", func(s story) {
			s.wrote(1, -1, a)
			s.excuse(here, 1, 0)
			s.unclean[here] = 2
			s.ends(a)
		}},
		"refused, then read": {"aborted-read", func(s story) {
			s.tried(1, failed, 1, 2)
			s.read(2, 0, 2, a)
		}},
		"refused, then there": {"aborted-read", func(s story) {
			s.tried(1, failed, 1, 2)
			s.ends(a)
		}},
		"read, never written": {"phantom", func(s story) { s.read(2, 0, 2, a) }},
		"half a batch": {"torn", func(s story) {
			s.tried(1, unknown, 1, 3)
			s.read(2, 0, 2, a)
		}},
		"a hole within a read": {"int-poll-skip", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.tried(1, unknown, 4, 2)
			s.read(2, 0, 5, a, c)
		}},
		"a hole before a read": {"int-poll-skip", func(s story) {
			s.tried(1, unknown, 3, 1)
			s.read(2, 0, 5, b)
		}},
		"a read that goes back within": {"nonmonotonic-int-poll", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.tried(1, unknown, 3, 1)
			s.read(2, 0, 5, a, b, b)
		}},
		"a read of what is behind": {"nonmonotonic-int-poll", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.read(2, 2, 5, a)
		}},
		"a hole between reads": {"poll-skip", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.tried(1, unknown, 4, 2)
			s.read(2, 0, 5, a)
			s.read(2, 3, 5, c)
		}},
		"reads that go back": {"nonmonotonic-poll", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.read(2, 0, 2, a)
			s.read(2, 0, 2, a)
		}},
		"reads that go back on purpose": {"", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.read(2, 0, 2, a)
			s.polled(s.poll(2, here, 2), nil, 0, failed)
			s.seek(2, here, 0)
			s.read(2, 0, 2, a)
		}},
		"out of range for no reason": {"position-lost", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.read(2, 0, 2, a)
			s.reset(2, here, 0)
		}},
		"above the high watermark": {"uncommitted-read", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.read(2, 0, 1, a)
		}},
		"never visible": {"unseen", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.final(here, 1, 0, 0, []batch{a})
		}},
		"a hole at the end": {"hole", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.tried(1, unknown, 4, 2)
			s.ends(a, c)
		}},
		"a log that begins later": {"", func(s story) {
			s.wrote(1, -1, a)
			s.wrote(1, -1, b)
			s.read(2, 0, 3, a, b)
			s.final(here, 1, 2, 3, []batch{b})
			s.final(here, 2, 0, 3, []batch{a, b})
			s.final(here, 3, 2, 2, nil)
		}},
		"replicas with other bytes": {"replicas-differ", func(s story) {
			s.tried(1, unknown, 1, 2)
			other := a
			other.crc++
			s.final(here, 1, 0, 2, []batch{a})
			s.final(here, 2, 0, 2, []batch{other})
		}},
		"a replica that lacks one": {"replicas-differ", func(s story) {
			s.tried(1, unknown, 1, 2)
			s.tried(1, unknown, 3, 1)
			s.final(here, 1, 0, 3, []batch{a, b})
			s.final(here, 2, 0, 3, []batch{a})
		}},
		"other order than sent": {"nonmonotonic-send", func(s story) {
			s.tried(1, unknown, 3, 1)
			s.tried(1, unknown, 1, 2)
			s.ends(a, b)
		}},
		"other order than sent, two at once": {"", func(s story) {
			one := s.send(1, here, -1, 3, 1, true)
			two := s.send(2, here, -1, 1, 2, true)
			s.sent(one, okay, 2, 0)
			s.sent(two, okay, 0, 0)
			s.ends(a, b)
		}},
		"other order than answered": {"realtime-order", func(s story) {
			s.sent(s.send(1, here, -1, 3, 1, true), okay, 2, 0)
			s.sent(s.send(2, here, -1, 1, 2, true), okay, 0, 0)
			s.ends(a, b)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := story{newHistory()}
			tc.make(s)
			found := s.check()
			names := make([]string, 0, len(found))
			for _, f := range found {
				names = append(names, f.name)
			}
			names = slices.Compact(names)
			if strings.Join(names, ",") != tc.want {
				t.Errorf("found %v, want %q", found, tc.want)
			}
		})
	}
}

// Committed offsets are judged as registers: a value that was read must be the
// newest one, a commit that was answered must not go back by itself, and an
// unknown commit may have happened or not.
func TestHistoryGroups(t *testing.T) {
	commit := func(s story, at int64, result outcome) { s.committed(s.commit(1, "g", here, at), result) }
	fetch := func(s story, want int64) {
		s.fetchedCommitted(s.fetchCommitted(2, "g", here), want, okay)
	}
	for name, tc := range map[string]struct {
		fine bool
		make func(s story)
	}{
		"plain": {true, func(s story) {
			fetch(s, -1)
			commit(s, 5, okay)
			fetch(s, 5)
			commit(s, 3, okay) // on purpose
			fetch(s, 3)
			s.fetchedCommitted(s.fetchCommitted(2, "h", here), -1, okay)
			s.fetchedCommitted(s.fetchCommitted(2, "g", there), -1, okay)
		}},
		"went back": {false, func(s story) {
			commit(s, 5, okay)
			commit(s, 6, okay)
			fetch(s, 5)
		}},
		"forgotten":  {false, func(s story) { commit(s, 5, okay); fetch(s, -1) }},
		"from dream": {false, func(s story) { fetch(s, 9) }},
		"refused, then there": {false, func(s story) {
			commit(s, 5, failed)
			fetch(s, 5)
		}},
		"unknown, came late": {true, func(s story) {
			commit(s, 4, okay)
			commit(s, 5, unknown)
			fetch(s, 4)
			fetch(s, 5)
		}},
		"unknown, came and went": {false, func(s story) {
			commit(s, 4, okay)
			commit(s, 5, unknown)
			fetch(s, 5)
			fetch(s, 4)
		}},
		"unknown, then overtaken by the same value": {true, func(s story) {
			commit(s, 5, unknown)
			commit(s, 6, okay)
			fetch(s, 6)
			commit(s, 5, okay)
			fetch(s, 5)
			commit(s, 7, okay)
			fetch(s, 7)
		}},
		"lost with the coordinator": {true, func(s story) {
			s.coordinator("g", there)
			s.excuse(there, 1, 0)
			commit(s, 5, okay)
			fetch(s, -1)
		}},
		"two hundred unknown ones of one value": {true, func(s story) {
			commit(s, 4, okay)
			for range 200 {
				commit(s, 5, unknown)
			}
			fetch(s, 4)
			fetch(s, 5)
			commit(s, 4, okay)
			fetch(s, 5)
			fetch(s, 5)
		}},
		"more reads than unknown writes": {false, func(s story) {
			commit(s, 4, okay)
			commit(s, 5, unknown)
			fetch(s, 5)
			commit(s, 4, okay)
			fetch(s, 5)
		}},
		"two hundred unknown ones": {true, func(s story) {
			for i := range int64(200) {
				commit(s, i, unknown)
			}
			commit(s, 500, okay)
			fetch(s, 500)
			fetch(s, 199)
			fetch(s, 3)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := story{newHistory()}
			tc.make(s)
			if found := s.check(); (len(found) == 0) != tc.fine || len(found) > 0 && found[0].name != "not-linearizable" {
				t.Errorf("found %v, want it fine: %v", found, tc.fine)
			}
		})
	}
}

// perfect is the history of n sends, each read twice, to one log.
func perfect(n int) *history {
	s := story{newHistory()}
	rng := rand.New(rand.NewPCG(1, 2))
	var log []batch
	next, value := int64(0), uint64(1)
	for range n {
		b := batchOf(next, 0, value, 1+rng.Int32N(3))
		s.wrote(rng.IntN(4), -1, b)
		log = append(log, b)
		next, value = b.next(), value+uint64(b.count)
		for p := 10; p < 12; p++ {
			s.read(p, b.base, b.next(), b)
		}
	}
	s.ends(log...)
	return s.history
}

// The work grows as the history does: each record of an operation and of a log
// is looked at a few times, however long the history is.
func TestHistoryLinear(t *testing.T) {
	for _, n := range []int{200, 20000} {
		j := &judge{h: perfect(n), living: map[partID][]seen{}}
		if found := j.judge(); len(found) > 0 {
			t.Fatal(found)
		}
		if j.work > 25*n {
			t.Errorf("%d sends and what was read of them took %d steps", n, j.work)
		}
	}
}

// One record of a good history spoiled in any one way is found, whichever it
// is: nothing passes because of where it stands.
func TestHistorySpoiled(t *testing.T) {
	const sends = 12
	for at := range sends {
		for what, spoil := range map[string]func(h *history, b *batch){
			"another value": func(_ *history, b *batch) { b.value += 1000 },
			"another base":  func(_ *history, b *batch) { b.base++ },
			"other bytes":   func(_ *history, b *batch) { b.crc++ },
			"another epoch": func(_ *history, b *batch) { b.epoch++ },
			"refused": func(h *history, b *batch) {
				for i := range h.ops {
					if o := &h.ops[i]; o.kind == opSend && o.value == b.value {
						o.outcome = failed
					}
				}
			},
		} {
			h := perfect(sends)
			polls := 0
			for i := range h.ops {
				if o := &h.ops[i]; o.kind == opPoll {
					if polls == 2*at {
						o.batches = slices.Clone(o.batches)
						spoil(h, &o.batches[0])
					}
					polls++
				}
			}
			if len(h.check()) == 0 {
				t.Errorf("read %d with %s passed", at, what)
			}
		}
		h := perfect(sends)
		for i := range h.finals[here] {
			h.finals[here][i].batches = slices.Delete(slices.Clone(h.finals[here][i].batches), at, at+1)
		}
		if len(h.check()) == 0 {
			t.Errorf("a log without batch %d passed", at)
		}
	}
}

// A report shows what was done near an offset, and nothing else.
func TestHistoryAround(t *testing.T) {
	h := perfect(40)
	got := h.around(here, 30)
	if lines := strings.Count(got, "\n"); lines < 15 || lines > 40 {
		t.Errorf("%d lines:\n%s", lines, got)
	}
	if h.around(there, 30) != "" {
		t.Error("another partition has a past")
	}
	for _, want := range []string{"send ok acks=-1", "poll ok from", "values=29+3 at 28"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
