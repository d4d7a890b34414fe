package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// TestSocketSubscriptions proves what a subscription is told: its places first, data in frames that chain, several
// subscriptions on one socket, pause and resume without loss, and silence after unsubscribe.
func TestSocketSubscriptions(t *testing.T) {
	s := start(t)
	s.createTopic("a", 1)
	s.createTopic("b", 2)
	line := func(topic string, partition int, text string) {
		t.Helper()
		s.post(fmt.Sprintf("/v1/topics/%s/partitions/%d/records?value=line", topic, partition), typeNDJSON, text+"\n")
	}
	for i := range 5 {
		line("a", 0, fmt.Sprint("a", i))
	}
	k := s.socket()
	for _, c := range []struct {
		from string
		at   int64
	}{
		{`"earliest"`, 0},
		{`"latest"`, 5},
		{`"tail:2"`, 3},
		{`{"0":4}`, 4},
		{`{"ts":0}`, 0},
		{`"ts:0"`, 0},
		{fmt.Sprintf(`{"ts":%d}`, time.Now().Add(time.Hour).UnixMilli()), 5},
		{fmt.Sprintf(`{"cursor":%q}`, s.fetchTopic("a", "from=earliest&max_records=1").Cursor), 1},
		{fmt.Sprintf(`%q`, s.fetchTopic("a", "from=earliest&max_records=2").Cursor), 2},
	} {
		k.say(`{"type":"subscribe","id":"i","sub":7,"topic":"a","from":%s}`, c.from)
		m := k.want("subscribed")
		if string(m.ID) != `"i"` || string(m.Sub) != "7" || m.Topic != "a" || len(m.Positions) != 1 || m.Positions["0"] != c.at {
			t.Errorf("from %s: %s, want position %d", c.from, m.text, c.at)
		}
		k.wantData(0, c.at, int(5-c.at))
		k.say(`{"type":"unsubscribe","id":"u","sub":7}`)
		if m := k.want("unsubscribed"); string(m.Sub) != "7" {
			t.Errorf("unsubscribed: %s", m.text)
		}
	}
	// Without from: what comes from now on. A topic of two partitions is followed in both.
	k.say(`{"type":"subscribe","id":1,"sub":"b","topic":"b"}`)
	if m := k.want("subscribed"); len(m.Positions) != 2 {
		t.Errorf("subscribed: %s", m.text)
	}
	line("b", 1, "b1")
	k.wantData(1, 0, 1)
	line("b", 0, "b0")
	k.wantData(0, 0, 1)
	k.say(`{"type":"subscribe","id":2,"sub":"one","topic":"b","partitions":[1],"from":"earliest"}`)
	if m := k.want("subscribed"); len(m.Positions) != 1 {
		t.Errorf("subscribed to one partition: %s", m.text)
	}
	k.wantData(1, 0, 1)
	k.say(`{"type":"unsubscribe","sub":"one"}`)
	k.want("unsubscribed")

	k.say(`{"type":"pause","sub":"b"}`)
	k.want("paused")
	for i := range 3 {
		line("b", 0, fmt.Sprint("while paused ", i))
	}
	k.quiet()
	k.say(`{"type":"resume","sub":"b"}`)
	k.want("resumed")
	got := k.wantData(0, 1, 3)
	if got[2].content() != "while paused 2" {
		t.Errorf("after a pause: %q", got[2].content())
	}
	k.say(`{"type":"unsubscribe","sub":"b"}`)
	k.want("unsubscribed")
	line("b", 0, "nobody")
	k.quiet()
}

// quiet asks for a pong: nothing may come before it.
func (k *talk) quiet() {
	k.t.Helper()
	k.say(`{"type":"ping","id":"quiet"}`)
	for {
		m, err := k.next()
		if err != nil {
			k.t.Fatal(err)
		}
		switch m.Type {
		case "hb":
		case "pong":
			return
		default:
			k.t.Fatalf("want nothing, got %s", clip(m.text))
		}
	}
}

