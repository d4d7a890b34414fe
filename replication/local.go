package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"leat/replication/controller"
	"leat/storage/meta"
)

// logKept is how many entries of the metadata log stay readable behind the
// newest; the state holds what older ones said.
const logKept = 1024

// Local is the Proposer of a cluster of one: it commits by itself. It is safe
// for concurrent use; proposals go one after the other.
type Local struct {
	db *meta.DB
	// turn holds one token: who has it proposes. A channel, because waiting for
	// it must end with the caller's context.
	turn  chan struct{}
	index uint64
	// trimmed is the first entry of the log that may be there, 0 before this
	// process has removed any.
	trimmed uint64
	state   atomic.Pointer[controller.State]
	// broken is the commit error that ended proposing: what the disk holds is
	// then unknown until the next start.
	broken error
}

// OpenLocal reads the metadata in db. Records of a newer binary are refused
// with controller.ErrUnknownRecord.
func OpenLocal(db *meta.DB) (*Local, error) {
	l := &Local{db: db, turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	var records []controller.Record
	err := db.Scan([]byte{meta.PrefixState}, func(_, value []byte) error {
		r, err := controller.Decode(value)
		if err != nil {
			return err
		}
		records = append(records, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	state, err := controller.NewState().With(records)
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	l.state.Store(state)
	applied, err := db.Get(meta.AppliedKey())
	switch {
	case errors.Is(err, meta.ErrNotFound):
	case err != nil:
		return nil, fmt.Errorf("read the applied index: %w", err)
	case len(applied) != 8:
		return nil, fmt.Errorf("read the applied index: %w: %d bytes", controller.ErrDamagedRecord, len(applied))
	default:
		l.index = binary.BigEndian.Uint64(applied)
	}
	return l, nil
}

// State is the newest committed state.
func (l *Local) State() *controller.State { return l.state.Load() }

// Propose decides about ev and commits the outcome in one synced batch: log
// entries, state and applied index together.
func (l *Local) Propose(ctx context.Context, ev controller.Event) (controller.Reply, error) {
	select {
	case <-l.turn:
	case <-ctx.Done():
		return controller.Reply{}, context.Cause(ctx)
	}
	defer func() { l.turn <- struct{}{} }()
	if l.broken != nil {
		return controller.Reply{}, l.broken
	}
	old := l.state.Load()
	reply, records := controller.Step(old, ev)
	if len(records) == 0 {
		return reply, nil
	}
	next, err := old.With(records)
	if err != nil {
		return controller.Reply{}, err
	}
	if err := l.commit(records); err != nil {
		err = fmt.Errorf("commit metadata: %w", err)
		if errors.Is(err, meta.ErrFailed) || errors.Is(err, meta.ErrClosed) {
			l.broken = err
		}
		return controller.Reply{}, err
	}
	l.state.Store(next)
	return reply, nil
}

func (l *Local) commit(records []controller.Record) error {
	b := l.db.NewBatch()
	index := l.index
	for _, r := range records {
		index++
		value := controller.Encode(r)
		b.Set(meta.LogKey(index), value)
		if gone, ok := r.(*controller.TopicRemoved); ok {
			from, to := controller.TopicKeys(gone.ID)
			b.DeleteRange(meta.StateKey(from), meta.StateKey(to))
		}
		key, removes := controller.Key(r)
		if removes {
			b.Delete(meta.StateKey(key))
		} else {
			b.Set(meta.StateKey(key), value)
		}
	}
	first := l.trim(b, index)
	b.Set(meta.AppliedKey(), binary.BigEndian.AppendUint64(nil, index))
	if err := l.db.Commit(b); err != nil {
		return err
	}
	l.index, l.trimmed = index, first
	return nil
}

// trim removes the entries that are not kept behind index, and returns the first
// that is. Only what came before this process is removed as a range: ranges that
// overlap cost the store memory by the square of their number.
func (l *Local) trim(b *meta.Batch, index uint64) uint64 {
	if index <= logKept {
		return l.trimmed
	}
	first := index - logKept + 1
	if l.trimmed == 0 {
		b.DeleteRange(meta.LogKey(0), meta.LogKey(first))
		return first
	}
	for i := l.trimmed; i < first; i++ {
		b.Delete(meta.LogKey(i))
	}
	return first
}
