package quorum

import "leat/storage/meta"

// metaStore is the Store over Pebble.
type metaStore struct{ *meta.DB }

// NewStore is the Store in the node's key-value store.
func NewStore(db *meta.DB) Store { return metaStore{db} }

// Save implements Store.
func (s metaStore) Save(w Write) error {
	if len(w.Changes) == 0 {
		if w.Sync {
			return s.Sync()
		}
		return nil
	}
	b := s.NewBatch()
	w.Apply(b)
	if w.Sync {
		return s.Commit(b)
	}
	return s.CommitLazy(b)
}
