package rest

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"leat/api"
)

// tried sends a produce and checks the answer's status.
func (d *door) tried(path, media, body string, headers ...string) *answer {
	d.t.Helper()
	return d.do("POST", path, body, append([]string{"Content-Type", media}, headers...)...)
}

// wantReplay sends the same produce again and proves that the answer is the first
// one, to the byte.
func (d *door) wantReplay(first *answer, path, media, body string, headers ...string) {
	d.t.Helper()
	again := d.tried(path, media, body, headers...).want(d.t, first.StatusCode, "")
	if !bytes.Equal(again.body, first.body) {
		d.t.Errorf("%s: sent again: %s, first: %s", path, again.body, first.body)
	}
	if again.Header.Get("Idempotency-Replayed") != "true" || first.Header.Get("Idempotency-Replayed") != "" {
		d.t.Errorf("%s: Idempotency-Replayed %q, first %q", path, again.Header.Get("Idempotency-Replayed"), first.Header.Get("Idempotency-Replayed"))
	}
}

// TestIdempotencyKey proves for every media type, form of receipts and acks that a
// keyed request that is sent again writes nothing and gets its first answer, that
// another body under its key is refused, and that its key is free in another
// topic.
func TestIdempotencyKey(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 4, "max.message.bytes", "2000")
	d.topic("u", 4)
	const event = `{"specversion":"1.0","id":"42","source":"/s","type":"t","data":{"a":1}}`
	waiting := strings.NewReplacer("acks=0", "acks=all", "acks=1", "acks=all")
	var many strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&many, "{\"key\":\"k%d\",\"value\":\"%s\"}\n", i%50, strings.Repeat("x", i%90))
	}
	for i, tc := range []struct {
		path, media, body, other string
		headers                  []string
	}{
		{produceT, mediaJSON, `[{"value":1},{"key":"a","value":2},{"value":3,"timestamp":1767323045000}]`, `[{"value":2}]`, nil},
		{produceT, mediaJSON, `[{"value":1,"partition":3},{"value":1,"partition":2}]`, `[{"value":1,"partition":1}]`, nil},
		{produceT + "?receipts=summary", mediaNDJSON, many.String(), `{"value":1}`, nil},
		{produceT + "?receipts=full", mediaNDJSON, many.String(), many.String() + `{"value":1}`, nil},
		{produceT, mediaNDJSON, many.String(), "x", nil},
		{produceT + "?receipts=none", mediaJSON, `[{"value":1}]`, `[{"value":2}]`, nil},
		{produceT + "?acks=1", mediaJSON, `[{"value":1}]`, `[{"value":2}]`, nil},
		{produceT + "?acks=0", mediaJSON, `[{"value":1}]`, `[{"value":2}]`, nil},
		{produceT + "?value=line", mediaNDJSON, strings.Repeat("a line\n", 900), "a line\n", nil},
		{produceT + "?value=line&receipts=full", mediaNDJSON, "a\n\nb", "a\nb", nil},
		{produceT0 + "?value=line", mediaNDJSON, "a\nb\n", "a\nb", nil},
		{produceT0, mediaJSON, `[{"value":1}]`, `[{"value":1} ]`, nil},
		{produceT, mediaBytes, "one value", "another", []string{"Record-Key", "k", "Record-Header-A", "1"}},
		{produceT0, mediaBytes, "one value", "another", nil},
		{produceT + "?value=line&key_pointer=/k", mediaNDJSON, "{\"k\":\"a\"}\n{\"k\":\"b\"}\n", "{\"k\":\"a\"}\n", nil},
		{produceT + "?raw=true", "application/x-anything", "one value", "another", nil},
		{produceT, api.MediaEvent, event, strings.Replace(event, "42", "43", 1), nil},
		{produceT, api.MediaEventBatch, "[" + event + "," + event + "]", "[" + event + "]", nil},
		{produceT, "text/plain", "data", "other data", []string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/s", "Ce-Type", "t"}},
	} {
		key := fmt.Sprintf("request-%d", i)
		headers := append([]string{"Idempotency-Key", key}, tc.headers...)
		first := d.tried(tc.path, tc.media, tc.body, headers...)
		if first.StatusCode/100 != 2 {
			t.Fatalf("%s: %d %s", tc.path, first.StatusCode, first.body)
		}
		// Who asks for acks=all waits until it is committed, and the end stands.
		if a := d.tried(waiting.Replace(tc.path), tc.media, tc.body, headers...); a.StatusCode/100 != 2 {
			t.Fatalf("%s: %d %s", tc.path, a.StatusCode, a.body)
		}
		end := d.end("t")
		d.wantReplay(first, tc.path, tc.media, tc.body, headers...)
		d.wantReplay(first, tc.path, tc.media, tc.body, headers...)
		if status := d.tried(tc.path, tc.media, tc.other, headers...); tc.other != "x" {
			p := status.want(t, 422, "idempotency_key_reused").problem(t)
			if p.Retriable {
				t.Errorf("%s: another body is said to be retriable", tc.path)
			}
		}
		if got := d.end("t"); got != end {
			t.Errorf("%s: sent again it moved the end from %d to %d", tc.path, end, got)
		}
		d.tried(strings.Replace(tc.path, "/t/", "/u/", 1), tc.media, tc.body, headers...).want(t, first.StatusCode, "")
	}
}

