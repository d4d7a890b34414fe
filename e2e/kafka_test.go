package e2e

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Codes of the Kafka protocol.
const (
	codeNone                     int16 = 0
	codeOffsetOutOfRange         int16 = 1
	codeCorruptMessage           int16 = 2
	codeUnknownTopicOrPartition  int16 = 3
	codeMessageTooLarge          int16 = 10
	codeInvalidTopic             int16 = 17
	codeNotEnoughReplicas        int16 = 19
	codeInvalidRequiredAcks      int16 = 21
	codeInvalidTimestamp         int16 = 32
	codeInvalidReplicationFactor int16 = 38
	codeStorageError             int16 = 56
	codeInvalidRecord            int16 = 87
)

// Special times of ListOffsets.
const (
	latest       int64 = -1
	earliest     int64 = -2
	maxTimestamp int64 = -3
)

// kgo is a franz-go client of the server.
func (s *server) kgo(opts ...kgo.Opt) *kgo.Client {
	s.t.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.Kafka)}, opts...)...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)
	return client
}

// tireless is how often a client that tries again after a few milliseconds does so while a server starts. By default it
// gives a request up after 20 tries, and with it every record that waits for its answer.
const tireless = 5000

// wire is a raw connection to the Kafka door: one request after the other, each field as the test says.
type wire struct {
	t    testing.TB
	nc   net.Conn
	r    *bufio.Reader
	corr int32
}

// wire dials the Kafka door.
func (s *server) wire() *wire {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.Kafka)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = nc.Close() })
	return newWire(s.t, nc)
}

func newWire(t testing.TB, nc net.Conn) *wire {
	return &wire{t: t, nc: nc, r: bufio.NewReaderSize(nc, 64<<10)}
}

// send writes a request and returns its correlation id.
func (w *wire) send(req kmsg.Request) (int32, error) {
	w.corr++
	frame := kmsg.NewRequestFormatter(kmsg.FormatterClientID("e2e")).AppendRequest(nil, req, w.corr)
	if err := w.nc.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	_, err := w.nc.Write(frame)
	return w.corr, err
}

// try sends a request and reads its response.
func (w *wire) try(req kmsg.Request) (kmsg.Response, error) {
	corr, err := w.send(req)
	if err != nil {
		return nil, err
	}
	frame, err := readFrame(w.r)
	if err != nil {
		return nil, err
	}
	if got := int32(binary.BigEndian.Uint32(frame)); got != corr {
		return nil, fmt.Errorf("correlation id %d, want %d", got, corr)
	}
	return decodeResponse(frame[4:], req.ResponseKind())
}

// decodeResponse decodes what follows the correlation id; resp has its version set.
func decodeResponse(body []byte, resp kmsg.Response) (kmsg.Response, error) {
	if resp.IsFlexible() && resp.Key() != int16(kmsg.ApiVersions) {
		if len(body) == 0 || body[0] != 0 {
			return nil, errors.New("tags in a response header")
		}
		body = body[1:]
	}
	return resp, resp.ReadFrom(body)
}

// readFrame reads one frame without its size.
func readFrame(r io.Reader) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	_, err := io.ReadFull(r, frame)
	return frame, err
}

func (w *wire) call(req kmsg.Request) kmsg.Response {
	w.t.Helper()
	resp, err := w.try(req)
	if err != nil {
		w.t.Fatalf("%s: %v", kmsg.NameForKey(req.Key()), err)
	}
	return resp
}

// ping asks for the versions of the APIs.
func (w *wire) ping() {
	w.t.Helper()
	req := kmsg.NewPtrApiVersionsRequest()
	req.Version, req.ClientSoftwareName, req.ClientSoftwareVersion = 3, "e2e", "1"
	if resp := w.call(req).(*kmsg.ApiVersionsResponse); resp.ErrorCode != codeNone || len(resp.ApiKeys) == 0 {
		w.t.Fatalf("ApiVersions: %+v", resp)
	}
}

