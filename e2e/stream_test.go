package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestTopicCursor proves that a whole topic is read page by page with a cursor: everything once and in order for each
// partition, also from partitions that are added meanwhile, only what was asked for where partitions are named, and
// that a wait ends with the first record of any partition.
func TestTopicCursor(t *testing.T) {
	const partitions, each = 3, 100
	s := start(t)
	s.createTopic("t", partitions)
	for p := range partitions {
		var lines strings.Builder
		for i := range each {
			fmt.Fprintln(&lines, i)
		}
		s.post(fmt.Sprintf("/v1/topics/t/partitions/%d/records?value=line", p), typeNDJSON, lines.String())
	}
	a := newAccount(partitions+1, false)
	page := s.fetchTopic("t", "from=earliest&max_records=7")
	for a.received.Load() < partitions*each {
		if n := len(page.Records); n == 0 || n > 7 {
			t.Fatalf("a page of %d records after %d", n, a.received.Load())
		}
		for _, r := range page.Records {
			if err := a.take(r.Partition, r.Offset, ""); err != nil {
				t.Fatal(err)
			}
			if r.content() != strconv.FormatInt(r.Offset, 10) {
				t.Errorf("offset %d is %s", r.Offset, r.content())
			}
		}
		for _, p := range page.Partitions {
			if p.Next != a.at(p.Partition) || p.High != each || p.Start != 0 {
				t.Errorf("partition %+v, want next offset %d", p, a.at(p.Partition))
			}
		}
		page = s.fetchTopic("t", "max_records=7&cursor="+page.Cursor)
	}
	if len(page.Records) != 0 || page.Cursor == "" {
		t.Errorf("%d records at the end, cursor %q", len(page.Records), page.Cursor)
	}

	waited := make(chan wholeTopic, 1)
	go func() { waited <- s.fetchTopic("t", "wait=30&cursor="+page.Cursor) }()
	eventually(t, "the fetch to wait", func() error {
		if n := s.metric("leat_broker_waiting_fetches"); n < 1 {
			return fmt.Errorf("%v fetches wait", n)
		}
		return nil
	})
	s.post("/v1/topics/t/partitions/1/records?value=line", typeNDJSON, "more\n")
	if page = <-waited; len(page.Records) != 1 || page.Records[0].Partition != 1 || page.Records[0].Offset != each {
		t.Errorf("after the wait: %+v", page.Records)
	}

	answers, err := s.admin().UpdatePartitions(t.Context(), partitions+1, "t")
	if err != nil || answers.Error() != nil {
		t.Fatal(err, answers.Error())
	}
	s.post("/v1/topics/t/partitions/3/records?value=line", typeNDJSON, "new\n")
	if page = s.fetchTopic("t", "cursor="+page.Cursor); len(page.Records) != 1 || page.Records[0].Partition != 3 || page.Records[0].Offset != 0 {
		t.Errorf("from a new partition: %+v", page.Records)
	}
	some := s.fetchTopic("t", "from=earliest&partitions=0,3")
	for _, r := range some.Records {
		if r.Partition != 0 && r.Partition != 3 {
			t.Errorf("a record of partition %d", r.Partition)
		}
	}
	if len(some.Records) != each+1 {
		t.Errorf("%d records of partitions 0 and 3, want %d", len(some.Records), each+1)
	}
	for query, code := range map[string]string{
		"cursor=nonsense": "", "cursor=" + page.Cursor[:len(page.Cursor)-2]: "", "cursor=" + page.Cursor + "&from=earliest": "", "": "", "from=earliest&partitions=9": "unknown_partition",
		"from=earliest&partitions=": "", "from=earliest&partitions=0,0": "", "from=earliest&offset=1": "",
	} {
		a := s.do(http.MethodGet, "/v1/topics/t/records?"+query, nil)
		var p problem
		a.decode(&p)
		if a.status != 400 && (a.status != 404 || code == "") || code != "" && p.Code != code {
			t.Errorf("%q: status %d, code %s", query, a.status, p.Code)
		}
	}
}

