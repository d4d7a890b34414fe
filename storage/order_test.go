package storage

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"leat/storage/disk"
	"leat/storage/record"
)

// order watches what a directory asks of its disk, and keeps what comes before
// what it must wait for. It compares with what is durable at that very moment,
// which is what a strict power cut would leave.
type order struct {
	*world
	fs    *disk.Mem
	mu    sync.Mutex
	start int64             // of the log, as its owner has it durable
	dead  bool              // the process is: nothing changes any more
	dirty map[string]bool   // files with bytes that no sync has covered
	wrote map[string]moment // of files that vouch for others, their last write
	wrong []string
	seen  map[string]int // how often each rule was asked
}

// moment is what was durable and what was there when something was written.
type moment struct{ durable, there *disk.Mem }

// watch has an order watch fs.
func (w *world) watch(fs *disk.Mem) *order {
	o := &order{world: w, fs: fs, dirty: map[string]bool{}, wrote: map[string]moment{}, seen: map[string]int{}}
	fs.SetFault(o.see)
	return o
}

// now is this moment: first what is durable, so that it is never more than
// what is there by the other.
func (o *order) now() moment {
	return moment{durable: o.fs.CrashClone(0, nil), there: o.fs.CrashClone(1, nil)}
}

// must notes what is wrong unless ok.
func (o *order) must(rule string, ok bool, format string, args ...any) {
	o.seen[rule]++
	if !ok {
		o.wrong = append(o.wrong, rule+": "+fmt.Sprintf(format, args...))
	}
}

// see looks at an operation before it happens.
func (o *order) see(op disk.Op) error {
	if !op.Kind.Changes() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dead || o.skips(op) {
		return disk.ErrSkip
	}
	switch op.Kind { //nolint:exhaustive // the others wait for nothing
	case disk.OpWrite:
		o.written(op)
		o.dirty[op.Path] = true
	case disk.OpTruncate:
		o.dirty[op.Path] = true
	case disk.OpSync, disk.OpSyncData:
		o.dirty[op.Path] = false
		o.synced(op.Path)
	case disk.OpSyncAll:
		clear(o.dirty)
	case disk.OpRename:
		o.renamed(op.Path, op.To)
	case disk.OpRemove:
		o.removed(op.Path)
	}
	return nil
}

// written looks at a write: of what vouches for other files the moment is kept.
func (o *order) written(op disk.Op) {
	name, dir := path.Base(op.Path), path.Dir(op.Path)
	_, _, suffix, ok := parseSegmentName(name)
	next, snapshot := parseSnapshotName(name)
	switch {
	case ok && suffix == logSuffix:
		n := o.now()
		_, err := n.durable.Stat(path.Join("/data", cleanName))
		o.must("the mark of a clean stop is gone before records come", err != nil, "%s is written at %d", op.Path, op.Off)
		p, _ := readFile(n.durable, op.Path, maxSegmentBytes) // none if its name is not durable
		o.must("a torn end is cut off before records come", isZero(p[min(op.Off, int64(len(p))):]), "%s is written at %d of %d", op.Path, op.Off, len(p))
	case snapshot:
		n := o.now()
		end := chained(n.durable, dir, o.start)
		o.must("records are durable before a snapshot of their producers", end >= next, "%s, and the log is durable up to %d", op.Path, end)
	case ok, strings.HasPrefix(op.Path, "/data/checkpoint."):
		o.wrote[op.Path] = o.now()
	}
}

// synced looks at a file whose content is about to become durable.
func (o *order) synced(name string) {
	at, ok := o.wrote[name]
	if !ok {
		return
	}
	delete(o.wrote, name)
	p, err := readFile(o.fs.CrashClone(1, nil), name, maxCheckpointBytes)
	if err != nil {
		return
	}
	if path.Dir(name) == "/data" {
		c, err := decodeCheckpoint(p)
		o.must("a checkpoint holds", err == nil, "%s: %v", name, err)
		for id, r := range c.records {
			o.checkpointed(at, path.Join("/data", logsDir, id.dirName()), r)
		}
		return
	}
	magic := indexMagic
	if path.Ext(name) == timeSuffix {
		magic = timeMagic
	}
	if h, err := decodeSeal(p, magic); err == nil {
		o.sealed(at, name, h)
	}
}

