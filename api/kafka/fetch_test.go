package kafka

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/storage/record"
)

// values are the values of the records from an offset on in fetched bytes.
func values(t *testing.T, p []byte, from int64) (out []string) {
	t.Helper()
	var r record.Reader
	defer r.Close()
	for len(p) > 0 {
		b, rest, err := record.Next(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Reset(b, 1<<20); err != nil {
			t.Fatal(err)
		}
		for {
			var rec record.Record
			if err := r.Next(&rec); err != nil {
				break
			}
			if rec.Offset >= from {
				out = append(out, string(rec.Value))
			}
		}
		p = rest
	}
	return out
}

// Fetch gives the records with all offsets filled in, in every version, and an
// empty field that is not null where there are none.
func TestFetchVersions(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	id := c.create("t", 2)
	c.produce(9, "t", 0, batch(t, record.Zstd, "a", "b"))
	c.produce(9, "t", 0, batch(t, 0, "c", strings.Repeat("d", 100<<10)))
	for v := int16(4); v <= 17; v++ {
		for _, committed := range []int8{0, 1} {
			req := fetchRequest("t", id, 0, 1)
			req.Topics[0].Partitions = append(req.Topics[0].Partitions, fetchRequest("t", id, 1, 0).Topics[0].Partitions[0])
			req.IsolationLevel = committed
			resp := ask[*kmsg.FetchResponse](c, req, v)
			if resp.ErrorCode != 0 || resp.SessionID != 0 || v < 13 && resp.Topics[0].Topic != "t" || v >= 13 && resp.Topics[0].TopicID != id {
				t.Fatalf("version %d: %+v", v, resp)
			}
			full, empty := resp.Topics[0].Partitions[0], resp.Topics[0].Partitions[1]
			if full.ErrorCode != 0 || full.HighWatermark != 4 || full.LastStableOffset != 4 || v >= 5 && full.LogStartOffset != 0 {
				t.Errorf("version %d: %+v", v, full)
			}
			if got := values(t, full.RecordBatches, 1); !slices.Equal(got, []string{"b", "c", strings.Repeat("d", 100<<10)}) {
				t.Errorf("version %d: %d values", v, len(got))
			}
			if empty.ErrorCode != 0 || empty.HighWatermark != 0 || empty.RecordBatches == nil || len(empty.RecordBatches) != 0 {
				t.Errorf("version %d: empty partition %+v", v, empty)
			}
			if (full.AbortedTransactions != nil) != (committed == 1) {
				t.Errorf("version %d: aborted transactions %v", v, full.AbortedTransactions)
			}
		}
	}
}

// Each partition fails by itself, with offsets of -1, and a failed one is
// answered at once.
func TestFetchErrors(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	id := c.create("t", 1)
	c.produce(9, "t", 0, batch(t, 0, "a"))
	for _, tc := range []struct {
		name   string
		topic  string
		id     [16]byte
		part   int32
		offset int64
		epoch  int32
		code   int16
	}{
		{"good", "t", id, 0, 0, -1, 0},
		{"at the end", "t", id, 0, 1, -1, 0},
		{"beyond the end", "t", id, 0, 2, -1, 1},
		{"negative", "t", id, 0, -5, -1, 1},
		{"unknown topic", "missing", [16]byte{1}, 0, 0, -1, 3},
		{"unknown partition", "t", id, 1, 0, -1, 3},
		{"newer epoch", "t", id, 0, 0, 1000, 75},
	} {
		for _, v := range []int16{11, 13} {
			req := fetchRequest(tc.topic, tc.id, tc.part, tc.offset)
			req.Topics[0].Partitions[0].CurrentLeaderEpoch = tc.epoch
			if tc.code != 0 {
				req.MaxWaitMillis = int32(10 * limit / time.Millisecond)
			}
			want := tc.code
			if v == 13 && tc.topic == "missing" {
				want = 100
			}
			p := ask[*kmsg.FetchResponse](c, req, v).Topics[0].Partitions[0]
			if p.ErrorCode != want || want != 0 && (p.HighWatermark != -1 || p.LastStableOffset != -1 || p.LogStartOffset != -1) {
				t.Errorf("%s: version %d: %+v, want code %d", tc.name, v, p, want)
			}
		}
	}
}

// Sessions are declined: a full fetch is served whatever its session id, and
// one that goes on with a session is told that there is none.
func TestFetchSessions(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	id := c.create("t", 1)
	c.produce(9, "t", 0, batch(t, 0, "a"))
	for _, tc := range []struct {
		id, epoch int32
		code      int16
	}{{0, 0, 0}, {0, -1, 0}, {77, 0, 0}, {77, -1, 0}, {77, 1, 70}, {0, 5, 70}} {
		req := fetchRequest("t", id, 0, 0)
		req.SessionID, req.SessionEpoch = tc.id, tc.epoch
		for _, v := range []int16{7, 12, 17} {
			resp := ask[*kmsg.FetchResponse](c, req, v)
			if resp.ErrorCode != tc.code || resp.SessionID != 0 || (len(resp.Topics) == 1) != (tc.code == 0) {
				t.Errorf("session %d epoch %d version %d: %+v", tc.id, tc.epoch, v, resp)
			}
		}
	}
}

// A fetch of an idle partition waits for its time, and one that a record comes
// to is answered then.
func TestFetchWaits(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	id := c.create("t", 1)
	req := fetchRequest("t", id, 0, 0)
	req.MaxWaitMillis = 200
	began := time.Now()
	if p := ask[*kmsg.FetchResponse](c, req, 13).Topics[0].Partitions[0]; len(p.RecordBatches) != 0 {
		t.Errorf("%+v", p)
	}
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("an empty answer after %v", took)
	}
	req.MaxWaitMillis = int32(limit / time.Millisecond)
	c.send(c.frame(req))
	d.dial(t).produce(9, "t", 0, batch(t, 0, "a"))
	_, body := c.recv()
	resp := kmsg.NewPtrFetchResponse()
	resp.SetVersion(13)
	if got := values(t, decode(t, resp, body).Topics[0].Partitions[0].RecordBatches, 0); !slices.Equal(got, []string{"a"}) {
		t.Errorf("values %v", got)
	}
}

