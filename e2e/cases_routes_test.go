package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// These tests hold the cases of the HTTP door that are older than its groups, CloudEvents and single records against
// those routes too.

// packed is text compressed by gzip.
func packed(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// eventOf is a CloudEvent with JSON data.
func eventOf(data string) string {
	return `{"specversion":"1.0","id":"1","source":"/e2e","type":"t","data":` + data + `}`
}

// TestCase8RoutesLimitBodies proves that no route takes a body beyond its limit, with its length told, in chunks, or
// out of a few compressed bytes; the connection is closed and nothing is done.
func TestCase8RoutesLimitBodies(t *testing.T) {
	const limit = 1 << 20
	s := start(t, "--max-request-bytes", fmt.Sprint(limit))
	s.createTopic("t", 1)
	long := strings.Repeat(" ", 2*limit)
	for _, c := range []struct{ method, path, media, body string }{
		{"POST", "/v1/topics/t/records", typeEvent, eventOf(`"` + long + `"`)},
		{"POST", "/v1/topics/t/records", "application/cloudevents-batch+json", "[" + eventOf(`"`+long+`"`) + "]"},
		{"POST", "/v1/topics/t/records?raw=true", "text/plain", long},
		{"POST", "/v1/groups/g/leases", typeJSON, `{"topics":["t"]}` + long},
		{"POST", "/v1/groups/g/leases/AAAA:release", typeJSON, `{}` + long},
		{"PUT", "/v1/groups/g/offsets", typeJSON, `{"offsets":[]}` + long},
	} {
		head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\n", c.method, c.path, s.HTTP, c.media)
		bomb := string(packed(t, c.body+strings.Repeat(" ", 100<<20)))
		for name, request := range map[string]string{
			"length":    fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(c.body), c.body),
			"chunked":   fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", head, len(c.body), c.body),
			"gzip bomb": fmt.Sprintf("%sContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", head, len(bomb), bomb),
		} {
			a := s.raw(request)
			if a.refused(http.StatusRequestEntityTooLarge, "request_too_large"); !a.closes && name != "gzip bomb" {
				t.Errorf("%s %s, %s: the connection stays open", c.method, c.path, name)
			}
		}
	}
	if end := s.wire().end("t", 0); end != 0 {
		t.Errorf("end offset %d", end)
	}
	if got := string(s.get("/v1/groups").body); strings.Contains(got, `"g"`) {
		t.Errorf("a group was made: %s", got)
	}
}

// TestCase9RoutesTakeGzip proves that every route that takes a body takes it compressed, and refuses a coding that it
// does not know.
func TestCase9RoutesTakeGzip(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	s.post("/v1/topics/t/records", typeJSON, `[{"value":1}]`)
	for _, c := range []struct{ method, path, media, body string }{
		{"POST", "/v1/topics/t/records", typeEvent, eventOf(`{"a":1}`)},
		{"POST", "/v1/topics/t/records", "application/cloudevents-batch+json", "[" + eventOf(`{"a":1}`) + "]"},
		{"POST", "/v1/topics/t/records?raw=true", "text/plain", "plain"},
		{"PUT", "/v1/groups/g/offsets", typeJSON, `{"offsets":[{"topic":"t","partition":0,"offset":1}]}`},
		{"POST", "/v1/groups/h/leases", typeJSON, `{"topics":["t"]}`},
	} {
		s.do(c.method, c.path, packed(t, c.body), "Content-Type: "+c.media, "Content-Encoding: gzip").want(200)
		s.do(c.method, c.path, []byte(c.body), "Content-Type: "+c.media, "Content-Encoding: br7").refused(http.StatusUnsupportedMediaType, "unsupported_content_encoding")
	}
	for offset, want := range map[string]string{"1": `{"a":1}`, "2": `{"a":1}`, "3": "plain"} {
		a := s.get("/v1/topics/t/partitions/0/records/"+offset, "Accept: application/octet-stream")
		if string(a.body) != want {
			t.Errorf("record %s is %q, want %q", offset, a.body, want)
		}
	}
}

