package kafka

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/storage/record"
)

// Produce answers offsets and log start in every version that is served, and
// stores the batch.
func TestProduceVersions(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	c.create("t", 2)
	next := int64(0)
	for v := int16(3); v <= 11; v++ {
		for _, acks := range []int16{-1, 1} {
			resp := ask[*kmsg.ProduceResponse](c, produceRequest("t", 1, acks, batch(t, record.LZ4, "a", "b", "c")), v)
			p := resp.Topics[0].Partitions[0]
			if p.ErrorCode != 0 || p.BaseOffset != next || p.LogAppendTime != -1 || v >= 5 && p.LogStartOffset != 0 || p.Partition != 1 {
				t.Errorf("version %d acks %d: %+v, want base %d", v, acks, p, next)
			}
			next += 3
		}
	}
}

// reseal computes the checksum of a batch anew.
func reseal(b record.Batch) record.Batch {
	binary.BigEndian.PutUint32(b[17:], crc32.Checksum(b[21:], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// Each kind of bad input has its code, with a text from version 8, and changes
// nothing; the partitions beside it are not affected.
func TestProduceErrors(t *testing.T) {
	d := startDoor(t, setup{configs: map[string]string{"auto.create.topics.enable": "false"}})
	c := d.dial(t)
	c.create("t", 1)
	c.create("compact", 1, "cleanup.policy", "compact")
	c.create("small", 1, "max.message.bytes", "200")
	c.create("server-time", 1, "message.timestamp.type", "LogAppendTime")
	good := func() record.Batch { return batch(t, 0, "a", "b", "c") }
	edit := func(f func(record.Batch)) []byte {
		b := good()
		f(b)
		return reseal(b)
	}
	for _, tc := range []struct {
		name    string
		topic   string
		part    int32
		acks    int16
		version int16
		records []byte
		code    int16
		record  int32 // index in the record errors, -1 none
	}{
		{"unknown topic", "missing", 0, -1, 11, good(), 3, -1},
		{"unknown partition", "t", 1, -1, 11, good(), 3, -1},
		{"negative partition", "t", -1, -1, 11, good(), 3, -1},
		{"bad topic name", "a/b", 0, -1, 11, good(), 17, -1},
		{"acks 2", "t", 0, 2, 11, good(), 21, -1},
		{"null records", "t", 0, -1, 11, nil, 87, -1},
		{"no records", "t", 0, -1, 11, []byte{}, 87, -1},
		{"two batches", "t", 0, -1, 11, append(good(), good()...), 87, -1},
		{"magic 1", "t", 0, -1, 11, edit(func(b record.Batch) { b[16] = 1 }), 87, -1},
		{"cut", "t", 0, -1, 11, good()[:70], 2, -1},
		{"shorter than a header", "t", 0, -1, 11, good()[:30], 2, -1},
		{"flipped bit", "t", 0, -1, 11, func() []byte { b := good(); b[70] ^= 1; return b }(), 2, -1},
		{"count", "t", 0, -1, 11, edit(func(b record.Batch) { b[60]++ }), 87, -1},
		{"control", "t", 0, -1, 11, edit(func(b record.Batch) { b[22] |= 0x20 }), 87, -1},
		{"transactional", "t", 0, -1, 11, edit(func(b record.Batch) { b[22] |= 0x10 }), 48, -1},
		{"codec 5", "t", 0, -1, 11, edit(func(b record.Batch) { b[22] |= 5 }), 76, -1},
		{"zstd before version 7", "t", 0, -1, 6, batch(t, record.Zstd, "a"), 76, -1},
		{"keyless on a compacted topic", "compact", 0, -1, 11, good(), 87, 0},
		{"too large", "small", 0, -1, 11, batch(t, 0, strings.Repeat("x", 300)), 10, -1},
		{"text from version 8", "t", 0, -1, 8, good()[:70], 2, -1},
		{"no text before", "t", 0, -1, 7, good()[:70], 2, -1},
	} {
		resp := ask[*kmsg.ProduceResponse](c, produceRequest(tc.topic, tc.part, tc.acks, tc.records), tc.version)
		p := resp.Topics[0].Partitions[0]
		if p.ErrorCode != tc.code || p.BaseOffset != -1 || p.LogAppendTime != -1 || p.LogStartOffset != -1 {
			t.Errorf("%s: %+v, want code %d", tc.name, p, tc.code)
		}
		if (p.ErrorMessage != nil) != (tc.version >= 8) {
			t.Errorf("%s: text %v", tc.name, p.ErrorMessage)
		}
		if got := recordAt(p.ErrorRecords); got != tc.record {
			t.Errorf("%s: record %d, want %d", tc.name, got, tc.record)
		}
	}
	// A good partition between bad ones.
	req := produceRequest("t", 7, -1, good())
	req.Topics = append(req.Topics, produceRequest("t", 0, -1, good()).Topics[0], produceRequest("missing", 0, -1, nil).Topics[0])
	resp := ask[*kmsg.ProduceResponse](c, req, 9)
	if a, b, z := resp.Topics[0].Partitions[0], resp.Topics[1].Partitions[0], resp.Topics[2].Partitions[0]; a.ErrorCode != 3 || b.ErrorCode != 0 || b.BaseOffset != 0 || z.ErrorCode != 87 {
		t.Errorf("%+v %+v %+v", a, b, z)
	}
	if p := c.produce(9, "server-time", 0, good()); p.LogAppendTime <= 0 {
		t.Errorf("log append time %d", p.LogAppendTime)
	}
}

func recordAt(errs []kmsg.ProduceResponseTopicPartitionErrorRecord) int32 {
	if len(errs) == 0 {
		return -1
	}
	return errs[0].RelativeOffset
}

// A transactional id is refused for each partition.
func TestProduceTransactionalID(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	c.create("t", 1)
	req := produceRequest("t", 0, -1, batch(t, 0, "a"))
	tx := "tx"
	req.TransactionID = &tx
	if p := ask[*kmsg.ProduceResponse](c, req, 11).Topics[0].Partitions[0]; p.ErrorCode != 48 || p.ErrorMessage == nil {
		t.Errorf("%+v", p)
	}
}

// acks=0 gets no answer: the next answer on the connection belongs to the next
// request. If the batch fails, the connection is closed.
func TestProduceAcksNone(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	c.create("t", 1)
	req := produceRequest("t", 0, 0, batch(t, 0, "a"))
	req.SetVersion(9)
	c.send(c.frame(req))
	if p := c.produce(9, "t", 0, batch(t, 0, "b")); p.BaseOffset != 1 {
		t.Errorf("%+v", p)
	}
	req.Topics[0].Partitions[0].Partition = 9
	c.send(c.frame(req))
	c.closed()
}

// An idempotent producer that sends a batch again gets the first offsets; a gap
// and an old epoch have their codes.
func TestProduceIdempotent(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	c.create("t", 1)
	id := ask[*kmsg.InitProducerIDResponse](c, kmsg.NewPtrInitProducerIDRequest(), 4).ProducerID
	from := func(epoch int16, sequence int32) []byte { return sequenced(t, id, epoch, sequence, "a", "b") }
	for i, tc := range []struct {
		epoch    int16
		sequence int32
		code     int16
		base     int64
	}{
		{0, 0, 0, 0}, {0, 2, 0, 2}, {0, 0, 0, 0}, {0, 2, 0, 2}, {0, 6, 45, -1}, {0, 4, 0, 4}, {1, 0, 0, 6}, {0, 6, 47, -1},
	} {
		if p := c.produce(11, "t", 0, from(tc.epoch, tc.sequence)); p.ErrorCode != tc.code || p.BaseOffset != tc.base {
			t.Errorf("step %d: %+v, want code %d base %d", i, p, tc.code, tc.base)
		}
	}
}

// logBytes is what the segment of the only partition with records holds.
func logBytes(t *testing.T, dir string) []byte {
	t.Helper()
	var out []byte
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".log" || strings.Contains(path, string(filepath.Separator)+"db"+string(filepath.Separator)) {
			return err
		}
		p, err := os.ReadFile(path)
		if len(bytes.Trim(p, "\x00")) > 0 {
			out = append(out, p...)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
