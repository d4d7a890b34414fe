package controller

import "fmt"

// level is the feature level after a registration. The only broker raises it to
// what it knows, as it reads what it writes; where there are more UpdateLevel
// does.
func (ev *Register) level(s *State, alone bool) (uint32, error) {
	joined := Broker{MinLevel: ev.MinLevel, MaxLevel: ev.MaxLevel}
	low, high := joined.levels()
	level := s.level
	if alone {
		level = max(level, min(high, Level))
	}
	if level < low || level > high {
		return 0, fmt.Errorf("%w: the cluster is at %d, broker %d works with %d to %d", ErrUnsupportedLevel, level, ev.ID, low, high)
	}
	if !alone && level < clusterLevel {
		return 0, fmt.Errorf("%w: %d, a second broker needs %d", ErrUnsupportedLevel, level, clusterLevel)
	}
	return level, nil
}

// UpdateLevel raises the feature level. It is refused as long as a registered
// broker does not work with it.
type UpdateLevel struct{ Level uint32 }

func (ev *UpdateLevel) step(s *State) (Reply, []Record) {
	err := s.checkLevel(ev.Level)
	if err != nil || ev.Level == s.level {
		return Reply{Errs: []error{err}}, nil
	}
	return Reply{Errs: []error{nil}}, []Record{&FeatureLevel{Level: ev.Level}}
}

func (s *State) checkLevel(level uint32) error {
	if level < s.level || level > Level {
		return fmt.Errorf("%w: %d, it can be %d to %d", ErrUnsupportedLevel, level, s.level, Level)
	}
	for _, id := range s.Brokers() {
		if low, high := s.brokers[id].levels(); level < low || level > high {
			return fmt.Errorf("%w: %d, broker %d works with %d to %d", ErrUnsupportedLevel, level, id, low, high)
		}
	}
	return nil
}
