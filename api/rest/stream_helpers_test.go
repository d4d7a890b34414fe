package rest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"leat/auth"
	"leat/broker"
)

const (
	streamT  = "/v1/topics/t/records"
	streamT0 = "/v1/topics/t/partitions/0/records"
)

// live is an answer that goes on.
type live struct {
	*http.Response
	t     testing.TB
	lines *bufio.Reader
	cut   context.CancelFunc
}

// follow begins a stream. It fails after half a minute of silence.
func (d *door) follow(path, accept string, headers ...string) *live {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.addr+path, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := d.client.Transport.RoundTrip(req) //nolint:bodyclose // live.close closes it
	if err != nil {
		cancel()
		d.t.Fatal(err)
	}
	l := &live{Response: res, t: d.t, lines: bufio.NewReader(res.Body), cut: cancel}
	d.t.Cleanup(l.close)
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(res.Body)
		d.t.Fatalf("%s: %d %s", path, res.StatusCode, text)
	}
	if ct := res.Header.Get("Content-Type"); ct != accept || res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("X-Accel-Buffering") != "no" {
		d.t.Errorf("%s: %v", path, res.Header)
	}
	return l
}

func (l *live) close() {
	l.cut()
	_ = l.Body.Close()
}

// line is the next line without its end, io.EOF after the last.
func (l *live) line() (string, error) {
	silence := time.AfterFunc(30*time.Second, l.cut)
	defer silence.Stop()
	text, err := l.lines.ReadString('\n')
	if errors.Is(err, io.EOF) && text != "" {
		err = io.ErrUnexpectedEOF
	}
	return strings.TrimSuffix(text, "\n"), err
}

// event is one event of a stream, or what came instead.
type event struct {
	name, id, data, retry, comment string
	hasID                          bool
}

func (l *live) tryEvent() (e event, err error) {
	for {
		text, err := l.line()
		if err != nil {
			return e, err
		}
		field, value, _ := strings.Cut(text, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case text == "":
			return e, nil
		case field == "":
			e.comment = value
		case field == "event":
			e.name = value
		case field == "id":
			e.id, e.hasID = value, true
		case field == "data":
			e.data = value
		case field == "retry":
			e.retry = value
		default:
			return e, fmt.Errorf("line %q", text)
		}
	}
}

func (l *live) event() event {
	l.t.Helper()
	e, err := l.tryEvent()
	if err != nil {
		l.t.Fatal(err)
	}
	return e
}

// named skips to the event with the name.
func (l *live) named(name string) event {
	l.t.Helper()
	for {
		if e := l.event(); e.name == name {
			return e
		}
	}
}

// record is as much of a record as the tests look at. Control is the kind of a
// line that is no record.
type streamed struct {
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Value     any    `json:"value"`
	Control   string `json:"$"`
	Cursor    string `json:"cursor"`
	Next      int64  `json:"next_offset"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
	Reason    string `json:"reason"`
	TopicID   string `json:"topic_id"`
	Problem   struct {
		Code string `json:"code"`
	} `json:"problem"`
}

// item is the next line of an NDJSON stream.
func (l *live) item() streamed {
	l.t.Helper()
	text, err := l.line()
	if err != nil {
		l.t.Fatal(err)
	}
	var s streamed
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		l.t.Fatalf("%v: %.300s", err, text)
	}
	return s
}

// control skips to the line of control with the kind.
func (l *live) control(kind string) streamed {
	l.t.Helper()
	for {
		if s := l.item(); s.Control == kind {
			return s
		}
	}
}

// recordsOf are the records of an event.
func recordsOf(data string) ([]streamed, error) {
	if !strings.HasPrefix(data, "[") {
		data = "[" + data + "]"
	}
	var out []streamed
	return out, json.Unmarshal([]byte(data), &out)
}

// append appends values to a partition of the topic t.
func (d *door) append(partition int32, values ...int) {
	d.t.Helper()
	var text []string
	for _, v := range values {
		text = append(text, `{"value":`+strconv.Itoa(v)+`}`)
	}
	d.do("POST", fmt.Sprintf("/v1/topics/t/partitions/%d/records", partition), "["+strings.Join(text, ",")+"]", "Content-Type", mediaJSON).want(d.t, 200, "")
}

// deleteBefore deletes the records of the topic t below the offset.
func (d *door) deleteBefore(partition int32, offset int64) {
	d.t.Helper()
	spec := []broker.DeleteRecordsSpec{{Topic: "t", Partition: partition, Offset: offset}}
	if err := d.broker.DeleteRecords(d.t.Context(), auth.Anonymous, spec)[0].Err; err != nil {
		d.t.Fatal(err)
	}
}

func (d *door) deleteTopic() {
	d.t.Helper()
	if err := d.broker.DeleteTopics(d.t.Context(), auth.Anonymous, []broker.TopicRef{{Name: "t"}})[0].Err; err != nil {
		d.t.Fatal(err)
	}
}

func (d *door) topicID() string {
	d.t.Helper()
	topic, err := d.broker.Topic(d.t.Context(), auth.Anonymous, broker.TopicRef{Name: "t"})
	if err != nil {
		d.t.Fatal(err)
	}
	return topic.ID.String()
}

// until polls until ok, for at most half a minute.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not so after half a minute: %s", what)
		}
	}
}

// atPace makes the door's streams go by other times.
func atPace(d *door, change func(p *pace)) { change(&d.server.pace) }
