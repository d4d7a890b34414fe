package controller

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"leat/storage"
)

// Versions of a list of partitions, each made from any earlier one, have what was
// set in them and in those that they come from: what is shared is never written.
func TestPartitionsVersions(t *testing.T) {
	type version struct {
		list Partitions
		want []int32 // the leader epochs
	}
	rng := rand.New(rand.NewPCG(1, 2))
	versions := []version{{}}
	for range 300 {
		from := &versions[len(versions)-1-rng.IntN(min(len(versions), 5))]
		next := version{list: from.list.edit(), want: append([]int32(nil), from.want...)}
		for range rng.IntN(1 + rng.IntN(3*chunkLen)) {
			i, epoch := len(next.want), rng.Int32()
			if i > 0 && rng.IntN(2) == 0 {
				i = rng.IntN(i)
				next.want[i] = epoch
			} else {
				next.want = append(next.want, epoch)
			}
			next.list.set(i, Partition{LeaderEpoch: epoch})
		}
		next.list.seal()
		versions = append(versions, next)
	}
	longest := 0
	for n := range versions {
		v := &versions[n]
		if v.list.Len() != len(v.want) {
			t.Fatalf("version %d has %d partitions, want %d", n, v.list.Len(), len(v.want))
		}
		for i, want := range v.want {
			if got := v.list.At(i).LeaderEpoch; got != want {
				t.Fatalf("version %d, partition %d of %d: %d, want %d", n, i, len(v.want), got, want)
			}
		}
		longest = max(longest, len(v.want))
	}
	if longest < 10*chunkLen {
		t.Errorf("the longest list has %d partitions", longest)
	}
}

// One change of a partition costs about the same in a topic of ten partitions and
// in one of 10,000, and a state that was published stays as it is.
func TestChangeCostsWhatChanges(t *testing.T) {
	cost := func(partitions int) (bytes uint64) {
		s := big(t, 1, partitions)
		id := storage.ID{Topic: s.TopicNamed("t0").ID, Partition: int32(partitions / 2)}
		_, p := s.find(id)
		was, hash := *p, s.Hash()
		changed := was
		changed.Epoch++
		record := []Record{&PartitionChanged{Topic: id.Topic, Index: id.Partition, Partition: changed}}
		const changes = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range changes {
			next, err := s.With(record)
			if err != nil {
				t.Fatal(err)
			}
			if _, is := next.find(id); is.Epoch != changed.Epoch || p.Epoch != was.Epoch {
				t.Fatalf("the change made %+v of %+v", is, p)
			}
		}
		runtime.ReadMemStats(&after)
		if s.Hash() != hash {
			t.Error("the state before the change is another")
		}
		return (after.TotalAlloc - before.TotalAlloc) / changes
	}
	few, many := cost(10), cost(10_000)
	if many > few+32<<10 {
		t.Errorf("a change in a topic of 10,000 partitions allocates %d bytes, in one of ten %d", many, few)
	}
}
