package kafka

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Bytes that are no request close the connection at once without an answer,
// and say why in the log, where there is something to say.
func TestGarbage(t *testing.T) {
	for _, tc := range []struct {
		name, bytes, log string
	}{
		{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "--http-addr"},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "--http-addr"},
		{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "PLAINTEXT"},
		{"size -1", "\xff\xff\xff\xff", "size -1"},
		{"size 0", "\x00\x00\x00\x00", "size 0"},
		{"size 2^31-1", "\x7f\xff\xff\xff", "size 2147483647"},
		{"unknown key", "\x00\x00\x00\x10\x03\xe7\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00", "key 999"},
		{"key not served", "\x00\x00\x00\x0a\x00\x04\x00\x00\x00\x00\x00\x01\x00\x00", "key 4"},
		{"negative key", "\x00\x00\x00\x0a\xff\xff\x00\x00\x00\x00\x00\x01\x00\x00", "key -1"},
		{"version too high", "\x00\x00\x00\x0a\x00\x03\x00\x63\x00\x00\x00\x01\x00\x00", "Metadata version 99"},
		{"version too low", "\x00\x00\x00\x0a\x00\x01\x00\x03\x00\x00\x00\x01\x00\x00", "Fetch version 3"},
		{"produce v2 is advertised and refused", "\x00\x00\x00\x0a\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00", "Produce version 2"},
		{"negative version", "\x00\x00\x00\x0a\x00\x12\xff\xff\x00\x00\x00\x01\x00\x00", "ApiVersions version -1"},
		{"large metadata request, before its body", "\x01\x00\x00\x00\x00\x03\x00\x09\x00\x00\x00\x01", "at most"},
		{"body cut short", "\x00\x00\x00\x0c\x00\x03\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00", "malformed"},
		{"client id beyond the frame", "\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\x00\x09", "malformed"},
		{"array beyond the frame", "\x00\x00\x00\x0e\x00\x03\x00\x01\x00\x00\x00\x01\x00\x00\x7f\xff\xff\xff", "malformed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := startDoor(t, setup{noBroker: true})
			c := d.dial(t)
			c.send([]byte(tc.bytes))
			c.closed()
			eventually(t, "a log line", func() bool { return strings.Contains(d.logs.String(), tc.log) })
			eventually(t, "the connection is given up", func() bool { return d.counter(t, "leat_kafka_connections") == 0 })
		})
	}
}

// A flood of garbage logs one line, with the rest counted, and leaves no
// connection behind.
func TestGarbageFlood(t *testing.T) {
	d := startDoor(t, setup{noBroker: true})
	for range 300 {
		c := d.dial(t)
		c.send([]byte("GET / HTTP/1.1\r\n\r\n"))
		c.closed()
		_ = c.Close()
	}
	eventually(t, "all are given up", func() bool {
		return d.counter(t, "leat_kafka_refused_connections_total", reasonHTTP) == 300 && d.counter(t, "leat_kafka_connections") == 0
	})
	if lines := strings.Count(d.logs.String(), "\n"); lines != 1 {
		t.Errorf("%d log lines", lines)
	}
}

// A request before the garbage is still answered.
func TestAnswerBeforeGarbage(t *testing.T) {
	d := startDoor(t, setup{noBroker: true})
	c := d.dial(t)
	req := kmsg.NewPtrApiVersionsRequest()
	c.send(append(c.frame(req), "GET / HTTP/1.1\r\n"...))
	if corr, _ := c.recv(); corr != 1 {
		t.Errorf("correlation id %d", corr)
	}
	c.closed()
}

// A client that stops or dribbles in the middle of a frame is closed, one that
// is merely silent is not, until it has been so for long.
func TestSlowClients(t *testing.T) {
	const stall, idle = 100 * time.Millisecond, 2 * time.Second
	d := startDoor(t, setup{noBroker: true, opts: Options{StallTimeout: stall, MaxIdle: idle}})
	silent, stopped, dribbling := d.dial(t), d.dial(t), d.dial(t)
	started := time.Now()
	stopped.send([]byte("\x00\x00\x10\x00\x00\x12"))
	go func() {
		tick := time.NewTicker(stall / 10)
		defer tick.Stop()
		frame := frameOf(4096, 0)
		for len(frame) > 0 {
			if _, err := dribbling.Write(frame[:1]); err != nil {
				return
			}
			frame = frame[1:]
			<-tick.C
		}
	}()
	stopped.closed()
	dribbling.closed()
	if took := time.Since(started); took > idle {
		t.Errorf("closed after %v", took)
	}
	silent.closed()
	if took := time.Since(started); took < idle {
		t.Errorf("silent connection closed after %v", took)
	}
}

