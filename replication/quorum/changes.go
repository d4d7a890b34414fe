package quorum

import "bytes"

// Change is one change of a Write: a Set if Value is not nil, a DeleteRange of
// [Key, To) if To is not nil, else a Delete.
type Change struct {
	Key, Value, To []byte
}

// Write is what must be saved next, all of it or nothing.
type Write struct {
	// Changes are made in order.
	Changes []Change
	// Sync says that it must be durable, with all that was saved before, when
	// Save returns. Without it a crash may lose it, but nothing before it.
	Sync bool
	// Term, Vote and Last are what the store holds after it: the term, who the vote
	// was given to in it, and the last entry.
	Term, Vote, Last uint64
}

// Apply makes the changes in w.
func (w *Write) Apply(to Writer) {
	for _, c := range w.Changes {
		switch {
		case c.Value != nil:
			to.Set(c.Key, c.Value)
		case c.To != nil:
			to.DeleteRange(c.Key, c.To)
		default:
			to.Delete(c.Key)
		}
	}
}

// changes is the Writer that makes Changes.
type changes []Change

func (c *changes) Set(key, value []byte) {
	c.own(bytes.Clone(key), append(make([]byte, 0, len(value)), value...))
}

// own is Set for slices that nobody changes any more. value is not nil.
func (c *changes) own(key, value []byte) { *c = append(*c, Change{Key: key, Value: value}) }

func (c *changes) Delete(key []byte) { *c = append(*c, Change{Key: bytes.Clone(key)}) }

func (c *changes) DeleteRange(from, to []byte) {
	*c = append(*c, Change{Key: bytes.Clone(from), To: append(make([]byte, 0, len(to)), to...)})
}

// Store keeps what Writes say. It is one Core's.
type Store interface {
	// Get returns the value of a key, or ErrNotFound.
	Get(key []byte) ([]byte, error)
	// Scan calls fn for the keys with the prefix, in order. The slices are valid
	// in the call only. An error of fn ends it and is returned.
	Scan(prefix []byte, fn func(key, value []byte) error) error
	// Save makes a Write, all of it or nothing, in the order of the calls. After
	// an error what is stored is not known: Core.Failed is called.
	Save(w Write) error
}
