package rest

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"leat/api"
	"leat/storage/record"
)

// Case 1: null, the empty value, the text null and other text stay four
// different values, for keys too.
func TestNullAndEmpty(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.post(`{"records":[
		{"key":"k1","value":null},{"key":"k2","value_str":""},{"key":"k3","value_str":"null"},{"key":"k4","value_str":"x"},
		{"key":"k5"},{"key":"k6","value_b64":""},{"key":"k7","value": {} },{"key":"","value":1},{"key":null,"value":2},
		{"key_str":"null","value":3},{"key_json":null,"value":4},{"key_json":{"a":1},"value":5},{"key_b64":"/w==","value_b64":"/w=="}]}`).want(t, 200, "")
	d.do("GET", fetchAll, nil).want(t, 200, "").contains(t,
		`"key_str":"k1","value":null,`, `"key_str":"k2","value_str":"",`, `"key_str":"k3","value_str":"null",`, `"key_str":"k4","value_str":"x",`,
		`"key_str":"k5","value":null,`, `"key_str":"k6","value_str":"",`, `"key_str":"k7","value":{},`, `"key_str":"","value":1,`, `"key":null,"value":2,`,
		`"key_str":"null","value":3,`, `"key":null,"value":4,`, `"key":{"a":1},"value":5,`, `"key_b64":"/w==","value_b64":"/w==",`)
	d.do("GET", fetchAll, nil, "Accept", mediaNDJSON).want(t, 200, "").contains(t, `"value":null,`, `"value_str":"",`, `"value_str":"null",`)
	d.do("GET", fetchAll+"&as=base64", nil).contains(t, `"value":null,`, `"value_b64":"",`, `"value_b64":"bnVsbA==",`, `"key":null`)
	d.do("GET", fetchAll+"&as=json", nil).contains(t, `"value":null,`, `"value":"",`, `"value":"null",`, `"value":"x",`, `"value":"`+"\uFFFD"+`"`)
	d.do("GET", fetchAll+"&as=string", nil).contains(t, `"value":null,`, `"value_str":"null"`, `"value_str":"{}"`, `"value_str":"`+"\uFFFD"+`"`)
}

// Case 11: JSON values come back byte for byte: big numbers, escapes, space,
// duplicate names.
func TestValuesByteForByte(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for i, value := range []string{
		`{"id":73314510714175488,"f":1.10}`, `1e300`, `-0`, `"\u0041\/"`, `[ 1 ,  2 ]`, `{"a":1,"a":2}`, `"ü€😀"`, "{\n\t\"a\": 1\r\n}", `true`, `""`,
		`"` + strings.Repeat("x", 100_000) + `"`,
	} {
		d.post(`[{"value":`+value+`}]`).want(t, 200, "")
		at := fmt.Sprintf("/v1/topics/t/partitions/0/records?max_records=1&offset=%d", i)
		d.do("GET", at, nil).want(t, 200, "").contains(t, `"value":`+value+`,"headers"`)
		lines := d.do("GET", at, nil, "Accept", mediaNDJSON).want(t, 200, "")
		if !bytes.HasPrefix(lines.body, fmt.Appendf(nil, `{"partition":0,"offset":%d,`, i)) || bytes.Count(lines.body, []byte("\n")) != 1 {
			t.Errorf("%s is not one line: %.200s", value, lines.body)
		}
	}
	d.do("GET", "/v1/topics/t/partitions/0/records?offset=7", nil, "Accept", mediaNDJSON).contains(t, `"value_str":"{\n\t\"a\": 1\r\n}"`)
	d.post(`[{"value_str":" null "},{"value":1e400}]`)
	d.do("GET", "/v1/topics/t/partitions/0/records?offset=11", nil, "Accept", mediaNDJSON).contains(t, `"value_str":" null "`, `"value":1e400,`)
}

