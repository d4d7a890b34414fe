package quorum

import "leat/storage/meta"

// metaStore is the Store over Pebble.
type metaStore struct{ *meta.DB }

// NewStore is the Store in the node's key-value store.
func NewStore(db *meta.DB) Store { return metaStore{db} }

// Save implements Store. Nobody is asked for room: a Write that is refused would end
// the Core, so room is asked for before a proposal is made.
func (s metaStore) Save(w Write) error {
	if len(w.Changes) == 0 {
		if w.Sync {
			return s.Sync() // of an empty batch Pebble syncs nothing
		}
		return nil
	}
	b := s.NewBatch()
	w.Apply(b)
	return s.CommitAdmitted(b, w.Sync)
}
