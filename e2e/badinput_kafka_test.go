package e2e

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// attributes sets bits of a batch's attributes.
func attributes(bits int16) func(*kmsg.RecordBatch) {
	return func(b *kmsg.RecordBatch) { b.Attributes |= bits }
}

// producer makes the batch one of an idempotent producer.
func producer(id int64, epoch int16, sequence int32) func(*kmsg.RecordBatch) {
	return func(b *kmsg.RecordBatch) { b.ProducerID, b.ProducerEpoch, b.FirstSequence = id, epoch, sequence }
}

// TestBadBatches proves that each kind of bad batch gets its own code over the Kafka door, and that nothing of it is
// written.
func TestBadBatches(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	s.createTopic("keyed", 1, "cleanup.policy=compact")
	s.createTopic("segmented", 1, "segment.bytes=1024")
	s.createTopic("recent", 1, "message.timestamp.before.max.ms=60000")
	w := s.wire()
	now := time.Now().UnixMilli()
	good := func(edits ...func(*kmsg.RecordBatch)) []byte {
		return encode(t, kgo.NoCompression(), values(now, "a", "b", "c"), edits...)
	}
	// patched changes bytes of a good batch after its checksum was made; resummed makes the checksum right again.
	patched := func(at int, to ...byte) []byte {
		b := good()
		copy(b[at:], to)
		return b
	}
	resummed := func(at int, to ...byte) []byte {
		b := patched(at, to...)
		sum(b)
		return b
	}
	count := func(n int32) func(*kmsg.RecordBatch) {
		return func(b *kmsg.RecordBatch) { b.NumRecords = n }
	}
	both := func(n int32) func(*kmsg.RecordBatch) {
		return func(b *kmsg.RecordBatch) { b.NumRecords, b.LastOffsetDelta = n, n-1 }
	}
	keyed := encode(t, kgo.NoCompression(), []rec{{now, []byte("k"), []byte("v")}, {now, nil, []byte("v")}})
	w.mustProduce("t", 0, good())
	w.mustProduce("t", 0, good(producer(9, 5, 0)))

	for _, c := range []struct {
		name  string
		topic string
		batch []byte
		code  int16
	}{
		{"wrong checksum", "t", patched(atCRC, 1, 2, 3, 4), codeCorruptMessage},
		{"a flipped bit in a record", "t", patched(batchHeader+8, 0xff), codeCorruptMessage},
		{"magic 0", "t", patched(atMagic, 0), codeInvalidRecord},
		{"magic 1", "t", patched(atMagic, 1), codeInvalidRecord},
		{"magic 3", "t", patched(atMagic, 3), codeInvalidRecord},
		{"cut", "t", good()[:70], codeCorruptMessage},
		{"cut in the header", "t", good()[:30], codeCorruptMessage},
		{"length beyond the bytes", "t", patched(atLength, 0, 1, 0, 0), codeCorruptMessage},
		{"negative length", "t", patched(atLength, 0xff, 0xff, 0xff, 0xff), codeCorruptMessage},
		{"length below the header", "t", patched(atLength, 0, 0, 0, 10), codeCorruptMessage},
		{"no bytes", "t", nil, codeInvalidRecord},
		{"two batches", "t", append(good(), good()...), codeInvalidRecord},
		{"count too small", "t", good(count(2)), codeInvalidRecord},
		{"count too large", "t", good(count(4)), codeInvalidRecord},
		{"count and last offset too large", "t", good(both(1000)), codeInvalidRecord},
		{"count and last offset too small", "t", good(both(2)), codeInvalidRecord},
		{"count 0", "t", good(both(0)), codeInvalidRecord},
		{"count -1", "t", good(both(-1)), codeInvalidRecord},
		{"count 2^31-1", "t", good(both(math.MaxInt32)), codeInvalidRecord},
		{"base offset 1", "t", patched(7, 1), codeInvalidRecord},
		{"base offset -1", "t", patched(0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), codeInvalidRecord},
		{"control batch", "t", good(attributes(1 << 5)), codeInvalidRecord},
		{"producer without sequence", "t", good(producer(7, 0, -1)), codeInvalidRecord},
		{"transactional batch", "t", good(attributes(1<<4), producer(7, 0, 0)), 48},
		{"transactional batch of a fenced producer", "t", good(attributes(1<<4), producer(9, 4, 0)), 47},
		{"fenced producer", "t", good(producer(9, 4, 0)), 47},
		{"gap in the sequence", "t", good(producer(9, 5, 9)), 45},
		{"broker's time claimed", "t", good(attributes(1 << 3)), codeInvalidTimestamp},
		{"codec 5", "t", good(attributes(5)), 76},
		{"codec 7", "t", good(attributes(7)), 76},
		{"not gzip", "t", good(attributes(1)), codeInvalidRecord},
		{"not snappy", "t", good(attributes(2)), codeInvalidRecord},
		{"not lz4", "t", good(attributes(3)), codeInvalidRecord},
		{"not zstd", "t", good(attributes(4)), codeInvalidRecord},
		{"record length too large", "t", resummed(batchHeader, 0x7e), codeInvalidRecord},
		{"record length negative", "t", resummed(batchHeader, 0x01), codeInvalidRecord},
		{"record length 0", "t", resummed(batchHeader, 0x00), codeInvalidRecord},
		{"record key length wrong", "t", resummed(batchHeader+4, 0x40), codeInvalidRecord},
		{"offset delta wrong", "t", resummed(batchHeader+3, 0x04), codeInvalidRecord},
		{"over max.message.bytes", "t", encode(t, kgo.NoCompression(), values(now, strings.Repeat("x", 1<<20))), codeMessageTooLarge},
		{"larger than a segment", "segmented", encode(t, kgo.NoCompression(), values(now, strings.Repeat("x", 2000))), 18},
		{"larger than a segment and max.message.bytes", "segmented", encode(t, kgo.NoCompression(), values(now, strings.Repeat("x", 1<<20))), codeMessageTooLarge},
		{"an hour old", "recent", encode(t, kgo.NoCompression(), values(now-time.Hour.Milliseconds(), "a")), codeInvalidTimestamp},
		{"two hours ahead", "t", encode(t, kgo.NoCompression(), values(now+2*time.Hour.Milliseconds(), "a")), codeInvalidTimestamp},
		{"no key where keys are needed", "keyed", keyed, codeInvalidRecord},
	} {
		before := w.end(c.topic, 0)
		p := w.produce(c.topic, 0, -1, c.batch)
		if p.ErrorCode != c.code || p.BaseOffset != -1 {
			t.Errorf("%s: code %d (%s), base offset %d; want code %d", c.name, p.ErrorCode, text(p.ErrorMessage), p.BaseOffset, c.code)
		} else if text(p.ErrorMessage) == "" {
			t.Errorf("%s: code %d without words", c.name, p.ErrorCode)
		}
		if after := w.end(c.topic, 0); after != before {
			t.Errorf("%s: the end offset went from %d to %d", c.name, before, after)
		}
		if c.topic == "keyed" && (len(p.ErrorRecords) != 1 || p.ErrorRecords[0].RelativeOffset != 1) {
			t.Errorf("%s: records at fault %+v, want the one at 1", c.name, p.ErrorRecords)
		}
	}
	if base := w.mustProduce("t", 0, good()); base != 6 {
		t.Errorf("a good batch after all that has base offset %d, want 6", base)
	}
	if base := w.mustProduce("recent", 0, encode(t, kgo.NoCompression(), values(-1, "no time"))); base != 0 {
		t.Errorf("a record without a time has offset %d", base)
	}
	old := produceRequest("t", 0, -1, encode(t, kgo.ZstdCompression(), values(now, "a")))
	old.Version = 6
	if p := w.call(old).(*kmsg.ProduceResponse).Topics[0].Partitions[0]; p.ErrorCode != 76 || w.end("t", 0) != 9 {
		t.Errorf("zstd before version 7: code %d, end offset %d", p.ErrorCode, w.end("t", 0))
	}
}

