package e2e

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestSocketHandshakeOddities proves that bytes behind a handshake are messages, that a handshake that never ends is let
// go, and that headers without bound and HTTP/2 get an answer.
func TestSocketHandshakeOddities(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	dial := func() net.Conn {
		nc, err := net.Dial("tcp", s.HTTP)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		return nc
	}
	half := dial()
	if _, err := io.WriteString(half, "GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"); err != nil {
		t.Fatal(err)
	}
	huge := dial()
	_, _ = io.WriteString(huge, "GET /v1/ws HTTP/1.1\r\nHost: x\r\nX-Huge: "+strings.Repeat("x", 2<<20)) // the server may have enough of it
	if text, err := io.ReadAll(huge); len(text) > 0 && !strings.Contains(string(text), " 431 ") {
		t.Errorf("huge headers: %v %s", err, clip(string(text)))
	}
	h2 := dial()
	if _, err := io.WriteString(h2, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(h2)
	t.Logf("HTTP/2: %q", clip(string(text)))

	const n = 3000
	pipelined := &joiner{Conn: dial()}
	behind := &socket{nc: &joiner{Conn: pipelined, keep: true}}
	for i := range n {
		if err := behind.send(`{"type":"ping","id":%d}`, i); err != nil {
			t.Fatal(err)
		}
	}
	pipelined.more = behind.nc.(*joiner).more
	opened, err := openSocket(pipelined)
	if err != nil {
		t.Fatal(err)
	}
	k := &talk{opened, t}
	k.want("ready")
	for i := range n {
		if m := k.want("pong"); string(m.ID) != fmt.Sprint(i) {
			t.Fatalf("pong %s, want %d", m.text, i)
		}
	}

	begun := time.Now()
	text, err = io.ReadAll(half)
	t.Logf("half a handshake ended after %v with %q %v", time.Since(begun), clip(string(text)), err)
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		t.Error("half a handshake is held")
	}
}

// joiner sends more behind the first write, in one piece with it, or keeps what is written.
type joiner struct {
	net.Conn
	more []byte
	keep bool
}

func (j *joiner) Write(p []byte) (int, error) {
	if j.keep {
		j.more = append(j.more, p...)
		return len(p), nil
	}
	n := len(p)
	p = append(p[:n:n], j.more...)
	j.more = nil
	_, err := j.Conn.Write(p)
	return n, err
}

