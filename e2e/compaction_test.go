package e2e

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// compactSoon are arguments of a server, and configs of a topic, with which all but what was written within the last
// moments is compacted within the next.
var (
	compactSoon = []string{"--set", "log.cleaner.backoff.ms=20", "--set", "log.retention.check.interval.ms=20"}
	compactAll  = []string{"cleanup.policy=compact", "segment.ms=100", "min.cleanable.dirty.ratio=0.001"}
)

// configsOf are "name=value" as they are altered.
func configsOf(configs []string) (all []kadm.AlterConfig) {
	for _, c := range configs {
		name, value, _ := strings.Cut(c, "=")
		all = append(all, set(name, value))
	}
	return all
}

// kept is what is read of a partition, by offset: "key=value", or "key!" for a tombstone.
type kept map[int64]string

func (k kept) put(offset int64, key, value string, dead bool) {
	if dead {
		k[offset] = key + "!"
	} else {
		k[offset] = key + "=" + value
	}
}

// newest is the value of each key that is not deleted.
func (k kept) newest() map[string]string {
	all := map[string]string{}
	for _, offset := range slices.Sorted(maps.Keys(k)) {
		if key, value, ok := strings.Cut(k[offset], "="); ok {
			all[key] = value
		} else {
			delete(all, strings.TrimSuffix(key, "!"))
		}
	}
	return all
}

// byHTTP reads partition 0 from its start to its end.
func (s *server) byHTTP(topic string) kept {
	s.t.Helper()
	got := kept{}
	f := s.records(topic, 0, "from=earliest")
	for {
		for _, r := range f.Records {
			key := strings.Trim(string(r.Key), `"`)
			if r.KeyStr != nil {
				key = *r.KeyStr
			}
			value := strings.Trim(string(r.Value), `"`)
			if r.ValueStr != nil {
				value = *r.ValueStr
			}
			got.put(r.Offset, key, value, string(r.Value) == "null")
		}
		if f.Next >= f.High {
			return got
		}
		next := f.Next
		if f = s.records(topic, 0, fmt.Sprint("offset=", next)); f.Next <= next {
			s.t.Fatalf("the fetch at %d goes on at %d of %d", next, f.Next, f.High)
		}
	}
}

// byKgo reads partition 0 from its start until the record at the offset last is there.
func (s *server) byKgo(topic string, last int64) kept {
	s.t.Helper()
	client := s.kgo(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}), kgo.FetchMaxPartitionBytes(4096))
	defer client.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	got := kept{}
	for got[last] == "" {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			s.t.Fatalf("%v; %d records so far", err, len(got))
		}
		fetches.EachRecord(func(r *kgo.Record) { got.put(r.Offset, string(r.Key), string(r.Value), r.Value == nil) })
	}
	return got
}

// byKcat reads partition 0 from its start to its end.
func (s *server) byKcat(topic string) kept {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "kcat", "-C", "-b", s.Kafka, "-t", topic, "-e", "-q", "-f", "%o %k %S %s\n").Output()
	if err != nil {
		s.t.Fatalf("kcat: %v", err)
	}
	got := kept{}
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		offset, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil || len(f) < 4 {
			s.t.Fatalf("kcat: %q", line)
		}
		got.put(offset, f[1], f[3], f[2] == "-1")
	}
	return got
}

// everywhere reads partition 0 by each door; all must find the same.
func (s *server) everywhere(topic string, last int64) kept {
	s.t.Helper()
	got := s.byHTTP(topic)
	for door, other := range map[string]kept{"kgo": s.byKgo(topic, last), "kcat": s.byKcat(topic)} {
		if !maps.Equal(got, other) {
			s.t.Fatalf("%s reads %d records of %s that are not the %d that HTTP reads", door, len(other), topic, len(got))
		}
	}
	return got
}

// put writes a record by the Kafka door; a nil value is a tombstone.
func (w *wire) put(topic, key string, value []byte) int64 {
	w.t.Helper()
	return w.mustProduce(topic, 0, encode(w.t, kgo.NoCompression(), []rec{{ts: time.Now().UnixMilli(), key: []byte(key), value: value}}))
}