// TestBadRequests proves the codes of requests that name what is not there, and of requirements that one node cannot
// meet, over the Kafka door.
func TestBadRequests(t *testing.T) {
	s := start(t, "--set", "auto.create.topics.enable=false")
	s.createTopic("t", 2)
	s.createTopic("two", 1, "min.insync.replicas=2")
	w := s.wire()
	good := encode(t, kgo.NoCompression(), values(1, "a"))
	base := w.mustProduce("t", 0, good)
	produces := []struct {
		topic     string
		partition int32
		acks      int16
		code      int16
	}{
		{"t", -1, -1, codeUnknownTopicOrPartition},
		{"t", 2, -1, codeUnknownTopicOrPartition},
		{"t", 99, 1, codeUnknownTopicOrPartition},
		{"missing", 0, -1, codeUnknownTopicOrPartition},
		{"t", 0, 2, codeInvalidRequiredAcks},
		{"t", 0, -2, codeInvalidRequiredAcks},
		{"t", 0, 32767, codeInvalidRequiredAcks},
		{"two", 0, -1, codeNotEnoughReplicas},
	}
	for _, c := range produces {
		begun := time.Now()
		p := w.produce(c.topic, c.partition, c.acks, good)
		if p.ErrorCode != c.code || p.BaseOffset != -1 || p.Partition != c.partition {
			t.Errorf("produce to %s-%d, acks %d: %+v, want code %d", c.topic, c.partition, c.acks, p, c.code)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("produce to %s-%d, acks %d: answered after %v", c.topic, c.partition, c.acks, took)
		}
	}
	if end := w.end("t", 0); end != base+1 {
		t.Errorf("end offset %d, want %d", end, base+1)
	}
	if end := w.end("two", 0); end != 0 {
		t.Errorf("acks=all with too few replicas wrote: end offset %d", end)
	}
	for _, c := range []struct {
		topic     string
		partition int32
		offset    int64
		code      int16
	}{
		{"t", -1, 0, codeUnknownTopicOrPartition},
		{"t", 99, 0, codeUnknownTopicOrPartition},
		{"missing", 0, 0, codeUnknownTopicOrPartition},
		{"t", 0, -1, codeOffsetOutOfRange},
		{"t", 0, base + 2, codeOffsetOutOfRange},
		{"t", 0, math.MaxInt64, codeOffsetOutOfRange},
	} {
		if p := w.fetchWait(c.topic, c.partition, c.offset, 1<<20, 20*time.Second); p.ErrorCode != c.code || len(p.RecordBatches) > 0 {
			t.Errorf("fetch of %s-%d at %d: code %d, want %d", c.topic, c.partition, c.offset, p.ErrorCode, c.code)
		}
	}
	for _, c := range []struct {
		name       string
		partitions int32
		replicas   int16
		configs    []string
		code       int16
	}{
		{"r3", 1, 3, nil, codeInvalidReplicationFactor},
		{"r0", 1, 0, nil, codeInvalidReplicationFactor},
		{"p0", 0, 1, nil, 37},
		{".", 1, 1, nil, codeInvalidTopic},
		{"..", 1, 1, nil, codeInvalidTopic},
		{"a/b", 1, 1, nil, codeInvalidTopic},
		{"", 1, 1, nil, codeInvalidTopic},
		{strings.Repeat("n", 250), 1, 1, nil, codeInvalidTopic},
		{"t", 1, 1, nil, 36},
		{"c", 1, 1, []string{"no.such.config", "1"}, 40},
		{"c", 1, 1, []string{"max.message.bytes", "-1"}, 40},
	} {
		if code, words := w.create(c.name, c.partitions, c.replicas, c.configs...); code != c.code || words == "" {
			t.Errorf("create %q with %d partitions, %d replicas: code %d (%s), want %d", clip(c.name), c.partitions, c.replicas, code, words, c.code)
		}
	}
	if code, words := w.create(strings.Repeat("n", 249), 1, 1); code != codeNone {
		t.Errorf("a name of 249 characters: code %d (%s)", code, words)
	}
}

