package broker

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"leat/auth"
	"leat/replication/controller"
	"leat/storage"
)

// TopicRef names a topic by its id or, if that is zero, by its name.
type TopicRef struct {
	Name string
	ID   TopicID
}

// Topic describes a topic.
type Topic struct {
	Name string
	ID   TopicID
	// Partitions is indexed by partition.
	Partitions []Partition
	// Internal says that the topic is the server's own.
	Internal bool
}

// Partition describes a partition. Node ids are those of Nodes.
type Partition struct {
	Index, Leader, LeaderEpoch int32
	Replicas, ISR, Offline     []int32
}

// TopicSpec is a topic to make.
type TopicSpec struct {
	Name string
	// Partitions is the number of partitions, -1 for num.partitions.
	Partitions int32
	// ReplicationFactor is the number of replicas, -1 for
	// default.replication.factor.
	ReplicationFactor int16
	// Assignments, if not nil, gives the replicas of each partition; then both
	// numbers must be -1.
	Assignments map[int32][]int32
	// Configs is what differs from the defaults.
	Configs map[string]string
}

// TopicResult is what became of one topic of a request.
type TopicResult struct {
	Topic   Topic
	Configs []ConfigEntry
	Err     error
}

// maxTopicName is Kafka's limit in characters.
const maxTopicName = 249

// CheckTopicName enforces Kafka's rule for names; the error is ErrInvalidTopic.
func CheckTopicName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidTopic)
	case name == "." || name == "..":
		return fmt.Errorf("%w: %q is reserved", ErrInvalidTopic, name)
	case len(name) > maxTopicName:
		return fmt.Errorf("%w: it has %d characters, at most %d are allowed", ErrInvalidTopic, len(name), maxTopicName)
	}
	for i := range len(name) {
		if !legal(name[i]) {
			return fmt.Errorf("%w: %q has a character other than letters, digits, '.', '_' and '-'", ErrInvalidTopic, name)
		}
	}
	return nil
}

func legal(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
}

// CreateTopics makes topics, each by itself. Their directories are on disk and
// the metadata is committed before it returns; the topics can be used then.
// With validateOnly nothing is made.
func (b *Broker) CreateTopics(ctx context.Context, p auth.Principal, specs []TopicSpec, validateOnly bool) []TopicResult {
	results := make([]TopicResult, len(specs))
	ev := &controller.CreateTopics{}
	var places []int // ev.Topics[i] is specs[places[i]]
	for i := range specs {
		t, err := b.plan(p, &specs[i])
		if err != nil {
			results[i].Err = err
			continue
		}
		ev.Topics = append(ev.Topics, t)
		places = append(places, i)
	}
	errs, state := b.create(ctx, ev, validateOnly)
	for i, place := range places {
		if errs[i] != nil {
			results[place].Err = errs[i]
			continue
		}
		t := state.Topic(ev.Topics[i].ID)
		results[place].Topic = describe(t)
		results[place].Configs = b.configs.entries(t.Configs)
	}
	return results
}

// reserved are the topics that only the server itself will make.
var reserved = []string{"__consumer_offsets", "__transaction_state"}

// plan checks one topic to make and resolves its defaults.
func (b *Broker) plan(p auth.Principal, spec *TopicSpec) (controller.NewTopic, error) {
	var none controller.NewTopic
	if err := CheckTopicName(spec.Name); err != nil {
		return none, err
	}
	if slices.Contains(reserved, spec.Name) {
		return none, fmt.Errorf("%w: %q is reserved for the server", ErrInvalidTopic, spec.Name)
	}
	cluster := auth.Resource{Type: auth.Cluster, Name: auth.ClusterName}
	if !b.opts.Authorizer.Allowed(p, auth.Create, cluster) && !b.allowed(p, auth.Create, spec.Name) {
		return none, fmt.Errorf("%w: %q", ErrTopicAuthorization, spec.Name)
	}
	if err := checkTopicConfigs(spec.Configs); err != nil {
		return none, err
	}
	t := controller.NewTopic{
		ID: storage.NewTopicID(), Name: spec.Name, Partitions: spec.Partitions,
		Replication: spec.ReplicationFactor, Assignments: spec.Assignments, Configs: maps.Clone(spec.Configs),
	}
	if t.Assignments != nil && (t.Partitions != -1 || t.Replication != -1) {
		return none, fmt.Errorf("%w: partitions and replication factor must be -1 beside an assignment", ErrInvalidRequest)
	}
	if t.Partitions == -1 {
		t.Partitions = int32(b.configs.number("num.partitions"))
	}
	if t.Replication == -1 {
		t.Replication = int16(b.configs.number("default.replication.factor"))
	}
	return t, nil
}

