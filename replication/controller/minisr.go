package controller

import "strconv"

// The configs that decide who may lead, by name.
const (
	minISRConfig  = "min.insync.replicas"
	uncleanConfig = "unclean.leader.election.enable"
)

// Factor is the number of replicas that the partition is meant to have: those
// that a reassignment brings do not count before it ends, so that a topic that
// grows from one replica to three takes records meanwhile.
func (p *Partition) Factor() int { return len(p.Replicas) - len(p.Adding) }

// MinInSync is how many replicas of a partition must be in sync for its high
// watermark to move: min.insync.replicas of the topic, else of all brokers, else
// 2 from three replicas on and 1 below, and never more than there are replicas.
// A leader may ask for more, never for less: eligible leader replicas stand on it.
func (s *State) MinInSync(t *Topic, replicas int) int {
	n := 1
	if replicas >= 3 {
		n = 2
	}
	for _, set := range []map[string]string{s.configs[AllBrokers], t.Configs} {
		if v, err := strconv.Atoi(set[minISRConfig]); err == nil && v > 0 {
			n = v
		}
	}
	return min(n, replicas)
}

// uncleanEnabled is unclean.leader.election.enable of a topic of these configs.
func uncleanEnabled(s *State, topic map[string]string) bool {
	for _, set := range []map[string]string{topic, s.configs[AllBrokers]} {
		if v, ok := set[uncleanConfig]; ok {
			return v == "true"
		}
	}
	return false
}
