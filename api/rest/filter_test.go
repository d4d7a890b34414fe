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

// positionsOf are the offsets of records.
func positionsOf(records []streamed) (out []int64) {
	for _, r := range records {
		out = append(out, r.Offset)
	}
	return out
}

// A stream with a filter sends what it lets through, says how far it came, and
// is taken up again there, as events and as lines.
func TestFilterStreams(t *testing.T) {
	d := openDoor(t)
	atPace(d, func(p *pace) { p.beat, p.position = 50*time.Millisecond, 50*time.Millisecond })
	d.topic("t", 1)
	d.append(0, sequence(0, 200)...)
	d.do("POST", produceT0, `[{"value_str":"no number"}]`, "Content-Type", mediaJSON).want(t, 200, "")
	const path = "/v1/topics/t/partitions/0/records?from=earliest"

	lines := d.follow(filtered(path+"&stream=true", "value % 100 == 50"), mediaNDJSON)
	lines.control("position")
	for _, want := range []int64{50, 150} {
		if got := lines.item(); got.Control != "" || got.Offset != want {
			t.Fatalf("%+v, want %d", got, want)
		}
	}
	for lines.control("position").Next != 201 {
	}
	d.append(0, 250)
	if got := lines.item(); got.Offset != 201 {
		t.Fatalf("%+v", got)
	}
	again := d.follow(filtered("/v1/topics/t/partitions/0/records?offset=201&stream=true", "value % 100 == 50"), mediaNDJSON)
	again.control("position")
	if got := again.item(); got.Offset != 201 {
		t.Fatalf("%+v", got)
	}

	for _, of := range []string{path, "/v1/topics/t/records?from=earliest"} {
		events := d.follow(filtered(of, "value % 100 == 50"), mediaEvents)
		var seen []int64
		last := ""
		for len(seen) < 3 {
			e := events.event()
			records, err := recordsOf(e.data)
			if err != nil {
				t.Fatal(err)
			}
			seen, last = append(seen, positionsOf(records)...), e.id
		}
		if fmt.Sprint(seen) != "[50 150 201]" || last == "" {
			t.Errorf("%s: %v, at %q", of, seen, last)
		}
	}
}

// A stream whose filter lets nothing through for long says once in a while
// where it is, and its last id is behind what was looked at.
func TestFilterStreamPosition(t *testing.T) {
	d := openDoor(t)
	atPace(d, func(p *pace) { p.beat = 50 * time.Millisecond })
	d.topic("t", 1)
	d.append(0, sequence(0, 100)...)
	events := d.follow(filtered("/v1/topics/t/partitions/0/records?from=earliest", "value == -1"), mediaEvents)
	for {
		line, err := events.line()
		if err != nil {
			t.Fatal(err)
		}
		if line == "id: 100" {
			break
		}
	}
	for {
		line, err := events.line()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, ": hb filter_failed=0") {
			break
		}
	}
}

// A whole topic is filtered too, a cursor goes on behind what was looked at, and
// gaps are told beside it.
func TestFilterTopic(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 3)
	for p := range int32(3) {
		d.append(p, sequence(0, 100)...)
	}
	type fetched struct {
		Records    []streamed `json:"records"`
		Cursor     string     `json:"cursor"`
		Partitions []struct {
			Next int64 `json:"next_offset"`
		} `json:"partitions"`
		Gaps    []any `json:"gaps"`
		Scanned int   `json:"filter_scanned"`
	}
	var first, second fetched
	d.do("GET", filtered("/v1/topics/t/records?from=earliest&max_records=2", "value % 50 == 7 && partition != 1"), nil).want(t, 200, "").decode(t, &first)
	d.do("GET", filtered("/v1/topics/t/records?max_records=1000&cursor="+first.Cursor, "value % 50 == 7 && partition != 1"), nil).want(t, 200, "").decode(t, &second)
	if len(first.Records) != 2 || len(second.Records) != 2 {
		t.Fatalf("%+v and %+v", first, second)
	}
	for _, p := range second.Partitions {
		if p.Next != 100 {
			t.Errorf("%+v", second.Partitions)
		}
	}
	d.deleteBefore(0, 40)
	d.do("GET", filtered("/v1/topics/t/partitions/0/records?offset=10", "value == 57"), nil).want(t, 410, "offset_expired")
	d.do("GET", filtered("/v1/topics/t/partitions/0/records?offset=10&on_gap=earliest", "value == 57"), nil).want(t, 200, "").
		contains(t, `"gap":{"partition":0,"from":10,"to":40}`, `"offset":57`, `"filter_scanned":60`)
	d.do("GET", filtered("/v1/topics/t/partitions/0/records?offset=101", "true"), nil).want(t, 416, "offset_out_of_range")
}

// A record on which the filter takes too long is told of, and what is before it
// is answered first; a reader may go on behind it.
func TestFilterBudgetAnswer(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	long := "[" + strings.Repeat("1,", 5000) + "1]"
	d.do("POST", produceT0, `[{"value":[1]},{"value":`+long+`},{"value":[1]}]`, "Content-Type", mediaJSON).want(t, 200, "")
	const filter = "value.all(a, value.all(b, a == b))"
	read := func(offset int) *answer {
		return d.do("GET", filtered(fmt.Sprint("/v1/topics/t/partitions/0/records?offset=", offset), filter), nil)
	}
	read(0).want(t, 200, "").contains(t, `"next_offset":1`, `"offset":0`)
	if p := read(1).want(t, 422, "filter_budget").problem(t); !strings.Contains(p.Detail, "offset 1 of partition 0") {
		t.Error(p.Detail)
	}
	read(2).want(t, 200, "").contains(t, `"next_offset":3`, `"offset":2`)
	events := d.follow(filtered("/v1/topics/t/partitions/0/records?offset=0", filter), mediaEvents)
	for {
		e := events.event()
		if e.data != "" && e.id != "1" {
			t.Errorf("%+v", e)
		}
		if e.data != "" {
			break
		}
	}
	if e := events.named("error"); !strings.Contains(e.data, "filter_budget") {
		t.Errorf("%+v", e)
	}
}
