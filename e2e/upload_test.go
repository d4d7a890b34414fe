package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// upload is a streaming produce over a connection of its own.
type upload struct {
	nc    net.Conn
	resp  *http.Response
	lines *bufio.Reader
}

// openUpload begins a streaming produce. Whoever closes the connection ends it.
func openUpload(nc net.Conn, path string) (*upload, error) {
	_, err := fmt.Fprintf(nc, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n", path, nc.RemoteAddr(), typeNDJSON)
	if err != nil {
		return nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(nc), &http.Request{Method: http.MethodPost})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		peek("POST "+path, resp)
		return nil, refuse(resp)
	}
	return &upload{nc, resp, bufio.NewReader(resp.Body)}, nil
}

// send sends lines as one chunk.
func (u *upload) send(text string) error {
	_, err := fmt.Fprintf(u.nc, "%x\r\n%s\r\n", len(text), text)
	return err
}

// end ends the body as it should.
func (u *upload) end() error {
	_, err := io.WriteString(u.nc, "0\r\n\r\n")
	return err
}

// receiptLine is a line of the answer: a receipt for some lines, or the end.
type receiptLine struct {
	Control    string `json:"$"`
	Reason     string `json:"reason"`
	Seq        int    `json:"seq"`
	Count      int    `json:"count"`
	Failed     int    `json:"failed"`
	InMs       int64  `json:"in_ms"`
	Partitions []struct {
		Base  int64 `json:"base_offset"`
		Last  int64 `json:"last_offset"`
		Count int   `json:"count"`
	} `json:"partitions"`
	text string
}

// read returns the next line but heartbeats.
func (u *upload) read() (receiptLine, error) {
	for {
		text, err := u.lines.ReadBytes('\n')
		if err != nil {
			return receiptLine{}, err
		}
		var l receiptLine
		if err := json.Unmarshal(text, &l); err != nil {
			return l, violated("line %q: %v", clip(string(text)), err)
		}
		if l.text = string(text); l.Control != "hb" {
			return l, nil
		}
	}
}

// uploaded is what is known of one upload: its lines are "ID NUMBER".
type uploaded struct {
	sent    int
	offsets []int64 // of the lines that were receipted, by number
	end     receiptLine
}

// receipts reads receipts until the connection or the answer ends.
func (d *uploaded) receipts(u *upload) error {
	for {
		l, err := u.read()
		switch {
		case isViolation(err):
			return err
		case err != nil:
			return nil //nolint:nilerr // cut, or read to its end
		case l.Control == "end":
			d.end = l
			continue
		case l.Control != "" || l.Seq != len(d.offsets) || l.Count < 1 || l.Failed > 0 || len(l.Partitions) != 1 || l.Partitions[0].Count != l.Count:
			return violated("after %d receipts: %s", len(d.offsets), clip(l.text))
		}
		for i := range l.Count {
			d.offsets = append(d.offsets, l.Partitions[0].Base+int64(i))
		}
	}
}

// uploader uploads to one partition, and begins again whenever its connection goes.
type uploader struct {
	path string
	dial func() (net.Conn, error)
	rng  *rand.Rand
	all  []*uploaded
	done atomic.Int64 // lines receipted
	conn struct {
		sync.Mutex
		nc net.Conn
	}
}

// most is how many lines an upload has that is not cut.
const most = 5000

// run uploads until stop is closed.
func (p *uploader) run(stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		nc, err := p.dial()
		if err != nil {
			after(5 * time.Millisecond) // the server is down
			continue
		}
		if err := p.one(nc, stop); isViolation(err) {
			_ = nc.Close()
			return err
		}
		_ = nc.Close()
	}
}

func (p *uploader) one(nc net.Conn, stop <-chan struct{}) error {
	p.conn.Lock()
	p.conn.nc = nc
	p.conn.Unlock()
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	u, err := openUpload(nc, p.path)
	if err != nil {
		return unlessRefused(err)
	}
	d := &uploaded{}
	id := len(p.all)
	p.all = append(p.all, d)
	read := make(chan error, 1)
	go func() { read <- d.receipts(u) }()
	for over := false; !over; {
		var lines strings.Builder
		for range 1 + p.rng.IntN(100) {
			fmt.Fprintf(&lines, "%d %d\n", id, d.sent)
			d.sent++
		}
		over = u.send(lines.String()) != nil
		select {
		case <-stop:
			over = true
		default:
			over = over || d.sent >= most
		}
	}
	_ = u.end()
	err = <-read
	p.done.Add(int64(len(d.offsets)))
	if d.end.Control != "" && d.end.Reason == "complete" && (d.end.Count != d.sent || len(d.offsets) != d.sent) {
		return violated("%d lines sent, %d receipted, the end says %s", d.sent, len(d.offsets), d.end.text)
	}
	return err
}

