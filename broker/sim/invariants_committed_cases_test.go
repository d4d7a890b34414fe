package sim

import (
	"testing"

	"leat/replication/controller"
)

// What is committed and answered is held by as many as it must be, is read by nobody
// before, and is there once.
func TestInvariantsCommitted(t *testing.T) {
	b0, b1, b2 := batchOf(0, 0, 1, 2), batchOf(2, 0, 3, 1), batchOf(3, 0, 4, 1)
	act(t, map[string]scene{
		"I12 too few in sync": {"I12", func(s *stage) {
			p := partitionOf(1, 0, 1, 1)
			s.decree(p)
			s.replicas[1].part, s.replicas[1].maximal = p, p.ISR
			s.raise(1, 4)
		}},
		"I12 a reassignment has ended, which the leader has not heard": {"", func(s *stage) {
			s.write(2, b2)
			s.write(3, b2)
			s.replicas[1].part.ISR, s.replicas[1].part.Adding = []int32{1}, []int32{2, 3}
			s.raise(1, 4)
		}},
		"I13 not committed": {"I13", func(s *stage) { s.acked(1, staged, &b2, -1) }},
		"I13 not durable": {"I13", func(s *stage) {
			s.logs[2].durable, s.logs[3].durable = 2, 2
			s.acked(1, staged, &b1, -1)
		}},
		"I13 held by a disk that was replaced": {"", func(s *stage) {
			s.wiped(2, staged, diskReplaced)
			s.wiped(3, staged, diskReplaced)
			delete(s.logs, 2)
			delete(s.logs, 3)
			s.acked(1, staged, &b1, -1)
		}},
		"I13 held by those who are taken away, which the leader has not heard": {"", func(s *stage) {
			p := partitionOf(1, 1, 1, 1)
			p.Replicas = []int32{1}
			s.decree(p)
			for _, node := range []int32{2, 3} {
				s.wiped(node, staged, "unassigned")
				delete(s.logs, node)
			}
			s.acked(1, staged, &b1, -1)
		}},
		"I13 not held by those who are taken away": {"I13", func(s *stage) {
			p := partitionOf(1, 1, 1, 1)
			p.Replicas = []int32{1}
			s.decree(p)
			for _, node := range []int32{2, 3} {
				s.logs[node].truncate(2)
				s.cut(node, staged, 2, 2)
				s.wiped(node, staged, "unassigned")
				delete(s.logs, node)
			}
			s.acked(1, staged, &b1, -1)
		}},
		"I13 of a topic that is gone": {"", func(s *stage) {
			next, _ := s.newest.With([]controller.Record{&controller.TopicRemoved{ID: staged.Topic}})
			s.apply(next)
			delete(s.logs, 2)
			delete(s.logs, 3)
			s.acked(1, staged, &b1, -1)
		}},
		"I13 deleted since, which the leader has not heard": {"", func(s *stage) {
			s.logs[2].raise(3)
			s.logs[3].raise(3)
			s.acked(1, staged, &b1, -1)
		}},
		"I13 deleted since, but it was another": {"I13", func(s *stage) {
			s.logs[2].raise(3)
			s.logs[3].raise(3)
			other := b1
			other.epoch = 5
			s.acked(1, staged, &other, -1)
		}},
		"I13 not in the logs of others": {"I13", func(s *stage) {
			delete(s.logs, 2)
			delete(s.logs, 3)
			s.acked(1, staged, &b1, -1)
		}},
		"I13 in memory of another": {"", func(s *stage) {
			s.os = true
			s.logs[2].durable, s.logs[3].durable = 2, 2
			s.acked(1, staged, &b1, -1)
		}},
		"I14 above the high watermark": {"I14", func(s *stage) { s.served(1, staged, 0, 4) }},
		"I15 below the high watermark": {"I15", func(s *stage) {
			s.logs[2].truncate(2)
			s.replicas[2].hw = 2
			s.cut(2, staged, 2, 3)
		}},
		"I17 twice": {"I17", func(s *stage) {
			s.rest()
			s.again(b0)
		}},
		"I17 twice, the first time is deleted in a log that began later": {"", func(s *stage) {
			s.rest()
			s.logs[1].restart(4)
			s.again(b0)
		}},
		"I17 twice, the first time is deleted and not forgotten": {"I17", func(s *stage) {
			s.rest()
			s.logs[1].raise(3)
			s.again(b0)
		}},
	})
}