// TestIdempotencyDecides proves what makes a request another one under its key:
// all that decides about the records, and nothing else.
func TestIdempotencyDecides(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	send := func(path string, headers ...string) *answer {
		return d.do("POST", path, `{"value":1}`, append([]string{"Idempotency-Key", "the-same-key"}, headers...)...)
	}
	send(produceT0, "Content-Type", mediaBytes, "Record-Key", "a", "Record-Header-X", "1").want(t, 200, "")
	for _, tc := range []struct {
		path    string
		headers []string
		same    bool
	}{
		{produceT0 + "?receipts=none&acks=1&timeout_ms=5", []string{"Content-Type", mediaBytes, "Record-Key", "a", "Record-Header-X", "1"}, true},
		{produceT0, []string{"Content-Type", mediaBytes, "Record-Key", "a", "Record-Header-X", "1", "X-Other", "2"}, true},
		{produceT0, []string{"Content-Type", mediaBytes, "Record-Key", "b", "Record-Header-X", "1"}, false},
		{produceT0, []string{"Content-Type", mediaBytes, "Record-Key", "a", "Record-Header-X", "2"}, false},
		{produceT0, []string{"Content-Type", mediaBytes, "Record-Key", "a", "Record-Header-Y", "1"}, false},
		{produceT0, []string{"Content-Type", mediaBytes, "Record-Key-B64", "YQ==", "Record-Header-X", "1"}, false},
		{produceT0, []string{"Content-Type", mediaNDJSON}, false},
		{produceT0 + "?value=line", []string{"Content-Type", mediaNDJSON}, false},
		{produceT0 + "?value=line&key_pointer=/value", []string{"Content-Type", mediaNDJSON}, false},
		{produceT0 + "?raw=true", []string{"Content-Type", mediaBytes, "Record-Key", "a", "Record-Header-X", "1"}, false},
		{produceT, []string{"Content-Type", mediaBytes, "Record-Key", "a", "Record-Header-X", "1"}, false},
		{"/v1/topics/t/partitions/1/records", []string{"Content-Type", mediaBytes, "Record-Key", "a", "Record-Header-X", "1"}, false},
	} {
		switch a := send(tc.path, tc.headers...); {
		case tc.same && (a.StatusCode != http.StatusOK || a.Header.Get("Idempotency-Replayed") != "true"):
			t.Errorf("%s %q: %d %s", tc.path, tc.headers, a.StatusCode, a.body)
		case !tc.same:
			a.want(t, 422, "idempotency_key_reused")
		}
	}
	if end := d.end("t"); end != 1 {
		t.Errorf("%d records", end)
	}
}

