package broker

import (
	"context"
	"errors"

	"leat/auth"
	"leat/replication/controller"
)

// NewTrialSet is a set for a topic that may be missing: it takes and refuses the
// records that NewRecordSet would, and makes no topic, so that a bad request
// leaves none behind. It keeps nothing and is good for Add, AddLines, Len and
// Close alone.
func (b *Broker) NewTrialSet(ctx context.Context, p auth.Principal, topic string) (*RecordSet, error) {
	t, err := b.resolve(p, auth.Write, TopicRef{Name: topic})
	if errors.Is(err, ErrUnknownTopic) && b.makesTopics() {
		t, err = b.prospect(ctx, p, topic)
	}
	if err != nil {
		return nil, err
	}
	s := b.setFor(t)
	s.trial = true
	return s, nil
}

// prospect is the topic that ensure would make.
func (b *Broker) prospect(ctx context.Context, p auth.Principal, name string) (*controller.Topic, error) {
	plan, err := b.plan(p, &TopicSpec{Name: name, Partitions: -1, ReplicationFactor: -1})
	if err != nil {
		return nil, err
	}
	errs, state := b.create(ctx, &controller.CreateTopics{Topics: []controller.NewTopic{plan}}, true)
	if err := errs[0]; err != nil && !errors.Is(err, ErrTopicExists) {
		return nil, err
	}
	if t := state.TopicNamed(name); t != nil {
		return t, nil
	}
	return nil, deleted(name)
}