// create makes the planned topics: all files of the request first, made durable
// together, then the logs, and the commit last: whoever meets a topic can use
// it. It returns a result for each and the state that holds them.
func (b *Broker) create(ctx context.Context, ev *controller.CreateTopics, validateOnly bool) ([]error, *controller.State) {
	fail := func(err error) ([]error, *controller.State) {
		errs := make([]error, len(ev.Topics))
		for i := range errs {
			errs[i] = err
		}
		return errs, b.proposer.State()
	}
	if err := b.take(ctx, b.admin); err != nil {
		return fail(err)
	}
	defer b.admin.give()
	state := b.proposer.State()
	reply, records := controller.Step(state, ev)
	next, err := state.With(records)
	if err != nil {
		return fail(err)
	}
	if validateOnly || len(records) == 0 {
		return reply.Errs, next
	}
	names := localLogs(ev, reply.Errs, next)
	if err := b.dir.Create(names); err != nil {
		return fail(err)
	}
	// From here on it ends the same whether or not the client is still there.
	ctx = context.WithoutCancel(ctx)
	if err = b.openCreated(ctx, names, next); err == nil {
		reply, err = b.proposer.Propose(ctx, ev)
	}
	if err != nil {
		b.discard(names)
		return fail(err)
	}
	return reply.Errs, b.proposer.State()
}

// localLogs names the logs that this node must hold for the topics that can be
// made.
func localLogs(ev *controller.CreateTopics, errs []error, next *controller.State) []storage.LogName {
	var names []storage.LogName
	for i := range ev.Topics {
		if errs[i] != nil {
			continue
		}
		t := next.Topic(ev.Topics[i].ID)
		for p := range t.Partitions {
			names = append(names, storage.LogName{ID: storage.ID{Topic: t.ID, Partition: int32(p)}, Topic: t.Name})
		}
	}
	return names
}

// openCreated opens the logs of topics that are about to be committed.
func (b *Broker) openCreated(ctx context.Context, names []storage.LogName, state *controller.State) error {
	for _, name := range names {
		t := state.Topic(name.ID.Topic)
		s := b.configs.settings(t.Configs)
		l, err := b.dir.OpenLog(ctx, name.ID, name.Topic, s.log)
		if err != nil {
			return fmt.Errorf("open %s/%d: %w", name.Topic, name.Partition, err)
		}
		p := newPartition(name.ID, name.Topic, b.NodeID(), l, t.Partitions[name.Partition], s)
		b.mu.Lock()
		b.mu.parts[name.ID] = p
		b.mu.Unlock()
	}
	return nil
}

// discard takes back what a create made whose topics do not come to be. What
// cannot be removed is empty, and the next start removes it.
func (b *Broker) discard(names []storage.LogName) {
	for _, name := range names {
		b.mu.Lock()
		p := b.mu.parts[name.ID]
		delete(b.mu.parts, name.ID)
		b.mu.Unlock()
		if p == nil {
			continue
		}
		p.end(fmt.Errorf("%w: %q could not be made", ErrUnknownTopic, name.Topic))
		if err := b.dir.Remove(p.log); err != nil {
			b.log.Warn("topic that could not be made left an empty directory", slog.String("topic", name.Topic),
				slog.Int("partition", int(name.Partition)), slog.Any("err", err))
		}
	}
}

// DeleteTopics removes topics, each by itself. When it returns nobody can use
// them any more; their data goes in the background.
func (b *Broker) DeleteTopics(ctx context.Context, p auth.Principal, refs []TopicRef) []TopicResult {
	results := make([]TopicResult, len(refs))
	ev := &controller.DeleteTopics{}
	var places []int
	for i, ref := range refs {
		t, err := b.resolve(p, auth.Delete, ref)
		if err != nil {
			results[i].Topic, results[i].Err = Topic{Name: ref.Name, ID: ref.ID}, err
			continue
		}
		results[i].Topic = describe(t)
		ev.IDs = append(ev.IDs, t.ID)
		places = append(places, i)
	}
	if len(places) == 0 {
		return results
	}
	errs, err := b.remove(ctx, ev)
	for i, place := range places {
		if err != nil {
			results[place].Err = err
		} else {
			results[place].Err = errs[i]
		}
	}
	return results
}

