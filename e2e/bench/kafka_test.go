package bench

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// createTopic makes a topic of one partition.
func (l *leat) createTopic(name string, configs map[string]string) {
	l.b.Helper()
	body, err := json.Marshal(map[string]any{"name": name, "partitions": 1, "configs": configs})
	if err != nil {
		l.b.Fatal(err)
	}
	l.do(http.MethodPost, "/v1/topics", body, http.StatusCreated)
}

// nextTopic makes a new topic in place of the one before it, whose files are gone when it returns: the bare server, too,
// empties its file right before a run, so that both sides write into pages that have just become free.
func (l *leat) nextTopic(configs map[string]string) string {
	l.b.Helper()
	if l.topics > 0 {
		l.do(http.MethodDelete, "/v1/topics/"+l.topic(), nil, http.StatusNoContent)
	}
	l.topics++
	l.createTopic(l.topic(), configs)
	settle(l)
	return l.topic()
}

func (l *leat) topic() string { return "topic-" + strconv.Itoa(l.topics) }

func (l *leat) do(method, path string, body []byte, want int) {
	l.b.Helper()
	req, err := http.NewRequest(method, "http://"+l.HTTP+path, bytes.NewReader(body))
	if err != nil {
		l.b.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		l.b.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != want {
		l.b.Fatalf("%s %s: %d %s %v", method, path, resp.StatusCode, text, err)
	}
}

// noise is a batch of records with values that do not compress, whose size is exactly size.
func noise(size, records int) []byte {
	const header = 61
	rng := rand.New(rand.NewPCG(uint64(size), uint64(records)))
	value := func(n int) []byte {
		v := make([]byte, n)
		for i := range v {
			v[i] = byte(rng.Uint32())
		}
		return v
	}
	one := func(i, n int) []byte {
		r := kmsg.Record{OffsetDelta: int32(i), Value: value(n)}
		r.Length = int32(len(r.AppendTo(nil)) - 1)
		return r.AppendTo(nil)
	}
	var body []byte
	for i := range records {
		left := size - header - len(body)
		n := left/(records-i) - 10
		// The last record takes what is left; its own length is written in front of it.
		for i == records-1 && len(one(i, n)) < left {
			n++
		}
		body = append(body, one(i, n)...)
	}
	b := kmsg.RecordBatch{
		Length: int32(header - 12 + len(body)), PartitionLeaderEpoch: -1, Magic: 2, LastOffsetDelta: int32(records - 1),
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(records), Records: body,
	}
	p := b.AppendTo(nil)
	if len(p) != size {
		panic(fmt.Sprintf("a batch of %d bytes, want %d", len(p), size))
	}
	binary.BigEndian.PutUint32(p[17:], crc32.Checksum(p[21:], castagnoli))
	return p
}

// produceFrame is a whole Produce request of one batch.
func produceFrame(topic string, acks int16, batch []byte) []byte {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 8, acks, 30_000
	t, p := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	t.Topic, p.Records = topic, batch
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)
}

// fetchFrame is a whole Fetch request of one partition, and where its offset stands.
func fetchFrame(topic string, maxBytes int32) (frame []byte, offsetAt int) {
	const mark = 0x7172737475767778
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MinBytes, req.MaxBytes, req.MaxWaitMillis, req.SessionEpoch = 11, 1, 64<<20, 1000, -1
	t, p := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	t.Topic, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = topic, mark, maxBytes, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	frame = kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)
	return frame, bytes.Index(frame, binary.BigEndian.AppendUint64(nil, mark))
}

// fetchOverhead is how much of a Fetch response of version 11 is not records, behind the size.
func fetchOverhead(topic string) int {
	return 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 8 + 4 + 4 + 4
}

func dial(b *testing.B, addr string) net.Conn {
	b.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	return nc
}

// fill writes n batches to a topic, one after the other.
func (l *leat) fill(topic string, batch []byte, n int) {
	l.b.Helper()
	nc := dial(l.b, l.Kafka)
	defer nc.Close() //nolint:errcheck // every answer has been read
	frame := produceFrame(topic, 1, batch)
	if err := pipeline(nc, n, 8, frame, produceAnswer); err != nil {
		l.b.Fatal(err)
	}
}

// pipeline sends a frame n times with at most depth unanswered, and gives each answer to check.
func pipeline(nc net.Conn, n, depth int, frame []byte, check func([]byte) error) error {
	answer := make([]byte, 4<<10)
	sent := 0
	for answered := range n {
		for sent < n && sent-answered < depth {
			if _, err := nc.Write(frame); err != nil {
				return err
			}
			sent++
		}
		if _, err := io.ReadFull(nc, answer[:4]); err != nil {
			return err
		}
		size := int(binary.BigEndian.Uint32(answer))
		if _, err := io.ReadFull(nc, answer[:size]); err != nil {
			return err
		}
		if err := check(answer[:size]); err != nil {
			return err
		}
	}
	return nil
}

// produceAnswer checks a Produce response of version 8.
func produceAnswer(p []byte) error {
	resp := kmsg.NewPtrProduceResponse()
	resp.Version = 8
	if err := resp.ReadFrom(p[4:]); err != nil {
		return err
	}
	if code := resp.Topics[0].Partitions[0].ErrorCode; code != 0 {
		return fmt.Errorf("produce: code %d", code)
	}
	return nil
}
