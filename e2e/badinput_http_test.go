package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// badRequest is a request that must be refused, with the answer it gets.
type badRequest struct {
	name   string
	method string
	path   string
	media  string
	body   string
	status int
	code   string
}

// refuseAll sends each request, checks its answer, and that the end offsets of the topic stay as they are.
func (s *server) refuseAll(topic string, partitions int32, requests []badRequest) {
	s.t.Helper()
	w := s.wire()
	ends := func() (all []int64) {
		for p := range partitions {
			all = append(all, w.end(topic, p))
		}
		return all
	}
	before := fmt.Sprint(ends())
	for _, c := range requests {
		var headers []string
		if c.media != "" {
			headers = append(headers, "Content-Type: "+c.media)
		}
		var body []byte
		if c.body != "" || c.method == "POST" {
			body = []byte(c.body)
		}
		begun := time.Now()
		a := s.do(c.method, c.path, body, headers...)
		if _, err := a.asProblem(c.status, c.code); err != nil {
			s.t.Errorf("%s: %s %s: %v", c.name, c.method, clip(c.path), err)
		}
		if took := time.Since(begun); took > time.Second {
			s.t.Errorf("%s: answered after %v", c.name, took)
		}
		if after := fmt.Sprint(ends()); after != before {
			s.t.Errorf("%s: the end offsets went from %s to %s", c.name, before, after)
			before = after
		}
	}
}

