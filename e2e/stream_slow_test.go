package e2e

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// fillBig writes about n bytes of values of 1 KiB to partition 0, in batches of 256 KiB that are compressed by turns,
// and returns how many records that are.
func fillBig(t *testing.T, s *server, topic string, n int) int64 {
	t.Helper()
	const each, size = 256, 1024
	var recs []rec
	for i := range each {
		recs = append(recs, rec{ts: time.Now().UnixMilli(), value: fmt.Appendf(nil, "%0*d", size, i)})
	}
	batches := [][]byte{encode(t, kgo.NoCompression(), recs), encode(t, kgo.ZstdCompression(), recs)}
	w := s.wire()
	count := int64(0)
	for i := range n / (each * size) {
		p := w.produce(topic, 0, 1, batches[i%2])
		if p.ErrorCode != codeNone || p.BaseOffset != count {
			t.Fatalf("batch %d: code %d, base offset %d", i, p.ErrorCode, p.BaseOffset)
		}
		count += each
	}
	return count
}

// smallConn dials with a receive buffer that holds next to nothing, so that what is not read stays with the server.
func smallConn(t testing.TB, addr string) net.Conn {
	t.Helper()
	d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
		if failed != nil {
			return failed
		}
		return err
	}}
	nc, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	return nc
}

// TestCase57ClientsThatNeverRead proves that clients that ask for everything and read nothing cost next to no memory
// and are let go after a while, and that a client that reads gets what comes meanwhile.
func TestCase57ClientsThatNeverRead(t *testing.T) {
	const clients, mostGrowth = 100, 50 << 20
	size := 128 << 20
	if long() {
		size = 1 << 30
	}
	s := start(t)
	s.createTopic("big", 1, "flush.messages=1000000")
	count := fillBig(t, s, "big", size)
	healthy := s.socket()
	healthy.say(`{"type":"subscribe","id":1,"sub":"tail","topic":"big","from":{"0":%d}}`, count)
	healthy.want("subscribed")
	before, memory := s.memory(), s.watchMemory()
	for range clients {
		ws, err := openSocket(smallConn(t, s.HTTP))
		if err != nil {
			t.Fatal(err)
		}
		if err := ws.send(`{"type":"subscribe","id":1,"sub":"s","topic":"big","from":"earliest"}`); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all clients to be there", func() error {
		if n := s.metric("leat_ws_opened_total"); n != clients+1 {
			return fmt.Errorf("%v sockets", n)
		}
		return nil
	})
	latencies := tailWhile(t, s, healthy, count, func() bool { return s.metric("leat_ws_closes_total", "slow_consumer") < clients })
	grown := memory() - before
	t.Logf("memory grew by %d MiB; %d records to the client that reads: median %v, 99 %% within %v", grown>>20,
		len(latencies), median(latencies), percentile(latencies, 99))
	if grown > mostGrowth {
		t.Errorf("memory grew by %d MiB, want at most %d", grown>>20, mostGrowth>>20)
	}
}

// tailWhile produces records one by one, and reads each at a socket that follows, for as long as the server holds the
// clients that do not read. It returns how long each record took.
func tailWhile(t *testing.T, s *server, healthy *talk, next int64, more func() bool) []time.Duration {
	t.Helper()
	var all []time.Duration
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); len(all)%50 > 0 || more(); {
		if time.Since(begun) > 2*patience {
			t.Fatalf("the clients that do not read are still held after %v", 2*patience)
		}
		if err := healthy.nc.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		sent := time.Now()
		s.post("/v1/topics/big/partitions/0/records?value=line", typeNDJSON, strconv.FormatInt(sent.UnixNano(), 10)+"\n")
		if got := healthy.wantData(0, next, 1)[0].content(); got != strconv.FormatInt(sent.UnixNano(), 10) {
			t.Fatalf("offset %d is %s", next, got)
		}
		all = append(all, time.Since(sent))
		next++
		<-tick.C
	}
	return all
}

// percentile is the value that p of 100 do not exceed.
func percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

