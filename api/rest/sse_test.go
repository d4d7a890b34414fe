package rest

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"leat/api"
	"leat/storage/record"
)

// An event stream of a partition gives a record an event, what is there and
// what comes, with the offset behind it as id.
func TestEventsOfPartition(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.append(0, 0, 1, 2)
	l := d.follow(streamT0+"?offset=1", mediaEvents)
	first := l.event()
	if n, err := strconv.Atoi(first.retry); err != nil || n < 2000 || n > 3000 || first.id != "1" || first.data != "" {
		t.Errorf("%+v", first)
	}
	for offset := 1; offset < 6; offset++ {
		if offset >= 3 {
			d.append(0, offset)
		}
		e := l.event()
		if e.name != "" || e.id != strconv.Itoa(offset+1) || !strings.HasPrefix(e.data, fmt.Sprintf(`{"partition":0,"offset":%d,"timestamp":`, offset)) {
			t.Errorf("%d: %+v", offset, e)
		}
	}
}

// With batch=true an event of a partition is an array; a value with line ends
// is one line all the same.
func TestEventBatches(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.post(`[{"value_str":"a\nb\r"},{"value":{"x":1}}]`).want(t, 200, "")
	l := d.follow(streamT0+"?from=earliest&batch=true", mediaEvents)
	l.event()
	e := l.event()
	got, err := recordsOf(e.data)
	if err != nil || len(got) != 2 || e.id != "2" || !strings.Contains(e.data, `"value_str":"a\nb\r"`) {
		t.Errorf("%v: %+v", err, e)
	}
}

// An event stream of a topic gives arrays of one partition each, and its ids are
// cursors that it can be begun at again; with batch=false each record has one.
func TestEventsOfTopic(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 3)
	for p := range int32(3) {
		d.append(p, 0, 1, 2, 3)
	}
	for _, batch := range []string{"", "&batch=false"} {
		var ids []string
		l := d.follow(streamT+"?from=earliest"+batch, mediaEvents)
		first := l.event()
		if _, err := api.ParseCursor(first.id); err != nil || first.data != "" {
			t.Errorf("%+v, %v", first, err)
		}
		ids = append(ids, first.id)
		seen := map[string]bool{}
		for len(seen) < 12 {
			e := l.event()
			records, err := recordsOf(e.data)
			if err != nil || len(records) != 1 && batch != "" {
				t.Fatalf("%v: %+v", err, e)
			}
			for _, r := range records {
				seen[fmt.Sprint(r.Partition, r.Offset)] = true
			}
			ids = append(ids, e.id)
		}
		for i, id := range ids {
			again := d.follow(streamT, mediaEvents, "Last-Event-ID", id)
			if first := again.event(); first.id != id {
				t.Errorf("begun at %d of %d: %+v", i, len(ids), first)
			}
			if i == len(ids)-1 {
				d.append(1, 9)
			}
			if i == 0 || i == len(ids)-1 {
				if e := again.event(); !strings.Contains(e.data, `"offset"`) {
					t.Errorf("%+v", e)
				}
			}
			again.close()
		}
		l.close()
	}
}

// The header Last-Event-ID stands above the parameter of the name, and that
// above the place; an empty one is none.
func TestLastEventID(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.append(0, 0, 1, 2, 3, 4, 5)
	for _, tc := range []struct{ query, header, want string }{
		{"?offset=1", "", "1"},
		{"", "", "6"},
		{"?from=earliest&last_event_id=2", "", "2"},
		{"?offset=1&last_event_id=2", "3", "3"},
		{"?last_event_id=2", "", "2"},
		{"?last_event_id=", "4", "4"},
		{"?from=latest", "0", "0"},
	} {
		l := d.follow(streamT0+tc.query, mediaEvents, "Last-Event-ID", tc.header)
		if got := l.event().id; got != tc.want {
			t.Errorf("%q with %q: %s, want %s", tc.query, tc.header, got, tc.want)
		}
		l.close()
	}
	for _, id := range []string{"x", "-1", "1.5", "9223372036854775808", "AQ"} {
		p := d.do("GET", streamT0, nil, "Accept", mediaEvents, "Last-Event-ID", id).want(t, 400, "invalid_parameter").problem(t)
		if p.Parameter != "Last-Event-ID" {
			t.Errorf("%s: %+v", id, p)
		}
	}
	d.do("GET", streamT, nil, "Accept", mediaEvents, "Last-Event-ID", "5").want(t, 400, "bad_cursor")
	d.do("GET", streamT0, nil, "Accept", mediaEvents, "Last-Event-ID", "7").want(t, 416, "offset_out_of_range")
}