// TestCase11RoutesKeepNumbers proves that values leave by leases, CloudEvents and single records byte for byte, and
// that offsets beyond 2^53 are not rounded.
func TestCase11RoutesKeepNumbers(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	const value = `{"id":73314510714175488,"f":1.10}`
	s.post("/v1/topics/t/records", typeEvent, eventOf(value))
	leases := s.takeLeases("g", `{"topics":["t"]}`)
	if len(leases.leases()) != 1 {
		t.Fatalf("leases: %s", leases.body)
	}
	for name, a := range map[string]answer{
		"a lease":         leases,
		"one record":      s.get("/v1/topics/t/partitions/0/records/0"),
		"a CloudEvent":    s.get("/v1/topics/t/partitions/0/records/0", "Accept: "+typeEvent),
		"CloudEvents":     s.get("/v1/topics/t/partitions/0/records?offset=0", "Accept: application/cloudevents-batch+json"),
		"filtered values": s.get("/v1/topics/t/partitions/0/records?offset=0&filter=" + "value.id%20%3D%3D%2073314510714175488"),
	} {
		if !strings.Contains(string(a.body), value) {
			t.Errorf("%s does not have %s: %s", name, value, a.body)
		}
	}
	for _, form := range []string{"9007199254740993", `"9007199254740993"`, `"9223372036854775807"`} {
		s.do("PUT", "/v1/groups/far/offsets", []byte(`{"offsets":[{"topic":"t","partition":0,"offset":`+form+`}]}`), "Content-Type: "+typeJSON).want(200)
		if a := s.get("/v1/groups/far/offsets"); !strings.Contains(string(a.body), strings.Trim(form, `"`)) {
			t.Errorf("offset %s comes back as %s", form, a.body)
		}
	}
}

// TestCase23TakesDoNotStick proves that what one take asks for is not what the next gets, on one connection.
func TestCase23TakesDoNotStick(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	for range 10 {
		s.post("/v1/topics/t/records", typeJSON, `[{"value":1}]`)
	}
	for _, c := range []struct {
		body string
		next int64
	}{{`{"topics":["t"],"max_records":1}`, 1}, {`{"topics":["t"]}`, 10}, {`{"topics":["t"],"max_records":4}`, 4}, {`{"topics":["t"]}`, 10}} {
		taken := s.takeLeases("g", c.body).leases()
		if len(taken) != 1 || taken[0].First != 0 || taken[0].Next != c.next {
			t.Fatalf("%s gives %+v, want the records up to %d", c.body, taken, c.next)
		}
		s.do("POST", "/v1/groups/g/leases/"+taken[0].ID+":release", nil).want(200)
		// What is given back is handed out in smaller parts, but for a group of its own it is whole again.
		s.do("DELETE", "/v1/groups/g", nil).want(204)
	}
	begun := time.Now()
	if taken := s.takeLeases("h", `{"topics":["t"],"from":"latest","wait_ms":300}`).leases(); len(taken) != 0 || time.Since(begun) < 300*time.Millisecond {
		t.Errorf("wait_ms 300 was answered after %v with %+v", time.Since(begun), taken)
	}
	begun = time.Now()
	if taken := s.takeLeases("h", `{"topics":["t"]}`).leases(); len(taken) != 0 || time.Since(begun) > 5*time.Second {
		t.Errorf("without wait_ms: answered after %v with %+v", time.Since(begun), taken)
	}
	for member, values := range map[string][]string{
		"wait_ms":     {"-1", "20001", "1.5", `"x"`, "99999999999999999999"},
		"lease_ms":    {"-1", "999", "900001", "1.5", `"x"`, "99999999999999999999"},
		"max_records": {"-1", "100001", "1.5"}, "max_bytes": {"-1", "33554433"}, "max_partitions": {"-1", "65"}, "max_deliveries": {"-1"},
	} {
		for _, v := range values {
			s.takeLeases("g", `{"topics":["t"],"`+member+`":`+v+`}`).want(400)
		}
	}
}

