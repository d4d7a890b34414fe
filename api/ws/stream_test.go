package ws

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"leat/api"
	"leat/auth"
	"leat/broker"
)

// Records reach a subscriber in frames that chain, whatever was there before.
func TestSubscribe(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.append("t", 0, numbers(0, 3)...)
	c := d.dial()
	c.send(`{'type':'subscribe','id':7,'sub':'s','topic':'t','from':'earliest'}`)
	a := c.want("subscribed")
	if a.ID != 7.0 || a.Sub != "s" || a.Positions["0"] != 0 || a.TopicID == "" {
		t.Fatalf("%s", a.text)
	}
	a = c.want("data")
	if a.Prev != 0 || a.Next != 3 || len(a.Records) != 3 {
		t.Fatalf("%s", a.text)
	}
	d.append("t", 0, numbers(3, 5)...)
	a = c.want("data")
	if a.Prev != 3 || a.Next != 5 || len(a.Records) != 2 || a.Records[1].Value != 4.0 || a.Records[1].Offset != 4 {
		t.Fatalf("%s", a.text)
	}
	if n := d.metric("leat_ws_subscriptions"); n != 1 {
		t.Errorf("%v subscriptions", n)
	}
	c.send(`{'type':'unsubscribe','sub':'s'}`)
	c.want("unsubscribed")
	if n := d.metric("leat_ws_records_total", "direction", "out"); n != 5 {
		t.Errorf("%v records out", n)
	}
	if n := d.metric("leat_ws_subscriptions"); n != 0 {
		t.Errorf("%v subscriptions", n)
	}
}

// Every way to say where to start leads there.
func TestFrom(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 3)
	for p := range int32(3) {
		d.append("t", p, numbers(0, 10)...)
	}
	topic, err := d.broker.Topic(t.Context(), auth.Anonymous, broker.TopicRef{Name: "t"})
	if err != nil {
		t.Fatal(err)
	}
	cursor := api.Cursor{Topic: topic.ID, At: []broker.TailStart{{Partition: 0, Offset: 4}, {Partition: 1, Offset: 5}}}.String()
	c := d.dial()
	for i, tc := range []struct{ members, positions string }{
		{`'from':'earliest'`, `{"0":0,"1":0,"2":0}`},
		{`'from':'latest'`, `{"0":10,"1":10,"2":10}`},
		{`'partitions':[2,0]`, `{"0":10,"2":10}`},
		{`'from':'tail:3'`, `{"0":7,"1":7,"2":7}`},
		{`'from':'ts:0','partitions':[1]`, `{"1":0}`},
		{`'from':{'ts':0}`, `{"0":0,"1":0,"2":0}`},
		{`'from':{'ts':99999999999999}`, `{"0":10,"1":10,"2":10}`},
		{`'from':'` + cursor + `'`, `{"0":4,"1":5,"2":0}`},
		{`'from':{'cursor':'` + cursor + `'},'partitions':[1]`, `{"1":5}`},
		{`'from':{'1':9}`, `{"1":9}`},
		{`'from':{'1':9},'partitions':[0,1]`, `{"0":0,"1":9}`},
		{`'from':{'1':9},'partitions':'all'`, `{"0":0,"1":9,"2":0}`},
		{`'topic_id':'` + topic.ID.String() + `'`, `{"0":10,"1":10,"2":10}`},
	} {
		c.send(`{'type':'subscribe','sub':%d,'topic':'t','credit':{'records':0},%s}`, i, tc.members)
		if a := c.want("subscribed"); !strings.Contains(a.text, `"positions":`+tc.positions+`}`) {
			t.Errorf("%s: %s", tc.members, a.text)
		}
	}
	for _, members := range []string{`'topic_id':'AAAAAAAAAAAAAAAAAAAAAA'`, `'from':'` + api.Cursor{}.String() + `'`} {
		c.send(`{'type':'subscribe','id':'x','sub':'reset','topic':'t',%s}`, members)
		if a := c.want("stream_reset"); a.ID != "x" || a.Sub != "reset" || a.Topic != "t" {
			t.Errorf("%s: %s", members, a.text)
		}
	}
	c.send(`{'type':'subscribe','sub':'x','topic':'t','from':{'1':9},'partitions':[0]}`)
	c.problem("invalid_parameter")
}

