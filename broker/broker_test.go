package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"leat/auth"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open opens a broker on fs and closes it with the test.
func open(t *testing.T, fs disk.FS, configs map[string]string) *Broker {
	t.Helper()
	b, err := Open(t.Context(), Options{FS: fs, Path: "/data", Host: "h", Port: 1, Configs: configs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func create(t *testing.T, b *Broker, name string, partitions int32, configs map[string]string) Topic {
	t.Helper()
	r := b.CreateTopics(t.Context(), auth.Anonymous, []TopicSpec{{Name: name, Partitions: partitions, ReplicationFactor: -1, Configs: configs}}, false)[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	return r.Topic
}

// batch builds a client's batch of the values.
func batch(t *testing.T, values ...string) record.Batch {
	t.Helper()
	var w record.Builder
	w.Reset(record.Options{})
	for _, v := range values {
		w.AddValue(time.Now().UnixMilli(), []byte(v))
	}
	b, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b)
}

func produce(t *testing.T, b *Broker, acks Acks, topic string, partition int32, values ...string) ProduceResult {
	t.Helper()
	req := &ProduceRequest{Acks: acks, Timeout: time.Minute, Batches: []ProduceBatch{{Topic: topic, Partition: partition, Batch: batch(t, values...)}}}
	return b.Produce(t.Context(), auth.Anonymous, req).Wait(t.Context())[0]
}

// values reads the values of a result and releases it.
func values(t *testing.T, r FetchResult) []string {
	t.Helper()
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	if r.Section == nil {
		return nil
	}
	defer r.Section.Release()
	p := make([]byte, r.Section.Len())
	if _, err := r.Section.ReadAt(p, 0); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	var out []string
	var reader record.Reader
	defer reader.Close()
	for len(p) > 0 {
		var b record.Batch
		var err error
		if b, p, err = record.Next(p); err != nil {
			t.Fatal(err)
		}
		if err := reader.Reset(b, 1<<20); err != nil {
			t.Fatal(err)
		}
		for {
			var rec record.Record
			if err := reader.Next(&rec); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprintf("%d:%s", rec.Offset, rec.Value))
		}
	}
	return out
}

func fetchAll(t *testing.T, b *Broker, topic string, partition int32, from int64) []string {
	t.Helper()
	return values(t, b.Fetch(t.Context(), auth.Anonymous, &FetchRequest{
		MaxBytes: 1 << 20, Partitions: []FetchPartition{{Topic: topic, Partition: partition, Offset: from, Epoch: -1, MaxBytes: 1 << 20}},
	})[0])
}

// Records go in with each acks and come out in order; after a restart they are
// still there and the next offset is right.
func TestProduceFetchRestart(t *testing.T) {
	fs := disk.NewMem()
	b, err := Open(t.Context(), Options{FS: fs, Path: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	topic := create(t, b, "t", 2, nil)
	for i, acks := range []Acks{AcksAll, AcksLeader, AcksNone, AcksAll} {
		r := produce(t, b, acks, "t", 1, fmt.Sprint("a", i), fmt.Sprint("b", i))
		if r.Err != nil || r.Base != int64(2*i) || r.Last != int64(2*i+1) {
			t.Fatalf("acks %d: %+v", acks, r)
		}
	}
	want := "[0:a0 1:b0 2:a1 3:b1 4:a2 5:b2 6:a3 7:b3]"
	if got := fmt.Sprint(fetchAll(t, b, "t", 1, 0)); got != want {
		t.Errorf("fetched %s", got)
	}
	cluster := b.ClusterID()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = open(t, fs, nil)
	if got := fmt.Sprint(fetchAll(t, b, "t", 1, 0)); got != want {
		t.Errorf("after a restart fetched %s", got)
	}
	if again, err := b.Topic(t.Context(), auth.Anonymous, TopicRef{Name: "t"}); err != nil || again.ID != topic.ID {
		t.Errorf("topic after restart: %+v, %v", again, err)
	}
	if b.ClusterID() != cluster || len(cluster) != 22 {
		t.Errorf("cluster id %q became %q", cluster, b.ClusterID())
	}
	if r := produce(t, b, AcksAll, "t", 1, "c"); r.Base != 8 {
		t.Errorf("next offset %d, want 8", r.Base)
	}
}

// After a power cut every record answered with acks=all is there, and the
// leader epoch has grown.
func TestPowerCut(t *testing.T) {
	fs := disk.NewMem()
	b := open(t, fs, nil)
	create(t, b, "t", 1, nil)
	var want []string
	for i := range 50 {
		if r := produce(t, b, AcksAll, "t", 0, fmt.Sprint(i)); r.Err != nil {
			t.Fatal(r.Err)
		}
		want = append(want, fmt.Sprintf("%d:%d", i, i))
	}
	b = open(t, fs.CrashClone(0, nil), nil)
	if got := fetchAll(t, b, "t", 0, 0); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("after the cut: %v", got)
	}
	topic, err := b.Topic(t.Context(), auth.Anonymous, TopicRef{Name: "t"})
	if err != nil || topic.Partitions[0].LeaderEpoch != 1 {
		t.Errorf("leader epoch after the cut: %+v, %v", topic.Partitions, err)
	}
}

// A fetch waits for a record that comes, answers at once for one that is there,
// and gives up when its time or its caller is gone.
func TestFetchWaits(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 3, nil)
	req := func(wait time.Duration, min int) *FetchRequest {
		r := &FetchRequest{MaxWait: wait, MinBytes: min, MaxBytes: 1 << 20}
		for p := range int32(3) {
			r.Partitions = append(r.Partitions, FetchPartition{Topic: "t", Partition: p, Epoch: -1, MaxBytes: 1 << 20})
		}
		return r
	}
	done := make(chan []FetchResult)
	go func() { done <- b.Fetch(t.Context(), auth.Anonymous, req(time.Hour, 1)) }()
	produce(t, b, AcksAll, "t", 2, "x")
	res := <-done
	if got := fmt.Sprint(values(t, res[2])); got != "[0:x]" {
		t.Errorf("woken fetch got %s", got)
	}
	// More bytes than there are: it ends with its time and brings what is there.
	res = b.Fetch(t.Context(), auth.Anonymous, req(10*time.Millisecond, 1<<20))
	if got := fmt.Sprint(values(t, res[2])); got != "[0:x]" {
		t.Errorf("fetch that ran out of time got %s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- b.Fetch(ctx, auth.Anonymous, req(time.Hour, 1<<20)) }()
	cancel()
	for _, r := range <-done {
		if r.Section != nil {
			r.Section.Release()
		}
	}
}

// A waiting fetch gathers until it has enough, from partitions that come one
// after the other, and goes at once when what came does not fit any more.
func TestFetchGathers(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 3, nil)
	one := len(batch(t, strings.Repeat("x", 500)))
	for _, tc := range []struct {
		name       string
		minBytes   int
		maxBytes   int
		partitions []int32
		want       int // records
	}{
		{"enough after three", 3 * one, 1 << 20, []int32{2, 0, 1}, 3},
		{"enough in one", 2 * one, 1 << 20, []int32{1, 1}, 2},
		{"the second does not fit", 3 * one, 2*one - 1, []int32{2, 0}, 1},
		{"full", 3 * one, one, []int32{1}, 1},
	} {
		req := &FetchRequest{MaxWait: time.Hour, MinBytes: tc.minBytes, MaxBytes: tc.maxBytes}
		for p := range int32(3) {
			o := b.ListOffsets(t.Context(), auth.Anonymous, []OffsetQuery{{Topic: "t", Partition: p, Timestamp: OffsetLatest, Epoch: -1}})[0]
			req.Partitions = append(req.Partitions, FetchPartition{Topic: "t", Partition: p, Offset: o.Offset, Epoch: -1, MaxBytes: 1 << 20})
		}
		done := make(chan []FetchResult)
		go func() { done <- b.Fetch(t.Context(), auth.Anonymous, req) }()
		for _, p := range tc.partitions {
			produce(t, b, AcksAll, "t", p, strings.Repeat("x", 500))
		}
		got := 0
		for _, r := range <-done {
			got += len(values(t, r))
		}
		if got != tc.want {
			t.Errorf("%s: %d records, want %d", tc.name, got, tc.want)
		}
	}
}

// Closing the broker and deleting a topic end the waits on it.
func TestWaitsEnd(t *testing.T) {
	b, err := Open(t.Context(), Options{FS: disk.NewMem(), Path: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "t", 1, nil)
	create(t, b, "u", 1, nil)
	wait := func(topic string) chan FetchResult {
		out := make(chan FetchResult, 1)
		go func() {
			out <- b.Fetch(t.Context(), auth.Anonymous, &FetchRequest{
				MaxWait: time.Hour, MinBytes: 1, MaxBytes: 1, Partitions: []FetchPartition{{Topic: topic, Epoch: -1, MaxBytes: 1}},
			})[0]
		}()
		return out
	}
	onT, onU := wait("t"), wait("u")
	if r := b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: "t"}})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	if r := <-onT; !errors.Is(r.Err, ErrUnknownTopic) {
		t.Errorf("wait on a deleted topic ended with %v", r.Err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	<-onU
}

// Every bad request gets its error and appends nothing.
func TestRefusals(t *testing.T) {
	b := open(t, disk.NewMem(), map[string]string{"auto.create.topics.enable": "false"})
	create(t, b, "t", 1, map[string]string{"max.message.bytes": "200"})
	create(t, b, "two", 1, map[string]string{"min.insync.replicas": "2"})
	bad := func(change func(record.Batch) record.Batch) record.Batch { return change(batch(t, "v")) }
	for _, tc := range []struct {
		name      string
		topic     string
		partition int32
		acks      Acks
		batch     record.Batch
		want      error
	}{
		{"unknown topic", "nope", 0, AcksAll, batch(t, "v"), ErrUnknownTopic},
		{"bad topic name", "a/b", 0, AcksAll, batch(t, "v"), ErrInvalidTopic},
		{"partition -1", "t", -1, AcksAll, batch(t, "v"), ErrUnknownPartition},
		{"partition 99", "t", 99, AcksAll, batch(t, "v"), ErrUnknownPartition},
		{"acks 2", "t", 0, 2, batch(t, "v"), ErrInvalidAcks},
		{"too few in sync", "two", 0, AcksAll, batch(t, "v"), ErrNotEnoughReplicas},
		{"too large", "t", 0, AcksAll, batch(t, strings.Repeat("v", 200)), ErrBatchTooLarge},
		{"wrong checksum", "t", 0, AcksAll, bad(func(b record.Batch) record.Batch { b[len(b)-1] ^= 1; return b }), ErrCorruptBatch},
		{"wrong magic", "t", 0, AcksAll, bad(func(b record.Batch) record.Batch { b[16] = 1; return b }), ErrInvalidRecord},
	} {
		req := &ProduceRequest{Acks: tc.acks, Timeout: time.Minute, Batches: []ProduceBatch{{Topic: tc.topic, Partition: tc.partition, Batch: tc.batch}}}
		r := b.Produce(t.Context(), auth.Anonymous, req).Wait(t.Context())[0]
		if !errors.Is(r.Err, tc.want) || r.Base != -1 {
			t.Errorf("%s: %+v, want %v", tc.name, r, tc.want)
		}
	}
	for _, topic := range []string{"t", "two"} {
		r := b.ListOffsets(t.Context(), auth.Anonymous, []OffsetQuery{{Topic: topic, Timestamp: OffsetLatest, Epoch: -1}})[0]
		if r.Err != nil || r.Offset != 0 {
			t.Errorf("%s ends at %+v after refusals only", topic, r)
		}
	}
	// acks=1 does not ask for replicas.
	if r := produce(t, b, AcksLeader, "two", 0, "v"); r.Err != nil {
		t.Errorf("acks=1 with too few in sync: %v", r.Err)
	}
}

// Topics are made and refused one by one, and every name rule holds.
func TestCreateTopics(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	specs := []TopicSpec{
		{Name: "ok", Partitions: 3, ReplicationFactor: 1},
		{Name: "ok", Partitions: 1, ReplicationFactor: 1},
		{Name: "", Partitions: 1, ReplicationFactor: 1},
		{Name: ".", Partitions: 1, ReplicationFactor: 1},
		{Name: "..", Partitions: 1, ReplicationFactor: 1},
		{Name: "a/b", Partitions: 1, ReplicationFactor: 1},
		{Name: strings.Repeat("x", 250), Partitions: 1, ReplicationFactor: 1},
		{Name: strings.Repeat("x", 249), Partitions: 1, ReplicationFactor: 1},
		{Name: "__consumer_offsets", Partitions: 1, ReplicationFactor: 1},
		{Name: "zero", Partitions: 0, ReplicationFactor: 1},
		{Name: "three", Partitions: 1, ReplicationFactor: 3},
		{Name: "badkey", Partitions: 1, ReplicationFactor: 1, Configs: map[string]string{"nope": "1"}},
		{Name: "badvalue", Partitions: 1, ReplicationFactor: 1, Configs: map[string]string{"segment.bytes": "many"}},
		{Name: "mixed", Partitions: 1, ReplicationFactor: 1, Assignments: map[int32][]int32{0: {1}}},
		{Name: "unknown-node", Partitions: -1, ReplicationFactor: -1, Assignments: map[int32][]int32{0: {7}}},
		{Name: "defaults", Partitions: -1, ReplicationFactor: -1},
	}
	want := []error{
		nil, ErrTopicExists, ErrInvalidTopic, ErrInvalidTopic, ErrInvalidTopic, ErrInvalidTopic, ErrInvalidTopic, nil, ErrInvalidTopic, ErrInvalidPartitions,
		ErrInvalidReplicationFactor, ErrInvalidConfig, ErrInvalidConfig, ErrInvalidRequest, ErrInvalidAssignment, nil,
	}
	for i, r := range b.CreateTopics(t.Context(), auth.Anonymous, specs, false) {
		if !errors.Is(r.Err, want[i]) || (want[i] == nil) != (r.Err == nil) {
			t.Errorf("%.20q: %v, want %v", specs[i].Name, r.Err, want[i])
		}
	}
	topics, err := b.Topics(t.Context(), auth.Anonymous)
	if err != nil || len(topics) != 3 || len(topics[0].Partitions) != 4 || topics[0].Name != "defaults" || len(topics[1].Partitions) != 3 {
		t.Errorf("topics: %+v, %v", topics, err)
	}
	r := b.CreateTopics(t.Context(), auth.Anonymous, []TopicSpec{{Name: "dry", Partitions: 1, ReplicationFactor: 1}}, true)[0]
	if r.Err != nil || r.Topic.Name != "dry" {
		t.Errorf("validate only: %+v", r)
	}
	if _, err := b.Topic(t.Context(), auth.Anonymous, TopicRef{Name: "dry"}); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("validate only made the topic: %v", err)
	}
}

// A topic made again under a name is another topic: empty, with another id; the
// old id is unknown.
func TestDeleteAndRecreate(t *testing.T) {
	fs := disk.NewMem()
	b := open(t, fs, nil)
	old := create(t, b, "t", 1, nil)
	produce(t, b, AcksAll, "t", 0, "old")
	res := b.Fetch(t.Context(), auth.Anonymous, &FetchRequest{MaxBytes: 100, Partitions: []FetchPartition{{Topic: "t", Epoch: -1, MaxBytes: 100}}})
	if r := b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{ID: old.ID}, {Name: "nope"}}); r[0].Err != nil || !errors.Is(r[1].Err, ErrUnknownTopic) {
		t.Fatalf("delete: %+v", r)
	}
	// A read that began before the deletion still has its bytes.
	if got := fmt.Sprint(values(t, res[0])); got != "[0:old]" {
		t.Errorf("section after deletion: %s", got)
	}
	again := create(t, b, "t", 1, nil)
	if again.ID == old.ID {
		t.Error("the id came back")
	}
	if got := fetchAll(t, b, "t", 0, 0); got != nil {
		t.Errorf("the new topic holds %v", got)
	}
	r := b.Fetch(t.Context(), auth.Anonymous, &FetchRequest{MaxBytes: 100, Partitions: []FetchPartition{{TopicID: old.ID, Epoch: -1}}})[0]
	if !errors.Is(r.Err, ErrUnknownTopicID) {
		t.Errorf("fetch by the old id: %v", r.Err)
	}
}