// TestIdempotencyCoding proves that it is the decoded body that makes a request the
// same.
func TestIdempotencyCoding(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	const body = `[{"value":1}]`
	first := d.tried(produceT, mediaJSON, body, "Idempotency-Key", "the-same-key").want(t, 200, "")
	var coded bytes.Buffer
	w := gzip.NewWriter(&coded)
	if _, err := w.Write([]byte(body)); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	d.wantReplay(first, produceT, mediaJSON, coded.String(), "Idempotency-Key", "the-same-key", "Content-Encoding", "gzip")
	d.wantReplay(first, produceT, mediaJSON+"; charset=utf-8", body, "Idempotency-Key", "the-same-key")
}

// TestIdempotencyKeyUnused proves that a request that is refused leaves its key
// to another one.
func TestIdempotencyKeyUnused(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	headers := []string{"Idempotency-Key", "12345678"}
	d.tried(produceT, mediaJSON, `[{"valu":1}]`, headers...).want(t, 400, "malformed_body")
	d.tried(produceT, mediaJSON, `[]`, headers...).want(t, 400, "empty_body")
	d.tried("/v1/topics/t/partitions/7/records", mediaJSON, `[{"value":1}]`, headers...).want(t, 404, "unknown_partition")
	first := d.tried(produceT, mediaJSON, `[{"value":2}]`, headers...).want(t, 200, "")
	d.wantReplay(first, produceT, mediaJSON, `[{"value":2}]`, headers...)
}

// TestIdempotencyGrowth proves that a request that was tried before its topic got
// more partitions is still known, and that one that was tried after is, too.
func TestIdempotencyGrowth(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, "{\"key\":\"%d\",\"value\":1}\n{\"value\":1}\n", i)
	}
	send := func(key string) *answer {
		return d.tried(produceT+"?receipts=full", mediaNDJSON, b.String(), "Idempotency-Key", key).want(t, 200, "")
	}
	before := send("before-it-grew")
	d.addPartitions(7)
	after := send("after-it-grew")
	d.addPartitions(9)
	d.wantReplay(before, produceT+"?receipts=full", mediaNDJSON, b.String(), "Idempotency-Key", "before-it-grew")
	d.wantReplay(after, produceT+"?receipts=full", mediaNDJSON, b.String(), "Idempotency-Key", "after-it-grew")
	if end := d.end("t"); end != 800 {
		t.Errorf("%d records", end)
	}
}

