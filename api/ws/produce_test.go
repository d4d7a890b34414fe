package ws

import (
	"fmt"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"leat/auth"
	"leat/broker"
)

// A produce gets receipts as at the HTTP door, in the form that was asked for.
func TestProduce(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 4)
	c := d.dial()
	c.send(`{'type':'produce','id':'a','topic':'t','records':[{'key':'k','value':{'x':1.0}},{'partition':3,'value':null},{'key':'k','value_b64':'AAE='}]}`)
	a := c.want("produced")
	if a.ID != "a" || a.Count != 3 || len(a.Receipts) != 3 || a.Receipts[1].Partition != 3 || *a.Receipts[1].Offset != 0 || *a.Receipts[0].Timestamp == 0 ||
		a.Receipts[2].Partition != a.Receipts[0].Partition || *a.Receipts[2].Offset != *a.Receipts[0].Offset+1 {
		t.Fatalf("%s", a.text)
	}
	c.send(`{'type':'produce','topic':'t','receipts':'summary','acks':'leader','records':[{'partition':2,'value':1},{'partition':2,'value':2}]}`)
	if a = c.want("produced"); a.ID != nil || len(a.Partitions) != 1 || a.Partitions[0].LastOffset != 1 || a.Partitions[0].Count != 2 {
		t.Fatalf("%s", a.text)
	}
	for _, members := range []string{`'acks':0`, `'acks':'none'`, `'receipts':'none'`} {
		c.send(`{'type':'produce','topic':'t',%s,'records':[{'value':1}]}`, members)
		if a = c.want("produced"); a.text != `{"type":"produced","count":1}` {
			t.Fatalf("%s: %s", members, a.text)
		}
	}
	many := strings.Repeat(`{"value":1},`, fullReceipts) + `{"value":1}`
	c.send(`{'type':'produce','topic':'t','records':[%s]}`, many)
	if a = c.want("produced"); a.Count != fullReceipts+1 || len(a.Receipts) != 0 || len(a.Partitions) != 1 {
		t.Fatalf("%.300s", a.text)
	}
	// A topic that is missing is made.
	c.send(`{'type':'produce','topic':'new','records':[{'value':1}]}`)
	c.want("produced")
	if n := d.metric("leat_ws_records_total", "direction", "in"); n != 3+2+3+fullReceipts+1+1 {
		t.Errorf("%v records in", n)
	}
	// The last is counted when its receipts are out.
	eventually(t, "7 latencies", func() bool { return d.metric("leat_ws_produce_seconds") == 7 })
}

// A message with a bad record writes nothing, makes no topic, and says where
// each fault is.
func TestProduceBad(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	d.topic("compacted", 1, "cleanup.policy", "compact")
	c := d.dial()
	for _, tc := range []struct {
		topic, records, code string
		indices              []int
	}{
		{"t", `{'value':1},{'value':1,'wrong':2},{'partition':-1,'value':3}`, "malformed_body", []int{1, 2}},
		{"t", `{'value':1},{'partition':2,'value':3}`, "unknown_partition", []int{1}},
		{"t", `{'value':1},{'value_str':'` + strings.Repeat("x", 1<<20) + `'}`, "record_too_large", []int{1}},
		{"compacted", `{'value':1}`, "invalid_record", []int{0}},
		{"unborn", `7`, "malformed_body", []int{0}},
		{"unborn", `{'value':1},{'value_str':'` + strings.Repeat("x", 1<<20) + `'}`, "record_too_large", []int{1}},
		{"unborn", `{'value':1},{'partition':99,'value':1}`, "unknown_partition", []int{1}},
	} {
		c.send(`{'type':'produce','id':1,'topic':'%s','records':[%s]}`, tc.topic, tc.records)
		p := c.problem(tc.code)
		var indices []int
		for _, e := range p.Errors {
			indices = append(indices, *e.Index)
		}
		if fmt.Sprint(indices) != fmt.Sprint(tc.indices) || p.Topic != tc.topic {
			t.Errorf("%.60s: %v %+v", tc.records, indices, p)
		}
	}
	for _, topic := range []string{"t", "compacted"} {
		for _, r := range d.broker.ListOffsets(t.Context(), auth.Anonymous, []broker.OffsetQuery{{Topic: topic, Timestamp: broker.OffsetLatest, Epoch: -1}}) {
			if r.Err != nil || r.Offset != 0 {
				t.Errorf("%s: %+v", topic, r)
			}
		}
	}
	if _, err := d.broker.Topic(t.Context(), auth.Anonymous, broker.TopicRef{Name: "unborn"}); err == nil {
		t.Error("the topic was made")
	}
}

// Messages are appended, and answered, in the order in which they came, the
// refused ones in between.
func TestProduceOrder(t *testing.T) {
	const n = 300
	d := openDoor(t)
	d.topic("t", 1)
	c := d.dial()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range n {
			acks, value := []string{"all", "leader", "none"}[i%3], fmt.Sprintf(`{"value":%d}`, i)
			if i%10 == 9 {
				value = `{"value":1,"wrong":1}`
			}
			c.send(`{'type':'produce','id':%d,'topic':'t','acks':'%s','records':[%s]}`, i, acks, value)
		}
	}()
	for i := range n {
		a := c.read()
		if a.ID != float64(i) || (a.Type == "error") != (i%10 == 9) {
			t.Fatalf("answer %d: %s", i, a.text)
		}
	}
	<-sent
	c.send(`{'type':'subscribe','sub':'s','topic':'t','from':'earliest'}`)
	c.want("subscribed")
	at := 0
	for at < n {
		for _, r := range c.want("data").Records {
			if at%10 == 9 {
				at++
			}
			if r.Value != float64(at) {
				t.Fatalf("record %d is %v", at, r.Value)
			}
			at++
		}
		if at%10 == 9 {
			at++
		}
	}
}

