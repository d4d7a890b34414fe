package sim

import (
	"testing"

	"leat/replication/controller"
)

// returns has node 3 out of sync, lose all behind an end and register again.
func (s *stage) returns(end int64) {
	s.os = true
	s.crash(3, end)
	s.decree(partitionOf(1, 0, 1, 1, 2))
	s.record(&controller.BrokerRegistered{Broker: controller.Broker{ID: 3, Epoch: 4, Incarnation: "new"}})
}

// joins has node 2 lead, which does not know of the newest record that is committed,
// and node 3 come into sync again.
func (s *stage) joins() {
	s.replicas[2].hw = 2
	s.lead(2, 1, 1, 2)
	s.decree(partitionOf(2, 1, 3, 1, 2, 3))
}

// Who comes into sync holds all that may be committed.
func TestInvariantsJoin(t *testing.T) {
	b2 := batchOf(3, 0, 4, 1)
	act(t, map[string]scene{
		"without what it lost": {"I8", func(s *stage) {
			s.returns(2)
			s.decree(partitionOf(1, 0, 2, 1, 2, 3))
		}},
		"its crash is news": {"", func(s *stage) {
			s.os = true
			s.decree(partitionOf(1, 0, 1, 1, 2))
			s.crash(3, 2)
			s.decree(partitionOf(1, 0, 2, 1, 2, 3))
		}},
		"without what its leader does not know to be committed": {"I8", func(s *stage) {
			s.returns(2)
			s.joins()
		}},
		"with what its leader does not know to be committed": {"", func(s *stage) {
			s.returns(3)
			s.joins()
		}},
		"without what its leader began with": {"I8", func(s *stage) {
			s.returns(3)
			s.write(2, b2)
			s.joins()
		}},
		"with what its leader began with": {"", func(s *stage) {
			s.returns(3)
			s.write(2, b2)
			s.write(3, b2)
			s.joins()
		}},
		"without what its leader has written since": {"", func(s *stage) {
			s.returns(3)
			s.lead(2, 1, 1, 2)
			s.write(2, batchOf(3, 1, 9, 1))
			s.decree(partitionOf(2, 1, 3, 1, 2, 3))
		}},
	})
}