// cut resets the connection as a network would.
func (p *uploader) cut() {
	p.conn.Lock()
	defer p.conn.Unlock()
	if tcp, ok := p.conn.nc.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
	}
}

// verify holds the log against the uploads: each has a run of its lines there, from the first, in order and each once;
// those receipted are among them, where the receipt says.
func (p *uploader) verify(t *testing.T, values []string) (lines int) {
	t.Helper()
	next := make([]int, len(p.all))
	for offset, value := range values {
		var id, n int
		if _, err := fmt.Sscanf(value, "%d %d", &id, &n); err != nil || id >= len(p.all) {
			t.Fatalf("%s: offset %d is %q", p.path, offset, value)
		}
		d := p.all[id]
		if n != next[id] || n >= d.sent {
			t.Fatalf("%s: offset %d is line %d of upload %d, want line %d of %d", p.path, offset, n, id, next[id], d.sent)
		}
		if n < len(d.offsets) && d.offsets[n] != int64(offset) {
			t.Fatalf("%s: line %d of upload %d is at offset %d, its receipt says %d", p.path, n, id, offset, d.offsets[n])
		}
		next[id]++
	}
	for id, d := range p.all {
		if next[id] < len(d.offsets) {
			t.Errorf("%s: upload %d has %d lines in the log, and receipts for %d", p.path, id, next[id], len(d.offsets))
		}
		lines += len(d.offsets)
	}
	return lines
}

// valuesOf are all values of a partition.
func (s *server) valuesOf(topic string, partition int32) (all []string) {
	s.t.Helper()
	for _, b := range mustSplit(s.t, s.wire().fetchAll(topic, partition, 0)) {
		all = append(all, b.values(s.t)...)
	}
	return all
}

