package rest

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"leat/api"
)

const minimalEvent = `{"specversion":"1.0","id":"1","source":"/s","type":"t"`

// The three modes of HTTP become the same record: attributes as headers ce_*, the
// data as the value, partitionkey as the key.
func TestProduceCloudEvents(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 3)
	const headers = `"headers":[{"name":"ce_specversion","value":"1.0"},{"name":"ce_id","value":"1"},{"name":"ce_source","value":"/s"},{"name":"ce_type","value":"t"},`
	one := minimalEvent + `,"partitionkey":"k","time":"2018-04-05T17:31:00Z","data":{"n": 1.10}}`
	a := d.do("POST", produceT, one, "Content-Type", "application/cloudevents+json; charset=UTF-8").want(t, 200, "").contains(t, `{"count":1,"receipts":[{"partition":`)
	where := bytes.TrimPrefix(a.body, []byte(`{"count":1,"receipts":[{"partition":`))[:1]
	fetch := "/v1/topics/t/partitions/" + string(where) + "/records?offset="
	d.do("GET", fetch+"0", nil).contains(t, `"key_str":"k","value":{"n": 1.10},`+headers+
		`{"name":"ce_partitionkey","value":"k"},{"name":"ce_time","value":"2018-04-05T17:31:00Z"},{"name":"content-type","value":"application/json"}]`)
	d.do("POST", produceT+"?receipts=summary", "["+one+","+one+"]", "Content-Type", api.MediaEventBatch).want(t, 200, "").
		contains(t, `{"count":2,"partitions":[{"partition":`+string(where)+`,"base_offset":1,"last_offset":2,"count":2}]}`)
	d.do("POST", produceT, `{"n": 1.10}`, "Content-Type", mediaJSON, "ce-specversion", "1.0", "Ce-Id", "1", "ce-source", "/s", "ce-TYPE", "t",
		"ce-partitionkey", "k", "ce-euro", "%E2%82%ac 1%25", "ce-quoted", `"a\"b%20c"`).want(t, 200, "")
	d.do("GET", fetch+"3", nil).contains(t, `"key_str":"k","value":{"n": 1.10},"headers":[{"name":"ce_euro","value":"€ 1%"},{"name":"ce_id","value":"1"},`+
		`{"name":"ce_partitionkey","value":"k"},{"name":"ce_quoted","value":"a\"b c"},{"name":"ce_source","value":"/s"},`+
		`{"name":"ce_specversion","value":"1.0"},{"name":"ce_type","value":"t"},{"name":"content-type","value":"application/json"}]`)
	// Without a body there is no data, and without a type nothing is said of it.
	d.do("POST", "/v1/topics/t/partitions/1/records", nil, "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/s", "Ce-Type", "t").want(t, 200, "")
	d.do("GET", "/v1/topics/t/partitions/1/records?from=tail:1", nil).contains(t, `"value":null,"headers":[{"name":"ce_id"`, `{"name":"ce_type","value":"t"}]`)
}

// What is no event is refused with the reason, and nothing is written.
func TestProduceBadCloudEvents(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	full := []string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/s", "Ce-Type", "t"}
	with := func(more ...string) []string { return append(append([]string{}, full...), more...) }
	for _, tc := range []struct {
		headers []string
		detail  string
	}{
		{full[:6], "the required attribute type is missing"},
		{[]string{"Ce-Id", "1", "Content-Type", "text/plain"}, "specversion, source, type are missing"},
		{append([]string{"Ce-Specversion", "0.3"}, full[2:]...), `specversion \"0.3\" is not known here`},
		{with("Ce-Time", "yesterday"), "no timestamp as in RFC 3339"},
		{with("Ce-A-B", "x"), `\"a-b\" is no name of an attribute`},
		{with("Ce-Id", "2"), "Ce-Id is given more than once"},
		{with("Ce-X", "%C0%A0"), "Ce-X is not percent-encoded UTF-8"},
		{with("Ce-X", "%4"), "Ce-X is not percent-encoded UTF-8"},
		{with("Ce-X", "%0A"), "x has characters that are not allowed"},
		{with("Ce-X", `"a`), "Ce-X is not percent-encoded UTF-8"},
		{with("Ce-Datacontenttype", "a/b"), "datacontenttype is the header Content-Type"},
		{with("Content-Type", "nonsense"), "no media type"},
		{with("Record-Key", "k"), "the key of an event is its attribute partitionkey"},
	} {
		d.do("POST", produceT, "x", tc.headers...).want(t, 400, "invalid_cloudevent").contains(t, tc.detail)
	}
	d.do("POST", produceT, "x", with("Content-Type", "a/b", "Content-Type", "a/c")...).want(t, 400, "invalid_request")
	d.do("POST", produceT+"?raw=true", "x", full...).want(t, 400, "invalid_parameter")
	d.do("POST", produceT, "["+minimalEvent+"},"+minimalEvent+`,"ext":{}}]`, "Content-Type", api.MediaEventBatch).want(t, 400, "invalid_cloudevent").contains(t, `"index":1`)
	d.do("POST", produceT, "[]", "Content-Type", api.MediaEventBatch).want(t, 400, "empty_body")
	d.do("POST", produceT, "", "Content-Type", api.MediaEvent).want(t, 400, "empty_body")
	d.do("POST", produceT, minimalEvent+"}", "Content-Type", "application/cloudevents+avro").want(t, 415, "unsupported_media_type")
	if got := d.end("t"); got != 0 {
		t.Errorf("end %d", got)
	}
}

