package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"leat/auth"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/record"
)

// newTail follows a topic and counts how often it is woken.
func newTail(t *testing.T, b *Broker, topic string, all bool, starts ...TailStart) (*Tail, chan struct{}) {
	t.Helper()
	woken := make(chan struct{}, 100)
	tail, err := b.Tail(auth.Anonymous, TopicRef{Name: topic}, starts, all, func() { woken <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tail.Close)
	return tail, woken
}

// drain reads all that a tail has now and moves it on.
func drain(t *testing.T, tail *Tail) []string {
	t.Helper()
	var out []string
	for i := tail.Next(); i >= 0; i = tail.Next() {
		r := tail.Read(i, 1<<20)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		at := tail.Position(i)
		got := values(t, r)
		for _, v := range got {
			out = append(out, fmt.Sprintf("%d/%s", at.Partition, v))
		}
		tail.Seek(i, at.Offset+int64(len(got)))
	}
	return out
}

// A tail gets what its partitions get, each in its turn, and is woken once for
// each time that it had all.
func TestTailFollows(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 3, nil)
	produce(t, b, AcksAll, "t", 1, "a", "b")
	produce(t, b, AcksAll, "t", 2, "c")
	tail, woken := newTail(t, b, "t", false, TailStart{Partition: 1, Offset: 1}, TailStart{Partition: 2})
	if tail.Len() != 2 || tail.Position(0) != (TailStart{1, 1}) || tail.Topic().Name != "t" {
		t.Errorf("%d partitions, first %+v", tail.Len(), tail.Position(0))
	}
	// Without a Seek each has its turn again and again.
	if a, b, c := tail.Next(), tail.Next(), tail.Next(); a != 0 || b != 1 || c != 0 {
		t.Errorf("turns: %d %d %d", a, b, c)
	}
	// A position in the middle of a batch gets the whole batch.
	if got := fmt.Sprint(values(t, tail.Read(0, 0))); got != "[0:a 1:b]" {
		t.Errorf("read %s", got)
	}
	tail.Seek(0, 2)
	if got := fmt.Sprint(drain(t, tail)); got != "[2/0:c]" {
		t.Errorf("drained %s", got)
	}
	produce(t, b, AcksAll, "t", 0, "not followed")
	produce(t, b, AcksAll, "t", 1, "d")
	produce(t, b, AcksAll, "t", 1, "e")
	<-woken
	if got := fmt.Sprint(drain(t, tail)); got != "[1/2:d 1/3:e]" {
		t.Errorf("woken, drained %s", got)
	}
	if hw, start, err := tail.Watermark(0); hw != 4 || start != 0 || err != nil {
		t.Errorf("watermark %d, start %d, %v", hw, start, err)
	}
	// Back while it waits: there is something at once.
	tail.Seek(1, 0)
	if got := fmt.Sprint(drain(t, tail)); got != "[2/0:c]" {
		t.Errorf("after a seek, drained %s", got)
	}
	if len(woken) != 0 {
		t.Errorf("woken %d times too many", len(woken))
	}
	tail.Close()
	produce(t, b, AcksAll, "t", 1, "f")
	if len(woken) != 0 {
		t.Error("woken after it was closed")
	}
}

// Only the partition that was woken is parked anew; the others keep their place.
func TestTailParksWhatWoke(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 3, nil)
	tail, woken := newTail(t, b, "t", true)
	drain(t, tail)
	before := [3]place{tail.parts[0].place, tail.parts[1].place, tail.parts[2].place}
	produce(t, b, AcksAll, "t", 1, "x")
	<-woken
	drain(t, tail)
	for i, pl := range before {
		if moved := tail.parts[i].place != pl; moved != (i == 1) {
			t.Errorf("partition %d was parked anew: %v", i, moved)
		}
	}
}

