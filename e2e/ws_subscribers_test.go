package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestSubscribeChurn proves that subscriptions that come and go, are paused and resumed while records flow, give chains
// without holes, and leave nothing behind.
func TestSubscribeChurn(t *testing.T) {
	s := start(t)
	s.createTopic("t", 2, "flush.messages=1000000")
	k := s.socket()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				_, _ = s.try("POST", fmt.Sprintf("/v1/topics/t/partitions/%d/records?value=line", i%2), []byte("x\ny\nz\n"), "Content-Type: "+typeNDJSON)
			}
		}
	})
	defer close(stop)
	rng := rand.New(rand.NewPCG(3, 3))
	go func() {
		for range 6000 {
			sub := rng.IntN(8)
			var err error
			switch rng.IntN(6) {
			case 0, 1:
				err = k.send(`{"type":"subscribe","sub":%d,"topic":"t","from":"tail:20"}`, sub)
			case 2:
				err = k.send(`{"type":"unsubscribe","sub":%d}`, sub)
			case 3:
				err = k.send(`{"type":"pause","sub":%d}`, sub)
			case 4:
				err = k.send(`{"type":"resume","sub":%d}`, sub)
			case 5:
				err = k.send(`{"type":"credit","sub":%d,"bytes":1,"records":1}`, sub)
			}
			if err != nil {
				return
			}
		}
		_ = k.send(`{"type":"ping","id":"end"}`)
	}()
	at := map[string]map[int32]int64{}
	paused := map[string]bool{}
	frames := 0
	for {
		m, err := k.next()
		if err != nil {
			t.Fatal(err)
		}
		sub := string(m.Sub)
		switch m.Type {
		case "subscribed":
			at[sub] = map[int32]int64{0: m.Positions["0"], 1: m.Positions["1"]}
			paused[sub] = false
		case "unsubscribed":
			delete(at, sub)
		case "paused":
			paused[sub] = true
		case "resumed":
			paused[sub] = false
		case "data":
			frames++
			if at[sub] == nil || paused[sub] {
				t.Fatalf("data of a subscription that is not: %s", clip(m.text))
			}
			if at[sub][m.Partition] != m.Prev {
				t.Fatalf("prev %d, want %d", m.Prev, at[sub][m.Partition])
			}
			at[sub][m.Partition] = m.Next
		case "pong":
			t.Logf("%d frames", frames)
			return
		case "error", "hb":
		default:
			t.Fatal(clip(m.text))
		}
	}
}

// TestProduceAndFollow proves that a socket that produces at full speed and follows the same topic gets all receipts and
// all records, in order.
func TestProduceAndFollow(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1, "flush.messages=1000000")
	k := s.socket()
	k.say(`{"type":"subscribe","sub":1,"topic":"t","from":"earliest"}`)
	k.want("subscribed")
	const n, each = 5000, 4
	pad := strings.Repeat("x", 200)
	go func() {
		for i := range n {
			if k.send(`{"type":"produce","id":%d,"topic":"t","records":[{"value":[%d,0,%q]},{"value":[%d,1]},{"value":[%d,2]},{"value":[%d,3]}]}`, i, i, pad, i, i, i) != nil {
				return
			}
		}
	}()
	receipts, next := 0, int64(0)
	for receipts < n || next < n*each {
		m, err := k.next()
		if err != nil {
			t.Fatalf("%d receipts, %d records: %v", receipts, next, err)
		}
		switch m.Type {
		case "produced":
			if string(m.ID) != fmt.Sprint(receipts) {
				t.Fatalf("receipt %d: %s", receipts, clip(m.text))
			}
			receipts++
		case "data":
			for _, r := range m.Records {
				if r.Offset != next || !strings.HasPrefix(string(r.Value), fmt.Sprintf("[%d,%d", next/each, next%each)) {
					t.Fatalf("record %d: %+v", next, r)
				}
				next++
			}
		case "hb":
		default:
			t.Fatal(clip(m.text))
		}
	}
}

