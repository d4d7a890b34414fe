package storage

import (
	"sync"
	"sync/atomic"
	"time"
)

// Log is one partition's log. It is safe for concurrent use.
type Log struct {
	dir  *Dir
	id   ID
	name string // the topic's, for log lines
	path string
	// created is when the partition was made, zero if its directory does not say.
	created time.Time

	config  atomic.Pointer[Config]
	queued  atomic.Bool  // in the flusher's next round
	waiting atomic.Bool  // in the flusher's list of logs with a deadline
	stamp   atomic.Int64 // newest log append time given

	queue queue // of appends that wait for their write

	// cutting is held over a truncation, and for reading by everybody else who
	// makes something of the log durable. It is taken before writing.
	cutting sync.RWMutex
	// cuts counts truncations: who looked at the log without a lock looks again
	// if it has grown meanwhile. It is added to with mu held.
	cuts atomic.Int64
	// fenced says that the log has holes. It is set under mu.
	fenced atomic.Bool
	// examining is held over the reading of a segment that is damaged.
	examining sync.Mutex

	// writing is held by the one who appends, rolls or closes, over the
	// write to the file but never over a sync. It is taken before mu.
	writing struct {
		sync.Mutex
		idempotence
	}
	mu struct {
		sync.RWMutex
		closed    bool
		segments  []*segment // never empty while open; the last is active. Copied on write
		start     int64
		end       int64
		durable   mark
		recent    recent
		lazy      backlog
		lazySince int64 // when the oldest of lazy was appended, by dir.clock
		changed   bool  // since the last checkpoint
		epoch     int32 // of the newest batch; noEpochBound if it is not known
		lost      error // why nothing of the log is there, or nil
		epochs    epochs
		swapping  bool       // segments are being put in the place of others
		leaving   []*segment // below the start, with files that are still there
		snapshots []int64    // offsets of those of the producers, ascending. Copied on write
	}
	// users counts those who are within a method while the log is open.
	// Adding needs mu and closed unset, so that nobody enters behind Wait.
	users sync.WaitGroup

	// keys are the keyed requests in the log, by a lock of their own.
	keys *keys

	// rewriting is the turn of who puts segments in the place of others, and
	// guards replaced: segments that have left the log so, but whose files
	// could not be removed yet.
	rewriting chan struct{}
	replaced  []*segment
}

// backlog is what a page-cache-mode log holds that no flush covers, not even one that
// is under way.
type backlog struct {
	bytes, records int64
}

// mark is a point in the log up to which everything is durable, with what the
// checkpoint must know of the segment there.
type mark struct {
	seg          *segment
	pos, offset  int64
	crc          uint32
	maxTimestamp int64
	firstAppend  int64
	lastAppend   int64
	entries      int
	times        int
	producers    bool
	epoch        int32
}

// Offsets are the bounds of a log: the first offset, the offset up to which
// everything is durable, and the offset that the next record gets.
type Offsets struct {
	Start, Durable, End int64
}

// Created is when the partition was made, by the broker's clock at that time;
// zero if that is not known.
func (l *Log) Created() time.Time { return l.created }

// ID names the partition.
func (l *Log) ID() ID { return l.id }

// Config returns the configuration with every default filled in.
func (l *Log) Config() Config { return *l.config.Load() }

// SetConfig replaces the configuration; the next append follows it.
func (l *Log) SetConfig(c Config) {
	c = c.withDefaults()
	l.writing.Lock()
	l.config.Store(&c)
	l.writing.producers.setExpiration(c.ProducerExpiration)
	l.keys.ring.configure(c.KeyRetention, c.MaxKeys)
	l.writing.Unlock()
	l.dir.flusher.touch(l, &c)
	l.dir.keeper.rolls.by(0)
}

// Offsets returns the bounds as of now.
func (l *Log) Offsets() Offsets {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return Offsets{Start: l.mu.start, Durable: l.mu.durable.offset, End: l.mu.end}
}

// Size is the number of bytes of all batches in the log.
func (l *Log) Size() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var n int64
	for _, s := range l.mu.segments {
		n += s.size
	}
	return n
}

// Segments is the number of segments, at least one.
func (l *Log) Segments() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.mu.segments)
}

// enter says that the caller uses the log's files until leave; false once the
// log is closed.
func (l *Log) enter() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.mu.closed {
		return false
	}
	l.users.Add(1)
	return true
}

func (l *Log) leave() { l.users.Done() }

// close ends all use of the log and waits for those who use it; sections in
// flight keep their files. false if it was closed already.
func (l *Log) close() bool {
	l.mu.Lock()
	was := l.mu.closed
	l.mu.closed = true
	l.mu.Unlock()
	if was {
		return false
	}
	l.users.Wait()
	l.keys.clear()
	l.dir.mu.Lock()
	l.dir.leaveKeyring(l.id.Topic)
	l.dir.mu.Unlock()
	// Only now is it known what no flush has covered: appends and a flush that
	// were under way have counted.
	l.mu.Lock()
	segments, lazy := l.mu.segments, l.mu.lazy
	l.mu.lazy = backlog{}
	l.mu.Unlock()
	l.dir.flusher.lazyBytes.Add(-lazy.bytes)
	l.dir.metrics.held(segments, -1)
	for _, s := range segments {
		l.dir.files.release(s.pin)
		s.pin = nil
		l.dir.files.drop(s)
		l.dir.tables.drop(s)
		l.dir.slack.Add(s.size - s.allocated)
		s.allocated = s.size
	}
	return true
}

// activeLocked is the segment that grows.
func (l *Log) activeLocked() *segment { return l.mu.segments[len(l.mu.segments)-1] }

// markLocked is the mark for all that the log holds now.
func (l *Log) markLocked() mark {
	s := l.activeLocked()
	return mark{
		seg: s, pos: s.size, offset: s.next, crc: s.crc, maxTimestamp: s.maxTimestamp, firstAppend: s.firstAppend, lastAppend: s.lastAppend,
		entries: len(s.entries), times: len(s.times), producers: s.producers, epoch: l.mu.epoch,
	}
}

// recentSize is how many of the newest batches' positions a log keeps, so
// that readers at the tail need not look for them.
const recentSize = 64

// recent is a ring of the newest batch boundaries of the active segment. It
// takes no memory before the first append.
type recent struct {
	points []point // nil or recentSize long
	n      int     // how many were added since the segment began
}

type point struct {
	offset, pos int64
}

// add keeps a boundary that is greater than all before it.
func (r *recent) add(p point) {
	if r.points == nil {
		r.points = make([]point, recentSize)
	}
	r.points[r.n%recentSize] = p
	r.n++
}

// find looks for the boundary with exactly that offset.
func (r *recent) find(offset int64) (pos int64, ok bool) {
	kept := min(r.n, recentSize)
	first := r.n - kept
	i := lastTrue(kept, func(i int) bool { return r.points[(first+i)%recentSize].offset <= offset })
	if i < 0 {
		return 0, false
	}
	p := r.points[(first+i)%recentSize]
	return p.pos, p.offset == offset
}

func (r *recent) reset() { r.n = 0 }