// TestSocketChurn proves that connections that come and go in every way leave nothing behind.
func TestSocketChurn(t *testing.T) {
	n := 2000
	if long() {
		n = 20_000
	}
	s := start(t)
	s.createTopic("t", 4)
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, "one\ntwo\n")
	round := func(n int) {
		var wg sync.WaitGroup
		for worker := range 16 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(worker), 1))
				for range n / 16 {
					if err := s.comeAndGo(rng.IntN(6)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	gone := func() (goroutines float64, files int) {
		eventually(t, "all to be gone", func() error {
			for _, name := range []string{"leat_ws_connections", "leat_ws_subscriptions", "leat_broker_tails"} {
				if v := s.metric(name); v != 0 {
					return fmt.Errorf("%s %v", name, v)
				}
			}
			goroutines, files = s.metric("go_goroutines"), s.openFiles()
			return nil
		})
		return goroutines, files
	}
	round(n) // what the pools and the heap keep of so many is there from then on
	goroutines, files := gone()
	memory := s.memory()
	round(n)
	after, filesAfter := gone()
	t.Logf("goroutines %v → %v, files %d → %d, memory %d → %d KiB", goroutines, after, files, filesAfter, memory>>10, s.memory()>>10)
	if after > goroutines+8 || filesAfter > files+4 {
		t.Errorf("goroutines %v → %v, files %d → %d", goroutines, after, files, filesAfter)
	}
	if grown := s.memory() - memory; grown > 24<<20 {
		t.Errorf("memory grew by %d KiB", grown>>10)
	}
}

// comeAndGo opens a socket, and leaves it in one of six ways.
func (s *server) comeAndGo(way int) error {
	nc, err := net.Dial("tcp", s.HTTP)
	if err != nil {
		return err
	}
	defer nc.Close() //nolint:errcheck // the test is about that
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if way == 0 { // before the handshake is answered
		_, err := io.WriteString(nc, "GET /v1/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
			"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: "+subprotocol+"\r\n\r\n")
		return err
	}
	ws, err := openSocket(nc)
	if err != nil {
		return err
	}
	if err := ws.send(`{"type":"subscribe","sub":1,"topic":"t","from":"earliest"}`); err != nil {
		return err
	}
	switch way {
	case 1: // at once
	case 2: // once it has had data
		for {
			if m, err := ws.next(); err != nil || m.Type == "data" {
				return err
			}
		}
	case 3: // by a reset
		return nc.(*net.TCPConn).SetLinger(0)
	case 4: // in the middle of a message
		return ws.write([]byte{0x81, 0xfe, 0x40, 0x00, 1, 2, 3, 4, 5})
	case 5: // by a close frame
		if err := ws.frame(true, opClose, []byte{0x03, 0xe8}); err != nil {
			return err
		}
		for {
			if _, err := ws.next(); err != nil {
				if _, ok := errors.AsType[*closedError](err); ok {
					return nil
				}
				return err
			}
		}
	}
	return nil
}

// TestCreditBounds proves what numbers a credit may have, that the sum of grants has a bound and does not wrap, and that
// what is refused changes nothing.
func TestCreditBounds(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	k := s.socket()
	k.say(`{"type":"subscribe","sub":1,"topic":"t","from":"earliest","credit":{"bytes":1000,"records":1}}`)
	k.want("subscribed")
	for _, bad := range []string{`-1`, `9223372036854775808`, `9223372036854775807`, `9007199254740993`, `1.5`, `1e3`, `"5"`, `null`, `true`, `[1]`, `{}`, `-0.0`, `00`} {
		k.say(`{"type":"credit","id":7,"sub":1,"bytes":1,"records":%s}`, bad)
		if m := k.want("error"); m.Problem.Status != 400 {
			t.Errorf("records %s: %s", bad, m.text)
		}
		k.say(`{"type":"subscribe","id":7,"sub":2,"topic":"t","credit":{"bytes":%s,"records":1}}`, bad)
		if m := k.want("error"); m.Problem.Status != 400 {
			t.Errorf("bytes %s: %s", bad, m.text)
		}
	}
	for range 3000 {
		k.say(`{"type":"credit","sub":1,"bytes":9007199254740992,"records":9007199254740992}`)
	}
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, strings.Repeat("x\n", 500))
	k.wantData(0, 0, 500)
}

// TestFloods proves that floods of messages without a reader of the answers stop the server from reading and cost next
// to no memory, and that once somebody reads all answers are there in order.
func TestFloods(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1, "flush.messages=1000000")
	for name, text := range map[string]string{
		"ping":      `{"type":"ping","id":%d}`,
		"acks all":  `{"type":"produce","id":%d,"topic":"t","records":[{"value":1},{"value":"two"}]}`,
		"acks 1":    `{"type":"produce","id":%d,"topic":"t","acks":1,"records":[{"value":1}]}`,
		"acks 0":    `{"type":"produce","id":%d,"topic":"t","acks":"none","records":[{"value":1}]}`,
		"bad":       `{"type":"pause","id":%d,"sub":"none"}`,
		"subscribe": `{"type":"subscribe","id":%d,"sub":"s","topic":"t","credit":{"bytes":0,"records":0}}{`,
	} {
		t.Run(name, func(t *testing.T) {
			memory := s.watchMemory()
			before := s.memory()
			nc := smallConn(t, s.HTTP)
			if err := nc.SetDeadline(time.Now().Add(2 * patience)); err != nil {
				t.Fatal(err)
			}
			ws, err := openSocket(nc)
			if err != nil {
				t.Fatal(err)
			}
			const n = 20_000
			sent := make(chan error, 1)
			go func() {
				for i := range n {
					if err := ws.send(text, i); err != nil {
						sent <- err
						return
					}
				}
				sent <- nil
			}()
			after(500 * time.Millisecond)
			k := &talk{ws, t}
			k.want("ready")
			for i := range n {
				m, err := ws.next()
				if err != nil {
					t.Fatalf("after %d answers: %v", i, err)
				}
				if m.Type == "hb" {
					m, err = ws.next()
				}
				if err == nil && string(m.ID) != fmt.Sprint(i) && name != "subscribe" {
					t.Fatalf("answer %d is %s", i, clip(m.text))
				}
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
			if grown := memory() - before; grown > 32<<20 {
				t.Errorf("memory grew by %d KiB", grown>>10)
			} else {
				t.Logf("memory grew by %d KiB", grown>>10)
			}
		})
	}
}