// checkpointed looks at a log's line of a checkpoint.
func (o *order) checkpointed(at moment, dir string, r checkpointRecord) {
	names, err := at.there.List(dir)
	if err != nil || r.corrupt {
		return // it was removed meanwhile, or has holes
	}
	end := chained(at.durable, dir, r.logStart)
	o.must("records are durable before a checkpoint that has them", end >= r.recoveryOffset, "%s: %d, durable up to %d", dir, r.recoveryOffset, end)
	active := segmentName(r.activeBase, r.activeGen) + logSuffix
	p, err := readFile(at.durable, path.Join(dir, active), maxSegmentBytes)
	left := err != nil && !slices.Contains(names, active) // it was cut off or rewritten meanwhile, and the line counts for nothing
	o.must("a segment has its name before a checkpoint that names it", err == nil || left, "%s", active)
	if pos := r.recoveryPos; pos > 0 && !left {
		o.must("bytes are durable before a checkpoint that has them", pos <= int64(len(p)) && crcOf(p[:pos]) == r.logCRC,
			"%s up to %d of %d", active, pos, len(p))
	}
}

// sealed looks at a seal of a segment as it was written; those of segments that
// were rewritten count when COMPACT names them.
func (o *order) sealed(at moment, name string, h seal) {
	_, gen, suffix, _ := parseSegmentName(path.Base(name))
	stem := strings.TrimSuffix(name, suffix)
	o.must("a segment is synced before its seal", !o.dirty[stem+logSuffix], "%s", name)
	if gen > 0 {
		return
	}
	p, err := readFile(at.durable, stem+logSuffix, maxSegmentBytes)
	o.must("a segment is durable before its seal", err == nil && int64(len(p)) >= h.logBytes && crcOf(p[:h.logBytes]) == h.logCRC,
		"%s: %d bytes of %d, %v", name, len(p), h.logBytes, err)
	before := int64(-1)
	for _, s := range segmentsIn(at.there, path.Dir(name)) {
		if s.base < h.base {
			before = max(before, s.base)
		}
	}
	if before >= 0 && h.base > o.start {
		end := chained(at.durable, path.Dir(name), before)
		o.must("a segment is durable before the seal of the next", end >= h.next, "%s: durable up to %d", name, end)
	}
}

// renamed looks at a file that takes a name, or goes into the trash.
func (o *order) renamed(from, to string) {
	switch {
	case strings.HasPrefix(to, "/data/"+quarantineDir), path.Dir(from) == "/data/"+logsDir:
	case strings.HasPrefix(to, "/data/"+trashDir):
		o.removed(from)
	default:
		o.must("a file is durable before it takes its name", !o.dirty[from], "%s", to)
		n := o.now()
		p, err := readFile(n.there, from, maxSwapBytes)
		if err != nil {
			return // the rename will tell
		}
		switch path.Base(to) {
		case cleanName:
			o.stopped(n, p)
		case swapFile:
			o.swapped(n, path.Dir(to), p)
		}
		o.dirty[to] = o.dirty[from]
	}
}

// stopped looks at the mark of a clean stop.
func (o *order) stopped(at moment, mark []byte) {
	m, err := decodeClean(mark)
	c := readCheckpoint(at.durable, "/data")
	o.must("the last checkpoint is durable before the mark of a clean stop", err == nil && m.matches(c), "generation %d, %d", m.generation, c.generation)
	for id, r := range c.records {
		dir := path.Join("/data", logsDir, id.dirName())
		durable, end := chained(at.durable, dir, r.logStart), chained(at.there, dir, r.logStart)
		o.must("all is durable before the mark of a clean stop", durable == end && r.recoveryOffset == end,
			"%s: durable up to %d, checkpoint %d, end %d", dir, durable, r.recoveryOffset, end)
	}
}