// TestCompactedTopic proves that consumers of every door that begin at the start of a compacted topic come to its end and
// have the newest value of each key then, under kill -9, too; and that they do when nothing at all is left of the end.
func TestCompactedTopic(t *testing.T) {
	needTool(t, "kcat")
	s := start(t, compactSoon...)
	s.createTopic("t", 1, append([]string{"segment.bytes=16384"}, compactAll...)...)
	const keys, updates = 50, 3000
	want := map[string]string{}
	n := 0
	for round := range 3 {
		codec := []kgo.CompressionCodec{kgo.NoCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()}[round]
		client := s.kgo(kgo.DefaultProduceTopic("t"), kgo.ProducerBatchCompression(codec), kgo.MaxBufferedRecords(40))
		for range updates / 3 {
			r := kgo.KeyStringRecord(fmt.Sprint("k", n*7919%keys), fmt.Sprint(n))
			want[string(r.Key)] = string(r.Value)
			client.Produce(t.Context(), r, func(_ *kgo.Record, err error) {
				if err != nil {
					t.Error(err)
				}
			})
			n++
		}
		if err := client.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		client.Close()
		s.kill()
		s.restart()
	}
	last := s.wire().put("t", "last", []byte("x"))
	want["last"] = "x"
	eventually(t, "the topic to be compacted", func() error {
		if got := s.byHTTP("t"); len(got) != len(want) {
			return fmt.Errorf("%d records", len(got))
		}
		return nil
	})
	got := s.everywhere("t", last)
	if last != updates || !maps.Equal(got.newest(), want) {
		t.Errorf("up to %d: %v, want %v", last, got.newest(), want)
	}

	s.createTopic("emptied", 1)
	for range 5 {
		s.wire().mustProduce("emptied", 0, encode(t, kgo.NoCompression(), values(time.Now().UnixMilli(), "a", "b")))
	}
	answers, err := s.admin().AlterTopicConfigs(t.Context(), configsOf(compactAll), "emptied")
	altered(t, answers, err)
	eventually(t, "the topic to be empty", func() error {
		if f := s.byHTTP("emptied"); len(f) > 0 {
			return fmt.Errorf("%v", f)
		}
		return nil
	})
	if got := s.byKcat("emptied"); len(got) > 0 {
		t.Errorf("kcat: %v", got)
	}
	if last = s.wire().put("emptied", "k", []byte("v")); last != 10 {
		t.Errorf("the next record has offset %d", last)
	}
	if got := s.everywhere("emptied", last); !maps.Equal(got, kept{10: "k=v"}) {
		t.Errorf("%v", got)
	}
	s.stop()
	if stdout, stderr, code := run(t, "", "check", s.dir); code != 0 {
		t.Errorf("leat check: code %d\n%s%s", code, stdout, stderr)
	}
}

// TestCase34TombstonesGo proves that a tombstone is read for delete.retention.ms from the pass on that took the value
// away, and that after a later pass the key is not read at all, while the other records are where they were.
func TestCase34TombstonesGo(t *testing.T) {
	needTool(t, "kcat")
	s := start(t, compactSoon...)
	const retention = 3 * time.Second
	s.createTopic("t", 1, append([]string{fmt.Sprint("delete.retention.ms=", retention.Milliseconds())}, compactAll...)...)
	w := s.wire()
	others := kept{}
	other := func(key string) int64 {
		t.Helper()
		at := w.put("t", key, []byte("v"))
		others[at] = key + "=v"
		return at
	}
	other("first")
	value := w.put("t", "gone", []byte("v"))
	other("second")
	tombstone := w.put("t", "gone", nil)
	last := other("third")
	deleted := time.Now()
	eventually(t, "the deleted value to go", func() error {
		if got := s.byHTTP("t"); got[value] != "" {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	want := maps.Clone(others)
	want[tombstone] = "gone!"
	if got := s.everywhere("t", last); !maps.Equal(got, want) {
		t.Fatalf("%v after its value went: %v, want %v", time.Since(deleted), got, want)
	}
	n := 0
	eventually(t, "the tombstone to go", func() error {
		// What is not dirty is not compacted again.
		last = w.put("t", "more", []byte(fmt.Sprint(n)))
		n++
		if got := s.byHTTP("t"); got[tombstone] != "" {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	if took := time.Since(deleted); took < retention {
		t.Errorf("the tombstone went after %v, its time is %v", took, retention)
	}
	got := s.everywhere("t", last)
	for offset, r := range got {
		if strings.HasPrefix(r, "gone") || !strings.HasPrefix(r, "more") && others[offset] != r {
			t.Errorf("offset %d is %s", offset, r)
		}
	}
	if n := got.newest(); len(n) != len(others)+1 {
		t.Errorf("%v, want %v", n, others)
	}
}

// TestCase35LargeBatchDoesNotStopCompaction proves that a batch that is larger than max.message.bytes has become is
// compacted as any other, and that the topic behind it is, too.
func TestCase35LargeBatchDoesNotStopCompaction(t *testing.T) {
	s := start(t, compactSoon...)
	w := s.wire()
	large := strings.Repeat("x", 90_000)
	want := map[string]map[string]string{}
	for _, topic := range []string{"a", "b"} {
		s.createTopic(topic, 1, append([]string{"max.message.bytes=1000000"}, compactAll...)...)
		var recs []rec
		for i := range 10 {
			recs = append(recs, rec{ts: time.Now().UnixMilli(), key: fmt.Append(nil, "k", i), value: []byte(large)})
		}
		w.mustProduce(topic, 0, encode(t, kgo.NoCompression(), recs))
		want[topic] = map[string]string{"k0": large}
	}
	answers, err := s.admin().AlterTopicConfigs(t.Context(), configsOf([]string{"max.message.bytes=100000"}), "a", "b")
	altered(t, answers, err)
	if p := w.produce("a", 0, 1, encode(t, kgo.NoCompression(), values(0, large, large))); p.ErrorCode != codeMessageTooLarge {
		t.Fatalf("a batch of 180 KB: code %d", p.ErrorCode)
	}
	for i := range 20 {
		for topic, model := range want {
			key, value := fmt.Sprint("k", 1+i%9), fmt.Sprint(i)
			w.put(topic, key, []byte(value))
			model[key] = value
		}
	}
	for topic, model := range want {
		eventually(t, "topic "+topic+" to be compacted", func() error {
			got := s.byHTTP(topic)
			if !maps.Equal(got.newest(), model) {
				t.Fatalf("topic %s has lost records: %d keys, want %d", topic, len(got.newest()), len(model))
			}
			if len(got) != len(model) {
				return fmt.Errorf("%d records of %d keys", len(got), len(model))
			}
			return nil
		})
	}
	if n := s.metric("leat_broker_uncleanable_partitions"); n != 0 {
		t.Errorf("%v partitions are left alone", n)
	}
}
