package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	// Offline are the replicas whose logs are damaged.
	Replicas, ISR, Offline []int32
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
	configs := b.configs()
	for i, place := range places {
		if errs[i] != nil {
			results[place].Err = errs[i]
			continue
		}
		t := state.Topic(ev.Topics[i].ID)
		results[place].Topic = describe(t)
		results[place].Configs = configs.topicEntries(t.Configs)
	}
	return results
}

// reserved are the topics that only the server itself makes, writes and removes.
var reserved = []string{offsetsTopic, "__transaction_state"}

// checkReserved refuses what clients may not do to the server's own topics: all
// but read and describe them.
func checkReserved(op auth.Operation, topic string) error {
	if op != auth.Read && op != auth.Describe && op != auth.DescribeConfigs && slices.Contains(reserved, topic) {
		return fmt.Errorf("%w: %q is reserved for the server", ErrInvalidTopic, topic)
	}
	return nil
}

// plan checks one topic to make and resolves its defaults.
func (b *Broker) plan(p auth.Principal, spec *TopicSpec) (controller.NewTopic, error) {
	var none controller.NewTopic
	if err := CheckTopicName(spec.Name); err != nil {
		return none, err
	}
	if err := checkReserved(auth.Create, spec.Name); err != nil {
		return none, err
	}
	if b.allowedCluster(p, auth.Create) != nil && !b.allowed(p, auth.Create, spec.Name) {
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
		t.Partitions = int32(b.configs().number("num.partitions"))
	}
	if t.Replication == -1 {
		t.Replication = int16(b.configs().number("default.replication.factor"))
	}
	return t, nil
}

// create makes the planned topics. It returns a result for each and the state
// that holds them.
func (b *Broker) create(ctx context.Context, ev *controller.CreateTopics, validateOnly bool) ([]error, *controller.State) {
	errs, next, err := b.makeLogs(ctx, ev, validateOnly, func(i int) TopicID { return ev.Topics[i].ID })
	if err != nil {
		errs = make([]error, len(ev.Topics))
		for i := range errs {
			errs[i] = err
		}
	}
	for i, t := range ev.Topics {
		if errs[i] == nil && !validateOnly {
			b.log.Info("topic created", slog.String("topic", t.Name), slog.String("topic_id", t.ID.String()), slog.Int("partitions", next.Topic(t.ID).Partitions.Len()))
		}
	}
	return errs, next
}

// makeLogs commits an event that makes partitions, of the topic id(i) by its
// item i: all their files first, made durable together, then the logs, and the
// commit last: whoever meets a partition can use it.
func (b *Broker) makeLogs(ctx context.Context, ev controller.Event, validateOnly bool, id func(int) TopicID) ([]error, *controller.State, error) {
	if err := b.take(ctx, b.admin); err != nil {
		return nil, nil, err
	}
	defer b.admin.give()
	return b.makeLogsInTurn(ctx, ev, validateOnly, id)
}

// makeLogsInTurn is makeLogs for who has the turn of b.admin.
func (b *Broker) makeLogsInTurn(ctx context.Context, ev controller.Event, validateOnly bool, id func(int) TopicID) ([]error, *controller.State, error) {
	state := b.proposer.State()
	reply, records := controller.Step(state, ev)
	next, err := state.With(records)
	if err != nil || validateOnly || len(records) == 0 {
		return reply.Errs, next, err
	}
	var names []storage.LogName
	for i, err := range reply.Errs {
		if err == nil {
			names = append(names, newLogs(state.Topic(id(i)), next.Topic(id(i)))...)
		}
	}
	defer b.growing(names)()
	if err := b.createLogs(ctx, names); err != nil {
		return nil, nil, err
	}
	// From here on it ends the same whether or not the client is still there.
	ctx = context.WithoutCancel(ctx)
	if err = b.openCreated(ctx, names, next); err == nil {
		reply, err = b.proposer.Propose(ctx, ev)
	}
	switch {
	case errors.Is(err, ErrUnknownOutcome):
		// They may be in the metadata, and then their logs must be there; else the
		// next start removes them.
		return nil, nil, err
	case err != nil:
		b.discard(names)
		return nil, nil, err
	}
	return reply.Errs, b.proposer.State(), nil
}

