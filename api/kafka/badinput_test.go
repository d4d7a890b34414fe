package kafka

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/storage/disk"
	"leat/storage/record"
)

// badInput is one batch that is refused.
type badInput struct {
	name      string
	topic     string
	partition int32
	acks      int16
	records   []byte
	code      int16
	from, to  int16 // versions of Produce, 0 for all
}

// lastOffset is the offset that the next record of partition 0 gets.
func (c *client) lastOffset(topic string) int64 {
	c.t.Helper()
	list := kmsg.NewPtrListOffsetsRequest()
	list.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: topic, Partitions: []kmsg.ListOffsetsRequestTopicPartition{{CurrentLeaderEpoch: -1, Timestamp: -1}}}}
	p := ask[*kmsg.ListOffsetsResponse](c, list, 7).Topics[0].Partitions[0]
	if p.ErrorCode != 0 {
		c.t.Fatalf("end of %s: code %d", topic, p.ErrorCode)
	}
	return p.Offset
}

// changed changes a good batch; whole says that its checksum is right all the same.
func changed(b record.Batch, whole bool, at int, to ...byte) []byte {
	copy(b[at:], to)
	if whole {
		reseal(b)
	}
	return b
}

// badInputs is the table of errors for what is wrong with a batch or with where
// it is to go.
func badInputs(t *testing.T) []badInput {
	good := func() record.Batch { return batch(t, 0, "a", "b", "c") }
	with := func(at int, to ...byte) []byte { return changed(good(), true, at, to...) }
	stamped := func(ms int64) []byte {
		b := batch(t, 0, "a")
		binary.BigEndian.PutUint64(b[27:], uint64(ms))
		binary.BigEndian.PutUint64(b[35:], uint64(ms))
		return reseal(b)
	}
	now := time.Now().UnixMilli()
	return []badInput{
		{name: "checksum", records: changed(good(), false, 17, 1, 2, 3, 4), code: 2},
		{name: "flipped bit", records: changed(good(), false, 70, 0xff), code: 2},
		{name: "shorter than a header", records: good()[:40], code: 2},
		{name: "cut", records: good()[:len(good())-1], code: 2},
		{name: "length too large", records: changed(good(), false, 8, 0, 1, 0, 0), code: 2},
		{name: "length below the header", records: changed(good(), false, 8, 0, 0, 0, 48), code: 2},
		{name: "count 0", records: with(57, 0, 0, 0, 0), code: 87},
		{name: "count -1", records: with(57, 0xff, 0xff, 0xff, 0xff), code: 87},
		{name: "count and last offset differ", records: with(57, 0, 0, 0, 2), code: 87},
		{name: "last offset and count differ", records: with(23, 0, 0, 0, 3), code: 87},
		{name: "base offset", records: with(0, 0, 0, 0, 0, 0, 0, 0, 1), code: 87},
		{name: "negative base offset", records: with(0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), code: 87},
		{name: "control batch", records: with(22, 0x20), code: 87},
		{name: "two batches", records: append(good(), good()...), code: 87},
		{name: "no batch", records: []byte{}, code: 87},
		{name: "null", records: nil, code: 87},
		{name: "magic 0", records: with(16, 0), code: 87},
		{name: "magic 1", records: with(16, 1), code: 87},
		{name: "magic 3", records: with(16, 3), code: 87},
		{name: "no key on a compacted topic", topic: "compact", records: good(), code: 87},
		{name: "producer without a sequence", records: changed(sequenced(t, 3, 0, 0, "a"), true, 53, 0xff, 0xff, 0xff, 0xff), code: 87},
		{name: "max.message.bytes", topic: "small", records: batch(t, 0, strings.Repeat("x", 300)), code: 10},
		{name: "segment.bytes", topic: "segmented", records: batch(t, 0, strings.Repeat("x", 2000)), code: 18},
		{name: "segment.bytes and max.message.bytes", topic: "segmented", records: batch(t, 0, strings.Repeat("x", 5000)), code: 10},
		{name: "codec 5", records: with(22, 5), code: 76},
		{name: "codec 6", records: with(22, 6), code: 76},
		{name: "codec 7", records: with(22, 7), code: 76},
		{name: "zstd before version 7", records: batch(t, record.Zstd, "a"), code: 76, to: 6},
		{name: "too far ahead", records: stamped(now + 2*time.Hour.Milliseconds()), code: 32},
		{name: "too old", topic: "recent", records: stamped(now - time.Hour.Milliseconds()), code: 32},
		{name: "timestamp -2", records: stamped(-2), code: 32},
		{name: "the server's time claimed", records: with(22, 8), code: 32},
		{name: "acks 2", acks: 2, records: good(), code: 21},
		{name: "acks -2", acks: -2, records: good(), code: 21},
		{name: "unknown topic", topic: "missing", records: good(), code: 3},
		{name: "unknown partition", partition: 1, records: good(), code: 3},
		{name: "negative partition", partition: -1, records: good(), code: 3},
		{name: "transactional batch", records: changed(sequenced(t, 4, 0, 0, "a"), true, 22, 0x10), code: 48},
		{name: "transactional batch of a producer that is fenced", records: changed(sequenced(t, 9, 4, 0, "a"), true, 22, 0x10), code: 47},
		{name: "transactional batch of the producer's own epoch", records: changed(sequenced(t, 9, 5, 1, "a"), true, 22, 0x10), code: 48},
		{name: "older epoch", records: sequenced(t, 9, 4, 0, "a"), code: 47},
		{name: "gap in the sequence", records: sequenced(t, 9, 5, 7, "a"), code: 45},
		{name: "too few replicas", topic: "two", records: good(), code: 19},
	}
}