// A stream that is silent sends a comment, and nothing else.
func TestHeartbeat(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	atPace(d, func(p *pace) { p.beat = 20 * time.Millisecond })
	l := d.follow(streamT0, mediaEvents)
	l.event()
	for range 3 {
		if e := l.event(); e.comment != "hb" || e.hasID || e.data != "" {
			t.Errorf("%+v", e)
		}
	}
	d.append(0, 7)
	for {
		if e := l.event(); e.comment == "" {
			if e.id != "1" {
				t.Errorf("%+v", e)
			}
			return
		}
	}
}

// A stream ends when its time is over, and tells its client to come back; so
// does one that never has nothing to send.
func TestLifetime(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	atPace(d, func(p *pace) { p.life = 50 * time.Millisecond })
	l := d.follow(streamT0, mediaEvents)
	e := l.named("reconnect")
	if !strings.HasPrefix(e.data, `{"in_ms":`) || e.retry == "" {
		t.Errorf("%+v", e)
	}
	if _, err := l.tryEvent(); err == nil {
		t.Error("it goes on")
	}
	until(t, "the end is counted", func() bool { return counted(t, d.server.metrics.streams[kindSSE].ended[endLifetime]) == 1 })
}

// Shutdown ends streams, which say when to come back, and waits for them.
func TestDrain(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	events, lines := d.follow(streamT0, mediaEvents), d.follow(streamT+"?stream=true", mediaNDJSON)
	events.event()
	lines.item()
	if err := d.server.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := events.named("reconnect"); e.retry == "" || e.id != "" {
		t.Errorf("%+v", e)
	}
	if s := lines.control("end"); s.Reason != endDrain || s.Cursor == "" {
		t.Errorf("%+v", s)
	}
}

// A topic that is deleted under a stream is told, with an id that makes a browser
// stop; positions in it are 410 from then on, also once it is made again.
func TestStreamReset(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	d.append(0, 1)
	before := d.topicID()
	events, single, lines := d.follow(streamT, mediaEvents), d.follow(streamT0, mediaEvents), d.follow(streamT+"?stream=true", mediaNDJSON)
	cursor := events.event().id
	single.event()
	if s := lines.item(); s.Control != "position" || s.TopicID != before || s.Cursor != cursor {
		t.Errorf("%+v", s)
	}
	d.deleteTopic()
	for _, l := range []*live{events, single} {
		if e := l.named("stream_reset"); e.id != stopID || e.data != `{"topic":"t"}` {
			t.Errorf("%+v", e)
		}
		if _, err := l.tryEvent(); err == nil {
			t.Error("it goes on")
		}
	}
	if s := lines.control("end"); s.Reason != endReset {
		t.Errorf("%+v", s)
	}
	if _, err := lines.line(); err == nil || lines.Trailer.Get(closeReason) != endReset {
		t.Errorf("trailer %v", lines.Trailer)
	}
	if a := d.do("GET", streamT, nil, "Accept", mediaEvents, "Last-Event-ID", stopID); a.StatusCode != http.StatusNoContent {
		t.Errorf("%d", a.StatusCode)
	}
	d.do("GET", streamT, nil, "Accept", mediaEvents, "Last-Event-ID", cursor).want(t, 404, "unknown_topic")
	d.topic("t", 2)
	for _, path := range []string{streamT + "?cursor=" + cursor, streamT0 + "?offset=0&topic_id=" + before, streamT + "?from=earliest&topic_id=" + before} {
		d.do("GET", path, nil).want(t, 410, "stream_reset")
		if code := d.do("HEAD", path, nil).StatusCode; code != 410 {
			t.Errorf("HEAD %s: %d", path, code)
		}
		d.do("GET", path, nil, "Accept", mediaEvents).want(t, 410, "stream_reset")
		d.do("GET", path+"&stream=true", nil, "Accept", mediaNDJSON).want(t, 410, "stream_reset")
	}
	d.do("GET", streamT0+"?offset=0&topic_id="+d.topicID(), nil).want(t, 200, "")
}

// Partitions that are added are followed from their first record.
func TestPartitionAdded(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	events, lines := d.follow(streamT, mediaEvents), d.follow(streamT+"?stream=true", mediaNDJSON)
	some := d.follow(streamT+"?partitions=0", mediaEvents)
	old := events.event().id
	lines.item()
	some.event()
	d.addPartitions(3)
	d.append(2, 5, 6)
	if e := events.named(""); !strings.HasPrefix(e.data, `[{"partition":2,"offset":0,`) {
		t.Errorf("%+v", e)
	}
	if s := lines.item(); s.Partition != 2 || s.Offset != 0 {
		t.Errorf("%+v", s)
	}
	d.append(0, 1)
	if e := some.event(); !strings.HasPrefix(e.data, `[{"partition":0,"offset":0,`) {
		t.Errorf("%+v", e)
	}
	// A cursor from before knows nothing of them.
	again := d.follow(streamT, mediaEvents, "Last-Event-ID", old)
	again.event()
	seen := map[int32]int{}
	for seen[0]+seen[2] < 3 {
		records, err := recordsOf(again.event().data)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			seen[r.Partition]++
		}
	}
}