// What is wrong with a Tail's beginning is said, and nothing stays behind.
func TestTailRefusals(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	topic := create(t, b, "t", 2, nil)
	for _, tc := range []struct {
		name   string
		ref    TopicRef
		starts []TailStart
		want   error
	}{
		{"unknown topic", TopicRef{Name: "nope"}, nil, ErrUnknownTopic},
		{"unknown id", TopicRef{ID: storage.NewTopicID()}, nil, ErrUnknownTopicID},
		{"bad name", TopicRef{Name: "a/b"}, nil, ErrInvalidTopic},
		{"partition -1", TopicRef{ID: topic.ID}, []TailStart{{Partition: -1}}, ErrUnknownPartition},
		{"partition 2", TopicRef{Name: "t"}, []TailStart{{Partition: 2}}, ErrUnknownPartition},
		{"twice", TopicRef{Name: "t"}, []TailStart{{Partition: 1}, {Partition: 1, Offset: 5}}, ErrInvalidRequest},
	} {
		if _, err := b.Tail(auth.Anonymous, tc.ref, tc.starts, false, func() {}); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	if n := len(b.topic(topic.ID).mu.tails); n != 0 {
		t.Errorf("%d tails stay", n)
	}
}

// A topic that ends is told to every tail, also to one that waits for nothing;
// the reason stands in Err and in every Read, and then the tail is still.
func TestTailEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(t *testing.T, b *Broker)
		want error
	}{
		"deleted": {func(t *testing.T, b *Broker) {
			if r := b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: "t"}})[0]; r.Err != nil {
				t.Error(r.Err)
			}
		}, ErrUnknownTopic},
		"shutdown": {func(t *testing.T, b *Broker) {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}, ErrShuttingDown},
		"disk failed": {func(_ *testing.T, b *Broker) { b.failed(ErrStorageFailed) }, ErrStorageFailed},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := Open(t.Context(), Options{FS: disk.NewMem(), Path: "/data"})
			if err != nil {
				t.Fatal(err)
			}
			create(t, b, "t", 2, nil)
			produce(t, b, AcksAll, "t", 0, "there is something to read")
			paused, pausedWoken := newTail(t, b, "t", true)
			waiting, waitingWoken := newTail(t, b, "t", false, TailStart{0, 1}, TailStart{1, 0})
			drain(t, waiting)
			tc.end(t, b)
			<-pausedWoken
			<-waitingWoken
			for _, tail := range []*Tail{paused, waiting} {
				if !errors.Is(tail.Err(), tc.want) {
					t.Errorf("Err is %v, want %v", tail.Err(), tc.want)
				}
				for range 2 {
					i := tail.Next()
					if i < 0 {
						t.Fatal("no turn for a partition that ended")
					}
					if r := tail.Read(i, 1); !errors.Is(r.Err, tc.want) || r.Section != nil || r.Topic != "t" || r.HighWatermark != -1 {
						t.Errorf("read %+v, want %v", r, tc.want)
					}
					if _, _, err := tail.Watermark(i); !errors.Is(err, tc.want) {
						t.Errorf("watermark: %v", err)
					}
				}
				if i := tail.Next(); i != -1 {
					t.Errorf("turn for %d after all was told", i)
				}
				if tail.Topic().Name != "t" {
					t.Error("the topic's name is gone")
				}
			}
			if _, err := b.Tail(auth.Anonymous, TopicRef{Name: "t"}, nil, true, func() {}); !errors.Is(err, tc.want) {
				t.Errorf("another tail: %v", err)
			}
			if name != "shutdown" {
				_ = b.Close()
			}
		})
	}
}

// A damaged partition is told once by Read and does not keep the others.
func TestTailDamage(t *testing.T) {
	fs := disk.NewMem()
	b := open(t, fs, nil)
	create(t, b, "t", 2, nil)
	produce(t, b, AcksAll, "t", 0, "value")
	wound(t, fs, partitionOf(b, "t"))
	tail, woken := newTail(t, b, "t", true)
	if i := tail.Next(); i != 0 || !errors.Is(tail.Read(i, 1).Err, ErrCorruptRecord) {
		t.Errorf("partition %d: %v", i, tail.Read(0, 1).Err)
	}
	if i := tail.Next(); i != -1 {
		t.Errorf("turn for %d", i)
	}
	produce(t, b, AcksAll, "t", 1, "v")
	<-woken
	if got := fmt.Sprint(drain(t, tail)); got != "[1/0:v]" {
		t.Errorf("the other partition gave %s", got)
	}
	if tail.Err() != nil {
		t.Errorf("the topic is gone: %v", tail.Err())
	}
}

