package storage

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"leat/storage/disk"
)

// flusher makes appends durable in rounds, one round at a time: whatever is
// appended during a round is in the next one, so that one sync serves all who
// wait (group commit). A round begins as soon as a log in fsync mode has
// something new and no round is running; waiting for more to come first would
// only delay the first of them, for the disk itself gathers the others.
type flusher struct {
	dir   *Dir
	wake  chan struct{}
	costs flushCosts // of the goroutine that runs rounds

	mu struct {
		sync.Mutex
		due  []*Log // the next round
		lazy []*Log // page-cache-mode logs with something new
		next int64  // when to look through lazy, by dir.clock; 0 never
	}
	lazyBytes atomic.Int64 // of page-cache-mode logs, not flushed
	noSyncAll bool
}

func newFlusher(d *Dir) *flusher {
	return &flusher{dir: d, wake: make(chan struct{}, 1)}
}

// touch tells the flusher that the log has something new.
func (f *flusher) touch(l *Log, cfg *Config) {
	if cfg.syncEach() {
		f.enqueue(l)
		return
	}
	l.mu.RLock()
	lazy, since := l.mu.lazy, l.mu.lazySince
	l.mu.RUnlock()
	switch {
	case lazy.records == 0:
	case lazy.bytes >= pageCacheBytes || lazy.records >= cfg.FlushMessages:
		f.enqueue(l)
	default:
		f.waitFor(l, since+cfg.FlushInterval.Milliseconds())
	}
}

// enqueue puts the log into the next round.
func (f *flusher) enqueue(l *Log) {
	if !l.queued.CompareAndSwap(false, true) {
		return
	}
	f.mu.Lock()
	f.mu.due = append(f.mu.due, l)
	f.mu.Unlock()
	f.signal()
}

// waitFor puts the log into a round at the given time of dir.clock.
func (f *flusher) waitFor(l *Log, deadline int64) {
	if !l.waiting.CompareAndSwap(false, true) {
		return
	}
	f.mu.Lock()
	f.mu.lazy = append(f.mu.lazy, l)
	sooner := f.mu.next == 0 || deadline < f.mu.next
	if sooner {
		f.mu.next = deadline
	}
	f.mu.Unlock()
	if sooner {
		f.signal()
	}
}

func (f *flusher) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// run runs rounds until ctx ends or the directory fails.
func (f *flusher) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-timer.C:
		}
		for {
			f.expire(f.dir.clock())
			logs := f.take()
			if len(logs) == 0 {
				break
			}
			if f.round(logs) != nil || ctx.Err() != nil {
				return
			}
		}
		timer.Reset(f.untilNext())
	}
}

// expire moves the waiting logs whose time has come into the next round.
func (f *flusher) expire(now int64) {
	f.mu.Lock()
	if f.mu.next == 0 || now < f.mu.next {
		f.mu.Unlock()
		return
	}
	lazy := f.mu.lazy
	f.mu.lazy, f.mu.next = nil, 0
	f.mu.Unlock()
	for _, l := range lazy {
		// From here on an append puts the log into lazy again; what was
		// appended before is seen below.
		l.waiting.Store(false)
		cfg := l.config.Load()
		l.mu.RLock()
		records, deadline := l.mu.lazy.records, l.mu.lazySince+cfg.FlushInterval.Milliseconds()
		l.mu.RUnlock()
		switch {
		case records == 0:
		case deadline <= now:
			f.enqueue(l)
		default:
			f.waitFor(l, deadline)
		}
	}
}

func (f *flusher) take() []*Log {
	f.mu.Lock()
	defer f.mu.Unlock()
	logs := f.mu.due
	f.mu.due = nil
	return logs
}

func (f *flusher) untilNext() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.next == 0 {
		return time.Hour
	}
	return time.Duration(max(f.mu.next-f.dir.clock(), 0)) * time.Millisecond
}

// flushJob is one log's part of a round: all that is not durable at the
// moment when it is made.
type flushJob struct {
	log    *Log
	target mark
	lazy   backlog
	segs   []*segment // in order; those before target.seg are complete
	files  []*handle  // of segs; nil where nothing was written
	names  bool       // the directory must be synced, too
}

// over ends the job, durable or not: the log may be cut again, and closed.
func (j *flushJob) over() {
	j.log.cutting.RUnlock()
	j.log.leave()
}

// beginFlush makes the log's job; false if there is nothing to do. What the job
// covers is no backlog from here on, or the appends that come while it is at the
// disk would each ask for one more.
func (l *Log) beginFlush() (flushJob, bool) {
	l.queued.Store(false) // before the look: what comes later queues it again
	if !l.enter() {
		return flushJob{}, false
	}
	l.cutting.RLock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.durable.offset == l.mu.end && l.mu.durable.seg == l.activeLocked() {
		l.cutting.RUnlock()
		l.users.Done()
		return flushJob{}, false
	}
	j := flushJob{log: l, target: l.markLocked(), lazy: l.mu.lazy}
	l.mu.lazy = backlog{}
	from := segmentIndex(l.mu.segments, l.mu.durable.seg.base)
	for _, s := range l.mu.segments[from:] {
		j.segs = append(j.segs, s)
		j.files = append(j.files, s.pin)
		j.names = j.names || !s.named
	}
	return j, true
}

