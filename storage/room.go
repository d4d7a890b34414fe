package storage

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"leat/storage/disk"
)

// room is what the directory knows of the space on its disk. Clients' appends
// end at the low-water mark, so that what makes room, and the metadata's
// commits, never meet a full disk unless somebody else fills it; then the
// ballast is let go, once.
//
// It is measured each second, and sooner by an append that finds the bytes used
// up that were left above the mark when it was measured last.
type room struct {
	dir   *Dir
	state atomic.Int32 // a roomState
	// left is how much may still be taken before the mark is reached, as of the
	// last measurement less what was taken since.
	left atomic.Int64

	configured atomic.Int64 // low-water mark, 0 for the rule

	measuring sync.Mutex // over a measurement; ballast comes after it
	ballast   struct {
		sync.Mutex       // over a change of the file
		there      bool  // the file exists
		held       int64 // bytes in it
		hopeless   bool  // this file system cannot set space aside
	}
}

// roomState is how much room there is.
type roomState int32

const (
	roomOpen roomState = iota
	// roomLow: clients' appends are refused.
	roomLow
	// roomFull: half of the reserve is gone, too. The rest is for the commits
	// and checkpoints that make room.
	roomFull
)

// String is the state's name in the log.
func (s roomState) String() string {
	return [...]string{"open", "low", "full"}[s]
}

// The low-water mark is a fiftieth of the disk within these bounds, and never
// more than an eighth of it.
const (
	minLowWater   = 256 << 20
	maxLowWater   = 4 << 30
	lowWaterShare = 50
	maxLowShare   = 8

	// A large disk's ballast is a hundredth of it, at most 1 GiB; a smaller
	// one's a 32nd, at most 16 MiB, and it is written where nothing can be set
	// aside otherwise.
	largeDisk         = 8 << 30
	maxBallast        = 1 << 30
	maxSmallBallast   = 16 << 20
	minBallast        = 1 << 20
	ballastShare      = 100
	smallBallastShare = 32

	// commitRoom is what must be left for a commit of metadata to begin, or a
	// 64th of a small disk: the store writes more than the commit alone.
	commitRoom      = 8 << 20
	commitRoomShare = 64

	// partitionRoom is what a new partition takes at most: its directory and
	// the file in it for people.
	partitionRoom = 16 << 10
)

// lowWaterMark is the free space below which clients' appends are refused;
// configured is what the operator asks for, 0 for the rule. None is more than
// half of the disk.
func lowWaterMark(total, configured int64) int64 {
	if configured > 0 {
		return min(configured, total/2)
	}
	return min(max(total/lowWaterShare, minLowWater), maxLowWater, total/maxLowShare)
}

// ballastSize is how large the ballast is; 0 for a disk that is too small.
func ballastSize(total int64) int64 {
	if total >= largeDisk {
		return min(total/ballastShare, maxBallast)
	}
	if size := min(total/smallBallastShare, maxSmallBallast); size >= minBallast {
		return size
	}
	return 0
}

// nextRoomState follows the free space, with a gap between the marks of coming
// and going, so that a disk at a mark does not go to and fro.
func nextRoomState(was roomState, free, mark int64) roomState {
	resume := func(mark int64) int64 { return mark + mark/4 }
	switch {
	case free < mark/2, was == roomFull && free < resume(mark/2):
		return roomFull
	case free < mark, was != roomOpen && free < resume(mark):
		return roomLow
	default:
		return roomOpen
	}
}

func (r *room) now() roomState { return roomState(r.state.Load()) }

// SetLowWater sets the free space in bytes below which appends are refused; 0,
// as in the beginning, is a fiftieth of the disk, between 256 MiB and 4 GiB and
// at most an eighth. It is never more than half of the disk.
func (d *Dir) SetLowWater(bytes int64) {
	if d.room.configured.Swap(bytes) != bytes {
		d.room.measure()
	}
}

// Room is nil while clients may append, else an error of kind ErrFull.
func (d *Dir) Room() error {
	if d.room.now() == roomOpen {
		return nil
	}
	return d.room.refusal()
}

func (r *room) refusal() error {
	return fmt.Errorf("%w: %d bytes are free, clients may write while more than %d are", ErrFull, r.dir.free.Load(), r.dir.lowWater.Load())
}

// admit lets n bytes be appended, or says why not. Essential appends are the
// server's own and end only when half of the reserve is gone.
func (r *room) admit(n int64, essential bool) error {
	if r.left.Add(-n) < 0 || r.now() != roomOpen {
		if r.now() == roomOpen {
			r.measure()
			r.left.Add(-n)
		}
		if s := r.now(); s == roomFull || s == roomLow && !essential {
			return r.refusal()
		}
	}
	return nil
}

// reserve takes n bytes in advance if that leaves all above the mark.
func (r *room) reserve(n int64) bool {
	if !r.has(n) {
		return false
	}
	r.left.Add(-n)
	return true
}

// has says whether n bytes leave all above the mark.
func (r *room) has(n int64) bool { return r.now() == roomOpen && r.left.Load() >= n }

// admitPartitions lets n partitions be made while half of the reserve stays.
func (r *room) admitPartitions(n int) error {
	if r.now() == roomOpen {
		return nil
	}
	r.measure()
	if free := r.dir.free.Load(); free-int64(n)*partitionRoom < r.dir.lowWater.Load()/2 {
		return r.refusal()
	}
	return nil
}