// Who follows all partitions follows those that come, from their beginning.
func TestTailGrows(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 2, nil)
	produce(t, b, AcksAll, "t", 0, "named")
	produce(t, b, AcksAll, "t", 1, "not named")
	all, allWoken := newTail(t, b, "t", true, TailStart{0, 1})
	some, someWoken := newTail(t, b, "t", false, TailStart{0, 1})
	if got := fmt.Sprint(drain(t, all), drain(t, some)); got != "[1/0:not named] []" {
		t.Errorf("drained %s", got)
	}
	if r := b.CreatePartitions(t.Context(), auth.Anonymous, []PartitionsSpec{{Topic: "t", Count: 4}}, false)[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	<-allWoken
	if i := all.Next(); i != -1 || all.Len() != 4 || all.Position(3) != (TailStart{3, 0}) || len(all.Topic().Partitions) != 4 {
		t.Errorf("turn for %d of %d partitions", i, all.Len())
	}
	produce(t, b, AcksAll, "t", 3, "new")
	<-allWoken
	if got := fmt.Sprint(drain(t, all)); got != "[3/0:new]" {
		t.Errorf("drained %s", got)
	}
	if got := drain(t, some); got != nil || len(someWoken) != 0 || some.Len() != 1 {
		t.Errorf("who follows one partition got %v", got)
	}
}

// A position that the log has left behind, or not come to, is told with the
// log's bounds; a seek goes on.
func TestTailOvertaken(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 1, nil)
	produce(t, b, AcksAll, "t", 0, "a")
	produce(t, b, AcksAll, "t", 0, "b")
	slow, slowWoken := newTail(t, b, "t", true)
	end, endWoken := newTail(t, b, "t", true, TailStart{0, 2})
	drain(t, end)
	if r := b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "t", Offset: 1}})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	var oe *OffsetError
	if r := slow.Read(slow.Next(), 1); !errors.As(r.Err, &oe) || oe.Start != 1 || oe.End != 2 {
		t.Fatalf("read %+v", r)
	}
	slow.Seek(0, oe.Start)
	if got := fmt.Sprint(drain(t, slow)); got != "[0/1:b]" {
		t.Errorf("after the seek %s", got)
	}
	slow.Seek(0, 3)
	if r := slow.Read(max(slow.Next(), 0), 1); !errors.As(r.Err, &oe) || oe.Offset != 3 || oe.End != 2 {
		t.Errorf("beyond the end: %+v", r)
	}
	if i := slow.Next(); i != -1 {
		t.Errorf("turn for %d after the error was told", i)
	}
	// Who has all is not troubled by what goes.
	if r := b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "t", Offset: -1}})[0]; r.LowWatermark != 2 {
		t.Fatal(r)
	}
	if len(slowWoken)+len(endWoken) != 0 || end.Next() != -1 {
		t.Error("woken by a deletion of what was read")
	}
}

// Many tails beside many producers, with partitions that come, tails that go
// and positions that jump back: every tail gets every record of its partitions
// in order, from where it stands, and none is left asleep.
func TestTailStress(t *testing.T) {
	const tails, producers, each = 24, 4, 60
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 3, nil)
	var group, produced sync.WaitGroup
	var total atomic.Int64
	for n := range tails {
		woken := make(chan struct{}, 1)
		tail, err := b.Tail(auth.Anonymous, TopicRef{Name: "t"}, nil, true, func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			defer tail.Close()
			follow(t, tail, woken, rand.New(rand.NewPCG(uint64(n), 1)), producers*each)
			total.Add(1)
		})
		// Others come and go.
		group.Go(func() {
			for range 50 {
				short, err := b.Tail(auth.Anonymous, TopicRef{Name: "t"}, nil, true, func() {})
				if err != nil {
					t.Error(err)
					return
				}
				for range 3 {
					short.Next()
				}
				short.Close()
				short.Close()
			}
		})
	}
	for n := range producers {
		produced.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 2))
			for i := range each {
				if n == 0 && i%20 == 10 {
					b.CreatePartitions(t.Context(), auth.Anonymous, []PartitionsSpec{{Topic: "t", Count: int32(3 + i/20 + 1)}}, false)
				}
				if r := produce(t, b, AcksAll, "t", rng.Int32N(3), fmt.Sprint(n, i)); r.Err != nil {
					t.Error(r.Err)
				}
			}
		})
	}
	produced.Wait()
	group.Wait()
	if total.Load() != tails {
		t.Errorf("%d of %d tails came to the end", total.Load(), tails)
	}
}

