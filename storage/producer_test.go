package storage

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// producerScript runs testdata/producer: a partition reduced to its producer
// state, the batches that it took, and a clock.
type producerScript struct {
	state *producers
	log   []sequence
	now   time.Time
}

func TestProducerScripts(t *testing.T) {
	// Proves what happens to each batch of idempotent producers: retries,
	// gaps, epochs, wraps, restarts, expiry and the bound.
	datadriven.Walk(t, "testdata/producer", func(t *testing.T, path string) {
		s := &producerScript{state: newProducers(0, 0), now: time.Unix(1000, 0)}
		datadriven.RunTest(t, path, s.run)
	})
}

func (s *producerScript) run(t *testing.T, d *datadriven.TestData) string {
	var limit int
	var text string
	switch d.Cmd {
	case "limit":
		d.ScanArgs(t, "to", &limit)
		s.state = newProducers(0, limit)
		return ""
	case "expiration":
		d.ScanArgs(t, "is", &text)
		s.state.setExpiration(mustDuration(t, text))
		return ""
	case "advance":
		d.ScanArgs(t, "by", &text)
		s.now = s.now.Add(mustDuration(t, text))
		return ""
	case "restart":
		state := newProducers(s.state.expiration, s.state.limit)
		for _, b := range s.log {
			state.record(b, s.now)
		}
		s.state = state
		return fmt.Sprintf("%d producers", state.len())
	case "produce":
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			out.WriteString(s.produce(t, strings.TrimSpace(line)) + "\n")
		}
		return out.String()
	default:
		t.Fatalf("unknown command %q", d.Cmd)
		return ""
	}
}

// produce takes "pid epoch first-last", or "pid epoch control".
func (s *producerScript) produce(t *testing.T, line string) string {
	t.Helper()
	b := sequence{first: -1, last: -1}
	var sequences string
	if _, err := fmt.Sscan(line, &b.pid, &b.epoch, &sequences); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	count := int64(1)
	if sequences != "control" {
		if _, err := fmt.Sscanf(sequences, "%d-%d", &b.first, &b.last); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if count = int64(b.last) - int64(b.first) + 1; count <= 0 {
			count += 1 << 31
		}
	}
	v, err := s.state.check(b, s.now)
	switch {
	case errors.Is(err, ErrOutOfOrderSequence), errors.Is(err, ErrProducerEpoch):
		return err.Error()
	case err != nil:
		t.Fatal(err)
	case v.duplicate:
		return fmt.Sprintf("duplicate of offsets %d-%d, timestamp %d", v.base, v.last, v.timestamp)
	}
	if len(s.log) > 0 {
		b.base = s.log[len(s.log)-1].lastOffset + 1
	}
	b.lastOffset = b.base + count - 1
	b.timestamp = s.now.Unix()
	s.state.record(b, s.now)
	s.log = append(s.log, b)
	return fmt.Sprintf("append at offsets %d-%d", b.base, b.lastOffset)
}

func mustDuration(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestProducerCheckIsPure(t *testing.T) {
	// Proves that a batch that was judged but not appended leaves no trace.
	p := newProducers(0, 0)
	now := time.Unix(1000, 0)
	p.record(sequence{pid: 1, first: 0, last: 4, base: 10, lastOffset: 14}, now)
	for _, s := range []sequence{
		{pid: 1, first: 5, last: 5},
		{pid: 1, epoch: 3, first: 0, last: 0},
		{pid: 2, first: 7, last: 7},
		{pid: -1, epoch: -1, first: -1, last: -1},
		{pid: 1, epoch: 2, first: -1, last: -1},
	} {
		if v, err := p.check(s, now.Add(time.Hour)); err != nil || v.duplicate {
			t.Errorf("check(%+v) = %+v, %v", s, v, err)
		}
	}
	v, err := p.check(sequence{pid: 1, first: 0, last: 4}, now)
	if err != nil || v != (verdict{duplicate: true, base: 10, last: 14}) {
		t.Errorf("the state changed: %+v, %v", v, err)
	}
	if p.len() != 1 {
		t.Errorf("%d producers", p.len())
	}
}

func TestProducerWithoutID(t *testing.T) {
	// Proves that batches of producers that are not idempotent are not kept.
	p := newProducers(0, 0)
	p.record(sequence{pid: -1, epoch: -1, first: -1, last: -1}, time.Unix(0, 0))
	if p.len() != 0 {
		t.Errorf("%d producers", p.len())
	}
}

func TestProducerClockGoesBack(t *testing.T) {
	// Proves that a clock that is set back neither forgets a producer early
	// nor keeps the ones behind it for ever.
	p := newProducers(time.Hour, 0)
	now := time.Unix(100_000, 0)
	p.record(sequence{pid: 1}, now)
	p.record(sequence{pid: 2}, now.Add(-50*time.Minute))
	p.record(sequence{pid: 3}, now.Add(59*time.Minute))
	if p.len() != 3 {
		t.Errorf("%d producers before the hour", p.len())
	}
	p.record(sequence{pid: 3, first: 1, last: 1}, now.Add(60*time.Minute))
	if p.len() != 1 {
		t.Errorf("%d producers after the hour", p.len())
	}
}

func TestProducerNext(t *testing.T) {
	// Proves that sequences wrap from 2^31-1 to 0.
	for last, want := range map[int32]int32{0: 1, 7: 8, math.MaxInt32 - 1: math.MaxInt32, math.MaxInt32: 0} {
		k := producer{count: 1}
		k.window[0].last = last
		if got := k.next(); got != want {
			t.Errorf("after %d: %d, want %d", last, got, want)
		}
	}
	if got := new(producer).next(); got != 0 {
		t.Errorf("first sequence %d", got)
	}
}

func TestProducerRemembers(t *testing.T) {
	// Proves that exactly the batches that a retry would be compared with count
	// as remembered: the newest five of the newest epoch, of that producer only.
	p := newProducers(0, 0)
	now := time.Unix(1000, 0)
	for i := range int64(7) {
		p.record(sequence{pid: 1, first: int32(i), last: int32(i), base: 10 + i, lastOffset: 10 + i}, now)
	}
	for base, want := range map[int64]bool{9: false, 11: false, 12: true, 16: true, 17: false} {
		if got := p.remembers(1, base); got != want {
			t.Errorf("base %d: %v", base, got)
		}
	}
	p.record(sequence{pid: 1, epoch: 1, base: 17, lastOffset: 17}, now)
	if p.remembers(1, 16) || !p.remembers(1, 17) || p.remembers(2, 17) {
		t.Error("an older epoch, or another producer, is remembered")
	}
}

// len counts the producers.
func (p *producers) len() int { return len(p.byID) }
