package sim

import "testing"

// unclean has a node lead a new epoch by an unclean election, alone in sync.
func (s *stage) unclean(node, epoch int32) {
	p := partitionOf(node, epoch, epoch, node)
	p.Recovering = true
	s.decree(p)
	for _, a := range s.replicas {
		a.leads = false
	}
	s.replicas[node].part, s.replicas[node].leads, s.replicas[node].maximal = p, true, p.ISR
	s.took(node, staged, epoch)
}

// ends puts the log of a node into the history, as the leader's at the end, and has
// it judged with all that was sent.
func (s *stage) ends(node int32) {
	for _, b := range []batch{batchOf(0, 0, 1, 2), batchOf(2, 0, 3, 1)} {
		s.h.sent(s.h.send(9, staged, -1, b.value, b.count, true), okay, b.base, b.epoch)
	}
	s.h.sent(s.h.send(9, staged, -1, 4, 1, true), unknown, -1, -1) // it was not committed
	log := s.logs[node]
	s.h.final(staged, node, log.start, s.replicas[node].hw, log.batches)
	for _, a := range s.h.check() {
		s.faults = append(s.faults, a.name)
	}
}

// bringsBack has an unclean election of node 2 give up what one of node 1 brings
// back, with which node 3 follows.
func (s *stage) bringsBack() {
	s.crash(2, 2)
	s.unclean(2, 2)
	s.unclean(1, 3)
	s.replicas[3].part = s.replicas[1].part
}

// What an unclean election may lose is lost, and no more: neither what a clean one
// must have, nor what is there again.
func TestInvariantsUnclean(t *testing.T) {
	b2 := batchOf(3, 0, 4, 1)
	act(t, map[string]scene{
		"a log that begins within what is lost": {"", func(s *stage) {
			s.write(2, b2)
			s.write(3, b2)
			for _, node := range s.nodes() {
				s.write(node, batchOf(4, 0, 5, 2))
			}
			s.raise(1, 6)
			s.logs[2].restart(5)
			s.logs[2].settle()
			s.replicas[2].hw = 5
			s.recovered(2, staged, 6, true)
			s.unclean(2, 2)
			s.write(2, batchOf(5, 2, 9, 1))
			s.raise(2, 6)
		}},
		"what a leader commits that does not know yet that another leads": {"", func(s *stage) {
			s.unclean(2, 2)
			s.replicas[1].leads = true
			s.raise(1, 4) // b2
			s.replicas[1].leads = false
			s.write(2, batchOf(3, 2, 9, 1))
			s.raise(2, 4)
		}},
		"a log that begins within what is brought back": {"", func(s *stage) {
			s.write(2, b2)
			for _, node := range []int32{1, 2} {
				s.write(node, batchOf(4, 0, 5, 2))
			}
			s.crash(3, 0)
			s.unclean(3, 2)
			s.logs[1].raise(5)
			s.unclean(1, 3)
			s.raise(1, 6)
		}},
		"I7 a log without the beginning of what is brought back": {"I7", func(s *stage) {
			s.write(2, b2)
			for _, node := range []int32{1, 2} {
				s.write(node, batchOf(4, 0, 5, 2))
			}
			s.crash(3, 0)
			s.unclean(3, 2)
			s.unclean(1, 3)
			s.logs[1].batches = s.logs[1].batches[1:]
			s.raise(1, 6)
		}},
		"the others follow": {"", func(s *stage) {
			s.decree(partitionOf(-1, 1, 1, 1))
			s.crash(2, 2)
			s.unclean(2, 2)
			s.raise(2, 2)
			s.replicas[1].part = s.replicas[2].part
			s.logs[1].truncate(2)
			s.replicas[1].hw = 2
			s.cut(1, staged, 2, 3)
			s.moved(1, staged)
		}},
		"I8 one comes in without what was brought back": {"I8", func(s *stage) {
			s.crash(2, 2)
			for node := int32(2); node > 0; node-- {
				s.unclean(node, 4-node)
				s.raise(node, s.logs[node].end)
			}
			s.decree(partitionOf(1, 3, 4, 1, 2))
		}},
		"a deposed leader knows of none": {"", func(s *stage) {
			s.crash(2, 2)
			s.unclean(2, 2)
			s.replicas[1].leads = true
			s.logs[3].truncate(2)
			s.replicas[3].hw = 2
			s.cut(3, staged, 2, 3)
			s.moved(1, staged)
		}},
		"one loses": {"", func(s *stage) {
			s.crash(2, 2)
			s.unclean(2, 2)
			s.ends(2)
		}},
		"one loses, another brings back": {"", func(s *stage) {
			s.crash(2, 2)
			s.unclean(2, 2)
			s.unclean(1, 3)
			s.raise(1, 4)
			s.ends(1)
		}},
		"one brings back what another one takes again, before anybody has it": {"", func(s *stage) {
			s.crash(2, 2)
			s.unclean(2, 2)
			s.unclean(1, 3)
			s.unclean(2, 4)
			s.ends(2)
		}},
		"one brings back what another one takes again, when it is committed": {"", func(s *stage) {
			s.crash(2, 2)
			s.unclean(2, 2)
			s.unclean(1, 3)
			s.raise(1, 4)
			s.unclean(2, 4)
			s.ends(2)
		}},
		"a follower knows what is brought back to be committed": {"", func(s *stage) {
			s.bringsBack()
			s.moved(3, staged)
			s.raise(1, 4)
			s.write(3, b2)
			s.raise(3, 4)
		}},
		"a follower that starts knows what is brought back to be committed": {"", func(s *stage) {
			s.bringsBack()
			s.recovered(3, staged, 3, false)
			s.moved(3, staged)
		}},
		"a follower that has not heard hears from one that was deposed what is brought back": {"", func(s *stage) {
			s.bringsBack()
			s.replicas[3].part = partitionOf(1, 0, 0, 1, 2, 3)
			s.write(3, b2)
			s.raise(3, 4)
		}},
		"I7 a follower takes what is brought back for committed before its leader does": {"I7", func(s *stage) {
			s.bringsBack()
			s.moved(3, staged)
			s.write(3, b2)
			s.raise(3, 4)
		}},
		"I7 a follower knows something else to be committed than what is brought back": {"I7", func(s *stage) {
			s.bringsBack()
			s.raise(1, 4)
			s.logs[3].batches[1] = batchOf(2, 0, 9, 1)
			s.moved(3, staged)
		}},
		"one brings back what another one keeps, and it is gone": {"lost-write", func(s *stage) {
			s.crash(2, 2)
			s.unclean(2, 2)
			s.unclean(1, 3)
			s.unclean(1, 4)
			s.ends(2)
		}},
	})
}
