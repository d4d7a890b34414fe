package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// sequencer is an idempotent producer over HTTP that sends one request at a time to partition 0 of a topic.
type sequencer struct {
	*server
	topic string
	id    int64
	seq   int
	sent  []string // every value, in the order of the partition
}

func newSequencer(s *server, topic string) *sequencer {
	var p struct {
		ID    int64 `json:"producer_id"`
		Epoch int   `json:"producer_epoch"`
	}
	s.do(http.MethodPost, "/v1/producers", nil).want(http.StatusCreated).decode(&p)
	return &sequencer{server: s, topic: topic, id: p.ID}
}

// lines are the next n values, of so many bytes each.
func (q *sequencer) lines(n, size int) string {
	var b strings.Builder
	for i := range n {
		v := fmt.Sprintf("%d %s", q.seq+i, strings.Repeat("v", size))
		q.sent = append(q.sent, v)
		b.WriteString(v + "\n")
	}
	return b.String()
}

func (q *sequencer) path(query string) string {
	return "/v1/topics/" + q.topic + "/partitions/0/records?value=line&receipts=summary" + query
}

func (q *sequencer) headers() []string {
	return []string{
		"Content-Type: " + typeNDJSON, fmt.Sprintf("Producer-Id: %d", q.id), "Producer-Epoch: 0", fmt.Sprintf("Producer-Seq: %d", q.seq),
	}
}

// request is the text of a request.
func (q *sequencer) request(body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: leat\r\n%s\r\nContent-Length: %d\r\n\r\n%s",
		q.path(""), strings.Join(q.headers(), "\r\n"), len(body), body)
}

// produced is the answer to a produce with receipts in summary.
type producedSummary struct {
	Count      int `json:"count"`
	Failed     int `json:"failed"`
	Partitions []struct {
		Base      int64 `json:"base_offset"`
		Last      int64 `json:"last_offset"`
		Count     int   `json:"count"`
		Duplicate bool  `json:"duplicate"`
	} `json:"partitions"`
}

// again sends the request until it is answered with 200, once more for its own sake, and goes on in the sequence. Every
// record must have its own offset; it reports which of the batches the first of these answers calls duplicates.
func (q *sequencer) again(body string) (duplicates []bool) {
	q.t.Helper()
	for round := range 2 {
		var p producedSummary
		eventually(q.t, "an answer", func() error {
			a, err := q.try(http.MethodPost, q.path(""), []byte(body), q.headers()...)
			if err != nil || a.status == http.StatusServiceUnavailable {
				return errors.Join(err, fmt.Errorf("status %d", a.status))
			}
			p = producedSummary{}
			a.want(http.StatusOK).decode(&p)
			return nil
		})
		next := int64(q.seq)
		for _, b := range p.Partitions {
			if b.Base != next || b.Last != b.Base+int64(b.Count)-1 || round == 1 && !b.Duplicate {
				q.t.Fatalf("round %d: sequence %d: %+v", round, q.seq, p)
			}
			if round == 0 {
				duplicates = append(duplicates, b.Duplicate)
			}
			next = b.Last + 1
		}
		if n := strings.Count(body, "\n"); next != int64(q.seq+n) || p.Count != n || p.Failed != 0 {
			q.t.Fatalf("round %d: sequence %d: %+v for %d records", round, q.seq, p, n)
		}
		if round == 1 {
			q.seq = int(next)
		}
	}
	return duplicates
}

// written waits until the partition has all that was sent.
func (q *sequencer) written() {
	q.t.Helper()
	eventually(q.t, "the records", func() error {
		var p struct {
			High int64 `json:"high_watermark"`
		}
		q.get("/v1/topics/" + q.topic + "/partitions/0").decode(&p)
		if p.High != int64(len(q.sent)) {
			return fmt.Errorf("%d of %d", p.High, len(q.sent))
		}
		return nil
	})
}

// whole checks that the partition holds what was sent, once each and in order.
func (q *sequencer) whole() {
	q.t.Helper()
	var got []string
	for _, b := range mustSplit(q.t, q.wire().fetchAll(q.topic, 0, 0)) {
		got = append(got, b.values(q.t)...)
	}
	if len(got) != len(q.sent) {
		q.t.Fatalf("%d records of %d", len(got), len(q.sent))
	}
	for i := range got {
		if got[i] != q.sent[i] {
			q.t.Fatalf("record %d is %q, want %q", i, clip(got[i]), clip(q.sent[i]))
		}
	}
}