// follow reads until the positions stand for want records.
func follow(t *testing.T, tail *Tail, woken chan struct{}, rng *rand.Rand, want int) {
	for {
		i := tail.Next()
		if i < 0 {
			sum := 0
			for k := range tail.Len() {
				sum += int(tail.Position(k).Offset)
			}
			if sum == want {
				return
			}
			<-woken
			continue
		}
		at := tail.Position(i)
		r := tail.Read(i, rng.IntN(300))
		if r.Err != nil || r.Section == nil {
			t.Errorf("partition %d at %d: %+v", at.Partition, at.Offset, r)
			return
		}
		p := make([]byte, r.Section.Len())
		_, _ = r.Section.ReadAt(p, 0)
		r.Section.Release()
		next := at.Offset
		for len(p) > 0 {
			var batch record.Batch
			var err error
			if batch, p, err = record.Next(p); err != nil {
				t.Error(err)
				return
			}
			if batch.BaseOffset() != next {
				t.Errorf("partition %d: %d follows %d", at.Partition, batch.BaseOffset(), next)
				return
			}
			next = batch.LastOffset() + 1
		}
		tail.Seek(i, next)
		if rng.IntN(10) == 0 {
			k := rng.IntN(tail.Len())
			tail.Seek(k, max(0, tail.Position(k).Offset-rng.Int64N(3)))
		}
	}
}

// A record that comes while the tail is about to sleep is not slept over.
func TestTailHearsWhileParking(t *testing.T) {
	b := open(t, disk.NewMem(), map[string]string{"flush.messages": "1000000"})
	create(t, b, "t", 1, nil)
	tail, woken := newTail(t, b, "t", true)
	const rounds = 10000
	next := make(chan struct{}, 1)
	var group sync.WaitGroup
	group.Go(func() {
		for range rounds {
			<-next
			if r := produce(t, b, AcksLeader, "t", 0, "v"); r.Err != nil {
				t.Error(r.Err)
			}
		}
	})
	for offset := int64(0); offset < rounds; {
		next <- struct{}{} // from here on the record may come at any time
		for offset == tail.Position(0).Offset {
			if tail.Next() < 0 {
				<-woken
			} else {
				tail.Seek(0, offset+1)
			}
		}
		offset++
	}
	group.Wait()
}

// Deletion and closing beside tails that are read leave nobody behind.
func TestTailEndStress(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	for round := range 20 {
		name := fmt.Sprint("t", round)
		create(t, b, name, 2, nil)
		var group sync.WaitGroup
		for n := range 8 {
			woken := make(chan struct{}, 100)
			tail, err := b.Tail(auth.Anonymous, TopicRef{Name: name}, nil, true, func() { woken <- struct{}{} })
			if err != nil {
				t.Fatal(err)
			}
			group.Go(func() {
				defer tail.Close()
				for tail.Err() == nil && n > 0 { // tail 0 is paused
					i := tail.Next()
					if i < 0 {
						<-woken
						continue
					}
					r := tail.Read(i, 1)
					if r.Section != nil {
						r.Section.Release()
						tail.Seek(i, tail.Position(i).Offset+1)
					} else if !errors.Is(r.Err, ErrUnknownTopic) {
						t.Errorf("read: %v", r.Err)
					}
				}
				for tail.Err() == nil {
					<-woken
				}
			})
		}
		group.Go(func() {
			for range 5 {
				produce(t, b, AcksLeader, name, 0, strings.Repeat("v", 10))
			}
		})
		group.Go(func() { b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: name}}) })
		group.Wait()
	}
}
