package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	leasePartitions = 32
	leaseWorkers    = 50
	// leaseSpan is for how long the workers take a partition.
	leaseSpan = 2 * time.Second
	// leaseSlack is what a partition may be idle beyond that, for the machine's sake.
	leaseSlack = 2 * time.Second
)

// lease is a lease as it is handed out.
type lease struct {
	ID        string `json:"lease_id"`
	Partition int    `json:"partition"`
	First     int64  `json:"first_offset"`
	Next      int64  `json:"next_offset"`
	Deadline  int64  `json:"deadline"`
	Delivery  int    `json:"delivery_count"`
	Records   []struct {
		Offset int64           `json:"offset"`
		Value  json.RawMessage `json:"value"`
	} `json:"records"`
}

// leaseRun is a group of workers over a topic that is written to, on a server that is killed.
type leaseRun struct {
	*testing.T
	addr atomic.Value // of the process that runs now
	ctx  context.Context
	// calm ends the trouble: no worker fails any more.
	calm  atomic.Bool
	parts [leasePartitions]leasedPartition
	mu    struct {
		sync.Mutex
		down []interval // when there was no server
	}
	takes, acks, abandoned, lost, cut atomic.Int64
}

// interval is a span of time.
type interval struct{ from, to time.Time }

// leasedPartition is what is known of one partition.
type leasedPartition struct {
	sync.Mutex
	fed       int64 // records that are in the log for sure
	processed int64 // the records before were worked on, without a gap
	asked     int64 // the greatest offset that an ack asked to commit
	acked     int64 // the greatest that was answered
	leases    []leaseSeen
}

// leaseSeen is a lease from the answer of its take to when it was given up or ended.
type leaseSeen struct {
	interval
	id          string
	first, upto int64
	backlog     bool // there was more when it ended
}

// TestLeases proves what workers over HTTP may count on: 50 of them over 32 partitions, every call on a connection of its
// own, workers that vanish at any time and a server that is killed. Every record is worked on at least once; no partition
// has two leases that live at a time; its records come in order, from what was acked; a lease is not lost before its
// deadline, also not to a kill; and no partition with work is idle for longer than a lease.
func TestLeases(t *testing.T) {
	span, every := 12*time.Second, 4*time.Second
	if long() {
		span, every = 5*time.Minute, 7*time.Second
	}
	s := start(t, "--set", "flush.messages=1")
	s.createTopic("t", leasePartitions)
	ctx, cancel := context.WithCancel(t.Context())
	r := &leaseRun{T: t, ctx: ctx}
	r.addr.Store(s.HTTP)
	var workers, feeders sync.WaitGroup
	fed := make(chan struct{})
	for i := range 4 {
		feeders.Go(func() { r.feed(i, fed) })
	}
	for range leaseWorkers {
		workers.Go(r.work)
	}
	for end := time.Now().Add(span); time.Now().Before(end) && !t.Failed(); {
		after(every)
		down := interval{from: time.Now()}
		s.kill()
		s.restart()
		r.addr.Store(s.HTTP)
		down.to = time.Now()
		r.mu.Lock()
		r.mu.down = append(r.mu.down, down)
		r.mu.Unlock()
	}
	close(fed)
	feeders.Wait()
	r.calm.Store(true)
	eventually(t, "the end of the work", r.done)
	cancel()
	workers.Wait()
	r.judge()
	var records int64
	for i := range r.parts {
		records += r.parts[i].fed
	}
	t.Logf("%d records, %d leases, %d acks; %d leases abandoned, %d lost, %d calls cut off, %d kills",
		records, r.takes.Load(), r.acks.Load(), r.abandoned.Load(), r.lost.Load(), r.cut.Load(), len(r.mu.down))
	if r.takes.Load() == 0 || r.abandoned.Load() == 0 || r.lost.Load() == 0 || r.cut.Load() == 0 {
		t.Error("nothing was tried")
	}
}