// The values come in the form that was asked for.
func TestForms(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.append("t", 0, `{"a":1}`)
	c := d.dial()
	for as, want := range map[string]string{
		"json": `"value":{"a":1}`, "string": `"value_str":"{\"a\":1}"`, "base64": `"value_b64":"eyJhIjoxfQ=="`,
	} {
		c.send(`{'type':'subscribe','sub':'%s','topic':'t','from':'earliest','as':'%s'}`, as, as)
		c.want("subscribed")
		if a := c.want("data"); !strings.Contains(a.text, want) {
			t.Errorf("%s: %s", as, a.text)
		}
	}
}

// A topic that goes away is told to every subscription, also to those that read
// nothing, and a new one of that name is another.
func TestStreamReset(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	c := d.dial()
	c.send(`{'type':'subscribe','sub':'live','topic':'t'}`)
	id := c.want("subscribed").TopicID
	c.send(`{'type':'subscribe','sub':'paused','topic':'t'}`)
	c.want("subscribed")
	c.send(`{'type':'pause','sub':'paused'}`)
	c.want("paused")
	c.send(`{'type':'subscribe','sub':'poor','topic':'t','credit':{'bytes':0}}`)
	c.want("subscribed")
	if err := d.broker.DeleteTopics(t.Context(), auth.Anonymous, []broker.TopicRef{{Name: "t"}})[0].Err; err != nil {
		t.Fatal(err)
	}
	told := map[any]bool{}
	for range 3 {
		told[c.want("stream_reset").Sub] = true
	}
	if len(told) != 3 {
		t.Errorf("told %v", told)
	}
	d.topic("t", 2)
	c.send(`{'type':'subscribe','sub':'live','topic':'t','topic_id':'%s'}`, id)
	c.want("stream_reset")
	c.send(`{'type':'subscribe','sub':'live','topic':'t'}`)
	if again := c.want("subscribed").TopicID; again == id {
		t.Error("the same id")
	}
}

// Records that are deleted under a paused subscription are told as a gap.
func TestGap(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.append("t", 0, numbers(0, 10)...)
	c := d.dial()
	c.send(`{'type':'subscribe','sub':'s','topic':'t','from':'earliest','credit':{'bytes':0,'records':0}}`)
	c.want("subscribed")
	res := d.broker.DeleteRecords(t.Context(), auth.Anonymous, []broker.DeleteRecordsSpec{{Topic: "t", Partition: 0, Offset: 6}})
	if res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	c.send(`{'type':'credit','sub':'s','bytes':100000,'records':100}`)
	if a := c.want("gap"); a.From != 0 || a.To != 6 || a.Reason != "expired" {
		t.Fatalf("%s", a.text)
	}
	if a := c.want("data"); a.Prev != 6 || a.Next != 10 || len(a.Records) != 4 {
		t.Fatalf("%s", a.text)
	}
}

// Partitions that are added are followed, unless the client named its own.
func TestNewPartitions(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	c := d.dial()
	c.send(`{'type':'subscribe','sub':'all','topic':'t'}`)
	c.want("subscribed")
	c.send(`{'type':'subscribe','sub':'zero','topic':'t','partitions':[0]}`)
	c.want("subscribed")
	res := d.broker.CreatePartitions(t.Context(), auth.Anonymous, []broker.PartitionsSpec{{Topic: "t", Count: 2}}, false)
	if res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	d.append("t", 1, "1")
	if a := c.want("data"); a.Sub != "all" || a.P != 1 || a.Prev != 0 || a.Next != 1 {
		t.Fatalf("%s", a.text)
	}
	c.send(`{'type':'ping'}`)
	c.want("pong") // and nothing for the other before it
}

// A connection may have only so many subscriptions, and an end makes room.
func TestSubscriptionLimit(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	c := d.dial()
	for i := range maxSubscriptions {
		c.send(`{'type':'subscribe','sub':%d,'topic':'t'}`, i)
		c.want("subscribed")
	}
	c.send(`{'type':'subscribe','sub':'more','topic':'t'}`)
	c.problem("too_many_subscriptions")
	c.send(`{'type':'unsubscribe','sub':5}`)
	c.want("unsubscribed")
	c.send(`{'type':'subscribe','sub':'more','topic':'t'}`)
	c.want("subscribed")
	d.append("t", 0, "1")
	for range maxSubscriptions {
		c.want("data")
	}
}

// follower reads a topic over connections that are cut at random, and resumes
// by what it kept of the chain.
type follower struct {
	d    *door
	next map[int32]int64
	got  map[int32][]string
	cuts int
}

// follow takes records until there are want of them.
func (f *follower) follow(ctx context.Context, want int, slow bool) error {
	have := 0
	for have < want {
		n, err := f.session(ctx, want-have, slow)
		have += n
		if err != nil {
			return err
		}
	}
	return nil
}

