package sim

import (
	"slices"
	"time"

	"leat/replication"
	"leat/storage/record"
)

// fetchWait is replica.fetch.wait.max.ms.
const fetchWait = 500 * time.Millisecond

// maxFetch is how many batches one answer has of a partition.
const maxFetch = 20

// fetcher pulls all that a node follows of one leader.
type fetcher struct {
	p      *process
	leader int32
	flying int
	again  bool // a timer runs
}

// fetchPart is what is asked of one partition.
type fetchPart struct {
	id partID
	// asked is what the core wants to ask, req what is sent.
	asked, req replication.FetchRequest
}

// fetchedPart is the answer.
type fetchedPart struct {
	id      partID
	resp    replication.FetchResponse
	batches []batch
	err     error
}

// pendingFetch waits at the leader until there is something to say.
type pendingFetch struct {
	p      *process
	parts  []fetchPart
	answer func([]fetchedPart)
	over   bool
	// hurry says that the follower has left something out that its disk has not
	// answered for: it must be let ask again soon.
	hurry bool
}

// fetchAll begins a fetch of each leader of whom there is something to ask.
func (p *process) fetchAll() {
	for _, r := range p.order {
		if r.core.Role() != replication.Follower || r.core.Leader() < 0 || r.core.Leader() == p.n.id {
			continue
		}
		l := r.core.Leader()
		f := p.fetchers[l]
		if f == nil {
			f = &fetcher{p: p, leader: l}
			p.fetchers[l] = f
		}
		f.fetch()
	}
}

// fetch asks the leader, unless that is under way.
func (f *fetcher) fetch() {
	p := f.p
	if f.flying > 0 {
		return
	}
	var parts []fetchPart
	hurry := false
	for _, r := range p.order {
		if r.cutting || r.core.Role() != replication.Follower || r.core.Leader() != f.leader {
			continue
		}
		if p.w.cfg.durable(r.id.Topic) && !p.w.cfg.eager && r.log.durable < r.log.end {
			hurry = true
			continue // its offset alone acknowledges
		}
		if req, ok := r.core.NextFetch(p.now()); ok {
			part := fetchPart{id: r.id, asked: req, req: req}
			part.req.BrokerEpoch = p.epoch()
			if !p.w.cfg.eager {
				part.req.Flushed = -1
			}
			parts = append(parts, part)
		}
	}
	if len(parts) == 0 {
		f.later(20 * time.Millisecond)
		return
	}
	f.flying++
	n, sent := p.w.node(f.leader), p.w.now
	call(p.w.net, p.life, p.n.addr(), n.addr(), fetchWait+time.Second, func(answer func([]fetchedPart)) {
		if p.w.now-sent >= veryLate {
			p.w.counts.staleFetches++
		}
		n.fetch(parts, hurry, answer)
	},
		func(got []fetchedPart, err error) {
			f.flying--
			f.take(parts, got, err)
		})
}

// later comes back to what could not be asked now.
func (f *fetcher) later(d time.Duration) {
	if f.again {
		return
	}
	f.again = true
	f.p.in(d, func() {
		f.again = false
		f.fetch()
	})
}

// take has the cores judge an answer, and does what they say.
func (f *fetcher) take(parts []fetchPart, got []fetchedPart, err error) {
	p := f.p
	for i := range parts {
		r := p.replicas[parts[i].id]
		if r == nil || r.cutting {
			continue
		}
		var g fetchedPart
		e := err
		if e == nil {
			g, e = got[i], got[i].err
		}
		if !r.act(&parts[i].asked, &g, e) {
			return
		}
	}
	f.fetch()
}

// act does what the core makes of an answer. It reports whether the process is
// still there.
func (r *replica) act(asked *replication.FetchRequest, got *fetchedPart, err error) bool {
	p := r.p
	r.before = r.core.HighWatermark()
	a := r.core.Fetched(asked, &got.resp, err, p.now())
	switch a.Kind {
	case replication.Append:
		if err := r.follow(got.batches); err != nil {
			r.core.Undid(err, p.now())
		} else {
			start, _ := r.core.Did(a, &got.resp, p.now())
			r.raise(start)
		}
		r.moved()
	case replication.Truncate, replication.Restart:
		r.cut(a, got)
	case replication.Raise:
		r.raise(a.Offset)
		r.core.Did(a, &got.resp, p.now())
		r.moved()
	case replication.Fail:
		p.w.failed("Fetched", "a follower gave up")
	case replication.Ignore:
	}
	return !p.over
}

// follow appends what the leader sent.
func (r *replica) follow(batches []batch) error {
	for i := range batches {
		if err := r.p.n.disk.write(); err != nil {
			return err
		}
		if !batches[i].sound() {
			return record.ErrCorrupt
		}
		at, err := r.log.append(batches[i])
		if err != nil {
			return err
		}
		r.appended(at)
	}
	return nil
}