// TestIdempotencyHeaders proves that headers that are no key or no producer's
// sequence are refused, each named, and that nothing is written then.
func TestIdempotencyHeaders(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for _, tc := range []struct {
		path, parameter string
		headers         []string
	}{
		{produceT, "Idempotency-Key", []string{"Idempotency-Key", "1234567"}},
		{produceT, "Idempotency-Key", []string{"Idempotency-Key", ""}},
		{produceT, "Idempotency-Key", []string{"Idempotency-Key", strings.Repeat("x", 129)}},
		{produceT, "Idempotency-Key", []string{"Idempotency-Key", "1234 5678"}},
		{produceT, "Idempotency-Key", []string{"Idempotency-Key", "12345678\u00e9"}},
		{produceT, "Idempotency-Key", []string{"Idempotency-Key", "12345678", "Idempotency-Key", "12345678"}},
		{produceT0, "Idempotency-Key", []string{"Idempotency-Key", "12345678", "Producer-Id", "1", "Producer-Epoch", "0", "Producer-Seq", "0"}},
		{produceT, "Producer-Id", []string{"Producer-Id", "1", "Producer-Epoch", "0", "Producer-Seq", "0"}},
		{produceT0, "Producer-Id", []string{"Producer-Epoch", "0", "Producer-Seq", "0"}},
		{produceT0, "Producer-Epoch", []string{"Producer-Id", "1", "Producer-Seq", "0"}},
		{produceT0, "Producer-Seq", []string{"Producer-Id", "1", "Producer-Epoch", "0"}},
		{produceT0, "Producer-Id", []string{"Producer-Id", "4611686018427387904", "Producer-Epoch", "0", "Producer-Seq", "0"}},
		{produceT0, "Producer-Id", []string{"Producer-Id", "-1", "Producer-Epoch", "0", "Producer-Seq", "0"}},
		{produceT0, "Producer-Epoch", []string{"Producer-Id", "1", "Producer-Epoch", "32768", "Producer-Seq", "0"}},
		{produceT0, "Producer-Seq", []string{"Producer-Id", "1", "Producer-Epoch", "0", "Producer-Seq", "2147483648"}},
		{produceT0, "Producer-Seq", []string{"Producer-Id", "1", "Producer-Epoch", "0", "Producer-Seq", "+1"}},
		{produceT0, "Producer-Seq", []string{"Producer-Id", "1", "Producer-Epoch", "0", "Producer-Seq", ""}},
		{produceT0, "Producer-Seq", []string{"Producer-Id", "1", "Producer-Epoch", "0", "Producer-Seq", "1", "Producer-Seq", "1"}},
	} {
		p := d.tried(tc.path, mediaJSON, `[{"value":1}]`, tc.headers...).want(t, 400, "invalid_request").problem(t)
		if p.Parameter != tc.parameter {
			t.Errorf("%q: names %q", tc.headers, p.Parameter)
		}
	}
	for _, headers := range [][]string{{"Idempotency-Key", "12345678"}, {"Producer-Id", "1", "Producer-Epoch", "0", "Producer-Seq", "0"}} {
		d.tried(produceT0, mediaBatch, "x", headers...).want(t, 400, "invalid_request")
	}
	if end := d.end("t"); end != 0 {
		t.Errorf("%d records", end)
	}
}

// newProducer is a fresh producer id.
func (d *door) newProducer() int64 {
	d.t.Helper()
	var p struct {
		ID    int64 `json:"producer_id"`
		Epoch int16 `json:"producer_epoch"`
	}
	if err := json.Unmarshal(d.do("POST", "/v1/producers", nil).want(d.t, 201, "").body, &p); err != nil || p.Epoch != 0 {
		d.t.Fatalf("%+v, %v", p, err)
	}
	return p.ID
}

// sequenced are the headers of a producer's request.
func sequenced(id int64, epoch, seq int) []string {
	return []string{"Producer-Id", fmt.Sprint(id), "Producer-Epoch", fmt.Sprint(epoch), "Producer-Seq", fmt.Sprint(seq)}
}

