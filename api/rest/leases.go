package rest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"leat/api"
	"leat/broker"
	"leat/storage/record"
)

// takeRequest is the body that asks for work. What is left out has the broker's
// default.
type takeRequest struct {
	Topics        []string `json:"topics"`
	From          *string  `json:"from"`
	MaxPartitions *int64   `json:"max_partitions"`
	MaxRecords    *int64   `json:"max_records"`
	MaxBytes      *int64   `json:"max_bytes"`
	LeaseMS       *int64   `json:"lease_ms"`
	WaitMS        *int64   `json:"wait_ms"`
	MaxDeliveries *int64   `json:"max_deliveries"`
	DeadLetter    *string  `json:"dead_letter_topic"`
	Ack           []string `json:"ack"`
}

// member is a number of a body in [least, most], or 0 where it is not given.
func member(name string, v *int64, least, most int64) (int, error) {
	if v == nil {
		return 0, nil
	}
	if *v < least || *v > most {
		return 0, api.InvalidParameter(name, fmt.Sprintf("want a whole number from %d to %d", least, most))
	}
	return int(*v), nil
}

// span is a number of milliseconds of a body, likewise.
func span(name string, v *int64, least, most time.Duration) (time.Duration, error) {
	n, err := member(name, v, least.Milliseconds(), most.Milliseconds())
	return time.Duration(n) * time.Millisecond, err
}

// read makes the broker's request of the body.
func (t *takeRequest) read(r *http.Request) (*broker.LeaseRequest, error) {
	out := &broker.LeaseRequest{Topics: t.Topics}
	if len(t.Topics) == 0 || len(t.Topics) > broker.MaxLeases {
		return nil, api.InvalidParameter("topics", fmt.Sprintf("want the names of 1 to %d topics", broker.MaxLeases))
	}
	if len(t.Ack) > broker.MaxLeases {
		return nil, api.InvalidParameter("ack", fmt.Sprintf("want at most %d ids of leases", broker.MaxLeases))
	}
	if t.From != nil {
		switch *t.From {
		case api.FromEarliest:
		case api.FromLatest:
			out.From = broker.FromLatest
		default:
			return nil, api.InvalidParameter("from", "want earliest or latest")
		}
	}
	var err error
	for _, m := range []struct {
		name string
		v    *int64
		most int64
		into *int
	}{
		{"max_partitions", t.MaxPartitions, broker.MaxLeases, &out.MaxPartitions},
		{"max_records", t.MaxRecords, broker.MaxLeaseRecords, &out.MaxRecords},
		{"max_bytes", t.MaxBytes, broker.MaxLeaseBytes, &out.MaxBytes},
		{"max_deliveries", t.MaxDeliveries, broker.MaxDeliveries, &out.MaxDeliveries},
	} {
		if *m.into, err = member(m.name, m.v, 1, m.most); err != nil {
			return nil, err
		}
	}
	if out.Lease, err = span("lease_ms", t.LeaseMS, broker.MinLease, broker.MaxLease); err != nil {
		return nil, err
	}
	if out.Wait, err = span("wait_ms", t.WaitMS, 0, broker.MaxLeaseWait); err != nil {
		return nil, err
	}
	if n, err := strconv.ParseUint(prefer(r, "wait"), 10, 31); err == nil && t.WaitMS == nil {
		out.Wait = min(time.Duration(n)*time.Second, broker.MaxLeaseWait)
	}
	if t.DeadLetter != nil {
		out.DeadLetter = *t.DeadLetter
		return out, broker.CheckTopicName(out.DeadLetter)
	}
	return out, nil
}