// Records that are deleted before a stream comes to them are a gap that is told,
// or an end, as on_gap says; on a stream that stands still and at its begin.
func TestStreamGap(t *testing.T) {
	for _, tc := range []struct {
		onGap string
		to    int64
	}{{"", 90}, {"earliest", 90}, {"latest", 100}, {"fail", -1}} {
		t.Run(tc.onGap, func(t *testing.T) {
			d := openDoor(t)
			d.topic("t", 1, "segment.bytes", "1048576")
			big := strings.Repeat("x", 100_000)
			for range 100 {
				d.post(`[{"value":"`+big+`"}]`).want(t, 200, "")
			}
			query := ""
			if tc.onGap != "" {
				query = "&on_gap=" + tc.onGap
			}
			// The sockets hold a part of 10 MB only, so the stream stands still.
			slow, topic := d.follow(streamT0+"?offset=0"+query, mediaEvents), d.follow(streamT+"?from=earliest"+query, mediaEvents)
			slow.event()
			topic.event()
			lines := d.follow(streamT0+"?stream=true&offset=0"+query, mediaNDJSON)
			d.deleteBefore(0, 90)
			for _, l := range []*live{slow, topic} {
				if tc.to < 0 {
					if e := l.named("error"); !strings.Contains(e.data, `"code":"offset_expired"`) || !strings.Contains(e.data, `"log_start_offset":90`) {
						t.Errorf("%.300s", e.data)
					}
					continue
				}
				e := l.named("gap")
				if !strings.HasPrefix(e.data, `{"partition":0,"from":`) || !strings.HasSuffix(e.data, fmt.Sprintf(`,"to":%d}`, tc.to)) {
					t.Errorf("%+v", e)
				}
				if l == slow && e.id != strconv.FormatInt(tc.to, 10) {
					t.Errorf("id %s", e.id)
				}
			}
			if tc.to < 0 {
				if s := lines.control("end"); s.Reason != endError || s.Problem.Code != "offset_expired" {
					t.Errorf("%+v", s)
				}
				d.do("GET", streamT0+"?offset=5&on_gap=fail", nil, "Accept", mediaEvents).want(t, 410, "offset_expired")
				return
			}
			if s := lines.control("gap"); s.To != tc.to || s.From >= 90 {
				t.Errorf("%+v", s)
			}
			begun := d.follow(streamT0+"?offset=5"+query, mediaEvents)
			if e := begun.named("gap"); e.data != fmt.Sprintf(`{"partition":0,"from":5,"to":%d}`, tc.to) {
				t.Errorf("%+v", e)
			}
			if tc.to == 90 {
				if e := begun.event(); e.id != "91" {
					t.Errorf("%.80s", e.data)
				}
			}
		})
	}
}

// A damaged batch ends a stream with the error of a fetch, after the records
// before it.
func TestStreamDamage(t *testing.T) {
	for name, change := range map[string]func(*os.File, int64) error{
		"payload": overwrite(record.HeaderSize+5, 0xff, 0xfe, 0xfd),
		"length":  overwrite(8, 0x7f, 0xff, 0xff, 0xff),
		"cut":     func(f *os.File, at int64) error { return f.Truncate(at + 70) },
	} {
		for _, codec := range []string{"uncompressed", "zstd"} {
			t.Run(name+" "+codec, func(t *testing.T) {
				d := openDoor(t)
				d.fill(codec)
				d.damage(change)
				l := d.follow(streamT0+"?offset=0", mediaEvents)
				l.event()
				for offset := range 4 {
					if e := l.event(); e.id != strconv.Itoa(offset+1) || e.name != "" {
						t.Errorf("%+v", e)
					}
				}
				want := d.do("GET", streamT0+"?offset=4", nil).want(t, 500, "corrupt_record").problem(t)
				var got api.Problem
				e := l.event()
				if err := json.Unmarshal([]byte(e.data), &got); err != nil || e.name != "error" || got.Code != want.Code || got.Detail != want.Detail || *got.Partition != 0 {
					t.Errorf("%v: %+v", err, e)
				}
				if _, err := l.tryEvent(); err == nil {
					t.Error("it goes on")
				}
			})
		}
	}
}
