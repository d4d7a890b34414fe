package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"leat/auth"
	"leat/storage/disk"
)

// fillDisk produces until it is refused, and returns how many records went in.
func fillDisk(t *testing.T, b *Broker, topic string) (n int64) {
	t.Helper()
	value := strings.Repeat("x", 900_000)
	for range 1000 {
		r := produce(t, b, AcksAll, topic, 0, value)
		if errors.Is(r.Err, ErrStorageFull) {
			return n
		}
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		n++
	}
	t.Fatal("the disk does not fill")
	return 0
}

// eventuallyNil polls until fn gives no error.
func eventuallyNil(t *testing.T, what string, fn func() error) {
	t.Helper()
	deadline, tick := time.After(20*time.Second), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		err := fn()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		case <-tick.C:
		}
	}
}

// A disk that produce has filled refuses records through every acks, and takes
// everything that is needed to make room: records can be read, configs changed,
// records and topics deleted; then produce works again, and nothing is lost over
// kill -9 in the middle of that. The same after somebody else took the last byte.
func TestFullDisk(t *testing.T) {
	fs := disk.NewMem()
	fs.SetCapacity(96 << 20)
	b := open(t, fs, nil)
	create(t, b, "t", 1, map[string]string{"segment.bytes": "4000000"})
	create(t, b, "other", 1, map[string]string{"segment.bytes": "4000000"})
	if r := produce(t, b, AcksAll, "other", 0, strings.Repeat("o", 900_000)); r.Err != nil {
		t.Fatal(r.Err)
	}
	n := fillDisk(t, b, "t")
	for _, acks := range []Acks{AcksNone, AcksLeader, AcksAll} {
		if r := produce(t, b, acks, "other", 0, "v"); !errors.Is(r.Err, ErrStorageFull) {
			t.Errorf("acks %d: %v", acks, r.Err)
		}
	}
	alter := func(b *Broker, name, value string) error {
		return b.AlterTopicConfigs(t.Context(), auth.Anonymous, "other", []ConfigChange{{Name: name, Value: &value}}, false)
	}
	if err := alter(b, "retention.ms", "100000"); err != nil {
		t.Errorf("a config: %v", err)
	}
	whole := func(b *Broker, start int64) {
		t.Helper()
		o := b.ListOffsets(t.Context(), auth.Anonymous, []OffsetQuery{
			{Topic: "t", Timestamp: OffsetEarliest, Epoch: -1}, {Topic: "t", Timestamp: OffsetLatest, Epoch: -1},
		})
		if o[0].Offset != start || o[1].Offset != n {
			t.Fatalf("the log is [%d, %d), want [%d, %d)", o[0].Offset, o[1].Offset, start, n)
		}
		for at := start; at < n; at++ {
			if v := fetchAll(t, b, "t", 0, at); len(v) != 1 || !strings.HasPrefix(v[0], fmt.Sprint(at, ":xxx")) {
				t.Fatalf("fetch at %d: %d records", at, len(v))
			}
		}
	}
	whole(b, 0)
	killed := open(t, fs.CrashClone(1, nil), nil)
	whole(killed, 0)

	if u, err := fs.Usage("/"); err != nil || u.Free == 0 {
		t.Fatalf("%+v, %v", u, err)
	}
	fs.SetFree(0) // somebody else took it
	if err := alter(b, "retention.ms", "200000"); err != nil {
		t.Errorf("a config on a disk without a byte: %v", err)
	}
	whole(b, 0)
	r := b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "t", Offset: 10}})[0]
	if r.Err != nil {
		t.Fatalf("delete records: %v", r.Err)
	}
	whole(b, 10)
	whole(open(t, fs.CrashClone(0, nil), nil), 10)
	if r := b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: "t"}})[0]; r.Err != nil {
		t.Fatalf("delete topic: %v", r.Err)
	}
	eventuallyNil(t, "produce after the topic went", func() error { return produce(t, b, AcksAll, "other", 0, "v").Err })
}

// A time in hours or minutes is taken at the start as Kafka takes it: the exact
// name wins, then minutes; what is no time is refused, and so is a change.
func TestCoarseTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		set             map[string]string
		retention, roll string // "" for refused
	}{
		{map[string]string{"log.retention.hours": "2"}, "7200000", "604800000"},
		{map[string]string{"log.retention.hours": "2", "log.retention.minutes": "5"}, "300000", "604800000"},
		{map[string]string{"log.retention.hours": "2", "log.retention.minutes": "5", "log.retention.ms": "7"}, "7", "604800000"},
		{map[string]string{"log.retention.hours": "-1", "log.roll.hours": "1"}, "-1", "3600000"},
		{map[string]string{"log.retention.hours": "2147483647"}, "7730941129200000", "604800000"},
		{map[string]string{"log.roll.hours": "1", "log.roll.ms": "5"}, "604800000", "5"},
		{map[string]string{"log.retention.hours": "2147483648"}, "", ""},
		{map[string]string{"log.retention.minutes": "-2"}, "", ""},
		{map[string]string{"log.retention.minutes": "x", "log.retention.ms": "7"}, "", ""},
		{map[string]string{"log.roll.hours": "0"}, "", ""},
	} {
		static, err := checkServerConfigs(c.set)
		if c.retention == "" {
			if !errors.Is(err, ErrInvalidConfig) {
				t.Errorf("%v: %v", c.set, err)
			}
			continue
		}
		s := serverConfigs{static: static}
		if retention, roll := s.value("log.retention.ms"), s.value("log.roll.ms"); err != nil || retention != c.retention || roll != c.roll {
			t.Errorf("%v: retention %s, roll %s, %v", c.set, retention, roll, err)
		}
	}
	if _, err := settableConfig("log.retention.hours"); !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("a change while the server runs: %v", err)
	}
}
