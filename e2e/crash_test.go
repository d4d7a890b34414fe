package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ledger is what one producer wrote to its own topic: numbers that only grow. It knows which were answered, and where.
type ledger struct {
	topic string
	mu    sync.Mutex
	next  int             // the number to send next
	acked map[int64]int64 // number -> offset that was told, of those not checked yet
	at    map[int64]int64 // number -> offset, of all that the log was seen to have
	seen  int64           // offsets below are in at
	last  int64           // the largest number at an offset below seen
	cut   span            // where the log begins: what DeleteRecords has answered, and the most that it was asked
	err   error           // the first that a client gave up with
}

// span is a number that only grows and is known to lie in between.
type span struct{ low, high int64 }

func newLedger(topic string) *ledger {
	return &ledger{topic: topic, acked: map[int64]int64{}, at: map[int64]int64{}, last: -1}
}

// take gives the next n numbers.
func (l *ledger) take(n int) (first int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first = int64(l.next)
	l.next += n
	return first
}

func (l *ledger) answered(number, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked[number] = offset
}

// gaveUp takes note of a record that a client does not try to send any more.
func (l *ledger) gaveUp(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = cmp.Or(l.err, err)
}

// unchecked counts the answers since the last check.
func (l *ledger) unchecked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// check reads what is new in the topic: numbers grow from offset to offset (in order, once), every answered one is at
// the offset that was told, and the next offset is the one after the last record. What DeleteRecords took is left out.
func (l *ledger) check(t *testing.T, s *server) {
	t.Helper()
	w := s.wire()
	defer w.nc.Close() //nolint:errcheck // all is read
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	start, _ := w.listOffset(l.topic, 0, earliest)
	if start < cut.low || start > cut.high {
		t.Fatalf("%s: the log begins at %d, want it in [%d, %d]", l.topic, start, cut.low, cut.high)
	}
	next := max(l.seen, start)
	for _, b := range mustSplit(t, w.fetchAll(l.topic, 0, next)) {
		if b.base() > next || b.base() < next && next != start { // the log may begin in the middle of a batch
			t.Fatalf("%s: a batch at offset %d, want %d", l.topic, b.base(), next)
		}
		for i, v := range b.values(t) {
			if b.base()+int64(i) < next {
				continue
			}
			head, _, _ := strings.Cut(v, " ")
			number, err := strconv.ParseInt(head, 10, 64)
			if err != nil {
				t.Fatalf("%s: value %q", l.topic, clip(v))
			}
			if v != string(l.value(number)) {
				t.Fatalf("%s: the value at offset %d is not what was sent: %q", l.topic, next, clip(v))
			}
			if number <= l.last {
				t.Fatalf("%s: number %d at offset %d comes after %d: twice or out of order", l.topic, number, next, l.last)
			}
			l.at[number], l.last, next = b.base()+int64(i), number, next+1
		}
	}
	if end := w.end(l.topic, 0); end != next {
		t.Fatalf("%s: end offset %d, want %d", l.topic, end, next)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for number, offset := range l.acked {
		got, ok := l.at[number]
		if !ok && offset < start {
			continue
		}
		if !ok {
			t.Fatalf("%s: number %d was answered with offset %d, and is lost", l.topic, number, offset)
		}
		if got != offset {
			t.Fatalf("%s: number %d was answered with offset %d, and is at %d", l.topic, number, offset, got)
		}
	}
	clear(l.acked)
	l.seen = next
}

func (l *ledger) value(number int64) []byte {
	return fmt.Appendf(nil, "%d %s %s", number, l.topic, strings.Repeat("x", int(number*37%400)))
}

// produceKgo sends records through one client until stop, several in flight.
func (l *ledger) produceKgo(ctx context.Context, client *kgo.Client, stop <-chan struct{}) {
	inFlight := make(chan struct{}, 200)
	for {
		select {
		case <-stop:
			return
		case inFlight <- struct{}{}:
		}
		number := l.take(1)
		client.Produce(ctx, &kgo.Record{Topic: l.topic, Value: l.value(number)}, func(r *kgo.Record, err error) {
			if err == nil {
				l.answered(number, r.Offset)
			} else {
				l.gaveUp(err)
			}
			<-inFlight
		})
	}
}

// produceHTTP posts lines, one request at a time, until stop or the server is gone. Nothing is sent twice.
func (l *ledger) produceHTTP(s *server, acks string, stop <-chan struct{}) {
	const lines = 7
	for {
		select {
		case <-stop:
			return
		default:
		}
		first := l.take(lines)
		var body []byte
		for i := range int64(lines) {
			body = append(append(body, l.value(first+i)...), '\n')
		}
		a, err := s.try("POST", "/v1/topics/"+l.topic+"/partitions/0/records?value=line&acks="+acks, body, "Content-Type: "+typeNDJSON)
		if err != nil || a.status != 200 {
			return
		}
		var r receipts
		a.decode(&r)
		if len(r.Partitions) != 1 || r.Partitions[0].Count != lines {
			a.t.Errorf("receipts %s", a.body)
			return
		}
		for i := range int64(lines) {
			l.answered(first+i, r.Partitions[0].Base+i)
		}
	}
}

// produceWire sends one batch at a time with acks=1 until the server is gone. Nothing is sent twice.
func (l *ledger) produceWire(t *testing.T, w *wire, stop <-chan struct{}) {
	const records = 3
	for {
		select {
		case <-stop:
			return
		default:
		}
		first := l.take(records)
		var vals []string
		for i := range int64(records) {
			vals = append(vals, string(l.value(first+i)))
		}
		p, err := w.tryProduce(l.topic, 0, 1, encode(t, kgo.SnappyCompression(), values(time.Now().UnixMilli(), vals...)))
		if err != nil || p.ErrorCode != codeNone {
			return
		}
		for i := range int64(records) {
			l.answered(first+i, p.BaseOffset+i)
		}
	}
}

// TestKillDuringProduce proves that after each kill -9 in the middle of produce every answered record is there, in
// order, once, at the offset that was told, and that the next offset is right: with acks=all and acks=1, over Kafka
// and over HTTP. An idempotent producer lives through all the kills, and its retries write nothing twice.
func TestKillDuringProduce(t *testing.T) {
	cycles := 10
	if long() {
		cycles = 50
	}
	p := newProxy(t)
	s := start(t, "--kafka-advertise", p.addr, "--set", "num.partitions=1")
	p.point(s.Kafka)
	idempotent, plain := newLedger("kgo-idempotent"), newLedger("kgo-acks-1")
	raw, all, one := newLedger("wire-acks-1"), newLedger("http-acks-all"), newLedger("http-acks-1")
	ledgers := []*ledger{idempotent, plain, raw, all, one}
	for _, l := range ledgers {
		s.createTopic(l.topic, 1, "segment.bytes=300000")
	}
	var surviving sync.WaitGroup
	over := make(chan struct{})
	survivor := s.kgo(kgo.SeedBrokers(p.addr), kgo.ProducerLinger(0),
		kgo.MetadataMinAge(20*time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }), kgo.RequestRetries(tireless))
	surviving.Go(func() { idempotent.produceKgo(t.Context(), survivor, over) })

	rng := rand.New(rand.NewPCG(1, 2))
	for cycle := range cycles {
		stop := make(chan struct{})
		var work sync.WaitGroup
		client, err := kgo.NewClient(kgo.SeedBrokers(p.addr), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()),
			kgo.MaxProduceRequestsInflightPerBroker(1), kgo.RecordRetries(0), kgo.ProducerLinger(0))
		if err != nil {
			t.Fatal(err)
		}
		w := s.wire()
		work.Go(func() { plain.produceKgo(t.Context(), client, stop) })
		work.Go(func() { raw.produceWire(t, w, stop) })
		work.Go(func() { all.produceHTTP(s, "all", stop) })
		work.Go(func() { one.produceHTTP(s, "1", stop) })
		most := 20 + rng.IntN(400)
		for _, l := range ledgers {
			eventually(t, "answers to "+l.topic, func() error {
				if n := l.unchecked(); n < most {
					return fmt.Errorf("%d of %d", n, most)
				}
				return nil
			})
		}
		s.kill()
		close(stop)
		client.Close()
		work.Wait()
		s.restart()
		for _, l := range ledgers {
			l.check(t, s)
		}
		p.point(s.Kafka)
		if t.Failed() {
			t.Fatalf("in cycle %d", cycle)
		}
	}
	close(over)
	surviving.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := survivor.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	for _, l := range ledgers {
		l.check(t, s)
		t.Logf("%s: %d numbers sent, %d records in the log", l.topic, l.next, l.seen)
		if l.seen == 0 {
			t.Errorf("%s: nothing was written", l.topic)
		}
	}
	if int64(idempotent.next) != idempotent.seen {
		t.Errorf("the idempotent producer sent %d records, the log has %d: %v", idempotent.next, idempotent.seen, idempotent.err)
	}
	s.stop()
	s.restart()
	for _, l := range ledgers {
		before := l.at
		l.seen, l.last, l.at = 0, -1, map[int64]int64{}
		l.check(t, s)
		if !maps.Equal(l.at, before) {
			t.Errorf("%s: the records are not those of before the stop", l.topic)
		}
	}
}