// measure looks how much room there is; what was known stays if that cannot be
// told. Where nothing is left it lets the ballast go.
func (r *room) measure() {
	r.measuring.Lock()
	changed := r.measureLocked()
	r.measuring.Unlock()
	if changed && r.dir.opts.OnRoom != nil {
		r.dir.opts.OnRoom()
	}
}

func (r *room) measureLocked() (changed bool) {
	d := r.dir
	total, free, err := d.Usage()
	if err != nil {
		return false
	}
	if free < commitRoomOf(total) && r.dropBallast() {
		if total, free, err = d.Usage(); err != nil {
			return false
		}
	}
	mark := lowWaterMark(total, r.configured.Load())
	d.free.Store(free)
	d.lowWater.Store(mark)
	d.metrics.diskTotal.Set(float64(total))
	d.metrics.diskFree.Set(float64(free))
	d.metrics.diskLow.Set(float64(mark))
	was := r.now()
	s := nextRoomState(was, free, mark)
	r.left.Store(free - mark)
	r.state.Store(int32(s))
	d.metrics.diskFull.Set(float64(s))
	if s == was {
		return false
	}
	attrs := []any{
		slog.String("path", d.opts.Path), slog.String("was", was.String()), slog.String("state", s.String()),
		slog.Int64("free_bytes", free), slog.Int64("low_water_bytes", mark),
	}
	if s == roomOpen {
		d.opts.Logger.Info("the disk has room again; records are taken", attrs...)
	} else {
		d.opts.Logger.Warn("the disk is nearly full; records are refused until there is room", attrs...)
	}
	return true
}

func commitRoomOf(total int64) int64 { return min(commitRoom, total/commitRoomShare) }

// CommitRoom says whether the metadata may commit so many bytes: nil, or an
// error of kind ErrFull when even the ballast is used up.
func (d *Dir) CommitRoom(bytes int64) error {
	total, free, err := d.Usage()
	need := commitRoomOf(total) + 2*bytes
	if err != nil || free >= need {
		return nil //nolint:nilerr // where nothing is known the commit will tell
	}
	d.room.dropBallast()
	d.room.measure()
	if free = d.free.Load(); free >= need {
		return nil
	}
	return fmt.Errorf("%w: %d bytes are free, a change of metadata needs %d", ErrFull, free, need)
}

// ReleaseBallast gives the ballast back to the file system; false if there is
// none any more. It is for who has met a full disk and can try again.
func (d *Dir) ReleaseBallast() bool { return d.room.dropBallast() }

func (r *room) dropBallast() bool {
	r.ballast.Lock()
	defer r.ballast.Unlock()
	if !r.ballast.there {
		return false
	}
	if err := r.dir.opts.FS.Remove(r.dir.path(ballastFile)); err != nil {
		r.dir.opts.Logger.Warn("ballast was not released", slog.Any("err", err))
		return false
	}
	held := r.ballast.held
	r.setBallastLocked(false, 0)
	r.dir.opts.Logger.Warn("the disk is full and the ballast was released", slog.String("path", r.dir.opts.Path), slog.Int64("bytes", held))
	return true
}

// findBallast takes over the ballast that the last run left.
func (r *room) findBallast() {
	r.ballast.Lock()
	defer r.ballast.Unlock()
	if info, err := r.dir.opts.FS.Stat(r.dir.path(ballastFile)); err == nil {
		r.setBallastLocked(true, info.Size())
	}
}

func (r *room) setBallastLocked(there bool, held int64) {
	r.ballast.there, r.ballast.held = there, held
	r.dir.metrics.ballast.Set(float64(held))
}

// keepBallast makes the ballast, or makes it again, once there is room for it
// and clients' appends besides. Only the keeper calls it.
func (r *room) keepBallast() {
	d := r.dir
	total, free, err := d.Usage()
	if err != nil || !d.opts.Ballast {
		return
	}
	size := ballastSize(total)
	if !r.ballast.TryLock() {
		return // it is being removed, and the disk may hang
	}
	defer r.ballast.Unlock()
	mark := lowWaterMark(total, r.configured.Load())
	if size == 0 || r.ballast.held >= size || r.ballast.hopeless || free-size < mark+mark/4 {
		return
	}
	err = withFile(d.opts.FS, d.path(ballastFile), func(f disk.File) error {
		err := f.Allocate(0, size)
		if errors.Is(err, disk.ErrUnsupported) && size <= maxSmallBallast {
			return fill(f, size)
		}
		return err
	})
	if err != nil {
		// It is an extra: whatever is in the way, the server works without.
		r.ballast.hopeless = !noSpace(err) && !noDescriptors(err)
		_ = d.opts.FS.Remove(d.path(ballastFile))
		r.setBallastLocked(false, 0)
		d.opts.Logger.Info("there is no ballast", slog.String("path", d.path(ballastFile)), slog.Any("err", err))
		return
	}
	r.setBallastLocked(true, size)
}

// fill writes size bytes, which takes the space where it cannot be allocated.
func fill(f disk.File, size int64) error {
	chunk := make([]byte, min(size, 1<<20))
	for off := int64(0); off < size; off += int64(len(chunk)) {
		if _, err := f.WriteAt(chunk[:min(int64(len(chunk)), size-off)], off); err != nil {
			return err
		}
	}
	return nil
}

// noSpace says that the disk is full, or a quota or a limit of file sizes is
// reached, for which only removing something helps.
func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}
