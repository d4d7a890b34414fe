package controller

import (
	"fmt"
	"maps"
	"slices"

	"leat/storage"
)

// SetTopicConfigs changes configs of a topic; a nil value takes one back to
// its default. The caller checked names and values.
type SetTopicConfigs struct {
	ID     storage.TopicID
	Values map[string]*string
}

func (ev *SetTopicConfigs) step(s *State) (Reply, []Record) {
	t := s.topics.get(ev.ID)
	if t == nil {
		return Reply{Errs: []error{fmt.Errorf("%w: %s", ErrUnknownTopic, ev.ID)}}, nil
	}
	var out []Record
	for _, name := range changed(t.Configs, ev.Values) {
		out = append(out, &TopicConfigSet{Topic: ev.ID, Name: name, Value: ev.Values[name]})
	}
	return Reply{Errs: []error{nil}}, out
}

// SetBrokerConfigs changes configs of a broker, or of AllBrokers; a nil value
// takes one back to what is in force without it. The caller checked names and
// values.
type SetBrokerConfigs struct {
	ID     int32
	Values map[string]*string
}

func (ev *SetBrokerConfigs) step(s *State) (Reply, []Record) {
	if _, ok := s.brokers[ev.ID]; !ok && ev.ID != AllBrokers {
		return Reply{Errs: []error{fmt.Errorf("%w: %d", ErrUnknownBroker, ev.ID)}}, nil
	}
	var out []Record
	for _, name := range changed(s.configs[ev.ID], ev.Values) {
		out = append(out, &BrokerConfigSet{Broker: ev.ID, Name: name, Value: ev.Values[name]})
	}
	return Reply{Errs: []error{nil}}, out
}

// changed lists in order the names whose wanted values differ from what is set.
func changed(set map[string]string, wanted map[string]*string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		v := wanted[name]
		old, is := set[name]
		if v == nil && is || v != nil && (!is || *v != old) {
			out = append(out, name)
		}
	}
	return out
}
