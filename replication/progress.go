package replication

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Progress is a leader's view of how far the replicas of one partition have
// come, and of the high watermark that follows from it. It is pure: no clock,
// no disk, no lock; the owner serialises its calls.
//
// The high watermark is the smallest acknowledged end among the replicas in
// sync. What a replica acknowledges is the owner's choice: its durable end
// where acks=all means on disk, its log end where it means in the page cache.
// The watermark never goes back: a replica that falls behind leaves the set, it
// does not pull the watermark down. A partition of one replica is the case of
// a set of one, not a path of its own.
type Progress struct {
	ends map[int32]int64
	isr  []int32
	hw   int64
}

// NewProgress starts with a known high watermark. isr must not be empty; the
// replicas in it count as acknowledged up to hw.
func NewProgress(isr []int32, hw int64) *Progress {
	if len(isr) == 0 {
		panic("replication: a partition without a replica in sync has no leader")
	}
	p := &Progress{ends: map[int32]int64{}, isr: slices.Clone(isr), hw: hw}
	for _, r := range isr {
		p.ends[r] = hw
	}
	return p
}

// Ack records that replica holds everything below end, and reports whether the
// high watermark rose. An end below an earlier one is ignored: messages may
// arrive out of order.
func (p *Progress) Ack(replica int32, end int64) bool {
	if old, ok := p.ends[replica]; ok && end <= old {
		return false
	}
	p.ends[replica] = end
	return p.advance()
}

// SetISR changes the set in sync and reports whether the high watermark rose.
// isr must not be empty.
func (p *Progress) SetISR(isr []int32) bool {
	if len(isr) == 0 {
		panic("replication: the set in sync must hold the leader")
	}
	p.isr = slices.Clone(isr)
	return p.advance()
}

// HighWatermark is the first offset that consumers may not see yet.
func (p *Progress) HighWatermark() int64 { return p.hw }

// InSync is the number of replicas in sync.
func (p *Progress) InSync() int { return len(p.isr) }

// String shows the state for tests and logs.
func (p *Progress) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "hw=%d isr=%v", p.hw, p.isr)
	for _, r := range slices.Sorted(maps.Keys(p.ends)) {
		fmt.Fprintf(&s, " %d@%d", r, p.ends[r])
	}
	return s.String()
}

func (p *Progress) advance() bool {
	low := p.ends[p.isr[0]]
	for _, r := range p.isr[1:] {
		low = min(low, p.ends[r])
	}
	if low <= p.hw {
		return false
	}
	p.hw = low
	return true
}
