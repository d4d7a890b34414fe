package kafka

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// franz-go's admin client runs a topic through its life: configs by increment
// and as a whole, more partitions while a consumer reads all, records deleted
// under it, sizes, epochs, the cluster.
func TestAdminClient(t *testing.T) {
	d := startDoor(t, setup{})
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	requests, err := kgo.NewClient(kgo.SeedBrokers(d.addr), kgo.MetadataMinAge(limit/2000), kgo.MetadataMaxAge(limit/1000))
	if err != nil {
		t.Fatal(err)
	}
	defer requests.Close()
	admin := kadm.NewClient(requests)
	value := "2000"
	if _, err := admin.CreateTopic(ctx, 1, -1, map[string]*string{"max.message.bytes": &value}, "t"); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(d.addr), kgo.ConsumeTopics("t"), kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(limit/2000), kgo.MetadataMaxAge(limit/1000),
		kgo.FetchMaxWait(limit/1000)) // a client asks for new partitions with its next fetch
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	first := &kgo.Record{Topic: "t", Value: []byte("first")}
	if err := client.ProduceSync(ctx, first).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if got := poll(ctx, t, client, 1); got[0] != "first" {
		t.Errorf("consumed %v", got)
	}
	adminConfigs(ctx, t, admin)
	adminPartitions(ctx, t, admin)
	eventually(t, "the client knows of the new partitions", func() bool {
		return client.ProduceSync(ctx, &kgo.Record{Topic: "t", Partition: 2, Value: []byte("new")}).FirstErr() == nil
	})
	if got := poll(ctx, t, client, 1); got[0] != "new" {
		t.Errorf("consumed %v", got)
	}
	for p := range int32(3) {
		r := &kgo.Record{Topic: "t", Partition: p, Value: []byte{'0' + byte(p)}}
		if err := client.ProduceSync(ctx, r, &kgo.Record{Topic: "t", Partition: p, Value: []byte{'a' + byte(p)}}).FirstErr(); err != nil {
			t.Fatalf("partition %d: %v", p, err)
		}
	}
	got := poll(ctx, t, client, 6)
	if want := []string{"0", "1", "2", "a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("consumed %v, want %v", got, want)
	}
	adminRecords(ctx, t, admin)
	adminCluster(ctx, t, d, requests, admin)
}

func poll(ctx context.Context, t *testing.T, client *kgo.Client, n int) (out []string) {
	t.Helper()
	for len(out) < n {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { out = append(out, string(r.Value)) })
	}
	slices.Sort(out)
	return out
}

func adminConfigs(ctx context.Context, t *testing.T, admin *kadm.Client) {
	t.Helper()
	check := func(r kadm.AlterConfigsResponses, err error) {
		t.Helper()
		if err != nil || r[0].Err != nil {
			t.Fatalf("%v: %+v", err, r)
		}
	}
	value := func(name string) string {
		t.Helper()
		r, err := admin.DescribeTopicConfigs(ctx, "t")
		if err != nil || r[0].Err != nil {
			t.Fatalf("%v: %+v", err, r)
		}
		for _, c := range r[0].Configs {
			if c.Key == name {
				return c.MaybeValue()
			}
		}
		return ""
	}
	compact, ten := "compact", "10"
	check(admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{
		{Op: kadm.AppendConfig, Name: "cleanup.policy", Value: &compact}, {Op: kadm.SetConfig, Name: "retention.ms", Value: &ten},
	}, "t"))
	if got := value("cleanup.policy") + " " + value("retention.ms") + " " + value("max.message.bytes"); got != "delete,compact 10 2000" {
		t.Errorf("after increments: %s", got)
	}
	check(admin.AlterTopicConfigsState(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &ten}}, "t"))
	if got := value("cleanup.policy") + " " + value("retention.ms") + " " + value("max.message.bytes"); got != "delete 10 1048588" {
		t.Errorf("after the whole: %s", got)
	}
	check(admin.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "num.partitions", Value: &ten}}))
	all, err := admin.DescribeBrokerConfigs(ctx)
	if err != nil || len(all[0].Configs) != 1 || all[0].Configs[0].MaybeValue() != "10" || all[0].Configs[0].Source != kmsg.ConfigSourceDynamicDefaultBrokerConfig {
		t.Errorf("configs of all brokers: %v: %+v", err, all)
	}
	one, err := admin.DescribeBrokerConfigs(ctx, 1)
	if err != nil || len(one[0].Configs) < 20 {
		t.Errorf("configs of broker 1: %v: %+v", err, one)
	}
	if r, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "no.such", Value: &ten}}, "t"); err != nil || !errors.Is(r[0].Err, kerr.InvalidConfig) || r[0].ErrMessage == "" {
		t.Errorf("unknown config: %v: %+v", err, r)
	}
}

func adminPartitions(ctx context.Context, t *testing.T, admin *kadm.Client) {
	t.Helper()
	if r, err := admin.CreatePartitions(ctx, 2, "t"); err != nil || r.Error() != nil {
		t.Fatalf("create partitions: %v: %+v", err, r)
	}
	if r, err := admin.UpdatePartitions(ctx, 2, "t"); err != nil || !errors.Is(r["t"].Err, kerr.InvalidPartitions) {
		t.Errorf("fewer partitions: %v: %+v", err, r)
	}
}

func adminRecords(ctx context.Context, t *testing.T, admin *kadm.Client) {
	t.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset("t", 0, 1, -1)
	offsets.AddOffset("t", 1, -1, -1)
	offsets.AddOffset("t", 2, 99, -1)
	r, err := admin.DeleteRecords(ctx, offsets)
	if err != nil {
		t.Fatal(err)
	}
	if a, b, c := r["t"][0], r["t"][1], r["t"][2]; a.Err != nil || a.LowWatermark != 1 || b.Err != nil || b.LowWatermark != 2 || !errors.Is(c.Err, kerr.OffsetOutOfRange) {
		t.Errorf("delete records: %+v", r)
	}
	starts, err := admin.ListStartOffsets(ctx, "t")
	if err != nil || starts["t"][0].Offset != 1 || starts["t"][1].Offset != 2 || starts["t"][2].Offset != 0 {
		t.Errorf("start offsets: %v: %+v", err, starts)
	}
	var epochs kadm.OffsetForLeaderEpochRequest
	epochs.Add("t", 0, starts["t"][2].LeaderEpoch)
	ends, err := admin.OffsetForLeaderEpoch(ctx, epochs)
	if e := ends["t"][0]; err != nil || e.Err != nil || e.EndOffset != 3 {
		t.Errorf("end of the epoch: %v: %+v", err, ends)
	}
}

func adminCluster(ctx context.Context, t *testing.T, d *door, client *kgo.Client, admin *kadm.Client) {
	t.Helper()
	dirs, err := admin.DescribeAllLogDirs(ctx, nil)
	if err != nil || dirs[1].Error() != nil {
		t.Fatalf("log dirs: %v: %+v", err, dirs)
	}
	if n := len(dirs[1][d.dir].Topics["t"]); n != 3 || dirs[1].Size() <= 0 {
		t.Errorf("%d logs of %d bytes", n, dirs[1].Size())
	}
	req := kmsg.NewPtrDescribeClusterRequest()
	resp, err := req.RequestWith(ctx, client)
	if err != nil || resp.ErrorCode != 0 || resp.ClusterID != d.opts.Broker.ClusterID() || len(resp.Brokers) != 1 {
		t.Errorf("cluster: %v: %+v", err, resp)
	}
}