// Every form of a record's members is stored and told of.
func TestRecordMembers(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 3)
	a := d.post(`{"records":[
		{"partition":2,"timestamp":1767323045000,"value":1,"headers":{"b":"1","a":null}},
		{"partition":2,"timestamp":"2026-01-02T03:04:05.5Z","value":2,"headers":[{"name":"x","value":"1"},{"name":"x","value_b64":"/w=="},{"name":"y","value":null},{"name":"z"}]},
		{"partition":2,"timestamp":"1767323045001","v\u0061lue":3}]}`).want(t, 200, "")
	a.contains(t, `{"count":3,"receipts":[{"partition":2,"offset":0,"timestamp":1767323045000},{"partition":2,"offset":1,"timestamp":1767323045500},{"partition":2,"offset":2,"timestamp":1767323045001}]}`)
	d.do("GET", "/v1/topics/t/partitions/2/records?offset=0", nil).want(t, 200, "").contains(t,
		`"value":1,"headers":[{"name":"b","value":"1"},{"name":"a","value":null}]`,
		`"value":2,"headers":[{"name":"x","value":"1"},{"name":"x","value_b64":"/w=="},{"name":"y","value":null},{"name":"z","value":null}]`,
		`"timestamp":1767323045001,"key":null,"value":3,"headers":[]`)
	d.do("POST", "/v1/topics/t/partitions/1/records", `[{"value":1},{"partition":1,"value":2}]`, "Content-Type", mediaJSON).want(t, 200, "").contains(t, `"partition":1,"offset":1`)
	d.do("POST", "/v1/topics/t/partitions/1/records", "a\nb", "Content-Type", mediaNDJSON, "X", "").want(t, 400, "malformed_body")
	d.do("POST", "/v1/topics/t/partitions/1/records?value=line", "a\nb", "Content-Type", mediaNDJSON).want(t, 200, "").contains(t, `"base_offset":2,"last_offset":3`)
	d.do("POST", produceT, "the value", "Content-Type", "application/octet-stream; x=y", "Record-Key", "k", "Record-Header-Trace-Id", "7", "Record-Header-A", "b").want(t, 200, "")
	d.do("POST", "/v1/topics/t/partitions/0/records", "\x00\xff", "Content-Type", mediaBytes, "Record-Key-B64", "AA==").want(t, 200, "")
	d.do("GET", fetchAll, nil).contains(t, `"key_str":"\u0000","value_b64":"AP8=","headers":[]`)
}

// A line is a value as it stands: CR is part of it, an empty line is an empty
// value, a last line without LF counts.
func TestValueLine(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	line := produceT + "?value=line"
	d.do("POST", line, "one\r\n\n{\"a\":1}\nlast", "Content-Type", mediaNDJSON).want(t, 200, "").
		contains(t, `{"count":4,"partitions":[{"partition":0,"base_offset":0,"last_offset":3,"count":4}]}`)
	d.do("POST", line+"&receipts=full", "x\ny\n", "Content-Type", mediaJSONL).want(t, 200, "").contains(t, `"receipts":[{"partition":0,"offset":4,"timestamp":`)
	d.do("POST", line+"&receipts=none", "\n", "Content-Type", mediaNDJSON).want(t, 200, "").contains(t, `{"count":1}`)
	d.do("GET", fetchAll, nil).contains(t, `"value_str":"one\r"`, `"offset":1,`, `"value_str":"",`, `"value":{"a":1}`, `"value_str":"last"`, `"value_str":"y"`)
	if got := d.end("t"); got != 7 {
		t.Errorf("end %d", got)
	}
	long := strings.Repeat("x", 2<<20)
	a := d.do("POST", line, "ok\n"+long+"\nok\n", "Content-Type", mediaNDJSON).want(t, 422, "record_too_large")
	if e := a.problem(t).Errors[0]; *e.Index != 1 || e.Line != 2 {
		t.Errorf("place: %s", a.body)
	}
	d.do("POST", line, long, "Content-Type", mediaNDJSON).want(t, 413, "record_too_large")
	if got := d.end("t"); got != 7 {
		t.Errorf("a refused request moved the end to %d", got)
	}
}

// acks choose between 200 and 202; receipts come full, in summary or not.
func TestAcksAndReceipts(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	many := "[" + strings.Repeat(`{"value":1},`, 1000) + `{"value":1}]`
	for _, tc := range []struct {
		query, body string
		status      int
		has, lacks  string
	}{
		{"", `[{"value":1}]`, 200, `"receipts":[{`, `"partitions"`},
		{"?acks=all", `[{"value":1}]`, 200, `"receipts"`, ``},
		{"?acks=-1", `[{"value":1}]`, 200, `"receipts"`, ``},
		{"?acks=leader", `[{"value":1}]`, 200, `"receipts"`, ``},
		{"?acks=1", `[{"value":1}]`, 200, `"receipts"`, ``},
		{"?acks=0", `[{"value":1}]`, 202, `{"count":1}`, `"receipts"`},
		{"?acks=none", `[{"value":1}]`, 202, `{"count":1}`, `"receipts"`},
		{"?receipts=summary", `[{"value":1}]`, 200, `"base_offset"`, `"receipts"`},
		{"?receipts=none", `[{"value":1}]`, 200, `{"count":1}`, `"receipts"`},
		{"", many, 200, `"partitions":[{"partition":0,"base_offset":`, `"receipts"`},
		{"?receipts=full", many, 200, `"receipts"`, `"partitions"`},
	} {
		a := d.do("POST", produceT+tc.query, tc.body, "Content-Type", mediaJSON).want(t, tc.status, "").contains(t, tc.has)
		if tc.lacks != "" && bytes.Contains(a.body, []byte(tc.lacks)) {
			t.Errorf("%s: has %s", tc.query, tc.lacks)
		}
	}
	d.do("POST", produceT, `[{"value":1}]`, "Content-Type", mediaJSON, "Prefer", "return=minimal").want(t, 200, "").contains(t, `"partitions"`)
}

