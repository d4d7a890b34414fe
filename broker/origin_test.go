package broker

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"leat/auth"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/record"
)

// keyedSet is a set of so many records for the topic t, of the request of that
// name, with a key and without one by turns.
func keyedSet(t *testing.T, b *Broker, key, request string, records int) (*RecordSet, error) {
	t.Helper()
	s, err := b.NewRecordSet(t.Context(), auth.Anonymous, "t")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Key(auth.Anonymous, key, sha256.Sum256([]byte(request))); err != nil {
		s.Close()
		return nil, err
	}
	for i := range records {
		var k []byte
		if i%2 == 0 {
			k = fmt.Append(nil, "k", i)
		}
		if err := s.Add(-1, -1, k, fmt.Append(nil, request, i), nil); err != nil {
			t.Fatal(err)
		}
	}
	return s, nil
}

// writeKeyed appends a keyed set and returns what became of it.
func writeKeyed(t *testing.T, b *Broker, key, request string, records int) []PartitionResult {
	t.Helper()
	s, err := keyedSet(t, b, key, request, records)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	results, err := s.Produce(t.Context(), AcksAll, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// TestKeyHash proves that a key's id is of its principal, topic and key, none of
// them running into the next, and that it is no producer's.
func TestKeyHash(t *testing.T) {
	seen := map[int64]string{}
	for _, of := range [][3]string{
		{"a", "t", "key"}, {"b", "t", "key"}, {"a", "u", "key"}, {"a", "t", "yek"}, {"a", "tk", "ey"}, {"a", "", "tkey"}, {"User:a", "t", "key"},
	} {
		id := keyHash(auth.Principal{Name: of[0]}, of[1], of[2])
		if id < storage.FirstKeyID || id >= storage.FirstKeyID+1<<61 {
			t.Errorf("%q: id %d", of, id)
		}
		if other, taken := seen[id]; taken {
			t.Errorf("%q has the id of %s", of, other)
		}
		seen[id] = fmt.Sprintf("%q", of)
	}
}

// TestKeyCompletes proves that what an earlier try of a keyed request could not
// write the next one does, with nothing written twice and every record in its
// first place, and that it is known as a whole from then on.
func TestKeyCompletes(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 4, nil)
	first, err := keyedSet(t, b, "key", "a", 40)
	if err != nil {
		t.Fatal(err)
	}
	stamp := first.Now()
	// The try ends, as by a crash, with one partition written.
	built, err := first.batches[1].b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	part, err := b.partition(first.topic, first.batches[1].partition)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := part.append(storage.Append{Batch: built, Epoch: anyEpoch, Trusted: true}, AcksAll); err != nil {
		t.Fatal(err)
	}
	placed := slices.Clone(first.Placement())
	first.Close()

	again, err := keyedSet(t, b, "key", "a", 40)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if again.Now() != stamp {
		t.Errorf("the time is %d, was %d", again.Now(), stamp)
	}
	for i, at := range again.Placement() {
		if at != placed[i] {
			t.Fatalf("record %d is in batch %d, was in %d", i, at, placed[i])
		}
	}
	results, err := again.Produce(t.Context(), AcksAll, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for i, r := range results {
		if r.Err != nil || r.Duplicate != (i == 1) || r.Base != 0 {
			t.Errorf("batch %d: %+v", i, r)
		}
		total += r.Count
	}
	if total != 40 {
		t.Errorf("%d records", total)
	}
	for i, r := range writeKeyed(t, b, "key", "a", 40) {
		if !r.Duplicate || r.Base != 0 || r.Count != results[i].Count || r.Partition != results[i].Partition {
			t.Errorf("batch %d: %+v, was %+v", i, r, results[i])
		}
	}
}

// TestKeyHeld proves that a key is one request's at a time, until it is written or
// given up; that another request under it is refused from then on, wherever its
// records would go; and that one that is a part of it is another.
func TestKeyHeld(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 4, nil)
	s, err := keyedSet(t, b, "key", "a", 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, request := range []string{"a", "b"} {
		if _, err := keyedSet(t, b, "key", request, 3); !errors.Is(err, ErrKeyInProgress) {
			t.Errorf("request %s meanwhile: %v", request, err)
		}
	}
	s.Close()
	writeKeyed(t, b, "key", "b", 3)
	if _, err := keyedSet(t, b, "key", "a", 3); !errors.Is(err, ErrKeyReused) {
		t.Errorf("another request: %v", err)
	}
	if s, err = keyedSet(t, b, "key", "b", 1); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Produce(t.Context(), AcksAll, time.Minute); !errors.Is(err, ErrKeyReused) {
		t.Errorf("a part of the request: %v", err)
	}
}

// TestKeyAtOnce proves that of a request that is sent many times at once, while
// its topic gets more partitions, one is written.
func TestKeyAtOnce(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 2, nil)
	var wrote [20]atomic.Int32
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() {
			for i := range wrote {
				for done := false; !done; {
					s, err := keyedSet(t, b, fmt.Sprint("key", i), fmt.Sprint(i), 9)
					var results []PartitionResult
					if err == nil {
						results, err = s.Produce(t.Context(), AcksAll, time.Minute)
						s.Close()
					}
					switch {
					case errors.Is(err, ErrKeyInProgress):
					case err != nil:
						t.Error(err)
						return
					default:
						done = true
						if !results[0].Duplicate {
							wrote[i].Add(1)
						}
					}
				}
			}
		})
	}
	for n := int32(3); n < 12; n++ {
		if err := b.CreatePartitions(t.Context(), auth.Anonymous, []PartitionsSpec{{Topic: "t", Count: n}}, false)[0].Err; err != nil {
			t.Error(err)
		}
	}
	work.Wait()
	for i := range wrote {
		if n := wrote[i].Load(); n != 1 {
			t.Errorf("request %d was written %d times", i, n)
		}
	}
}