// TestCase31SeeksAreChecked proves that offsets that are none are refused and change nothing, that nothing to set is no
// fault, and that metadata is bounded.
func TestCase31SeeksAreChecked(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	put := func(body string) answer {
		return s.do("PUT", "/v1/groups/g/offsets", []byte(body), "Content-Type: "+typeJSON)
	}
	item := func(offset string) string { return `{"offsets":[{"topic":"t","partition":0,"offset":` + offset + `}]}` }
	put(item("7")).want(200)
	for _, offset := range []string{`"tank"`, "-5", `"-5"`, "1.5", `"1.5"`, "9223372036854775808", `"9223372036854775808"`, `""`, "null", "true", "[]", "1e3", `" 1"`, `"0x1"`} {
		if a := put(item(offset)); a.status != 400 && a.status != 422 {
			t.Errorf("offset %s: status %d: %s", offset, a.status, a.body)
		}
	}
	put(`{"offsets":[]}`).want(200)
	if a := put(`{"offsets":[{"topic":"t","partition":0,"offset":8,"metadata":"` + strings.Repeat("m", 5000) + `"}]}`); a.status != 422 {
		t.Errorf("5,000 bytes of metadata: status %d: %s", a.status, a.body)
	}
	put(`{"offsets":[{"topic":"t","partition":0,"offset":8},{"topic":"t","partition":1,"offset":8}]}`).refused(404, "unknown_partition")
	if a := s.get("/v1/groups/g/offsets"); !strings.Contains(string(a.body), `"offset":7`) {
		t.Errorf("the offset is not what it was: %s", a.body)
	}
}

// TestCase61RoutesOfGroups proves that a group id is one segment, whatever is in it, that lease ids, offsets, pages and
// problems are matched exactly, and that nothing is cleaned, redirected or found on the disk.
func TestCase61RoutesOfGroups(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	request := func(method, path string) answer {
		return s.raw(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", method, path, s.HTTP))
	}
	// Each of these is the name of a group, and none is that of another.
	names := []string{"a%2Fb", "a", "a%2F..%2Fb", "%C3%A4", "a%20b", "a%25b", strings.Repeat("n", 300)}
	for i, name := range names {
		s.do("PUT", "/v1/groups/"+name+"/offsets", fmt.Appendf(nil, `{"offsets":[{"topic":"t","partition":0,"offset":%d}]}`, 100+i), "Content-Type: "+typeJSON).want(200)
	}
	for i, name := range names {
		a := s.get("/v1/groups/" + name + "/offsets")
		if !strings.Contains(string(a.body), fmt.Sprintf(`"offset":%d`, 100+i)) {
			t.Errorf("group %s has %s", clip(name), a.body)
		}
	}
	for _, path := range []string{
		"/v1/groups/", "/v1//groups", "/v1/groups//offsets", "/v1/groups/a/", "/v1/groups/a/offsets/", "/v1/groups/x/../a/offsets", "/v1/groups/./a",
		"/v1/groups/a/leases/", "/v1/groups/a/leases/..:ack", "/v1/groups/a/leases/%2e%2e%2f:ack", "/v1/groups/a/leases/x:ack/", "/v1/groups/a/leases/x:take",
		"/v1/groups/a/leases/" + strings.Repeat("x", 10_000) + ":ack", "/v1/groups/%00/offsets", "/v1/groups/%FF/offsets", "/v1/producers/", "/v1/producers/1",
		"/v1/topics/t/partitions/0/records/", "/v1/topics/t/partitions/0/records/x", "/v1/topics/t/partitions/0/records/-1", "/v1/topics/t/partitions/0/records/1.5",
		"/v1/topics/t/partitions/0/records/9223372036854775808", "/v1/topics/t/partitions/0/records/%2e%2e", "/v1/topics/t/partitions/0/records/0/",
		"/docs/..", "/docs/../main.go", "/docs/%2e%2e/index.md", "/docs/..%2fembed.go", "/docs//", "/docs/missing", "/problems/", "/problems/missing", "/problems/..", "/problems/a/b",
	} {
		for _, method := range []string{"GET", "POST"} {
			a := request(method, path)
			if a.status < 400 || a.status > 499 || a.header.Get("Location") != "" || a.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %s: status %d, Location %q: %s", method, clip(path), a.status, a.header.Get("Location"), clip(string(a.body)))
			}
		}
	}
}

