package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// keyedRequest is a produce with an idempotency key, and what is known of its answers.
type keyedRequest struct {
	key, path, media string
	headers          []string
	body, other      string
	values           []string // of its records
	mu               sync.Mutex
	first            []byte // the answer, nil while there is none
	replayed         bool   // some answer said so
}

// newKeyedRequest is the n-th request: of any form, with any number of records, whose values are found nowhere else.
func newKeyedRequest(n int, rng *rand.Rand) *keyedRequest {
	k := &keyedRequest{key: fmt.Sprintf("request-%06d", n), path: "/v1/topics/idem/records", media: typeJSON}
	count := 1 + rng.IntN(1+rng.IntN(60))
	pad := strings.Repeat("x", rng.IntN(300))
	form := rng.IntN(5)
	if form == 4 {
		count = 1
	}
	var b strings.Builder
	for i := range count {
		value := fmt.Sprintf("%d-%d-%s", n, i, pad)
		k.values = append(k.values, value)
		var key string
		if rng.IntN(2) == 0 {
			key = fmt.Sprintf(`"key":"k%d",`, rng.IntN(50))
		}
		if rng.IntN(9) == 0 {
			key += fmt.Sprintf(`"timestamp":%d,`, 1_700_000_000_000+int64(i))
		}
		switch form {
		case 0, 1:
			fmt.Fprintf(&b, "%s{%s\"value_str\":%q}", strings.Repeat(",", min(i, 1)), key, value)
		case 2:
			fmt.Fprintf(&b, "{%s\"value_str\":%q}\n", key, value)
		default:
			b.WriteString(value + strings.Repeat("\n", min(count-1, 1)))
		}
	}
	k.body = b.String()
	query := []string{"", "?receipts=full", "?receipts=summary", "?receipts=none", "?acks=1"}[rng.IntN(5)]
	switch form {
	case 0, 1:
		k.body = "[" + k.body + "]"
		k.other = `[{"value":"another"}]`
	case 2:
		k.media, k.other = typeNDJSON, `{"value":"another"}`
	case 3:
		k.media, k.other = typeNDJSON, "another"
		query = "?value=line&" + strings.TrimPrefix(query, "?")
		query = strings.TrimSuffix(query, "&")
	default:
		k.media, k.other = typeBytes, "another"
		k.headers = []string{"Record-Key: k1", "Record-Header-N: 1"}
	}
	if rng.IntN(4) == 0 {
		k.path = fmt.Sprintf("/v1/topics/idem/partitions/%d/records", rng.IntN(4))
	}
	k.path += query
	return k
}

// cutter of one connection: it ends, in the middle of whatever goes through, when so many bytes have gone one way.
type brittleConn struct {
	net.Conn
	p           *proxy
	read, write atomic.Int64 // that are left
}

func (c *brittleConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.read.Add(int64(-n)) < 0 {
		c.p.cut(c.LocalAddr())
	}
	return n, err
}

func (c *brittleConn) Write(b []byte) (int, error) {
	if left := c.write.Load(); int64(len(b)) > left {
		n, _ := c.Conn.Write(b[:max(left, 0)])
		c.p.cut(c.LocalAddr())
		return n, io.ErrClosedPipe
	}
	c.write.Add(int64(-len(b)))
	return c.Conn.Write(b)
}

// sender sends requests through the proxy, some over connections that are cut.
type sender struct {
	t testing.TB
	p *proxy
	// counts of what became of them
	cuts, busy, refused atomic.Int64
}

// once sends a request; read and write are the bytes after which its connection is cut, or 0. The answer is empty if
// there was none.
func (s *sender) once(k *keyedRequest, body string, read, write int64) answer {
	s.t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			nc, err := new(net.Dialer).DialContext(ctx, "tcp", s.p.addr)
			if err != nil || read+write == 0 {
				return nc, err
			}
			c := &brittleConn{Conn: nc, p: s.p}
			c.read.Store(1 << 40)
			c.write.Store(1 << 40)
			if read > 0 {
				c.read.Store(read)
			} else {
				c.write.Store(write)
			}
			return c, nil
		},
	}}
	req, err := http.NewRequest(http.MethodPost, "http://"+s.p.addr+k.path, strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return answer{}
	}
	req.Header.Set("Content-Type", k.media)
	req.Header.Set("Idempotency-Key", k.key)
	for _, h := range k.headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		s.cuts.Add(1)
		return answer{}
	}
	a, err := readAnswer(s.t, "POST "+k.path, resp)
	if err != nil {
		s.cuts.Add(1)
		return answer{}
	}
	return a
}

