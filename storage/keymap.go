package storage

import (
	"math/bits"

	"leat/storage/record"
)

const (
	keySlotBytes = 24
	// keyLoad is how many of ten slots may be used, so that a search ends soon.
	keyLoad = 9
)

// keyMap knows of each key the newest of some records: a table of fixed size
// with open addressing, from which nothing is removed.
type keyMap struct {
	slots []keySlot
	used  int
	limit int // of used
}

type keySlot struct {
	key    record.KeyHash
	offset int64 // plus one; 0 is a free slot
}

// reset empties the map. It has room for so many keys if they fit into so many
// bytes, and for one in any case.
func (m *keyMap) reset(maxBytes, keys int64) {
	n := int(max(min(maxBytes/keySlotBytes, keys+keys/keyLoad+2), 2))
	if n > cap(m.slots) {
		m.slots = nil // before there are two of them
		m.slots = make([]keySlot, n)
	} else {
		m.slots = m.slots[:n]
		clear(m.slots)
	}
	m.used, m.limit = 0, max(n*keyLoad/10, 1)
}

// find is the key's slot, or the free one where it belongs.
func (m *keyMap) find(k record.KeyHash) *keySlot {
	hi, _ := bits.Mul64(k.Hi, uint64(len(m.slots)))
	for i := int(hi); ; {
		s := &m.slots[i]
		if s.offset == 0 || s.key == k {
			return s
		}
		if i++; i == len(m.slots) {
			i = 0
		}
	}
}

// put says that the record at offset, which is greater than all before, has the
// key; false if there is no room for another key.
func (m *keyMap) put(k record.KeyHash, offset int64) bool {
	s := m.find(k)
	if s.offset == 0 {
		if m.used == m.limit {
			return false
		}
		m.used++
		s.key = k
	}
	s.offset = offset + 1
	return true
}

// newest is the offset of the newest record with the key, -1 if there is none.
func (m *keyMap) newest(k record.KeyHash) int64 { return m.find(k).offset - 1 }
