package bench

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// idleSockets is how many sockets stand idle where the machine allows it; leastSockets where it allows fewer.
const (
	idleSockets  = 10_000
	leastSockets = 1000
)

// BenchmarkIdleSockets measures the resident memory that each of 10,000 idle sockets takes, without and with a
// subscription, against the accept loop of coder/websocket as its documentation shows it. Where descriptors are few it
// opens as many as the server takes, and says so.
func BenchmarkIdleSockets(b *testing.B) {
	for b.Loop() {
		other := startBare(b, "fan")
		n, theirs := perSocket(b, other.process, other.addr, nil, openLimit(b))
		other.kill()
		for _, c := range []struct{ name, subscribe string }{
			{"without a subscription", ""},
			{"with a subscription to a topic of 4 partitions", `{"type":"subscribe","id":1,"sub":1,"topic":"idle"}`},
		} {
			l := startLeat(b)
			l.do(http.MethodPost, "/v1/topics", []byte(`{"name":"idle","partitions":4}`), http.StatusCreated)
			var first []byte
			if c.subscribe != "" {
				first = textFrame([]byte(c.subscribe))
			}
			n, ours := perSocket(b, l.process, l.HTTP, first, n)
			l.stop()
			table.add(row{
				what: fmt.Sprintf("resident memory of an idle socket of %d, %s", n, c.name), leat: fmt.Sprintf("%.3g KB", ours), other: fmt.Sprintf("%.3g KB", theirs),
				ratio: fmt.Sprintf("%.2f", ours/theirs), goal: goal{most: 12}.String() + " KB", ok: goal{most: 12}.reached(ours),
			})
		}
	}
}

// openLimit is how many sockets this process may open.
func openLimit(b *testing.B) int {
	b.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		b.Fatal(err)
	}
	return int(min(idleSockets, limit.Cur-min(limit.Cur, 200)))
}

// perSocket opens the sockets, each with a first message or none, and returns how many there are and by how many KB
// each makes the server grow once it is quiet.
func perSocket(b *testing.B, p process, addr string, first []byte, most int) (n int, kb float64) {
	b.Helper()
	b.Logf("opening %d sockets at %s", most, addr)
	quiet(p)
	before := p.resident()
	conns := make([]net.Conn, 0, most)
	defer func() {
		for _, nc := range conns {
			_ = nc.Close()
		}
	}()
	for len(conns) < most {
		s, err := dialSocket(addr, 256) // it is dropped at once; what comes stays in the kernel
		if err != nil && len(conns) >= leastSockets {
			b.Logf("no more than %d: %v", len(conns), err)
			break
		}
		if err != nil {
			b.Fatal(err)
		}
		conns = append(conns, s.nc)
		if first == nil {
			continue
		}
		if _, err := s.nc.Write(first); err != nil {
			b.Fatal(err)
		}
		if _, err := s.await("subscribed"); err != nil {
			b.Fatal(err)
		}
	}
	runtime.GC()
	// What the handshakes left is collected by the server's own pace, within its two minutes at most; the pages that
	// are free go back in the seconds after that. The least of some seconds is what stays.
	least := p.resident()
	for deadline := time.Now().Add(8 * time.Second); time.Now().Before(deadline); {
		quiet(p)
		least = min(least, p.resident())
	}
	return len(conns), float64(least-before) / float64(len(conns)) / 1000
}

// The streams of BenchmarkIdle.
const (
	idlePolls  = 200
	idleEvents = 200
	idleWS     = 1000
)

// oneRecord is a produce of one small record.
var oneRecord = []byte("POST /v1/topics/idle/partitions/0/records?value=line HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nContent-Length: 3\r\n\r\n42\n")

// polls are connections that ask by long poll.
type polls struct {
	conns   []net.Conn
	readers []*bufio.Reader
}

func openPolls(addr string, n int) (*polls, error) {
	p := &polls{}
	for range n {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			return nil, err
		}
		p.conns, p.readers = append(p.conns, nc), append(p.readers, bufio.NewReaderSize(nc, 1<<10))
	}
	return p, nil
}

