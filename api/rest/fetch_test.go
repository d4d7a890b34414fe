package rest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"leat/api"
	"leat/broker"
	"leat/storage/record"
)

const recordsOfT0 = "/v1/topics/t/partitions/0/records?"

type fetched struct {
	Records []struct {
		Offset int64 `json:"offset"`
	} `json:"records"`
	Next  int64 `json:"next_offset"`
	HW    int64 `json:"high_watermark"`
	Start int64 `json:"log_start_offset"`
}

// offsets fetches and returns the offsets of the records; the headers must say
// the same as the body.
func (d *door) offsets(query string) ([]int64, fetched) {
	d.t.Helper()
	a := d.do("GET", recordsOfT0+query, nil).want(d.t, 200, "")
	var f fetched
	if err := json.Unmarshal(a.body, &f); err != nil {
		d.t.Fatalf("%v: %s", err, a.body)
	}
	for name, want := range map[string]int64{"Next-Offset": f.Next, "High-Watermark": f.HW, "Log-Start-Offset": f.Start} {
		if got := a.Header.Get(name); got != strconv.FormatInt(want, 10) {
			d.t.Errorf("%s: header %s %q, body %d", query, name, got, want)
		}
	}
	head := d.do("HEAD", recordsOfT0+query, nil)
	if head.StatusCode != http.StatusOK || head.Header.Get("Next-Offset") != a.Header.Get("Next-Offset") || len(head.body) > 0 {
		d.t.Errorf("%s: HEAD %d %v", query, head.StatusCode, head.Header)
	}
	out := []int64{}
	for _, r := range f.Records {
		out = append(out, r.Offset)
	}
	return out, f
}

// fill produces ten records in batches of four, four and two.
func (d *door) fill(codec string) {
	d.t.Helper()
	d.topic("t", 1, "compression.type", codec)
	for _, n := range []int{4, 4, 2} {
		d.post("["+strings.Repeat(`{"value_str":"`+strings.Repeat("v", 1000)+`"},`, n-1)+`{"value":1}]`).want(d.t, 200, "")
	}
}

// A fetch begins at the offset asked, ends where the limits say, and says where
// to read on, whatever the batches and the codec.
func TestFetchPlaces(t *testing.T) {
	for _, codec := range []string{"uncompressed", "gzip", "zstd", "lz4", "snappy"} {
		t.Run(codec, func(t *testing.T) {
			d := openDoor(t)
			d.fill(codec)
			for _, tc := range []struct {
				query string
				want  []int64
				next  int64
			}{
				{"from=earliest", []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 10},
				{"offset=0&max_records=3", []int64{0, 1, 2}, 3},
				{"offset=2&max_records=4", []int64{2, 3, 4, 5}, 6},
				{"offset=3&max_records=1", []int64{3}, 4},
				{"offset=4&max_records=4", []int64{4, 5, 6, 7}, 8},
				{"offset=9", []int64{9}, 10},
				{"offset=10", []int64{}, 10},
				{"from=latest", []int64{}, 10},
				{"from=tail:3", []int64{7, 8, 9}, 10},
				{"from=tail:0", []int64{}, 10},
				{"from=tail:99", []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, 10},
				{"from=ts:0&max_records=1", []int64{0}, 1},
				{"from=ts:1970-01-01T00:00:00Z&max_records=1", []int64{0}, 1},
				{"from=ts:99999999999999", []int64{}, 10},
				{"offset=5&max_bytes=0", []int64{5}, 6},
				{"offset=5&max_bytes=1", []int64{5}, 6},
				{"offset=5&max_bytes=1500", []int64{5}, 6},
				{"offset=4&max_bytes=2500", []int64{4, 5}, 6},
			} {
				got, f := d.offsets(tc.query)
				if !slices.Equal(got, tc.want) || f.Next != tc.next || f.HW != 10 || f.Start != 0 {
					t.Errorf("%s: %v %+v, want %v and next %d", tc.query, got, f, tc.want, tc.next)
				}
			}
			for offset := range int64(11) {
				if got, f := d.offsets(fmt.Sprintf("offset=%d", offset)); int64(len(got)) != 10-offset || f.Next != 10 || len(got) > 0 && got[0] != offset {
					t.Errorf("from %d: %v", offset, got)
				}
			}
		})
	}
}

