package storage

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// The bounds of one group: appends beyond them wait for the next.
const (
	groupBatches = 256
	groupBytes   = 4 << 20
)

// queue lines up the appends of one log. Whoever finds it idle leads: it writes
// its own batch and all that wait, then hands the lead to one that came
// meanwhile. So an idle log writes at once and a busy one writes few large
// pieces, and nobody waits for a timer. Its length is bounded by the requests
// in flight, which the doors bound.
type queue struct {
	mu struct {
		sync.Mutex
		busy    bool
		waiting []*pending
	}
}

// pending is an append that was checked and waits for its write.
type pending struct {
	Append
	cfg   *Config
	stamp int64
	// turn tells one that waits in line that it leads now (true) or is done
	// (false).
	turn chan bool
	done Appended
	err  error
}

// join puts p in line and reports whether it leads at once; then it is not in
// the line.
func (q *queue) join(p *pending) (leads bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mu.busy {
		q.mu.busy = true
		return true
	}
	p.turn = make(chan bool, 1)
	q.mu.waiting = append(q.mu.waiting, p)
	return false
}

// take is the group of leader: itself, and of those in line as many as the
// bounds allow.
func (q *queue) take(leader *pending) []*pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, bytes := 0, len(leader.Batch)
	for n < len(q.mu.waiting) && n+1 < groupBatches && bytes+len(q.mu.waiting[n].Batch) <= groupBytes {
		bytes += len(q.mu.waiting[n].Batch)
		n++
	}
	group := append([]*pending{leader}, q.mu.waiting[:n]...)
	rest := copy(q.mu.waiting, q.mu.waiting[n:])
	clear(q.mu.waiting[rest:])
	q.mu.waiting = q.mu.waiting[:rest]
	return group
}

// pass is the next leader, taken out of the line, or nil: the queue is idle.
func (q *queue) pass() *pending {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.waiting) == 0 {
		q.mu.busy = false
		return nil
	}
	next := q.mu.waiting[0]
	rest := copy(q.mu.waiting, q.mu.waiting[1:])
	q.mu.waiting[rest] = nil
	q.mu.waiting = q.mu.waiting[:rest]
	return next
}

// lead writes p and those behind it, and hands the lead on.
func (l *Log) lead(p *pending) {
	members := l.queue.take(p)
	held := l.ready()
	defer l.dir.files.release(held)
	if fatal := l.writeAll(members); fatal != nil {
		// Before the next one leads: nothing may be written behind bytes that
		// could not be cut off.
		l.dir.fail(fatal)
	}
	if next := l.queue.pass(); next != nil {
		next.turn <- true
	}
	for _, m := range members[1:] {
		m.turn <- false
	}
}

// ready opens the active segment's file, if that is not open, before writing is
// locked, because it may have to wait for a descriptor; nil if there is none or
// the segment has ended meanwhile, which the write will see for itself.
func (l *Log) ready() *handle {
	l.mu.RLock()
	seg := l.activeLocked()
	l.mu.RUnlock()
	h, err := l.dir.files.acquireInTime(seg)
	if err != nil {
		return nil
	}
	return h
}

// writeAll gives each batch its place, or its error. fatal is for the
// directory: it is handed up because no lock may be held when that fails.
func (l *Log) writeAll(members []*pending) (fatal error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	g := group{
		log: l, now: l.dir.opts.Now(),
		members: make([]*pending, 0, len(members)), bufs: make([][]byte, 0, len(members)),
	}
	for _, p := range members {
		if p.err = g.add(p); p.err != nil {
			p.done = Appended{}
		}
	}
	g.flush()
	return g.fatal
}

// group is batches that have their offsets and are not written yet. All are
// for one segment. It lives while writing is held.
type group struct {
	log     *Log
	now     time.Time
	seg     *segment
	members []*pending
	bufs    [][]byte
	bytes   int64
	next    int64 // offset after the last member
	fatal   error // a write that could not be undone
}