// ask has every connection wait for the record at an offset.
func (p *polls) ask(offset int64) error {
	request := fmt.Appendf(nil, "GET /v1/topics/idle/partitions/0/records?offset=%d&wait=60 HTTP/1.1\r\nHost: x\r\n\r\n", offset)
	for _, nc := range p.conns {
		if _, err := nc.Write(request); err != nil {
			return err
		}
	}
	return nil
}

// await does what brings the record, and waits for every answer.
func (p *polls) await(work func() error) error {
	answers := make(chan error, len(p.readers))
	for _, r := range p.readers {
		go func() {
			resp, err := http.ReadResponse(r, nil)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				err = errors.Join(err, resp.Body.Close())
				if resp.StatusCode != http.StatusOK {
					err = fmt.Errorf("a poll: status %d", resp.StatusCode)
				}
			}
			answers <- err
		}()
	}
	all := work()
	for range p.readers {
		all = errors.Join(all, <-answers)
	}
	return all
}

func (p *polls) close() {
	for _, nc := range p.conns {
		_ = nc.Close()
	}
}

// BenchmarkIdle measures the processor time that 200 idle long polls, 200 idle SSE streams and 1,000 idle sockets take
// in ten seconds, and how long it takes until one record has reached all of them, against a bare server that writes one
// frame to as many sockets.
func BenchmarkIdle(b *testing.B) {
	for b.Loop() {
		l := startLeat(b)
		l.createTopic("idle", nil)
		sockets, err := openSockets(l.HTTP, "idle", idleWS, false)
		if err != nil {
			b.Fatal(err)
		}
		events, err := openEvents(l.HTTP, "idle", idleEvents, false)
		if err != nil {
			b.Fatal(err)
		}
		polls, err := openPolls(l.HTTP, idlePolls)
		if err != nil {
			b.Fatal(err)
		}
		if err := polls.ask(0); err != nil {
			b.Fatal(err)
		}
		other := startBare(b, "fan")
		bareSockets, err := openSockets(other.addr, "", idleWS+idleEvents+idlePolls, true)
		if err != nil {
			b.Fatal(err)
		}
		quiet(l.process)
		used, took := l.cpu(), time.Now()
		<-time.After(10 * time.Second)
		share := 100 * (l.cpu() - used).Seconds() / time.Since(took).Seconds()
		single(b, "1,400 idle streams", "% of one core", goal{most: 2}, share)
		b.ReportMetric(share, "%-core")

		// The polls of the ten seconds are answered first.
		at := int64(1)
		if err := polls.await(func() error { return postAll(l.HTTP, oneRecord, 1) }); err != nil {
			b.Fatal(err)
		}
		reach := func() float64 {
			if err := polls.ask(at); err != nil {
				b.Fatal(err)
			}
			quiet(l.process) // all wait again
			at++
			var begun time.Time
			err := sockets.await(at, func() error {
				return events.await(at, func() error {
					return polls.await(func() error {
						begun = time.Now()
						return postAll(l.HTTP, oneRecord, 1)
					})
				})
			})
			if err != nil {
				b.Fatal(err)
			}
			return ms(time.Since(begun))
		}
		bareAt := int64(0)
		bareReach := func() float64 {
			bareAt++
			begun := time.Now()
			err := bareSockets.await(bareAt, func() error {
				_, err := play(other.addr, [][]byte{bytes.Repeat([]byte("x"), 150)}, time.Microsecond)
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			return ms(time.Since(begun))
		}
		compareN(b, pairs, "one record to 1,400 waiting streams, fsync mode, against one frame to 1,400 sockets", "ms", goal{}, reach, bareReach)
		var all []float64
		for range pairs {
			all = append(all, reach())
		}
		single(b, "one record to 1,400 waiting streams, median", "ms", goal{most: 50}, median(all))
		b.ReportMetric(median(all), "wake-ms")
		sockets.close()
		events.close()
		bareSockets.close()
		polls.close()
		l.stop()
		other.kill()
	}
}