// TestCredit proves that no more records come than the credit allows, that credit adds up, that one record comes
// however large it is, and that a window without credit messages refills itself.
func TestCredit(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, strings.Repeat(strings.Repeat("x", 99)+"\n", 3000))
	k := s.socket()
	k.say(`{"type":"subscribe","id":1,"sub":"s","topic":"t","from":"earliest","credit":{"bytes":1000000,"records":7}}`)
	k.want("subscribed")
	k.wantData(0, 0, 7)
	k.quiet()
	k.say(`{"type":"credit","sub":"s","bytes":0,"records":5}`)
	k.wantData(0, 7, 5)
	k.quiet()
	k.say(`{"type":"unsubscribe","sub":"s"}`)
	k.want("unsubscribed")
	// Bytes bind before records do; the last record may go over.
	k.say(`{"type":"subscribe","id":2,"sub":"bytes","topic":"t","from":"earliest","credit":{"bytes":1,"records":100}}`)
	k.want("subscribed")
	k.wantData(0, 0, 1)
	k.quiet()
	k.say(`{"type":"unsubscribe","sub":"bytes"}`)
	k.want("unsubscribed")
	for _, credit := range []string{``, `,"credit":{"auto":true,"bytes":5000,"records":10}`} {
		k.say(`{"type":"subscribe","id":3,"sub":"auto","topic":"t","from":"earliest"%s}`, credit)
		k.want("subscribed")
		k.wantData(0, 0, 3000)
		k.say(`{"type":"unsubscribe","sub":"auto"}`)
		k.want("unsubscribed")
	}
}

// TestSocketProduce proves that what is produced over a socket is stored as over HTTP, in order, with receipts that
// tell the offsets, and that a subscription of the same socket sees it.
func TestSocketProduce(t *testing.T) {
	const n = 500
	s := start(t)
	s.createTopic("t", 1)
	k := s.socket()
	k.say(`{"type":"subscribe","id":"s","sub":"s","topic":"t","from":"earliest","credit":{"bytes":0,"records":0}}`)
	k.want("subscribed")
	acks := []string{"all", "1", "all"}
	for i := range n {
		k.say(`{"type":"produce","id":%d,"topic":"t","acks":%q,"records":[{"key":"k","value":{"n":%d}},{"value_str":"second %d"},{"value":null}]}`,
			i, acks[i%len(acks)], i, i)
	}
	for i := range n {
		m := k.want("produced")
		var r struct {
			ID int `json:"id"`
			receipts
		}
		if err := json.Unmarshal([]byte(m.text), &r); err != nil {
			t.Fatal(err)
		}
		if r.ID != i || len(r.Each) != 3 || r.Each[0].Offset != int64(3*i) || r.Each[2].Offset != int64(3*i+2) {
			t.Fatalf("answer %d: %s", i, m.text)
		}
	}
	k.say(`{"type":"produce","id":"none","topic":"t","acks":"0","records":[{"value":"unanswered"}]}`)
	k.say(`{"type":"credit","sub":"s","bytes":100000000,"records":100000}`)
	for next := int64(0); next < 3*n+1; {
		m, err := k.next()
		if err != nil {
			t.Fatal(err)
		}
		if m.Type == "produced" { // acks=0 may be answered, without offsets
			continue
		}
		if m.Type != "data" || m.Prev != next {
			t.Fatalf("want data from %d on, got %s", next, clip(m.text))
		}
		for _, r := range m.Records {
			want := []string{fmt.Sprintf(`{"n":%d}`, next/3), fmt.Sprintf("second %d", next/3), "null"}[next%3]
			if next == 3*n {
				want = `"unanswered"`
			}
			if r.content() != want {
				t.Fatalf("offset %d is %q, want %q", next, r.content(), want)
			}
			next++
		}
	}
}

// TestSkip proves that a subscription that may skip, once it was at the end and lags for a while, jumps near the end and
// says what it left out, while one that may not gets everything.
func TestSkip(t *testing.T) {
	const n = 5000
	s := start(t)
	s.createTopic("t", 1)
	k, park := s.socket(), s.socket()
	k.say(`{"type":"subscribe","id":1,"sub":"s","topic":"t","slow":"skip","credit":{"bytes":1000,"records":2}}`)
	k.want("subscribed")
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, "x\n")
	k.wantData(0, 0, 1)
	k.quiet() // it has everything
	park.say(`{"type":"subscribe","id":1,"sub":"s","topic":"t","slow":"park"}`)
	park.want("subscribed")
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, strings.Repeat("x\n", n))
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	at := int64(1)
	for {
		k.say(`{"type":"credit","sub":"s","bytes":1000,"records":1}`)
		m, err := k.next()
		if err != nil {
			t.Fatal(err)
		}
		if m.Type == "hb" {
			continue
		}
		if m.Type == "gap" {
			if m.From != at || m.To <= at+n/2 || m.To > n || m.Reason != "skipped" {
				t.Errorf("gap %s at offset %d", m.text, at)
			}
			at = m.To
			break
		}
		if m.Type != "data" || m.Prev != at {
			t.Fatalf("at offset %d of %d: %s", at, n, clip(m.text))
		}
		at = m.Next
		<-tick.C
	}
	k.say(`{"type":"credit","sub":"s","bytes":1000000,"records":10000}`)
	k.wantData(0, at, int(n+1-at))
	park.wantData(0, 1, n)
}

