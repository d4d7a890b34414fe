package rest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"leat/api"
)

type topicFetched struct {
	Records    []streamed `json:"records"`
	Cursor     string     `json:"cursor"`
	Partitions []struct {
		Partition int32 `json:"partition"`
		Next      int64 `json:"next_offset"`
		HW        int64 `json:"high_watermark"`
		Start     int64 `json:"log_start_offset"`
	} `json:"partitions"`
	Gaps []streamed `json:"gaps"`
}

func (d *door) fetchTopic(query string) topicFetched {
	d.t.Helper()
	a := d.do("GET", streamT+"?"+query, nil).want(d.t, 200, "")
	var f topicFetched
	if err := json.Unmarshal(a.body, &f); err != nil {
		d.t.Fatalf("%v: %.300s", err, a.body)
	}
	if a.Header.Get("Cursor") != f.Cursor {
		d.t.Errorf("%s: header %q, body %q", query, a.Header.Get("Cursor"), f.Cursor)
	}
	return f
}

// Reading a topic on from cursor to cursor gives every record once, whatever the
// limits, and in order per partition.
func TestTopicFetch(t *testing.T) {
	for _, codec := range []string{"uncompressed", "zstd"} {
		for _, limit := range []string{"max_records=1", "max_records=7", "max_bytes=0", "max_bytes=1", "max_bytes=50", "max_records=3&max_bytes=20", ""} {
			t.Run(codec+" "+limit, func(t *testing.T) {
				d := openDoor(t)
				d.topic("t", 3, "compression.type", codec)
				for p := range int32(3) {
					d.append(p, 0, 1, 2, 3, 4)
					d.append(p, 5, 6, 7)
				}
				x := &exact{t: t, next: map[int32]int64{}}
				at := "from=earliest"
				for x.got < 24 {
					f := d.fetchTopic(at + "&" + limit)
					if len(f.Records) == 0 || strings.Contains(limit, "max_records=1") && len(f.Records) > 1 || len(f.Partitions) != 3 {
						t.Fatalf("%s: %+v", at, f)
					}
					x.take(f.Records...)
					for i, p := range f.Partitions {
						if int(p.Partition) != i || p.Next != x.next[p.Partition] || p.HW != 8 || p.Start != 0 {
							t.Errorf("%+v", f.Partitions)
						}
					}
					at = "cursor=" + f.Cursor
				}
				if f := d.fetchTopic(at); len(f.Records) != 0 || at != "cursor="+f.Cursor {
					t.Errorf("at the end: %+v", f)
				}
			})
		}
	}
}

// No partition waits for ever while others have more than an answer holds.
func TestTopicFetchIsFair(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 4)
	for p := range int32(4) {
		d.append(p, 0, 1, 2)
	}
	seen := map[int32]bool{}
	until(t, "every partition comes first", func() bool {
		seen[d.fetchTopic("from=earliest&max_records=1").Records[0].Partition] = true
		return len(seen) == 4
	})
}

// Of some partitions a cursor keeps the places in the others; partitions that
// are added later are read from their first record.
func TestTopicFetchPartitions(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 3)
	for p := range int32(3) {
		d.append(p, 0, 1)
	}
	all := d.fetchTopic("from=latest")
	for p := range int32(3) {
		d.append(p, 2)
	}
	some := d.fetchTopic("partitions=2,0&cursor=" + all.Cursor)
	if len(some.Records) != 2 || len(some.Partitions) != 2 || some.Partitions[1].Partition != 2 {
		t.Errorf("%+v", some)
	}
	d.addPartitions(4)
	d.append(3, 0)
	rest := d.fetchTopic("cursor=" + some.Cursor)
	var got []string
	for _, r := range rest.Records {
		got = append(got, fmt.Sprint(r.Partition, ":", r.Offset))
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"1:2", "3:0"}) || len(rest.Partitions) != 4 {
		t.Errorf("%v %+v", got, rest.Partitions)
	}
	c, err := api.ParseCursor(rest.Cursor)
	if err != nil || len(c.At) != 4 {
		t.Errorf("%v, %v", c, err)
	}
}

