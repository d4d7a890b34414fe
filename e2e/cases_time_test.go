package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// single makes one batch of each record.
func (w *wire) single(topic string, codec kgo.CompressionCodec, times ...int64) {
	w.t.Helper()
	for _, ts := range times {
		w.mustProduce(topic, 0, encode(w.t, codec, values(ts, fmt.Sprint("at ", ts))))
	}
}

// joint makes one batch of all records.
func (w *wire) joint(topic string, codec kgo.CompressionCodec, times ...int64) {
	w.t.Helper()
	var recs []rec
	for _, ts := range times {
		recs = append(recs, rec{ts: ts, value: fmt.Append(nil, "at ", ts)})
	}
	w.mustProduce(topic, 0, encode(w.t, codec, recs))
}

// lookup checks pairs of time and the offset found for it; -1 is none.
func (w *wire) lookup(topic string, pairs ...int64) {
	w.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		offset, ts := w.listOffset(topic, 0, pairs[i])
		if offset != pairs[i+1] || (offset < 0) != (ts < 0) || offset >= 0 && ts < pairs[i] {
			w.t.Errorf("%s: lookup of %d gives offset %d, time %d; want offset %d", topic, pairs[i], offset, ts, pairs[i+1])
		}
	}
}

// TestCase13TimeLookup proves that a lookup between two times gives the later record.
func TestCase13TimeLookup(t *testing.T) {
	s := start(t)
	w := s.wire()
	for _, c := range codecs {
		for name, produce := range map[string]func(string, kgo.CompressionCodec, ...int64){"single": w.single, "joint": w.joint} {
			topic := c.name + "-" + name
			s.createTopic(topic, 1)
			produce(topic, c.codec, 2, 4, 6, 8)
			w.lookup(topic, 0, 0, 1, 0, 2, 0, 3, 1, 4, 1, 5, 2, 6, 2, 7, 3, 8, 3, 9, -1)
			for ts, want := range map[int64]int64{1: 0, 3: 1, 8: 3} {
				f := s.records(topic, 0, fmt.Sprintf("from=ts:%d&max_records=1", ts))
				if len(f.Records) != 1 || f.Records[0].Offset != want {
					t.Errorf("%s: HTTP from=ts:%d gives %+v, want offset %d", topic, ts, f.Records, want)
				}
			}
			if f := s.records(topic, 0, "from=ts:9"); len(f.Records) != 0 || f.Next != 4 {
				t.Errorf("%s: HTTP from=ts:9 gives %+v, want nothing, next offset 4", topic, f)
			}
		}
	}
}

// TestCase15UnorderedTimes proves that a lookup gives the lowest offset whose time is not before the target, however
// the times are ordered: in one batch, in several, across segments, and after restarts of either kind.
func TestCase15UnorderedTimes(t *testing.T) {
	s := start(t)
	w := s.wire()
	check := func() {
		t.Helper()
		for _, topic := range []string{"joint", "single", "segments"} {
			w.lookup(topic, 50, 0, 100, 0, 150, 1, 250, 1, 300, 1, 350, 3, 400, 3, 401, -1)
		}
		w.lookup("many", 1, 1, 500, 500, 998, 998, 5000, 1000, 5001, -1)
	}
	s.createTopic("joint", 1)
	w.joint("joint", kgo.ZstdCompression(), 100, 300, 200, 400)
	s.createTopic("single", 1, "index.interval.bytes=1")
	w.single("single", kgo.NoCompression(), 100, 300, 200, 400)
	s.createTopic("segments", 1, "segment.bytes=1024", "index.interval.bytes=1")
	pad := strings.Repeat("x", 600)
	for _, ts := range []int64{100, 300, 200, 400} {
		w.mustProduce("segments", 0, encode(t, kgo.NoCompression(), values(ts, pad)))
	}
	s.createTopic("many", 1, "segment.bytes=16384", "index.interval.bytes=100")
	for i := range int64(1000) {
		w.mustProduce("many", 0, encode(t, kgo.NoCompression(), values(i, fmt.Sprint(i))))
	}
	w.single("many", kgo.NoCompression(), 5000, 10)
	check()
	s.stop()
	s.restart()
	w = s.wire()
	check()
	s.kill()
	s.restart()
	w = s.wire()
	check()
}

