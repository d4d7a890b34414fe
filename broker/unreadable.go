package broker

import "sync"

// unreadable is what was reported of a partition's batches that are what their
// producers sent, and hold no records. Nothing is to be repaired in them, so they
// count as damage until they have left the log or an operator accepts them. It is
// forgotten with the process: whoever reads such a batch reports it again.
type unreadable struct {
	mu struct {
		sync.Mutex
		end      int64 // behind the last one that was reported
		accepted int64 // below, none is reported any more
	}
}

// note takes down the batch at an offset; first says that nothing was taken down
// before, or all of it was accepted.
func (u *unreadable) note(offset int64) (first bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if offset < u.mu.accepted {
		return false
	}
	first = u.mu.end <= u.mu.accepted
	u.mu.end = max(u.mu.end, offset+1)
	return first
}

// in says whether any is in a log that begins at start.
func (u *unreadable) in(start int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.end > max(start, u.mu.accepted)
}

// accept makes all that were reported count no more.
func (u *unreadable) accept() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.accepted = max(u.mu.accepted, u.mu.end)
}