// raw=true takes a body of any type as one value and keeps its type; what a page
// of another origin could send unasked is refused.
func TestProduceRaw(t *testing.T) {
	d := openDoor(t, func(s *setup) { s.AllowOrigins = []string{"https://good.example"} })
	d.topic("t", 1)
	d.do("POST", produceT, "x", "Content-Type", "image/png").want(t, 415, "unsupported_media_type")
	d.do("POST", produceT+"?raw=true", "\x89PNG", "Content-Type", `image/png; a="b"`, "Record-Key", "k", "Record-Header-A", "1").want(t, 200, "")
	d.do("POST", produceT0+"?raw=true", "[1]", "Content-Type", mediaJSON).want(t, 200, "")
	d.do("POST", produceT+"?raw=true", minimalEvent+"}", "Content-Type", "application/cloudevents+json").want(t, 200, "")
	d.do("POST", produceT+"?raw=true", "x", "Content-Type", "text/plain", "Origin", "https://good.example").want(t, 200, "")
	d.do("POST", produceT+"?raw=true", "x", "Origin", "http://"+d.addr).want(t, 200, "")
	d.do("GET", fetchAll, nil).contains(t, `"key_str":"k","value_b64":"iVBORw==","headers":[{"name":"a","value":"1"},{"name":"content-type","value":"image/png; a=\"b\""}]`,
		`"value":[1],"headers":[{"name":"content-type","value":"application/json"}]`, `"offset":4,`)
	for _, origin := range []string{"https://evil.example", "null", "http://evil.example:80"} {
		for _, media := range []string{"text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"} {
			d.do("POST", produceT+"?raw=true", "x", "Content-Type", media, "Origin", origin).want(t, 403, "origin_not_allowed")
		}
		d.do("POST", produceT+"?raw=true", "x", "Origin", origin).want(t, 403, "origin_not_allowed")
	}
	d.do("POST", produceT+"?raw=yes", "x", "Content-Type", mediaJSON).want(t, 400, "invalid_parameter")
	d.do("POST", produceT+"?raw=true", "", "Content-Type", "a/b").want(t, 400, "empty_body")
	if got := d.end("t"); got != 5 {
		t.Errorf("end %d", got)
	}
}

// key_pointer takes each line's key from its value, and refuses a line that is no
// JSON.
func TestKeyPointer(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	keyed := produceT + "?value=line&key_pointer=/user/id"
	d.do("POST", keyed, "{\"user\":{\"id\":\"a\"}}\r\n{\"user\":{\"id\":7}}\n{}", "Content-Type", mediaNDJSON).want(t, 200, "").contains(t, `"count":3,"partitions"`)
	d.do("GET", fetchAll, nil).contains(t, `"key_str":"a","value":{"user":{"id":"a"}}`+"\r", `"key":7,"value":{"user":{"id":7}}`, `"key":null,"value":{}`)
	a := d.do("POST", keyed, "{}\nplain\n{}\n", "Content-Type", mediaNDJSON).want(t, 400, "malformed_body")
	if e := a.problem(t).Errors; len(e) != 1 || *e[0].Index != 1 || e[0].Line != 2 {
		t.Errorf("place: %s", a.body)
	}
	for _, query := range []string{"?key_pointer=/a", "?value=line&key_pointer=a", "?value=line&key_pointer=/~2"} {
		d.do("POST", produceT+query, "{}", "Content-Type", mediaNDJSON).want(t, 400, "invalid_parameter")
	}
	if got := d.end("t"); got != 3 {
		t.Errorf("end %d", got)
	}
}

// Whatever the header, decoding it neither panics nor gives what is no UTF-8, and
// what is encoded is decoded to the same.
func FuzzEventValue(f *testing.F) {
	for _, seed := range []string{"a", "%E2%82%AC", `"a\"b"`, `"`, "%", "%4", "%zz", `"\`, "€"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if value, ok := decodeEventValue(text); ok && !utf8.Valid(value) {
			t.Fatalf("%q: %q", text, value)
		}
		if !utf8.ValidString(text) {
			return
		}
		coded := encodeEventValue([]byte(text))
		if back, ok := decodeEventValue(coded); !ok || string(back) != text || strings.Trim(coded, "!#$&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~%") != "" {
			t.Fatalf("%q becomes %q, then %q", text, coded, back)
		}
	})
}

// A preflight is told that the attributes of an event may be sent.
func TestCORSEventHeaders(t *testing.T) {
	d := openDoor(t, func(s *setup) { s.AllowOrigins = []string{"https://good.example"} })
	a := d.do(http.MethodOptions, produceT, nil, "Origin", "https://good.example", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type, ce-id, ce-source")
	if got := a.Header.Get("Access-Control-Allow-Headers"); !strings.Contains(got, "ce-id, ce-source") {
		t.Errorf("allowed: %s", got)
	}
}