// cut shortens the log, or empties it.
func (r *replica) cut(a replication.Action, got *fetchedPart) {
	p := r.p
	r.cutting, r.log.cutting, r.log.hw = true, a.Offset, min(r.log.hw, a.Offset)
	p.n.disk.sync(p.life, func(_ time.Duration, err error) {
		if err != nil {
			p.failed()
			return
		}
		r.cutting = false
		if r.closed {
			return
		}
		r.shorten(a)
		start, _ := r.core.Did(a, &got.resp, p.now())
		r.raise(start)
		p.w.checks.cut(p.n.id, r.id, r.log.end, r.before)
		if r.groups != nil {
			r.groups.check()
		}
		r.moved()
		if d := r.later; d != nil {
			r.later = nil
			r.decide(d.part, d.state)
		}
		p.fetchAll()
	})
}

// shorten does in memory what the disk has done.
func (r *replica) shorten(a replication.Action) {
	w := r.p.w
	if a.Kind == replication.Restart {
		w.counts.restarts++
		r.log.restart(a.Offset)
	} else {
		w.counts.truncations++
		r.log.truncate(a.Offset)
	}
	if a.BelowHW {
		w.counts.belowHW++
	}
	if w.tracing() {
		w.trace("node %d: %s: %v, hw before %d", r.p.n.id, short(r.id), a, r.before)
	}
}

// raise moves the start of the log up to that of the leader's.
func (r *replica) raise(start int64) {
	if start >= 0 {
		r.log.raise(start)
	}
}

// fetch is a follower's request.
func (n *node) fetch(parts []fetchPart, hurry bool, answer func([]fetchedPart)) {
	p := n.p
	if p == nil {
		return
	}
	f := &pendingFetch{p: p, parts: parts, answer: answer, hurry: hurry}
	atOnce := false
	for i := range parts {
		r := p.replicas[parts[i].id]
		if r == nil || r.cutting {
			atOnce = true
			continue
		}
		resp, _, err := r.core.Fetch(&parts[i].req, p.now())
		atOnce = atOnce || err != nil || resp.Diverging != nil || f.news(r, &parts[i].req)
		r.moved()
	}
	if p.over {
		return
	}
	if atOnce {
		f.finish()
		return
	}
	for i := range parts {
		r := p.replicas[parts[i].id]
		r.fetches = append(r.fetches, f)
	}
	p.in(f.wait(), f.finish)
}

// wait is how long there may be nothing to say. A follower whose disk is behind
// must be let ask again soon: only so it can say that it has caught up.
func (f *pendingFetch) wait() time.Duration {
	if f.hurry {
		return 2 * time.Millisecond
	}
	for i := range f.parts {
		if req := &f.parts[i].req; req.Flushed >= 0 && req.Flushed < req.Offset {
			return 2 * time.Millisecond
		}
	}
	return fetchWait
}

// news reports whether there is something to say to a follower.
func (f *pendingFetch) news(r *replica, req *replication.FetchRequest) bool {
	return r.log.end > req.Offset || r.core.HighWatermark() > req.HW
}

// answerFetches answers those for whom there is something new; all, if the epoch
// has changed.
func (r *replica) answerFetches(all bool) {
	for _, f := range slices.Clone(r.fetches) {
		for i := range f.parts {
			if f.parts[i].id == r.id && (all || f.news(r, &f.parts[i].req)) {
				f.finish()
				break
			}
		}
	}
}

// finish answers a fetch with what there is by now.
func (f *pendingFetch) finish() {
	if f.over {
		return
	}
	f.over = true
	p := f.p
	got := make([]fetchedPart, len(f.parts))
	var risen []*replica
	for i := range f.parts {
		part := &f.parts[i]
		g := &got[i]
		g.id = part.id
		r := p.replicas[part.id]
		if r == nil || r.cutting {
			g.err = errNotHere
			continue
		}
		r.fetches = slices.DeleteFunc(r.fetches, func(o *pendingFetch) bool { return o == f })
		var rose bool
		if g.resp, rose, g.err = r.core.Fetch(&part.req, p.now()); rose {
			risen = append(risen, r)
			p.w.checks.moved(p.n.id, r.id)
		}
		if g.err == nil && g.resp.Diverging == nil {
			if g.err = p.n.disk.read(); g.err == nil {
				g.batches, g.err = r.log.read(part.req.Offset, r.log.end, maxFetch)
			}
		}
	}
	f.answer(got)
	for _, r := range risen {
		r.moved()
	}
	for i := range got {
		p.damaged(got[i].err)
	}
}
