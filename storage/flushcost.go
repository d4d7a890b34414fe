package storage

import "time"

const (
	// syncAllFrom is the number of dirty logs from which one syncfs may be
	// cheaper than a sync of each file.
	syncAllFrom = 8
	// syncAllBacklog is how much may wait in page-cache-mode logs before
	// syncfs, which would write all of that, is out of the question.
	syncAllBacklog = 64 << 20
	// costExpires is after how many rounds the way that was not taken is
	// tried again, because the disk's other load may have changed.
	costExpires = 64
	// maxSyncs is how many files are synced at the same time.
	maxSyncs = 16
)

// flushCosts keeps the recent cost of the two ways to make files durable.
type flushCosts struct {
	perFile time.Duration // of a round of single syncs, divided by its files; 0 unknown
	syncAll time.Duration // of a syncfs; 0 unknown

	sinceEach, sinceAll int // rounds since the way was taken
}

// preferSyncAll says whether to make n files durable by one syncfs.
func (c *flushCosts) preferSyncAll(n int) bool {
	switch {
	case n < syncAllFrom:
		return false
	case c.syncAll == 0 || c.sinceAll >= costExpires:
		return true
	case c.perFile == 0 || c.sinceEach >= costExpires:
		return false
	default:
		return c.syncAll <= c.perFile*time.Duration(n)
	}
}

// learn takes in what a round over n files took. Rounds of fewer files than
// syncAllFrom say nothing about the choice.
func (c *flushCosts) learn(syncAll bool, n int, took time.Duration) {
	if n < syncAllFrom {
		return
	}
	c.sinceEach++
	c.sinceAll++
	if syncAll {
		c.syncAll, c.sinceAll = smooth(c.syncAll, took), 0
	} else {
		c.perFile, c.sinceEach = smooth(c.perFile, took/time.Duration(n)), 0
	}
}

// smooth is a moving average over about four samples, never zero.
func smooth(average, sample time.Duration) time.Duration {
	if average == 0 {
		return max(sample, 1)
	}
	return max(average+(sample-average)/4, 1)
}
