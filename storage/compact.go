package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"leat/storage/record"
)

// defaultMapBytes is log.cleaner.dedupe.buffer.size.
const defaultMapBytes = 128 << 20

// CleanerOptions say what a Cleaner may use. Zero values are the defaults.
type CleanerOptions struct {
	// MapBytes bounds the map of keys; it takes 24 for each. Default 128 MiB.
	MapBytes int64
	// Pace is called with the bytes of each read and write, and waits for as
	// long as they should take; nil is as fast as it goes. Its error, which
	// should be ctx's only, ends the pass.
	Pace func(ctx context.Context, bytes int) error
}

// Cleaner has what compaction needs of memory, for one log at a time: the map
// of keys and the buffers. It is not safe for concurrent use.
type Cleaner struct {
	opts     CleanerOptions
	keys     keyMap
	rewriter record.Rewriter
	in, out  []byte
	emptied  []byte // a header
	filler   []byte
}

// keepBuffers is how large a Cleaner's buffers may be between two passes.
const keepBuffers = 8 << 20

// NewCleaner makes a Cleaner; it takes its memory as it needs it.
func NewCleaner(o CleanerOptions) *Cleaner {
	o.MapBytes = orElse(o.MapBytes, defaultMapBytes)
	if o.Pace == nil {
		o.Pace = func(ctx context.Context, _ int) error { return ctx.Err() }
	}
	return &Cleaner{opts: o, in: make([]byte, scanChunk), out: make([]byte, 0, rewriteBuffer)}
}

// trim gives back what was needed for a large log.
func (c *Cleaner) trim() {
	if len(c.keys.slots)*keySlotBytes > keepBuffers {
		c.keys.slots = nil
	}
	if len(c.in) > keepBuffers {
		c.in = make([]byte, scanChunk)
	}
}

// Compacted is what a pass did.
type Compacted struct {
	// From and To are the offsets of what was dirty and is clean now.
	From, To int64
	// Read and Written are bytes of batches; what is read twice counts twice.
	Read, Written int64
	// Kept and Removed are the records that were looked at.
	Kept, Removed int64
	// Before and After are the segments that were rewritten, and into how many.
	Before, After int
}

// Compact removes records for whose key there is a newer one, and tombstones
// whose time is over, from all segments that Dirt counts; if the map of keys is
// too small for all, a part, and the next pass does more. Readers find the same
// offsets as before, and sections in flight stay valid. It ends soon after ctx,
// the log or the directory does, or if segments leave the log by retention, and
// then what it did until then stands.
//
// Errors: *CorruptError for what cannot be read, which no later pass can
// either; ErrFull; ErrClosed; ctx's.
func (l *Log) Compact(ctx context.Context, c *Cleaner, bound int64) (Compacted, error) {
	if !l.enter() {
		return Compacted{}, ErrClosed
	}
	defer l.leave()
	if err := l.takeRewriting(ctx); err != nil {
		return Compacted{}, err
	}
	defer l.giveRewriting()
	if l.Fenced() {
		return Compacted{}, ErrDamaged
	}
	defer c.trim()
	began := time.Now()
	p := &pass{log: l, Cleaner: c, ctx: ctx, cfg: l.config.Load(), now: l.dir.opts.Now(), bound: bound}
	err := l.examined(p.run())
	m := &l.dir.metrics.compaction
	m.read.Add(float64(p.done.Read))
	m.written.Add(float64(p.done.Written))
	m.kept.Add(float64(p.done.Kept))
	m.removed.Add(float64(p.done.Removed))
	if errors.Is(err, errGivenUp) {
		err = nil
	}
	if err != nil || p.done.Before == 0 {
		return p.done, err
	}
	took := time.Since(began)
	m.seconds.Observe(took.Seconds())
	l.dir.opts.Logger.Info("log was compacted", slog.String("topic", l.name), slog.Int("partition", int(l.id.Partition)),
		slog.Int64("from_offset", p.done.From), slog.Int64("to_offset", p.done.To),
		slog.Int64("records_kept", p.done.Kept), slog.Int64("records_removed", p.done.Removed),
		slog.Int64("bytes_read", p.done.Read), slog.Int64("bytes_written", p.done.Written),
		slog.Int("segments_before", p.done.Before), slog.Int("segments_after", p.done.After), slog.Duration("took", took))
	return p.done, nil
}