// TestKillDuringCreate proves that a topic that was answered is there after kill -9, whole, and that no half of one
// stands in the way of a start.
func TestKillDuringCreate(t *testing.T) {
	cycles := 5
	if long() {
		cycles = 30
	}
	s := start(t)
	var made []string
	for cycle := range cycles {
		var mu sync.Mutex
		var answers atomic.Int64
		var work sync.WaitGroup
		for worker := range 4 {
			work.Go(func() {
				for i := 0; ; i++ {
					name := fmt.Sprintf("topic-%d-%d-%d", cycle, worker, i)
					a, err := s.try("POST", "/v1/topics", fmt.Appendf(nil, `{"name":%q,"partitions":3}`, name), "Content-Type: "+typeJSON)
					if err != nil || a.status != 201 {
						return
					}
					mu.Lock()
					made = append(made, name)
					mu.Unlock()
					answers.Add(1)
				}
			})
		}
		eventually(t, "topics", func() error {
			if n := answers.Load(); n < int64(5+3*cycle) {
				return fmt.Errorf("%d topics", n)
			}
			return nil
		})
		s.kill()
		work.Wait()
		s.restart()
		w := s.wire()
		for _, name := range made {
			for p := range int32(3) {
				if end := w.end(name, p); end != 0 {
					t.Fatalf("%s-%d: end offset %d", name, p, end)
				}
			}
		}
	}
	s.post("/v1/topics/"+made[0]+"/records?value=line", typeNDJSON, "x\n")
}

