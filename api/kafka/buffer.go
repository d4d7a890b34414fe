package kafka

import (
	"math/bits"
	"sync"
)

// Buffers are pooled by the power of two that their capacity reaches, from
// 4 KiB to 4 MiB; what is larger is left to the collector.
const (
	minClass = 12
	maxClass = 22
)

// buffer is a pooled slice. Its owner may grow b by append.
type buffer struct{ b []byte }

var pools [maxClass + 1]sync.Pool

// classOf is the class that has room for n bytes; it may be above maxClass.
func classOf(n int) int { return max(bits.Len(uint(max(n, 1)-1)), minClass) }

// bufferSize is the memory that getBuffer takes for n bytes.
func bufferSize(n int) int {
	if class := classOf(n); class <= maxClass {
		return 1 << class
	}
	return n
}

// getBuffer returns an empty buffer with room for n bytes.
func getBuffer(n int) *buffer {
	class := classOf(n)
	if class > maxClass {
		return &buffer{b: make([]byte, 0, n)}
	}
	if buf, ok := pools[class].Get().(*buffer); ok {
		return buf
	}
	return &buffer{b: make([]byte, 0, 1<<class)}
}

// put gives the buffer back; nobody may hold a slice of it any more. A nil
// buffer is ignored.
func (buf *buffer) put() {
	if buf == nil {
		return
	}
	class := bits.Len(uint(cap(buf.b))) - 1
	if class < minClass || class > maxClass {
		return
	}
	buf.b = buf.b[:0]
	pools[class].Put(buf)
}
