package controller

import (
	"iter"
	"maps"
	"slices"
)

// buckets is into how many maps a table is divided.
const buckets = 256

// table is a map of which a copy shares all that it does not change: editing one
// entry of a copy costs a bucket, not the whole.
type table[K comparable, V any] struct {
	hash  func(K) byte
	parts []map[K]V
	// own tells which buckets are this copy's own; nil: not even parts is.
	own []bool
	len int
}

func newTable[K comparable, V any](hash func(K) byte) table[K, V] {
	return table[K, V]{hash: hash, parts: make([]map[K]V, buckets)}
}

// edit is a copy that may be changed until it is sealed; t stays as it is.
func (t *table[K, V]) edit() table[K, V] {
	c := *t
	c.own = nil
	return c
}

// seal ends the changes.
func (t *table[K, V]) seal() { t.own = nil }

func (t *table[K, V]) get(k K) V { return t.parts[t.hash(k)][k] }

func (t *table[K, V]) has(k K) bool {
	_, ok := t.parts[t.hash(k)][k]
	return ok
}

// bucket is the map of k, to be written.
func (t *table[K, V]) bucket(k K) map[K]V {
	i := t.hash(k)
	if t.own == nil {
		t.parts, t.own = slices.Clone(t.parts), make([]bool, buckets)
	}
	if !t.own[i] {
		t.own[i] = true
		if t.parts[i] = maps.Clone(t.parts[i]); t.parts[i] == nil {
			t.parts[i] = map[K]V{}
		}
	}
	return t.parts[i]
}

func (t *table[K, V]) set(k K, v V) {
	b := t.bucket(k)
	before := len(b)
	b[k] = v
	t.len += len(b) - before
}

func (t *table[K, V]) remove(k K) {
	if t.has(k) {
		delete(t.bucket(k), k)
		t.len--
	}
}

// all gives the entries in no order.
func (t *table[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, m := range t.parts {
			if len(m) == 0 {
				continue // most are, and a range over a map is dear
			}
			for k, v := range m {
				if !yield(k, v) {
					return
				}
			}
		}
	}
}
