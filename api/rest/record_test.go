package rest

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net/http"
	"testing"

	"leat/api"
	"leat/auth"
	"leat/broker"
	"leat/storage/record"
)

// put appends a record as it is to the first partition of t.
func (d *door) put(key, value []byte, headers ...record.Header) {
	d.t.Helper()
	set, err := d.broker.NewRecordSet(d.t.Context(), auth.Anonymous, "t")
	if err != nil {
		d.t.Fatal(err)
	}
	defer set.Close()
	if err := set.Add(0, 1767323045000, key, value, headers); err != nil {
		d.t.Fatal(err)
	}
	results, err := set.Produce(d.t.Context(), broker.AcksAll, defaultAckTimeout)
	if err = errors.Join(err, results[0].Err); err != nil {
		d.t.Fatal(err)
	}
}

const recordT0 = "/v1/topics/t/partitions/0/records/"

// One record as JSON, and as bytes with all that belongs to it in headers: what a
// header cannot hold is in base64, and what is too much is told of.
func TestOneRecord(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.put([]byte("k 1"), []byte("\x00\x01value"), record.Header{Key: "trace-id", Value: []byte("7")}, record.Header{Key: "trace-id", Value: []byte("8")},
		record.Header{Key: "Big", Value: []byte("x")}, record.Header{Key: "bytes", Value: []byte{0xff}}, record.Header{Key: "none"})
	d.put([]byte(" \n"), nil)
	d.put(nil, []byte{})
	d.put(bytes.Repeat([]byte("k"), 40_000), []byte("v"), record.Header{Key: "a", Value: bytes.Repeat([]byte("h"), 40_000)})
	a := d.do("GET", recordT0+"0", nil).want(t, 200, "").contains(t, `{"partition":0,"offset":0,"timestamp":1767323045000,"key_str":"k 1","value_str":"\u0000\u0001value","headers":[{"name":"trace-id","value":"7"}`)
	if a.Header.Get("Content-Type") != mediaJSON || a.Header.Get("Cache-Control") != "private, immutable" || a.Header.Get("Etag") == "" {
		t.Errorf("headers %v", a.Header)
	}
	d.do("GET", recordT0+"0?as=base64", nil).want(t, 200, "").contains(t, `"key_b64":"ayAx"`)
	raw := d.do("GET", recordT0+"0", nil, "Accept", mediaBytes).want(t, 200, "")
	if string(raw.body) != "\x00\x01value" {
		t.Errorf("body %q", raw.body)
	}
	others, err := base64.StdEncoding.DecodeString(raw.Header.Get("Record-Headers-B64"))
	if err != nil || string(others) != `[{"name":"Big","value":"x"},{"name":"bytes","value_b64":"/w=="},{"name":"none","value":null}]` {
		t.Errorf("other headers %s, %v", others, err)
	}
	for name, want := range map[string]string{
		"Content-Type": mediaBytes, "Content-Length": "7", "Record-Key": "k 1", "Record-Offset": "0", "Record-Partition": "0",
		"Record-Timestamp": "1767323045000", "Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff", "Record-Value": "", "Record-Omitted": "",
	} {
		if got := raw.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := raw.Header["Record-Header-Trace-Id"]; fmt.Sprint(got) != "[7 8]" {
		t.Errorf("Record-Header-Trace-Id: %v", got)
	}
	null := d.do("GET", recordT0+"1", nil, "Accept", mediaBytes).want(t, 200, "")
	empty := d.do("GET", recordT0+"2", nil, "Accept", mediaBytes).want(t, 200, "")
	if _, keyed := empty.Header["Record-Key"]; keyed || null.Header.Get("Record-Value") != "null" || null.Header.Get("Record-Key-B64") != "IAo=" || empty.Header.Get("Record-Value") != "" {
		t.Errorf("null %v, empty %v", null.Header, empty.Header)
	}
	if got := d.do("GET", recordT0+"3", nil, "Accept", mediaBytes).want(t, 200, "").Header.Get("Record-Omitted"); got != "key, headers" {
		t.Errorf("omitted %q", got)
	}
}

// A record never changes, so a client that has it is told so; each form has its
// own tag. HEAD has the headers of GET.
func TestOneRecordConditions(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.put(nil, []byte("0123456789"))
	d.put(nil, []byte("x"))
	tags := map[string]bool{}
	for _, accept := range []string{mediaJSON, mediaBytes} {
		for _, offset := range []string{"0", "1"} {
			a := d.do("GET", recordT0+offset, nil, "Accept", accept).want(t, 200, "")
			tag := a.Header.Get("Etag")
			tags[tag] = true
			for _, condition := range []string{tag, `"other", W/` + tag, "*"} {
				not := d.do("GET", recordT0+offset, nil, "Accept", accept, "If-None-Match", condition)
				if not.StatusCode != http.StatusNotModified || len(not.body) > 0 || not.Header.Get("Etag") != tag || not.Header.Get("Cache-Control") != "private, immutable" {
					t.Errorf("%s with %s: %d %v", accept, condition, not.StatusCode, not.Header)
				}
			}
			d.do("GET", recordT0+offset, nil, "Accept", accept, "If-None-Match", `"other"`).want(t, 200, "")
			head := d.do("HEAD", recordT0+offset, nil, "Accept", accept)
			if head.StatusCode != http.StatusOK || head.Header.Get("Etag") != tag || head.Header.Get("Content-Length") != a.Header.Get("Content-Length") || len(head.body) > 0 {
				t.Errorf("HEAD %s: %d %v", accept, head.StatusCode, head.Header)
			}
		}
	}
	if len(tags) != 4 {
		t.Errorf("tags %v", tags)
	}
	tag := d.do("GET", recordT0+"0", nil, "Accept", mediaBytes).Header.Get("Etag")
	for _, tc := range []struct {
		span, only, want, content string
	}{
		{"bytes=2-4", "", "234", "bytes 2-4/10"},
		{"bytes=8-", tag, "89", "bytes 8-9/10"},
		{"bytes=-3", "", "789", "bytes 7-9/10"},
		{"bytes=5-99", "", "56789", "bytes 5-9/10"},
		{"bytes=5-99999999999999999999", "", "56789", "bytes 5-9/10"},
		{"bytes=-99999999999999999999", "", "0123456789", "bytes 0-9/10"},
		{"bytes=5-9x", "", "0123456789", ""},
		{"bytes=2-4", `"other"`, "0123456789", ""},
		{"bytes=4-2", "", "0123456789", ""},
		{"bytes=0-1,3-4", "", "0123456789", ""},
		{"lines=1-2", "", "0123456789", ""},
	} {
		a := d.do("GET", recordT0+"0", nil, "Accept", mediaBytes, "Range", tc.span, "If-Range", tc.only)
		if string(a.body) != tc.want || a.Header.Get("Content-Range") != tc.content || (a.StatusCode == http.StatusPartialContent) != (tc.content != "") {
			t.Errorf("%s: %d %q, %s", tc.span, a.StatusCode, a.body, a.Header.Get("Content-Range"))
		}
	}
	over := d.do("GET", recordT0+"0", nil, "Accept", mediaBytes, "Range", "bytes=10-").want(t, 416, "range_not_satisfiable")
	if over.Header.Get("Content-Range") != "bytes */10" {
		t.Errorf("Content-Range %q", over.Header.Get("Content-Range"))
	}
}

// Where there is no record the answer says why.
func TestNoRecord(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for i := range 4 {
		d.put(nil, fmt.Append(nil, i))
	}
	res := d.broker.DeleteRecords(t.Context(), auth.Anonymous, []broker.DeleteRecordsSpec{{Topic: "t", Partition: 0, Offset: 2}})
	if res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	if p := d.do("GET", recordT0+"1", nil).want(t, 410, "offset_expired").problem(t); *p.LogStart != 2 || p.Topic != "t" || *p.Partition != 0 {
		t.Errorf("%+v", p)
	}
	for _, offset := range []string{"4", "5", fmt.Sprint(math.MaxInt64)} {
		if p := d.do("GET", recordT0+offset, nil).want(t, 416, "offset_out_of_range").problem(t); *p.LogEnd != 4 {
			t.Errorf("%s: %+v", offset, p)
		}
	}
	for _, offset := range []string{"-1", "x", "9223372036854775808", "1.0", "+1", "%31x"} {
		d.do("GET", recordT0+offset, nil).want(t, 400, "invalid_parameter")
	}
	d.do("GET", "/v1/topics/t/partitions/1/records/0", nil).want(t, 404, "unknown_partition")
	d.do("GET", "/v1/topics/none/partitions/0/records/0", nil).want(t, 404, "unknown_topic")
	d.do("GET", recordT0+"2?x=1", nil).want(t, 400, "invalid_parameter")
	d.do("GET", recordT0+"2?as=json", nil, "Accept", mediaBytes).want(t, 400, "invalid_parameter")
	d.do("GET", recordT0+"2?ce=wrap", nil).want(t, 400, "invalid_parameter")
	d.do("GET", recordT0+"2", nil, "Accept", "text/html").want(t, 406, "not_acceptable")
	d.do("GET", recordT0+"2", nil, "Accept", api.MediaEvent).want(t, 406, "not_a_cloudevent")
	d.do("GET", recordT0+"2?ce=binary", nil).want(t, 406, "not_a_cloudevent")
	d.do("DELETE", recordT0+"2", nil).want(t, 405, "method_not_allowed")
}
