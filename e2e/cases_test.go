package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestCase01FourValues proves that a null value, an empty one, the word null and a letter stay four different things
// through every door.
func TestCase01FourValues(t *testing.T) {
	needTool(t, "kcat")
	s := start(t)
	s.createTopic("t", 1)
	const path = "/v1/topics/t/partitions/0/records"
	s.post(path, typeJSON, `{"records":[{"key":"k1","value":null},{"key":"k2","value_str":""},{"key":"k3","value_str":"null"},{"key":"k4","value_str":"x"}]}`)
	s.post(path, typeJSON, `{"records":[{"key":"k5"},{"key":"k6","value":"null"},{"key":"k7","value_b64":""},{"value_b64":"bnVsbA=="}]}`)
	out, err := exec.Command("kcat", "-C", "-b", s.Kafka, "-t", "t", "-e", "-q", "-f", "%k %S\n").Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := "k1 -1\nk2 0\nk3 4\nk4 1\nk5 -1\nk6 6\nk7 0\n 4\n"; string(out) != want {
		t.Errorf("kcat: %q, want %q", out, want)
	}
	f := s.records("t", 0, "from=earliest")
	for i, want := range []string{"value=null", `str=""`, `str="null"`, `str="x"`, "value=null", `value="null"`, `str=""`, `str="null"`} {
		got := "value=" + string(f.Records[i].Value)
		if v := f.Records[i].ValueStr; v != nil {
			got = fmt.Sprintf("str=%q", *v)
		}
		if got != want {
			t.Errorf("record %d: %s, want %s", i, got, want)
		}
	}
	if key := string(f.Records[7].Key); key != "null" {
		t.Errorf("a record without key has key %s", key)
	}
	// The command line cannot write a tombstone by accident, only when asked.
	if _, words, code := run(t, "null\n", "produce", "t", "--server", s.Kafka); code != 0 {
		t.Fatal(words)
	}
	if _, words, code := run(t, "gone\n", "produce", "t", "--key-separator", ":", "--tombstone", "--server", s.Kafka); code != 0 {
		t.Fatal(words)
	}
	f = s.records("t", 0, "offset=8")
	if len(f.Records) != 2 || f.Records[0].ValueStr == nil || *f.Records[0].ValueStr != "null" || string(f.Records[1].Value) != "null" {
		t.Errorf("by the command line: %+v", f.Records)
	}
}