// TestSlowTrickle proves that a client that reads a byte a second while a frame is under way is let go after ten seconds,
// also when it sends pings all the time, and that its worker serves others meanwhile.
func TestSlowTrickle(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1, "flush.messages=1000000")
	for range 16 {
		s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, strings.Repeat(strings.Repeat("x", 1000)+"\n", 1000))
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	over := make(chan struct{})
	defer close(over)
	for i := range 40 {
		nc := smallConn(t, s.HTTP)
		ws, err := openSocket(nc)
		if err != nil {
			t.Fatal(err)
		}
		if err := ws.send(`{"type":"subscribe","sub":1,"topic":"t","from":"earliest","credit":{"auto":true,"bytes":100000000,"records":1000000}}`); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			begun := time.Now()
			one := make([]byte, 1)
			for {
				_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
				if _, err := nc.Read(one); err != nil {
					break
				}
				select {
				case <-over:
					return
				default:
				}
				if i%2 == 0 {
					if ws.frame(true, opPing, []byte("x")) != nil || ws.send(`{"type":"ping"}`) != nil {
						break
					}
				}
				after(time.Second)
			}
			took := time.Since(begun)
			if i < 4 {
				t.Logf("client %d let go after %v", i, took)
			}
		})
	}
	k := s.socket()
	k.say(`{"type":"subscribe","sub":1,"topic":"t","from":{"0":16000}}`)
	k.want("subscribed")
	begun := time.Now()
	for next := int64(16000); s.metric("leat_ws_closes_total", "slow_consumer") < 40; next++ {
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("%v of 40 let go as slow", s.metric("leat_ws_closes_total", "slow_consumer"))
		}
		s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, "x\n")
		k.wantData(0, next, 1)
		after(100 * time.Millisecond)
	}
	t.Logf("all let go after %v", time.Since(begun))
}