// call sends a request on a connection of its own. An error is of the connection.
func (r *leaseRun) call(ctx context.Context, method, path string, body any, headers ...string) (status int, text []byte, err error) {
	raw, err := json.Marshal(body)
	if err != nil {
		r.Error(err)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+r.addr.Load().(string)+path, bytes.NewReader(raw))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", typeJSON)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close() //nolint:errcheck // it is read to its end
	text, err = io.ReadAll(res.Body)
	return res.StatusCode, text, err
}

// feed writes numbered records to every fourth partition, each request until it is answered; its key keeps a repeated one
// from being written twice.
func (r *leaseRun) feed(first int, stop <-chan struct{}) {
	for round := 0; ; round++ {
		for p := first; p < leasePartitions; p += 4 {
			select {
			case <-stop:
				return
			default:
			}
			r.feedOne(p, round)
		}
		after(20 * time.Millisecond)
	}
}

func (r *leaseRun) feedOne(p, round int) {
	part := &r.parts[p]
	var records []any
	for n := range int64(10) {
		records = append(records, map[string]any{"value": map[string]int64{"P": int64(p), "N": part.fed + n}})
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		status, text, err := r.call(r.ctx, http.MethodPost, fmt.Sprintf("/v1/topics/t/partitions/%d/records", p), records,
			"Idempotency-Key", fmt.Sprintf("feed-%d-%d", p, round))
		switch {
		case status == http.StatusOK:
			part.Lock()
			part.fed += int64(len(records))
			part.Unlock()
			return
		case err == nil && status != http.StatusServiceUnavailable && status != http.StatusConflict:
			r.Errorf("produce: %d %s", status, text)
			return
		}
		after(5 * time.Millisecond)
	}
	r.Errorf("partition %d could not be written to for %v", p, patience)
}

// work is a worker. It takes, works and acks, and vanishes now and then; then another is in its place.
func (r *leaseRun) work() {
	for r.ctx.Err() == nil {
		ctx, cancel := r.ctx, func() {}
		if !r.calm.Load() && rand.IntN(10) == 0 {
			ctx, cancel = context.WithTimeout(r.ctx, time.Duration(rand.IntN(300))*time.Millisecond)
		}
		for _, l := range r.take(ctx) {
			r.process(ctx, &l)
		}
		if ctx.Err() != nil {
			r.cut.Add(1)
		}
		cancel()
	}
}

// take asks for work.
func (r *leaseRun) take(ctx context.Context) []lease {
	var before [leasePartitions]int64
	for p := range before {
		r.parts[p].Lock()
		before[p] = r.parts[p].acked
		r.parts[p].Unlock()
	}
	status, text, err := r.call(ctx, http.MethodPost, "/v1/groups/g%2F1/leases", map[string]any{
		"topics": []string{"t"}, "max_partitions": 1 + rand.IntN(3), "max_records": 1 + rand.IntN(40), "lease_ms": leaseSpan.Milliseconds(), "wait_ms": 1000,
	})
	now := time.Now()
	switch {
	case err != nil || status == http.StatusServiceUnavailable:
		after(time.Duration(rand.IntN(20)) * time.Millisecond) // it is being killed, or starts
		return nil
	case status != http.StatusOK:
		r.Errorf("take: %d %s", status, text)
		return nil
	}
	var answer struct{ Leases []lease }
	if err := json.Unmarshal(text, &answer); err != nil {
		r.Errorf("take: %v: %.300s", err, text)
		return nil
	}
	r.takes.Add(int64(len(answer.Leases)))
	for i := range answer.Leases {
		l := &answer.Leases[i]
		part := &r.parts[l.Partition]
		part.Lock()
		if l.First < before[l.Partition] || l.First > part.asked || l.Next <= l.First {
			r.Errorf("partition %d: a lease of [%d, %d), acked was %d before, asked for %d", l.Partition, l.First, l.Next, before[l.Partition], part.asked)
		}
		part.Unlock()
		if now.UnixMilli() > l.Deadline+leaseSlack.Milliseconds() || l.Deadline > now.Add(leaseSpan+time.Second).UnixMilli() {
			r.Errorf("partition %d: deadline %d at %d", l.Partition, l.Deadline, now.UnixMilli())
		}
		if len(l.Records) != int(l.Next-l.First) {
			r.Errorf("partition %d: a lease of [%d, %d) has %d records", l.Partition, l.First, l.Next, len(l.Records))
		}
		for k, rec := range l.Records {
			var value struct{ P, N int64 }
			if err := json.Unmarshal(rec.Value, &value); err != nil || rec.Offset != l.First+int64(k) || value.N != rec.Offset || value.P != int64(l.Partition) {
				r.Errorf("partition %d: record %d of a lease from %d: %d %s", l.Partition, k, l.First, rec.Offset, rec.Value)
			}
		}
	}
	for i := range answer.Leases {
		answer.Leases[i].begin(r, now)
	}
	return answer.Leases
}

