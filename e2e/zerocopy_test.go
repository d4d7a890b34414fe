package e2e

import (
	"fmt"
	"net/http"
	"testing"
)

// consumeSize is how much the zero-copy tests read.
func consumeSize() int64 {
	if long() {
		return 1 << 30
	}
	return 256 << 20
}

const traced = "trace=sendfile,splice,read,readv,pread64,preadv,preadv2,write,writev,sendto,sendmsg"

// TestKafkaZeroCopy proves that a consume with 1 MiB fetches leaves by sendfile, at least 99 % of the payload, with no
// read from a .log. Without ptrace it judges by the server's own count and /proc/PID/io.
func TestKafkaZeroCopy(t *testing.T) {
	s := start(t)
	s.createTopic("zero", 1, "flush.messages=1000000")
	produceBytes(t, s, "zero", consumeSize())
	proveZeroCopy(t, s, `leat_kafka_fetched_bytes_total`, []string{`via="sendfile"`}, func() {
		consumeBytes(t, s, "zero", consumeSize())
	})
}

// TestHTTPZeroCopy proves the same for raw batches over HTTP.
func TestHTTPZeroCopy(t *testing.T) {
	s := start(t)
	s.createTopic("zero", 1, "flush.messages=1000000")
	produceBytes(t, s, "zero", consumeSize())
	end := s.wire().end("zero", 0)
	proveZeroCopy(t, s, `leat_http_sendfile_bytes_total`, nil, func() {
		for next := int64(0); next < end; {
			a := s.get(fmt.Sprintf("/v1/topics/zero/partitions/0/records?offset=%d&max_bytes=1048576", next), "Accept: "+typeBatch)
			batches := mustSplit(t, a.body)
			if len(batches) == 0 {
				t.Fatalf("nothing at offset %d of %d", next, end)
			}
			next = batches[len(batches)-1].next()
			if got := a.header.Get("Next-Offset"); got != fmt.Sprint(next) {
				t.Fatalf("Next-Offset %s, want %d", got, next)
			}
		}
	})
}

func proveZeroCopy(t *testing.T, s *server, metric string, labels []string, consume func()) {
	t.Helper()
	payload := consumeSize() // of values alone
	before, readBefore := s.metric(metric, labels...), s.procField("io", "rchar")
	if !canTrace(t) {
		consume()
		sendfile := int64(s.metric(metric, labels...) - before)
		// The kernel counts what sendfile moves as read, too.
		if copied := s.procField("io", "rchar") - readBefore - sendfile; sendfile < payload/100*99 || copied > payload/100 {
			t.Errorf("%d bytes by sendfile and %d read otherwise, for a payload of %d", sendfile, copied, payload)
		}
		t.Log("judged by the server's metrics and /proc/PID/io: strace does not work here")
		return
	}
	stop := s.trace("-y", "-e", traced)
	consume()
	sum := parseTrace(stop())
	t.Logf("judged by strace: %d MiB by sendfile, %d KiB written to sockets, calls %v", sum.sendfile>>20, sum.sockets>>10, sum.calls)
	if sum.sendfile < payload/100*99 || sum.sockets > payload/100 {
		t.Errorf("%d bytes by sendfile and %d written to sockets, for a payload of %d", sum.sendfile, sum.sockets, payload)
	}
	if len(sum.logReads) > 0 {
		t.Errorf("%d reads from a .log, the first is %s", len(sum.logReads), sum.logReads[0])
	}
	// strace misses the end of a call that is under way when it lets go.
	if got := int64(s.metric(metric, labels...) - before); got < sum.sendfile || got > sum.sendfile+1<<20 {
		t.Errorf("the server counts %d bytes by sendfile, strace %d", got, sum.sendfile)
	}
}

// TestSmallFetchesAreCopied proves that sections too small for sendfile still arrive whole, over both doors.
func TestSmallFetchesAreCopied(t *testing.T) {
	s := start(t)
	s.createTopic("small", 1)
	w := s.wire()
	for i := range 50 {
		w.mustProduce("small", 0, encode(t, codecs[0].codec, values(1, fmt.Sprint(i))))
	}
	if got := len(mustSplit(t, w.fetchAll("small", 0, 0))); got != 50 {
		t.Errorf("%d batches, want 50", got)
	}
	a := s.do(http.MethodGet, "/v1/topics/small/partitions/0/records?from=earliest", nil, "Accept: "+typeBatch).want(200)
	if got := len(mustSplit(t, a.body)); got != 50 {
		t.Errorf("%d batches over HTTP, want 50", got)
	}
}