// TestKeyExpires proves that a key's time and number are configs of the topic.
func TestKeyExpires(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 3, map[string]string{"leat.idempotency.max.keys": "2"})
	for _, key := range []string{"1", "2", "3"} {
		writeKeyed(t, b, key, key, 1)
	}
	for key, known := range map[string]bool{"3": true, "2": true, "1": false} {
		s, err := keyedSet(t, b, key, key, 1)
		if err != nil {
			t.Fatal(err)
		}
		if was := s.batches[0].was != nil; was != known {
			t.Errorf("key %s: known is %v", key, was)
		}
		s.Close()
	}
}

// TestKeyIDsAreNobodys proves that a batch of a client cannot have an id that
// stands for a key.
func TestKeyIDsAreNobodys(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 1, nil)
	var w record.Builder
	w.Reset(record.Options{Sequence: &record.Sequence{Producer: storage.FirstKeyID, Epoch: 0, First: 0}})
	w.AddValue(b.opts.Now().UnixMilli(), []byte("v"))
	batch, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	r := b.Produce(t.Context(), auth.Anonymous, &ProduceRequest{Acks: AcksAll, Batches: []ProduceBatch{{Topic: "t", Batch: batch}}}).Wait(t.Context())[0]
	if !errors.Is(r.Err, ErrInvalidRecord) {
		t.Errorf("%+v", r)
	}
}

// TestSequenceAtOnce proves that of a producer's request that is sent twice at once
// one is written; the other does not say that it was at its own time.
func TestSequenceAtOnce(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 1, nil)
	id, _, err := b.InitProducerID(t.Context(), auth.Anonymous)
	if err != nil {
		t.Fatal(err)
	}
	var sets [3]*RecordSet
	begin := func(i int) {
		if sets[i], err = b.NewRecordSet(t.Context(), auth.Anonymous, "t"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sets[i].Close)
		if err := sets[i].Identify(ProducerSequence{ID: id}, 0); err != nil {
			t.Fatal(err)
		}
		if err := sets[i].Add(0, -1, nil, []byte("v"), nil); err != nil {
			t.Fatal(err)
		}
	}
	begin(0)
	begin(1) // which knows nothing of the other
	for i, want := range []PartitionResult{
		{Count: 1, Timestamp: -1}, {Count: 1, Timestamp: -1, Duplicate: true, Untimed: true}, {Count: 1, Timestamp: -1, Duplicate: true},
	} {
		if i == 2 {
			begin(2)
			if sets[2].Now() != sets[0].Now() {
				t.Errorf("the time is %d, was %d", sets[2].Now(), sets[0].Now())
			}
		}
		got, err := sets[i].Produce(t.Context(), AcksAll, time.Minute)
		if err != nil || got[0] != want {
			t.Errorf("try %d: %+v, %v, want %+v", i, got, err, want)
		}
	}
}