// begin notes a lease, which lives to its deadline unless somebody ends it.
func (l *lease) begin(r *leaseRun, now time.Time) {
	part := &r.parts[l.Partition]
	part.Lock()
	defer part.Unlock()
	part.leases = append(part.leases, leaseSeen{interval: interval{now, time.UnixMilli(l.Deadline)}, id: l.ID, first: l.First, upto: l.First, backlog: true})
}

// seen finds the note of a lease, for who holds the lock.
func (part *leasedPartition) seen(l *lease) *leaseSeen {
	for i := len(part.leases) - 1; i >= 0; i-- {
		if part.leases[i].id == l.ID {
			return &part.leases[i]
		}
	}
	return nil
}

// process works on the records of a lease and acks them, in one or two parts, or vanishes.
func (r *leaseRun) process(ctx context.Context, l *lease) {
	calm := r.calm.Load()
	upto := l.Next
	if !calm {
		switch rand.IntN(12) {
		case 0, 1: // vanishes before it has done anything, or after half of it
			r.abandoned.Add(1)
			r.parts[l.Partition].did(l.First, l.First+(l.Next-l.First)/2)
			return
		case 2, 3:
			upto = l.First + rand.Int64N(l.Next-l.First+1)
		case 4:
			if !r.extend(ctx, l) {
				return
			}
		}
		if rand.IntN(60) == 0 { // is too slow
			after(time.Until(time.UnixMilli(l.Deadline)) + 50*time.Millisecond)
		}
	}
	r.parts[l.Partition].did(l.First, upto)
	if upto < l.Next && !r.ack(ctx, l, upto, false) {
		return
	}
	r.parts[l.Partition].did(upto, l.Next)
	r.ack(ctx, l, l.Next, true)
}

// did notes that records were worked on. They come in order, so there is no gap.
func (part *leasedPartition) did(from, to int64) {
	part.Lock()
	defer part.Unlock()
	if from <= part.processed {
		part.processed = max(part.processed, to)
	}
}