// TestBadBodies proves that every bad body gets its own problem, and that nothing of it is written, also not the good
// records before the bad one.
func TestBadBodies(t *testing.T) {
	s := start(t)
	s.createTopic("t", 2, "max.message.bytes=10000")
	s.createTopic("two", 1, "min.insync.replicas=2")
	const path, one = "/v1/topics/t/records", "/v1/topics/t/partitions/0/records"
	big := strings.Repeat("x", 10_000)
	batch := encode(t, kgo.NoCompression(), values(1, "a", "b"))
	edited := func(at int, to ...byte) string {
		b := append([]byte(nil), batch...)
		copy(b[at:], to)
		return string(b)
	}
	lies := append([]byte(nil), batch...)
	lies[atCount+3]++
	sum(lies)
	s.refuseAll("t", 2, []badRequest{
		{"empty JSON body", "POST", path, typeJSON, "", 400, "empty_body"},
		{"empty NDJSON body", "POST", path, typeNDJSON, "", 400, "empty_body"},
		{"empty bytes", "POST", path, typeBytes, "", 400, "empty_body"},
		{"empty batches", "POST", one, typeBatch, "", 400, "empty_body"},
		{"no lines", "POST", path + "?value=line", typeNDJSON, "", 400, "empty_body"},
		{"no records", "POST", path, typeJSON, `{"records":[]}`, 400, "empty_body"},
		{"an empty array", "POST", path, typeJSON, `[]`, 400, "empty_body"},
		{"an object without records", "POST", path, typeJSON, `{}`, 400, "malformed_body"},
		{"blank lines", "POST", path, typeNDJSON, "\n\n", 400, "empty_body"},
		{"a string", "POST", path, typeJSON, `"hello"`, 400, "malformed_body"},
		{"raw values in an array", "POST", path, typeJSON, `["a","b"]`, 400, "malformed_body"},
		{"cut JSON", "POST", path, typeJSON, `{"records":[{"value":1}`, 400, "malformed_body"},
		{"more after the JSON", "POST", path, typeJSON, `{"records":[{"value":1}]} x`, 400, "malformed_body"},
		{"= for :", "POST", path, typeJSON, `{"records":[{"value":1},{"key"="a"}]}`, 400, "malformed_body"},
		{"unknown member of a record", "POST", path, typeJSON, `{"records":[{"value":1},{"key":"a","valu":1}]}`, 400, "malformed_body"},
		{"unknown member beside records", "POST", path, typeJSON, `{"records":[{"value":1}],"topic":"x"}`, 400, "malformed_body"},
		{"two values", "POST", path, typeJSON, `{"records":[{"value":1,"value_str":"1"}]}`, 400, "malformed_body"},
		{"a member twice", "POST", path, typeJSON, `{"records":[{"value":1,"value":2}]}`, 400, "malformed_body"},
		{"bad base64", "POST", path, typeJSON, `{"records":[{"value_b64":"***"}]}`, 400, "malformed_body"},
		{"a key that is a number", "POST", path, typeJSON, `{"records":[{"key":1}]}`, 400, "malformed_body"},
		{"a time that is none", "POST", path, typeJSON, `{"records":[{"value":1,"timestamp":"soon"}]}`, 400, "malformed_body"},
		{"bytes that are no UTF-8", "POST", path, typeJSON, "{\"records\":[{\"value_str\":\"\xff\xfe\"}]}", 400, "malformed_body"},
		{"65 arrays in one another", "POST", path, typeJSON, `{"records":[{"value":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + `}]}`, 400, "malformed_body"},
		{"a bad line among good ones", "POST", path, typeNDJSON, "{\"value\":1}\n{\"value\":\n{\"value\":3}\n", 400, "malformed_body"},
		{"a cut last line", "POST", path, typeNDJSON, "{\"value\":1}\n{\"value\":2", 400, "malformed_body"},
		{"text in JSON", "POST", path, typeJSON, "hello", 400, "malformed_body"},
		{"gzip without saying so", "POST", path, typeJSON, "\x1f\x8b\x08\x00", 400, "malformed_body"},
		{"the only record too large", "POST", path, typeJSON, `{"records":[{"value_str":"` + big + `"}]}`, 413, "record_too_large"},
		{"one record too large", "POST", path, typeJSON, `{"records":[{"value":1},{"value_str":"` + big + `"}]}`, 422, "record_too_large"},
		{"one line too large", "POST", path + "?value=line", typeNDJSON, "a\n" + big + "\nb\n", 422, "record_too_large"},
		{"a value too large", "POST", one, typeBytes, big, 413, "record_too_large"},
		{"two hours ahead", "POST", path, typeJSON, fmt.Sprintf(`{"records":[{"value":1,"timestamp":%d}]}`, time.Now().Add(2*time.Hour).UnixMilli()), 422, "invalid_timestamp"},
		{"a record for partition 99", "POST", path, typeJSON, `{"records":[{"value":1},{"value":1,"partition":99}]}`, 404, "unknown_partition"},
		{"a record for partition -1", "POST", path, typeJSON, `{"records":[{"value":1,"partition":-1}]}`, 400, "malformed_body"},
		{"wrong checksum", "POST", one, typeBatch, edited(atCRC, 1, 2, 3, 4), 400, "corrupt_batch"},
		{"wrong magic", "POST", one, typeBatch, edited(atMagic, 1), 400, "corrupt_batch"},
		{"wrong length", "POST", one, typeBatch, edited(atLength, 0, 0, 0, 1), 400, "corrupt_batch"},
		{"count that lies", "POST", one, typeBatch, string(lies), 422, "invalid_record"},
		{"good batch, cut batch", "POST", one, typeBatch, string(batch) + string(batch[:70]), 400, "corrupt_batch"},
		{"good batch, wrong checksum", "POST", one, typeBatch, string(batch) + edited(atCRC, 1, 2, 3, 4), 400, "corrupt_batch"},
		{"text as batches", "POST", one, typeBatch, strings.Repeat("hello", 50), 400, "corrupt_batch"},
		{"batches for any partition", "POST", path, typeBatch, string(batch), 415, "unsupported_media_type"},
	})
	s.refuseAll("two", 1, []badRequest{
		{"too few replicas", "POST", "/v1/topics/two/records", typeJSON, `{"records":[{"value":1}]}`, 503, "not_enough_replicas"},
		{"too few replicas, lines", "POST", "/v1/topics/two/records?value=line", typeNDJSON, "x\n", 503, "not_enough_replicas"},
		{"too few replicas, batches", "POST", "/v1/topics/two/partitions/0/records", typeBatch, string(batch), 503, "not_enough_replicas"},
	})
	a := s.do("POST", "/v1/topics/two/records", []byte(`{"records":[{"value":1}]}`), "Content-Type: "+typeJSON)
	if p := a.refused(503, "not_enough_replicas"); p.Retriable == nil || !*p.Retriable || a.header.Get("Retry-After") == "" {
		t.Errorf("too few replicas must be retriable, with Retry-After: %s", a.body)
	}
	s.post("/v1/topics/two/records?acks=1", typeJSON, `{"records":[{"value":1}]}`)
	s.post(path, typeJSON, `{"records":[{"value":1}]}`)
}

// TestCase03Positions proves that a bad body is answered with the place of the fault: the line, the byte, the record
// and the name of the member.
func TestCase03Positions(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	const path = "/v1/topics/t/records"
	for _, c := range []struct {
		media, body string
		index       int
		line        int
		at          int64 // byte of the body
		says        string
	}{
		{typeJSON, `{"records":[{"key"="a"}]}`, 0, 1, 18, ""},
		{typeJSON, "{\"records\":[\n {\"value\":1},\n {\"key\":\"a\",\"valu\":1}]}", 1, 3, -1, "valu"},
		{typeNDJSON, "{\"value\":1}\n{\"value\":2}\n{\"value\":tru}\n", 2, 3, -1, ""},
		{typeNDJSON, "{\"value\":1}\n{\"val\":2}\n", 1, 2, -1, "val"},
	} {
		p := s.do("POST", path, []byte(c.body), "Content-Type: "+c.media).refused(400, "malformed_body")
		if len(p.Errors) == 0 {
			t.Errorf("%q: no places: %+v", c.body, p)
			continue
		}
		e := p.Errors[0]
		if e.Index == nil || *e.Index != c.index || e.Line != c.line || e.Byte == nil || c.at >= 0 && *e.Byte != c.at {
			t.Errorf("%q: the place is %s, want record %d, line %d, byte %d", c.body, mustJSON(t, e), c.index, c.line, c.at)
		}
		if !strings.Contains(p.Detail+e.Detail+e.Pointer, c.says) {
			t.Errorf("%q: %q is not named: %+v", c.body, c.says, p)
		}
	}
	if end := s.wire().end("t", 0); end != 0 {
		t.Errorf("end offset %d, want 0", end)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestBadParameters proves that every bad parameter, method, type and name gets its own problem, and changes nothing.
func TestBadParameters(t *testing.T) {
	s := start(t, "--set", "auto.create.topics.enable=false")
	s.createTopic("t", 2)
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, "a\nb\n")
	const get = "/v1/topics/t/partitions/0/records"
	const post = "/v1/topics/t/records"
	good := `{"records":[{"value":1}]}`
	list := []badRequest{
		{"offset beyond the end", "GET", get + "?offset=3", "", "", 416, "offset_out_of_range"},
		{"unknown topic", "GET", "/v1/topics/missing/partitions/0/records?offset=0&wait=20", "", "", 404, "unknown_topic"},
		{"unknown topic", "GET", "/v1/topics/missing", "", "", 404, "unknown_topic"},
		{"unknown topic", "DELETE", "/v1/topics/missing", "", "", 404, "unknown_topic"},
		{"unknown topic", "POST", "/v1/topics/missing/records", typeJSON, good, 404, "unknown_topic"},
		{"unknown topic, lines", "POST", "/v1/topics/missing/records?value=line", typeNDJSON, "x\n", 404, "unknown_topic"},
		{"partition 99", "GET", "/v1/topics/t/partitions/99/records?offset=0&wait=20", "", "", 404, "unknown_partition"},
		{"partition 99", "GET", "/v1/topics/t/partitions/99", "", "", 404, "unknown_partition"},
		{"partition 99", "POST", "/v1/topics/t/partitions/99/records", typeJSON, good, 404, "unknown_partition"},
		{"partition -1", "GET", "/v1/topics/t/partitions/-1/records?offset=0", "", "", 400, "invalid_partition"},
		{"partition -1", "POST", "/v1/topics/t/partitions/-1/records", typeJSON, good, 400, "invalid_partition"},
		{"partition 2^31", "GET", "/v1/topics/t/partitions/2147483648/records?offset=0", "", "", 400, "invalid_partition"},
		{"partition one", "GET", "/v1/topics/t/partitions/one", "", "", 400, "invalid_partition"},
		{"no offset", "GET", get, "", "", 400, "invalid_parameter"},
		{"offset and from", "GET", get + "?offset=0&from=latest", "", "", 400, "invalid_parameter"},
		{"offset twice", "GET", get + "?offset=0&offset=1", "", "", 400, "invalid_parameter"},
		{"unknown parameter", "GET", get + "?offset=0&timeout=5", "", "", 400, "invalid_parameter"},
		{"unknown parameter", "POST", post + "?ack=1", typeJSON, good, 400, "invalid_parameter"},
		{"acks=2", "POST", post + "?acks=2", typeJSON, good, 400, "invalid_parameter"},
		{"receipts=some", "POST", post + "?receipts=some", typeJSON, good, 400, "invalid_parameter"},
		{"value=word", "POST", post + "?value=word", typeNDJSON, good, 400, "invalid_parameter"},
		{"value=line for JSON", "POST", post + "?value=line", typeJSON, good, 400, "invalid_parameter"},
		{"timeout_ms=-1", "POST", post + "?timeout_ms=-1", typeJSON, good, 400, "invalid_parameter"},
		{"unknown media type", "POST", post, "text/csv", "a,b", 415, "unsupported_media_type"},
		{"form", "POST", post, "application/x-www-form-urlencoded", "a=b", 415, "unsupported_media_type"},
		{"no media type", "POST", post, "", good, 415, "unsupported_media_type"},
		{"wrong method", "PUT", post, typeJSON, good, 405, "method_not_allowed"},
		{"wrong method", "DELETE", get, "", "", 405, "method_not_allowed"},
		{"wrong method", "POST", "/v1/topics/t", typeJSON, "{}", 405, "method_not_allowed"},
		{"wrong method", "PROPFIND", "/v1/topics", "", "", 405, "method_not_allowed"},
		{"no such path", "GET", "/v2/topics", "", "", 404, "not_found"},
		{"a slash at the end", "POST", post + "/", typeJSON, good, 404, "not_found"},
		{"replication factor 3", "POST", "/v1/topics", typeJSON, `{"name":"r","replication_factor":3}`, 422, "invalid_replication_factor"},
		{"no partitions", "POST", "/v1/topics", typeJSON, `{"name":"r","partitions":0}`, 422, "invalid_partitions"},
		{"minus partitions", "POST", "/v1/topics", typeJSON, `{"name":"r","partitions":-5}`, 422, "invalid_partitions"},
		{"a topic twice", "POST", "/v1/topics", typeJSON, `{"name":"t"}`, 409, "topic_exists"},
		{"unknown config", "POST", "/v1/topics", typeJSON, `{"name":"r","configs":{"no.such":"1"}}`, 422, "invalid_config"},
		{"bad config", "POST", "/v1/topics", typeJSON, `{"name":"r","configs":{"max.message.bytes":"-1"}}`, 422, "invalid_config"},
		{"unknown member", "POST", "/v1/topics", typeJSON, `{"name":"r","partition":1}`, 400, "malformed_body"},
		{"no body", "POST", "/v1/topics", typeJSON, "", 400, "empty_body"},
		{"malformed topic", "POST", "/v1/topics", typeJSON, `{"name":`, 400, "malformed_body"},
		{"unknown config", "PATCH", "/v1/topics/t", "application/merge-patch+json", `{"configs":{"no.such":"1"}}`, 422, "invalid_config"},
		{"wrong type", "PATCH", "/v1/topics/t", "text/plain", `{}`, 415, "unsupported_media_type"},
	}
	for _, name := range []string{"", ".", "..", "a/b", "a b", "ä", "a\\u0000b", strings.Repeat("n", 250)} {
		list = append(list, badRequest{"bad name " + clip(name), "POST", "/v1/topics", typeJSON, `{"name":"` + name + `"}`, 400, "invalid_topic"})
	}
	for name, bad := range map[string][]string{
		"offset":      {"-1", "abc", "1e3", "1.5", "", "%20", "99999999999999999999", "0x10"},
		"from":        {"yesterday", "ts:", "ts:abc", "ts:-5", "tail:", "tail:-1", "tail:x", ""},
		"wait":        {"-1", "abc", "3601", "1h", "", "NaN", "inf", "99999999999999999999"},
		"max_bytes":   {"-1", "abc", "", "1.5", "99999999999999999999"},
		"min_bytes":   {"-1", "abc", "", "99999999999999999999"},
		"max_records": {"-1", "0", "abc", "", "99999999999999999999"},
		"as":          {"xml", ""},
	} {
		place := "offset=0&"
		if name == "offset" || name == "from" {
			place = ""
		}
		for _, value := range bad {
			list = append(list, badRequest{name + "=" + value, "GET", get + "?" + place + name + "=" + value, "", "", 400, "invalid_parameter"})
		}
	}
	s.refuseAll("t", 2, list)
	if a := s.do("PUT", post, nil); a.header.Get("Allow") != "GET, HEAD, POST" {
		t.Errorf("405 with Allow %q, want GET, HEAD, POST", a.header.Get("Allow"))
	}
	if a := s.do("POST", post, []byte("x"), "Content-Type: text/csv"); !strings.Contains(a.header.Get("Accept-Post"), typeNDJSON) {
		t.Errorf("415 with Accept-Post %q", a.header.Get("Accept-Post"))
	}
	s.do("GET", get+"?offset=0", nil, "Accept: text/csv").refused(406, "not_acceptable")
	var topics struct {
		Items []struct {
			Name string `json:"name"`
		} `json:"items"`
	}
	s.get("/v1/topics").decode(&topics)
	if len(topics.Items) != 1 || topics.Items[0].Name != "t" {
		t.Errorf("topics %+v, want t alone", topics)
	}
}

// TestCase61Paths proves that escaped and unclean paths name exactly the topic that they spell, or are refused as they
// are: never a redirect, never another topic.
func TestCase61Paths(t *testing.T) {
	s := start(t)
	s.createTopic("a.b", 1)
	s.post("/v1/topics/a.b/records", typeJSON, `{"records":[{"value":1}]}`)
	request := func(method, path string) answer {
		body := ""
		if method == "POST" {
			body = "Content-Type: application/json\r\n"
		}
		payload := `{"records":[{"value":1}]}`
		return s.raw(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n%s", method, path, body, len(payload), payload))
	}
	request("GET", "/v1/topics/a%2Eb").want(200)
	request("GET", "/v1/topics/%61%2e%62/partitions/0").want(200)
	request("POST", "/v1/topics/a%2Eb/records").want(200)
	for _, name := range []string{
		"a%2Fb", "%2F", "..", ".", "%2e%2e", "%2E%2e", "%2e", "a%00b", "%00", "a%0Ab", "a%20b", "a%5Cb", "a+b", "%C3%A4",
		"a%25b", "..%2f..%2fetc%2fpasswd", strings.Repeat("n", 250), strings.Repeat("n", 300),
	} {
		for _, c := range []struct{ method, path string }{
			{"GET", "/v1/topics/" + name},
			{"GET", "/v1/topics/" + name + "/partitions/0/records?offset=0"},
			{"POST", "/v1/topics/" + name + "/records"},
			{"POST", "/v1/topics/" + name + "/partitions/0/records"},
			{"DELETE", "/v1/topics/" + name},
		} {
			a := request(c.method, c.path)
			p := a.refused(400, "invalid_topic")
			if !strings.Contains(strings.ToLower(p.Title+p.Detail), "invalid topic name") {
				t.Errorf("%s %s: %s does not say invalid topic name", c.method, clip(c.path), a.body)
			}
		}
	}
	for _, path := range []string{
		"//v1/topics", "/v1//topics", "/v1/topics//records", "/v1/topics/a.b//records", "/v1/topics/a.b/", "/v1/topics/a.b/records/",
		"/v1/topics/x/../a.b/records", "/v1/./topics/a.b/records", "/v1/topics/a.b/%2e/records", "/../../etc/passwd", "/v1/topics/..;/a.b",
	} {
		for _, method := range []string{"GET", "POST"} {
			a := request(method, path)
			if a.status < 400 || a.status > 499 || a.header.Get("Location") != "" || a.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %s: status %d, Location %q: %s", method, path, a.status, a.header.Get("Location"), clip(string(a.body)))
			}
		}
	}
	// A bad escape is no HTTP at all; it is refused before any handler sees it.
	for _, name := range []string{"a%2", "a%zz", "%"} {
		request("POST", "/v1/topics/"+name+"/records").want(400)
	}
	w := s.wire()
	if end := w.end("a.b", 0); end != 2 {
		t.Errorf("end offset %d, want 2", end)
	}
	if got := string(s.get("/v1/topics").body); strings.Count(got, `"name"`) != 1 {
		t.Errorf("topics: %s", got)
	}
}

// TestCase64UnknownTopic proves that a produce to a topic that does not exist fails in less than a second over every
// door and through every client, when topics are not made on demand.
func TestCase64UnknownTopic(t *testing.T) {
	s := start(t, "--set", "auto.create.topics.enable=false")
	quick := func(name string, do func()) {
		begun := time.Now()
		do()
		if took := time.Since(begun); took > time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	quick("HTTP", func() {
		s.do("POST", "/v1/topics/missing/records", []byte(`[{"value":1}]`), "Content-Type: "+typeJSON).refused(404, "unknown_topic")
	})
	quick("raw Kafka", func() {
		if p := s.wire().produce("missing", 0, -1, encode(t, kgo.NoCompression(), values(1, "a"))); p.ErrorCode != codeUnknownTopicOrPartition {
			t.Errorf("code %d", p.ErrorCode)
		}
	})
	client := s.kgo(kgo.UnknownTopicRetries(0))
	quick("franz-go", func() {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "missing", Value: []byte("x")}).FirstErr(); err == nil {
			t.Error("no error")
		}
	})
	if got := string(s.get("/v1/topics").body); strings.Contains(got, "missing") {
		t.Errorf("topics: %s", got)
	}
}
