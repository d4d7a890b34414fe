package storage

import (
	"errors"

	"leat/storage/disk"
)

const (
	minPrealloc = 256 << 10
	maxPrealloc = 16 << 20
	// preallocShare is the part of the free space, one in so many, that all
	// preallocation of a directory may hold.
	preallocShare = 20
	rateWindow    = 10_000 // ms
)

// rate estimates how many bytes were appended in the last ten seconds from
// the counts of two windows.
type rate struct {
	window        int64 // number of the current window
	current, last int64
}

func (r *rate) add(nowMillis, n int64) {
	switch w := nowMillis / rateWindow; w {
	case r.window:
	case r.window + 1:
		r.window, r.last, r.current = w, r.current, 0
	default:
		r.window, r.last, r.current = w, 0, 0
	}
	r.current += n
}

func (r *rate) bytes(nowMillis int64) int64 {
	behind := rateWindow - nowMillis%rateWindow
	return r.current + r.last*behind/rateWindow
}

// preallocStep is by how many bytes to extend a .log beyond its allocated
// bytes before need bytes are written at size; 0 if there is room or nothing
// may be taken. recent is what was appended in the last ten seconds, slack
// what the directory's logs hold in reserve, free the free space.
func preallocStep(size, allocated, need, recent, segmentBytes, slack, free int64) int64 {
	if size+need <= allocated {
		return 0
	}
	step := min(max(recent, minPrealloc), maxPrealloc)
	// More than the segment may hold would only be cut off again.
	step = max(min(step, segmentBytes-allocated), size+need-allocated)
	if slack+step > free/preallocShare {
		return 0
	}
	return step
}

// preallocate reserves room behind the segment so that a sync has no size to
// write. It is an optimisation: whatever goes wrong here, the write follows.
func (d *Dir) preallocate(seg *segment, h *handle, need int64, cfg *Config, nowMillis int64) {
	seg.rate.add(nowMillis, need)
	if d.noPrealloc.Load() {
		return
	}
	step := preallocStep(seg.size, seg.allocated, need, seg.rate.bytes(nowMillis), cfg.SegmentBytes, d.slack.Load(), d.free.Load())
	if step == 0 || !d.room.reserve(step) {
		return
	}
	err := h.Allocate(seg.allocated, step)
	if errors.Is(err, disk.ErrUnsupported) {
		d.noPrealloc.Store(true)
		return
	}
	// After an error the file may have any size up to this; taking the
	// largest makes sure that it is trimmed.
	seg.allocated += step
	d.slack.Add(step)
}
