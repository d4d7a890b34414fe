package storage

import (
	"fmt"

	"leat/storage/record"
)

// epochCheck holds a log's leader epochs against each other: they never fall,
// and none is higher than the metadata's. Neither a batch's checksum nor the
// chain of offsets covers them. Where a checksum of the file does, it says more.
type epochCheck struct {
	limit   int32 // of the metadata
	limited bool
	// last and before are those of the batch before and the one before that,
	// and path and pos where the former is.
	last, before int32
	path         string
	pos          int64
	wrong        []Finding // in this segment
	found        bool      // a checksum of this segment's file differs
}

// begin begins with a segment.
func (e *epochCheck) begin() {
	e.wrong, e.found = nil, false
}

// batch looks at the batch at pos.
func (e *epochCheck) batch(path string, pos int64, b record.Batch) {
	epoch := b.LeaderEpoch()
	switch {
	case e.limited && epoch > e.limit:
		e.note(path, pos, "the leader epoch of the batch at offset %d is %d, the newest is %d", b.BaseOffset(), epoch, e.limit)
		return
	case epoch >= e.last:
	case epoch >= e.before && e.path != "":
		// The one before stands out.
		e.note(e.path, e.pos, "the leader epoch falls from %d to %d at offset %d", e.last, epoch, b.BaseOffset())
		e.last = e.before
	default:
		e.note(path, pos, "the leader epoch falls from %d to %d at offset %d", e.last, epoch, b.BaseOffset())
		return
	}
	e.before, e.last, e.path, e.pos = e.last, epoch, path, pos
}

func (e *epochCheck) note(path string, pos int64, format string, args ...any) {
	const most = 16 // what follows from the same change
	if len(e.wrong) < most {
		e.wrong = append(e.wrong, Finding{Path: path, Pos: pos + epochAt, What: fmt.Sprintf(format, args...)})
	}
}

// tell tells of the epochs that are wrong, unless a checksum of the file has
// told already. After that the epochs begin anew.
func (e *epochCheck) tell(l *logCheck) {
	if e.found {
		e.last, e.before, e.path = 0, 0, ""
		return
	}
	for _, f := range e.wrong {
		l.damage(f.Path, f.Pos, "%s", f.What)
	}
}