// Bad parameters are 400 and named; an offset outside of the log is 416; no
// parameter outlives its request (case 23).
func TestFetchParameters(t *testing.T) {
	d := openDoor(t)
	d.fill("uncompressed")
	for query, name := range map[string]string{
		"": "offset", "offset=-1": "offset", "offset=abc": "offset", "offset=1.5": "offset", "offset=9223372036854775808": "offset", "offset=": "offset",
		"offset=0&offset=0": "offset", "offset=0&from=earliest": "from", "from=": "from", "from=begin": "from", "from=ts:": "from", "from=ts:-5": "from",
		"from=ts:NaN": "from", "from=tail:-1": "from", "from=tail:x": "from", "from=tail:": "from", "from=tail:99999999999999999999": "from",
		"offset=0&wait=-1": "wait", "offset=0&wait=NaN": "wait", "offset=0&wait=Inf": "wait", "offset=0&wait=1e1": "wait", "offset=0&wait=3601": "wait",
		"offset=0&wait=3601s": "wait", "offset=0&wait=61m": "wait", "offset=0&wait=9999999999999999999999": "wait", "offset=0&wait=": "wait", "offset=0&wait=5h": "wait",
		"offset=0&min_bytes=-1": "min_bytes", "offset=0&min_bytes=x": "min_bytes", "offset=0&max_bytes=-1": "max_bytes", "offset=0&max_bytes=NaN": "max_bytes",
		"offset=0&max_bytes=99999999999999999999": "max_bytes", "offset=0&max_records=0": "max_records", "offset=0&max_records=-1": "max_records",
		"offset=0&as=xml": "as", "offset=0&as=": "as", "offset=0&timeout=100": "timeout", "offset=0&Wait=1": "Wait", "offset=0&%zz=1": "%zz", "offset=0&wait=%zz": "wait",
	} {
		if p := d.do("GET", recordsOfT0+query, nil).want(t, 400, "invalid_parameter").problem(t); p.Parameter != name {
			t.Errorf("%s: names %q, want %q", query, p.Parameter, name)
		}
	}
	p := d.do("GET", recordsOfT0+"offset=11", nil).want(t, 416, "offset_out_of_range").problem(t)
	if *p.LogEnd != 10 || *p.LogStart != 0 || p.Topic != "t" || *p.Partition != 0 {
		t.Errorf("416: %+v", p)
	}
	if got := d.do("GET", recordsOfT0+"offset=0&max_bytes=999999999", nil).want(t, 200, "").Header.Get("Applied-Max-Bytes"); got != "33554432" {
		t.Errorf("Applied-Max-Bytes %q", got)
	}
	for query, want := range map[string]string{"wait=60": "", "wait=61": "60", "wait=2m": "60", "wait=3600s": "60", "wait=60001ms": "60"} {
		if got := d.do("GET", recordsOfT0+"offset=0&"+query, nil).want(t, 200, "").Header.Get("Applied-Wait"); got != want {
			t.Errorf("%s: Applied-Wait %q, want %q", query, got, want)
		}
	}
	for _, wait := range []string{"0.05", ".05", "50ms", "0.05s", "0m"} {
		d.do("GET", recordsOfT0+"from=latest&wait="+wait, nil).want(t, 200, "").contains(t, `{"records":[],"next_offset":10,`)
	}
	for _, most := range []string{"33554433", "2147483648", "9223372036854775807"} {
		a := d.do("GET", "/v1/topics/t/partitions/0/records?offset=0&max_records=9223372036854775807&max_bytes="+most, nil).want(t, 200, "")
		if got := a.Header.Get("Applied-Max-Bytes"); got != "33554432" {
			t.Errorf("max_bytes=%s is cut to %q", most, got)
		}
	}
}

// An offset below the log's start is 410 and says where the log starts.
func TestOffsetExpired(t *testing.T) {
	p := api.ProblemOf(&broker.OffsetError{Offset: 1, Start: 5, End: 9})
	if p.Status != http.StatusGone || p.Code != "offset_expired" || *p.LogStart != 5 {
		t.Errorf("%+v", p)
	}
}

