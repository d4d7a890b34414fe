package rest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"leat/api"
	"leat/broker"
)

// readPartition answers with records of one partition, readTopic with those of
// a whole topic: once, waiting for some if there are none, or as a stream. HEAD
// has the headers of the GET that does not wait.
func (s *Server) readPartition(w *responseWriter, r *http.Request) error { return s.read(w, r, false) }

func (s *Server) readTopic(w *responseWriter, r *http.Request) error { return s.read(w, r, true) }

func (s *Server) read(w *responseWriter, r *http.Request, whole bool) error {
	o, err := readParams(r, whole)
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		o.wait = 0
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Add("Vary", "Accept")
	if o.clamped {
		h.Set("Applied-Max-Bytes", strconv.Itoa(o.maxBytes))
	}
	if o.waitCut {
		h.Set("Applied-Wait", strconv.Itoa(int(maxFetchWait.Seconds())))
	}
	if o.stop {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	ctx, done := s.waitContext(r.Context())
	defer done()
	if o.filterText != "" {
		o.filter, err = api.CompileFilter(ctx, s.broker, o.filterText)
	}
	switch {
	case err != nil:
	case o.stream:
		err = s.stream(ctx, w, r, o)
	default:
		f := &fetching{s: s, w: w, r: r, o: o, memory: s.holding(r)}
		err = f.run(ctx)
		f.release()
	}
	if err != nil {
		p := api.ProblemOf(err)
		if p.Partition == nil {
			p = p.At(o.topic, o.partition)
		}
		return p
	}
	return nil
}

// begin finds the topic and where to begin in it. An offset in a partition by
// itself needs no looking up.
func (s *Server) begin(ctx context.Context, r *http.Request, o *readOptions) (broker.Topic, []broker.TailStart, error) {
	if o.offset >= 0 && o.topicID == "" && !o.stream {
		return broker.Topic{Name: o.topic}, []broker.TailStart{{Partition: o.partition, Offset: o.offset}}, nil
	}
	t, err := s.broker.Topic(ctx, principal(r), broker.TopicRef{Name: o.topic})
	if err != nil {
		return t, nil, err
	}
	if o.topicID != "" && o.topicID != t.ID.String() {
		return t, nil, api.StreamReset(t.Name)
	}
	partitions := o.partitions
	switch {
	case !o.whole():
		partitions = []int32{o.partition}
	case partitions == nil && len(t.Partitions) > api.MaxCursorPartitions:
		return t, nil, tooMany(fmt.Sprintf("the topic has %d", len(t.Partitions)))
	}
	starts, err := o.place.Starts(ctx, s.broker, principal(r), t, partitions)
	if n := len(starts) + len(unread(o.cursor.At, starts)); err == nil && n > api.MaxCursorPartitions {
		err = tooMany(fmt.Sprintf("this and the one given have %d", n))
	}
	return t, starts, err
}

// gap is a range of offsets whose records are gone.
type gap struct {
	partition int32
	from, to  int64
}

// fetching is one answer under way.
type fetching struct {
	s     *Server
	w     *responseWriter
	r     *http.Request
	o     *readOptions
	topic broker.Topic
	// at are the positions, by partition; parts what was found there, in an
	// order of its own.
	at    []broker.TailStart
	parts []part
	gaps  []gap
	// scan is nil without a filter.
	scan   *scan
	memory holding
}

// part is what was found in one partition.
type part struct {
	broker.FetchResult
	index int // in at
	walk  *api.Walk
	plan  api.Plan
}

func (f *fetching) run(ctx context.Context) (err error) {
	if f.topic, f.at, err = f.s.begin(ctx, f.r, f.o); err != nil {
		return err
	}
	deadline := time.Now().Add(f.o.wait)
	if f.o.filter != nil {
		f.scan = f.s.newScan(f.o)
	}
	for {
		f.fetch(ctx, time.Until(deadline))
		jumped, err := f.jump(ctx)
		if err != nil {
			return err
		}
		if jumped {
			continue
		}
		if f.o.media == mediaBatch {
			f.headers(f.parts[0].next(f.at))
			f.s.sendBatches(f.w, f.r, f.parts[0].Section)
			return nil
		}
		records, moved, err := f.plans(ctx)
		if err != nil {
			return err
		}
		if records > 0 || !moved {
			return f.answer(records)
		}
		// The batches held no record, as compaction leaves them, or none that the
		// filter lets through: go on.
	}
}

// fetch reads all partitions. Nothing says which are most in need, and no
// server remembers, so they stand in a new order each time.
func (f *fetching) fetch(ctx context.Context, wait time.Duration) {
	f.release()
	most := f.o.maxBytes
	if f.scan != nil {
		most = max(most, scanBytes)
	}
	req := &broker.FetchRequest{MaxWait: wait, MinBytes: f.o.minBytes, MaxBytes: most}
	n := len(f.at)
	first := 0
	if n > 1 {
		first = rand.IntN(n)
	}
	f.parts = f.parts[:0]
	for k := range n {
		i := (first + k) % n
		f.parts = append(f.parts, part{index: i})
		req.Partitions = append(req.Partitions, broker.FetchPartition{
			Topic: f.topic.Name, TopicID: f.topic.ID, Partition: f.at[i].Partition, Offset: f.at[i].Offset,
			Epoch: -1, MaxBytes: most,
		})
	}
	for k, res := range f.s.broker.Fetch(ctx, principal(f.r), req) {
		f.parts[k].FetchResult = res
	}
}

func (f *fetching) release() {
	for i := range f.parts {
		p := &f.parts[i]
		p.endWalk()
		if p.Section != nil {
			p.Section.Release()
			p.Section = nil
		}
	}
	f.memory.release()
}

func (f *fetching) beginWalk(p *part) {
	if p.walk == nil {
		p.walk = api.NewWalk(p.Section, func(offset int64, err error) error {
			return f.s.broker.NoteDamage(f.o.topic, f.at[p.index].Partition, offset, err)
		})
		p.walk.Bound(f.memory.hold)
	}
}

func (p *part) endWalk() {
	if p.walk != nil {
		p.walk.Release()
		p.walk = nil
	}
}

// jump fails if a partition failed. Where records are gone it moves on, if it
// was asked to, and reports that it did.
func (f *fetching) jump(ctx context.Context) (jumped bool, err error) {
	for i := range f.parts {
		p := &f.parts[i]
		if p.Err == nil {
			continue
		}
		at := &f.at[p.index]
		to, err := f.s.overtaken(ctx, f.r, f.o, at.Partition, p.Err)
		if err != nil {
			return false, err
		}
		f.gaps = append(f.gaps, gap{at.Partition, at.Offset, to})
		at.Offset = to
		jumped = true
	}
	return jumped, nil
}

// overtaken is the offset to go on at after err, the error of a read, if it says
// that records are gone and on_gap lets the reader go on; else it is an error
// about the partition.
func (s *Server) overtaken(ctx context.Context, r *http.Request, o *readOptions, partition int32, err error) (int64, error) {
	oe, ok := errors.AsType[*broker.OffsetError](err)
	if ok && oe.Offset < oe.Start && o.onGap != gapFail {
		if o.onGap == gapEarliest {
			return oe.Start, nil
		}
		res := s.broker.ListOffsets(ctx, principal(r), []broker.OffsetQuery{
			{Topic: o.topic, Partition: partition, Timestamp: broker.OffsetLatest, Epoch: -1},
		})[0]
		if err = res.Err; err == nil {
			return res.Offset, nil
		}
	}
	if errors.Is(err, broker.ErrUnknownTopicID) {
		err = api.StreamReset(o.topic)
	}
	return 0, api.ProblemOf(err).At(o.topic, partition)
}

// plans is planAll, in its turn among the filters if there is one.
func (f *fetching) plans(ctx context.Context) (records int, moved bool, err error) {
	if f.scan == nil {
		return f.planAll()
	}
	if !f.scan.wants(f.parts) {
		return 0, false, nil
	}
	if ok, err := f.scan.begin(ctx); !ok {
		return 0, false, err
	}
	defer f.scan.end()
	records, moved, err = f.planAll()
	return records, moved && !f.scan.finished(), err
}

// planAll finds out which records the answer has, before its first byte is
// written. moved says that there were batches at all.
func (f *fetching) planAll() (records int, moved bool, err error) {
	if err := f.memory.hold(0); err != nil {
		return 0, false, err
	}
	left := api.Limits{Records: f.o.maxRecords, Bytes: f.o.maxBytes, Events: f.o.form.Events == api.EventsOnly}
	for i := range f.parts {
		p := &f.parts[i]
		at := &f.at[p.index]
		p.plan = api.Plan{From: at.Offset, End: at.Offset}
		if p.Section == nil || records > 0 && (left.Records < 1 || left.Bytes < 1) || f.scan.over() {
			continue
		}
		f.beginWalk(p)
		if p.plan, err = api.PlanSection(p.walk, at.Partition, at.Offset, left, f.scan.use()); err != nil {
			if moved && errors.Is(err, broker.ErrFilterBudget) {
				continue // the next fetch comes to it
			}
			return 0, false, api.ProblemOf(err).At(f.o.topic, at.Partition)
		}
		f.scan.count(&p.plan)
		if len(f.parts) > 1 {
			// Many windows would take the memory of the whole answer.
			p.endWalk()
		}
		records += p.plan.Records
		left.Records -= p.plan.Records
		left.Bytes -= p.plan.Bytes
		moved = moved || p.plan.End > at.Offset
		at.Offset = p.plan.End
	}
	return records, moved, nil
}

// next is where to read on behind the whole of the part.
func (p *part) next(at []broker.TailStart) int64 {
	if p.Section != nil {
		return p.Section.NextOffset()
	}
	return at[p.index].Offset
}
