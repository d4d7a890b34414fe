package rest

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
)

// filtered is the path of a read with a filter.
func filtered(path, filter string) string { return path + "&filter=" + url.QueryEscape(filter) }

// decode reads the JSON of an answer.
func (a *answer) decode(t testing.TB, into any) {
	t.Helper()
	if err := json.Unmarshal(a.body, into); err != nil {
		t.Fatalf("%v: %.300s", err, a.body)
	}
}

// waiting is how many fetches wait for records.
func (d *door) waiting() float64 {
	d.t.Helper()
	families, err := d.reg.Gather()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "leat_broker_waiting_fetches" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	d.t.Fatal("no metric")
	return 0
}

// sequence is the numbers in [from, to).
func sequence(from, to int) (out []int) {
	for n := from; n < to; n++ {
		out = append(out, n)
	}
	return out
}

// A filter leaves records out on every form of a single answer, and the answer
// says how many it looked at and of how many it could say nothing.
func TestFilterAnswers(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.do("POST", "/v1/topics/t/records", `[
		{"key":"a","value":{"n":1},"headers":{"type":"x"}},
		{"key":"b","value":{"n":2},"headers":{"type":"y"}},
		{"key":"c","value_str":"no json"},
		{"key":"d","value":{"n":9007199254740993}},
		{"value":null},
		{"key":"f","value":{"n":2}}]`, "Content-Type", mediaJSON).want(t, 200, "")
	const path = "/v1/topics/t/partitions/0/records?offset=0"
	for _, c := range []struct {
		filter, offsets string
		failed          int
	}{
		{`value.n == 2`, "1 5", 2},
		{`has(value.n) && value.n == 2`, "1 5", 1},
		{`value.n == 9007199254740993`, "3", 2},
		{`value.n == 9007199254740992`, "", 2},
		{`key == "c"`, "2", 0},
		{`key == null`, "4", 0},
		{`value == null`, "4", 1},
		{`value_str == "no json"`, "2", 0},
		{`"type" in headers && headers.type == "x"`, "0", 0},
		{`headers.type == "x"`, "0", 4},
		{`offset >= 4 && partition == 0 && topic == "t" && timestamp > 0`, "4 5", 0},
		{`value_bytes == b"no json" || key_bytes == b"a"`, "0 2", 0},
		{`true`, "0 1 2 3 4 5", 0},
		{`false`, "", 0},
	} {
		var fetched struct {
			Records []streamed `json:"records"`
			Next    int64      `json:"next_offset"`
			Scanned int        `json:"filter_scanned"`
			Failed  int        `json:"filter_failed"`
		}
		a := d.do("GET", filtered(path, c.filter), nil).want(t, 200, "")
		a.decode(t, &fetched)
		var offsets []string
		for _, r := range fetched.Records {
			offsets = append(offsets, strconv.FormatInt(r.Offset, 10))
		}
		if got := strings.Join(offsets, " "); got != c.offsets || fetched.Next != 6 || fetched.Scanned != 6 || fetched.Failed != c.failed {
			t.Errorf("%s: %s", c.filter, a.body)
		}
		lines := d.do("GET", filtered(path, c.filter), nil, "Accept", mediaNDJSON).want(t, 200, "")
		if strings.Count(string(lines.body), "\n") != len(offsets) || lines.Header.Get("Next-Offset") != "6" ||
			lines.Header.Get("Filter-Scanned") != "6" || lines.Header.Get("Filter-Failed") != strconv.Itoa(c.failed) {
			t.Errorf("%s: %v %s", c.filter, lines.Header, lines.body)
		}
		head := d.do("HEAD", filtered(path, c.filter), nil).want(t, 200, "")
		if head.Header.Get("Next-Offset") != "6" || head.Header.Get("Filter-Failed") != strconv.Itoa(c.failed) {
			t.Errorf("%s: HEAD %v", c.filter, head.Header)
		}
	}
}

