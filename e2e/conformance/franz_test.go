package conformance

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// goClients are libraries that the tests themselves import.
var goClients = []client{
	{name: "franz-go", open: openFranz},
	{name: "Sarama", open: openSarama},
	{name: "kafka-go", open: openKafkaGo},
}

// moduleVersion is the version of a module in go.mod.
func moduleVersion(ctx context.Context, module string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", module).Output()
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "v"), err
}

// hello is the op that tells the version of a module.
func hello(module string) func(context.Context, ask) (reply, error) {
	return func(ctx context.Context, _ ask) (r reply, err error) {
		r.Version, err = moduleVersion(ctx, module)
		return r, err
	}
}

// franz is franz-go: kgo, and kadm for what tools do.
type franz struct {
	ops
	addr  string
	admin *kadm.Client
	// Of a member.
	group   *kgo.Client
	polled  []*kgo.Record
	revoked int
	mu      sync.Mutex
	owned   map[int32]bool
}

func openFranz(_ *testing.T, addr string) (driver, error) {
	admin, err := kadm.NewOptClient(kgo.SeedBrokers(addr))
	if err != nil {
		return nil, err
	}
	f := &franz{addr: addr, admin: admin, owned: map[int32]bool{}}
	f.ops = ops{
		"hello": hello("github.com/twmb/franz-go"), "metadata": f.metadata,
		"produce": act(f.produce), "read": f.read, "list_offset": f.listOffset,
		"join": act(f.join), "poll": f.poll, "commit": act(f.commit), "leave": act(f.leave),
		"create_topic": act(f.createTopic), "delete_topic": act(f.deleteTopic), "create_partitions": act(f.createPartitions),
		"describe_configs": f.describeConfigs, "alter_configs": act(f.alterConfigs), "replace_configs": act(f.replaceConfigs),
		"delete_records": act(f.deleteRecords), "list_groups": f.listGroups, "describe_group": f.describeGroup,
		"delete_group": act(f.deleteGroup), "commit_offsets": act(f.commitOffsets), "committed": f.committed,
		"delete_offsets": act(f.deleteOffsets),
	}
	return f, nil
}

func (f *franz) close() {
	f.admin.Close()
	if f.group != nil {
		f.group.CloseAllowingRebalance()
	}
}

func (f *franz) metadata(ctx context.Context, _ ask) (r reply, err error) {
	meta, err := f.admin.Metadata(ctx)
	if err != nil {
		return r, err
	}
	r.Topics, r.Nodes, r.Cluster = map[string]int{}, len(meta.Brokers), meta.Cluster
	for name, topic := range meta.Topics {
		r.Topics[name] = len(topic.Partitions)
	}
	return r, nil
}

func (f *franz) produce(ctx context.Context, q ask) error {
	opts := []kgo.Opt{
		kgo.SeedBrokers(f.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgoCodecs[q.Codec]),
		kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(1),
		kgo.RequiredAcks(map[string]kgo.Acks{"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks()}[q.Acks]),
	}
	if !q.Idempotent {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()
	return client.ProduceSync(ctx, toKgo(q.Topic, q.Partition, q.Records)...).FirstErr()
}

func (f *franz) read(ctx context.Context, q ask) (r reply, err error) {
	from := map[string]kgo.Offset{
		earliest: kgo.NewOffset().AtStart(), latest: kgo.NewOffset().AtEnd(), atOffset: kgo.NewOffset().At(q.Offset),
		atTime: kgo.NewOffset().AfterMilli(q.Offset),
	}[q.At]
	r.Records, err = readKgo(ctx, f.addr, q.Topic, q.Partition, from, q.Count)
	return r, err
}

func (f *franz) listOffset(ctx context.Context, q ask) (r reply, err error) {
	list := map[string]func() (kadm.ListedOffsets, error){
		earliest: func() (kadm.ListedOffsets, error) { return f.admin.ListStartOffsets(ctx, q.Topic) },
		latest:   func() (kadm.ListedOffsets, error) { return f.admin.ListEndOffsets(ctx, q.Topic) },
		atTime:   func() (kadm.ListedOffsets, error) { return f.admin.ListOffsetsAfterMilli(ctx, q.Offset, q.Topic) },
	}[q.At]
	offsets, err := list()
	if err != nil {
		return r, err
	}
	o, ok := offsets.Lookup(q.Topic, q.Partition)
	if !ok {
		return r, fmt.Errorf("no answer for partition %d", q.Partition)
	}
	r.Offset = o.Offset
	return r, o.Err
}

func (f *franz) join(_ context.Context, q ask) (err error) {
	note := func(have bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, p := range parts[q.Topic] {
				if delete(f.owned, p); have {
					f.owned[p] = true
				} else {
					f.revoked++
				}
			}
		}
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(f.addr), kgo.ConsumerGroup(q.Group), kgo.ConsumeTopics(q.Topic), kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.SessionTimeout(10 * time.Second), kgo.HeartbeatInterval(200 * time.Millisecond), kgo.FetchMaxWait(200 * time.Millisecond),
		kgo.OnPartitionsAssigned(note(true)), kgo.OnPartitionsRevoked(note(false)), kgo.OnPartitionsLost(note(false)),
	}
	if q.Strategy != cooperative {
		opts = append(opts, kgo.Balancers(kgo.RangeBalancer()))
	}
	if q.Instance != "" {
		opts = append(opts, kgo.InstanceID(q.Instance))
	}
	f.group, err = kgo.NewClient(opts...)
	return err
}

// poll leaves a rebalance blocked when there is something to commit.
func (f *franz) poll(ctx context.Context, _ ask) (r reply, err error) {
	f.group.AllowRebalance()
	wait, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	fetches := f.group.PollFetches(wait)
	if err := fetches.Err0(); err != nil && wait.Err() == nil {
		return r, err
	}
	f.polled = fetches.Records()
	for _, record := range f.polled {
		r.Records = append(r.Records, fromKgo(record))
	}
	if len(f.polled) == 0 {
		f.group.AllowRebalance()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	r.Revoked = f.revoked
	for p := range f.owned {
		r.Assigned = append(r.Assigned, p)
	}
	return r, nil
}

func (f *franz) commit(ctx context.Context, _ ask) error {
	defer f.group.AllowRebalance()
	return f.group.CommitRecords(ctx, f.polled...)
}

func (f *franz) leave(context.Context, ask) error {
	f.group.CloseAllowingRebalance()
	f.group = nil
	return nil
}
