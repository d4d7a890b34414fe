package ws

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"leat/auth"
)

// pipeWriter is the answer to a handshake on one end of a net.Pipe.
type pipeWriter struct {
	nc     net.Conn
	header http.Header
}

func (w *pipeWriter) Header() http.Header         { return w.header }
func (w *pipeWriter) Write(p []byte) (int, error) { return w.nc.Write(p) }
func (w *pipeWriter) WriteHeader(int)             {}

func (w *pipeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	_, err := io.WriteString(w.nc, "HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Protocol: "+subprotocol+"\r\n\r\n")
	return w.nc, bufio.NewReadWriter(bufio.NewReader(w.nc), bufio.NewWriter(w.nc)), err
}

// piped is a client on the other end, of a server without a broker.
func piped(t *testing.T, s *Server) *raw {
	t.Helper()
	here, there := net.Pipe()
	req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(handshake("pipe"))))
	if err != nil {
		t.Fatal(err)
	}
	go s.ServeHTTP(&pipeWriter{nc: there, header: http.Header{}}, req.WithContext(t.Context()))
	r := &raw{t: t, nc: here, in: bufio.NewReader(here)}
	r.upgraded()
	return r
}

// await takes frames until one is due, without a deadline of its own.
func (r *raw) await() (op byte, payload []byte) {
	r.t.Helper()
	if err := r.nc.SetReadDeadline(time.Time{}); err != nil {
		r.t.Fatal(err)
	}
	head := make([]byte, 2)
	if _, err := io.ReadFull(r.in, head); err != nil {
		r.t.Fatal(err)
	}
	payload = make([]byte, head[1])
	if _, err := io.ReadFull(r.in, payload); err != nil {
		r.t.Fatal(err)
	}
	return head[0] & 0x0f, payload
}

// A silent client that answers pings keeps its connection, and is shown that it
// lives every 25 s.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		r := piped(t, s)
		began, pings, beats := time.Now(), 0, 0
		last := began
		for time.Since(began) < 10*time.Minute {
			switch op, payload := r.await(); {
			case op == opPing:
				pings++
				r.write(maskedFrame(final|opPong, payload))
			case string(payload) == `{"type":"hb"}`:
				beats++
				if quiet := time.Since(last); quiet < defaultHeartbeat || quiet > defaultHeartbeat+time.Second {
					t.Errorf("a heartbeat after %s", quiet)
				}
				last = time.Now()
			default:
				t.Fatalf("frame %d %s", op, payload)
			}
		}
		if pings < 22 || pings > 25 || beats < 22 || beats > 24 {
			t.Errorf("%d pings and %d heartbeats in ten minutes", pings, beats)
		}
		_ = r.nc.Close()
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A client that does not answer a ping within ten seconds is given up.
func TestPingTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		r := piped(t, s)
		var pinged time.Time
		for {
			op, payload := r.await()
			if op == opPing {
				pinged = time.Now()
			}
			if op != opClose {
				continue
			}
			if code := binary.BigEndian.Uint16(payload); code != 1001 || string(payload[2:]) != "ping_timeout" {
				t.Errorf("closed with %d %s", code, payload[2:])
			}
			if took := time.Since(pinged); took != defaultPongTimeout {
				t.Errorf("closed %s after the ping", took)
			}
			break
		}
		// It does not answer the close frame either.
		if _, err := r.in.ReadByte(); err == nil {
			t.Error("more after the close frame")
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A client that does not take its answers is closed when a write has taken ten
// seconds, and no sooner.
func TestWriteTimeout(t *testing.T) {
	b := openDoor(t).broker // its goroutines are not of the bubble
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Broker: b})
		r := piped(t, s)
		began := time.Now()
		r.write(maskedFrame(final|opText, []byte(`{"type":"ping"}`)))
		synctest.Wait()
		if n := s.blocked.Load(); n != 1 {
			t.Errorf("%d blocked", n)
		}
		for len(s.sessions()) > 0 {
			time.Sleep(time.Second)
		}
		if took := time.Since(began); took < defaultWriteTimeout || took > defaultWriteTimeout+6*time.Second {
			t.Errorf("closed after %s", took)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		_ = r.nc.Close()
	})
}

// A client that does not take a pong is closed as slow after the same time, and
// so is one whose ping comes just as a message is about to be written.
func TestPongTimeout(t *testing.T) {
	for name, begin := range map[string]func(*session){
		"alone":            func(*session) {},
		"behind a message": func(s *session) { s.post(&event{reply: plain(kindPong, "", "")}, false) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Options{})
				r := piped(t, s)
				synctest.Wait()
				began, sess := time.Now(), s.sessions()[0]
				begin(sess)
				r.write(maskedFrame(final|opPing, []byte("x")))
				for len(s.sessions()) > 0 {
					time.Sleep(time.Second)
				}
				if took := time.Since(began); took < defaultWriteTimeout {
					t.Errorf("closed after %s", took)
				}
				var slow dto.Metric
				if err := s.metrics.closes[causeSlow].Write(&slow); err != nil || slow.GetCounter().GetValue() != 1 {
					t.Errorf("closed as slow: %v, %v", &slow, err)
				}
				if err := s.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				_ = r.nc.Close()
			})
		})
	}
}