// takeLeases hands out work: records of partitions that nobody works on, each
// partition to one worker for a time. It waits for some if there are none. While
// the server drains nothing is handed out, and those who wait are told at once
// that there is nothing: they come back, to another node or a later process.
func (s *Server) takeLeases(w *responseWriter, r *http.Request) error {
	group, err := groupParam(r)
	if err != nil {
		return err
	}
	ps, err := parseParams(r, "as")
	if err != nil {
		return err
	}
	var form api.Form
	if _, given := ps.get("as"); given {
		if form.As, err = ps.choice("as", api.AsJSON, api.AsString, api.AsBase64); err != nil {
			return err
		}
	}
	if _, err := requestMedia(w, r, "Accept-Post", mediaJSON); err != nil {
		return err
	}
	var body takeRequest
	if err := s.readJSON(w, r, &body); err != nil {
		return err
	}
	req, err := body.read(r)
	if err != nil {
		return err
	}
	for _, topic := range req.Topics {
		if err := s.knownTopic(r, topic); err != nil {
			return err
		}
	}
	ctx, done := s.waitContext(r.Context())
	defer done()
	leases, acks, err := s.broker.AckAndTakeLeases(ctx, principal(r), group, req, body.Ack)
	if err != nil && (ctx.Err() == nil || r.Context().Err() != nil) {
		return err
	}
	if ctx.Err() != nil {
		w.Header().Set("Connection", "close")
	}
	a := &leaseAnswer{s: s, w: w, r: r, group: group, form: form, leases: leases, acks: acks, memory: s.holding(r)}
	defer a.release()
	return a.write()
}

// knownTopic is nil for a topic that there is.
func (s *Server) knownTopic(r *http.Request, name string) error {
	err := broker.CheckTopicName(name)
	if err == nil {
		_, err = s.broker.PartitionCount(principal(r), name)
	}
	if err != nil {
		return api.ProblemOf(err).At(name, api.AnyPartition)
	}
	return nil
}

// leaseAnswer is the answer to a take, under way.
type leaseAnswer struct {
	s      *Server
	w      *responseWriter
	r      *http.Request
	group  string
	form   api.Form
	leases []broker.Lease
	acks   []broker.LeaseAck
	plans  []api.Plan
	memory holding
}

func (a *leaseAnswer) release() {
	a.memory.release()
	for i := range a.leases {
		a.leases[i].Section.Release()
	}
}

// giveBack returns a lease of which the client was told nothing. It counts as
// delivered only if its records cannot be shown, so that no record goes to the
// dead letters because others left no memory for it.
func (a *leaseAnswer) giveBack(l *broker.Lease, delivered bool) {
	ctx := context.WithoutCancel(a.r.Context())
	// If that fails too, the lease ends by itself.
	if delivered {
		_, _ = a.s.broker.ReleaseLease(ctx, principal(a.r), a.group, l.ID, broker.ReleaseRequest{Upto: -1})
	} else {
		_ = a.s.broker.ReturnLease(ctx, principal(a.r), a.group, l.ID)
	}
}

func (a *leaseAnswer) walk(l *broker.Lease) *api.Walk {
	walk := api.NewWalk(l.Section, func(offset int64, err error) error {
		return a.s.broker.NoteDamage(l.Topic, l.Partition, offset, err)
	})
	walk.Bound(a.memory.hold)
	return walk
}

// plan looks through the records of a lease before any of them is sent.
func (a *leaseAnswer) plan(l *broker.Lease) (api.Plan, error) {
	if err := a.memory.hold(0); err != nil {
		return api.Plan{}, err
	}
	walk := a.walk(l)
	defer walk.Release()
	plan, err := api.PlanSection(walk, l.Partition, l.First, api.Limits{Records: math.MaxInt, Bytes: math.MaxInt}, nil)
	if err == nil && plan.End < l.Next {
		err = a.s.broker.NoteDamage(l.Topic, l.Partition, plan.End, broker.ErrCorruptBatch)
	}
	plan.End = l.Next
	return plan, err
}