// Each kind of bad input has its code in the lowest, the highest and the turning
// versions of Produce, with words where the version has room for them, and
// writes nothing.
func TestErrorsForBadInput(t *testing.T) {
	c := startDoor(t, setup{configs: map[string]string{"auto.create.topics.enable": "false"}}).dial(t)
	for topic, configs := range map[string][]string{
		"t": nil, "compact": {"cleanup.policy", "compact"}, "small": {"max.message.bytes", "200"}, "two": {"min.insync.replicas", "2"},
		"segmented": {"segment.bytes", "1024", "max.message.bytes", "4000"}, "recent": {"message.timestamp.before.max.ms", "60000"},
	} {
		c.create(topic, 1, configs...)
	}
	if p := c.produce(9, "t", 0, sequenced(t, 9, 5, 0, "known")); p.ErrorCode != 0 {
		t.Fatalf("code %d", p.ErrorCode)
	}
	for _, version := range []int16{3, 6, 7, 8, 9, 11} {
		for _, in := range badInputs(t) {
			if in.topic == "" {
				in.topic = "t"
			}
			if in.acks == 0 {
				in.acks = -1
			}
			if in.from > version || in.to > 0 && in.to < version {
				continue
			}
			before := int64(0)
			if in.topic != "missing" {
				before = c.lastOffset(in.topic)
			}
			req := produceRequest(in.topic, in.partition, in.acks, in.records)
			p := ask[*kmsg.ProduceResponse](c, req, version).Topics[0].Partitions[0]
			if p.ErrorCode != in.code || p.BaseOffset != -1 || p.Partition != in.partition || version >= 5 && p.LogStartOffset != -1 {
				t.Errorf("%s, version %d: %+v, want code %d", in.name, version, p, in.code)
			}
			if (p.ErrorMessage == nil || *p.ErrorMessage == "") != (version < 8) {
				t.Errorf("%s, version %d: words %v", in.name, version, p.ErrorMessage)
			}
			if in.topic != "missing" && c.lastOffset(in.topic) != before {
				t.Errorf("%s, version %d: something was written", in.name, version)
			}
		}
	}
}

