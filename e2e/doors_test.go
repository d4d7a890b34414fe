package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestBytesStayTheSame proves, for each codec, that a franz-go producer's batches lie on disk as they were sent but
// for bytes 0–7 and 12–15, and are fetched as they lie on disk, over both doors.
func TestBytesStayTheSame(t *testing.T) {
	for _, c := range codecs {
		t.Run(c.name, func(t *testing.T) {
			p := newProxy(t)
			s := start(t, "--kafka-advertise", p.addr)
			p.point(s.Kafka)
			s.createTopic("t", 1)
			client := s.kgo(kgo.SeedBrokers(p.addr), kgo.DefaultProduceTopic("t"), kgo.ProducerBatchCompression(c.codec),
				kgo.ProducerLinger(20*time.Millisecond), kgo.MaxProduceRequestsInflightPerBroker(1), kgo.DisableIdempotentWrite())
			for round := range 3 {
				var recs []*kgo.Record
				for i := range 200 {
					recs = append(recs, &kgo.Record{
						Key: fmt.Appendf(nil, "key-%d", i), Value: bytes.Repeat(fmt.Appendf(nil, "value %d of round %d;", i, round), 8),
						Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("x")}, {Key: "null"}},
					})
				}
				if err := client.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			sent := p.batches()
			if len(sent) < 3 {
				t.Fatalf("the proxy saw %d batches", len(sent))
			}
			if got := sent[0][atAttributes+1] & 7; got != byte(c.number) {
				t.Fatalf("the client sent codec %d", got)
			}
			file, err := os.ReadFile(s.onlyLog())
			if err != nil {
				t.Fatal(err)
			}
			disk := stored(t, file)
			if len(disk) != len(sent) {
				t.Fatalf("%d batches on disk, %d sent", len(disk), len(sent))
			}
			next := int64(0)
			for i, b := range disk {
				if err := b.sameButPatched(sent[i]); err != nil {
					t.Errorf("batch %d: %v", i, err)
				}
				if b.base() != next {
					t.Errorf("batch %d: base offset %d, want %d", i, b.base(), next)
				}
				next = b.next()
			}
			written := bytes.Join(asBytes(disk), nil)
			if got := s.wire().fetchAll("t", 0, 0); !bytes.Equal(got, written) {
				t.Errorf("the Kafka door gave %d bytes that differ from the %d on disk", len(got), len(written))
			}
			if got := s.get("/v1/topics/t/partitions/0/records?from=earliest&max_bytes=33554432", "Accept: "+typeBatch).body; !bytes.Equal(got, written) {
				t.Errorf("the HTTP door gave %d bytes that differ from the %d on disk", len(got), len(written))
			}
		})
	}
}

func asBytes(batches []batch) [][]byte {
	out := make([][]byte, len(batches))
	for i, b := range batches {
		out[i] = b
	}
	return out
}

// TestFetchInsideBatch proves, for each codec, that a fetch at each offset inside a batch gives that whole batch over
// the Kafka door, while HTTP starts at the offset that was asked for.
func TestFetchInsideBatch(t *testing.T) {
	s := start(t)
	w := s.wire()
	const n = 20
	for _, c := range codecs {
		s.createTopic(c.name, 1)
		for round := range 3 {
			var vals []string
			for i := range n {
				vals = append(vals, fmt.Sprintf("record-%d", round*n+i))
			}
			w.mustProduce(c.name, 0, encode(t, c.codec, values(time.Now().UnixMilli(), vals...)))
		}
		for offset := range int64(3 * n) {
			p := w.fetch(c.name, 0, offset, 1) // one byte: exactly one batch
			batches := mustSplit(t, p.RecordBatches)
			if p.ErrorCode != codeNone || len(batches) != 1 || batches[0].base() != offset/n*n || batches[0].count() != n {
				t.Fatalf("%s: fetch at %d: code %d, %d batches", c.name, offset, p.ErrorCode, len(batches))
			}
			f := s.records(c.name, 0, fmt.Sprintf("offset=%d&max_records=2", offset))
			if len(f.Records) == 0 || f.Records[0].Offset != offset || *f.Records[0].ValueStr != fmt.Sprintf("record-%d", offset) {
				t.Fatalf("%s: HTTP fetch at %d: %+v", c.name, offset, f)
			}
			if want := min(offset+2, 3*n); f.Next != want {
				t.Fatalf("%s: HTTP fetch at %d: next offset %d, want %d", c.name, offset, f.Next, want)
			}
		}
		if p := w.fetch(c.name, 0, 3*n, 1<<20); p.ErrorCode != codeNone || len(p.RecordBatches) != 0 || p.HighWatermark != 3*n {
			t.Errorf("%s: fetch at the end: code %d, %d bytes, high watermark %d", c.name, p.ErrorCode, len(p.RecordBatches), p.HighWatermark)
		}
		if p := w.fetch(c.name, 0, 3*n+1, 1<<20); p.ErrorCode != codeOffsetOutOfRange {
			t.Errorf("%s: fetch beyond the end: code %d", c.name, p.ErrorCode)
		}
	}
}

