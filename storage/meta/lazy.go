package meta

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// CommitLazy applies b atomically and does not wait for the disk: the end of
// the process may lose it, and every later lazy commit with it, until the next
// Commit or Sync. It is for state that can be made again from a log. Errors are
// those of Commit.
func (db *DB) CommitLazy(b *Batch) error {
	return db.apply("commit", b, func() error {
		if err := db.pebble.Apply(b.pebble, pebble.NoSync); err != nil {
			return err
		}
		return b.pebble.Close()
	})
}

// Sync makes every lazy commit durable that has returned.
func (db *DB) Sync() error {
	return db.apply("sync", nil, func() error { return db.pebble.LogData(nil, pebble.Sync) })
}

// apply runs fn, which writes b, if there is one, to Pebble. Its error is final
// for the whole store.
func (db *DB) apply(op string, b *Batch, fn func() error) error {
	if err := db.err(); err != nil {
		return err
	}
	if b != nil && db.room != nil {
		if err := db.room(int64(b.pebble.Len())); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	if err := db.unlessFailed(fn); err != nil {
		db.fail(err)
	}
	// Pebble reports a failed commit to its logger and returns nil, so the
	// failure noted there is the answer.
	if err := db.err(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}