// TestZeroCreditReadsNothing proves that a subscription without credit, or one that is paused, reads nothing from the
// log, whatever is there and whatever comes, and that credit for one record brings one. Without ptrace it judges by
// what /proc/PID/io counts.
func TestZeroCreditReadsNothing(t *testing.T) {
	const clients, size = 20, 8 << 20
	s := start(t)
	s.createTopic("big", 1, "flush.messages=1000000")
	count := fillBig(t, s, "big", size)
	var all []*talk
	for range clients {
		all = append(all, s.socket())
	}
	stop := func() string { return "" }
	if canTrace(t) {
		stop = s.trace("-y", "-e", traced)
	}
	before := s.procField("io", "rchar")
	for _, k := range all {
		k.say(`{"type":"subscribe","id":1,"sub":"s","topic":"big","from":"earliest","credit":{"bytes":0,"records":0}}`)
		if m := k.want("subscribed"); m.Positions["0"] != 0 {
			t.Errorf("subscribed: %s", m.text)
		}
		k.say(`{"type":"subscribe","id":2,"sub":"bytes","topic":"big","from":"earliest","credit":{"bytes":1000,"records":0}}`)
		k.want("subscribed")
	}
	for range 20 {
		s.post("/v1/topics/big/partitions/0/records?value=line", typeNDJSON, "more\n")
	}
	// What a socket sent before a pong would be before it on the wire.
	for _, k := range all {
		k.say(`{"type":"ping"}`)
		k.want("pong")
	}
	read := s.procField("io", "rchar") - before
	if reads := parseTrace(stop()).logReads; len(reads) > 0 {
		t.Errorf("%d reads from a .log, the first is %s", len(reads), reads[0])
	}
	if read > size/8 {
		t.Errorf("%d bytes were read of a log of %d", read, size)
	}
	t.Logf("%d KiB read in all for %d subscriptions without credit", read>>10, 2*clients)
	k := all[0]
	k.say(`{"type":"credit","sub":"s","bytes":1,"records":1}`)
	if r := k.wantData(0, 0, 1)[0]; !strings.HasSuffix(r.content(), "00") {
		t.Errorf("offset 0 is %s", clip(r.content()))
	}
	k.say(`{"type":"credit","sub":"s","bytes":100000000,"records":5}`)
	k.wantData(0, 1, 5)
	k.say(`{"type":"ping"}`)
	k.want("pong")
	k.say(`{"type":"subscribe","id":3,"sub":"end","topic":"big","from":{"0":%d}}`, count)
	k.want("subscribed")
	k.wantData(0, count, 20)
}

// TestSlowStreamIsLetGo proves that SSE and NDJSON streams that are not read end after the write deadline, and hold
// neither memory nor descriptors.
func TestSlowStreamIsLetGo(t *testing.T) {
	const clients = 20
	s := start(t)
	s.createTopic("big", 1, "flush.messages=1000000")
	fillBig(t, s, "big", 64<<20)
	files, before := s.openFiles(), s.memory()
	memory := s.watchMemory()
	var held []net.Conn
	for i := range clients {
		accept, query := typeSSE, ""
		if i%2 == 0 {
			accept, query = typeNDJSON, "&stream=true"
		}
		nc := smallConn(t, s.HTTP)
		held = append(held, nc)
		if _, err := fmt.Fprintf(nc, "GET /v1/topics/big/records?from=earliest%s HTTP/1.1\r\nHost: x\r\nAccept: %s\r\n\r\n", query, accept); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the streams to be there", func() error {
		if n := s.openFiles(); n < files+clients {
			return fmt.Errorf("%d descriptors, %d before", n, files)
		}
		return nil
	})
	eventually(t, "the streams to be let go", func() error {
		if n := s.openFiles(); n > files+clients/10 {
			return fmt.Errorf("%d descriptors, %d before", n, files)
		}
		return nil
	})
	if grown := memory() - before; grown > 50<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
	for _, nc := range held {
		_ = nc.Close() // the server has closed it
	}
}