// Configs change at once, survive a restart, and go back to the default.
func TestAlterConfigs(t *testing.T) {
	fs := disk.NewMem()
	b, err := Open(t.Context(), Options{FS: fs, Path: "/data", Configs: map[string]string{"message.max.bytes": "5000", "flush.messages": "10"}})
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "t", 1, nil)
	show := func(b *Broker, name string) string {
		t.Helper()
		entries, err := b.TopicConfigs(t.Context(), auth.Anonymous, "t")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name == name {
				return fmt.Sprint(e.Value, " ", e.Source)
			}
		}
		return "missing"
	}
	if got := show(b, "max.message.bytes") + "; " + show(b, "flush.messages"); got != "5000 4; 10 4" {
		t.Errorf("server's settings: %s", got)
	}
	small := "100"
	if err := b.AlterTopicConfigs(t.Context(), auth.Anonymous, "t", []ConfigChange{{Name: "max.message.bytes", Value: &small}}, false); err != nil {
		t.Fatal(err)
	}
	if r := produce(t, b, AcksAll, "t", 0, strings.Repeat("x", 200)); !errors.Is(r.Err, ErrBatchTooLarge) {
		t.Errorf("the new limit is not in force: %v", r.Err)
	}
	bad := "-5"
	for _, changes := range [][]ConfigChange{
		{{Name: "segment.bytes", Value: &bad}}, {{Name: "nope"}}, {{Name: ""}}, {{Name: "retention.ms"}, {Name: "retention.ms"}},
	} {
		if err := b.AlterTopicConfigs(t.Context(), auth.Anonymous, "t", changes, false); !errors.Is(err, ErrInvalidConfig) {
			t.Errorf("%+v: %v", changes, err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = open(t, fs, nil)
	if got := show(b, "max.message.bytes"); got != "100 1" {
		t.Errorf("after a restart: %s", got)
	}
	if err := b.AlterTopicConfigs(t.Context(), auth.Anonymous, "t", []ConfigChange{{Name: "max.message.bytes"}}, false); err != nil {
		t.Fatal(err)
	}
	if got := show(b, "max.message.bytes"); got != "1048588 5" {
		t.Errorf("back to the default: %s", got)
	}
}

// Names and values of server configs are checked before anything opens.
func TestServerConfigs(t *testing.T) {
	for _, set := range []map[string]string{{"nope": "1"}, {"": "1"}, {"num.partitions": "0"}, {"flush.messages": "1", "log.flush.interval.messages": "1"}} {
		if _, err := Open(t.Context(), Options{FS: disk.NewMem(), Path: "/data", Configs: set}); !errors.Is(err, ErrInvalidConfig) {
			t.Errorf("%v: %v", set, err)
		}
	}
	for i := range configs {
		d := &configs[i]
		if err := d.check(d.value); err != nil || d.doc == "" || d.server == "" {
			t.Errorf("config %q %q: default %q: %v", d.topic, d.server, d.value, err)
		}
	}
}

// A topic that is named first by a producer is made once, however many name it.
func TestAutoCreate(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if r := produce(t, b, AcksAll, "auto", int32(i%4), "v"); r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
	wg.Wait()
	topics, _ := b.Topics(t.Context(), auth.Anonymous)
	if len(topics) != 1 || len(topics[0].Partitions) != 4 {
		t.Errorf("topics: %+v", topics)
	}
}

// A reader that knows another leader epoch is told.
func TestEpochs(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 1, nil)
	for epoch, want := range map[int32]error{-1: nil, 0: nil, 1: ErrUnknownEpoch} {
		r := b.Fetch(t.Context(), auth.Anonymous, &FetchRequest{Partitions: []FetchPartition{{Topic: "t", Epoch: epoch}}})[0]
		if !errors.Is(r.Err, want) || want == nil && r.Err != nil {
			t.Errorf("epoch %d: %v, want %v", epoch, r.Err, want)
		}
		o := b.ListOffsets(t.Context(), auth.Anonymous, []OffsetQuery{{Topic: "t", Timestamp: OffsetLatest, Epoch: epoch}})[0]
		if !errors.Is(o.Err, want) || want == nil && o.Err != nil {
			t.Errorf("offsets at epoch %d: %v, want %v", epoch, o.Err, want)
		}
	}
}

// The byte budget of a fetch is kept by all but the first batch.
func TestFetchBudget(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 3, nil)
	for p := range int32(3) {
		produce(t, b, AcksAll, "t", p, strings.Repeat("x", 500))
	}
	one := int(b.Fetch(t.Context(), auth.Anonymous, &FetchRequest{MaxBytes: 1 << 20, Partitions: []FetchPartition{{Topic: "t", Epoch: -1, MaxBytes: 1 << 20}}})[0].Section.Len())
	for _, tc := range []struct{ max, part, want int }{{1, 1 << 20, 1}, {1 << 20, 1, 1}, {2 * one, 1 << 20, 2}, {2*one + 1, 1 << 20, 2}, {3 * one, 1 << 20, 3}, {1 << 20, one, 3}, {0, 0, 1}} {
		req := &FetchRequest{MaxBytes: tc.max}
		for p := range int32(3) {
			req.Partitions = append(req.Partitions, FetchPartition{Topic: "t", Partition: p, Epoch: -1, MaxBytes: tc.part})
		}
		got := 0
		for _, r := range b.Fetch(t.Context(), auth.Anonymous, req) {
			if r.Section != nil {
				got++
				r.Section.Release()
			}
		}
		if got != tc.want {
			t.Errorf("max %d, partition max %d: %d parts, want %d", tc.max, tc.part, got, tc.want)
		}
	}
}

