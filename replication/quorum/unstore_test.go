package quorum

import (
	"bytes"
	"testing"
)

// TestUnstore proves that all entries of a span leave the store, one by one or as a
// range, and no other.
func TestUnstore(t *testing.T) {
	for _, n := range []uint64{0, 1, 10, 4097, 4098, 10000} {
		const from = 7
		c := &Core{}
		c.unstore(from, from+n-1)
		gone := func(index uint64) bool {
			key := indexKey(keyLog, index)
			for _, ch := range c.staged {
				if bytes.Equal(ch.Key, key) || ch.To != nil && bytes.Compare(ch.Key, key) <= 0 && bytes.Compare(key, ch.To) < 0 {
					return true
				}
			}
			return false
		}
		for _, index := range []uint64{from - 1, from, from + n/2, from + n - 1, from + n} {
			if want := index >= from && index < from+n; gone(index) != want {
				t.Errorf("of %d from %d: %d is removed: %t", n, from, index, !want)
			}
		}
		if most := 4097; len(c.staged) > most {
			t.Errorf("%d changes for %d entries", len(c.staged), n)
		}
	}
}