// A client with too much unacknowledged is not read, which it is not blamed for,
// and is read again when there is room.
func TestUnacked(t *testing.T) {
	b := openDoor(t).broker // its goroutines are not of the bubble
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Broker: b})
		r := piped(t, s)
		synctest.Wait()
		sess := s.sessions()[0]
		unacked := func(n int) {
			sess.mu.Lock()
			sess.mu.unacked = n
			sess.mu.changed.Broadcast()
			sess.mu.Unlock()
		}
		unacked(maxUnacked)
		ping := maskedFrame(final|opText, []byte(`{"type":"ping"}`))
		r.write(ping) // the reader was past its check already
		if _, payload := r.await(); string(payload) != `{"type":"pong"}` {
			t.Fatalf("%s", payload)
		}
		began, pongs := time.Now(), 0
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			r.write(ping) // blocks: a pipe has no buffer
		}()
		for pongs == 0 {
			switch op, payload := r.await(); {
			case op == opClose:
				t.Fatalf("closed: %s", payload)
			case string(payload) == `{"type":"pong"}`:
				pongs++
			case time.Since(began) > 2*time.Minute:
				unacked(maxUnacked - 1)
			}
		}
		<-sent
		if time.Since(began) < 2*time.Minute {
			t.Error("it was read")
		}
		_ = r.nc.Close()
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The wheel fires for each after its time, and a tick or two later at most.
func TestWheel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type wait struct {
			began time.Time
			d     time.Duration
		}
		var mu sync.Mutex
		waits := map[*session]wait{}
		w := newWheel(time.Millisecond, 128, func(s *session) {
			mu.Lock()
			defer mu.Unlock()
			if took := time.Since(waits[s].began); took < waits[s].d || took > waits[s].d+2*time.Millisecond {
				t.Errorf("fired after %s, want %s", took, waits[s].d)
			}
			delete(waits, s)
		})
		for i := range 2000 {
			s, d := new(session), time.Duration(i*37%100_000)*time.Microsecond
			mu.Lock()
			waits[s] = wait{time.Now(), d}
			mu.Unlock()
			w.add(s, d)
			if i%10 == 0 {
				time.Sleep(time.Duration(i%7) * 300 * time.Microsecond)
			}
		}
		time.Sleep(time.Second)
		mu.Lock()
		if len(waits) > 0 {
			t.Errorf("%d were forgotten", len(waits))
		}
		mu.Unlock()
		w.add(new(session), time.Millisecond)
		w.stop()
		time.Sleep(time.Second)
	})
}

// The load follows the rate of frames, and is over soon after.
func TestPace(t *testing.T) {
	var p pace
	now := int64(time.Hour)
	rate := func(perSecond int, span time.Duration) time.Duration {
		for end := now + int64(span); now < end; now += int64(time.Second) / int64(perSecond) {
			p.sent(now)
		}
		return p.delay(now, defaultDelay).Round(time.Millisecond)
	}
	for _, tc := range []struct {
		perSecond int
		want      time.Duration
	}{{10, 0}, {900, 0}, {5500, 13 * time.Millisecond}, {20_000, defaultDelay}, {500, 0}} {
		if got := rate(tc.perSecond, 2*time.Second); got < tc.want-time.Millisecond || got > tc.want+time.Millisecond {
			t.Errorf("%d frames a second: %s, want %s", tc.perSecond, got, tc.want)
		}
	}
	rate(20_000, time.Second)
	if got := p.delay(now+int64(2*time.Second), defaultDelay); got != 0 {
		t.Errorf("%s after a pause", got)
	}
}

// A server that stops tells each client and closes with 4010; one whose client
// says nothing is closed all the same, by the context at the latest.
func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		polite, silent := piped(t, s), piped(t, s)
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
		defer stop()
		done := make(chan error)
		go func() { done <- s.Shutdown(ctx) }()
		var away int
		if _, payload := polite.await(); scan(payload, `{"type":"goaway","after_ms":%d}`, &away) != nil || away < 500 || away >= 10_000 {
			t.Errorf("%s", payload)
		}
		if reason := polite.closed(4010); reason != "draining" {
			t.Errorf("reason %q", reason)
		}
		began := time.Now()
		if err := <-done; err == nil || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		_ = silent.nc.Close()
		// Nobody comes in any more.
		if err := s.admit(auth.Anonymous); err == nil {
			t.Error("admitted")
		}
	})
}

func scan(text []byte, format string, into ...any) error {
	_, err := fmt.Sscanf(string(text), format, into...)
	return err
}

// Clients of a server that stops are told to come back one by one, spread over
// the time that the stop may take, and none at once.
func TestAway(t *testing.T) {
	for drain, want := range map[time.Duration][2]time.Duration{
		0:               {500 * time.Millisecond, 10 * time.Second},
		4 * time.Second: {200 * time.Millisecond, 4 * time.Second},
	} {
		s := New(Options{Drain: drain})
		const clients, parts = 10_000, 10
		var in [parts]int
		for range clients {
			d := s.away()
			if d < want[0] || d >= want[1] {
				t.Fatalf("drain %s: %s, want %s to %s", drain, d, want[0], want[1])
			}
			in[(d-want[0])*parts/(want[1]-want[0])]++
		}
		for i, n := range in {
			if n < clients/parts/2 || n > clients/parts*2 {
				t.Errorf("drain %s: %d of %d clients in part %d of %d", drain, n, clients, i, parts)
			}
		}
	}
}