// What would need a cursor that is too long to be taken back is refused, and a
// stream ends when its topic outgrows one; in parts such a topic is read.
func TestTopicTooLargeForACursor(t *testing.T) {
	d := openDoor(t)
	d.topic("t", api.MaxCursorPartitions)
	whole := d.fetchTopic("from=latest")
	st := d.follow(streamT+"?cursor="+whole.Cursor, mediaEvents)
	lines := d.follow(streamT+"?stream=true&cursor="+whole.Cursor, mediaNDJSON)
	d.addPartitions(api.MaxCursorPartitions + 1)
	if e := st.named("error"); !strings.Contains(e.data, "at most 3000 partitions") {
		t.Errorf("%+v", e)
	}
	end := lines.control("end")
	if _, err := api.ParseCursor(end.Cursor); err != nil {
		t.Error(err)
	}
	for _, query := range []string{"from=earliest", "cursor=" + whole.Cursor, "partitions=3000&cursor=" + end.Cursor} {
		for _, accept := range []string{mediaJSON, mediaEvents} {
			d.do("GET", streamT+"?"+query, nil, "Accept", accept).want(t, 400, "invalid_parameter")
		}
	}
	if f := d.fetchTopic("partitions=3000&from=earliest"); len(f.Partitions) != 1 {
		t.Errorf("%+v", f)
	}
}

// It waits for records in any partition, and for no longer than asked.
func TestTopicFetchWaits(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 3)
	began := time.Now()
	if f := d.fetchTopic("from=latest&wait=100ms"); len(f.Records) != 0 || time.Since(began) < 100*time.Millisecond {
		t.Errorf("%+v after %v", f, time.Since(began))
	}
	polled := make(chan topicFetched, 1)
	go func() { polled <- d.fetchTopic("from=earliest&wait=60") }()
	d.untilWaiting(1)
	d.append(2, 0)
	if f := <-polled; len(f.Records) != 1 || f.Records[0].Partition != 2 {
		t.Errorf("%+v", f)
	}
}

// As NDJSON the cursor stands in a header.
func TestTopicFetchLines(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	d.append(0, 0, 1)
	d.append(1, 0)
	a := d.do("GET", streamT+"?from=earliest", nil, "Accept", mediaNDJSON).want(t, 200, "")
	if n := bytes.Count(a.body, []byte("\n")); n != 3 {
		t.Errorf("%d lines: %s", n, a.body)
	}
	if f := d.fetchTopic("cursor=" + a.Header.Get("Cursor")); len(f.Records) != 0 {
		t.Errorf("%+v", f)
	}
}

// Where records are gone a fetch fails, or goes on and tells, as on_gap says.
func TestFetchGap(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	d.append(0, 0, 1, 2, 3)
	d.append(1, 0, 1)
	begin := d.fetchTopic("from=earliest&max_records=1").Cursor
	d.deleteBefore(0, 3)
	cursor := api.Cursor{}
	if c, err := api.ParseCursor(begin); err != nil {
		t.Fatal(err)
	} else {
		cursor.Topic = c.Topic
	}
	at := "cursor=" + cursor.String()
	p := d.do("GET", streamT+"?"+at, nil).want(t, 410, "offset_expired").problem(t)
	if *p.LogStart != 3 || *p.Partition != 0 {
		t.Errorf("%+v", p)
	}
	d.do("GET", streamT0+"?offset=1&on_gap=fail", nil).want(t, 410, "offset_expired")
	f := d.fetchTopic(at + "&on_gap=earliest")
	if len(f.Records) != 3 || len(f.Gaps) != 1 || f.Gaps[0].Partition != 0 || f.Gaps[0].From != 0 || f.Gaps[0].To != 3 {
		t.Errorf("%+v", f)
	}
	if f := d.fetchTopic(at + "&on_gap=latest"); len(f.Records) != 2 || len(f.Gaps) != 1 || f.Gaps[0].To != 4 {
		t.Errorf("%+v", f)
	}
	for onGap, want := range map[string]string{"earliest": "0:1-3", "latest": "0:1-4"} {
		a := d.do("GET", streamT0+"?offset=1&on_gap="+onGap, nil).want(t, 200, "")
		if a.Header.Get("Gap") != want {
			t.Errorf("Gap %q, want %q", a.Header.Get("Gap"), want)
		}
		a.contains(t, `"gap":{"partition":0,"from":1,"to":`+want[4:]+`}`)
		if got := d.do("GET", streamT0+"?offset=1&on_gap="+onGap, nil, "Accept", mediaBatch).Header.Get("Gap"); got != want {
			t.Errorf("raw: Gap %q", got)
		}
	}
	d.do("GET", streamT0+"?offset=9&on_gap=earliest", nil).want(t, 416, "offset_out_of_range")
}