// Case 13: a time finds the first record that is not older.
func TestFindOffset(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.post(`[{"timestamp":2,"value":1},{"timestamp":4,"value":1},{"timestamp":6,"value":1},{"timestamp":8,"value":1}]`).want(t, 200, "")
	at := "/v1/topics/t/partitions/0/offsets?"
	for ts, want := range map[string]string{
		"1": `"offset":0,"timestamp":2`, "2": `"offset":0,"timestamp":2`, "3": `"offset":1,"timestamp":4`, "4": `"offset":1,"timestamp":4`,
		"5": `"offset":2,"timestamp":6`, "8": `"offset":3,"timestamp":8`, "9": `"offset":null,"timestamp":null`, "1970-01-01T00:00:00.007Z": `"offset":3,"timestamp":8`,
	} {
		d.do("GET", at+"ts="+ts, nil).want(t, 200, "").contains(t, want)
		d.do("GET", at+"from=ts:"+ts, nil).want(t, 200, "").contains(t, want)
	}
	d.do("GET", at+"from=earliest", nil).contains(t, `"offset":0,"timestamp":null`)
	d.do("GET", at+"from=latest", nil).contains(t, `"offset":4,"timestamp":null`)
	d.do("GET", at+"from=max_timestamp", nil).contains(t, `"offset":3,"timestamp":8`)
	for query, name := range map[string]string{"": "ts", "ts=x": "ts", "ts=-1": "ts", "from=x": "from", "ts=1&from=latest": "from", "from=tail:1": "from"} {
		if p := d.do("GET", at+query, nil).want(t, 400, "invalid_parameter").problem(t); p.Parameter != name {
			t.Errorf("%s names %q", query, p.Parameter)
		}
	}
	if got, _ := d.offsets("from=ts:9"); len(got) != 0 {
		t.Errorf("from a time to come: %v", got)
	}
}

// Case 21: a long poll waits its time out when nothing comes, and is woken by a
// record.
func TestLongPoll(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	began := time.Now()
	d.do("GET", recordsOfT0+"offset=0&wait=300ms", nil).want(t, 200, "").contains(t, `"records":[]`)
	d.do("GET", recordsOfT0+"offset=0", nil, "Prefer", "wait=0").want(t, 200, "")
	if took := time.Since(began); took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("waited %v of 300ms", took)
	}
	polled := make(chan *answer, 1)
	go func() { polled <- d.do("GET", recordsOfT0+"offset=0&wait=20", nil) }()
	d.post(`[{"value":"woken"}]`).want(t, 200, "")
	select {
	case a := <-polled:
		a.want(t, 200, "").contains(t, `"value":"woken"`)
	case <-time.After(10 * time.Second):
		t.Fatal("not woken")
	}
}