// Large parts leave by sendfile, small ones are copied, and the figures say
// so.
func TestFetchUsesSendfile(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	id := c.create("t", 2)
	large := batch(t, 0, strings.Repeat("x", 2*spliceFrom))
	small := batch(t, 0, "y")
	sent := [][]byte{bytes.Clone(large), bytes.Clone(small)}
	c.produce(9, "t", 0, large)
	c.produce(9, "t", 1, small)
	req := fetchRequest("t", id, 0, 0)
	req.Topics[0].Partitions = append(req.Topics[0].Partitions, fetchRequest("t", id, 1, 0).Topics[0].Partitions[0])
	resp := ask[*kmsg.FetchResponse](c, req, 17)
	for i, p := range resp.Topics[0].Partitions {
		if !bytes.Equal(p.RecordBatches[16:], sent[i][16:]) {
			t.Errorf("partition %d: other bytes", i)
		}
	}
	for via, n := range map[string]int{"sendfile": len(large), "copy": len(small)} {
		if got := d.counter(t, "leat_kafka_fetched_bytes_total", via); got != float64(n) {
			t.Errorf("%s: %v bytes, want %d", via, got, n)
		}
	}
}

// ListOffsets finds places and times exactly, in every version, with the
// values of the cases on record: times out of order, the largest time inside a
// batch, nothing after the last.
func TestListOffsets(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	c.create("even", 1)
	c.create("mixed", 1)
	c.create("one", 1)
	c.create("empty", 1)
	at := func(topic string, times ...int64) {
		var w record.Builder
		w.Reset(record.Options{Codec: record.Gzip})
		for _, ts := range times {
			w.Add(ts, nil, []byte("v"), nil)
		}
		b, err := w.Finish()
		if err != nil {
			t.Fatal(err)
		}
		if p := c.produce(9, topic, 0, bytes.Clone(b)); p.ErrorCode != 0 {
			t.Fatalf("produce: %+v", p)
		}
	}
	for _, ts := range []int64{2, 4, 6, 8} {
		at("even", ts)
	}
	for _, ts := range []int64{100, 300, 200, 400} {
		at("mixed", ts)
	}
	at("one", 10, 30, 20)
	for _, tc := range []struct {
		topic      string
		ts         int64
		from       int16 // first version that has the timestamp
		offset, at int64
	}{
		{"even", 1, 1, 0, 2},
		{"even", 2, 1, 0, 2},
		{"even", 3, 1, 1, 4},
		{"even", 5, 1, 2, 6},
		{"even", 8, 1, 3, 8},
		{"even", 9, 1, -1, -1},
		{"mixed", 150, 1, 1, 300},
		{"mixed", 250, 1, 1, 300},
		{"mixed", 350, 1, 3, 400},
		{"mixed", 401, 1, -1, -1},
		{"one", -1, 1, 3, -1},
		{"one", -2, 1, 0, -1},
		{"one", -3, 7, 1, 30},
		{"one", -4, 8, 0, -1},
		{"one", -5, 9, -1, -1},
		{"empty", -3, 7, -1, -1},
		{"empty", -1, 1, 0, -1},
		{"one", -6, 99, 0, 0},
	} {
		for v := int16(1); v <= 10; v++ {
			req := kmsg.NewPtrListOffsetsRequest()
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Timestamp, p.CurrentLeaderEpoch = tc.ts, -1
			req.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: tc.topic, Partitions: []kmsg.ListOffsetsRequestTopicPartition{p}}}
			got := ask[*kmsg.ListOffsetsResponse](c, req, v).Topics[0].Partitions[0]
			code, offset, ts := int16(0), tc.offset, tc.at
			if v < tc.from {
				code, offset, ts = 35, -1, -1
			}
			if got.ErrorCode != code || got.Offset != offset || got.Timestamp != ts {
				t.Errorf("%s at %d, version %d: %+v, want code %d offset %d time %d", tc.topic, tc.ts, v, got, code, offset, ts)
			}
		}
	}
}

