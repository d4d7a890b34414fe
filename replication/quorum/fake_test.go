package quorum

import (
	"io"
	"iter"
)

// noStore is an empty store.
type noStore struct{}

func (noStore) Get([]byte) ([]byte, error)                       { return nil, ErrNotFound }
func (noStore) Scan([]byte, func(key, value []byte) error) error { return nil }
func (noStore) Save(Write) error                                 { return nil }

// noMachine is a machine without a state.
type noMachine struct{}

func (noMachine) Apply(Writer, []Entry) error            { return nil }
func (noMachine) Snapshot() Snapshot                     { return noMachine{} }
func (noMachine) Restore(Writer, iter.Seq[[]byte]) error { return nil }
func (noMachine) Next() ([]byte, error)                  { return nil, io.EOF }