// TestCase07Garbage proves that HTTP, TLS, garbage and impossible sizes on the Kafka port close the connection at once,
// and cost neither memory nor descriptors nor a line of log each.
func TestCase07Garbage(t *testing.T) {
	rounds := 10_000
	s := start(t)
	starts := [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		[]byte("POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
		[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		{0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03},
		[]byte("SSH-2.0-OpenSSH_9.2p1\r\n"),
		{0xff, 0xff, 0xff, 0xff, 0, 18, 0, 0},                                    // size -1
		{0x00, 0x00, 0x00, 0x00, 0, 18, 0, 0},                                    // size 0
		{0x7f, 0xff, 0xff, 0xff, 0, 18, 0, 0},                                    // size 2^31-1
		{0x80, 0x00, 0x00, 0x00, 0, 18, 0, 0},                                    // size -2^31
		{0x00, 0x00, 0x00, 0x10, 0x7f, 0xff, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0, 0}, // no such API
		{0x00, 0x00, 0x00, 0x0a, 0, 0, 0x7f, 0xff, 0, 0, 0, 1, 0xff, 0xff},       // no such version
	}
	try := func(garbage []byte) error {
		nc, err := net.Dial("tcp", s.Kafka)
		if err != nil {
			return err
		}
		defer nc.Close() //nolint:errcheck // the server has closed it
		if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := nc.Write(garbage); err != nil {
			return nil // closed already
		}
		got, err := io.ReadAll(nc)
		if errors.Is(err, net.ErrClosed) || len(got) > 0 {
			return fmt.Errorf("%q: answered %q, %w", garbage, got, err)
		}
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
			return fmt.Errorf("%q: not closed", garbage)
		}
		return nil
	}
	burst := func(n int) {
		var work sync.WaitGroup
		failures := make(chan error, 8)
		for worker := range 8 {
			work.Go(func() {
				for i := worker; i < n; i += 8 {
					if err := try(starts[i%len(starts)]); err != nil {
						failures <- err
						return
					}
				}
			})
		}
		work.Wait()
		close(failures)
		for err := range failures {
			t.Fatal(err)
		}
	}
	burst(500)
	s.wire().ping() // an honest client is still served
	memory, files := s.memory(), s.openFiles()
	burst(rounds)
	if grown := s.memory() - memory; grown > 10<<20 {
		t.Errorf("memory grew by %d KiB", grown>>10)
	}
	eventually(t, "the descriptors to be closed", func() error {
		if n := s.openFiles(); n > files+2 {
			return fmt.Errorf("%d open files, were %d", n, files)
		}
		return nil
	})
	words := s.stderr.String()
	if lines := strings.Count(words, "\n"); lines > 200 {
		t.Errorf("%d lines of log for %d connections", lines, rounds)
	}
	for _, hint := range []string{"--http-addr", "PLAINTEXT"} {
		if !strings.Contains(words, hint) {
			t.Errorf("the log gives no hint of %s: %s", hint, tail(words, 2000))
		}
	}
	nc, err := tls.Dial("tcp", s.Kafka, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // there is no certificate to check
	if err == nil {
		_ = nc.Close()
		t.Error("a TLS handshake succeeded on a plain port")
	}
}

// TestAnnouncedSize proves that an announced size costs no memory until its bytes arrive.
func TestAnnouncedSize(t *testing.T) {
	s := start(t)
	s.wire().ping()
	memory := s.memory()
	head := binary.BigEndian.AppendUint32(nil, 99<<20)
	head = append(head, 0, 0, 0, 9, 0, 0, 0, 1, 0xff, 0xff)
	var open []net.Conn
	for range 200 {
		nc, err := net.Dial("tcp", s.Kafka)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close() //nolint:errcheck // nothing more is sent
		if _, err := nc.Write(head); err != nil {
			t.Fatal(err)
		}
		open = append(open, nc)
	}
	eventually(t, "the connections to be counted", func() error {
		if n := s.metric("leat_kafka_connections"); int(n) < len(open) {
			return fmt.Errorf("%v connections", n)
		}
		return nil
	})
	s.wire().ping()
	if grown := s.memory() - memory; grown > 64<<20 {
		t.Errorf("memory grew by %d MiB for %d announcements of 99 MiB", grown>>20, len(open))
	}
}