// remove commits the removal first: from then on no client meets the topics,
// and a crash leaves them to tidy.
func (b *Broker) remove(ctx context.Context, ev *controller.DeleteTopics) ([]error, error) {
	if err := b.take(ctx, b.admin); err != nil {
		return nil, err
	}
	defer b.admin.give()
	reply, err := b.proposer.Propose(ctx, ev)
	if err != nil {
		return nil, err
	}
	var gone []*partition
	b.mu.Lock()
	for i, id := range ev.IDs {
		if reply.Errs[i] != nil {
			continue
		}
		for key, p := range b.mu.parts {
			if key.Topic == id {
				gone = append(gone, p)
				delete(b.mu.parts, key)
			}
		}
	}
	b.mu.Unlock()
	left := false
	for _, p := range gone {
		p.end(fmt.Errorf("%w: %q was deleted", ErrUnknownTopic, p.topic))
		if err := b.dir.Remove(p.log); err != nil {
			left = true
			b.log.Error("removed topic left data behind", slog.String("topic", p.topic),
				slog.Int("partition", int(p.id.Partition)), slog.Any("err", err))
		}
	}
	if left {
		// The topics are gone for clients; the next start removes the rest.
		return reply.Errs, nil
	}
	// The client may be gone, its topics are so in any case.
	_, err = b.proposer.Propose(context.WithoutCancel(ctx), &controller.ForgetTopics{IDs: ev.IDs})
	return reply.Errs, err
}

// Topics lists every topic that p may describe, by name.
func (b *Broker) Topics(_ context.Context, p auth.Principal) ([]Topic, error) {
	var out []Topic
	for _, t := range b.proposer.State().Topics() {
		if b.allowed(p, auth.Describe, t.Name) {
			out = append(out, describe(t))
		}
	}
	return out, nil
}

// Topic describes one topic.
func (b *Broker) Topic(_ context.Context, p auth.Principal, ref TopicRef) (Topic, error) {
	t, err := b.resolve(p, auth.Describe, ref)
	if err != nil {
		return Topic{}, err
	}
	return describe(t), nil
}

// EnsureTopic describes a topic, and makes it with the server's defaults if it
// is missing and auto.create.topics.enable is true.
func (b *Broker) EnsureTopic(ctx context.Context, p auth.Principal, name string) (Topic, error) {
	t, err := b.ensure(ctx, p, auth.Describe, name)
	if err != nil {
		return Topic{}, err
	}
	return describe(t), nil
}

func describe(t *controller.Topic) Topic {
	out := Topic{Name: t.Name, ID: t.ID, Partitions: make([]Partition, len(t.Partitions))}
	for i, p := range t.Partitions {
		out.Partitions[i] = Partition{
			Index: int32(i), Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: p.ISR,
		}
	}
	return out
}

// TopicConfigs lists the configs in force for a topic, by name.
func (b *Broker) TopicConfigs(_ context.Context, p auth.Principal, name string) ([]ConfigEntry, error) {
	t, err := b.resolve(p, auth.DescribeConfigs, TopicRef{Name: name})
	if err != nil {
		return nil, err
	}
	return b.configs.entries(t.Configs), nil
}

// AlterTopicConfigs changes configs of a topic, all or none; they are in force
// when it returns. With validateOnly nothing changes.
func (b *Broker) AlterTopicConfigs(ctx context.Context, p auth.Principal, name string, changes []ConfigChange, validateOnly bool) error {
	t, err := b.resolve(p, auth.AlterConfigs, TopicRef{Name: name})
	if err != nil {
		return err
	}
	ev := &controller.SetTopicConfigs{ID: t.ID, Values: map[string]*string{}}
	for _, c := range changes {
		if _, twice := ev.Values[c.Name]; twice {
			return fmt.Errorf("%w: %q is changed twice", ErrInvalidConfig, c.Name)
		}
		ev.Values[c.Name] = c.Value
		if c.Value != nil {
			err = checkTopicConfigs(map[string]string{c.Name: *c.Value})
		} else if topicConfig(c.Name) == nil || c.Name == "" {
			err = fmt.Errorf("%w: unknown topic config %q", ErrInvalidConfig, c.Name)
		}
		if err != nil {
			return err
		}
	}
	if validateOnly {
		return nil
	}
	if err := b.take(ctx, b.admin); err != nil {
		return err
	}
	defer b.admin.give()
	reply, err := b.proposer.Propose(ctx, ev)
	if err != nil {
		return err
	}
	if reply.Errs[0] != nil {
		return reply.Errs[0]
	}
	t = b.proposer.State().Topic(t.ID)
	s := b.configs.settings(t.Configs)
	for i := range t.Partitions {
		if part, err := b.partition(t, int32(i)); err == nil {
			part.configure(s)
		}
	}
	return nil
}
