package quorum_test

import (
	"errors"
	"testing"
	"testing/cryptotest"
	"testing/synctest"

	"leat/replication/quorum"
)

// TestShellLeftAlone proves that a member leads that is the only one left when its
// leader has removed itself.
func TestShellLeftAlone(t *testing.T) {
	cryptotest.SetGlobalRandom(t, 1)
	synctest.Test(t, func(t *testing.T) {
		s := startShells(t, 1, 2)
		old, _ := s.leader(t, 0)
		remove := func(c *quorum.Core) error { return c.Remove(pid(1), old) }
		if _, err := s.node(old).Change(t.Context(), pid(1), remove); !errors.Is(err, quorum.ErrUnknownOutcome) {
			t.Fatal(err)
		}
		id, _ := s.leader(t, old)
		if _, err := s.node(id).Propose(t.Context(), pid(2), nil); err != nil {
			t.Error(err)
		}
	})
}