// TestCase63RoutesHeedOrigins proves that a page of an origin that is not allowed neither reads nor changes anything of
// groups, producers and records, and that allowed ones get their headers with errors too.
func TestCase63RoutesHeedOrigins(t *testing.T) {
	const ok, bad = "https://ok.example", "https://evil.example"
	s := start(t, "--allow-origin", ok)
	s.createTopic("t", 1)
	s.post("/v1/topics/t/records", typeJSON, `[{"value":1}]`)
	taken := s.post("/v1/groups/g/leases", typeJSON, `{"topics":["t"]}`, "Origin: "+ok).leases()
	if len(taken) != 1 {
		t.Fatalf("%+v", taken)
	}
	lease := "/v1/groups/g/leases/" + taken[0].ID
	for _, c := range []struct{ method, path, media, body string }{
		{"POST", lease + ":ack", "", ""},
		{"POST", lease + ":release", "", ""},
		{"POST", "/v1/producers", "", ""},
		{"POST", "/v1/groups/h/leases", typeJSON, `{"topics":["t"]}`},
		{"PUT", "/v1/groups/h/offsets", typeJSON, `{"offsets":[{"topic":"t","partition":0,"offset":1}]}`},
		{"DELETE", "/v1/groups/g", "", ""},
		{"POST", "/v1/topics/t/records?raw=true", "text/plain", "x"},
		{"POST", "/v1/topics/t/records", typeEvent, eventOf("1")},
	} {
		var headers []string
		if c.media != "" {
			headers = append(headers, "Content-Type: "+c.media)
		}
		a := s.do(c.method, c.path, []byte(c.body), append(headers, "Origin: "+bad)...)
		a.refused(http.StatusForbidden, "origin_not_allowed")
		if a.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s: %v", c.method, c.path, a.header)
		}
	}
	if end := s.wire().end("t", 0); end != 1 {
		t.Errorf("end offset %d: a page of another origin wrote", end)
	}
	if got := string(s.get("/v1/groups").body); strings.Contains(got, `"h"`) || !strings.Contains(got, `"g"`) {
		t.Errorf("groups: %s", got)
	}
	for _, a := range []answer{
		s.do("POST", lease+":ack", nil, "Origin: "+ok).want(200),
		s.do("POST", "/v1/groups/g/leases/AAAA:ack", nil, "Origin: "+ok).want(400),
		s.do("GET", "/v1/groups/missing", nil, "Origin: "+ok).want(404),
		s.get("/v1/topics/t/partitions/0/records/0", "Origin: "+ok),
	} {
		if got := a.header.Get("Access-Control-Allow-Origin"); got != ok || !strings.Contains(a.header.Get("Vary"), "Origin") {
			t.Errorf("%s: Allow-Origin %q, Vary %q", clip(a.asked), got, a.header.Get("Vary"))
		}
	}
}

// TestCase64RoutesOfUnknownTopics proves that every route says at once that there is no such topic, and makes none.
func TestCase64RoutesOfUnknownTopics(t *testing.T) {
	s := start(t, "--set", "auto.create.topics.enable=false")
	for _, c := range []struct{ method, path, media, body string }{
		{"POST", "/v1/topics/missing/records", typeEvent, eventOf("1")},
		{"POST", "/v1/topics/missing/records?stream=true", typeNDJSON, `{"value":1}` + "\n"},
		{"POST", "/v1/groups/g/leases", typeJSON, `{"topics":["missing"],"wait_ms":20000}`},
		{"PUT", "/v1/groups/g/offsets", typeJSON, `{"offsets":[{"topic":"missing","partition":0,"offset":1}]}`},
		{"GET", "/v1/topics/missing/partitions/0/records/0", "", ""},
		{"GET", "/v1/topics/missing/partitions/0/records?offset=0&wait=60&filter=true", "", ""},
	} {
		begun := time.Now()
		a := s.do(c.method, c.path, []byte(c.body), "Content-Type: "+c.media)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("%s %s took %v", c.method, c.path, took)
		}
		if strings.Contains(c.path, "stream=true") && a.status == 200 {
			if !strings.Contains(string(a.body), "unknown_topic") {
				t.Errorf("the stream ends with %s", a.body)
			}
			continue
		}
		a.refused(http.StatusNotFound, "unknown_topic")
	}
	if got := string(s.get("/v1/topics").body); strings.Contains(got, "missing") {
		t.Errorf("topics: %s", got)
	}
}