// TestDrainUnderLoad proves that a stop with 1,000 sockets that follow and ten that produce gives every receipt of what
// was written, closes every socket with goaway and 4010, and ends within ten seconds.
func TestDrainUnderLoad(t *testing.T) {
	const followers, producers = 1000, 10
	s := start(t)
	s.createTopic("t", 4)
	var wg sync.WaitGroup
	bad := make(chan error, followers+producers)
	for range followers {
		k := s.socket()
		k.say(`{"type":"subscribe","sub":1,"topic":"t"}`)
		k.want("subscribed")
		wg.Go(func() { bad <- k.untilDrained(func(message) {}) })
	}
	acked := make([]int, producers)
	sent := make([]int, producers)
	for p := range producers {
		k := s.socket()
		underWay := make(chan struct{}, 8)
		var gone sync.WaitGroup
		gone.Go(func() {
			for i := 0; ; i++ {
				underWay <- struct{}{}
				if k.send(`{"type":"produce","id":%d,"topic":"t","records":[{"value":[%d,%d]}]}`, i, p, i) != nil {
					sent[p] = i
					return
				}
				after(20 * time.Millisecond)
			}
		})
		wg.Go(func() {
			next := 0
			bad <- k.untilDrained(func(m message) {
				if string(m.ID) != fmt.Sprint(next) {
					t.Errorf("producer %d: answer %s, want %d", p, clip(m.text), next)
				}
				next++
				<-underWay
				if m.Type == "produced" {
					acked[p]++
				}
			})
			_ = k.nc.Close()
			for range cap(underWay) {
				select {
				case <-underWay:
				default:
				}
			}
			gone.Wait()
		})
	}
	after(time.Second)
	begun := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.wait()
	took := time.Since(begun)
	wg.Wait()
	close(bad)
	errs := map[string]int{}
	for err := range bad {
		if err != nil {
			errs[err.Error()]++
		}
	}
	t.Logf("ended after %v with %d; acked %v of %v", took, s.cmd.ProcessState.ExitCode(), acked, sent)
	if len(errs) > 0 || took > 10*time.Second || s.cmd.ProcessState.ExitCode() != 0 {
		t.Errorf("errors: %v; took %v", errs, took)
	}
	s.restart()
	stored := make([]int, producers)
	for p := range 4 {
		for at := int64(0); ; {
			var f struct {
				Records []struct {
					Offset int64
					Value  [2]int
				}
				Next int64 `json:"next_offset"`
			}
			s.get(fmt.Sprintf("/v1/topics/t/partitions/%d/records?offset=%d&max_bytes=8000000", p, at)).decode(&f)
			if len(f.Records) == 0 {
				break
			}
			for _, r := range f.Records {
				stored[r.Value[0]]++
				at = r.Offset + 1
			}
		}
	}
	if !slices.Equal(stored, acked) {
		t.Errorf("stored %v, acknowledged %v", stored, acked)
	}
}

// untilDrained reads to the close frame 4010, which goaway must precede.
func (k *talk) untilDrained(answer func(message)) error {
	_ = k.nc.SetDeadline(time.Now().Add(2 * patience))
	goaway := false
	for {
		m, err := k.next()
		if closed, ok := errors.AsType[*closedError](err); ok {
			if closed.code != 4010 || !goaway {
				return fmt.Errorf("%w, goaway %v", closed, goaway)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("no close frame: %w, goaway %v", err, goaway)
		}
		switch m.Type {
		case "goaway":
			goaway = true
		case "produced", "error":
			answer(m)
		}
	}
}

// TestIdleSockets proves that 1,000 subscribed sockets of an idle server take next to no processor time.
func TestIdleSockets(t *testing.T) {
	s := start(t)
	s.createTopic("t", 4)
	for range 1000 {
		k := s.socket()
		k.say(`{"type":"subscribe","sub":1,"topic":"t"}`)
		k.want("subscribed")
	}
	after(time.Second)
	before := s.cpu()
	after(5 * time.Second)
	used := s.cpu() - before
	t.Logf("%v in 5 s", used)
	if used > 250*time.Millisecond {
		t.Errorf("%v in 5 s", used)
	}
}

// TestHalfClose proves that a client that closes its sending half is let go, and what it produced before is written.
func TestHalfClose(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	k := s.socket()
	k.say(`{"type":"subscribe","sub":1,"topic":"t"}`)
	k.want("subscribed")
	k.say(`{"type":"produce","id":1,"topic":"t","records":[{"value":1}]}`)
	if err := k.nc.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(k.r); err != nil {
		t.Error(err)
	}
	eventually(t, "the socket to be gone", func() error {
		if n := s.metric("leat_ws_connections"); n != 0 {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
	eventually(t, "the record", func() error {
		if got := s.records("t", 0, "offset=0"); len(got.Records) != 1 {
			return fmt.Errorf("%d records", len(got.Records))
		}
		return nil
	})
}