// Offsets outside of the log are told with the log's bounds.
func TestOffsetOutOfRange(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 1, nil)
	produce(t, b, AcksAll, "t", 0, "a", "b")
	for _, offset := range []int64{-1, 3, 1 << 60} {
		r := b.Fetch(t.Context(), auth.Anonymous, &FetchRequest{MaxWait: time.Hour, MinBytes: 1, MaxBytes: 100, Partitions: []FetchPartition{{Topic: "t", Offset: offset, Epoch: -1, MaxBytes: 100}}})[0]
		var oe *OffsetError
		if !errors.As(r.Err, &oe) || oe.Start != 0 || oe.End != 2 || r.HighWatermark != -1 {
			t.Errorf("offset %d: %+v", offset, r)
		}
	}
}

// Logs whose metadata is gone are refused, and nothing is moved.
func TestMetadataGone(t *testing.T) {
	mem := disk.NewMem()
	b, err := Open(t.Context(), Options{FS: mem, Path: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "t", 1, nil)
	produce(t, b, AcksAll, "t", 0, "v")
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := mem.RemoveAll("/data/db"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var damaged *storage.DamagedError
		if _, err := Open(t.Context(), Options{FS: mem, Path: "/data"}); !errors.As(err, &damaged) {
			t.Fatalf("Open without metadata: %v", err)
		}
	}
	if logs, err := mem.List("/data/logs"); err != nil || len(logs) != 1 {
		t.Errorf("logs after the refusals: %v, %v", logs, err)
	}
}

// Producer ids are never given out twice, also not after a restart.
func TestProducerIDs(t *testing.T) {
	fs := disk.NewMem()
	seen := map[int64]bool{}
	for range 3 {
		b, err := Open(t.Context(), Options{FS: fs, Path: "/data"})
		if err != nil {
			t.Fatal(err)
		}
		for range producerIDBlock + 5 {
			id, epoch, err := b.InitProducerID(t.Context(), auth.Anonymous)
			if err != nil || epoch != 0 || seen[id] || id < 0 {
				t.Fatalf("id %d epoch %d seen %v: %v", id, epoch, seen[id], err)
			}
			seen[id] = true
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