// extend asks for more time. A lease that is not lost gets it.
func (r *leaseRun) extend(ctx context.Context, l *lease) (good bool) {
	status, text, err := r.call(ctx, http.MethodPost, "/v1/groups/g%2F1/leases/"+l.ID+":extend", map[string]any{})
	var answer struct{ Deadline int64 }
	switch {
	case err != nil || status == http.StatusServiceUnavailable:
		return true
	case status != http.StatusOK:
		return !r.refused(l, status, text)
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Deadline < l.Deadline {
		r.Errorf("extend: deadline %d, was %d: %v", answer.Deadline, l.Deadline, err)
	}
	part := &r.parts[l.Partition]
	part.Lock()
	defer part.Unlock()
	l.Deadline = answer.Deadline
	part.seen(l).to = time.UnixMilli(l.Deadline)
	return true
}

// refused looks at an answer that is no success: a lease may be lost, but only once its time is over.
func (r *leaseRun) refused(l *lease, status int, text []byte) bool {
	left := time.Until(time.UnixMilli(l.Deadline))
	if status != http.StatusConflict || !bytes.Contains(text, []byte(`"code":"lease_lost"`)) || left > 0 {
		r.Errorf("partition %d: a lease is refused %v before its deadline: %d %s", l.Partition, left, status, text)
	}
	r.lost.Add(1)
	return true
}

// ack commits what was done, and asks again while the answer is lost. last says that the lease ends with it.
func (r *leaseRun) ack(ctx context.Context, l *lease, upto int64, last bool) (good bool) {
	part := &r.parts[l.Partition]
	part.Lock()
	part.asked = max(part.asked, upto)
	if seen := part.seen(l); last && seen != nil {
		if now := time.Now(); now.Before(seen.to) {
			seen.to = now
		}
		seen.upto, seen.backlog = upto, part.fed > upto
	}
	part.Unlock()
	for ctx.Err() == nil {
		status, text, err := r.call(ctx, http.MethodPost, "/v1/groups/g%2F1/leases/"+l.ID+":ack", map[string]any{"upto": fmt.Sprint(upto)})
		switch {
		case status == http.StatusOK:
			part.Lock()
			part.acked = max(part.acked, upto)
			part.Unlock()
			r.acks.Add(1)
			return true
		case err == nil && status != http.StatusServiceUnavailable:
			r.refused(l, status, text)
			return false
		}
		after(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
	return false
}

// done is nil once all that was written is committed.
func (r *leaseRun) done() error {
	if r.Failed() {
		return nil
	}
	status, text, err := r.call(r.ctx, http.MethodGet, "/v1/groups/g%2F1/offsets", nil)
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("%d %s: %w", status, text, err)
	}
	var answer struct {
		Items []struct {
			Partition int
			Offset    int64
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return err
	}
	var got [leasePartitions]int64
	for _, item := range answer.Items {
		got[item.Partition] = item.Offset
	}
	for p := range r.parts {
		if want := r.parts[p].fed; got[p] != want {
			return fmt.Errorf("partition %d is committed up to %d of %d", p, got[p], want)
		}
	}
	return nil
}

// judge looks at what was seen of each partition.
func (r *leaseRun) judge() {
	var worst time.Duration
	for p := range r.parts {
		part := &r.parts[p]
		if part.processed < part.fed {
			r.Errorf("partition %d: records were worked on up to %d of %d", p, part.processed, part.fed)
		}
		slices.SortFunc(part.leases, func(a, b leaseSeen) int { return a.from.Compare(b.from) })
		for i := 1; i < len(part.leases); i++ {
			a, b := &part.leases[i-1], &part.leases[i]
			if b.from.Before(a.to) {
				r.Errorf("partition %d: a lease from %d was handed out %v before that from %d was over", p, b.first, a.to.Sub(b.from), a.first)
			}
			if b.first < a.first {
				r.Errorf("partition %d: a lease from %d after one from %d", p, b.first, a.first)
			}
			idle := b.from.Sub(a.to) - r.downtime(a.to, b.from)
			if a.backlog && idle > leaseSpan+leaseSlack {
				r.Errorf("partition %d: idle for %v with work from %d on", p, idle, a.upto)
			}
			if a.backlog {
				worst = max(worst, idle)
			}
		}
	}
	r.Logf("the longest that a partition with work was idle: %v", worst.Round(time.Millisecond))
}

// downtime is how long there was no server in a span of time.
func (r *leaseRun) downtime(from, to time.Time) (sum time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.mu.down {
		if begin, end := maxTime(from, d.from), minTime(to, d.to); end.After(begin) {
			sum += end.Sub(begin)
		}
	}
	return sum
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