// add checks p against the log's state, sets its offsets, and keeps it for the
// next flush. A duplicate is answered at once.
func (g *group) add(p *pending) error {
	l, b := g.log, p.Batch
	if err := l.dir.Failed(); err != nil {
		return err
	}
	if l.dir.closing.Load() {
		return ErrClosed
	}
	if l.fenced.Load() {
		return ErrDamaged
	}
	// A producer's state follows its batches only once they are written.
	if g.holds(b.ProducerID()) {
		g.flush()
	}
	if g.fatal != nil {
		return ErrFailed
	}
	v, err := l.judge(p.sequence(), g.now)
	if err != nil {
		return err
	}
	if v.duplicate {
		p.done = Appended{Base: v.base, Last: v.last, Start: l.Offsets().Start, Timestamp: v.timestamp, Duplicate: true}
		return nil
	}
	if err := g.makeRoom(p); err != nil {
		return err
	}
	b.SetBaseOffset(g.next)
	b.SetLeaderEpoch(p.Epoch)
	g.members, g.bufs = append(g.members, p), append(g.bufs, b)
	g.bytes += int64(len(b))
	g.next = b.NextOffset()
	return nil
}

// holds reports whether a member is of the idempotent producer.
func (g *group) holds(pid int64) bool {
	if pid < 0 {
		return false
	}
	for _, m := range g.members {
		if m.Batch.ProducerID() == pid {
			return true
		}
	}
	return false
}

// sequence is what the producer state must know of the batch.
func (p *pending) sequence() sequence {
	return sequenceOf(p.Batch, p.stamp)
}

// judge says what to do with a batch that is about to be appended. writing must
// be held.
func (l *Log) judge(s sequence, now time.Time) (verdict, error) {
	if s.keyed() {
		return l.keys.check(s, now)
	}
	return l.writing.producers.check(s, now)
}

// learn folds in a batch that was appended. writing must be held.
func (l *Log) learn(s sequence, now time.Time) {
	if s.keyed() {
		l.keys.record(s, now)
		return
	}
	l.writing.producers.record(s, now)
}

// makeRoom sees to it that p fits behind the members, and begins a new segment
// if the active one must end first. Only the holder of writing changes a
// segment's numbers, so they are read here without mu.
func (g *group) makeRoom(p *pending) error {
	g.begin()
	if g.mustRoll(p) {
		g.flush()
		if g.fatal != nil {
			return ErrFailed
		}
		g.begin()
		if g.mustRoll(p) {
			var err error
			if g.seg, err = g.log.roll(g.seg); err != nil {
				return err
			}
		}
	}
	if g.next > math.MaxInt64-int64(p.Batch.LastOffsetDelta())-1 {
		return fmt.Errorf("append at offset %d: %w: no offsets are left", g.next, ErrFull)
	}
	return nil
}

// begin takes the active segment if the group is empty.
func (g *group) begin() {
	if len(g.members) > 0 {
		return
	}
	g.log.mu.RLock()
	g.seg = g.log.activeLocked()
	g.log.mu.RUnlock()
	g.next = g.seg.next
}

func (g *group) mustRoll(p *pending) bool {
	t, first := g.seg.tail, g.seg.firstAppend
	if t.size == 0 {
		first = g.now.UnixMilli()
	}
	t.size += g.bytes
	t.next = g.next
	return shouldRoll(&t, first, int64(len(p.Batch)), int64(p.Batch.LastOffsetDelta()), g.now.UnixMilli(), p.cfg)
}

// flush writes the members in one piece and publishes them. If that fails none
// is appended and each has the error.
func (g *group) flush() {
	if len(g.members) == 0 {
		return
	}
	h, err := g.store()
	if err == nil {
		g.publish(h)
	}
	for _, m := range g.members {
		m.err = err
	}
	clear(g.members)
	clear(g.bufs)
	g.members, g.bufs, g.bytes = g.members[:0], g.bufs[:0], 0
}

