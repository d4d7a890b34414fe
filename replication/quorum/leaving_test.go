package quorum_test

import (
	"errors"
	"testing"

	"leat/replication/quorum"
)

// TestRemovedLeader proves that the other of two voters can lead when the leader
// was removed and has not got round to say that this is committed: the log of who
// goes ends with that, whether it has removed itself or finds that another leader
// meant to.
func TestRemovedLeader(t *testing.T) {
	for _, found := range []bool{false, true} {
		c := newCluster(t, quorum.Options{}, 1, 2)
		goes := c.elect()
		stays := c.nodes[goes.id%2+1]
		if found {
			goes, stays = stays, goes
			c.cut[[2]uint64{goes.id, stays.id}] = true
			if err := stays.core.Remove(c.id(), goes.id); err != nil {
				t.Fatal(err)
			}
			c.settle()
			c.restart(stays, stays.store.Kill())
			c.cut[[2]uint64{goes.id, stays.id}] = false
			_ = goes.core.Campaign()
		} else if err := goes.core.Remove(c.id(), goes.id); err != nil {
			t.Fatal(err)
		}
		commit, asked := stays.core.Status().Commit, 0
		c.sent = func(m quorum.Message) {
			st := goes.core.Status()
			if st.Role == quorum.Leader && len(st.Voters) == 2 {
				asked++
				if err := goes.core.Propose(c.id(), []byte("behind")); !errors.Is(err, quorum.ErrDropped) {
					t.Errorf("found %v: a leader that goes takes a proposal: %v", found, err)
				}
			}
			if m.From == goes.id && m.Raft != nil && m.Raft.GetCommit() > commit {
				c.cut[[2]uint64{goes.id, stays.id}] = true
			}
		}
		c.settle()
		if st := goes.core.Status(); asked == 0 || len(st.Voters) != 1 || len(stays.core.Status().Voters) != 2 {
			t.Fatalf("found %v: asked %d times: %+v, %+v", found, asked, st, stays.core.Status())
		}
		c.sent = nil
		c.cut[[2]uint64{goes.id, stays.id}] = false
		c.restart(goes, goes.store.Kill())
		if c.tick(100); c.leader() != stays {
			t.Errorf("found %v: nobody leads: %+v, %+v", found, goes.core.Status(), stays.core.Status())
		}
	}
}