// One cause for all is the cause's own status; a 200 never hides a failure.
func TestNotEnoughReplicas(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2, "min.insync.replicas", "2")
	a := d.post(`[{"key":"a","value":1},{"key":"b","value":1},{"key":"c","value":1}]`).want(t, 503, "not_enough_replicas")
	if p := a.problem(t); !p.Retriable || a.Header.Get("Retry-After") == "" || p.Topic != "t" {
		t.Errorf("problem: %s", a.body)
	}
	d.do("POST", produceT+"?value=line", "a\n", "Content-Type", mediaNDJSON).want(t, 503, "not_enough_replicas")
	if got := d.end("t"); got != 0 {
		t.Errorf("end %d", got)
	}
	d.do("POST", produceT+"?acks=1", `[{"value":1}]`, "Content-Type", mediaJSON).want(t, 200, "")
}

// Case 64: with auto-create off an unknown topic is a 404 at once.
func TestUnknownTopic(t *testing.T) {
	d := openDoor(t, func(s *setup) { s.configs["auto.create.topics.enable"] = "false" })
	began := time.Now()
	d.post(`[{"value":1}]`).want(t, 404, "unknown_topic")
	d.do("POST", produceT+"?value=line", "a\n", "Content-Type", mediaNDJSON).want(t, 404, "unknown_topic")
	d.do("POST", produceT0, `[{"value":1}]`, "Content-Type", mediaJSON).want(t, 404, "unknown_topic")
	d.do("GET", fetchAll, nil).want(t, 404, "unknown_topic")
	if took := time.Since(began); took > time.Second {
		t.Errorf("took %v", took)
	}
}

// An unknown topic is made where auto-create is on, by any media type.
func TestAutoCreate(t *testing.T) {
	d := openDoor(t)
	d.post(`[{"value":1}]`).want(t, 200, "")
	d.do("POST", "/v1/topics/u/records?value=line", "a\n", "Content-Type", mediaNDJSON).want(t, 200, "")
	d.do("POST", "/v1/topics/v/records", "a", "Content-Type", mediaBytes).want(t, 200, "")
}