// growing says that the topics among those of the logs that there are get more
// partitions, until the function that it returns is called.
func (b *Broker) growing(names []storage.LogName) (done func()) {
	grow := map[*topic]struct{}{}
	for _, n := range names {
		if t := b.topic(n.ID.Topic); t != nil {
			grow[t] = struct{}{}
		}
	}
	count := func() {
		for t := range grow {
			t.growths.Add(1)
		}
	}
	count()
	return count
}

// createLogs makes the directories of logs. An earlier try for the same
// partitions may have left some, empty, which make room.
func (b *Broker) createLogs(ctx context.Context, names []storage.LogName) error {
	err := b.dir.Create(names)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	var empty []*storage.Log
	for _, name := range names {
		l, failed := b.dir.OpenLog(ctx, name.ID, name.Topic, storage.Config{}, 0)
		if failed != nil {
			continue // it is not there, or Create says what is wrong
		}
		if l.Offsets().End > 0 {
			return errors.Join(fmt.Errorf("%w, with records", err), b.dir.Remove(empty...))
		}
		empty = append(empty, l)
	}
	if err := b.dir.Remove(empty...); err != nil {
		return err
	}
	return b.dir.Create(names)
}

// newLogs names the logs that this node must hold for what is new in a topic.
func newLogs(before, after *controller.Topic) []storage.LogName {
	have := 0
	if before != nil {
		have = before.Partitions.Len()
	}
	var names []storage.LogName
	for p := have; p < after.Partitions.Len(); p++ {
		names = append(names, storage.LogName{ID: storage.ID{Topic: after.ID, Partition: int32(p)}, Topic: after.Name})
	}
	return names
}