func produceRequest(topic string, partition int32, acks int16, records []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 9, acks, 30_000
	t, p := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	t.Topic, p.Partition, p.Records = topic, partition, records
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// tryProduce sends one batch and returns the answer for its partition.
func (w *wire) tryProduce(topic string, partition int32, acks int16, records []byte) (kmsg.ProduceResponseTopicPartition, error) {
	resp, err := w.try(produceRequest(topic, partition, acks, records))
	if err != nil {
		return kmsg.ProduceResponseTopicPartition{}, err
	}
	topics := resp.(*kmsg.ProduceResponse).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 1 {
		return kmsg.ProduceResponseTopicPartition{}, fmt.Errorf("answer %+v, want one partition", topics)
	}
	return topics[0].Partitions[0], nil
}

func (w *wire) produce(topic string, partition int32, acks int16, records []byte) kmsg.ProduceResponseTopicPartition {
	w.t.Helper()
	p, err := w.tryProduce(topic, partition, acks, records)
	if err != nil {
		w.t.Fatalf("produce: %v", err)
	}
	return p
}

// mustProduce is a produce with acks=all that must be taken; it returns the base offset.
func (w *wire) mustProduce(topic string, partition int32, records []byte) int64 {
	w.t.Helper()
	p := w.produce(topic, partition, -1, records)
	if p.ErrorCode != codeNone {
		w.t.Fatalf("produce to %s-%d: code %d (%s)", topic, partition, p.ErrorCode, text(p.ErrorMessage))
	}
	return p.BaseOffset
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// fetchRequest asks for one partition; maxBytes bounds the partition.
func fetchRequest(topic string, partition int32, offset int64, maxBytes int32, wait time.Duration) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MinBytes, req.MaxBytes, req.MaxWaitMillis = 12, 1, 64<<20, int32(wait.Milliseconds())
	req.SessionEpoch = -1
	t, p := kmsg.NewFetchRequestTopic(), kmsg.NewFetchRequestTopicPartition()
	t.Topic, p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = topic, partition, offset, maxBytes, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

func (w *wire) fetch(topic string, partition int32, offset int64, maxBytes int32) kmsg.FetchResponseTopicPartition {
	w.t.Helper()
	return w.fetchWait(topic, partition, offset, maxBytes, 0)
}

func (w *wire) fetchWait(topic string, partition int32, offset int64, maxBytes int32, wait time.Duration) kmsg.FetchResponseTopicPartition {
	w.t.Helper()
	topics := w.call(fetchRequest(topic, partition, offset, maxBytes, wait)).(*kmsg.FetchResponse).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 1 {
		w.t.Fatalf("fetch: answer %+v, want one partition", topics)
	}
	return topics[0].Partitions[0]
}

// listOffset looks a time up: a time in milliseconds, latest, earliest or maxTimestamp.
func (w *wire) listOffset(topic string, partition int32, ts int64) (offset, timestamp int64) {
	w.t.Helper()
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID = 7, -1
	t, p := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
	t.Topic, p.Partition, p.Timestamp, p.CurrentLeaderEpoch = topic, partition, ts, -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	topics := w.call(req).(*kmsg.ListOffsetsResponse).Topics
	if len(topics) != 1 || len(topics[0].Partitions) != 1 {
		w.t.Fatalf("list offsets: answer %+v, want one partition", topics)
	}
	answer := topics[0].Partitions[0]
	if answer.ErrorCode != codeNone {
		w.t.Fatalf("list offsets of %s-%d at %d: code %d", topic, partition, ts, answer.ErrorCode)
	}
	return answer.Offset, answer.Timestamp
}

// end is the offset that the next record of a partition gets.
func (w *wire) end(topic string, partition int32) int64 {
	w.t.Helper()
	offset, _ := w.listOffset(topic, partition, latest)
	return offset
}

func createRequest(name string, partitions int32, replicas int16, configs ...string) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 7, 30_000
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, partitions, replicas
	for i := 0; i+1 < len(configs); i += 2 {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = configs[i], &configs[i+1]
		t.Configs = append(t.Configs, c)
	}
	req.Topics = append(req.Topics, t)
	return req
}

// create makes a topic over the Kafka door and returns the code of the answer.
func (w *wire) create(name string, partitions int32, replicas int16, configs ...string) (int16, string) {
	w.t.Helper()
	topics := w.call(createRequest(name, partitions, replicas, configs...)).(*kmsg.CreateTopicsResponse).Topics
	if len(topics) != 1 {
		w.t.Fatalf("create topics: answer %+v, want one topic", topics)
	}
	return topics[0].ErrorCode, text(topics[0].ErrorMessage)
}

// fetchAll reads the record bytes of a partition from an offset to its end, whole batches in order.
func (w *wire) fetchAll(topic string, partition int32, from int64) []byte {
	w.t.Helper()
	var all []byte
	end := w.end(topic, partition)
	for next := from; next < end; {
		p := w.fetch(topic, partition, next, 8<<20)
		if p.ErrorCode != codeNone || len(p.RecordBatches) == 0 {
			w.t.Fatalf("fetch of %s-%d at %d of %d: code %d, %d bytes", topic, partition, next, end, p.ErrorCode, len(p.RecordBatches))
		}
		batches, err := split(p.RecordBatches)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, b := range batches {
			if b.next() > next {
				next = b.next()
				all = append(all, b...)
			}
		}
	}
	return all
}
