package broker

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"leat/auth"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/record"
)

// sent is a record of a request; ts 0 is none.
type sent struct {
	partition  int32
	ts         int64
	key, value []byte
	headers    []record.Header
}

// sendAlike sends a request with a key whose digest is the same for all, so that
// nothing but the records tells it from others.
func sendAlike(t *testing.T, b *Broker, key string, records ...sent) ([]PartitionResult, error) {
	t.Helper()
	s, err := b.NewRecordSet(t.Context(), auth.Anonymous, "t")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Key(auth.Anonymous, key, [32]byte{1, 2, 3}); err != nil {
		return nil, err
	}
	for _, r := range records {
		if r.ts == 0 {
			r.ts = -1
		}
		if err := s.Add(r.partition, r.ts, r.key, r.value, r.headers); err != nil {
			t.Fatal(err)
		}
	}
	return s.Produce(t.Context(), AcksAll, time.Minute)
}

// wantAlike sends what an earlier try has written and proves that it is known.
func wantAlike(t *testing.T, b *Broker, key string, records ...sent) {
	t.Helper()
	results, err := sendAlike(t, b, key, records...)
	if err != nil || !results[0].Duplicate || results[0].Err != nil {
		t.Errorf("key %s: the same request: %+v, %v", key, results, err)
	}
}

// TestKeyTellsRecords proves that a request which has the bits of another one under
// its key is told from it by each part of its records, in every batch, whatever
// the topic makes of them, and also by another process.
func TestKeyTellsRecords(t *testing.T) {
	for _, configs := range []map[string]string{
		nil,
		{"compression.type": "zstd"},
		{"message.timestamp.type": "LogAppendTime"},
		{"max.message.bytes": "200"},
	} {
		t.Run(fmt.Sprint(configs), func(t *testing.T) {
			fs := disk.NewMem()
			b, err := Open(t.Context(), Options{FS: fs, Path: "/data", Host: "h", Port: 1})
			if err != nil {
				t.Fatal(err)
			}
			create(t, b, "t", 3, configs)
			request := func(change func(r []sent)) []sent {
				r := make([]sent, 12)
				for i := range r {
					r[i] = sent{
						partition: int32(i % 2), key: fmt.Append(nil, "key", i), value: fmt.Append(nil, "value", i),
						headers: []record.Header{{Key: "a", Value: []byte("1")}, {Key: "b", Value: []byte{}}},
					}
				}
				r[4].ts, r[5].key, r[6].value, r[7].headers = b.opts.Now().UnixMilli()-5000, nil, []byte{}, nil
				if change != nil {
					change(r)
				}
				return r
			}
			same := request(nil)
			if results, err := sendAlike(t, b, "key", same...); err != nil || results[0].Duplicate {
				t.Fatalf("%+v, %v", results, err)
			}
			others := map[string]func(r []sent){
				"a value":              func(r []sent) { r[3].value = []byte("value4") },
				"the last value":       func(r []sent) { r[11].value = []byte("value12") },
				"an empty value":       func(r []sent) { r[6].value = nil },
				"a key":                func(r []sent) { r[3].key = []byte("kex3") },
				"no key":               func(r []sent) { r[5].key = []byte{} },
				"key and value":        func(r []sent) { r[3].key, r[3].value = []byte("key3v"), []byte("alue3") },
				"a header's name":      func(r []sent) { r[0].headers[0].Key = "c" },
				"a header's value":     func(r []sent) { r[0].headers[0].Value = []byte("2") },
				"a header without one": func(r []sent) { r[0].headers[1].Value = nil },
				"the headers' order":   func(r []sent) { r[0].headers[0], r[0].headers[1] = r[0].headers[1], r[0].headers[0] },
				"a header less":        func(r []sent) { r[0].headers = r[0].headers[:1] },
				"a header more":        func(r []sent) { r[7].headers = []record.Header{{Key: "a"}} },
				"the order":            func(r []sent) { r[0].value, r[2].value = r[2].value, r[0].value },
				"the partition":        func(r []sent) { r[11].partition = 2 },
				"the partitions":       func(r []sent) { r[10].partition, r[11].partition = 1, 0 },
			}
			if configs["message.timestamp.type"] == "" {
				others["a time"] = func(r []sent) { r[4].ts = same[4].ts - 1 }
				others["no time"] = func(r []sent) { r[4].ts = 0 }
				others["a time more"] = func(r []sent) { r[3].ts = same[4].ts }
			}
			for again := range 2 {
				wantAlike(t, b, "key", same...)
				for name, change := range others {
					r := request(change)
					if name != "a time" && name != "no time" {
						r[4].ts = same[4].ts
					}
					if results, err := sendAlike(t, b, "key", r...); !errors.Is(err, ErrKeyReused) {
						t.Errorf("process %d: another by %s: %+v, %v", again, name, results, err)
					}
				}
				if again == 0 {
					if err := b.Close(); err != nil {
						t.Fatal(err)
					}
					b = open(t, fs, nil)
				}
			}
		})
	}
}

