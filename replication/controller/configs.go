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
	names := changed(t.Configs, ev.Values)
	if ruling(names) {
		after := *t
		after.Configs = merged(t.Configs, ev.Values)
		v := viewOf(s)
		out = v.reconsider(&after)
	}
	for _, name := range names {
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
	names := changed(s.configs[ev.ID], ev.Values)
	if ruling(names) && ev.ID == AllBrokers {
		after := *s
		after.configs = maps.Clone(s.configs)
		after.configs[AllBrokers] = merged(s.configs[AllBrokers], ev.Values)
		v := viewOf(&after)
		for _, id := range s.topicIDs() {
			out = append(out, v.reconsider(s.topics.get(id))...)
		}
	}
	for _, name := range names {
		out = append(out, &BrokerConfigSet{Broker: ev.ID, Name: name, Value: ev.Values[name]})
	}
	return Reply{Errs: []error{nil}}, out
}

// ruling reports whether one of the configs decides who may lead.
func ruling(names []string) bool {
	return slices.Contains(names, minISRConfig) || slices.Contains(names, uncleanConfig)
}

// merged is what is set after a change.
func merged(set map[string]string, wanted map[string]*string) map[string]string {
	out := maps.Clone(set)
	if out == nil {
		out = map[string]string{}
	}
	for name, v := range wanted {
		if v == nil {
			delete(out, name)
		} else {
			out[name] = *v
		}
	}
	return out
}

// reconsider decides again, with new configs, about the partitions of a topic that
// have eligible leaders beside the ISR or no leader. Once min.insync.replicas has
// fallen the high watermark may rise past what such eligible leaders hold. By then
// they are none any more, since the records of the configs come last.
func (v *view) reconsider(t *Topic) (out []Record) {
	for i := range t.Partitions.Len() {
		if p := t.Partitions.At(i); len(p.ELR) > 0 || p.Leader < 0 {
			if r := v.begin(t, *p).record(int32(i)); r != nil {
				out = append(out, r)
			}
		}
	}
	return out
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