// pass is one compaction of one log.
type pass struct {
	*Cleaner
	log    *Log
	ctx    context.Context // of the one call of Compact
	cfg    *Config
	now    time.Time
	bound  int64
	done   Compacted
	bundle bundle
	pos    int64 // of the batch that was read last
	// known is who the producers are; nil while nobody asked.
	known *idempotence
	// unpaced are bytes that were written and not paced yet.
	unpaced int
}

// run maps the keys of what is dirty and rewrites all up to there. If the map
// cannot even take the keys of one batch, it does so in several rounds: a batch
// is not divided, and the next pass has to begin with a whole one.
func (p *pass) run() error {
	segs, clean := p.log.compactable(p.now, p.bound)
	if clean == len(segs) {
		return nil
	}
	if !p.log.dir.room.has(segs[0].size) {
		return noRoomFor(segs[0]) // before all keys are read in vain
	}
	begin := segs[clean].base
	p.done.From, p.done.To = begin, begin
	from := begin
	for {
		to, boundary, err := p.mapKeys(segs[clean:], from)
		if err != nil {
			return err
		}
		if err := p.rewrite(segs, to, boundary); err != nil {
			return err
		}
		if boundary > begin {
			p.done.To = boundary
			return nil
		}
		from = to
		if segs, clean = p.log.compactable(p.now, p.bound); clean == len(segs) || segs[clean].base > begin {
			return errGivenUp
		}
	}
}

// mapKeys takes the keys of the records from an offset on into the map. The
// first one that it has no room for is at to, in the batch that begins at
// boundary; or both are behind all.
func (p *pass) mapKeys(segs []*segment, from int64) (to, boundary int64, err error) {
	last := segs[len(segs)-1].next
	p.keys.reset(p.opts.MapBytes, last-from)
	to = -1
	for _, s := range segs {
		err := p.each(s, func(b record.Batch) error {
			if b.NextOffset() <= from || b.Control() {
				return nil
			}
			err := p.rewriter.Each(b, maxStoredExpanded, func(e *record.Entry) bool {
				if e.Offset >= from && e.HasKey && !p.keys.put(e.Key, e.Offset) {
					to = e.Offset
				}
				return to < 0
			})
			if err == nil && to >= 0 {
				boundary, err = b.BaseOffset(), errMapFull
			}
			return p.about(s, b, err)
		})
		if errors.Is(err, errMapFull) {
			return to, boundary, nil
		}
		if err != nil {
			return 0, 0, err
		}
	}
	return last, last, nil
}

// errMapFull ends the reading when the map of keys is full.
var errMapFull = errors.New("the map of keys is full")

// about says that records of a batch whose checksum holds cannot be read.
func (p *pass) about(s *segment, b record.Batch, err error) error {
	if _, is := errors.AsType[*record.Error](err); is {
		return &CorruptError{Path: s.logPath(), Pos: p.pos, Err: fmt.Errorf("the batch at offset %d: %w", b.BaseOffset(), err)}
	}
	return err
}

// keep is the rule for a record of a batch that is below the boundary.
func (p *pass) keep(e *record.Entry, expired bool) bool {
	return e.HasKey && p.keys.newest(e.Key) <= e.Offset && (!e.Tombstone || !expired)
}

// rewrite applies the map to all segments that have something below to. What is
// at or behind boundary is not clean then.
func (p *pass) rewrite(segs []*segment, to, boundary int64) error {
	p.bundle = bundle{pass: p}
	defer func() { p.bundle.abandon() }()
	for _, s := range segs {
		if s.base >= max(to, boundary) {
			break
		}
		if p.bundle.full(s) {
			if err := p.bundle.end(); err != nil {
				return err
			}
		}
		if err := p.bundle.begin(s); err != nil {
			return err
		}
		err := p.each(s, func(b record.Batch) error { return p.batch(s, b, to, boundary) })
		if err != nil {
			return err
		}
	}
	return p.bundle.end()
}

