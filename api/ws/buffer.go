package ws

import "sync"

// headRoom is the space before a message for the head of its frame, so that
// both leave by one write.
const headRoom = 10

// buffer holds one message, from headRoom on. It comes from a pool and goes
// back by release.
type buffer struct {
	b     []byte
	class int
}

// classes are the capacities of pooled buffers. The steps fit frames of the
// default and of the largest size, with their heads.
var classes = [...]int{2 << 10, 8 << 10, 32 << 10, 80 << 10, 288 << 10}

var bufferPools [len(classes)]sync.Pool

// newBuffer returns an empty buffer for a message of size bytes.
func newBuffer(size int) *buffer {
	size += headRoom
	for i, most := range classes {
		if size > most {
			continue
		}
		if b, ok := bufferPools[i].Get().(*buffer); ok {
			return b
		}
		return &buffer{b: make([]byte, headRoom, most), class: i}
	}
	return &buffer{b: make([]byte, headRoom, size), class: -1}
}

// message is what the buffer holds.
func (b *buffer) message() []byte { return b.b[headRoom:] }

// release gives the buffer back, which must not be used after it.
func (b *buffer) release() {
	if b.class < 0 || cap(b.b) > classes[b.class] {
		return
	}
	b.b = b.b[:headRoom]
	bufferPools[b.class].Put(b)
}