// planAll keeps the leases whose records can be shown and gives the others back;
// it fails if there were only such, unless there are acks to tell of.
func (a *leaseAnswer) planAll() error {
	var failed error
	good := a.leases[:0]
	for _, l := range a.leases {
		plan, err := a.plan(&l)
		if err == nil {
			good, a.plans = append(good, l), append(a.plans, plan)
			continue
		}
		failed = api.ProblemOf(err).At(l.Topic, l.Partition)
		a.giveBack(&l, errors.Is(err, broker.ErrCorruptRecord))
		l.Section.Release()
	}
	if a.leases = good; len(good) == 0 && len(a.acks) == 0 {
		return failed
	}
	return nil
}

// write sends the leases with their records, a chunk at a time.
func (a *leaseAnswer) write() error {
	if err := a.planAll(); err != nil {
		return err
	}
	if err := a.r.Context().Err(); err != nil {
		for i := range a.leases {
			a.giveBack(&a.leases[i], false)
		}
		return err
	}
	a.w.Header().Set("Cache-Control", "no-store")
	out := newChunks(a.w, http.StatusOK, mediaJSON)
	defer out.release()
	out.text(`{"leases":[`)
	records := 0
	for i := range a.leases {
		if i > 0 {
			out.text(",")
		}
		n, err := a.lease(out, i)
		records += n
		if err != nil {
			// What is out cannot be taken back, only broken off; what is not sent
			// is not known either.
			for k := i; k < len(a.leases); k++ {
				a.giveBack(&a.leases[k], k == i)
			}
			if !out.sent && i == 0 {
				return err
			}
			panic(http.ErrAbortHandler)
		}
	}
	out.text("]")
	a.writeAcks(out)
	out.text("}\n")
	a.s.metrics.recordsOut.Add(float64(records))
	out.finish()
	return nil
}

// writeAcks tells what became of the acks that came with the take.
func (a *leaseAnswer) writeAcks(out *chunks) {
	for i := range a.acks {
		if i == 0 {
			out.text(`,"acks":[{"lease_id":`)
		} else {
			out.text(`,{"lease_id":`)
		}
		ack := &a.acks[i]
		out.quote(ack.ID)
		if ack.Err != nil {
			out.problem(api.ProblemOf(ack.Err))
		} else {
			out.text(`,"topic":`)
			out.quote(ack.State.Topic)
			out.text(`,"partition":`)
			out.integer(int64(ack.State.Partition))
			out.text(`,"committed_offset":`)
			out.integer(ack.State.Committed)
			if ack.State.AlreadyCommitted {
				out.text(`,"already_committed":true`)
			}
		}
		out.text("}")
		if i == len(a.acks)-1 {
			out.text("]")
		}
		out.flushFull()
	}
}

// lease writes one lease.
func (a *leaseAnswer) lease(out *chunks, i int) (records int, err error) {
	l := &a.leases[i]
	out.text(`{"lease_id":"`)
	out.text(l.ID)
	out.text(`","topic":"`)
	out.text(l.Topic)
	out.text(`","topic_id":"`)
	out.text(l.TopicID.String())
	for _, m := range []struct {
		name string
		n    int64
	}{
		{`","partition":`, int64(l.Partition)},
		{`,"first_offset":`, l.First},
		{`,"next_offset":`, l.Next},
		{`,"deadline":`, l.Deadline.UnixMilli()},
		{`,"lease_ms":`, l.Duration.Milliseconds()},
		{`,"delivery_count":`, int64(l.Deliveries)},
	} {
		out.text(m.name)
		out.integer(m.n)
	}
	if l.Gap.To > l.Gap.From {
		out.text(`,"gap":`)
		out.buf = appendGap(out.buf, gap{l.Partition, l.Gap.From, l.Gap.To})
	}
	out.text(`,"records":[`)
	walk := a.walk(l)
	defer walk.Release()
	err = walk.Each(a.plans[i], func(rec *record.Record) {
		if records++; records > 1 {
			out.text(",")
		}
		out.buf = api.AppendRecord(out.buf, l.Partition, rec, a.form)
		out.flushFull()
	})
	out.text("]}")
	return records, err
}