// openCreated opens the logs of partitions that are about to be committed.
func (b *Broker) openCreated(ctx context.Context, names []storage.LogName, state *controller.State) error {
	configs := b.configs()
	for _, name := range names {
		t := state.Topic(name.ID.Topic)
		s := configs.settings(t.Configs)
		l, err := b.dir.OpenLog(ctx, name.ID, name.Topic, s.log, 0)
		if err != nil {
			return fmt.Errorf("open %s/%d: %w", name.Topic, name.Partition, err)
		}
		b.mu.Lock()
		p, err := newPartition(name.ID, b.addTopicLocked(t.ID, t.Name), b.NodeID(), l, *t.Partitions.At(int(name.Partition)), s)
		if err == nil {
			b.mu.parts[name.ID] = p
		}
		b.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// discard takes back what was made for partitions that do not come to be. What
// cannot be removed is empty, and the next start or the next try removes it.
func (b *Broker) discard(names []storage.LogName) {
	state := b.proposer.State()
	var logs []*storage.Log
	for _, name := range names {
		why := fmt.Errorf("%w: %q could not be made", ErrUnknownTopic, name.Topic)
		if state.Topic(name.ID.Topic) == nil {
			b.dropTopic(name.ID.Topic, why)
		}
		b.mu.Lock()
		p := b.mu.parts[name.ID]
		delete(b.mu.parts, name.ID)
		b.mu.Unlock()
		if p == nil {
			continue
		}
		p.end(why)
		logs = append(logs, p.log)
	}
	if err := b.dir.Remove(logs...); err != nil {
		b.log.Warn("partitions that could not be made left empty directories", slog.Any("err", err))
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
	return b.removeInTurn(ctx, ev)
}

// removeInTurn is remove for who has the turn of b.admin.
func (b *Broker) removeInTurn(ctx context.Context, ev *controller.DeleteTopics) ([]error, error) {
	// It ends the same whether or not the client is still there: what is removed from
	// the metadata must be used by nobody any more.
	ctx = context.WithoutCancel(ctx)
	reply, err := b.proposer.Propose(ctx, ev)
	if err != nil {
		return nil, err
	}
	removed := map[TopicID]bool{}
	for i, id := range ev.IDs {
		if reply.Errs[i] != nil {
			continue
		}
		removed[id] = true
		if t := b.topic(id); t != nil {
			b.log.Info("topic deleted", slog.String("topic", t.name), slog.String("topic_id", id.String()))
			b.dropTopic(id, deleted(t.name))
		}
	}
	var gone []*partition
	b.mu.Lock()
	for key, p := range b.mu.parts {
		if removed[key.Topic] {
			gone = append(gone, p)
			delete(b.mu.parts, key)
		}
	}
	b.mu.Unlock()
	// Whoever waits for records is told before the disk has its time.
	logs := make([]*storage.Log, len(gone))
	for i, p := range gone {
		p.end(deleted(p.topic.name))
		logs[i] = p.log
	}
	left := b.dir.Remove(logs...)
	b.forgetStarts(removed)
	b.purgeSoon()
	if left != nil {
		// The topics are gone for clients; the next start removes the rest.
		b.log.Error("removed topics left data behind", slog.Any("err", left))
		return reply.Errs, nil
	}
	_, err = b.proposer.Propose(ctx, &controller.ForgetTopics{IDs: ev.IDs})
	return reply.Errs, err
}

// deleted is the error of those who find a topic no more that was there.
func deleted(name string) error { return fmt.Errorf("%w: %q was deleted", ErrUnknownTopic, name) }

// Topics lists every topic that p may describe, by name.
func (b *Broker) Topics(_ context.Context, p auth.Principal) ([]Topic, error) {
	var out []Topic
	for _, t := range b.proposer.State().Topics() {
		if b.allowed(p, auth.Describe, t.Name) {
			out = append(out, b.describe(t))
		}
	}
	return out, nil
}

// TopicNames are the names of all topics that p may describe, sorted.
func (b *Broker) TopicNames(_ context.Context, p auth.Principal) []string {
	var out []string
	for _, t := range b.proposer.State().Topics() {
		if b.allowed(p, auth.Describe, t.Name) {
			out = append(out, t.Name)
		}
	}
	slices.Sort(out)
	return out
}

// Topic describes one topic.
func (b *Broker) Topic(_ context.Context, p auth.Principal, ref TopicRef) (Topic, error) {
	t, err := b.resolve(p, auth.Describe, ref)
	if err != nil {
		return Topic{}, err
	}
	return b.describe(t), nil
}

// PartitionCount is how many partitions a topic has.
func (b *Broker) PartitionCount(p auth.Principal, name string) (int, error) {
	t, err := b.resolve(p, auth.Describe, TopicRef{Name: name})
	if err != nil {
		return 0, err
	}
	return t.Partitions.Len(), nil
}

// EnsureTopic describes a topic, and makes it with the server's defaults if it
// is missing and auto.create.topics.enable is true.
func (b *Broker) EnsureTopic(ctx context.Context, p auth.Principal, name string) (Topic, error) {
	t, err := b.ensure(ctx, p, auth.Describe, name)
	if err != nil {
		return Topic{}, err
	}
	return b.describe(t), nil
}

// describe adds to what the metadata knows which replicas are damaged.
func (b *Broker) describe(t *controller.Topic) Topic {
	out := describe(t)
	for i := range out.Partitions {
		b.mu.RLock()
		p := b.mu.parts[storage.ID{Topic: t.ID, Partition: int32(i)}]
		b.mu.RUnlock()
		if p != nil && p.log.Fenced() {
			out.Partitions[i].Offline = []int32{p.self}
		}
	}
	return out
}

func describe(t *controller.Topic) Topic {
	out := Topic{Name: t.Name, ID: t.ID, Internal: slices.Contains(reserved, t.Name), Partitions: make([]Partition, t.Partitions.Len())}
	for i := range t.Partitions.Len() {
		p := t.Partitions.At(i)
		out.Partitions[i] = Partition{
			Index: int32(i), Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, Replicas: p.Replicas, ISR: p.ISR,
		}
	}
	return out
}