// A request that is refused makes no topic, whatever is wrong with it: also what
// only the topic's configs and partitions say.
func TestNoTopicForBadRecords(t *testing.T) {
	d := openDoor(t)
	big := strings.Repeat("x", 1<<20)
	broken := batch(t, "a")
	broken[len(broken)-1]++
	for _, tc := range []struct {
		name, path, media, body string
		status                  int
		code                    string
	}{
		{"json", "records", mediaJSON, `[{"value":1},{"valu":1}]`, 400, "malformed_body"},
		{"large", "records", mediaJSON, `[{"value":1},{"value_str":"` + big + `"}]`, 422, "record_too_large"},
		{"partition", "records", mediaJSON, `[{"value":1,"partition":99}]`, 404, "unknown_partition"},
		{"path", "partitions/99/records", mediaJSON, `[{"value":1}]`, 404, "unknown_partition"},
		{"late", "records", mediaJSON, `[{"value":1,"timestamp":"2999-01-01T00:00:00Z"}]`, 422, "invalid_timestamp"},
		{"bytes", "records", mediaBytes, big, 413, "record_too_large"},
		{"event", "records", api.MediaEvent, `{"specversion":"1.0","id":"1","source":"/","type":"t","data":"` + big + `"}`, 413, "record_too_large"},
		{"line", "records?value=line", mediaNDJSON, "a\n" + big + "\n", 422, "record_too_large"},
		{"lines", "partitions/0/records?value=line", mediaNDJSON, "a\n" + big + "\n", 422, "record_too_large"},
		{"batch", "partitions/0/records", mediaBatch, string(broken), 400, "corrupt_batch"},
		{"batches", "partitions/99/records", mediaBatch, string(batch(t, "a")), 404, "unknown_partition"},
	} {
		topic := "/v1/topics/bad-" + tc.name
		d.do("POST", topic+"/"+tc.path, tc.body, "Content-Type", tc.media).want(t, tc.status, tc.code)
		d.do("GET", topic, nil).want(t, 404, "unknown_topic")
	}
	for name, first := range map[string]string{"syntax": "{\n", "large": `{"value_str":"` + big + `"}` + "\n", "blank": "\n\n"} {
		topic := "/v1/topics/stream-" + name
		a := d.raw(uploadOf("stream-"+name, first))
		if name == "blank" {
			a.want(t, 200, "").contains(t, `"count":0`)
		} else if a.StatusCode < 400 {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
		d.do("GET", topic, nil).want(t, 404, "unknown_topic")
	}
	// What stands before the bad line of a stream is good.
	d.raw(uploadOf("made", "{\"value\":1}\n{\n")).want(t, 200, "").contains(t, `"count":1`)
	d.do("GET", "/v1/topics/made", nil).want(t, 200, "")
}

// uploadOf is a stream of lines, good or bad, as a client sends it.
func uploadOf(topic, lines string) string {
	return fmt.Sprintf("POST /v1/topics/%s/records?stream=true HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		topic, mediaNDJSON, len(lines), lines)
}

func batch(t testing.TB, values ...string) []byte {
	t.Helper()
	var b record.Builder
	b.Reset(record.Options{})
	for _, v := range values {
		b.Add(time.Now().UnixMilli(), []byte("k"), []byte(v), nil)
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(out)
}

// Raw batches go in as they are and are all checked before the first append.
func TestRawBatchesIn(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	send := func(parts ...[]byte) *answer {
		return d.do("POST", produceT0, bytes.Join(parts, nil), "Content-Type", mediaBatch)
	}
	send(batch(t, "a", "b"), batch(t, "c")).want(t, 200, "").contains(t,
		`{"count":3,"partitions":[{"partition":0,"base_offset":0,"last_offset":1,"count":2},{"partition":0,"base_offset":2,"last_offset":2,"count":1}]}`)
	good := batch(t, "x")
	edit := func(at int, to byte) []byte { b := batch(t, "x"); b[at] = to; return b }
	for _, tc := range []struct {
		name   string
		bad    []byte
		status int
		code   string
	}{
		{"crc", edit(len(good)-1, 'y'), 400, "corrupt_batch"},
		{"magic", edit(16, 1), 400, "corrupt_batch"},
		{"length", edit(8, 0xff), 400, "corrupt_batch"},
		{"cut", good[:len(good)-1], 400, "corrupt_batch"},
		{"garbage", []byte("hello"), 400, "corrupt_batch"},
		{"base offset", edit(7, 9), 422, "invalid_record"},
		{"too large", batch(t, strings.Repeat("x", 2<<20)), 413, "record_too_large"},
	} {
		for _, parts := range [][][]byte{{tc.bad}, {batch(t, "x"), tc.bad}} {
			a := send(parts...)
			if p := a.problem(t); a.StatusCode != tc.status || p.Code != tc.code {
				t.Errorf("%s of %d: %d %s", tc.name, len(parts), a.StatusCode, a.body)
			}
		}
	}
	if got := d.end("t"); got != 3 {
		t.Errorf("end %d", got)
	}
	d.do("POST", produceT0+"?receipts=full", good, "Content-Type", mediaBatch).want(t, 400, "invalid_parameter")
	d.do("GET", fetchAll, nil).contains(t, `"value_str":"a"`, `"value_str":"c"`)
}

// What fetch gives can be produced again, in keys, values and headers.
func TestRoundTrip(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.topic("u", 1)
	d.post(`[{"key":"a","value":{"x":[1.50]}},{"key_b64":"/w==","value_b64":"/w=="},{"value":null,"headers":{"h":"v"}}]`).want(t, 200, "")
	read := func(topic string) string {
		var got struct {
			Records []map[string]any `json:"records"`
		}
		a := d.do("GET", "/v1/topics/"+topic+"/partitions/0/records?from=earliest", nil).want(t, 200, "")
		if err := json.Unmarshal(a.body, &got); err != nil {
			t.Fatal(err)
		}
		for _, r := range got.Records {
			delete(r, "offset")
		}
		text, err := json.Marshal(got.Records, json.Deterministic(true))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	first := read("t")
	d.do("POST", "/v1/topics/u/records", first, "Content-Type", mediaJSON).want(t, 200, "")
	if again := read("u"); again != first {
		t.Errorf("read %s, wrote %s, read %s", first, first, again)
	}
}
