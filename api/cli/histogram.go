package cli

import (
	"math/bits"
	"sync"
	"time"
)

// histogram counts durations with an error of at most 1/32, in a fixed amount of memory: as HdrHistogram does, each
// power of two of nanoseconds is divided into 32 equal parts. Safe for concurrent use.
type histogram struct {
	mu struct {
		sync.Mutex
		counts [(64 - subBits) << subBits]int64
		total  int64
		most   time.Duration
	}
}

const subBits = 5

// slot is the part that n nanoseconds belong to.
func slot(n uint64) int {
	shift := max(bits.Len64(n)-subBits-1, 0)
	return shift<<subBits + int(n>>shift)
}

// slotTop is the longest duration of a part.
func slotTop(i int) time.Duration {
	shift := max(i>>subBits-1, 0)
	return time.Duration((uint64(i-shift<<subBits)+1)<<shift - 1)
}

// add counts one duration.
func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.counts[slot(uint64(d))]++
	h.mu.total++
	h.mu.most = max(h.mu.most, d)
}

// latencies is what is said of a histogram, in milliseconds.
type latencies struct {
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func (h *histogram) latencies() latencies {
	h.mu.Lock()
	defer h.mu.Unlock()
	return latencies{
		P50: h.quantileLocked(0.5), P95: h.quantileLocked(0.95), P99: h.quantileLocked(0.99), P999: h.quantileLocked(0.999),
		Max: millis(h.mu.most),
	}
}

// quantileLocked is the duration, in milliseconds, that the share q of all did not exceed.
func (h *histogram) quantileLocked(q float64) float64 {
	rank, seen := int64(q*float64(h.mu.total)), int64(0)
	for i, n := range h.mu.counts {
		if seen += n; seen > rank {
			return millis(min(slotTop(i), h.mu.most))
		}
	}
	return millis(h.mu.most)
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
