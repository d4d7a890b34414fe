package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// deleteRecords raises the start of a partition by the Kafka door; -1 is its end.
func (s *server) deleteRecords(topic string, partition int32, before int64) {
	s.t.Helper()
	var offsets kadm.Offsets
	offsets.AddOffset(topic, partition, before, -1)
	answers, err := kadm.NewClient(s.kgo()).DeleteRecords(s.t.Context(), offsets)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// gapData is what every door says of a gap.
type gapData struct {
	Partition int32 `json:"partition"`
	From      int64 `json:"from"`
	To        int64 `json:"to"`
}

func (e *event) gap(t testing.TB) gapData {
	t.Helper()
	var g gapData
	if err := json.Unmarshal([]byte(e.data), &g); err != nil {
		t.Fatalf("gap %q: %v", e.data, err)
	}
	return g
}

// wholeTopic is the JSON answer of a fetch of a whole topic.
type wholeTopic struct {
	Records    []streamRecord `json:"records"`
	Cursor     string         `json:"cursor"`
	Partitions []struct {
		Partition int32 `json:"partition"`
		Next      int64 `json:"next_offset"`
		High      int64 `json:"high_watermark"`
		Start     int64 `json:"log_start_offset"`
	} `json:"partitions"`
	Gaps []gapData `json:"gaps"`
}

func (s *server) fetchTopic(topic, query string) wholeTopic {
	s.t.Helper()
	var w wholeTopic
	s.get("/v1/topics/" + topic + "/records?" + query).decode(&w)
	return w
}

// TestRetentionIsTold proves, on each door, that a reader whose place was deleted is told what it lost, by a gap or by
// 410, and goes on behind it.
func TestRetentionIsTold(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	const route = "/v1/topics/t/partitions/0/records"
	s.post(route+"?value=line", typeNDJSON, "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n")
	cursor := s.fetchTopic("t", "from=earliest&max_records=2").Cursor
	k := s.socket()
	k.say(`{"type":"subscribe","id":1,"sub":"credit","topic":"t","from":"earliest","credit":{"bytes":0,"records":0}}`)
	k.want("subscribed")
	k.say(`{"type":"subscribe","id":2,"sub":"first","topic":"t","from":"earliest","credit":{"bytes":1000000,"records":3}}`)
	k.want("subscribed")
	k.wantData(0, 0, 3)

	s.deleteRecords("t", 0, 6)
	want := gapData{Partition: 0, From: 2, To: 6}

	s.do("GET", route+"?offset=2", nil).refused(410, "offset_expired")
	s.do("GET", "/v1/topics/t/records?cursor="+cursor, nil).refused(410, "offset_expired")
	if f := s.fetchTopic("t", "on_gap=earliest&cursor="+cursor); len(f.Gaps) != 1 || f.Gaps[0] != want || len(f.Records) != 4 || f.Records[0].Offset != 6 {
		t.Errorf("a cursor in the gap, on_gap=earliest: %+v", f)
	}
	if f := s.fetchTopic("t", "on_gap=latest&cursor="+cursor); len(f.Gaps) != 1 || f.Gaps[0] != (gapData{0, 2, 10}) || len(f.Records) != 0 {
		t.Errorf("a cursor in the gap, on_gap=latest: %+v", f)
	}
	for name, l := range map[string]*listener{
		"offset":                s.stream(route+"?offset=2", typeSSE),
		"Last-Event-ID":         s.stream(route+"?from=earliest", typeSSE, "Last-Event-ID: 2"),
		"last_event_id":         s.stream(route+"?from=earliest&last_event_id=2", typeSSE),
		"cursor":                s.stream("/v1/topics/t/records?cursor="+cursor, typeSSE),
		"cursor, Last-Event-ID": s.stream("/v1/topics/t/records?from=latest", typeSSE, "Last-Event-ID: "+cursor),
	} {
		e := l.wantEvent("gap")
		if got := e.gap(t); got != want {
			t.Errorf("SSE by %s: gap %+v, want %+v", name, got, want)
		}
		for next := int64(6); next < 10; {
			e := l.wantEvent("")
			records, err := e.records()
			if err != nil || len(records) == 0 || records[0].Offset != next {
				t.Fatalf("SSE by %s: %s after the gap, want offset %d", name, clip(e.data), next)
			}
			next += int64(len(records))
		}
	}
	for name, l := range map[string]*listener{
		"offset": s.stream(route+"?stream=true&offset=2", typeNDJSON),
		"cursor": s.stream("/v1/topics/t/records?stream=true&cursor="+cursor, typeNDJSON),
	} {
		if got := l.wantLine("gap"); got.Partition != 0 || got.From != 2 || got.To != 6 {
			t.Errorf("NDJSON by %s: gap %s", name, got.text)
		}
		if got := l.wantLine(""); got.Offset != 6 {
			t.Errorf("NDJSON by %s: %s after the gap", name, got.text)
		}
	}

	k.say(`{"type":"credit","sub":"credit","bytes":1000000,"records":100}`)
	k.wantGap("credit", 0, 6)
	k.wantData(0, 6, 4)
	k.say(`{"type":"credit","sub":"first","bytes":1000000,"records":100}`)
	k.wantGap("first", 3, 6)
	k.wantData(0, 6, 4)
	k.say(`{"type":"subscribe","id":3,"sub":"latest","topic":"t","from":{"0":1},"on_gap":"latest"}`)
	k.want("subscribed")
	k.wantGap("latest", 1, 10)
	k.say(`{"type":"subscribe","id":4,"sub":"fail","topic":"t","from":{"0":1},"on_gap":"fail"}`)
	for m := (message{}); m.Type != "error"; {
		var err error
		if m, err = k.next(); err != nil || m.Type != "error" && m.Type != "subscribed" {
			t.Fatalf("on_gap=fail: %v %s", err, m.text)
		}
		if m.Type == "error" && (m.Problem.Code != "offset_expired" || m.Problem.Status != 410) {
			t.Errorf("on_gap=fail: %s", m.text)
		}
	}
}

func (k *talk) wantGap(sub string, from, to int64) {
	k.t.Helper()
	m := k.want("gap")
	if string(m.Sub) != fmt.Sprintf("%q", sub) || m.Partition != 0 || m.From != from || m.To != to || m.Reason == "" {
		k.t.Errorf("gap %s, want %s from %d to %d", m.text, sub, from, to)
	}
}

// TestRetentionOvertakesAStream proves, on each door, that a stream whose client stands still while the log is deleted
// under it goes on with a gap: what came before and behind it is in order, and nothing is missing silently.
func TestRetentionOvertakesAStream(t *testing.T) {
	const size = 96 << 20 // more than sockets and what the server encodes ahead may hold
	s := start(t)
	for _, c := range []struct {
		door string
		next func(nc net.Conn, topic string) func() (records []streamRecord, gap *gapData)
	}{
		{"sse", func(nc net.Conn, topic string) func() ([]streamRecord, *gapData) {
			l := s.streamOver(nc, "/v1/topics/"+topic+"/records?from=earliest", typeSSE)
			return func() ([]streamRecord, *gapData) {
				e, err := l.readEvent()
				if err != nil {
					t.Fatal(err)
				}
				switch e.name {
				case "gap":
					g := e.gap(t)
					return nil, &g
				case "":
					if e.data == "" {
						return nil, nil
					}
					records, err := e.records()
					if err != nil {
						t.Fatal(err)
					}
					return records, nil
				}
				t.Fatalf("event %q %s", e.name, e.data)
				return nil, nil
			}
		}},
		{"ndjson", func(nc net.Conn, topic string) func() ([]streamRecord, *gapData) {
			l := s.streamOver(nc, "/v1/topics/"+topic+"/records?from=earliest&stream=true", typeNDJSON)
			return func() ([]streamRecord, *gapData) {
				got, err := l.readLine()
				if err != nil {
					t.Fatal(err)
				}
				switch got.Control {
				case "gap":
					return nil, &gapData{got.Partition, got.From, got.To}
				case "":
					return []streamRecord{got.streamRecord}, nil
				case "position":
					return nil, nil
				}
				t.Fatalf("line %s", got.text)
				return nil, nil
			}
		}},
		{"ws", func(nc net.Conn, topic string) func() ([]streamRecord, *gapData) {
			ws, err := openSocket(nc)
			if err != nil {
				t.Fatal(err)
			}
			k := &talk{ws, t}
			k.want("ready")
			k.say(`{"type":"subscribe","id":1,"sub":"s","topic":%q,"from":"earliest"}`, topic)
			k.want("subscribed")
			return func() ([]streamRecord, *gapData) {
				m, err := k.next()
				if err != nil {
					t.Fatal(err)
				}
				switch m.Type {
				case "gap":
					return nil, &gapData{m.Partition, m.From, m.To}
				case "data":
					return m.Records, nil
				case "hb":
					return nil, nil
				}
				t.Fatalf("message %s", m.text)
				return nil, nil
			}
		}},
	} {
		t.Run(c.door, func(t *testing.T) {
			s.createTopic(c.door, 1, "flush.messages=1000000")
			count := fillBig(t, s, c.door, size)
			nc := smallConn(t, s.HTTP)
			if err := nc.SetDeadline(time.Now().Add(2 * patience)); err != nil {
				t.Fatal(err)
			}
			next := c.next(nc, c.door)
			at, deleted := int64(0), false
			var gap *gapData
			for at < count {
				records, g := next()
				for _, r := range records {
					if r.Offset != at {
						t.Fatalf("offset %d, want %d", r.Offset, at)
					}
					at++
				}
				if g != nil {
					if gap != nil || g.From != at || g.To != count-10 || g.Partition != 0 {
						t.Fatalf("gap %+v at offset %d of %d", g, at, count)
					}
					gap, at = g, g.To
				}
				if at > 0 && !deleted {
					s.deleteRecords(c.door, 0, count-10)
					deleted = true
				}
			}
			if gap == nil {
				t.Fatalf("all of %d records came, none of them was gone", count)
			}
			t.Logf("%d records, then a gap of %d", gap.From, gap.To-gap.From)
		})
	}
}

// TestTopicGoesUnderStreams proves, on each door, that streams end with word of it when their topic is deleted, and
// that places of a topic's earlier life are refused.
func TestTopicGoesUnderStreams(t *testing.T) {
	s := start(t, "--set", "auto.create.topics.enable=false")
	const route = "/v1/topics/t/partitions/0/records"
	create := func() (id, cursor string) {
		s.createTopic("t", 2)
		s.post(route+"?value=line", typeNDJSON, "one\ntwo\n")
		var topic struct {
			ID string `json:"topic_id"`
		}
		s.get("/v1/topics/t").decode(&topic)
		return topic.ID, s.fetchTopic("t", "from=earliest").Cursor
	}
	oldID, oldCursor := create()
	events := map[string]*listener{
		"topic":     s.stream("/v1/topics/t/records?cursor="+oldCursor, typeSSE),
		"partition": s.stream(route+"?from=latest", typeSSE),
	}
	lines := map[string]*listener{
		"topic":     s.stream("/v1/topics/t/records?stream=true&cursor="+oldCursor, typeNDJSON),
		"partition": s.stream(route+"?stream=true&from=latest", typeNDJSON),
	}
	k := s.socket()
	for _, sub := range []string{
		`"sub":"waits","from":"latest"`, `"sub":"no credit","from":"earliest","credit":{"bytes":0,"records":0}`, `"sub":"paused","from":"latest"`,
	} {
		k.say(`{"type":"subscribe","id":1,"topic":"t",%s}`, sub)
		if m := k.want("subscribed"); m.TopicID != oldID {
			t.Errorf("subscribed to topic id %q, want %q", m.TopicID, oldID)
		}
	}
	k.say(`{"type":"pause","sub":"paused"}`)
	s.do("DELETE", "/v1/topics/t", nil).want(204)
	newID, _ := create()
	if newID == oldID {
		t.Fatal("the new topic has the id of the old one")
	}
	for name, l := range events {
		l.wantEvent("stream_reset")
		if e, err := l.readEvent(); err == nil {
			t.Errorf("SSE of a %s goes on after stream_reset: %+v", name, e)
		}
	}
	for name, l := range lines {
		if got := l.wantLine("end"); !strings.Contains(got.Reason, "stream_reset") {
			t.Errorf("NDJSON of a %s: %s", name, got.text)
		}
		if got, err := l.readLine(); err == nil {
			t.Errorf("NDJSON of a %s goes on after its end: %s", name, got.text)
		}
		if got := l.resp.Trailer.Get("Close-Reason"); !strings.Contains(got, "stream_reset") {
			t.Errorf("NDJSON of a %s: Close-Reason %q", name, got)
		}
	}
	reset := map[string]bool{}
	for len(reset) < 3 {
		m, err := k.next()
		if err != nil {
			t.Fatalf("after resets %v: %v", reset, err)
		}
		if m.Type == "stream_reset" {
			if m.Topic != "t" {
				t.Errorf("stream_reset: %s", m.text)
			}
			reset[string(m.Sub)] = true
		} else if m.Type != "hb" && m.Type != "paused" {
			t.Fatalf("want stream_reset, got %s", m.text)
		}
	}

	s.do("GET", "/v1/topics/t/records?cursor="+oldCursor, nil).refused(410, "stream_reset")
	s.do("GET", "/v1/topics/t/records?cursor="+oldCursor, nil, "Accept: "+typeSSE).refused(410, "stream_reset")
	s.do("GET", "/v1/topics/t/records?from=latest", nil, "Accept: "+typeSSE, "Last-Event-ID: "+oldCursor).refused(410, "stream_reset")
	s.do("GET", "/v1/topics/t/records?stream=true&cursor="+oldCursor, nil, "Accept: "+typeNDJSON).refused(410, "stream_reset")
	s.do("GET", route+"?from=latest&topic_id="+oldID, nil, "Accept: "+typeSSE, "Last-Event-ID: 1").refused(410, "stream_reset")
	s.do("GET", route+"?offset=0&topic_id="+oldID, nil).refused(410, "stream_reset")
	s.get(route + "?offset=0&topic_id=" + newID)
	for _, member := range []string{`"from":{"cursor":"` + oldCursor + `"}`, `"from":"` + oldCursor + `"`, `"from":"latest","topic_id":"` + oldID + `"`} {
		k.say(`{"type":"subscribe","id":"again","sub":"again","topic":"t",%s}`, member)
		if m := k.want("stream_reset"); m.Topic != "t" || string(m.ID) != `"again"` {
			t.Errorf("subscribe with %s: %s", member, m.text)
		}
	}
	k.say(`{"type":"subscribe","id":2,"sub":"waits","topic":"t","from":"earliest","partitions":[0],"topic_id":%q}`, newID)
	k.want("subscribed")
	if r := k.wantData(0, 0, 2)[0]; r.content() != "one" {
		t.Errorf("the new topic begins with %q", r.content())
	}
}

// TestDeletedTopicUnderAWait proves that a long poll of a topic that goes is answered at once.
func TestDeletedTopicUnderAWait(t *testing.T) {
	s := start(t, "--set", "auto.create.topics.enable=false")
	for _, path := range []string{"/v1/topics/t/partitions/0/records?from=latest&wait=25", "/v1/topics/t/records?from=latest&wait=25"} {
		s.createTopic("t", 1)
		got := make(chan error, 1)
		begun := time.Now()
		go func() {
			a, err := s.try("GET", path, nil)
			if err == nil && a.status != 404 && a.status != 410 {
				err = fmt.Errorf("status %d: %s", a.status, a.body)
			}
			got <- err
		}()
		eventually(t, "the poll to wait", func() error {
			if n := s.metric("leat_broker_waiting_fetches"); n < 1 {
				return errors.New("it does not wait")
			}
			return nil
		})
		s.do("DELETE", "/v1/topics/t", nil).want(204)
		if err := <-got; err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("%s was answered after %v", path, took)
		}
	}
}
