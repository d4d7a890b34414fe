package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
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
	zipped := packed(t, body)
	zw, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	s.post(path, typeJSON, string(zipped), "Content-Encoding: gzip")
	s.post(path, typeJSON, string(zw.EncodeAll([]byte(body), nil)), "Content-Encoding: zstd")
	s.post(path, typeJSON, body, "Content-Encoding: identity")
	for _, coding := range []string{"br7", "br", "deflate", "gzip, gzip"} {
		s.do("POST", path, []byte(body), "Content-Type: "+typeJSON, "Content-Encoding: "+coding).refused(415, "unsupported_content_encoding")
	}
	s.do("POST", path, []byte(body), "Content-Type: "+typeJSON, "Content-Encoding: gzip").refused(400, "malformed_body")
	s.do("POST", path, zipped[:len(zipped)-6], "Content-Type: "+typeJSON, "Content-Encoding: gzip").refused(400, "malformed_body")
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
	// What else runs on the machine adds to the share: the least of some spans counts.
	least := 100.0
	for range 3 {
		before, cpu := s.metric("leat_kafka_requests_total", `api="Fetch"`), s.cpu()
		begun = time.Now()
		after(span)
		took := time.Since(begun)
		fetches, used := s.metric("leat_kafka_requests_total", `api="Fetch"`)-before, s.cpu()-cpu
		each := fetches / consumers
		share := 100 * used.Seconds() / took.Seconds() / float64(runtime.NumCPU())
		t.Logf("%d idle consumers: %.1f fetches each in %v, %.2f %% of the processors", consumers, each, took, share)
		// At most one more than the waits that fit, where the span begins right before an answer.
		if most := took.Seconds()/wait.Seconds() + 1; each > most {
			t.Errorf("%.1f fetches from each consumer in %v, want at most %.1f", each, took, most)
		}
		if least = min(least, share); least <= 2 {
			break
		}
	}
	if least > 2 {
		t.Errorf("idle consumers take %.2f %% of the processors, want at most 2", least)
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