// TestRawBatchesOverHTTP proves that record batches go in over HTTP as they are and come out as they lie on disk.
func TestRawBatchesOverHTTP(t *testing.T) {
	s := start(t)
	s.createTopic("raw", 1)
	for i, c := range codecs {
		sent := encode(t, c.codec, values(time.Now().UnixMilli(), "a", "b", strings.Repeat("c", 500)))
		s.post("/v1/topics/raw/partitions/0/records", typeBatch, string(sent))
		got := mustSplit(t, s.get(fmt.Sprintf("/v1/topics/raw/partitions/0/records?offset=%d", 3*i+1), "Accept: "+typeBatch).body)
		if len(got) != 1 || got[0].base() != int64(3*i) {
			t.Fatalf("%s: got %d batches", c.name, len(got))
		}
		if err := got[0].sameButPatched(sent); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestOctetStream proves that a body of any bytes is one value, and comes back the same.
func TestOctetStream(t *testing.T) {
	s := start(t)
	s.createTopic("blob", 1)
	blob := make([]byte, 1000)
	for i := range blob {
		blob[i] = byte(i)
	}
	s.post("/v1/topics/blob/partitions/0/records", typeBytes, string(blob), "Record-Key: k1")
	got := mustSplit(t, s.wire().fetchAll("blob", 0, 0))
	if len(got) != 1 || got[0].values(t)[0] != string(blob) {
		t.Errorf("got %d batches", len(got))
	}
}

// TestManySmallProduces proves that many small produces at a time share their writes: fewer calls that write or sync
// a file of the log than requests. Without ptrace it judges by what /proc/PID/io counts.
func TestManySmallProduces(t *testing.T) {
	const clients, each = 64, 60
	s := start(t)
	s.createTopic("small", 1)
	produce := func() {
		var work sync.WaitGroup
		var failed atomic.Int64
		for range clients {
			work.Go(func() {
				for range each {
					a, err := s.try("POST", "/v1/topics/small/partitions/0/records?value=line&acks=all", []byte("a small record\n"), "Content-Type: "+typeNDJSON)
					if err != nil || a.status != 200 {
						failed.Add(1)
					}
				}
			})
		}
		work.Wait()
		if n := failed.Load(); n > 0 {
			t.Fatalf("%d produces failed", n)
		}
	}
	produce() // connections, and the first segment
	if !canTrace(t) {
		before := s.procField("io", "syscw")
		produce()
		// An answer and an append for each request would be twice the requests.
		if got := s.procField("io", "syscw") - before; got >= 2*clients*each {
			t.Errorf("%d write calls for %d requests", got, clients*each)
		}
		t.Log("judged by /proc/PID/io: strace does not work here")
		return
	}
	stop := s.trace("-c", "-e", "trace=pwrite64,pwritev,pwritev2,fsync,fdatasync,syncfs,sync_file_range")
	produce()
	calls, err := countCalls(stop())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("judged by strace -c: %v for %d requests", calls, clients*each)
	writes := calls["pwrite64"] + calls["pwritev"] + calls["pwritev2"]
	syncs := calls["fsync"] + calls["fdatasync"] + calls["syncfs"]
	if writes == 0 || writes >= clients*each {
		t.Errorf("%d writes for %d requests", writes, clients*each)
	}
	if syncs == 0 || syncs >= clients*each/2 {
		t.Errorf("%d syncs for %d requests", syncs, clients*each)
	}
}

// TestMemoryIsBounded proves that resident memory does not follow the size of the log, neither while it is written
// nor while it is read.
func TestMemoryIsBounded(t *testing.T) {
	total := int64(320 << 20)
	if long() {
		total = 2 << 30
	}
	s := start(t)
	s.createTopic("big", 1, "flush.messages=1000000")
	first := total / 8
	produceBytes(t, s, "big", first)
	consumeBytes(t, s, "big", first)
	early := s.memory()
	produceBytes(t, s, "big", total-first)
	consumeBytes(t, s, "big", total)
	late := s.memory()
	t.Logf("%d MiB after %d MiB in and out, %d MiB after %d MiB", early>>20, first>>20, late>>20, total>>20)
	if late > early+(32<<20) {
		t.Errorf("memory grew from %d to %d MiB while the log grew from %d to %d MiB", early>>20, late>>20, first>>20, total>>20)
	}
}

// produceBytes writes n bytes of values in batches of about 1 MB.
func produceBytes(t testing.TB, s *server, topic string, n int64) {
	t.Helper()
	value := bytes.Repeat([]byte("0123456789abcdef"), 1024) // 16 KiB
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Kafka), kgo.DefaultProduceTopic(topic), kgo.DisableIdempotentWrite(),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedBytes(16<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var failed atomic.Pointer[error]
	for sent := int64(0); sent < n; sent += int64(len(value)) {
		client.Produce(t.Context(), &kgo.Record{Partition: 0, Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store(&err)
			}
		})
	}
	if err := client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := failed.Load(); err != nil {
		t.Fatal(*err)
	}
}

// consumeBytes reads partition 0 from its start until n bytes of values came, with fetches of 1 MiB.
func consumeBytes(t testing.TB, s *server, topic string, n int64, opts ...kgo.Opt) {
	t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(s.Kafka),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
		kgo.FetchMaxPartitionBytes(1 << 20), kgo.FetchMaxBytes(1 << 20),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	next := int64(0)
	for got := int64(0); got < n; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatalf("after %d of %d bytes: %v", got, n, err)
		}
		fetches.EachError(func(_ string, p int32, err error) { t.Fatalf("partition %d: %v", p, err) })
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset != next {
				t.Fatalf("offset %d, want %d", r.Offset, next)
			}
			next++
			got += int64(len(r.Value))
		})
	}
}
