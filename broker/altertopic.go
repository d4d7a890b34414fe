package broker

import (
	"context"

	"leat/auth"
	"leat/replication/controller"
)

// TopicChange is what is to become of a topic, as a whole.
type TopicChange struct {
	// If is asked about the topic as it is, in the turn that the change is made
	// in, so that nobody changes it in between; its error ends the change. nil
	// asks nothing.
	If func(t *Topic, configs []ConfigEntry) error
	// Partitions is how many there will be; 0, or as many as there are, changes
	// nothing.
	Partitions int32
	// Configs are changed as AlterTopicConfigs does; with Reset every config that
	// they do not name goes back to its default.
	Configs []ConfigChange
	Reset   bool
}

// AlterTopic changes partitions and configs of a topic: all is checked first,
// and if any of it is refused nothing changes. It returns the topic as it is then;
// with validateOnly that is as it was.
func (b *Broker) AlterTopic(ctx context.Context, p auth.Principal, name string, c *TopicChange, validateOnly bool) (Topic, []ConfigEntry, error) {
	if err := b.take(ctx, b.admin); err != nil {
		return Topic{}, nil, err
	}
	defer b.admin.give()
	t, values, err := b.planChange(p, name, c)
	if err != nil {
		return Topic{}, nil, err
	}
	// Partitions come first: their files are what may fail.
	if c.Partitions > 0 && int(c.Partitions) != t.Partitions.Len() {
		ev := &controller.AddPartitions{Topics: []controller.MorePartitions{{ID: t.ID, Count: c.Partitions}}}
		errs, _, err := b.makeLogsInTurn(ctx, ev, validateOnly, func(int) TopicID { return t.ID })
		if err == nil {
			err = errs[0]
		}
		if err != nil {
			return Topic{}, nil, err
		}
		if served := b.topic(t.ID); served != nil && !validateOnly {
			served.grew()
		}
	}
	if len(values) > 0 && !validateOnly {
		if err := b.setConfigsInTurn(ctx, t.ID, values); err != nil {
			return Topic{}, nil, err
		}
	}
	now := b.proposer.State().Topic(t.ID)
	return b.describe(now), b.configs().topicEntries(now.Configs), nil
}

// DeleteTopic deletes a topic unless ask, which is asked about it as it is in the
// turn that it is deleted in, has an error.
func (b *Broker) DeleteTopic(ctx context.Context, p auth.Principal, name string, ask func(t *Topic, configs []ConfigEntry) error) error {
	if err := b.take(ctx, b.admin); err != nil {
		return err
	}
	defer b.admin.give()
	t, err := b.resolve(p, auth.Delete, TopicRef{Name: name})
	if err != nil {
		return err
	}
	described := b.describe(t)
	if err := ask(&described, b.configs().topicEntries(t.Configs)); err != nil {
		return err
	}
	errs, err := b.removeInTurn(ctx, &controller.DeleteTopics{IDs: []TopicID{t.ID}})
	if err != nil {
		return err
	}
	return errs[0]
}

// planChange finds the topic and checks who asks and what, but for the number of
// partitions.
func (b *Broker) planChange(p auth.Principal, name string, c *TopicChange) (*controller.Topic, map[string]*string, error) {
	var ops []auth.Operation
	if c.Partitions > 0 {
		ops = append(ops, auth.Alter)
	}
	if c.Partitions == 0 || c.Reset || len(c.Configs) > 0 {
		ops = append(ops, auth.AlterConfigs)
	}
	var t *controller.Topic
	for _, op := range ops {
		var err error
		if t, err = b.resolve(p, op, TopicRef{Name: name}); err != nil {
			return nil, nil, err
		}
	}
	if c.If != nil {
		described := b.describe(t)
		if err := c.If(&described, b.configs().topicEntries(t.Configs)); err != nil {
			return nil, nil, err
		}
	}
	values, err := resolveChanges(c.Configs, t.Configs, topicLevel{b.configs(), t.Configs})
	if err != nil {
		return nil, nil, err
	}
	if c.Reset {
		for set := range t.Configs {
			if _, named := values[set]; !named {
				values[set] = nil
			}
		}
	}
	return t, values, nil
}
