package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/auth"
	"leat/storage/disk"
	"leat/storage/record"
)

// shiftedClock is the wall clock, some time ahead.
type shiftedClock struct{ ahead atomic.Int64 }

func (c *shiftedClock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *shiftedClock) advance(by time.Duration) { c.ahead.Add(int64(by)) }

func (c *shiftedClock) in(o *Options) { o.Now = c.now }

// reportTo has the log lines written to w.
func reportTo(w *bytes.Buffer) func(*Options) {
	return func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(w, nil)) }
}

func set(name, value string) ConfigChange { return ConfigChange{Name: name, Value: &value} }

// partitionOf is partition 0 of a topic.
func partitionOf(b *Broker, topic string) *partition {
	p, err := b.partition(b.proposer.State().TopicNamed(topic), 0)
	if err != nil {
		panic(err)
	}
	return p
}

// startOf is where partition 0 of a topic begins.
func startOf(b *Broker, topic string) int64 { return partitionOf(b, topic).log.Offsets().Start }

// openWith opens a broker with changed options and closes it with the test.
func openWith(t *testing.T, fs disk.FS, change ...func(*Options)) *Broker {
	t.Helper()
	o := Options{FS: fs, Path: "/data"}
	for _, c := range change {
		c(&o)
	}
	b, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// fillSegments produces n records, each of which fills a segment of 1 KiB.
func fillSegments(t *testing.T, b *Broker, topic string, n int) {
	t.Helper()
	for range n {
		var w record.Builder
		w.Reset(record.Options{})
		w.Add(b.opts.Now().UnixMilli(), []byte("key"), bytes.Repeat([]byte("v"), 900), nil)
		one, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		req := &ProduceRequest{Acks: AcksAll, Timeout: time.Minute, Batches: []ProduceBatch{{Topic: topic, Batch: bytes.Clone(one)}}}
		if r := b.Produce(t.Context(), auth.Anonymous, req).Wait(t.Context())[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

// Each topic keeps what its own configs say, and one that is not deleted by
// them keeps all; what went is told, counted, durable, and an expired offset is
// out of range for whoever stands there.
func TestRetention(t *testing.T) {
	fs, clock, lines := disk.NewMem(), &shiftedClock{}, &bytes.Buffer{}
	reg := prometheus.NewPedanticRegistry()
	b := openWith(t, fs, clock.in, reportTo(lines), func(o *Options) { o.Registerer = reg })
	for topic, configs := range map[string]map[string]string{
		"default":    {},
		"age":        {"retention.ms": "3600000"},
		"size":       {"retention.bytes": "2000"},
		"both":       {"retention.bytes": "3000", "retention.ms": "3600000"},
		"ever":       {"retention.ms": "-1"},
		"compacted":  {"retention.ms": "3600000", "retention.bytes": "0", "cleanup.policy": "compact"},
		"compacted2": {"retention.bytes": "0", "cleanup.policy": "compact,delete"},
		"damaged":    {"retention.ms": "3600000"},
		"idle":       {"retention.ms": "0", "retention.bytes": "0"},
	} {
		configs["segment.bytes"] = "1024"
		create(t, b, topic, 1, configs)
		if topic != "idle" {
			fillSegments(t, b, topic, 5)
		}
	}
	size := partitionOf(b, "age").log.Size() / 5
	wound(t, fs, partitionOf(b, "damaged"))
	tail, _ := newTail(t, b, "age", true)
	b.expire()
	if got := fmt.Sprint(startOf(b, "size"), startOf(b, "both"), startOf(b, "age"), startOf(b, "compacted2")); got != "2 1 0 5" {
		t.Errorf("by size: starts %s", got)
	}
	clock.advance(2 * time.Hour)
	produce(t, b, AcksAll, "both", 0, "young, but as old as the others by its own time")
	b.expire()
	want := map[string]int64{"default": 0, "age": 5, "size": 2, "both": 6, "ever": 0, "compacted": 0, "compacted2": 5, "damaged": 0, "idle": 0}
	check := func(b *Broker) {
		t.Helper()
		for topic, start := range want {
			if got := startOf(b, topic); got != start {
				t.Errorf("%s begins at %d, want %d", topic, got, start)
			}
		}
	}
	check(b)
	var out *OffsetError
	if r := tail.Read(tail.Next(), 1000); !errors.As(r.Err, &out) || *out != (OffsetError{Offset: 0, Start: 5, End: 5}) {
		t.Errorf("a stream that stood still: %+v", r)
	}
	for topic, reason := range map[string]string{
		"both": fmt.Sprint("log_start_offset=1 bytes=", size, " reason=size"),
		"age":  fmt.Sprint("log_start_offset=5 bytes=", 5*size, " reason=time"),
		"size": fmt.Sprint("log_start_offset=2 bytes=", 2*size, " reason=size"),
	} {
		if line := fmt.Sprintf("topic=%s partition=0 %s\n", topic, reason); strings.Count(lines.String(), line) != 1 {
			t.Errorf("want one line %q in\n%s", line, lines)
		}
	}
	if n := strings.Count(lines.String(), `reason="size and time"`); n != 1 {
		t.Errorf("%d lines with both reasons:\n%s", n, lines)
	}
	if n := strings.Count(lines.String(), "expired records"); n != 5 {
		t.Errorf("%d lines:\n%s", n, lines)
	}
	if got := counted(t, reg, "leat_topic_retention_deleted_bytes_total", "age"); got != float64(5*size) {
		t.Errorf("%v bytes were counted, want %d", got, 5*size)
	}
	if b.expire(); strings.Count(lines.String(), "expired records") != 5 {
		t.Errorf("what was removed is removed again:\n%s", lines)
	}
	b = openWith(t, fs.CrashClone(0, nil), clock.in)
	check(b)
	if r := produce(t, b, AcksAll, "age", 0, "next"); r.Base != 5 || r.LogStart != 5 {
		t.Errorf("the next record: %+v", r)
	}
}

// counted is a topic's series of a counter.
func counted(t *testing.T, reg *prometheus.Registry, name, topic string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == topic {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("%s has no %s", name, topic)
	return 0
}

// While the clock is not trusted nothing goes by age, and size goes on.
func TestRetentionWithoutClock(t *testing.T) {
	clock, lines := &shiftedClock{}, &bytes.Buffer{}
	b := openWith(t, disk.NewMem(), clock.in, reportTo(lines))
	create(t, b, "age", 1, map[string]string{"retention.ms": "60000", "segment.bytes": "1024"})
	create(t, b, "size", 1, map[string]string{"retention.bytes": "2000", "segment.bytes": "1024"})
	fillSegments(t, b, "age", 3)
	fillSegments(t, b, "size", 5)
	for _, leap := range []time.Duration{25 * time.Hour, -23 * time.Hour} {
		clock.advance(leap)
		for range 2 {
			b.expire()
		}
		if got := fmt.Sprint(startOf(b, "age"), startOf(b, "size")); got != "0 2" {
			t.Errorf("after a leap of %v: starts %s", leap, got)
		}
	}
	if n := strings.Count(lines.String(), "clock was set"); n != 2 {
		t.Errorf("told %d times of two leaps:\n%s", n, lines)
	}
}

// The checks come soon after the start, then in each interval, which can be
// changed, and when configs change; they end with the broker.
func TestRetentionIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := Open(t.Context(), Options{FS: disk.NewMem(), Path: "/data"})
		if err != nil {
			t.Fatal(err)
		}
		create(t, b, "t", 1, map[string]string{"retention.ms": "1000", "segment.bytes": "1024"})
		var want int64
		expect := func(after time.Duration) {
			t.Helper()
			fillSegments(t, b, "t", 2)
			time.Sleep(after - time.Millisecond)
			synctest.Wait()
			if got := startOf(b, "t"); got != want {
				t.Errorf("before %v the log begins at %d, want %d", after, got, want)
			}
			want += 2
			time.Sleep(2 * time.Millisecond)
			synctest.Wait()
			if got := startOf(b, "t"); got != want {
				t.Errorf("after %v the log begins at %d, want %d", after, got, want)
			}
		}
		began := time.Now()
		expect(firstCheck - time.Since(began))
		expect(5*time.Minute - time.Millisecond)
		alter := func(name, value string) {
			t.Helper()
			if err := b.AlterBrokerConfigs(t.Context(), auth.Anonymous, -1, []ConfigChange{set(name, value)}, false); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		alter("log.retention.check.interval.ms", "10000")
		expect(10 * time.Second)
		alter("log.retention.check.interval.ms", "9000000000")
		fillSegments(t, b, "t", 2)
		time.Sleep(2 * time.Second)
		alter("log.retention.bytes", "100000")
		if got := startOf(b, "t"); got != want+2 {
			t.Errorf("after a config of the server changed the log begins at %d, want %d", got, want+2)
		}
		fillSegments(t, b, "t", 3)
		if err := b.ReplaceTopicConfigs(t.Context(), auth.Anonymous, "t", map[string]string{"retention.bytes": "900"}, false); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := startOf(b, "t"); got != want+4 {
			t.Errorf("after the topic's configs changed the log begins at %d, want %d", got, want+4)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Under the race detector retention runs all the time beside appends, reads,
// deletions of records and of topics, which are made again at once: offsets stay in order, nobody gets
// anything but records or an offset out of range, and the newest records stay.
func TestRetentionRaces(t *testing.T) {
	fs := disk.NewMem()
	b := openWith(t, fs, func(o *Options) { o.Configs = map[string]string{"log.retention.check.interval.ms": "1"} })
	configs := map[string]string{"segment.bytes": "1024", "retention.bytes": "3000"}
	create(t, b, "t", 1, configs)
	const records = 400
	done := make(chan struct{})
	var produced atomic.Int64
	var readers, writers sync.WaitGroup
	until := func(fn func() error) {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := fn(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Go(func() {
		for i := range records {
			if r := produce(t, b, AcksAll, "t", 0, strings.Repeat("v", 500)); r.Err != nil || r.Base != int64(i) {
				t.Errorf("record %d: %+v", i, r)
				return
			}
			produced.Store(int64(i + 1))
		}
	})
	var at int64
	until(func() error {
		r := b.Fetch(context.Background(), auth.Anonymous, &FetchRequest{
			MaxWait: time.Millisecond, MinBytes: 1, MaxBytes: 2000, Partitions: []FetchPartition{{Topic: "t", Offset: at, Epoch: -1, MaxBytes: 2000}},
		})[0]
		var out *OffsetError
		switch {
		case errors.As(r.Err, &out) && out.Start > at:
			at = out.Start
			return nil
		case r.Err != nil:
			return r.Err
		}
		got := values(t, r)
		if len(got) > 0 && !strings.HasPrefix(got[0], fmt.Sprint(at, ":")) {
			return fmt.Errorf("%.20s at offset %d", got[0], at)
		}
		at += int64(len(got))
		return nil
	})
	until(func() error {
		low := b.DeleteRecords(context.Background(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "t", Offset: max(produced.Load()-3, 0)}})[0]
		if low.Err != nil || low.LowWatermark > produced.Load() {
			return fmt.Errorf("delete records: %+v", low)
		}
		return nil
	})
	until(func() error {
		r := b.CreateTopics(context.Background(), auth.Anonymous, []TopicSpec{{Name: "short", Partitions: 2, ReplicationFactor: -1, Configs: configs}}, false)[0]
		if r.Err != nil {
			return r.Err
		}
		produce(t, b, AcksLeader, "short", 1, strings.Repeat("v", 1000), "w")
		produce(t, b, AcksLeader, "short", 1, strings.Repeat("v", 4000))
		return b.DeleteTopics(context.Background(), auth.Anonymous, []TopicRef{{Name: "short"}})[0].Err
	})
	until(func() error { // the topic that comes and goes, always another one
		r := b.Fetch(context.Background(), auth.Anonymous, &FetchRequest{
			MaxWait: time.Millisecond, MinBytes: 1, MaxBytes: 2000, Partitions: []FetchPartition{{Topic: "short", Partition: 1, Epoch: -1, MaxBytes: 2000}},
		})[0]
		var out *OffsetError
		if errors.Is(r.Err, ErrUnknownTopic) || errors.As(r.Err, &out) {
			return nil
		}
		if r.Err != nil {
			return r.Err
		}
		if got := values(t, r); len(got) > 0 && got[0] != "0:"+strings.Repeat("v", 1000) {
			return fmt.Errorf("%.20s at offset 0 of a topic that was just made", got[0])
		}
		return nil
	})
	writers.Wait()
	close(done)
	readers.Wait()
	b.expire()
	start := startOf(b, "t")
	if start < records-10 || start > records {
		t.Errorf("the log begins at %d of %d", start, records)
	}
	b = openWith(t, fs.CrashClone(0, nil))
	next := startOf(b, "t")
	if next < start {
		t.Errorf("after a power cut the log begins at %d, before at %d", next, start)
	}
	for got := fetchAll(t, b, "t", 0, next); len(got) > 0; got = fetchAll(t, b, "t", 0, next) {
		next += int64(len(got))
	}
	if next != records {
		t.Errorf("after a power cut the log ends at %d of %d", next, records)
	}
}