// dialHTTP is a bare connection to the HTTP door.
func (q *sequencer) dialHTTP() net.Conn {
	q.t.Helper()
	nc, err := net.Dial("tcp", q.HTTP)
	if err != nil {
		q.t.Fatal(err)
	}
	return nc
}

func (q *sequencer) write(nc net.Conn, text string) {
	q.t.Helper()
	if _, err := io.WriteString(nc, text); err != nil {
		q.t.Fatal(err)
	}
}

// TestIdempotencyProducerSeq proves that a request with a producer's sequence is written once after every kind of
// failure: cut before its body, in its body, or before its answer, the server killed with the answer under way or
// before, the wait for acks timed out, and no room for a part of it. What was written is called a duplicate, and the
// rest is written then.
func TestIdempotencyProducerSeq(t *testing.T) {
	s := start(t)
	s.createTopic("seq", 1, "max.message.bytes=20000")
	q := newSequencer(s, "seq")
	none := func(what string, duplicates []bool) {
		t.Helper()
		for _, d := range duplicates {
			if d {
				t.Errorf("%s: %v", what, duplicates)
			}
		}
	}
	all := func(what string, duplicates []bool) {
		t.Helper()
		for _, d := range duplicates {
			if !d {
				t.Errorf("%s: %v", what, duplicates)
			}
		}
	}
	for range 3 {
		body := q.lines(3, 100)
		nc := q.dialHTTP()
		text := q.request(body)
		q.write(nc, text[:len(text)-len(body)])
		_ = nc.Close()
		none("cut before the body", q.again(body))

		body = q.lines(3, 100)
		nc, text = q.dialHTTP(), q.request(body)
		q.write(nc, text[:len(text)-len(body)/2])
		_ = nc.Close()
		none("cut in the body", q.again(body))

		body = q.lines(40, 1500) // several batches
		nc = q.dialHTTP()
		q.write(nc, q.request(body))
		q.written()
		_ = nc.Close()
		all("cut before the answer", q.again(body))

		body = q.lines(40, 1500)
		nc = q.dialHTTP()
		q.write(nc, q.request(body))
		q.written()
		s.kill()
		s.restart()
		_ = nc.Close()
		all("killed before the answer", q.again(body))

		body = q.lines(40, 1500)
		nc = q.dialHTTP()
		q.write(nc, q.request(body))
		s.kill() // at whatever it was
		s.restart()
		_ = nc.Close()
		q.again(body)

		q.timeout()
	}
	q.whole()
	q.full()
	q.whole()
	s.kill()
	s.restart()
	q.whole()
	body := q.lines(1, 10)
	none("after all", q.again(body))
	q.whole()
}

// timeout sends a request that does not wait for its acks.
func (q *sequencer) timeout() {
	q.t.Helper()
	body := q.lines(2, 10)
	a := q.do(http.MethodPost, q.path("&timeout_ms=0"), []byte(body), q.headers()...)
	if a.status != http.StatusGatewayTimeout {
		a.want(http.StatusOK) // the disk was faster
	} else if !bytes.Contains(a.body, []byte(`"retriable":true`)) || !bytes.Contains(a.body, []byte(`"maybe_written":true`)) {
		q.t.Errorf("timed out: %s", a.body)
	}
	for _, d := range q.again(body) {
		if !d {
			q.t.Error("what timed out was not written")
		}
	}
}

// full sends a request of which a part finds no room.
func (q *sequencer) full() {
	q.t.Helper()
	limit := func(bytes uint64) {
		if err := unix.Prlimit(q.pid(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}, nil); err != nil {
			q.t.Fatal(err)
		}
	}
	size := uint64(0)
	for _, v := range q.sent {
		size += uint64(len(v))
	}
	body := q.lines(50, 1500) // four batches, of which two fit
	limit(size + 55_000)
	a := q.do(http.MethodPost, q.path(""), []byte(body), q.headers()...)
	var p producedSummary
	a.want(http.StatusMultiStatus).decode(&p)
	if p.Failed == 0 || p.Failed == p.Count || !strings.Contains(string(a.body), `"storage_full"`) || strings.Contains(string(a.body), "out_of_order") {
		q.t.Errorf("without room: %s", a.body)
	}
	limit(unix.RLIM_INFINITY)
	duplicates := q.again(body)
	if !duplicates[0] || duplicates[len(duplicates)-1] {
		q.t.Errorf("written in part before: %v", duplicates)
	}
}
