package e2e

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// told is what streams were told when the server stopped: by their name, after how many ms to come back.
type told struct {
	mu   sync.Mutex
	when map[string]int64
}

// listening notes what a stream is told of its end; its follower sees the same bytes.
type listening struct {
	net.Conn
	word string // before the number of ms
	note func(ms int64)
	seen []byte // the end of what came
}

func (c *listening) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.seen = append(c.seen, p[:n]...)
	at := bytes.Index(c.seen, []byte(c.word))
	if at >= 0 {
		if ms, rest := number(c.seen[at+len(c.word):]); len(rest) > 0 {
			c.note(ms)
			c.seen = nil
		}
	} else if n := len(c.seen) - 256; n > 0 {
		c.seen = bytes.Clone(c.seen[n:])
	}
	return n, err
}

// TestDrainStreams proves that of 200 streams of every kind, while records are produced, each is told when to come back
// as the server stops, spread over the time of a drain; and that each, going on after a restart on the same ports from
// what it was told, gets every record once and in order.
func TestDrainStreams(t *testing.T) {
	const partitions, each = 3, 50
	s := start(t)
	s.args = append(s.args, "--http-addr", s.HTTP, "--kafka-addr", s.Kafka)
	s.createTopic("t", partitions)
	heard := told{when: map[string]int64{}}
	var all []*follower
	for i := range each {
		for _, kind := range []struct {
			name, word string
			session    func(*follower, net.Conn) error
		}{
			{"SSE", `data: {"in_ms":`, overSSE("/v1/topics/t/records?from=earliest")},
			{"SSE in batches", `data: {"in_ms":`, overSSE("/v1/topics/t/records?from=earliest&batch=true")},
			{"NDJSON", `"in_ms":`, overNDJSON("/v1/topics/t/records?from=earliest&stream=true")},
			{"WebSocket", `{"type":"goaway","after_ms":`, overWebSocket("t", "json")},
		} {
			f := &follower{name: fmt.Sprintf("%s %d", kind.name, i), account: newAccount(partitions, false), session: kind.session}
			f.dial = func() (net.Conn, error) {
				nc, err := net.Dial("tcp", s.HTTP)
				return &listening{Conn: nc, word: kind.word, note: func(ms int64) {
					heard.mu.Lock()
					defer heard.mu.Unlock()
					heard.when[f.name] = ms
				}}, err
			}
			all = append(all, f)
			f.follow()
			t.Cleanup(func() { _ = f.stop() })
		}
	}
	produced := int64(0)
	there := func(what string) {
		t.Helper()
		eventually(t, what, func() error {
			for _, f := range all {
				if err := f.failed(); err != nil {
					t.Fatal(err)
				}
				if n := f.received.Load(); n != produced {
					return fmt.Errorf("%s has %d of %d", f.name, n, produced)
				}
			}
			return nil
		})
	}
	produce := func(rounds int) {
		t.Helper()
		for i := range rounds {
			s.post(fmt.Sprintf("/v1/topics/t/partitions/%d/records?value=line", i%partitions), typeNDJSON, "1\n2\n3\n")
			produced += 3
		}
	}
	produce(20)
	there("the first records")
	produce(50) // not waited for: it is under way when the server stops
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.wait()
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	s.restart()
	produce(20)
	there("all records after the restart")
	var spread [10]int // of sockets, by seconds
	for _, f := range all {
		if err := f.stop(); err != nil {
			t.Error(err)
		}
		heard.mu.Lock()
		ms, ok := heard.when[f.name]
		heard.mu.Unlock()
		least, most := int64(1000), int64(5000)
		if strings.HasPrefix(f.name, "WebSocket") {
			least, most = 500, 9999
			spread[ms/1000%10]++
		}
		if !ok || ms < least || ms > most || f.resumed == 0 {
			t.Errorf("%s was told to come back: %t, after %d ms, and came %d times", f.name, ok, ms, f.resumed)
		}
	}
	for second, n := range spread {
		if n > each/2 {
			t.Errorf("%d of %d sockets were told to come back within second %d", n, each, second)
		}
	}
}