// What is no filter is refused with what is wrong and where; so is one that
// might take too long, on every form.
func TestFilterRefused(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for _, c := range []struct {
		filter string
		status int
		code   string
		detail string
	}{
		{"", 400, "invalid_filter", "empty"},
		{" ", 400, "invalid_filter", "empty"},
		{"1 +", 400, "invalid_filter", "line 1, column 4"},
		{"true &&\n  nothing", 400, "invalid_filter", "line 2, column 3"},
		{"offset", 400, "invalid_filter", "want bool"},
		{"value_str.matches(key)", 400, "invalid_filter", "literal"},
		{`value_str.matches("a{400}b{400}")`, 400, "invalid_filter", "regex"},
		{strings.Repeat("(", 100) + "true" + strings.Repeat(")", 100), 400, "invalid_filter", "recursion"},
		{"true" + strings.Repeat(" ", 4096), 400, "invalid_filter", "4096"},
		{"value.all(a, value.all(b, value.all(c, a == b)))", 422, "filter_budget", "steps"},
	} {
		for _, accept := range []string{mediaJSON, mediaNDJSON, mediaEvents} {
			for _, path := range []string{"/v1/topics/t/partitions/0/records?from=earliest", "/v1/topics/t/records?from=earliest"} {
				a := d.do("GET", filtered(path, c.filter), nil, "Accept", accept).want(t, c.status, c.code)
				if p := a.problem(t); !strings.Contains(p.Detail, c.detail) || p.Parameter != "filter" {
					t.Errorf("%q: %s", c.filter, a.body)
				}
			}
		}
	}
	d.do("GET", "/v1/topics/t/partitions/0/records?offset=0&filter=true", nil, "Accept", mediaBatch).want(t, 400, "invalid_parameter")
}

// max_records and max_bytes count what the filter lets through, and a client
// that reads on sees each match once.
func TestFilterLimits(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for first := 0; first < 300; first += 100 {
		d.append(0, sequence(first, first+100)...)
	}
	for _, limit := range []string{"max_records=7", "max_bytes=9", "max_bytes=0", "max_records=1000"} {
		next, seen := int64(0), int64(0)
		for next < 300 {
			var fetched struct {
				Records []streamed `json:"records"`
				Next    int64      `json:"next_offset"`
			}
			path := fmt.Sprintf("/v1/topics/t/partitions/0/records?offset=%d&%s", next, limit)
			a := d.do("GET", filtered(path, "value % 10 == 3"), nil).want(t, 200, "")
			a.decode(t, &fetched)
			if fetched.Next <= next || limit == "max_records=7" && len(fetched.Records) > 7 {
				t.Fatalf("%s: %s", path, a.body)
			}
			for _, r := range fetched.Records {
				if r.Offset != seen*10+3 {
					t.Fatalf("%s: %d after %d", limit, r.Offset, seen)
				}
				seen++
			}
			next = fetched.Next
		}
		if seen != 30 {
			t.Errorf("%s: %d matches", limit, seen)
		}
	}
}

// A read that waits goes on until a record comes that its filter lets through,
// and one for which none comes answers in time with how far it came.
func TestFilterWaits(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.append(0, 1, 2, 3)
	answers := make(chan *answer, 1)
	go func() {
		answers <- d.do("GET", filtered("/v1/topics/t/partitions/0/records?offset=0&wait=20", "value == 5"), nil)
	}()
	until(t, "a fetch that waits", func() bool { return d.waiting() == 1 })
	d.append(0, 4)
	d.append(0, 5)
	(<-answers).want(t, 200, "").contains(t, `"offset":4`, `"next_offset":5`, `"filter_scanned":5`)
	began := time.Now()
	d.do("GET", filtered("/v1/topics/t/partitions/0/records?offset=0&wait=300ms", "value == 6"), nil).want(t, 200, "").
		contains(t, `"records":[]`, `"next_offset":5`)
	if took := time.Since(began); took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("it waited for %v", took)
	}
}