// take checks an answer against the first one.
func (k *keyedRequest) take(s *sender, a answer) (answered bool) {
	switch a.status {
	case 0:
		return false
	case http.StatusConflict:
		s.busy.Add(1)
		if !bytes.Contains(a.body, []byte(`"idempotency_in_progress"`)) || a.header.Get("Retry-After") == "" {
			s.t.Errorf("%s: %s", k.key, a.body)
		}
		return false
	case http.StatusServiceUnavailable:
		s.refused.Add(1)
		return false
	case http.StatusOK:
	default:
		s.t.Errorf("%s: %s: %d %s", k.key, k.path, a.status, tail(string(a.body), 300))
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.first == nil {
		k.first = a.body
	}
	if !bytes.Equal(k.first, a.body) {
		s.t.Errorf("%s: %s: one answer is %s, another %s", k.key, k.path, tail(string(k.first), 300), tail(string(a.body), 300))
	}
	k.replayed = k.replayed || a.header.Get("Idempotency-Replayed") == "true"
	return true
}

// retry is eventually for who is not the test's own goroutine.
func (s *sender) retry(what string, ok func() error) {
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Errorf("%s: not within %v: %v", what, patience, err)
			return
		}
		<-tick.C
	}
}

// until sends a request until it is answered.
func (s *sender) until(k *keyedRequest) {
	s.retry(k.key, func() error {
		if !k.take(s, s.once(k, k.body, 0, 0)) {
			return fmt.Errorf("no answer")
		}
		return nil
	})
}

// TestIdempotencyKeys proves that requests with an idempotency key, each sent one to five times at once, over
// connections that are cut anywhere, and again, while the server is killed again and again, are written once each, that
// every answer is the first one to the byte, and that another body under a key is refused, before a kill and after.
func TestIdempotencyKeys(t *testing.T) {
	n, kills := 1200, 4
	if long() {
		n, kills = 10_000, 25
	}
	s := start(t, "--set", "leat.idempotency.retention.ms=7200000")
	s.createTopic("idem", 4, "max.message.bytes=4000")
	p := newProxy(t).forgetful()
	p.point(s.HTTP)
	out := &sender{t: t, p: p}
	requests := make([]*keyedRequest, n)
	for i := range requests {
		requests[i] = newKeyedRequest(i, rand.New(rand.NewPCG(uint64(i), 21)))
	}
	var next atomic.Int64
	work := func(do func(i int, rng *rand.Rand)) *sync.WaitGroup {
		next.Store(0)
		var workers sync.WaitGroup
		for range 12 {
			workers.Go(func() {
				for i := int(next.Add(1)) - 1; i < n && !t.Failed(); i = int(next.Add(1)) - 1 {
					do(i, rand.New(rand.NewPCG(uint64(i), 22)))
				}
			})
		}
		return &workers
	}
	workers := work(func(i int, rng *rand.Rand) {
		k := requests[i]
		var tries sync.WaitGroup
		for range 1 + rng.IntN(5) {
			var read, write int64
			switch rng.IntN(4) {
			case 0:
				read = 1 + rng.Int64N(600)
			case 1:
				write = 1 + rng.Int64N(int64(len(k.body)+250))
			}
			tries.Go(func() { k.take(out, out.once(k, k.body, read, write)) })
		}
		tries.Wait()
		out.until(k)
		if i%10 == 0 {
			out.refuse(k)
		}
	})
	for i := range kills {
		mark := int64(n * (i + 1) / (kills + 1))
		eventually(t, "the next kill", func() error {
			if done := next.Load(); done < mark && !t.Failed() {
				return fmt.Errorf("%d of %d requests", done, mark)
			}
			return nil
		})
		s.kill()
		s.restart()
		p.point(s.HTTP)
	}
	workers.Wait()
	s.kill()
	s.restart()
	p.point(s.HTTP)
	work(func(i int, _ *rand.Rand) {
		k := requests[i]
		k.replayed = false
		out.until(k)
		if !k.replayed {
			t.Errorf("%s: after all it is no replay", k.key)
		}
		if i%10 == 1 {
			out.refuse(k)
		}
	}).Wait()
	t.Logf("%d requests: %d without an answer, %d in progress, %d refused", n, out.cuts.Load(), out.busy.Load(), out.refused.Load())
	if out.cuts.Load() == 0 || out.busy.Load() == 0 {
		t.Error("nothing was cut, or nothing was sent at once")
	}
	onceEach(t, s, "idem", 4, requests)
}

// refuse sends another body under the key.
func (s *sender) refuse(k *keyedRequest) {
	s.retry(k.key+" with another body", func() error {
		a := s.once(k, k.other, 0, 0)
		if a.status == http.StatusUnprocessableEntity && bytes.Contains(a.body, []byte(`"idempotency_key_reused"`)) {
			return nil
		}
		if a.status/100 == 2 {
			s.t.Errorf("%s: another body was answered with %d %s", k.key, a.status, a.body)
			return nil
		}
		return fmt.Errorf("%d %s", a.status, a.body)
	})
}

// onceEach checks that the topic holds each record of the requests once and no other.
func onceEach(t testing.TB, s *server, topic string, partitions int32, requests []*keyedRequest) {
	t.Helper()
	seen := map[string]int{}
	for p := range partitions {
		for _, b := range mustSplit(t, s.wire().fetchAll(topic, p, 0)) {
			for _, v := range b.values(t) {
				seen[v]++
			}
		}
	}
	for _, k := range requests {
		for _, v := range k.values {
			if seen[v] != 1 {
				t.Errorf("%s: %q is there %d times", k.key, clip(v), seen[v])
			}
			delete(seen, v)
		}
	}
	for v, n := range seen {
		t.Errorf("%q is there %d times and was never sent", clip(v), n)
	}
}
