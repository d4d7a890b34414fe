package sim

import (
	"fmt"
	"math/bits"
	"strings"

	"leat/storage"
)

// xrec is a record of one: the leader epoch it was written in, and its value. It
// is told apart only from others at its offset.
type xrec struct{ epoch, value uint8 }

// xlog is a log of at most eight single records from offset 0, in a page cache.
// Offset i is the byte i of packed: the epoch in its upper half, the value in the
// lower. The bytes from n on are 0.
type xlog struct {
	packed uint64
	n      int8
}

// How many records a log, leader epochs a cluster and values an offset may have at
// the most.
const (
	mostRecords = 8
	mostEpochs  = 16
	mostValues  = 16
)

func (l xlog) at(i int64) xrec {
	b := byte(l.packed >> (8 * i))
	return xrec{b >> 4, b & 15}
}

func (l xlog) end() int64 { return int64(l.n) }

func (l *xlog) append(r xrec) {
	if l.n == mostRecords || r.epoch >= mostEpochs || r.value >= mostValues {
		panic(fmt.Sprintf("%v does not fit behind %v", r, *l))
	}
	l.packed |= uint64(r.epoch<<4|r.value) << (8 * l.n)
	l.n++
}

func (l *xlog) cut(end int64) { *l = l.to(end) }

// to is the log up to an offset.
func (l xlog) to(end int64) xlog { return xlog{l.packed & (1<<(8*end) - 1), int8(end)} }

// has reports whether the log begins with another.
func (l xlog) has(o xlog) bool { return l.n >= o.n && l.to(o.end()) == o }

// differ is the first offset where two logs are not equal, as far as both go.
func (l xlog) differ(o xlog) int64 {
	return min(int64(bits.TrailingZeros64(l.packed^o.packed)/8), l.end(), o.end())
}

// renamed has the epochs of the records become others.
func (l xlog) renamed(epochs *xepochs) (out xlog) {
	for i := range l.end() {
		out.append(xrec{epochs[l.at(i).epoch], l.at(i).value})
	}
	return out
}

func (l xlog) String() string {
	var s strings.Builder
	for i := range l.end() {
		fmt.Fprintf(&s, "[%d:%d]", l.at(i).epoch, l.at(i).value)
	}
	return s.String()
}

// Offsets implements replication.Log.
func (l *xlog) Offsets() storage.Offsets { return storage.Offsets{Durable: l.end(), End: l.end()} }

// EpochEnd implements replication.Log.
func (l *xlog) EpochEnd(epoch int32) (found int32, end int64, err error) {
	for end = l.end(); end > 0; end-- {
		if e := int32(l.at(end - 1).epoch); e <= epoch {
			return e, end, nil
		}
	}
	return -1, 0, nil
}