// TestSocketByLibrary proves that a client of a common library works as it comes: it shakes hands, subscribes, reads,
// answers pings and closes cleanly.
func TestSocketByLibrary(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, "one\ntwo\n")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, _, err := websocket.Dial(ctx, "ws://"+s.HTTP+"/v1/ws", &websocket.DialOptions{Subprotocols: []string{"other", subprotocol}}) //nolint:bodyclose // the library does
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow() //nolint:errcheck // it is closed below
	if c.Subprotocol() != subprotocol {
		t.Errorf("subprotocol %q", c.Subprotocol())
	}
	if err := c.Write(ctx, websocket.MessageText, []byte(`{"type":"subscribe","id":1,"sub":1,"topic":"t","from":"earliest"}`)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ready", "subscribed", "data"} {
		kind, text, err := c.Read(ctx)
		if err != nil || kind != websocket.MessageText || !strings.HasPrefix(string(text), `{"type":"`+want+`"`) {
			t.Fatalf("want %s: %v %s", want, err, clip(string(text)))
		}
	}
	if err := c.Close(websocket.StatusNormalClosure, "bye"); err != nil {
		t.Errorf("close: %v", err)
	}
}

// TestSocketHandshake proves what is refused before the upgrade, with a problem that says why.
func TestSocketHandshake(t *testing.T) {
	s := start(t)
	for name, c := range map[string]struct {
		headers []string
		status  int
	}{
		"no subprotocol":      {[]string{"Sec-WebSocket-Protocol:"}, 400},
		"another subprotocol": {[]string{"Sec-WebSocket-Protocol: mqtt"}, 400},
		"another version":     {[]string{"Sec-WebSocket-Version: 8"}, 426},
		"no upgrade":          {[]string{"Connection: keep-alive", "Upgrade:"}, 426},
		"no key":              {[]string{"Sec-WebSocket-Key:"}, 400},
	} {
		a := s.plainHandshake(c.headers...)
		if a.status != c.status {
			t.Errorf("%s: status %d, want %d: %s", name, a.status, c.status, a.body)
			continue
		}
		var p problem
		a.decode(&p)
		a.refused(c.status, p.Code)
	}
}

// plainHandshake sends a handshake in which these headers stand in place of the right ones; without a value they are
// left out.
func (s *server) plainHandshake(changes ...string) answer {
	s.t.Helper()
	headers := []string{
		"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol: " + subprotocol,
	}
	request := "GET /v1/ws HTTP/1.1\r\nHost: " + s.HTTP + "\r\n"
	for _, h := range headers {
		name, _, _ := strings.Cut(h, ":")
		for _, c := range changes {
			if strings.HasPrefix(c, name+":") {
				h = c
			}
		}
		if !strings.HasSuffix(h, ":") {
			request += h + "\r\n"
		}
	}
	return s.raw(request + "\r\n")
}

// TestDrain proves that a stop tells every stream that it ends and lets the client come back without loss: goaway and
// close 4010 on sockets, reconnect on SSE, an end with its reason on NDJSON; and that the server ends by itself.
func TestDrain(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, "one\n")
	k := s.socket()
	k.say(`{"type":"subscribe","id":1,"sub":"s","topic":"t","from":"earliest"}`)
	k.want("subscribed")
	k.wantData(0, 0, 1)
	idle := s.socket()
	events := s.stream("/v1/topics/t/records?from=earliest", typeSSE)
	events.wantEvent("")
	lines := s.stream("/v1/topics/t/records?from=earliest&stream=true", typeNDJSON)
	lines.wantLine("")
	begun := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for _, k := range []*talk{k, idle} {
		if m := k.want("goaway"); !strings.Contains(m.text, `"after_ms":`) {
			t.Errorf("goaway: %s", m.text)
		}
		if reason := k.wantClose(4010); !strings.HasPrefix(reason, "draining") {
			t.Errorf("reason %q", reason)
		}
	}
	if e := events.wantEvent("reconnect"); !strings.Contains(e.data, `"in_ms":`) {
		t.Errorf("reconnect: %s", e.data)
	}
	if e, err := events.readEvent(); err == nil {
		t.Errorf("SSE goes on: %+v", e)
	}
	if got := lines.wantLine("end"); got.Reason == "" {
		t.Errorf("end: %s", got.text)
	}
	if got, err := lines.readLine(); err == nil {
		t.Errorf("NDJSON goes on: %s", got.text)
	}
	if got := lines.resp.Trailer.Get("Close-Reason"); got == "" {
		t.Error("no Close-Reason")
	}
	s.wait()
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	t.Logf("the server ended %v after SIGTERM", time.Since(begun))
}