// TestProducerSequence proves that a producer's request that is sent again has its
// first offsets and times and is called a duplicate, that gaps, overlaps and old
// epochs are refused, and that a new epoch begins at 0.
func TestProducerSequence(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	id := d.newProducer()
	if other := d.newProducer(); other == id {
		t.Fatal("the same id twice")
	}
	const three = `[{"value":1},{"value":2,"timestamp":1767323045000},{"value":3}]`
	first := d.tried(produceT0, mediaJSON, three, sequenced(id, 0, 0)...).want(t, 200, "").contains(t, `"offset":0`, `"offset":2`)
	if first.Header.Get("Idempotency-Replayed") != "" {
		t.Error("the first one is a replay")
	}
	d.tried(produceT0, mediaJSON, `[{"value":4}]`, sequenced(id, 0, 3)...).want(t, 200, "").contains(t, `"offset":3`)
	again := d.tried(produceT0, mediaJSON, three, sequenced(id, 0, 0)...).want(t, 200, "")
	if want := strings.ReplaceAll(string(first.body), "}", `,"duplicate":true}`); string(again.body) != strings.Replace(want, `]`+`,"duplicate":true}`, "]}", 1) {
		t.Errorf("again: %s, first: %s", again.body, first.body)
	}
	if again.Header.Get("Idempotency-Replayed") != "true" {
		t.Error("sent again it is no replay")
	}
	d.tried(produceT0+"?receipts=summary", mediaJSON, three, sequenced(id, 0, 0)...).want(t, 200, "").
		contains(t, `{"partition":0,"base_offset":0,"last_offset":2,"count":3,"duplicate":true}`)
	d.tried(produceT0+"?acks=0", mediaJSON, three, sequenced(id, 0, 0)...).want(t, 202, "")
	for _, tc := range []struct {
		epoch, seq int
		body, code string
	}{
		{0, 5, `[{"value":1}]`, "out_of_order_sequence"},
		{0, 1, `[{"value":1},{"value":2}]`, "out_of_order_sequence"},
		{0, 0, `[{"value":1}]`, "out_of_order_sequence"},
		{1, 4, `[{"value":1}]`, "out_of_order_sequence"},
	} {
		d.tried(produceT0, mediaJSON, tc.body, sequenced(id, tc.epoch, tc.seq)...).want(t, 409, tc.code)
	}
	d.tried(produceT0, mediaJSON, `[{"value":5}]`, sequenced(id, 1, 0)...).want(t, 200, "").contains(t, `"offset":4`)
	d.tried(produceT0, mediaJSON, `[{"value":4}]`, sequenced(id, 0, 3)...).want(t, 409, "producer_fenced")
	if end := d.end("t"); end != 5 {
		t.Errorf("%d records", end)
	}
}

// TestProducerSequenceBatches proves that a request of several batches goes on in
// its sequence and is known again as a whole, and that one of more than five, of
// which a retry could not be told, is refused with nothing written.
func TestProducerSequenceBatches(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1, "max.message.bytes", "1000")
	id := d.newProducer()
	lines := func(n int) string { return strings.Repeat(strings.Repeat("x", 200)+"\n", n) }
	path := produceT0 + "?value=line"
	d.tried(path, mediaNDJSON, lines(18), sequenced(id, 0, 0)...).want(t, 200, "").contains(t, `"base_offset":16,"last_offset":17`)
	d.tried(path, mediaNDJSON, lines(18), sequenced(id, 0, 0)...).want(t, 200, "").
		contains(t, `"base_offset":0,"last_offset":3,"count":4,"duplicate":true`, `"base_offset":16,"last_offset":17,"count":2,"duplicate":true`)
	d.tried(path, mediaNDJSON, lines(21), sequenced(id, 0, 18)...).want(t, 413, "too_many_batches")
	d.tried(path, mediaNDJSON, lines(1), sequenced(id, 0, 18)...).want(t, 200, "").contains(t, `"base_offset":18`)
	if end := d.end("t"); end != 19 {
		t.Errorf("%d records", end)
	}
}

// TestCreateProducer proves what a request for a producer id may have in its body.
func TestCreateProducer(t *testing.T) {
	d := openDoor(t)
	d.do("POST", "/v1/producers", "{}", "Content-Type", mediaJSON).want(t, 201, "")
	d.do("POST", "/v1/producers", `{"transactional_id":"x"}`, "Content-Type", mediaJSON).want(t, 400, "malformed_body")
	d.do("POST", "/v1/producers", `{`, "Content-Type", mediaJSON).want(t, 400, "malformed_body")
	d.do("POST", "/v1/producers", "{}", "Content-Type", mediaBytes).want(t, 415, "unsupported_media_type")
	d.do("POST", "/v1/producers?x=1", nil).want(t, 400, "invalid_parameter")
	d.do("POST", "/v1/producers", strings.Repeat(" ", 70_000), "Content-Type", mediaJSON).want(t, 413, "request_too_large")
	if d.newProducer() >= 1<<62 {
		t.Error("an id that stands for a key")
	}
}