// TestSSEForm proves what an event looks like: its id is the place behind it, in either form; batched or one for each
// record; whatever bytes a record has, an event stays whole; and proxies are told to let it through.
func TestSSEForm(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	const route = "/v1/topics/t/partitions/0/records"
	all := []string{"plain", "two\nlines", "\r\n\r\ndata: x\n\n", "{\n  \"a\": 1\r\n}", `{"a":1}`, "", "\x00\xff binary", "ü€😀", ": hb", "null"}
	var body []string
	for _, v := range all {
		body = append(body, `{"value_b64":"`+base64.StdEncoding.EncodeToString([]byte(v))+`"}`)
	}
	s.post(route, typeJSON, "["+strings.Join(body, ",")+"]")
	for _, c := range []struct {
		path  string
		batch bool
	}{
		{route + "?from=earliest", false},
		{route + "?from=earliest&batch=false", false},
		{route + "?from=earliest&batch=true", true},
		{"/v1/topics/t/records?from=earliest", true},
		{"/v1/topics/t/records?from=earliest&batch=false", false},
		{"/v1/topics/t/records?from=earliest&as=base64", true},
	} {
		l := s.stream(c.path, typeSSE)
		h := l.resp.Header
		if h.Get("Cache-Control") != "no-store" || h.Get("X-Accel-Buffering") != "no" {
			t.Errorf("%s: headers %v", c.path, h)
		}
		retry, next := "", 0
		for next < len(all) {
			e, err := l.readEvent()
			if err != nil {
				t.Fatal(err)
			}
			if e.retry != "" {
				retry = e.retry
			}
			if e.data == "" {
				continue
			}
			records, err := e.records()
			if err != nil || e.name != "" || strings.HasPrefix(e.data, "[") != c.batch {
				t.Fatalf("%s: event %q %s: %v", c.path, e.name, clip(e.data), err)
			}
			for _, r := range records {
				if r.Offset != int64(next) || r.content() != all[next] {
					t.Errorf("%s: offset %d is %q, want offset %d, %q", c.path, r.Offset, r.content(), next, all[next])
				}
				next++
			}
			if strings.Contains(c.path, "partitions") && e.id != strconv.Itoa(next) {
				t.Errorf("%s: id %q, want %d", c.path, e.id, next)
			}
			if strings.Contains(c.path, "partitions") || next == len(all) {
				continue
			}
			if f := s.fetchTopic("t", "cursor="+e.id); len(f.Records) == 0 || f.Records[0].Offset != int64(next) {
				t.Errorf("%s: the id as a cursor gives %d records", c.path, len(f.Records))
			}
		}
		if ms, err := strconv.Atoi(retry); err != nil || ms < 1000 || ms > 10_000 {
			t.Errorf("%s: retry %q", c.path, retry)
		}
	}
	for _, path := range []string{route + "?offset=99", "/v1/topics/t/partitions/0/records?from=earliest&last_event_id=99"} {
		s.do(http.MethodGet, path, nil, "Accept: "+typeSSE).refused(416, "offset_out_of_range")
	}
	s.do(http.MethodGet, route+"?stream=true&offset=99", nil, "Accept: "+typeNDJSON).refused(416, "offset_out_of_range")
	s.do(http.MethodGet, route+"?from=latest", nil, "Accept: "+typeSSE, "Last-Event-ID: no number").refused(400, "invalid_parameter")
	s.do(http.MethodGet, "/v1/topics/t/records?from=latest", nil, "Accept: "+typeSSE, "Last-Event-ID: no cursor").want(400)
}

