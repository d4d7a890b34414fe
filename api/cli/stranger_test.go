package cli

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// listen serves every connection to a port of its own until the test ends, and returns the address.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return l.Addr().String()
}

// TestNotKafka proves that a port that answers anything but Kafka is known at once for what it is.
func TestNotKafka(t *testing.T) {
	says := func(text string) func(net.Conn) {
		return func(conn net.Conn) {
			_, _ = io.ReadFull(conn, make([]byte, 14))
			_, _ = io.WriteString(conn, text)
		}
	}
	for name, c := range map[string]struct{ addr, want string }{
		"HTTP":   {listen(t, says("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")), " speaks HTTP, not Kafka: --server takes the Kafka address"},
		"TLS":    {listen(t, says("\x15\x03\x03\x00\x02\x02\x46")), " speaks TLS, which leat does not: --server"},
		"banner": {listen(t, says("SSH-2.0-OpenSSH_9.6\r\n")), " does not speak Kafka: --server"},
		"short":  {listen(t, says("?")), " does not speak Kafka: --server"},
		"closed": {listen(t, says("")), " closes the connection without an answer: --server"},
	} {
		for _, command := range []string{"topic list", "produce t", "consume t"} {
			began := time.Now()
			out, words, code := leat(t.Context(), t, strings.NewReader("x\n"), append(strings.Fields(command), "--server", c.addr, "--timeout", "1m")...)
			if code != 1 || out != "" || !strings.HasPrefix(words, c.addr+c.want) {
				t.Errorf("%s: %s: exit %d, %q, %q; want %s", name, command, code, out, words, c.want)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%s: %s took %s", name, command, took)
			}
		}
	}
}

// TestLineLimit proves that a line may be as long as the topic allows and no longer, and that no topic makes it endless.
func TestLineLimit(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	for _, c := range []struct {
		config string
		size   int
		code   int
		words  string
	}{
		{"3000000", 2_900_000, 0, "1 record written to t"},
		{"3000000", 3_000_001, 1, "line 1: longer than 3000000 bytes, the max.message.bytes of topic t"},
		{"2000", 1900, 0, "1 record written to t"},
		{"2000", 2001, 1, "line 1: longer than 2000 bytes"},
		{"2000", 2000, 1, "line 1: MESSAGE_TOO_LARGE: with its key and headers longer than 2000 bytes, the max.message.bytes of topic t"},
		{"2147483647", maxRecord + 1, 1, "line 1: longer than 67108864 bytes, the most that leat sends in one record"},
		{"many", 1_048_589, 1, "line 1: longer than 1048588 bytes, Kafka's default of max.message.bytes"},
	} {
		f.mu.Lock()
		f.mu.configs["topic t"] = map[string]string{"max.message.bytes": c.config}
		f.mu.Unlock()
		_, words, code := leat(t.Context(), t, strings.NewReader(strings.Repeat("x", c.size)+"\n"), "produce", "t", "--server", f.addr)
		if code != c.code || !strings.Contains(words, c.words) {
			t.Errorf("%s, %d bytes: exit %d, %s; want %d, %s", c.config, c.size, code, words, c.code, c.words)
		}
	}
}

// TestLosePatience proves who gives up and when, and that nothing is left behind: close waits for all there is.
func TestLosePatience(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(p *production, interrupt func())
		after   time.Duration
		want    error
	}{
		"interrupted":              {func(_ *production, interrupt func()) { interrupt() }, graceTimeout, errInterrupted},
		"failed":                   {func(p *production, _ func()) { close(p.flushing); close(p.failed) }, graceTimeout, errOther},
		"failed before the end":    {func(p *production, _ func()) { close(p.failed) }, 0, nil},
		"silent":                   {func(p *production, _ func()) { p.mu.open, p.mu.moved = 1, time.Now() }, 33 * time.Second, errUnanswered},
		"closed while interrupted": {func(p *production, interrupt func()) { interrupt(); p.giveUp(nil) }, 0, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				defer interrupt()
				p := newProduction(ctx, nil, 30*time.Second, "line", limit{})
				began := time.Now()
				p.mu.Lock()
				c.happens(p, interrupt)
				p.mu.Unlock()
				if c.want != nil {
					<-p.records.Done()
				} else {
					time.Sleep(time.Hour)
				}
				if took := time.Since(began); c.want != nil && took != c.after || !errors.Is(context.Cause(p.records), c.want) {
					t.Errorf("after %s: %v; want after %s: %v", took, context.Cause(p.records), c.after, c.want)
				}
				p.close()
			})
		})
	}
}

// TestGreetInterrupted proves that Ctrl-C ends the wait for a silent server at once.
func TestGreetInterrupted(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	defer func() { _ = near.Close() }()
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		_, _ = io.ReadFull(far, make([]byte, 14))
		interrupt()
	}()
	if err := greet(ctx, near); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
