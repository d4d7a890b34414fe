package quorum

import (
	"errors"
	"testing"

	"go.etcd.io/raft/v3/raftpb"
)

// TestEntriesOfAMessage proves that entries are taken only one after the other, with
// terms that do not fall and are none after the sender's.
func TestEntriesOfAMessage(t *testing.T) {
	for name, c := range map[string]struct {
		entries [][2]uint64 // index, term
		ok      bool
	}{
		"none":                      {nil, true},
		"in order":                  {[][2]uint64{{5, 2}, {6, 2}, {7, 5}}, true},
		"one is missing before":     {[][2]uint64{{6, 2}}, false},
		"one is missing between":    {[][2]uint64{{5, 2}, {7, 2}}, false},
		"one comes twice":           {[][2]uint64{{5, 2}, {5, 2}}, false},
		"a term before the log's":   {[][2]uint64{{5, 1}}, false},
		"a term that falls":         {[][2]uint64{{5, 4}, {6, 3}}, false},
		"a term after the sender's": {[][2]uint64{{5, 2}, {6, 6}}, false},
	} {
		m := &raftpb.Message{Index: new(uint64(4)), LogTerm: new(uint64(2)), Term: new(uint64(5))}
		for _, e := range c.entries {
			m.Entries = append(m.Entries, &raftpb.Entry{Index: &e[0], Term: &e[1]})
		}
		if err := checkEntries(m); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