// TestStreamPlaces proves where a stream begins, for each way to say it, and that what says it more exactly wins.
func TestStreamPlaces(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	const route = "/v1/topics/t/partitions/0/records"
	for i := range 5 {
		s.post(route, typeJSON, fmt.Sprintf(`[{"value":%d,"timestamp":%d}]`, i, 1000*(i+1)))
	}
	for _, c := range []struct {
		query, header string
		first         int64
	}{
		{"from=earliest", "", 0},
		{"offset=3", "", 3},
		{"from=tail:2", "", 3},
		{"from=ts:2500", "", 2},
		{"from=earliest&last_event_id=2", "", 2},
		{"from=earliest&last_event_id=2", "4", 4},
		{"offset=1", "3", 3},
	} {
		headers := []string{}
		if c.header != "" {
			headers = append(headers, "Last-Event-ID: "+c.header)
		}
		l := s.stream(route+"?"+c.query, typeSSE, headers...)
		records, err := new(l.wantEvent("")).records()
		if err != nil || records[0].Offset != c.first {
			t.Errorf("%s, Last-Event-ID %q: %+v, want offset %d", c.query, c.header, records, c.first)
		}
	}
	// Nothing of before comes to those who ask for what is next, and what comes next comes at once, on each door.
	events, lines, k := s.stream(route+"?from=latest", typeSSE), s.stream(route+"?from=latest&stream=true", typeNDJSON), s.socket()
	k.say(`{"type":"subscribe","id":1,"sub":1,"topic":"t"}`)
	k.want("subscribed")
	var took []time.Duration
	for next := range int64(20) {
		begun := time.Now()
		s.post(route+"?value=line", typeNDJSON, "next\n")
		records, err := new(events.wantEvent("")).records()
		if err != nil || len(records) != 1 || records[0].Offset != 5+next {
			t.Fatalf("SSE: %+v, want offset %d", records, 5+next)
		}
		if got := lines.wantLine(""); got.Offset != 5+next {
			t.Fatalf("NDJSON: %s, want offset %d", got.text, 5+next)
		}
		k.wantData(0, 5+next, 1)
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	t.Logf("a record reaches all three in %v (median)", took[len(took)/2])
}

// TestIdleStreams proves that an idle socket takes one goroutine and no more, that streams of all kinds can wait in
// hundreds, and that one record reaches every one of them. It prints the processor time that they take while they wait.
func TestIdleStreams(t *testing.T) {
	const sockets, events, polls = 1000, 200, 200
	s := start(t)
	s.createTopic("idle", 1)
	const route = "/v1/topics/idle/partitions/0/records"
	before := s.metric("go_goroutines")
	var all []*talk
	for range sockets {
		k := s.socket()
		k.say(`{"type":"subscribe","id":1,"sub":1,"topic":"idle"}`)
		k.want("subscribed")
		all = append(all, k)
	}
	eventually(t, "one goroutine a socket", func() error {
		if n := s.metric("go_goroutines") - before; n > sockets+20 {
			return fmt.Errorf("%v goroutines for %d sockets", n, sockets)
		}
		return nil
	})
	var streams []*listener
	for range events {
		streams = append(streams, s.stream(route+"?from=latest", typeSSE))
	}
	answers := make(chan error, polls)
	for range polls {
		go func() {
			a, err := s.try(http.MethodGet, route+"?offset=0&wait=60", nil)
			if err == nil && !strings.Contains(string(a.body), `"offset":0`) {
				err = fmt.Errorf("status %d: %s", a.status, a.body)
			}
			answers <- err
		}()
	}
	eventually(t, "all polls to wait", func() error {
		if n := s.metric("leat_broker_waiting_fetches"); n < polls {
			return fmt.Errorf("%v waiting fetches", n)
		}
		return nil
	})
	used, begun := s.cpu(), time.Now()
	after(time.Second)
	share := 100 * (s.cpu() - used).Seconds() / time.Since(begun).Seconds()
	begun = time.Now()
	s.post(route+"?value=line", typeNDJSON, "wake\n")
	for _, k := range all {
		k.wantData(0, 0, 1)
	}
	for _, l := range streams {
		l.wantEvent("")
	}
	for range polls {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%.2f %% of a core while idle; one record has reached all %d after %v", share, sockets+events+polls, time.Since(begun))
}
