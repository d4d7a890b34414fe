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
	if err := db.admit(b); err != nil {
		return err
	}
	return db.commit(b, pebble.NoSync)
}

// CommitAdmitted is Commit, or CommitLazy if sync is false, without asking
// Options.Room: for a commit that cannot be taken back, because what led to it
// was admitted with Room.
func (db *DB) CommitAdmitted(b *Batch, sync bool) error {
	if sync {
		return db.commit(b, pebble.Sync)
	}
	return db.commit(b, pebble.NoSync)
}

// Room is nil if there is room for a commit of so many bytes, or the error of
// Options.Room, or why the store cannot be used.
func (db *DB) Room(bytes int64) error {
	if err := db.err(); err != nil || db.room == nil {
		return err
	}
	return db.room(bytes)
}

// admit asks for room for b.
func (db *DB) admit(b *Batch) error {
	if err := db.err(); err != nil || db.room == nil {
		return err
	}
	if err := db.room(int64(b.pebble.Len())); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func (db *DB) commit(b *Batch, how *pebble.WriteOptions) error {
	return db.apply("commit", func() error {
		if err := db.pebble.Apply(b.pebble, how); err != nil {
			return err
		}
		return b.pebble.Close()
	})
}

// Sync makes every lazy commit durable that has returned.
func (db *DB) Sync() error {
	return db.apply("sync", func() error { return db.pebble.LogData(nil, pebble.Sync) })
}

// apply runs fn, which writes to Pebble. Its error is final for the whole store.
func (db *DB) apply(op string, fn func() error) error {
	if err := db.err(); err != nil {
		return err
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
