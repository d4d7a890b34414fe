package bench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fanPairs is how often each side of a fan-out runs. A run is bound by the clock, not by the machine, so it is steady.
const fanPairs = 5

// fanSample is how many subscribers look at every record; the others read its bytes and no more.
const fanSample = 16

// fanCase is one way to fan out.
type fanCase struct{ subscribers, rate, size int }

func (c fanCase) String() string {
	return fmt.Sprintf("%d subscribers, %d records per second of %d B", c.subscribers, c.rate, c.size)
}

// span is how long a run produces.
func (c fanCase) span() time.Duration {
	if c.rate < 100 {
		return 800 * time.Millisecond
	}
	return 500 * time.Millisecond
}

// bytesPerSecond is what all subscribers together receive.
func (c fanCase) bytesPerSecond() int { return c.subscribers * c.rate * c.size }

// mostBytesPerSecond is what two cores carry over loopback with the load beside the server. Beyond it a run would
// measure the queue and not the server.
const mostBytesPerSecond = 300 << 20

// fanCases are all that the machine can carry.
func fanCases() []fanCase {
	var all []fanCase
	for _, subscribers := range []int{1, 100, 1000} {
		for _, rate := range []int{10, 1000} {
			for _, size := range []int{256, 8 << 10} {
				if c := (fanCase{subscribers, rate, size}); c.bytesPerSecond() <= mostBytesPerSecond {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// fan is a number of subscribers of one server. Each tells how far it has come; a run ends when all have come to where
// it ends.
type fan struct {
	conns  []net.Conn
	target atomic.Int64
	coming atomic.Int64 // subscribers that have not come to target
	done   chan error   // takes nil when all have come, or why one of them will not

	mu      sync.Mutex
	took    []time.Duration   // of each record at each sampled subscriber
	arrived map[int64][]int64 // frame -> times at sampled subscribers, of the bare server
	frames  [][]byte          // what the first subscriber was sent in this run
}

func newFan() *fan { return &fan{arrived: map[int64][]int64{}, done: make(chan error, 1)} }

// begin forgets what was seen in the run before.
func (f *fan) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frames, f.took = nil, nil
	clear(f.arrived)
}

// position tells that a subscriber has come from one place to another.
func (f *fan) position(from, to int64) {
	if target := f.target.Load(); from < target && to >= target && f.coming.Add(-1) == 0 {
		f.tell(nil)
	}
}

// tell ends a run; only the first to tell counts.
func (f *fan) tell(err error) {
	select {
	case f.done <- err:
	default:
	}
}

// await waits until all subscribers have come to target, which work brings about.
func (f *fan) await(target int64, work func() error) error {
	f.coming.Store(int64(len(f.conns)))
	f.target.Store(target)
	if err := work(); err != nil {
		return err
	}
	select {
	case err := <-f.done:
		return err
	case <-time.After(60 * time.Second):
		return fmt.Errorf("%d of %d subscribers did not get every record within a minute", f.coming.Load(), len(f.conns))
	}
}

func (f *fan) close() {
	for _, nc := range f.conns {
		_ = nc.Close()
	}
}

// saw notes a message at a sampled subscriber: its records carry the time at which they were sent, and the bare
// server's frames are counted.
func (f *fan) saw(i int, frame int64, text []byte, bare bool) {
	now := time.Now().UnixNano()
	f.mu.Lock()
	defer f.mu.Unlock()
	if bare {
		f.arrived[frame] = append(f.arrived[frame], now)
		return
	}
	if i == 0 {
		f.frames = append(f.frames, bytes.Clone(text))
	}
	for {
		sent := field(text, `"value_str":"`)
		if sent < 0 {
			return
		}
		f.took = append(f.took, time.Duration(now-sent))
		_, text, _ = bytes.Cut(text, []byte(`"value_str":"`))
	}
}

// openSockets connects subscribers over WebSocket. Of the bare server a place is a number of frames.
func openSockets(addr, topic string, n int, bare bool) (*fan, error) {
	f := newFan()
	for i := range n {
		s, err := dialSocket(addr, 16<<10)
		if err != nil {
			return nil, err
		}
		f.conns = append(f.conns, s.nc)
		if !bare {
			if err := s.send(`{"type":"subscribe","id":1,"sub":1,"topic":%q,"from":"earliest"}`, topic); err != nil {
				return nil, err
			}
			if _, err := s.await("subscribed"); err != nil {
				return nil, err
			}
		}
		go f.readSocket(s, i, bare)
	}
	return f, nil
}

func (f *fan) readSocket(s *socket, i int, bare bool) {
	var buf []byte
	for at := int64(0); ; {
		size, err := s.next()
		if err != nil {
			f.tell(err)
			return
		}
		var head []byte
		if i < fanSample {
			if size > cap(buf) {
				buf = make([]byte, size)
			}
			buf = buf[:size]
			_, err = io.ReadFull(s.r, buf)
			head = buf[:min(size, 200)]
		} else if head, err = s.r.Peek(min(size, 200)); err == nil {
			head = bytes.Clone(head)
			_, err = s.r.Discard(size)
		}
		if err != nil {
			f.tell(err)
			return
		}
		next := at + 1
		if !bare {
			if !bytes.HasPrefix(head, []byte(`{"type":"data"`)) {
				continue
			}
			next = field(head, `"next":`)
		}
		if i < fanSample {
			f.saw(i, at, buf, bare)
		}
		f.position(at, next)
		at = next
	}
}

// openEvents connects subscribers over SSE.
func openEvents(addr, topic string, n int, bare bool) (*fan, error) {
	f := newFan()
	path := "/events"
	if !bare {
		path = "/v1/topics/" + topic + "/partitions/0/records?from=earliest&batch=true"
	}
	for i := range n {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			return nil, err
		}
		f.conns = append(f.conns, nc)
		if _, err := fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n", path); err != nil {
			return nil, err
		}
		resp, err := http.ReadResponse(bufio.NewReaderSize(nc, 16<<10), nil) //nolint:bodyclose // the connection is closed by close
		if err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("status %d", resp.StatusCode)
		}
		go f.readEvents(resp.Body, i, bare)
	}
	return f, nil
}

func (f *fan) readEvents(body io.Reader, i int, bare bool) {
	r := bufio.NewReaderSize(body, 32<<10)
	var event []byte
	data := false
	for at, id := int64(0), int64(-1); ; {
		line, err := r.ReadSlice('\n')
		pieces := 1
		for ; errors.Is(err, bufio.ErrBufferFull); pieces++ { // no line but one of data is that long
			data = true
			if i < fanSample {
				event = append(event, line...)
			}
			line, err = r.ReadSlice('\n')
		}
		if err != nil {
			f.tell(err)
			return
		}
		if i < fanSample {
			event = append(event, line...)
		}
		if digits, ok := bytes.CutPrefix(line, []byte("id:")); ok && pieces == 1 {
			id = field(bytes.TrimSpace(digits), "")
		}
		data = data || bytes.HasPrefix(line, []byte("data:"))
		if len(line) > 1 || pieces > 1 {
			continue
		}
		if data { // it was more than a comment or a place
			next := id
			if bare {
				next = at + 1
			}
			if i < fanSample {
				f.saw(i, at, event, bare)
			}
			f.position(at, next)
			at = next
		}
		event, id, data = event[:0], -1, false
	}
}

// paced posts records to a topic at a rate, each with the time at which it was sent.
func paced(addr, topic string, c fanCase) (records int64, err error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer nc.Close() //nolint:errcheck // every answer has been read
	r := bufio.NewReader(nc)
	pad := strings.Repeat("x", c.size-19)
	tick := time.NewTicker(max(time.Second/time.Duration(c.rate), time.Millisecond))
	defer tick.Stop()
	total := int64(c.span().Seconds() * float64(c.rate))
	for begun := time.Now(); records < total; {
		<-tick.C
		due := min(int64(time.Since(begun).Seconds()*float64(c.rate))+1, total)
		var body bytes.Buffer
		for ; records < due; records++ {
			fmt.Fprintf(&body, "%d%s\n", time.Now().UnixNano(), pad)
		}
		if body.Len() == 0 {
			continue
		}
		_, err := fmt.Fprintf(nc, "POST /v1/topics/%s/partitions/0/records?value=line HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n%s",
			topic, body.Len(), body.Bytes())
		if err != nil {
			return records, err
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return records, err
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			return records, fmt.Errorf("status %d: %s: %w", resp.StatusCode, text, err)
		}
	}
	return records, nil
}

// play has the bare server write the frames of the last run of Leat, in the same time.
func play(addr string, frames [][]byte, pace time.Duration) ([]int64, error) {
	var body []byte
	for _, f := range frames {
		body = append(binary.BigEndian.AppendUint32(body, uint32(len(f))), f...)
	}
	resp, err := http.Post("http://"+addr+"/play?pace="+strconv.FormatInt(int64(pace), 10), "", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read to its end
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("play: status %d", resp.StatusCode)
	}
	var at []int64
	return at, json.NewDecoder(resp.Body).Decode(&at)
}

// BenchmarkFanOutWebSocket measures the server's processor time for each delivery of a record to a subscriber over
// WebSocket, and how long deliveries take, against a coder/websocket server that writes the same frames.
func BenchmarkFanOutWebSocket(b *testing.B) { fanOut(b, "WebSocket", openSockets) }

// BenchmarkFanOutSSE measures the same over server-sent events, against a net/http server that writes the same events.
func BenchmarkFanOutSSE(b *testing.B) { fanOut(b, "SSE", openEvents) }

func fanOut(b *testing.B, door string, open func(addr, topic string, n int, bare bool) (*fan, error)) {
	for _, c := range fanCases() {
		b.Run(fmt.Sprintf("%dx%dx%d", c.subscribers, c.rate, c.size), func(b *testing.B) {
			l, other := startLeat(b), startBare(b, "fan")
			for _, topic := range []string{"fan", "alone"} {
				l.createTopic(topic, map[string]string{"flush.messages": "1000000"})
			}
			subs, err := open(l.HTTP, "fan", c.subscribers, false)
			if err != nil {
				b.Fatal(err)
			}
			defer subs.close()
			bareSubs, err := open(other.addr, "", c.subscribers, true)
			if err != nil {
				b.Fatal(err)
			}
			defer bareSubs.close()
			r := &fanRun{b: b, c: c, l: l, other: other, subs: subs, bareSubs: bareSubs}
			for b.Loop() {
				r.compare(door)
			}
			l.stop()
			other.kill()
		})
	}
}

// fanRun is one case under measurement.
type fanRun struct {
	b              *testing.B
	c              fanCase
	l              *leat
	other          *bare
	subs, bareSubs *fan
	at, bareAt     int64 // records and frames so far

	frames []int           // of each run of Leat
	took   []time.Duration // by Leat
	floor  []time.Duration // by the bare server
}

func (r *fanRun) compare(door string) {
	r.b.Helper()
	what := fmt.Sprintf("%s fan-out, %v", door, r.c)
	compareN(r.b, fanPairs, what+", against the same frames", "CPU µs/delivery", goal{}, r.leat, r.bare)
	ours, theirs := percentile(r.took, 99), percentile(r.floor, 99)
	r.b.ReportMetric(ms(ours), "p99-ms")
	r.b.ReportMetric(float64(median(r.frames)), "frames")
	n := row{
		what: what + ", latency p99", leat: fmt.Sprintf("%.3g ms", ms(ours)), other: fmt.Sprintf("%.3g ms", ms(theirs)),
		ratio: fmt.Sprintf("%d frames for %d records; the produce alone is %.3g µs/delivery", median(r.frames), r.records(), r.alone()),
	}
	if r.c.subscribers*r.c.rate == 1_000_000 {
		n.goal, n.ok = "≤ 50 ms", ours <= 50*time.Millisecond
	}
	table.add(n)
}

func (r *fanRun) records() int64 { return int64(r.c.span().Seconds() * float64(r.c.rate)) }

// alone is what the produce takes of leat's figure: the same records to a topic that nobody follows.
func (r *fanRun) alone() float64 {
	r.b.Helper()
	used := cpuOf(r.b, r.l.process, func() error {
		_, err := paced(r.l.HTTP, "alone", r.c)
		return err
	})
	return used * 1e6 / float64(r.records()*int64(r.c.subscribers))
}

// leat is a run of Leat, with the produce in it.
func (r *fanRun) leat() float64 {
	r.b.Helper()
	r.subs.begin()
	r.at += r.records()
	used := cpuOf(r.b, r.l.process, func() error {
		return r.subs.await(r.at, func() error {
			_, err := paced(r.l.HTTP, "fan", r.c)
			return err
		})
	})
	r.frames = append(r.frames, len(r.subs.frames))
	r.took = append(r.took, r.subs.took...)
	return used * 1e6 / float64(r.records()*int64(r.c.subscribers))
}

// bare is a run of the bare server with the frames that the last run of Leat sent to one subscriber.
func (r *fanRun) bare() float64 {
	r.b.Helper()
	frames := r.subs.frames
	r.bareSubs.begin()
	first := r.bareAt
	r.bareAt += int64(len(frames))
	var sent []int64
	used := cpuOf(r.b, r.other.process, func() error {
		return r.bareSubs.await(r.bareAt, func() (err error) {
			sent, err = play(r.other.addr, frames, r.c.span()/time.Duration(len(frames)))
			return err
		})
	})
	for i, at := range sent {
		for _, arrived := range r.bareSubs.arrived[first+int64(i)] {
			r.floor = append(r.floor, time.Duration(arrived-at))
		}
	}
	return used * 1e6 / float64(r.records()*int64(r.c.subscribers))
}

// percentile is the value that p of 100 do not exceed; 0 of none.
func percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}
