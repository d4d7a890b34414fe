package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	dto "github.com/prometheus/client_model/go"

	"leat/auth"
	"leat/broker"
)

// exact checks that a reader gets every record once, in order per partition.
// Values of a partition count up from 0.
type exact struct {
	t    *testing.T
	next map[int32]int64
	want int64
	got  int64
}

func (x *exact) take(records ...streamed) {
	x.t.Helper()
	for _, r := range records {
		if r.Offset != x.next[r.Partition] || r.Value != float64(r.Offset) {
			x.t.Fatalf("partition %d: offset %d with value %v after %d", r.Partition, r.Offset, r.Value, x.next[r.Partition])
		}
		x.next[r.Partition]++
		x.got++
	}
}

// Streams that are cut ten times at random, while records come, give every
// record exactly once: with the last id, the last cursor, or the last position
// line. Which place the cut hits differs from run to run.
func TestExactlyOnce(t *testing.T) {
	for _, kind := range []string{"events of partition", "events of topic", "single events of topic", "lines of partition", "lines of topic"} {
		t.Run(kind, func(t *testing.T) {
			d := openDoor(t)
			d.topic("t", 4)
			partitions := int32(1)
			if strings.Contains(kind, "topic") {
				partitions = 4
			}
			x := &exact{t: t, next: map[int32]int64{}, want: 4000}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			done := make(chan error, 1)
			go func() { done <- d.counting(ctx, partitions, x.want) }()
			place := ""
			for cuts := 10; x.got < x.want; cuts-- {
				most := int64(1 << 40)
				if cuts > 0 {
					most = 1 + rand.Int64N(x.want/12)
				}
				if strings.HasPrefix(kind, "lines") {
					place = d.readLines(x, partitions > 1, place, most)
				} else {
					place = d.readEvents(x, partitions > 1, kind[0] == 's', place, most)
				}
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// counting produces records in small batches until there are want.
func (d *door) counting(ctx context.Context, partitions int32, want int64) error {
	next := make([]int64, partitions)
	for n := int64(0); n < want; {
		set, err := d.broker.NewRecordSet(ctx, auth.Anonymous, "t")
		if err != nil {
			return err
		}
		p := rand.Int32N(partitions)
		for range min(1+rand.Int64N(40), want-n) {
			if err := set.Add(p, -1, nil, strconv.AppendInt(nil, next[p], 10), nil); err != nil {
				return err
			}
			next[p]++
			n++
		}
		results, err := set.Produce(ctx, broker.AcksAll, time.Minute)
		set.Close()
		if err != nil {
			return err
		}
		for _, r := range results {
			if r.Err != nil {
				return r.Err
			}
		}
	}
	return nil
}

// readEvents takes about most records from a place on and gives the place to go
// on at, as a browser does.
func (d *door) readEvents(x *exact, whole, single bool, place string, most int64) string {
	x.t.Helper()
	path := streamT0 + "?from=earliest"
	if whole {
		path = streamT + "?from=earliest"
	}
	if single {
		path += "&batch=false"
	}
	l := d.follow(path, mediaEvents, "Last-Event-ID", place)
	defer l.close()
	for until := x.got + most; x.got < min(until, x.want); {
		e := l.event()
		if e.data != "" {
			records, err := recordsOf(e.data)
			if err != nil {
				x.t.Fatal(err)
			}
			x.take(records...)
		}
		if e.hasID {
			place = e.id
		}
	}
	return place
}

// readLines does so with an NDJSON stream: what stands behind the last position
// is forgotten, as by a client that keeps both together.
func (d *door) readLines(x *exact, whole bool, place string, most int64) string {
	x.t.Helper()
	path := streamT0 + "?stream=true&"
	if whole {
		path = streamT + "?stream=true&"
	}
	if place == "" {
		place = "from=earliest"
	}
	l := d.follow(path+place, mediaNDJSON)
	defer l.close()
	var pending []streamed
	for read, got := int64(0), x.got; ; {
		switch s := l.item(); s.Control {
		case "":
			pending = append(pending, s)
			read++
		case "position":
			x.take(pending...)
			pending = nil
			place = "offset=" + strconv.FormatInt(s.Next, 10)
			if whole {
				place = "cursor=" + s.Cursor
			}
		}
		if read >= most && x.got > got || x.got == x.want {
			return place
		}
	}
}

// What is wrong with a request for a stream is said before it begins, and names
// the parameter.
func TestStreamParameters(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	for _, tc := range []struct{ path, accept, parameter string }{
		{streamT0 + "?stream=yes", mediaNDJSON, "stream"},
		{streamT0 + "?stream=true&offset=0", mediaJSON, "stream"},
		{streamT0 + "?stream=true&offset=0", mediaBatch, "stream"},
		{streamT0 + "?stream=false", mediaEvents, "stream"},
		{streamT0 + "?batch=1", mediaEvents, "batch"},
		{streamT0 + "?batch=true&stream=true", mediaNDJSON, "batch"},
		{streamT0 + "?batch=true&offset=0", mediaJSON, "batch"},
		{streamT0 + "?last_event_id=1&offset=0", mediaJSON, "last_event_id"},
		{streamT0 + "?last_event_id=1&stream=true", mediaNDJSON, "last_event_id"},
		{streamT0 + "?last_event_id=x", mediaEvents, "last_event_id"},
		{streamT0 + "?wait=1", mediaEvents, "wait"},
		{streamT0 + "?min_bytes=1", mediaEvents, "min_bytes"},
		{streamT0 + "?max_bytes=1", mediaEvents, "max_bytes"},
		{streamT0 + "?max_records=1&stream=true", mediaNDJSON, "max_records"},
		{streamT0 + "?on_gap=skip", mediaEvents, "on_gap"},
		{streamT0 + "?on_gap=", mediaEvents, "on_gap"},
		{streamT0 + "?as=xml", mediaEvents, "as"},
		{streamT0 + "?offset=-1", mediaEvents, "offset"},
		{streamT0 + "?offset=0&from=latest", mediaEvents, "from"},
		{streamT0 + "?cursor=AQ", mediaEvents, "cursor"},
		{streamT0 + "?partitions=0", mediaEvents, "partitions"},
		{streamT + "?offset=0", mediaEvents, "offset"},
		{streamT + "?from=begin", mediaEvents, "from"},
		{streamT + "?partitions=", mediaEvents, "partitions"},
		{streamT + "?partitions=0,", mediaEvents, "partitions"},
		{streamT + "?partitions=0,0", mediaEvents, "partitions"},
		{streamT + "?partitions=-1", mediaEvents, "partitions"},
		{streamT + "?partitions=2147483648", mediaEvents, "partitions"},
		{streamT, mediaJSON, "cursor"},
		{streamT, mediaNDJSON, "cursor"},
	} {
		p := d.do("GET", tc.path, nil, "Accept", tc.accept).want(t, 400, "invalid_parameter").problem(t)
		if p.Parameter != tc.parameter {
			t.Errorf("%s as %s names %q, want %q", tc.path, tc.accept, p.Parameter, tc.parameter)
		}
		if code := d.do("HEAD", tc.path, nil, "Accept", tc.accept).StatusCode; code != 400 {
			t.Errorf("HEAD %s: %d", tc.path, code)
		}
	}
	for _, tc := range []struct {
		path, accept string
		status       int
		code         string
	}{
		{"/v1/topics/none/records", mediaEvents, 404, "unknown_topic"},
		{"/v1/topics/none/partitions/0/records", mediaEvents, 404, "unknown_topic"},
		{"/v1/topics/t/partitions/2/records", mediaEvents, 404, "unknown_partition"},
		{streamT + "?partitions=0,2", mediaEvents, 404, "unknown_partition"},
		{streamT + "?cursor=AQ", mediaJSON, 400, "bad_cursor"},
		{streamT + "?from=earliest", mediaBatch, 406, "not_acceptable"},
		{streamT + "?from=earliest", "text/plain", 406, "not_acceptable"},
		{streamT0 + "?offset=1", mediaEvents, 416, "offset_out_of_range"},
		{streamT0 + "?offset=1&stream=true", mediaNDJSON, 416, "offset_out_of_range"},
		{streamT0 + "?topic_id=x", mediaEvents, 410, "stream_reset"},
	} {
		d.do("GET", tc.path, nil, "Accept", tc.accept).want(t, tc.status, tc.code)
	}
}

// Case 25: HEAD on streams, long polls and plain routes answers with headers at
// once and leaves nothing behind.
func TestHeadOnStreams(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	d.append(0, 1)
	paths := []struct{ path, accept string }{
		{streamT0, mediaEvents},
		{streamT, mediaEvents},
		{streamT0 + "?stream=true", mediaNDJSON},
		{streamT + "?stream=true", mediaNDJSON},
		{streamT0 + "?from=latest&wait=60", mediaJSON},
		{streamT + "?from=latest&wait=60", mediaJSON},
		{streamT + "?from=latest&wait=60", mediaNDJSON},
	}
	d.do("HEAD", streamT, nil, "Accept", mediaEvents)
	before := runtime.NumGoroutine()
	for range 150 {
		for _, tc := range paths {
			began := time.Now()
			a := d.do("HEAD", tc.path, nil, "Accept", tc.accept)
			if a.StatusCode != http.StatusOK || len(a.body) > 0 || a.Header.Get("Content-Type") != tc.accept || a.Header.Get("Cache-Control") != "no-store" {
				t.Fatalf("%s: %d %v", tc.path, a.StatusCode, a.Header)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Fatalf("%s took %v", tc.path, took)
			}
		}
	}
	until(t, "goroutines are back to where they were", func() bool { return runtime.NumGoroutine() <= before })
	if n := d.gauge(kindSSE) + d.gauge(kindNDJSON); n != 0 {
		t.Errorf("%v streams are open", n)
	}
	a := d.do("HEAD", streamT+"?from=earliest", nil)
	if got := d.do("GET", streamT+"?from=earliest", nil); got.Header.Get("Cursor") == "" || a.Header.Get("Cursor") != got.Header.Get("Cursor") {
		t.Errorf("%v, GET %v", a.Header, got.Header)
	}
}

// gauge is the number of open streams of a kind.
func (d *door) gauge(kind string) float64 {
	d.t.Helper()
	var out dto.Metric
	if err := d.server.metrics.streams[kind].open.Write(&out); err != nil {
		d.t.Fatal(err)
	}
	return out.GetGauge().GetValue()
}

// A client that goes away ends its stream, and one that does not read ends it
// when a write has waited too long; nothing is left of them.
func TestStreamClientGone(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for range 20 {
		d.post(`[{"value":"`+strings.Repeat("x", 900_000)+`"}]`).want(t, 200, "")
	}
	atPace(d, func(p *pace) { p.write = 300 * time.Millisecond })
	gone := d.follow(streamT0, mediaEvents)
	gone.event()
	if d.gauge(kindSSE) != 1 {
		t.Errorf("%v streams are open", d.gauge(kindSSE))
	}
	gone.close()
	m := d.server.metrics.streams[kindSSE]
	until(t, "the client is gone", func() bool { return counted(t, m.ended[endClient]) == 1 })
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET "+streamT0+"?from=earliest HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	until(t, "the slow client is cut off", func() bool { return counted(t, m.ended[endSlow]) == 1 })
	if n := d.gauge(kindSSE); n != 0 {
		t.Errorf("%v streams are open", n)
	}
	d.untilWaiting(0)
}

// The metrics know streams by kind and keep them out of the times of requests.
func TestStreamMetrics(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.append(0, 1, 2, 3)
	l := d.follow(streamT0+"?offset=1", mediaEvents)
	for range 3 {
		l.event()
	}
	m := d.server.metrics
	until(t, "the records are counted", func() bool { return counted(t, m.streams[kindSSE].records) == 2 })
	until(t, "so are the bytes, while it goes on", func() bool { return counted(t, m.sent) > 200 })
	sent := counted(t, m.sent)
	l.close()
	until(t, "the stream is over", func() bool { return counted(t, m.streams[kindSSE].ended[endClient]) == 1 })
	families, err := d.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			key := f.GetName()
			for _, label := range metric.GetLabel() {
				key += " " + label.GetValue()
			}
			got[key] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	route := "/v1/topics/{topic}/partitions/{partition}/records"
	for key, want := range map[string]float64{
		"leat_http_streams sse": 0, "leat_http_streams ndjson": 0, "leat_http_stream_records_total sse": 2, "leat_http_streams_ended_total sse client": 1,
		"leat_http_stream_duration_seconds sse": 1, "leat_http_request_duration_seconds GET " + route: 0, "leat_feed_reads_total encoded": 1,
		"leat_http_records_total out": 2,
	} {
		if got[key] != want {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
	if after := counted(t, m.sent); after > 2*sent {
		t.Errorf("bytes are counted twice: %v, then %v", sent, after)
	}
}

// A record that is larger than any buffer goes through a stream whole.
func TestStreamLargeRecord(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	value := strings.Repeat("é\n", 300_000)
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	d.post(`[{"value":1},{"value_str":`+string(text)+`},{"value":2}]`).want(t, 200, "")
	events := d.follow(streamT+"?from=earliest", mediaEvents)
	lines := d.follow(streamT0+"?from=earliest&stream=true", mediaNDJSON)
	events.event()
	lines.item()
	for n := 0; n < 3; {
		e := events.event()
		var records []struct {
			Value any    `json:"value"`
			Str   string `json:"value_str"`
		}
		if err := json.Unmarshal([]byte(e.data), &records); err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if n == 1 && r.Str != value {
				t.Errorf("%d bytes of %d", len(r.Str), len(value))
			}
			n++
		}
	}
	for offset := range int64(3) {
		s := lines.item()
		for s.Control != "" {
			s = lines.item()
		}
		if s.Offset != offset {
			t.Errorf("%+v", s)
		}
	}
}

// Streams that wait at one place are all woken by one record, and its text is
// made once.
func TestManyStreams(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	const many = 200
	streams := make([]*live, many)
	for i := range streams {
		streams[i] = d.follow(streamT0, mediaEvents)
		streams[i].event()
	}
	d.append(0, 1)
	for _, l := range streams {
		if e := l.event(); e.id != "1" {
			t.Fatalf("%+v", e)
		}
	}
	families, err := d.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "leat_feed_reads_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			want := map[string]float64{"encoded": 1, "shared": many - 1}[m.GetLabel()[0].GetValue()]
			if got := m.GetCounter().GetValue(); got != want {
				t.Errorf("%v: %v, want %v", m.GetLabel(), got, want)
			}
		}
	}
}

// The WebSocket door gets the connection itself, which does not count any more:
// plain requests are served beside any number of sockets. No WebSocket door is
// no route; HEAD is refused.
func TestWebSocketMount(t *testing.T) {
	taken := make(chan net.Conn, 8)
	d := openDoor(t, func(s *setup) {
		s.MaxConnections = 2
		s.WebSocket = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, rw, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, err = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\n\r\n")
				err = errors.Join(err, rw.Flush())
			}
			if err != nil {
				t.Error(err)
			}
			taken <- c
		})
	})
	shake := func() (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "GET /v1/ws HTTP/1.1\r\nHost: x\r\n\r\n")
		head := make([]byte, len("HTTP/1.1 101"))
		_, err = io.ReadFull(c, head)
		if err == nil && string(head) != "HTTP/1.1 101" {
			err = fmt.Errorf("%s", head)
		}
		return c, err
	}
	for range 3 {
		if _, err := shake(); err != nil {
			t.Fatal(err)
		}
		until(t, "it counts no more", func() bool { return d.server.conns.Load() == 0 })
	}
	first, second := <-taken, <-taken
	if _, err := (&net.Buffers{[]byte("a"), []byte("b")}).WriteTo(first); err != nil {
		t.Error(err)
	}
	if err := errors.Join(first.Close(), second.Close()); err != nil {
		t.Error(err)
	}
	if code := d.do("HEAD", "/v1/ws", nil).StatusCode; code != http.StatusUpgradeRequired {
		t.Errorf("HEAD: %d", code)
	}
	openDoor(t).do("GET", "/v1/ws", nil).want(t, 404, "not_found")
}