// A produce of the largest size is taken.
func TestProduceLarge(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	c := d.dial()
	record := `{"value":"` + strings.Repeat("x", 100_000) + `"}`
	c.send(`{'type':'produce','topic':'t','records':[%s]}`, record+strings.Repeat(","+record, 150))
	if a := c.want("produced"); a.Count != 151 {
		t.Fatalf("%.300s", a.text)
	}
	if n := d.server.opts.Budget.Used(); n != 0 {
		t.Errorf("%d bytes in flight", n)
	}
}

// A server that stops sends the receipts of what it has taken before it closes.
func TestShutdownReceipts(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	c := d.dial()
	const n = 50
	for i := range n {
		c.send(`{'type':'produce','id':%d,'topic':'t','records':[{'value':%d}]}`, i, i)
	}
	first := c.want("produced")
	done := make(chan error, 1)
	go func() { done <- d.server.Shutdown(t.Context()) }()
	taken, refused, away := 1, 0, false
	for {
		_, text, err := c.ws.Read(t.Context())
		if err != nil {
			if code := websocket.CloseStatus(err); code != 4010 {
				t.Fatalf("closed with %d: %v", code, err)
			}
			break
		}
		switch a := decode(t, text); {
		case a.Type == "goaway":
			away = true
		case a.Type == "produced" && a.ID == float64(taken):
			taken++
		case a.Type == "error" && a.Problem.Code == "shutting_down" && a.ID == float64(taken+refused):
			refused++
		default:
			t.Fatalf("%s", a.text)
		}
	}
	if err := <-done; err != nil || !away || first.ID != 0.0 {
		t.Errorf("%v, goaway %t, first %s", err, away, first.text)
	}
	end := d.broker.ListOffsets(t.Context(), auth.Anonymous, []broker.OffsetQuery{{Topic: "t", Timestamp: broker.OffsetLatest, Epoch: -1}})[0]
	if end.Err != nil || end.Offset != int64(taken) {
		t.Errorf("%d receipts, %d records", taken, end.Offset)
	}
}

// A producer's message that is sent again, on the same socket or another, is
// written once and called a duplicate; gaps and old epochs are refused.
func TestProduceSequence(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	id, epoch, err := d.broker.InitProducerID(t.Context(), auth.Anonymous)
	if err != nil || epoch != 0 {
		t.Fatal(epoch, err)
	}
	send := func(c *client, form, producer, records string) {
		c.send(`{'type':'produce','id':1,'topic':'t','receipts':'%s','producer':{%s},'records':[%s]}`, form, producer, records)
	}
	who := func(epoch, seq int) string {
		return fmt.Sprintf(`'id':%d,'epoch':%d,'seq':%d,'partition':1`, id, epoch, seq)
	}
	const two = `{'value':1},{'value':2,'timestamp':1767323045000}`
	c, other := d.dial(), d.dial()
	send(c, "full", who(0, 0), two)
	first := c.want("produced")
	if strings.Contains(first.text, "duplicate") || first.Receipts[1].Partition != 1 || *first.Receipts[1].Offset != 1 {
		t.Fatal(first.text)
	}
	for _, c := range []*client{c, other} {
		send(c, "full", who(0, 0), two)
		if a := c.want("produced"); strings.ReplaceAll(a.text, `,"duplicate":true`, "") != first.text || strings.Count(a.text, "duplicate") != 2 {
			t.Errorf("sent again: %s, first: %s", a.text, first.text)
		}
		send(c, "summary", who(0, 0), two)
		if a := c.want("produced"); !strings.Contains(a.text, `"base_offset":0,"last_offset":1,"count":2,"duplicate":true`) {
			t.Error(a.text)
		}
	}
	send(c, "full", who(0, 2), `{'value':3}`)
	c.want("produced")
	for _, tc := range []struct{ producer, code string }{
		{who(0, 4), "out_of_order_sequence"},
		{who(1, 1), "out_of_order_sequence"},
		{`'id':1,'epoch':0,'seq':0`, "invalid_parameter"},
		{who(0, 3) + `,'more':1`, "invalid_parameter"},
		{who(0, 3) + `,'seq':3`, "invalid_parameter"},
		{who(0, -1), "invalid_parameter"},
		{`'id':4611686018427387904,'epoch':0,'seq':0,'partition':1`, "invalid_parameter"},
		{`'id':1,'epoch':0,'seq':0,'partition':2`, "unknown_partition"},
	} {
		send(c, "full", tc.producer, `{'value':4}`)
		c.problem(tc.code)
	}
	send(c, "full", who(1, 0), `{'value':4}`)
	c.want("produced")
	send(c, "full", who(0, 3), `{'value':4}`)
	c.problem("producer_fenced")
	at := d.broker.ListOffsets(t.Context(), auth.Anonymous, []broker.OffsetQuery{{Topic: "t", Partition: 1, Timestamp: broker.OffsetLatest, Epoch: -1}})[0]
	if at.Err != nil || at.Offset != 4 {
		t.Errorf("%d records, %v", at.Offset, at.Err)
	}
}