// ListOffsets refuses unknown topics, partitions, epochs, and a partition that
// is asked for twice.
func TestListOffsetsErrors(t *testing.T) {
	c := startDoor(t, setup{}).dial(t)
	c.create("t", 2)
	part := func(index, epoch int32) kmsg.ListOffsetsRequestTopicPartition {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp, p.CurrentLeaderEpoch = index, -1, epoch
		return p
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.Topics = []kmsg.ListOffsetsRequestTopic{
		{Topic: "t", Partitions: []kmsg.ListOffsetsRequestTopicPartition{part(0, -1), part(0, -1), part(1, -1), part(2, -1)}},
		{Topic: "missing", Partitions: []kmsg.ListOffsetsRequestTopicPartition{part(0, -1)}},
	}
	resp := ask[*kmsg.ListOffsetsResponse](c, req, 10)
	var codes []int16
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			codes = append(codes, p.ErrorCode)
			if p.ErrorCode != 0 && (p.Offset != -1 || p.LeaderEpoch != -1) {
				t.Errorf("%+v", p)
			}
		}
	}
	if want := []int16{42, 42, 0, 3, 3}; !slices.Equal(codes, want) {
		t.Errorf("codes %v, want %v", codes, want)
	}
	req.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: "t", Partitions: []kmsg.ListOffsetsRequestTopicPartition{part(0, 1000)}}}
	if p := ask[*kmsg.ListOffsetsResponse](c, req, 4).Topics[0].Partitions[0]; p.ErrorCode != 75 {
		t.Errorf("newer epoch: %+v", p)
	}
}