// Shutdown wakes long polls, which end as if their time were over.
func TestShutdownWakesPolls(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	polled := make(chan *answer, 1)
	go func() { polled <- d.do("GET", recordsOfT0+"offset=0&wait=60", nil) }()
	d.untilWaiting(1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := d.server.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	(<-polled).want(t, 200, "").contains(t, `"records":[]`)
}

// A client that goes away ends its long poll at once.
func TestClientGone(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET "+recordsOfT0+"offset=0&wait=60 HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	d.untilWaiting(1)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	d.untilWaiting(0)
}

// untilWaiting returns once n long polls wait.
func (d *door) untilWaiting(n int) {
	d.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	limit := time.After(10 * time.Second)
	for {
		d.server.drain.Lock()
		waiting := len(d.server.drain.waits)
		d.server.drain.Unlock()
		if waiting == n {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			d.t.Fatalf("%d polls wait, want %d", waiting, n)
		}
	}
}

// The Accept header chooses the form of the answer, or 406.
func TestAccept(t *testing.T) {
	d := openDoor(t)
	d.fill("uncompressed")
	for accept, want := range map[string]string{
		"none": mediaJSON, "": mediaJSON, " , ": mediaJSON, "*/*": mediaJSON, "application/*": mediaJSON, "application/json": mediaJSON, "text/html, */*;q=0.1": mediaJSON,
		"application/x-ndjson": mediaNDJSON, "application/jsonl": mediaNDJSON, "application/json;q=0.5, application/x-ndjson": mediaNDJSON,
		"application/json;q=0, */*": mediaNDJSON, mediaBatch: mediaBatch, "text/html": "", "application/json;q=0": "", "image/*": "", "application/json;q=x": "",
	} {
		headers := []string{"Accept", accept}
		if accept == "none" {
			headers = nil
		}
		a := d.do("GET", recordsOfT0+"offset=0", nil, headers...)
		if want == "" {
			a.want(t, 406, "not_acceptable")
		} else if got := a.Header.Get("Content-Type"); got != want {
			t.Errorf("Accept %q: %s, want %s", accept, got, want)
		}
	}
	d.do("GET", recordsOfT0+"offset=0&max_records=1", nil, "Accept", mediaBatch).want(t, 400, "invalid_parameter")
	d.do("GET", recordsOfT0+"offset=0&as=json", nil, "Accept", mediaBatch).want(t, 400, "invalid_parameter")
}

// NDJSON is a record a line, all of them JSON, and nothing for no record.
func TestFetchNDJSON(t *testing.T) {
	d := openDoor(t)
	d.fill("zstd")
	a := d.do("GET", recordsOfT0+"offset=1", nil, "Accept", mediaNDJSON).want(t, 200, "")
	lines := bufio.NewScanner(bytes.NewReader(a.body))
	n := int64(0)
	for lines.Scan() {
		var r struct {
			Offset int64 `json:"offset"`
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil || r.Offset != n+1 {
			t.Errorf("line %d: %v: %s", n, err, lines.Bytes())
		}
		n++
	}
	if n != 9 || a.Header.Get("Next-Offset") != "10" {
		t.Errorf("%d lines, %v", n, a.Header)
	}
	if a := d.do("GET", recordsOfT0+"offset=10", nil, "Accept", mediaNDJSON).want(t, 200, ""); len(a.body) != 0 {
		t.Errorf("%s", a.body)
	}
}

// Raw batches leave by sendfile, as they are in the file, from each offset of a
// batch the whole of it; they can be read on at Next-Offset, and the
// connection serves the next request.
func TestRawBatchesOut(t *testing.T) {
	d := openDoor(t)
	d.fill("uncompressed")
	sent := 0
	for offset := range int64(10) {
		a := d.do("GET", recordsOfT0+fmt.Sprintf("offset=%d", offset), nil, "Accept", mediaBatch).want(t, 200, "")
		sent += len(a.body)
		b, _, err := record.Next(a.body)
		if err != nil || b.VerifyCRC() != nil || b.BaseOffset() > offset || b.NextOffset() <= offset {
			t.Fatalf("offset %d: %v, %d bytes", offset, err, len(a.body))
		}
		if a.ContentLength != int64(len(a.body)) || a.Header.Get("Next-Offset") != "10" || a.Header.Get("High-Watermark") != "10" {
			t.Errorf("offset %d: %v", offset, a.Header)
		}
	}
	head := d.do("HEAD", recordsOfT0+"offset=0", nil, "Accept", mediaBatch)
	if head.StatusCode != http.StatusOK || head.ContentLength <= 0 || len(head.body) != 0 {
		t.Errorf("HEAD: %d %v", head.StatusCode, head.Header)
	}
	if a := d.do("GET", recordsOfT0+"offset=10", nil, "Accept", mediaBatch).want(t, 200, ""); len(a.body) != 0 || a.Header.Get("Next-Offset") != "10" {
		t.Errorf("at the end: %v", a.Header)
	}
	// What went out is counted by now: the connection has served more since.
	if got := counted(t, d.server.metrics.sendfile); got != float64(sent) {
		t.Errorf("%v bytes by sendfile of %d", got, sent)
	}
}

// Where there is no connection to sendfile to, the bytes are copied.
func TestRawBatchesCopied(t *testing.T) {
	d := openDoor(t)
	d.fill("uncompressed")
	want := d.do("GET", recordsOfT0+"offset=0", nil, "Accept", mediaBatch).body
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), "GET", recordsOfT0+"offset=0", nil)
	r.Header.Set("Accept", mediaBatch)
	r.ProtoMajor = 2
	d.server.Handler().ServeHTTP(w, r)
	if w.Code != 200 || !bytes.Equal(w.Body.Bytes(), want) {
		t.Errorf("%d: %d bytes, want %d", w.Code, w.Body.Len(), len(want))
	}
}

// An answer larger than a chunk is whole, and its records in order.
func TestLargeAnswer(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for range 5 {
		d.do("POST", produceT+"?value=line", strings.Repeat(strings.Repeat("y", 99)+"\n", 20_000), "Content-Type", mediaNDJSON).want(t, 200, "")
	}
	got, f := d.offsets("from=earliest&max_bytes=33554432")
	if len(got) != 100_000 || f.Next != 100_000 || got[99_999] != 99_999 {
		t.Errorf("%d records, next %d", len(got), f.Next)
	}
}