// A connection that moves bytes or waits between frames is kept; the rules are
// those of expiredLocked.
func TestExpired(t *testing.T) {
	const idle, stall = 600 * time.Second, 60 * time.Second
	s := New(Options{})
	begin := time.Unix(1000, 0)
	type step struct {
		at            time.Duration
		got, sent     int64
		frames        int64
		inFrame, outs bool
		want          bool
	}
	for name, steps := range map[string][]step{
		"idle":               {{}, {at: 590 * time.Second}, {at: 601 * time.Second, want: true}},
		"busy":               {{}, {at: 590 * time.Second, got: 1, frames: 1}, {at: 1100 * time.Second, got: 1, frames: 1}, {at: 1200 * time.Second, got: 1, frames: 1, want: true}},
		"sending":            {{outs: true}, {at: 59 * time.Second, outs: true}, {at: 100 * time.Second, sent: 1, outs: true}, {at: 150 * time.Second, sent: 1, outs: true}, {at: 161 * time.Second, sent: 1, outs: true, want: true}},
		"stopped in a frame": {{got: 4, inFrame: true}, {at: 59 * time.Second, got: 4, inFrame: true}, {at: 61 * time.Second, got: 4, inFrame: true, want: true}},
		"dribbling":          {{got: 4, inFrame: true}, {at: 50 * time.Second, got: 100, inFrame: true}, {at: 100 * time.Second, got: 200, inFrame: true, want: true}},
		"slow but steady":    {{got: 4, inFrame: true}, {at: 50 * time.Second, got: 100_000, inFrame: true}, {at: 100 * time.Second, got: 200_000, inFrame: true}},
		"frame after frame":  {{got: 4, inFrame: true}, {at: 50 * time.Second, got: 100, frames: 1, inFrame: true}, {at: 100 * time.Second, got: 200, frames: 2, inFrame: true}},
	} {
		c := newConn(s, new(writerConn))
		for i, st := range steps {
			c.in.got.Store(st.got)
			c.in.frames.Store(st.frames)
			c.in.inside.Store(st.inFrame)
			c.out.sent.Store(st.sent)
			c.out.inside.Store(st.outs)
			if got := c.expiredLocked(begin.Add(st.at), idle, stall); got != st.want {
				t.Errorf("%s: step %d: expired %v", name, i, got)
			}
		}
	}
}

// Above the limit connections are closed at once; one that ends makes room.
func TestMaxConnections(t *testing.T) {
	d := startDoor(t, setup{noBroker: true, opts: Options{MaxConnections: 2}})
	a, b := d.dial(t), d.dial(t)
	ask[*kmsg.ApiVersionsResponse](a, kmsg.NewPtrApiVersionsRequest(), 0)
	ask[*kmsg.ApiVersionsResponse](b, kmsg.NewPtrApiVersionsRequest(), 0)
	d.dial(t).closed()
	_ = a.Close()
	eventually(t, "room", func() bool { return d.counter(t, "leat_kafka_connections") == 1 })
	ask[*kmsg.ApiVersionsResponse](d.dial(t), kmsg.NewPtrApiVersionsRequest(), 0)
}

// starvedListener has no descriptors left for a while.
type starvedListener struct {
	net.Listener
	failures, calls atomic.Int64
}