// swapped looks at a COMPACT that says that other segments are the log now.
func (o *order) swapped(at moment, dir string, p []byte) {
	r, err := decodeSwap(p)
	if err != nil || !r.done {
		return
	}
	for _, s := range r.fresh {
		stem := path.Join(dir, segmentName(s.base, s.gen))
		p, err := readFile(at.durable, stem+logSuffix, maxSegmentBytes)
		o.must("a rewritten segment is durable before it is the log", err == nil && int64(len(p)) == s.size && crcOf(p) == s.crc, "%s: %v", stem, err)
		for suffix, magic := range map[string][4]byte{indexSuffix: indexMagic, timeSuffix: timeMagic} {
			p, err := readFile(at.durable, stem+suffix, maxSegmentBytes)
			if err == nil {
				_, err = decodeSeal(p, magic)
			}
			o.must("a rewritten segment is sealed before it is the log", err == nil, "%s%s: %v", stem, suffix, err)
		}
	}
}

// removed looks at a segment that leaves the disk: something durable must say
// that it is none of the log's any more.
func (o *order) removed(name string) {
	base, gen, suffix, ok := parseSegmentName(path.Base(name))
	id, partition := parseDirName(path.Base(path.Dir(name)))
	if !ok || !partition || suffix != logSuffix {
		return
	}
	n := o.now()
	p, err := readFile(n.there, name, maxSegmentBytes)
	if err != nil || isZero(p) {
		return // there is nothing of it
	}
	r, known := readCheckpoint(n.durable, "/data").records[id]
	swap, swapping, err := readSwap(n.durable, path.Dir(name))
	below := known && endOf(p, base) <= r.logStart
	cut := known && (r.recoveryOffset <= base || r.recoveryOffset <= r.logStart)
	replaced := swapping && err == nil && (swap.gen == gen && !swap.done || swap.done &&
		slices.ContainsFunc(swap.old, func(s *segment) bool { return s.base == base && s.gen == gen }))
	o.must("a segment goes only when it is known not to be missed", below || cut || replaced,
		"%s up to %d: checkpoint %+v, swap %+v", name, endOf(p, base), r, swap)
}

// flushed is told that a log's durable end has moved.
func (o *order) flushed(l *Log) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dead {
		return
	}
	durable := l.Offsets().Durable
	n := o.now()
	if start := l.Offsets().Start; start <= durable {
		end := chained(n.durable, l.path, start)
		o.must("records and names are durable before they count as that", end >= durable, "%s: %d, durable up to %d", l.path, durable, end)
	}
}

// raised is told where the log begins now, before the log is.
func (o *order) raised(start int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.start = start
}

// die ends the process as kill -9 does, and live begins another on the same disk.
func (o *order) die()  { o.setDead(true) }
func (o *order) live() { o.setDead(false) }

func (o *order) setDead(dead bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dead = dead
}

// faults are what was wrong so far.
func (o *order) faults() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.wrong)
}

// segmentsIn are the segments with a .log in the directory of a partition.
func segmentsIn(fs *disk.Mem, dir string) (segs []*segment) {
	names, _ := fs.List(dir) // none if it has no name yet
	for _, name := range names {
		if base, gen, suffix, ok := parseSegmentName(name); ok && suffix == logSuffix {
			segs = append(segs, newSegment(dir, base, gen))
		}
	}
	slices.SortFunc(segs, func(a, b *segment) int { return cmp.Compare(a.base, b.base) })
	return segs
}

// chained is where the log in dir ends as far as its batches hold and follow one
// another from the segment on that has start, whichever segments replace others;
// start if there is none.
func chained(fs *disk.Mem, dir string, start int64) int64 {
	segs := segmentsIn(fs, dir)
	i := lastTrue(len(segs), func(i int) bool { return segs[i].base <= start })
	if i < 0 {
		return start
	}
	end := segs[i].base
	for _, s := range segs {
		if s.base < segs[i].base || s.base > end {
			continue
		}
		p, err := readFile(fs, s.logPath(), maxSegmentBytes)
		if err == nil {
			end = max(end, endOf(p, s.base))
		}
	}
	return end
}

// endOf is the offset behind the batches in p that hold and follow one another
// from base on.
func endOf(p []byte, base int64) int64 {
	for len(p) > 0 {
		b, rest, err := record.Next(p)
		if err != nil || b.VerifyCRC() != nil || b.BaseOffset() != base {
			break
		}
		base, p = b.NextOffset(), rest
	}
	return base
}