// TestUploadKills proves that over kill -9 of the server and cut connections, all lines of a streaming produce that
// were receipted are in the log, where the receipts say; that what is there of an upload is its first lines, in order,
// none missing between and none twice.
func TestUploadKills(t *testing.T) {
	const partitions = 4
	kills := 3
	if long() {
		kills = 20
	}
	p := newProxy(t).forgetful()
	s := start(t)
	p.point(s.HTTP)
	s.createTopic("t", partitions)
	rng := rand.New(rand.NewPCG(1, 2))
	var all []*uploader
	stop, ended := make(chan struct{}), make(chan error, partitions)
	for i := range partitions {
		u := &uploader{
			path: fmt.Sprintf("/v1/topics/t/partitions/%d/records?stream=true&value=line&acks=all", i),
			dial: func() (net.Conn, error) { return net.Dial("tcp", p.addr) }, rng: rand.New(rand.NewPCG(uint64(i), 3)),
		}
		all = append(all, u)
		go func() { ended <- u.run(stop) }()
	}
	for range kills {
		for range 5 {
			after(time.Duration(rng.IntN(60)) * time.Millisecond)
			all[rng.IntN(partitions)].cut()
		}
		done := all[0].done.Load()
		eventually(t, "receipts", func() error {
			if all[0].done.Load() == done {
				return errors.New("none")
			}
			return nil
		})
		s.kill()
		s.restart()
		p.point(s.HTTP)
	}
	close(stop)
	for range partitions {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	uploads, lines := 0, 0
	for i, u := range all {
		lines += u.verify(t, s.valuesOf("t", int32(i)))
		uploads += len(u.all)
	}
	t.Logf("%d uploads, %d lines receipted, %d kills", uploads, lines, kills)
	if lines == 0 || uploads < partitions*kills {
		t.Errorf("%d uploads, %d lines receipted: nothing is shown", uploads, lines)
	}
}

// TestUploadDrain proves that a server that is told to stop in the middle of uploads tells each at its end, has taken
// and receipted the same lines, and that these and no others are in the log after the next start.
func TestUploadDrain(t *testing.T) {
	const partitions = 4
	s := start(t)
	s.createTopic("t", partitions)
	var all []*uploader
	stop, ended := make(chan struct{}), make(chan error, partitions)
	for i := range partitions {
		u := &uploader{
			path: fmt.Sprintf("/v1/topics/t/partitions/%d/records?stream=true&value=line&acks=all", i), rng: rand.New(rand.NewPCG(uint64(i), 4)),
		}
		all = append(all, u)
		nc, err := net.Dial("tcp", s.HTTP)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		go func() { ended <- u.flood(nc, stop) }()
	}
	eventually(t, "receipts for all", func() error {
		for _, u := range all {
			if u.done.Load() == 0 {
				return errors.New("not yet")
			}
		}
		return nil
	})
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range partitions {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	s.wait()
	close(stop)
	s.restart()
	for i, u := range all {
		d, values := u.all[0], s.valuesOf("t", int32(i))
		u.verify(t, values)
		if d.end.Reason != "draining" || d.end.InMs < 1 || d.end.Count != len(d.offsets) || d.end.Failed != 0 || len(values) != len(d.offsets) {
			t.Errorf("%d lines receipted, %d in the log, the end says %s", len(d.offsets), len(values), d.end.text)
		}
	}
}

// flood uploads over one connection for as long as the server takes it.
func (p *uploader) flood(nc net.Conn, stop <-chan struct{}) error {
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	u, err := openUpload(nc, p.path)
	if err != nil {
		return err
	}
	d := &uploaded{}
	p.all = append(p.all, d)
	var sent atomic.Int64
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		for n := 0; ; n++ {
			sent.Store(int64(n + 1))
			if u.send(fmt.Sprintf("0 %d\n", n)) != nil {
				return
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	for d.end.Control == "" {
		l, err := u.read()
		switch {
		case err != nil:
			return fmt.Errorf("after %d receipts, no end: %w", len(d.offsets), err)
		case l.Control == "end":
			d.end = l
		case l.Seq != len(d.offsets) || len(l.Partitions) != 1:
			return violated("after %d receipts: %s", len(d.offsets), clip(l.text))
		default:
			for i := range l.Count {
				d.offsets = append(d.offsets, l.Partitions[0].Base+int64(i))
			}
			p.done.Store(int64(len(d.offsets)))
		}
	}
	if _, err := u.lines.ReadByte(); !errors.Is(err, io.EOF) || u.resp.Trailer.Get("Close-Reason") != d.end.Reason {
		return violated("behind the end: %v, Close-Reason %q", err, u.resp.Trailer.Get("Close-Reason"))
	}
	_ = nc.Close()
	<-wrote
	d.sent = int(sent.Load())
	return nil
}

// TestUploadSlowReaders proves that clients that upload and never read their receipts are not read from any more after
// a while, cost bounded memory, and hold up nobody: meanwhile another gets a receipt for each of its lines. In the long
// form it waits until they are let go, too.
func TestUploadSlowReaders(t *testing.T) {
	const clients, rounds, mostEach, mostGrowth = 20, 200, 64 << 20, 200 << 20
	s := start(t)
	s.createTopic("slow", 1, "flush.messages=1000000")
	s.createTopic("t", 1)
	before, memory := s.memory(), s.watchMemory()
	var sent [clients]atomic.Int64
	chunk := strings.Repeat("x\n", 8<<10)
	var work sync.WaitGroup
	for i := range clients {
		nc := smallConn(t, s.HTTP)
		u, err := openUpload(nc, "/v1/topics/slow/records?stream=true&value=line&acks=leader&receipts=full")
		if err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			for u.send(chunk) == nil {
				if sent[i].Add(int64(len(chunk))) > mostEach {
					t.Errorf("client %d sent %d bytes and read nothing", i, sent[i].Load())
					return
				}
			}
		})
		defer nc.Close() //nolint:errcheck // it is of no use any more
	}
	nc, err := net.Dial("tcp", s.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close() //nolint:errcheck // it is of no use any more
	if err := nc.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		t.Fatal(err)
	}
	u, err := openUpload(nc, "/v1/topics/t/records?stream=true&value=line&acks=all")
	if err != nil {
		t.Fatal(err)
	}
	round := func(n int) {
		if err := u.send("y\n"); err != nil {
			t.Fatal(err)
		}
		if l, err := u.read(); err != nil || l.Seq != n || l.Count != 1 || l.Failed != 0 {
			t.Fatalf("round %d: %v, %s", n, err, l.text)
		}
	}
	total := func() (n int64) {
		for i := range sent {
			n += sent[i].Load()
		}
		return n
	}
	n := 0
	for last, same := int64(-1), 0; same < 20 || n < rounds; n++ {
		round(n)
		now := total()
		if now == last {
			same++
		} else {
			last, same = now, 0
		}
	}
	grown := memory() - before
	t.Logf("%d MiB of %d clients until they were not read from; %d lines of another meanwhile; memory grew by %d MiB", total()>>20, clients, n, grown>>20)
	if grown > mostGrowth {
		t.Errorf("memory grew by %d MiB, want at most %d", grown>>20, mostGrowth>>20)
	}
	if long() {
		eventually(t, "the clients to be let go", func() error {
			round(n)
			n++
			if gone := s.metric("leat_http_streams_ended_total", `kind="upload"`, `reason="slow_client"`); gone < clients {
				return fmt.Errorf("%v are", gone)
			}
			return nil
		})
	} else {
		s.kill() // it does not wait for them
	}
	work.Wait()
}