// TestCase17MaxTimestampUnset proves that a batch whose header lacks the largest time gets it, with a right checksum,
// and is found by it.
func TestCase17MaxTimestampUnset(t *testing.T) {
	s := start(t)
	w := s.wire()
	for _, c := range codecs {
		for name, wrong := range map[string]int64{"unset": -1, "too small": 999, "too large": 1 << 40} {
			topic := c.name + "-" + strings.ReplaceAll(name, " ", "-")
			s.createTopic(topic, 1)
			sent := encode(t, c.codec, []rec{{ts: 1000, value: []byte("a")}, {ts: 3000, value: []byte("b")}, {ts: 2000, value: []byte("c")}},
				func(b *kmsg.RecordBatch) { b.MaxTimestamp = wrong })
			w.mustProduce(topic, 0, sent)
			got := mustSplit(t, w.fetchAll(topic, 0, 0)) // with a checksum that fits
			if len(got) != 1 || got[0].maxTS() != 3000 || len(got[0]) != len(sent) {
				t.Errorf("%s: %d batches, largest time %d, want 3000", topic, len(got), got[0].maxTS())
			}
			w.lookup(topic, 1000, 0, 1001, 1, 3000, 1, 3001, -1)
		}
	}
}

// TestCase18MaxTimestamp proves that the offset of the largest time is that of its record, not of its batch's end.
func TestCase18MaxTimestamp(t *testing.T) {
	s := start(t)
	w := s.wire()
	for _, c := range codecs {
		s.createTopic(c.name, 1)
		if offset, ts := w.listOffset(c.name, 0, maxTimestamp); offset != -1 || ts != -1 {
			t.Errorf("%s: an empty partition gives offset %d, time %d", c.name, offset, ts)
		}
		w.joint(c.name, c.codec, 10, 30, 20)
		for range 2 {
			if offset, ts := w.listOffset(c.name, 0, maxTimestamp); offset != 1 || ts != 30 {
				t.Errorf("%s: offset %d, time %d; want 1, 30", c.name, offset, ts)
			}
			w.joint(c.name, c.codec, 5, 30, 6) // the first record of the largest time counts
		}
		if offset, _ := w.listOffset(c.name, 0, latest); offset != 9 {
			t.Errorf("%s: end offset %d, want 9", c.name, offset)
		}
	}
}

// TestCase19Microseconds proves that a time in microseconds is refused over both doors and leaves nothing behind.
func TestCase19Microseconds(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1, "retention.ms=10000", "segment.ms=1000")
	w := s.wire()
	now := time.Now()
	if p := w.produce("t", 0, -1, encode(t, kgo.NoCompression(), values(now.UnixMicro(), "a"))); p.ErrorCode != codeInvalidTimestamp {
		t.Errorf("code %d, want %d", p.ErrorCode, codeInvalidTimestamp)
	}
	mixed := []rec{{ts: now.UnixMilli(), value: []byte("a")}, {ts: now.UnixMicro(), value: []byte("b")}}
	if p := w.produce("t", 0, -1, encode(t, kgo.GzipCompression(), mixed)); p.ErrorCode != codeInvalidTimestamp {
		t.Errorf("one of two records: code %d, want %d", p.ErrorCode, codeInvalidTimestamp)
	}
	body := fmt.Appendf(nil, `[{"value":1,"timestamp":%d}]`, now.UnixMicro())
	s.do("POST", "/v1/topics/t/records", body, "Content-Type: "+typeJSON).refused(422, "invalid_timestamp")
	raw := encode(t, kgo.NoCompression(), values(now.UnixMicro(), "a"))
	s.do("POST", "/v1/topics/t/partitions/0/records", raw, "Content-Type: "+typeBatch).refused(422, "invalid_timestamp")
	if end := w.end("t", 0); end != 0 {
		t.Errorf("end offset %d, want 0", end)
	}
	// Where the broker's clock rules, the producer's does not matter.
	s.createTopic("broker", 1, "message.timestamp.type=LogAppendTime")
	w.mustProduce("broker", 0, encode(t, kgo.NoCompression(), values(now.UnixMicro(), "a")))
	if _, ts := w.listOffset("broker", 0, maxTimestamp); ts < now.UnixMilli() || ts > time.Now().UnixMilli() {
		t.Errorf("time %d is not the broker's", ts)
	}
}