// batch puts what stays of a batch into the bundle.
func (p *pass) batch(s *segment, b record.Batch, to, boundary int64) error {
	g := &p.bundle
	if b.BaseOffset() >= to || b.Control() {
		return g.add(b, b.BaseOffset() < boundary)
	}
	if b.Count() == 0 {
		return p.header(b, b, boundary)
	}
	keep := func(e *record.Entry) bool { return p.keys.newest(e.Key) <= e.Offset }
	horizon := int64(record.NoHorizon)
	if b.BaseOffset() < boundary {
		at, has := b.DeleteHorizon()
		expired := has && p.now.UnixMilli() >= at
		keep = func(e *record.Entry) bool { return p.keep(e, expired) }
		horizon = saturate(p.now.UnixMilli(), p.cfg.DeleteRetention.Milliseconds())
		if b.ProducerID() >= FirstKeyID {
			// The horizon takes the place of what a retry is answered with: it waits
			// for a pass after the key's time.
			needed, err := p.remembered(b)
			if err != nil {
				return err
			}
			if needed {
				horizon = record.NoHorizon
			}
		}
	}
	r, err := p.rewriter.Rewrite(b, maxStoredExpanded, horizon, keep)
	if err != nil {
		return p.about(s, b, err)
	}
	p.done.Kept += int64(r.Kept)
	p.done.Removed += int64(r.Removed)
	g.changed = g.changed || r.Batch == nil || &r.Batch[0] != &b[0]
	if r.Batch != nil {
		return g.add(r.Batch, b.BaseOffset() < boundary)
	}
	p.emptied = record.AppendEmptied(p.emptied[:0], b)
	return p.header(b, p.emptied, boundary)
}

// header puts what is left of a batch without records into the bundle, if it is
// needed to tell a producer's retry.
func (p *pass) header(b, emptied record.Batch, boundary int64) error {
	if b.ProducerID() < 0 {
		return p.bundle.skip(b)
	}
	needed, err := p.remembered(b)
	if err != nil {
		return err
	}
	if needed {
		return p.bundle.add(emptied, b.BaseOffset() < boundary)
	}
	return p.bundle.skip(b)
}

// remembered says whether a retry is told by the batch, which is a producer's or
// a keyed request's.
func (p *pass) remembered(b record.Batch) (bool, error) {
	if p.known == nil {
		known, err := p.log.producersAt(p.bound)
		if errors.Is(err, errRetired) {
			return false, errGivenUp
		}
		if err != nil {
			return false, err
		}
		p.known = &known
	}
	if b.ProducerID() >= FirstKeyID {
		return p.known.found.remembers(b.ProducerID(), b.BaseOffset()), nil
	}
	return p.known.producers.remembers(b.ProducerID(), b.BaseOffset()), nil
}

// each reads a segment's batches, verifying each.
func (p *pass) each(s *segment, use func(record.Batch) error) error {
	h, err := p.log.dir.files.acquire(s)
	if errors.Is(err, errRetired) {
		return errGivenUp
	}
	if err != nil {
		return err
	}
	defer p.log.dir.files.release(h)
	pos, next, crc := int64(0), s.base, uint32(0)
	for pos < s.size {
		n := min(int64(len(p.in)), s.size-pos)
		if err := p.pace(int(n)); err != nil {
			return err
		}
		if err := readFull(h, p.in[:n], pos); err != nil {
			return readFailed(s, pos, err)
		}
		p.done.Read += n
		for rest := p.in[:n]; len(rest) > 0; {
			need, err := checkStored(rest, s, s.size-pos, next)
			if err != nil {
				return &CorruptError{Path: s.logPath(), Pos: pos, Err: err}
			}
			if need > len(rest) {
				if need > len(p.in) {
					p.in = make([]byte, need)
				}
				break // read again from pos
			}
			b := record.Batch(rest[:need:need])
			p.pos = pos
			crc = extendCRC(crc, b)
			if err := use(b); err != nil {
				return err
			}
			pos, next, rest = pos+int64(need), b.NextOffset(), rest[need:]
		}
	}
	if next != s.next {
		return &CorruptError{Path: s.logPath(), Pos: pos, Err: missing(next, s.next)}
	}
	if crc != s.crc {
		return &CorruptError{Path: s.logPath(), Err: errChanged} // what was made of it would call it right
	}
	return nil
}

// pace waits before so many bytes are moved; an error ends the pass.
func (p *pass) pace(bytes int) error {
	d := p.log.dir
	if err := d.Failed(); err != nil {
		return err
	}
	p.log.mu.RLock()
	closed := p.log.mu.closed
	p.log.mu.RUnlock()
	if closed || d.closing.Load() {
		return ErrClosed
	}
	return p.opts.Pace(p.ctx, bytes)
}