// TestProducerStateSurvives proves that the sequences of an idempotent producer are checked across kill -9: the same
// batch is answered with its first offset and not written again, a gap and an old epoch are refused.
func TestProducerStateSurvives(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	numbered := func(epoch int16, sequence int32) []byte {
		return encode(t, kgo.NoCompression(), values(1, "a", "b"), producer(4711, epoch, sequence))
	}
	w := s.wire()
	for i := range int32(7) {
		w.mustProduce("t", 0, numbered(1, 2*i))
	}
	check := func(when string) {
		t.Helper()
		w := s.wire()
		for i := int32(2); i < 7; i++ { // the last five batches
			if p := w.produce("t", 0, -1, numbered(1, 2*i)); p.ErrorCode != codeNone || p.BaseOffset != int64(2*i) {
				t.Errorf("%s: batch %d again: code %d, base offset %d, want its first offset %d", when, i, p.ErrorCode, p.BaseOffset, 2*i)
			}
		}
		for name, c := range map[string]struct {
			batch []byte
			code  int16
		}{
			"a gap":            {numbered(1, 16), 45},
			"long ago":         {numbered(1, 2), 45},
			"an old epoch":     {numbered(0, 14), 47},
			"a new epoch at 5": {numbered(2, 5), 45},
		} {
			if p := w.produce("t", 0, -1, c.batch); p.ErrorCode != c.code {
				t.Errorf("%s: %s: code %d, want %d", when, name, p.ErrorCode, c.code)
			}
		}
		if end := w.end("t", 0); end != 14 {
			t.Errorf("%s: end offset %d, want 14", when, end)
		}
	}
	check("at first")
	s.kill()
	s.restart()
	check("after kill -9")
	s.stop()
	s.restart()
	check("after a clean stop")
	w = s.wire()
	if base := w.mustProduce("t", 0, numbered(1, 14)); base != 14 {
		t.Errorf("the next sequence got offset %d, want 14", base)
	}
}