// TestFairness proves that of 128 subscriptions of a socket that all have much to read each gets about the same number of
// frames, whatever its credit, and that those without credit get nothing.
func TestFairness(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1, "flush.messages=1000000")
	for range 8 {
		s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, strings.Repeat(strings.Repeat("x", 1000)+"\n", 1000))
	}
	k := s.socket()
	for i := range 128 {
		credit := `{"auto":true}`
		switch i % 4 {
		case 1:
			credit = `{"auto":true,"records":1}`
		case 2:
			credit = `{"bytes":100000000,"records":5}`
		case 3:
			credit = `{"bytes":0,"records":10}`
		}
		k.say(`{"type":"subscribe","sub":%d,"topic":"t","from":"earliest","credit":%s,"batch":{"max_bytes":%d}}`, i, credit, 1000+i*100)
	}
	k.say(`{"type":"subscribe","id":"more","sub":128,"topic":"t"}`)
	frames, records := map[string]int{}, map[string]int{}
	subscribed := 0
	for total := 0; total < 6000; {
		m, err := k.next()
		if err != nil {
			t.Fatal(err)
		}
		switch m.Type {
		case "data":
			if subscribed == 128 {
				frames[string(m.Sub)]++
				total++
			}
			records[string(m.Sub)] += len(m.Records)
		case "subscribed":
			subscribed++
		case "error":
			if m.Problem.Code != "too_many_subscriptions" || m.Problem.Status != 422 {
				t.Fatal(m.text)
			}
		}
	}
	var counts []int
	for i := range 128 {
		sub := fmt.Sprint(i)
		switch i % 4 {
		case 0, 1:
			counts = append(counts, frames[sub])
		case 2:
			if records[sub] != 5 {
				t.Errorf("sub %d had credit for 5 records and got %d", i, records[sub])
			}
		case 3:
			if records[sub] != 0 {
				t.Errorf("sub %d had no bytes of credit and got %d records", i, records[sub])
			}
		}
	}
	slices.Sort(counts)
	t.Logf("frames: least %d, most %d", counts[0], counts[len(counts)-1])
	if counts[0] < counts[len(counts)-1]/2-1 {
		t.Errorf("frames: least %d, most %d", counts[0], counts[len(counts)-1])
	}
}

// TestManySubscribersOnce proves that 200 subscribers with random credits, cut at random while records come and the
// server is killed, get every record once.
func TestManySubscribersOnce(t *testing.T) {
	const partitions, n = 3, 3000
	p := newProxy(t)
	s := start(t)
	p.point(s.HTTP)
	s.createTopic("t", partitions)
	var followers []*follower
	for i := range 200 {
		f := &follower{name: fmt.Sprint("subscriber ", i), account: newAccount(partitions, false), session: overCreditedSocket("t", uint64(i))}
		cutTimes(p, f, 5, n, uint64(i))
		f.follow()
		t.Cleanup(func() { _ = f.stop() })
		followers = append(followers, f)
	}
	sent := make([]int64, partitions)
	client := &http.Client{Transport: checked(http.DefaultTransport), Timeout: patience}
	for i := range n / 10 {
		if i == n/20 {
			s.kill()
			s.restart()
			p.point(s.HTTP)
		}
		part := i % partitions
		resp, err := client.Post(fmt.Sprintf("http://%s/v1/topics/t/partitions/%d/records?value=line", s.HTTP, part), typeNDJSON, strings.NewReader(strings.Repeat("x\n", 10)))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		sent[part] += 10
	}
	for _, f := range followers {
		eventually(t, "every record at "+f.name, func() error {
			if err := f.failed(); err != nil {
				t.Fatal(err)
			}
			for part := range int32(partitions) {
				if at := f.at(part); at != sent[part] {
					return fmt.Errorf("partition %d: %d of %d", part, at, sent[part])
				}
			}
			return nil
		})
		if err := f.stop(); err != nil {
			t.Fatal(err)
		}
		if f.received.Load() != n {
			t.Errorf("%s received %d records, want %d", f.name, f.received.Load(), n)
		}
	}
}