// session takes at most want records over one connection.
func (f *follower) session(ctx context.Context, want int, slow bool) (have int, err error) {
	c, err := f.d.tryDial(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.ws.CloseNow() }()
	from := `"earliest"`
	if len(f.next) > 0 {
		var at []string
		for p, n := range f.next {
			at = append(at, fmt.Sprintf("%q:%d", strconv.Itoa(int(p)), n))
		}
		from = "{" + strings.Join(at, ",") + "}"
	}
	message := fmt.Sprintf(`{"type":"subscribe","sub":1,"topic":"t","partitions":"all","from":%s,"batch":{"max_bytes":2000}}`, from)
	if err := c.ws.Write(ctx, websocket.MessageText, []byte(message)); err != nil {
		return 0, err
	}
	life := rand.IntN(30)
	for frames := 0; have < want; {
		_, text, err := c.ws.Read(ctx)
		if err != nil {
			return have, err
		}
		a := decode(f.d.t, text)
		if a.Type != "data" {
			if a.Type == "error" || a.Type == "gap" || a.Type == "stream_reset" {
				return have, fmt.Errorf("%s", a.text)
			}
			continue
		}
		if frames++; frames > life && f.cuts > 0 {
			f.cuts-- // in the middle of things: this frame is lost
			return have, nil
		}
		if a.Prev != f.next[a.P] {
			return have, fmt.Errorf("chain: next was %d, prev is %d", f.next[a.P], a.Prev)
		}
		f.next[a.P] = a.Next
		for _, r := range a.Records {
			f.got[a.P] = append(f.got[a.P], fmt.Sprint(r.Value))
		}
		have += len(a.Records)
		if slow {
			c.send(`{'type':'pause','sub':1}`)
			c.send(`{'type':'resume','sub':1}`)
		}
	}
	return have, nil
}

// Subscribers whose connections are cut at random while records are produced
// over another socket get each record once, in order.
func TestExactlyOnce(t *testing.T) {
	const partitions, records, followers = 3, 3000, 4
	d := openDoor(t)
	d.topic("t", partitions)
	ctx, stop := context.WithTimeout(t.Context(), 2*patience)
	defer stop()
	var wg sync.WaitGroup
	all := make([]*follower, followers)
	for i := range all {
		f := &follower{d: d, next: map[int32]int64{}, got: map[int32][]string{}, cuts: 10}
		all[i] = f
		wg.Go(func() {
			if err := f.follow(ctx, records, i == 0); err != nil {
				t.Error(err)
				stop()
			}
		})
	}
	want := map[int32][]string{}
	c := d.dial()
	for i := 0; i < records; {
		var list []string
		for range 1 + rand.IntN(20) {
			if i < records {
				p := int32(rand.IntN(partitions))
				want[p] = append(want[p], strconv.Itoa(i))
				list = append(list, fmt.Sprintf(`{"partition":%d,"value":%d}`, p, i))
				i++
			}
		}
		c.send(`{'type':'produce','id':%d,'topic':'t','receipts':'none','records':[%s]}`, i, strings.Join(list, ","))
		if a := c.want("produced"); a.ID != float64(i) {
			t.Fatalf("%s", a.text)
		}
	}
	wg.Wait()
	for i, f := range all {
		for p := range int32(partitions) {
			if strings.Join(f.got[p], " ") != strings.Join(want[p], " ") {
				t.Errorf("follower %d, partition %d: %d records, want %d", i, p, len(f.got[p]), len(want[p]))
			}
		}
		if f.cuts > 5 {
			t.Errorf("follower %d was cut %d times", i, 10-f.cuts)
		}
	}
}

// One client follows a topic as fast as it comes, in large frames.
func TestCatchUp(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	value := strings.Repeat("x", 1000)
	values := make([]string, 500)
	for i := range values {
		values[i] = value
	}
	const rounds = 20
	for range rounds {
		d.append("t", 0, values...)
	}
	c := d.dial()
	began := time.Now()
	c.send(`{'type':'subscribe','sub':'s','topic':'t','from':'earliest','batch':{'max_bytes':262144}}`)
	c.want("subscribed")
	frames := 0
	for at := int64(0); at < rounds*500; frames++ {
		a := c.want("data")
		if a.Prev != at {
			t.Fatalf("%d after %d", a.Prev, at)
		}
		at = a.Next
	}
	if frames > rounds*500/100 {
		t.Errorf("%d frames for %d records in %s", frames, rounds*500, time.Since(began))
	}
}