// A batch that only looks odd is taken: records without a time, a checksum that
// is right, zstd where it may be.
func TestGoodInput(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	c.create("t", 1)
	timeless := batch(t, 0, "a")
	binary.BigEndian.PutUint64(timeless[27:], 1<<64-1)
	binary.BigEndian.PutUint64(timeless[35:], 1<<64-1)
	for name, b := range map[string]record.Batch{"no time": reseal(timeless), "zstd": batch(t, record.Zstd, "a"), "unknown producer": sequenced(t, 5, 3, 77, "a")} {
		if p := c.produce(7, "t", 0, b); p.ErrorCode != 0 {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// acks that there are not are refused on every partition of the request.
func TestBadAcksOnEveryPartition(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	c.create("t", 2)
	req := produceRequest("t", 0, 7, batch(t, 0, "a"))
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, produceRequest("", 1, 0, batch(t, 0, "b")).Topics[0].Partitions...)
	req.Topics = append(req.Topics, produceRequest("missing", 3, 0, nil).Topics...)
	n := 0
	for _, topic := range ask[*kmsg.ProduceResponse](c, req, 9).Topics {
		for _, p := range topic.Partitions {
			if n++; p.ErrorCode != 21 || p.BaseOffset != -1 {
				t.Errorf("%s/%d: %+v", topic.Topic, p.Partition, p)
			}
		}
	}
	if n != 3 {
		t.Errorf("%d partitions answered", n)
	}
}

// What is wrong with the server and not with the input has its code, too: no
// right, a disk that is slow, full or broken, and a server that goes.
func TestErrorsOfTheServer(t *testing.T) {
	mem := disk.NewMem()
	var rights gate
	rights.open.Store(true)
	d := startDoor(t, setup{dir: "/data", disk: mem, authorizer: &rights, closes: true, configs: map[string]string{"auto.create.topics.enable": "false"}})
	c := d.dial(t)
	c.create("t", 1)
	isLog := func(kind disk.OpKind) func(disk.Op) bool {
		return func(op disk.Op) bool { return op.Kind == kind && strings.HasSuffix(op.Path, ".log") }
	}
	produce := func(timeout time.Duration) kmsg.ProduceResponseTopicPartition {
		t.Helper()
		req := produceRequest("t", 0, -1, batch(t, 0, "a"))
		req.TimeoutMillis = int32(timeout.Milliseconds())
		return ask[*kmsg.ProduceResponse](c, req, 11).Topics[0].Partitions[0]
	}
	expect := func(name string, got kmsg.ProduceResponseTopicPartition, code int16) {
		t.Helper()
		if got.ErrorCode != code || (code != 0) != (got.BaseOffset == -1) || (code != 0) != (got.ErrorMessage != nil) {
			t.Errorf("%s: %+v, want code %d", name, got, code)
		}
	}
	expect("all is well", produce(limit), 0)

	rights.open.Store(false)
	expect("no right", produce(limit), 29)
	rights.open.Store(true)

	for name, why := range map[string]error{"full": syscall.ENOSPC, "broken": syscall.EIO} {
		before := c.lastOffset("t")
		mem.SetFault(func(op disk.Op) error {
			if isLog(disk.OpWrite)(op) {
				return &fs.PathError{Op: "write", Path: op.Path, Err: why}
			}
			return nil
		})
		expect(name, produce(limit), 56)
		mem.SetFault(nil)
		if end := c.lastOffset("t"); end != before {
			t.Errorf("%s: the end went from %d to %d", name, before, end)
		}
		expect("after "+name, produce(limit), 0)
	}

	release := mem.Stall(func(op disk.Op) bool { return isLog(disk.OpSyncData)(op) || op.Kind == disk.OpSyncAll })
	expect("too slow", produce(time.Millisecond), 7)
	release()
	expect("fast again", produce(limit), 0)

	if err := d.opts.Broker.Close(); err != nil {
		t.Fatal(err)
	}
	expect("not the leader any more", produce(limit), 6)
}

// Fetch names what is wrong by its code as well: topics, ids, partitions,
// offsets, epochs, sessions.
func TestFetchErrorsForBadInput(t *testing.T) {
	c := startDoor(t, setup{configs: map[string]string{"auto.create.topics.enable": "false"}}).dial(t)
	id := c.create("t", 1)
	c.produce(9, "t", 0, batch(t, 0, "a"))
	for _, tc := range []struct {
		version   int16
		topic     string
		id        [16]byte
		partition int32
		offset    int64
		epoch     int32
		code      int16
	}{
		{12, "missing", id, 0, 0, -1, 3},
		{12, "bad/name", id, 0, 0, -1, 17},
		{13, "", [16]byte{9}, 0, 0, -1, 100},
		{17, "", [16]byte{}, 0, 0, -1, 100},
		{4, "t", id, 1, 0, -1, 3},
		{17, "t", id, 1, 0, -1, 3},
		{12, "t", id, -1, 0, -1, 3},
		{4, "t", id, 0, -1, -1, 1},
		{17, "t", id, 0, 2, -1, 1},
		{12, "t", id, 0, 1 << 62, -1, 1},
		{9, "t", id, 0, 0, 7, 75},
		{17, "t", id, 0, 1, 0, 0},
		{17, "t", id, 0, 0, 0, 0},
	} {
		req := fetchRequest(tc.topic, tc.id, tc.partition, tc.offset)
		req.Topics[0].Partitions[0].CurrentLeaderEpoch = tc.epoch
		begun := time.Now()
		req.MaxWaitMillis = 0
		if tc.code != 0 {
			req.MaxWaitMillis = int32(limit / time.Millisecond) // an error is told at once
		}
		p := ask[*kmsg.FetchResponse](c, req, tc.version).Topics[0].Partitions[0]
		if name := fmt.Sprintf("%+v", tc); p.ErrorCode != tc.code || tc.code != 0 && (p.HighWatermark != -1 || len(p.RecordBatches) > 0) || time.Since(begun) > limit/2 {
			t.Errorf("%s: %+v after %v", name, p, time.Since(begun))
		}
	}
}