// overCreditedSocket follows a topic with manual credit in random pieces, and pauses now and then.
func overCreditedSocket(topic string, seed uint64) func(*follower, net.Conn) error {
	rng := rand.New(rand.NewPCG(seed, 9))
	return func(f *follower, nc net.Conn) error {
		ws, err := openSocket(nc)
		if err != nil {
			return unlessRefused(err)
		}
		left := int64(rng.IntN(20))
		if err := ws.send(`{"type":"subscribe","id":1,"sub":"s","topic":%q,"partitions":"all","from":%s,"credit":{"bytes":1000000,"records":%d}}`, topic, f.positions(), left); err != nil {
			return err
		}
		for {
			if left == 0 {
				left = int64(1 + rng.IntN(100))
				if rng.IntN(10) == 0 {
					if err := ws.send(`{"type":"pause","sub":"s"}`); err != nil {
						return err
					}
					if err := ws.send(`{"type":"resume","sub":"s"}`); err != nil {
						return err
					}
				}
				if err := ws.send(`{"type":"credit","sub":"s","bytes":1000000,"records":%d}`, left); err != nil {
					return err
				}
			}
			text, err := ws.read()
			if err != nil {
				return err
			}
			var m message
			if err := json.Unmarshal(text, &m); err != nil {
				return violated("message %q: %v", clip(string(text)), err)
			}
			switch m.Type {
			case "ready", "hb", "goaway", "paused", "resumed", "subscribed":
			case "data":
				if left -= int64(len(m.Records)); left < 0 {
					return violated("%d records beyond the credit", -left)
				}
				if err := f.data(&m); err != nil {
					return err
				}
			default:
				return violated("message %s", clip(string(text)))
			}
		}
	}
}

// TestChangesUnderSubscriptions proves that what happens to a topic is told to subscriptions that are paused, have no
// credit, or whose client does not read: new partitions are followed, deleted records are a gap, a deleted topic is a
// reset.
func TestChangesUnderSubscriptions(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, strings.Repeat("x\n", 100))
	k := s.socket()
	k.say(`{"type":"subscribe","sub":"paused","topic":"t","from":"earliest","credit":{"bytes":100000,"records":10}}`)
	k.want("subscribed")
	if got := k.wantData(0, 0, 10); len(got) != 10 {
		t.Fatal(len(got))
	}
	k.say(`{"type":"pause","sub":"paused"}`)
	k.want("paused")
	k.say(`{"type":"subscribe","sub":"no credit","topic":"t","from":"earliest","credit":{"bytes":0,"records":0}}`)
	k.want("subscribed")
	s.deleteRecords("t", 0, 50)
	if _, err := s.admin().UpdatePartitions(t.Context(), 3, "t"); err != nil {
		t.Fatal(err)
	}
	s.post("/v1/topics/t/partitions/2/records?value=line", typeNDJSON, "new\n")
	k.say(`{"type":"credit","sub":"no credit","bytes":1000000,"records":51}`)
	k.say(`{"type":"credit","sub":"paused","bytes":1000000,"records":51}`)
	k.say(`{"type":"resume","sub":"paused"}`)
	got, gaps := map[string]int{}, map[string]int64{}
	for got["\"paused\""] < 51 || got["\"no credit\""] < 51 {
		m, err := k.next()
		if err != nil {
			t.Fatalf("%v %v: %v", got, gaps, err)
		}
		switch m.Type {
		case "data":
			got[string(m.Sub)] += len(m.Records)
		case "gap":
			gaps[string(m.Sub)] += m.To - m.From
		}
	}
	if gaps["\"paused\""] != 40 || gaps["\"no credit\""] != 50 {
		t.Errorf("gaps %v", gaps)
	}
	blocked := smallConn(t, s.HTTP)
	ws, err := openSocket(blocked)
	if err != nil {
		t.Fatal(err)
	}
	_ = blocked.SetDeadline(time.Now().Add(patience))
	for range 4 {
		s.post("/v1/topics/t/partitions/1/records?value=line", typeNDJSON, strings.Repeat(strings.Repeat("x", 1000)+"\n", 1000))
	}
	if err := ws.send(`{"type":"subscribe","sub":1,"topic":"t","from":"earliest","credit":{"auto":true,"bytes":100000000,"records":100000}}`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the client to block", func() error {
		if s.metric("leat_ws_blocked_connections") != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	s.do("DELETE", "/v1/topics/t", nil).want(204)
	s.createTopic("t", 1)
	for resets := 0; resets < 2; {
		if m, err := k.next(); err != nil {
			t.Fatal(err)
		} else if m.Type == "stream_reset" {
			resets++
		}
	}
	for {
		m, err := ws.next()
		if err != nil {
			t.Fatal(err)
		}
		if m.Type == "stream_reset" {
			break
		}
	}
}
