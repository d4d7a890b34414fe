package controller

import "strconv"

// Factor is the number of replicas that the partition is meant to have: those
// that a reassignment brings do not count before it ends, so that a topic that
// grows from one replica to three takes records meanwhile.
func (p *Partition) Factor() int { return len(p.Replicas) - len(p.Adding) }

// MinInSync is how many replicas of a partition must be in sync for its high
// watermark to move: min.insync.replicas of the topic, else of all brokers, else
// 2 from three replicas on and 1 below, and never more than there are replicas.
// A leader may ask for more, never for less: eligible leader replicas stand on it.
func (s *State) MinInSync(t *Topic, replicas int) int {
	return minInSync(t.Configs, s.configs[AllBrokers], replicas)
}

func minInSync(topic, brokers map[string]string, replicas int) int {
	n := 1
	if replicas >= 3 {
		n = 2
	}
	for _, set := range []map[string]string{brokers, topic} {
		if v, err := strconv.Atoi(set["min.insync.replicas"]); err == nil && v > 0 {
			n = v
		}
	}
	return min(n, replicas)
}

// uncleanEnabled is unclean.leader.election.enable of a topic of these configs.
func uncleanEnabled(s *State, topic map[string]string) bool {
	for _, set := range []map[string]string{topic, s.configs[AllBrokers]} {
		if v, ok := set["unclean.leader.election.enable"]; ok {
			return v == "true"
		}
	}
	return false
}