// store writes the members behind the segment's last batch. If that fails the
// file is cut back; if that fails, too, the error is fatal.
func (g *group) store() (*handle, error) {
	l, seg := g.log, g.seg
	h, err := l.dir.files.acquire(seg)
	if err != nil {
		return nil, writeError(seg, err)
	}
	if cfg := g.members[0].cfg; cfg.syncEach() {
		l.dir.preallocate(seg, h, g.bytes, cfg, g.now.UnixMilli())
	}
	l.dir.metrics.writes.Inc()
	began := time.Now()
	_, err = h.WriteVec(g.bufs, seg.size)
	l.dir.metrics.writeSeconds.Observe(time.Since(began).Seconds())
	if err == nil {
		if grown := seg.size + g.bytes - seg.allocated; grown > 0 {
			seg.allocated += grown
			l.dir.slack.Add(grown)
		}
		l.dir.slack.Add(-g.bytes)
		return h, nil
	}
	err = writeError(seg, err)
	if undo := h.Truncate(seg.size); undo != nil {
		g.fatal = fmt.Errorf("undo the append to %s: %w", seg.logPath(), undo)
		err = fmt.Errorf("%w: %w", ErrFailed, err)
	} else {
		l.dir.slack.Add(seg.size - seg.allocated)
		seg.allocated = seg.size
	}
	l.dir.files.release(h)
	return nil, err
}

// publish makes the members visible and hands h over to the segment until the
// next sync.
func (g *group) publish(h *handle) {
	l, seg := g.log, g.seg
	// The checksums of many batches take a while: readers need not wait.
	grown := seg.tail
	for _, m := range g.members {
		l.learn(m.sequence(), g.now)
		if m.Batch.ProducerID() >= 0 {
			l.writing.unsaved += int64(len(m.Batch))
		}
		grown.extend(m.Batch, m.cfg.IndexInterval)
	}
	l.mu.Lock()
	pos := seg.size
	for _, m := range g.members {
		b := m.Batch
		l.mu.recent.add(point{offset: b.BaseOffset(), pos: pos})
		pos += int64(len(b))
		if !m.cfg.syncEach() {
			l.owe(int64(len(b)), int64(b.LastOffsetDelta())+1)
		}
		l.mu.epoch = b.LeaderEpoch()
		l.mu.epochs.add(b.LeaderEpoch(), b.BaseOffset())
		m.done = Appended{Base: b.BaseOffset(), Last: b.LastOffset(), Start: l.mu.start, Timestamp: m.stamp}
	}
	seg.tail = grown
	seg.lastAppend = g.now.UnixMilli()
	if seg.firstAppend == 0 {
		seg.firstAppend = seg.lastAppend
		l.dir.keeper.rolls.by(l.overLocked())
	}
	if seg.pin == nil {
		seg.pin, h = h, nil
	}
	l.mu.end = seg.next
	l.mu.changed = true
	l.mu.Unlock()
	if l.writing.unsaved >= snapshotTraffic {
		l.takeSnapshot(grown.next)
	}
	l.dir.metrics.logBytes.Add(float64(g.bytes))
	l.dir.files.release(h)
}

// owe counts what a page-cache-mode log must flush some time. mu must be held.
func (l *Log) owe(bytes, records int64) {
	if l.mu.lazy.records == 0 {
		l.mu.lazySince = l.dir.clock()
	}
	l.mu.lazy.bytes += bytes
	l.mu.lazy.records += records
	l.dir.flusher.lazyBytes.Add(bytes)
}

// writeError tells a full disk from other refusals.
func writeError(seg *segment, err error) error {
	kind := ErrWrite
	if noSpace(err) {
		kind = ErrFull
	}
	return fmt.Errorf("append to %s: %w: %w", seg.logPath(), kind, err)
}