// TestKeyTellsMany proves that of 10,000 other requests that have the bits of the
// one under their key none is taken for it.
func TestKeyTellsMany(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 1, nil)
	if _, err := sendAlike(t, b, "key", sent{value: []byte("value")}); err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 {
		if results, err := sendAlike(t, b, "key", sent{value: fmt.Append(nil, i)}); !errors.Is(err, ErrKeyReused) {
			t.Fatalf("request %d: %+v, %v", i, results, err)
		}
	}
	wantAlike(t, b, "key", sent{value: []byte("value")})
}

// TestKeyTellsRest proves that another request with the bits of one of which a part
// was written does not write the rest, and that the one itself does.
func TestKeyTellsRest(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 2, nil)
	first, second := sent{partition: 0, value: []byte("first")}, sent{partition: 1, value: []byte("second")}
	if _, err := sendAlike(t, b, "key", first); err != nil {
		t.Fatal(err)
	}
	if _, err := sendAlike(t, b, "key", sent{partition: 0, value: []byte("third")}, second); !errors.Is(err, ErrKeyReused) {
		t.Errorf("another request: %v", err)
	}
	results, err := sendAlike(t, b, "key", first, second)
	if err != nil || !results[0].Duplicate || results[1].Duplicate || results[1].Base != 0 {
		t.Errorf("%+v, %v", results, err)
	}
}

// TestKeyTellsGone proves that a request is still known by its bits when its records
// were deleted.
func TestKeyTellsGone(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 1, nil)
	if _, err := sendAlike(t, b, "key", sent{value: []byte("value")}); err != nil {
		t.Fatal(err)
	}
	if r := b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "t", Offset: 1}})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	wantAlike(t, b, "key", sent{value: []byte("value")})
	wantAlike(t, b, "key", sent{value: []byte("other")})
}

// TestDeadLetterAgain proves that a dead letter that is sent again for another
// reason, or counts more deliveries, is the same.
func TestDeadLetterAgain(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	of := create(t, b, "t", 1, nil)
	create(t, b, "dead", 1, nil)
	if _, err := sendAlike(t, b, "key", sent{value: []byte("value")}); err != nil {
		t.Fatal(err)
	}
	part := b.served(storage.ID{Topic: of.ID})
	for i, reason := range []string{deadAfterDeliveries, deadByRelease} {
		d := deadLetter{group: "g", topic: "dead", part: part, to: 1, deliveries: int32(i), reason: reason}
		if next, err := b.bury(t.Context(), auth.Anonymous, &d); err != nil || next != 1 {
			t.Errorf("%s: %d, %v", reason, next, err)
		}
	}
	if end := b.ListOffsets(t.Context(), auth.Anonymous, []OffsetQuery{{Topic: "dead", Timestamp: OffsetLatest, Epoch: -1}})[0].Offset; end != 1 {
		t.Errorf("%d dead letters", end)
	}
}