// TestCase09ContentEncoding proves that gzip and zstd bodies are stored inflated, and that an unknown coding is 415.
func TestCase09ContentEncoding(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	const path, body = "/v1/topics/t/partitions/0/records", `{"records":[{"value":{"hello":"world"}}]}`
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write([]byte(body)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	zw, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.post(path, typeJSON, zipped.String(), "Content-Encoding: gzip")
	s.post(path, typeJSON, string(zw.EncodeAll([]byte(body), nil)), "Content-Encoding: zstd")
	s.post(path, typeJSON, body, "Content-Encoding: identity")
	for _, coding := range []string{"br7", "br", "deflate", "gzip, gzip"} {
		s.do("POST", path, []byte(body), "Content-Type: "+typeJSON, "Content-Encoding: "+coding).refused(415, "unsupported_content_encoding")
	}
	s.do("POST", path, []byte(body), "Content-Type: "+typeJSON, "Content-Encoding: gzip").refused(400, "malformed_body")
	s.do("POST", path, zipped.Bytes()[:zipped.Len()-6], "Content-Type: "+typeJSON, "Content-Encoding: gzip").refused(400, "malformed_body")
	f := s.records("t", 0, "from=earliest")
	if len(f.Records) != 3 {
		t.Fatalf("%d records, want 3", len(f.Records))
	}
	for _, r := range f.Records {
		if string(r.Value) != `{"hello":"world"}` {
			t.Errorf("value %s", r.Value)
		}
	}
}

// TestCase11Numbers proves that JSON values come back byte for byte: digits beyond 2^53, trailing zeros and spaces.
func TestCase11Numbers(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	all := []string{
		`{"id":73314510714175488,"f":1.10}`, `9007199254740993`, `1e400`, `-0`, `1.0`, `{ "a" : [ 1 , 2 ] }`, `"\u0041"`, `{"a":1,"a":2}`,
	}
	s.post("/v1/topics/t/partitions/0/records", typeJSON, `{"records":[{"value":`+strings.Join(all, `},{"value":`)+`}]}`)
	body := string(s.get("/v1/topics/t/partitions/0/records?from=earliest").body)
	stored := mustSplit(t, s.wire().fetchAll("t", 0, 0))[0].values(t)
	for i, want := range all {
		if !strings.Contains(body, `"value":`+want) {
			t.Errorf("HTTP does not give %s: %s", want, body)
		}
		if stored[i] != want {
			t.Errorf("stored %s, want %s", stored[i], want)
		}
	}
}

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

// TestCase21IdleFetches proves that a fetch at the end waits as long as it was asked to, costs next to nothing while it
// waits, and is woken by the first record.
func TestCase21IdleFetches(t *testing.T) {
	const consumers, wait = 200, 500 * time.Millisecond
	span := 3 * time.Second
	if long() {
		span = 10 * time.Second
	}
	s := start(t)
	s.createTopic("idle", 1)
	// A fetch that is left alone is answered empty, not before its time.
	w := s.wire()
	begun := time.Now()
	if p := w.fetchWait("idle", 0, 0, 1<<20, wait); p.ErrorCode != codeNone || len(p.RecordBatches) != 0 || time.Since(begun) < wait {
		t.Errorf("an idle fetch was answered after %v with code %d, %d bytes", time.Since(begun), p.ErrorCode, len(p.RecordBatches))
	}
	var work sync.WaitGroup
	errs := make(chan error, consumers)
	stop := make(chan struct{})
	for range consumers {
		w := s.wire()
		work.Go(func() {
			for {
				resp, err := w.try(fetchRequest("idle", 0, 0, 1<<20, wait))
				if err != nil {
					errs <- err
					return
				}
				if len(resp.(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches) > 0 {
					return // woken by the record
				}
				select {
				case <-stop:
					errs <- errors.New("no record")
					return
				default:
				}
			}
		})
	}
	eventually(t, "every consumer to wait", func() error {
		if n := s.metric("leat_broker_waiting_fetches"); n < consumers {
			return fmt.Errorf("%v waiting fetches", n)
		}
		return nil
	})
	before, cpu := s.metric("leat_kafka_requests_total", `api="Fetch"`), s.cpu()
	begun = time.Now()
	after(span)
	took := time.Since(begun)
	fetches, used := s.metric("leat_kafka_requests_total", `api="Fetch"`)-before, s.cpu()-cpu
	rate := fetches / consumers / took.Seconds()
	t.Logf("%d idle consumers: %.2f fetches a second each, %.2f %% of a processor", consumers, rate, 100*used.Seconds()/took.Seconds())
	if rate > 2.2 {
		t.Errorf("%.2f fetches a second from each consumer, want at most 2.2", rate)
	}
	if share := used.Seconds() / took.Seconds(); share > 0.10 {
		t.Errorf("idle consumers take %.1f %% of a processor", 100*share)
	}
	w.mustProduce("idle", 0, encode(t, kgo.NoCompression(), values(1, "wake")))
	woken := make(chan struct{})
	go func() { work.Wait(); close(woken) }()
	select {
	case <-woken:
	case <-time.After(patience):
		close(stop)
		t.Error("consumers were not woken")
		work.Wait()
	}
	close(errs)
	for err := range errs {
		t.Fatal(err)
	}
}

// TestCase21Wake proves that a record that comes in the middle of a wait is delivered at once, not at the wait's end.
func TestCase21Wake(t *testing.T) {
	s := start(t)
	s.createTopic("wake", 1)
	reader, writer := s.wire(), s.wire()
	var all []time.Duration
	for i := range int64(21) {
		type result struct {
			n   int
			at  time.Time
			err error
		}
		got := make(chan result, 1)
		go func() {
			resp, err := reader.try(fetchRequest("wake", 0, i, 1<<20, 20*time.Second))
			r := result{at: time.Now(), err: err}
			if err == nil {
				r.n = len(resp.(*kmsg.FetchResponse).Topics[0].Partitions[0].RecordBatches)
			}
			got <- r
		}()
		eventually(t, "the fetch to wait", func() error {
			if n := s.metric("leat_broker_waiting_fetches"); n != 1 {
				return fmt.Errorf("%v waiting fetches", n)
			}
			return nil
		})
		begun := time.Now()
		writer.mustProduce("wake", 0, encode(t, kgo.NoCompression(), values(1, "x")))
		r := <-got
		if r.err != nil || r.n == 0 {
			t.Fatalf("%d bytes, %v", r.n, r.err)
		}
		all = append(all, r.at.Sub(begun))
	}
	if m := median(all); m > 50*time.Millisecond {
		t.Errorf("a record that comes in the middle of a wait arrives after %v (median of %d), want at most 50ms", m, len(all))
	}
}

func median(all []time.Duration) time.Duration {
	sorted := append([]time.Duration(nil), all...)
	for i := range sorted {
		for j := i; j > 0 && sorted[j] < sorted[j-1]; j-- {
			sorted[j], sorted[j-1] = sorted[j-1], sorted[j]
		}
	}
	return sorted[len(sorted)/2]
}

// TestCase23Parameters proves that the parameters of one poll do not stick to the next, also on one connection.
func TestCase23Parameters(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	const path = "/v1/topics/t/partitions/0/records"
	for range 10 {
		s.post(path+"?value=line", typeNDJSON, strings.Repeat("x", 1000)+"\n")
	}
	if f := s.records("t", 0, "offset=0&max_bytes=1&max_records=1"); len(f.Records) != 1 {
		t.Errorf("%d records with max_records=1", len(f.Records))
	}
	if f := s.records("t", 0, "offset=0&max_bytes=2500"); len(f.Records) == 10 || len(f.Records) == 0 {
		t.Errorf("%d records with max_bytes=2500", len(f.Records))
	}
	if f := s.records("t", 0, "offset=0"); len(f.Records) != 10 {
		t.Errorf("%d records without parameters, want all 10", len(f.Records))
	}
	begun := time.Now()
	if f := s.records("t", 0, "offset=10&wait=300ms"); len(f.Records) != 0 || time.Since(begun) < 300*time.Millisecond {
		t.Errorf("wait=300ms was answered after %v with %d records", time.Since(begun), len(f.Records))
	}
	// The default is not to wait.
	if f := s.records("t", 0, "offset=10&wait=30"+"&min_bytes=0"); len(f.Records) != 0 {
		t.Errorf("%d records at the end", len(f.Records))
	}
	begun = time.Now()
	if f := s.records("t", 0, "offset=10"); len(f.Records) != 0 || time.Since(begun) > 5*time.Second {
		t.Errorf("without wait: answered after %v with %d records", time.Since(begun), len(f.Records))
	}
}

// TestCase37TornTail proves that a torn end of the log is cut at start with one line of log: the end offset is that of
// the last whole batch, the next produce gets it, and every record before it is there.
func TestCase37TornTail(t *testing.T) {
	for _, c := range []struct {
		name string
		lost int  // batches that the damage takes
		warn bool // zeros are what preallocation leaves: cut without a warning
		tear func(f *os.File, written int64) error
	}{
		{"five bytes short", 1, true, func(f *os.File, written int64) error { return f.Truncate(written - 5) }},
		{"100 bytes of noise", 0, true, func(f *os.File, written int64) error {
			noise := bytes.Repeat([]byte{0xa5, 0x17, 0xfe, 0x03, 0x99}, 20)
			_, err := f.WriteAt(noise, written)
			return err
		}},
		{"1 MiB of zeros", 0, false, func(f *os.File, written int64) error {
			_, err := f.WriteAt(make([]byte, 1<<20), written)
			return err
		}},
		{"a header without its body", 0, true, func(f *os.File, written int64) error {
			head := encode(t, kgo.NoCompression(), values(1, strings.Repeat("x", 1000)))
			binary.BigEndian.PutUint64(head, 20)
			_, err := f.WriteAt(head[:200], written)
			return err
		}},
		{"a zeroed half of the last batch", 1, true, func(f *os.File, written int64) error {
			_, err := f.WriteAt(make([]byte, 50), written-50)
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const batches, each = 10, 2
			s := start(t)
			s.createTopic("t", 1)
			w := s.wire()
			for i := range batches {
				w.mustProduce("t", 0, encode(t, kgo.NoCompression(), values(1, strings.Repeat("a", 100), fmt.Sprint("batch ", i))))
			}
			s.kill()
			name := s.onlyLog()
			file, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var written int64
			for _, b := range stored(t, file) {
				written += int64(len(b))
			}
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Truncate(written); err != nil { // without what was preallocated
				t.Fatal(err)
			}
			if err := errors.Join(c.tear(f, written), f.Close()); err != nil {
				t.Fatal(err)
			}
			s.restart()
			w = s.wire()
			whole := int64((batches - c.lost) * each)
			if end := w.end("t", 0); end != whole {
				t.Fatalf("end offset %d, want %d", end, whole)
			}
			words := s.stderr.String()
			if strings.Count(words, "log was recovered") != 1 || strings.Count(words, "level=WARN") == 1 != c.warn {
				t.Errorf("want one line on the recovery, as a warning: %v:\n%s", c.warn, words)
			}
			if base := w.mustProduce("t", 0, encode(t, kgo.NoCompression(), values(1, "next"))); base != whole {
				t.Errorf("the next produce got offset %d, want %d", base, whole)
			}
			got := mustSplit(t, w.fetchAll("t", 0, 0))
			if len(got) != batches-c.lost+1 {
				t.Errorf("%d batches, want %d", len(got), batches-c.lost+1)
			}
			for i, b := range got[:batches-c.lost] {
				if v := b.values(t); v[1] != fmt.Sprint("batch ", i) {
					t.Errorf("batch %d holds %q", i, v[1])
				}
			}
			s.stop()
			s.restart()
			if end := s.wire().end("t", 0); end != whole+1 || strings.Contains(s.stderr.String(), "level=WARN") {
				t.Errorf("after a clean stop: end offset %d, want %d:\n%s", end, whole+1, s.stderr)
			}
		})
	}
}