// endFlush publishes what a job made durable.
func (l *Log) endFlush(j *flushJob) {
	var unpin []*handle
	l.mu.Lock()
	moved := j.target.offset > l.mu.durable.offset
	l.mu.durable = j.target
	l.mu.changed = true
	for i, s := range j.segs {
		s.named = true
		if s.pin != nil && s.pin == j.files[i] && (s != j.target.seg || s.size == j.target.pos) {
			unpin = append(unpin, s.pin)
			s.pin = nil
		}
	}
	l.mu.Unlock()
	l.dir.flusher.lazyBytes.Add(-j.lazy.bytes)
	for _, h := range unpin {
		l.dir.files.release(h)
	}
	if j.segs[0] != j.target.seg {
		l.shed()
	}
	if moved && l.dir.opts.OnFlush != nil {
		l.dir.opts.OnFlush(l)
	}
}

// sync makes the job's files and names durable, one after the other: a later
// segment counts only with those before it.
func (j *flushJob) sync() error {
	for i, h := range j.files {
		if h == nil {
			continue
		}
		if err := syncFault(j.segs[i].logPath(), h.SyncData()); err != nil {
			return err
		}
	}
	if j.names {
		return j.log.dir.syncDir(j.log.path)
	}
	return nil
}

// syncDir makes the names in a directory durable; see patiently.
func (d *Dir) syncDir(path string) error {
	return syncFault(path, d.patiently(func() error { return d.opts.FS.SyncDir(path) }))
}

// syncedDir is syncDir for who has no other way on after an error: that fails
// the directory.
func (d *Dir) syncedDir(path string) error {
	err := d.syncDir(path)
	if err != nil {
		d.fail(err)
	}
	return err
}

// patiently calls fn, a sync that opens something. While the process is out of
// descriptors nothing was synced and nothing is lost, so it waits until others
// give some back, and whoever waits for the sync waits with it; only the end of
// the directory ends that.
func (d *Dir) patiently(fn func() error) error {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := d.files.sparing(fn)
		if !noDescriptors(err) || d.closing.Load() {
			return err
		}
		if pause == maxPause {
			d.opts.Logger.Warn("a sync waits for file descriptors", slog.Any("err", err))
		}
		timer := time.NewTimer(pause)
		<-timer.C
	}
}

// The pauses between two tries of a sync for which there is no descriptor.
const (
	minPause = 5 * time.Millisecond
	maxPause = 640 * time.Millisecond
)

// round makes durable what the logs hold. An error is final: the directory
// has failed and nothing that the round touched counts as durable.
func (f *flusher) round(logs []*Log) error {
	if err := f.dir.Failed(); err != nil {
		return err
	}
	jobs := make([]flushJob, 0, len(logs))
	for _, l := range logs {
		if j, ok := l.beginFlush(); ok {
			jobs = append(jobs, j)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	began := time.Now()
	all := !f.noSyncAll && f.lazyBytes.Load() <= syncAllBacklog && f.costs.preferSyncAll(len(jobs))
	var err error
	if all {
		if all, err = f.syncAll(jobs); !all && err == nil {
			began = time.Now()
		}
	}
	if !all && err == nil {
		err = f.syncEach(jobs)
	}
	took := time.Since(began)
	f.costs.learn(all, len(jobs), took)
	m := f.dir.metrics
	m.flushRounds.Inc()
	m.flushSeconds.Observe(took.Seconds())
	m.flushFiles.Observe(float64(len(jobs)))
	return err
}

// syncAll makes the jobs durable by one syncfs; false if there is no such
// call.
func (f *flusher) syncAll(jobs []flushJob) (bool, error) {
	err := f.dir.patiently(func() error { return f.dir.opts.FS.SyncAll(f.dir.opts.Path) })
	if errors.Is(err, disk.ErrUnsupported) {
		f.noSyncAll = true
		return false, nil
	}
	if err != nil {
		err = syncFault(f.dir.opts.Path, err)
		f.dir.fail(err)
	}
	for i := range jobs {
		if err == nil {
			jobs[i].log.endFlush(&jobs[i])
		}
		jobs[i].over()
	}
	f.dir.metrics.flushSyncAlls.Inc()
	return true, err
}

// syncEach syncs the jobs' files, some at a time. Each log moves on as soon as
// its own files are durable.
func (f *flusher) syncEach(jobs []flushJob) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	work := func() {
		for i := next.Add(1) - 1; i < int64(len(jobs)); i = next.Add(1) - 1 {
			j := &jobs[i]
			if failed.Load() == nil {
				if err := j.sync(); err != nil {
					failed.CompareAndSwap(nil, &err)
					f.dir.fail(err)
				} else if f.dir.Failed() == nil {
					j.log.endFlush(j)
				}
			}
			j.over()
		}
	}
	var workers sync.WaitGroup
	for range min(len(jobs), maxSyncs) - 1 {
		workers.Go(work)
	}
	work()
	workers.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