func (l *starvedListener) Accept() (net.Conn, error) {
	l.calls.Add(1)
	if l.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// pipeListener accepts the connections that are sent to it.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case nc := <-l.conns:
		return nc, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// An accept loop without descriptors pauses, longer each time, and goes on.
func TestAcceptPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln := &starvedListener{Listener: &pipeListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}}
		ln.failures.Store(8)
		s := New(Options{})
		served := make(chan error, 1)
		go func() { served <- s.Serve(t.Context(), ln) }()
		began := time.Now()
		synctest.Wait()
		if n := ln.calls.Load(); n != 1 {
			t.Errorf("%d calls of Accept without a pause", n)
		}
		for ln.calls.Load() < 9 {
			time.Sleep(5 * time.Millisecond)
			synctest.Wait()
		}
		// 5+10+20+…+640 ms.
		if took := time.Since(began); took != 1275*time.Millisecond {
			t.Errorf("8 failures took %v", took)
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// An error of the listener that does not pass ends Serve with it, and the end
// of the context ends it with the cause.
func TestServeEnds(t *testing.T) {
	broken := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	_ = broken.Close()
	if err := New(Options{}).Serve(t.Context(), broken); !errors.Is(err, net.ErrClosed) {
		t.Errorf("serve: %v", err)
	}
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	s := New(Options{})
	ln := &pipeListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	ours, theirs := net.Pipe()
	ln.conns <- theirs
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, ln) }()
	nc := &client{t: t, Conn: ours}
	ask[*kmsg.ApiVersionsResponse](nc, kmsg.NewPtrApiVersionsRequest(), 0)
	cancel(why)
	if err := <-served; !errors.Is(err, why) {
		t.Errorf("serve: %v", err)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Serve(t.Context(), ln); !errors.Is(err, ErrClosed) {
		t.Errorf("serve after shutdown: %v", err)
	}
}

// Shutdown answers what has arrived, wakes a fetch that waits for data, and
// closes.
func TestShutdownDrains(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	id := c.create("t", 1)
	fetch := fetchRequest("t", id, 0, 0)
	fetch.MaxWaitMillis = int32(limit / time.Millisecond)
	fetch.SetVersion(13)
	produce := produceRequest("t", 0, -1, batch(t, 0, "a"))
	produce.SetVersion(11)
	other := d.dial(t)
	c.send(c.frame(fetch))
	other.send(append(other.frame(produce), other.frame(kmsg.NewPtrApiVersionsRequest())...))
	// The produce wakes the first fetch; the next one has nothing to wake it.
	if corr, _ := c.recv(); corr != c.corr {
		t.Fatalf("correlation id %d", corr)
	}
	fetch.Topics[0].Partitions[0].FetchOffset = 1
	c.send(c.frame(fetch))
	eventually(t, "all requests are in", func() bool {
		n := int64(0)
		for conn := range connsOf(d.Server) {
			n += conn.in.frames.Load()
		}
		return n == 5
	})
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- d.Shutdown(context.Background()) }()
	corr, body := c.recv()
	resp := kmsg.NewPtrFetchResponse()
	resp.SetVersion(13)
	decode(t, resp, body)
	if corr != c.corr || resp.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Errorf("correlation id %d, answer %+v", corr, resp)
	}
	c.closed()
	for want := int32(1); want <= 2; want++ {
		if corr, _ := other.recv(); corr != want {
			t.Errorf("correlation id %d, want %d", corr, want)
		}
	}
	other.closed()
	_ = c.Close()
	_ = other.Close()
	if err := <-done; err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if took := time.Since(began); took > limit/2 {
		t.Errorf("shutdown took %v", took)
	}
}

func connsOf(s *Server) map[*conn]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[*conn]struct{}{}
	for c := range s.mu.conns {
		out[c] = struct{}{}
	}
	return out
}

// Shutdown gives up when its context ends, on clients that do not take their
// answers.
func TestShutdownForced(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	id := c.create("t", 1)
	value := strings.Repeat("x", 1<<20)
	for range 8 {
		if p := c.produce(11, "t", 0, batch(t, 0, value[:1<<19])); p.ErrorCode != 0 {
			t.Fatalf("produce: %d", p.ErrorCode)
		}
	}
	fetch := fetchRequest("t", id, 0, 0)
	fetch.SetVersion(13)
	for range 16 {
		c.send(c.frame(fetch))
	}
	eventually(t, "the server is stuck in a write", func() bool {
		for conn := range connsOf(d.Server) {
			return conn.out.inside.Load() && conn.out.sent.Load() > 1<<20
		}
		return false
	})
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	if err := d.Shutdown(ctx); !errors.Is(err, why) {
		t.Errorf("shutdown: %v", err)
	}
}

// A client that closes its sending side still gets its answers.
func TestHalfClose(t *testing.T) {
	d := startDoor(t, setup{noBroker: true})
	c := d.dial(t)
	var wire []byte
	for range 20 {
		wire = append(wire, c.frame(kmsg.NewPtrApiVersionsRequest())...)
	}
	c.send(wire)
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for len(all) > 0 {
		n++
		all = all[4+binary.BigEndian.Uint32(all):]
	}
	if n != 20 {
		t.Errorf("%d answers", n)
	}
}
