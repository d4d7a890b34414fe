package broker

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"leat/auth"
	"leat/replication/controller"
	"leat/storage"
	"leat/storage/disk"
)

// refuse is an authorizer that refuses one operation.
type refuse struct{ op auth.Operation }

func (r refuse) Allowed(_ auth.Principal, op auth.Operation, _ auth.Resource) bool { return op != r.op }

// Every call asks for the operation that Kafka asks for.
func TestAdminAuthorization(t *testing.T) {
	value := "1"
	for _, tc := range []struct {
		name string
		op   auth.Operation
		want error
		call func(b *Broker) error
	}{
		{"tail", auth.Read, ErrTopicAuthorization, func(b *Broker) error {
			_, err := b.Tail(auth.Anonymous, TopicRef{Name: "t"}, nil, true, func() {})
			return err
		}},
		{"create partitions", auth.Alter, ErrTopicAuthorization, func(b *Broker) error {
			return b.CreatePartitions(t.Context(), auth.Anonymous, []PartitionsSpec{{Topic: "t", Count: 9}}, false)[0].Err
		}},
		{"delete records", auth.Delete, ErrTopicAuthorization, func(b *Broker) error {
			return b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "t", Offset: -1}})[0].Err
		}},
		{"epoch ends", auth.Describe, ErrTopicAuthorization, func(b *Broker) error {
			return b.EpochEnds(t.Context(), auth.Anonymous, []EpochQuery{{Topic: "t", CurrentEpoch: -1}})[0].Err
		}},
		{"alter topic", auth.AlterConfigs, ErrTopicAuthorization, func(b *Broker) error {
			return b.AlterTopicConfigs(t.Context(), auth.Anonymous, "t", []ConfigChange{{Name: "retention.ms", Value: &value}}, false)
		}},
		{"replace topic", auth.AlterConfigs, ErrTopicAuthorization, func(b *Broker) error {
			return b.ReplaceTopicConfigs(t.Context(), auth.Anonymous, "t", nil, false)
		}},
		{"alter topic's configs as a whole", auth.AlterConfigs, ErrTopicAuthorization, func(b *Broker) error {
			_, _, err := b.AlterTopic(t.Context(), auth.Anonymous, "t", &TopicChange{Reset: true}, false)
			return err
		}},
		{"alter topic's partitions as a whole", auth.Alter, ErrTopicAuthorization, func(b *Broker) error {
			_, _, err := b.AlterTopic(t.Context(), auth.Anonymous, "t", &TopicChange{Partitions: 9}, false)
			return err
		}},
		{"broker configs", auth.DescribeConfigs, ErrClusterAuthorization, func(b *Broker) error {
			_, err := b.BrokerConfigs(t.Context(), auth.Anonymous, -1)
			return err
		}},
		{"alter broker", auth.AlterConfigs, ErrClusterAuthorization, func(b *Broker) error {
			return b.AlterBrokerConfigs(t.Context(), auth.Anonymous, 1, []ConfigChange{{Name: "num.partitions", Value: &value}}, false)
		}},
		{"replace broker", auth.AlterConfigs, ErrClusterAuthorization, func(b *Broker) error {
			return b.ReplaceBrokerConfigs(t.Context(), auth.Anonymous, -1, nil, false)
		}},
		{"producers", auth.Read, ErrTopicAuthorization, func(b *Broker) error {
			_, err := b.Producers(t.Context(), auth.Anonymous, "t", 0)
			return err
		}},
		{"config resources", auth.DescribeConfigs, ErrClusterAuthorization, func(b *Broker) error {
			_, _, err := b.ConfigResources(t.Context(), auth.Anonymous)
			return err
		}},
		{"reassignments", auth.Describe, ErrClusterAuthorization, func(b *Broker) error {
			return b.Reassignments(t.Context(), auth.Anonymous)
		}},
		{"log dirs", auth.Describe, ErrClusterAuthorization, func(b *Broker) error {
			_, err := b.LogDirs(t.Context(), auth.Anonymous, nil)
			return err
		}},
	} {
		b := open(t, disk.NewMem(), nil)
		create(t, b, "t", 1, nil)
		if err := tc.call(b); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		b.opts.Authorizer = refuse{tc.op}
		if err := tc.call(b); !errors.Is(err, tc.want) {
			t.Errorf("%s without the right: %v, want %v", tc.name, err, tc.want)
		}
		for tail := range b.mu.topics[b.proposer.State().TopicNamed("t").ID].mu.tails {
			tail.Close()
		}
	}
}

// New partitions can be used at once, are refused one topic at a time, and are
// there after a restart.
func TestCreatePartitions(t *testing.T) {
	fs := disk.NewMem()
	b, err := Open(t.Context(), Options{FS: fs, Path: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"t", "u", "v", "w"} {
		create(t, b, name, 2, nil)
	}
	specs := []PartitionsSpec{
		{Topic: "t", Count: 4},
		{Topic: "nope", Count: 4},
		{Topic: "u", Count: 2},
		{Topic: "v", Count: 3, Assignments: [][]int32{{1}}},
		{Topic: "w", Count: 3},
		{Topic: "w", Count: 5},
	}
	want := []error{nil, ErrUnknownTopic, ErrInvalidPartitions, nil, ErrInvalidRequest, ErrInvalidRequest}
	for _, dry := range []bool{true, false} {
		for i, r := range b.CreatePartitions(t.Context(), auth.Anonymous, specs, dry) {
			if !errors.Is(r.Err, want[i]) || (want[i] == nil) != (r.Err == nil) || r.Topic.Name != specs[i].Topic {
				t.Errorf("dry %v, %s: %+v, want %v", dry, specs[i].Topic, r, want[i])
			}
			if r.Err == nil && len(r.Topic.Partitions) != int(specs[i].Count) {
				t.Errorf("dry %v, %s: %d partitions", dry, specs[i].Topic, len(r.Topic.Partitions))
			}
		}
		if r := produce(t, b, AcksAll, "t", 3, "v"); (r.Err == nil) == dry {
			t.Errorf("dry %v: produce to the new partition: %v", dry, r.Err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = open(t, fs, nil)
	if got := fmt.Sprint(fetchAll(t, b, "t", 3, 0)); got != "[0:v]" {
		t.Errorf("after a restart: %s", got)
	}
}

// Records below the offset are gone for readers, also after a power cut, and
// every bad offset is refused with the log's bounds.
func TestDeleteRecords(t *testing.T) {
	fs := disk.NewMem()
	b := open(t, fs, nil)
	create(t, b, "t", 2, nil)
	create(t, b, "c", 1, map[string]string{"cleanup.policy": "compact"})
	for i := range 6 {
		produce(t, b, AcksAll, "t", 0, fmt.Sprint(i))
	}
	for _, tc := range []struct {
		name  string
		specs []DeleteRecordsSpec
		low   []int64
		want  error
	}{
		{"up", []DeleteRecordsSpec{{"t", 0, 2}}, []int64{2}, nil},
		{"down", []DeleteRecordsSpec{{"t", 0, 1}}, []int64{2}, nil},
		{"twice", []DeleteRecordsSpec{{"t", 0, 4}, {"t", 0, 3}}, []int64{4, 4}, nil},
		{"beyond", []DeleteRecordsSpec{{"t", 0, 7}}, []int64{-1}, ErrOffsetOutOfRange},
		{"negative", []DeleteRecordsSpec{{"t", 0, -2}}, []int64{-1}, ErrOffsetOutOfRange},
		{"empty", []DeleteRecordsSpec{{"t", 1, -1}}, []int64{0}, nil},
		{"unknown topic", []DeleteRecordsSpec{{"nope", 0, 0}}, []int64{-1}, ErrUnknownTopic},
		{"unknown partition", []DeleteRecordsSpec{{"t", 2, 0}}, []int64{-1}, ErrUnknownPartition},
		{"compacted", []DeleteRecordsSpec{{"c", 0, 0}}, []int64{-1}, ErrPolicyViolation},
	} {
		for i, r := range b.DeleteRecords(t.Context(), auth.Anonymous, tc.specs) {
			if r.LowWatermark != tc.low[i] || !errors.Is(r.Err, tc.want) || tc.want == nil && r.Err != nil {
				t.Errorf("%s: %+v, want %d, %v", tc.name, r, tc.low[i], tc.want)
			}
		}
	}
	check := func(b *Broker, start int64) {
		t.Helper()
		o := b.ListOffsets(t.Context(), auth.Anonymous, []OffsetQuery{{Topic: "t", Timestamp: OffsetEarliest, Epoch: -1}})[0]
		if o.Err != nil || o.Offset != start {
			t.Errorf("the log begins at %+v, want %d", o, start)
		}
		r := b.Fetch(t.Context(), auth.Anonymous, &FetchRequest{MaxBytes: 100, Partitions: []FetchPartition{{Topic: "t", Offset: start - 1, Epoch: -1, MaxBytes: 100}}})[0]
		if !errors.Is(r.Err, ErrOffsetOutOfRange) {
			t.Errorf("below the start: %+v", r)
		}
	}
	check(b, 4)
	b = open(t, fs.CrashClone(0, nil), nil)
	check(b, 4)
	if got := fmt.Sprint(fetchAll(t, b, "t", 0, 4)); got != "[4:4 5:5]" {
		t.Errorf("after the cut: %s", got)
	}
	// All of it: the next record goes on counting.
	if r := b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{"t", 0, -1}})[0]; r.LowWatermark != 6 {
		t.Errorf("all: %+v", r)
	}
	if r := produce(t, b, AcksAll, "t", 0, "next"); r.Base != 6 || r.LogStart != 6 {
		t.Errorf("next: %+v", r)
	}
}

// The start of a log ends with its topic, and one that a crash left behind goes
// with the next start.
func TestStartsEndWithTopic(t *testing.T) {
	fs := disk.NewMem()
	b, err := Open(t.Context(), Options{FS: fs, Path: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "t", 1, nil)
	create(t, b, "kept", 1, nil)
	for _, name := range []string{"t", "kept"} {
		produce(t, b, AcksAll, name, 0, "v")
		b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: name, Offset: -1}})
	}
	count := func(b *Broker) (n int) {
		t.Helper()
		if err := b.db.Scan(startPrefix, func(_, _ []byte) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	left := b.db.NewBatch()
	left.Set(startKey(storage.ID{Topic: storage.NewTopicID()}), make([]byte, 8))
	if err := b.db.Commit(left); err != nil {
		t.Fatal(err)
	}
	if n := count(b); n != 3 {
		t.Fatalf("%d starts", n)
	}
	b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: "t"}})
	if n := count(b); n != 2 {
		t.Errorf("%d starts after the topic", n)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b = open(t, fs, nil)
	if n := count(b); n != 1 {
		t.Errorf("%d starts after a restart", n)
	}
	if low := b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "kept"}})[0].LowWatermark; low != 1 {
		t.Errorf("the kept topic begins at %d", low)
	}
}

// The epochs of a log end where the next began, as KIP-320 has it.
func TestEpochEnds(t *testing.T) {
	fs := disk.NewMem()
	b := open(t, fs, nil)
	create(t, b, "t", 1, nil)
	create(t, b, "empty", 1, nil)
	ask := func(topic string, current, epoch int32) string {
		t.Helper()
		r := b.EpochEnds(t.Context(), auth.Anonymous, []EpochQuery{{Topic: topic, CurrentEpoch: current, Epoch: epoch}})[0]
		switch {
		case errors.Is(r.Err, ErrFencedEpoch):
			return "fenced"
		case errors.Is(r.Err, ErrUnknownEpoch):
			return "unknown"
		case r.Err != nil:
			return r.Err.Error()
		}
		return fmt.Sprint(r.Epoch, " ", r.EndOffset)
	}
	// Epoch 0 has two records, 1 none, 2 three: each cut grows the epoch.
	produce(t, b, AcksAll, "t", 0, "a", "b")
	for range 2 {
		fs = fs.CrashClone(0, nil)
		b = open(t, fs, nil)
	}
	produce(t, b, AcksAll, "t", 0, "c")
	produce(t, b, AcksAll, "t", 0, "d", "e")
	for _, tc := range []struct {
		topic          string
		current, epoch int32
		want           string
	}{
		{"t", -1, -1, "-1 -1"},
		{"t", 2, 0, "0 2"},
		{"t", -1, 1, "0 2"},
		{"t", -1, 2, "2 5"},
		{"t", -1, 3, "-1 -1"},
		{"t", 1, 0, "fenced"},
		{"t", 3, 0, "unknown"},
		{"empty", 0, 0, "fenced"},
		{"empty", 2, 0, "0 0"},
		{"empty", 2, 2, "2 0"},
	} {
		if got := ask(tc.topic, tc.current, tc.epoch); got != tc.want {
			t.Errorf("%s, knowing %d, asking for %d: %s, want %s", tc.topic, tc.current, tc.epoch, got, tc.want)
		}
	}
	// Below every epoch that is left: the asked one ends where the log begins.
	if r := b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "t", Offset: 3}})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	if got := ask("t", -1, 1); got != "1 3" {
		t.Errorf("below what is left: %s", got)
	}
	if got := ask("nope", -1, 0); got != `unknown topic: "nope"` {
		t.Errorf("unknown topic: %s", got)
	}
}

// The data directory is described with the logs that are asked for.
func TestLogDirs(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "b", 2, nil)
	create(t, b, "a", 1, nil)
	produce(t, b, AcksAll, "b", 1, "v")
	for _, tc := range []struct {
		wanted func(topic string, partition int32) bool
		want   string
	}{
		{nil, "a/0 b/0 b/1 "},
		{func(string, int32) bool { return false }, ""},
		{func(topic string, _ int32) bool { return topic == "b" }, "b/0 b/1 "},
		{func(topic string, partition int32) bool { return topic == "b" && partition == 1 }, "b/1 "},
	} {
		dir, err := b.LogDirs(t.Context(), auth.Anonymous, tc.wanted)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, l := range dir.Logs {
			got += fmt.Sprintf("%s/%d ", l.Topic, l.Partition)
			if (l.Size > 0) != (l.Topic == "b" && l.Partition == 1) || l.Lag != 0 {
				t.Errorf("%+v", l)
			}
		}
		if got != tc.want || dir.Path != "/data" {
			t.Errorf("%q in %q, want %q", got, dir.Path, tc.want)
		}
	}
}

// configOf shows a config, its source and its synonyms.
func configOf(t *testing.T, entries []ConfigEntry, err error, name string) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(entries, func(e ConfigEntry) bool { return e.Name == name })
	if i < 0 {
		return "missing"
	}
	e := entries[i]
	if e.Synonyms[0].Value != e.Value || e.Synonyms[0].Source != e.Source {
		t.Errorf("%s: the first synonym is not in force: %+v", name, e)
	}
	out := e.Value
	for _, s := range e.Synonyms {
		out += fmt.Sprintf(" %s=%s@%d", s.Name, s.Value, s.Source)
	}
	return out
}

// Configs are found from the most special place to the default, at once, for
// every topic, and over a restart; a start's own settings rank below those made
// while the server ran.
func TestDynamicConfigs(t *testing.T) {
	fs := disk.NewMem()
	start := map[string]string{"message.max.bytes": "5000"}
	b, err := Open(t.Context(), Options{FS: fs, Path: "/data", Configs: start})
	if err != nil {
		t.Fatal(err)
	}
	create(t, b, "t", 1, nil)
	ctx, who := t.Context(), auth.Anonymous
	topic := func() string {
		t.Helper()
		entries, err := b.TopicConfigs(ctx, who, "t")
		return configOf(t, entries, err, "max.message.bytes")
	}
	set := func(name, v string) []ConfigChange { return []ConfigChange{{Name: name, Value: &v}} }
	const fallback = " message.max.bytes=5000@4 message.max.bytes=1048588@5"
	steps := []struct {
		do    func() error
		limit int
		want  string
	}{
		{func() error { return nil }, 5000, "5000" + fallback},
		{func() error { return b.AlterBrokerConfigs(ctx, who, -1, set("message.max.bytes", "4000"), false) }, 4000, "4000 message.max.bytes=4000@3" + fallback},
		{func() error { return b.AlterBrokerConfigs(ctx, who, 1, set("max.message.bytes", "3000"), false) }, 3000, "3000 message.max.bytes=3000@2 message.max.bytes=4000@3" + fallback},
		{func() error { return b.AlterTopicConfigs(ctx, who, "t", set("max.message.bytes", "2000"), false) }, 2000, "2000 max.message.bytes=2000@1 message.max.bytes=3000@2 message.max.bytes=4000@3" + fallback},
		{func() error { return b.AlterTopicConfigs(ctx, who, "t", set("max.message.bytes", "1"), true) }, 2000, "2000 max.message.bytes=2000@1 message.max.bytes=3000@2 message.max.bytes=4000@3" + fallback},
		{func() error {
			if err := b.Close(); err != nil {
				return err
			}
			b = open(t, fs, start)
			return nil
		}, 2000, "2000 max.message.bytes=2000@1 message.max.bytes=3000@2 message.max.bytes=4000@3" + fallback},
		{func() error {
			return b.ReplaceTopicConfigs(ctx, who, "t", map[string]string{"retention.ms": "9"}, false)
		}, 3000, "3000 message.max.bytes=3000@2 message.max.bytes=4000@3" + fallback},
		{func() error { return b.AlterBrokerConfigs(ctx, who, -1, set("message.max.bytes", "1"), true) }, 3000, "3000 message.max.bytes=3000@2 message.max.bytes=4000@3" + fallback},
		{func() error {
			return b.ReplaceBrokerConfigs(ctx, who, 1, map[string]string{"num.partitions": "7"}, false)
		}, 4000, "4000 message.max.bytes=4000@3" + fallback},
		{func() error {
			return b.AlterBrokerConfigs(ctx, who, -1, []ConfigChange{{Name: "message.max.bytes", Op: ConfigDelete}}, false)
		}, 5000, "5000" + fallback},
	}
	for i, step := range steps {
		if err := step.do(); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if got := topic(); got != step.want {
			t.Errorf("step %d: %s, want %s", i, got, step.want)
		}
		part, err := b.partition(b.proposer.State().TopicNamed("t"), 0)
		if err != nil || part.log.Config().MaxBatchBytes != step.limit {
			t.Errorf("step %d: the limit in force is %d, want %d: %v", i, part.log.Config().MaxBatchBytes, step.limit, err)
		}
	}
	// A config without a topic's name is in force too.
	if made := create(t, b, "u", -1, nil); len(made.Partitions) != 7 {
		t.Errorf("a new topic has %d partitions", len(made.Partitions))
	}
	entries, err := b.TopicConfigs(ctx, who, "t")
	if got := configOf(t, entries, err, "retention.ms"); got != "9 retention.ms=9@1 log.retention.ms=604800000@5" {
		t.Errorf("what was put in its place: %s", got)
	}
}

// A server's configs are listed with what cannot be changed; for all servers,
// only what was set; an unknown server is refused.
func TestBrokerConfigs(t *testing.T) {
	b := open(t, disk.NewMem(), map[string]string{"num.partitions": "2"})
	ctx, who := t.Context(), auth.Anonymous
	entries, err := b.BrokerConfigs(ctx, who, 1)
	if got := configOf(t, entries, err, "num.partitions"); got != "2 num.partitions=2@4 num.partitions=4@5" {
		t.Errorf("num.partitions: %s", got)
	}
	if got := configOf(t, entries, err, "advertised.listeners"); got != "PLAINTEXT://h:1 advertised.listeners=PLAINTEXT://h:1@4" {
		t.Errorf("advertised.listeners: %s", got)
	}
	if !slices.IsSortedFunc(entries, byName) {
		t.Error("not sorted")
	}
	for _, e := range entries {
		v := e.Value
		err := b.AlterBrokerConfigs(ctx, who, 1, []ConfigChange{{Name: e.Name, Value: &v}}, true)
		if e.ReadOnly != (err != nil) || err != nil && !errors.Is(err, ErrInvalidConfig) || e.Doc == "" {
			t.Errorf("%s, read only %v: %v", e.Name, e.ReadOnly, err)
		}
	}
	if all, err := b.BrokerConfigs(ctx, who, controller.AllBrokers); err != nil || len(all) != 0 {
		t.Errorf("nothing was set for all: %v, %v", all, err)
	}
	v := "9"
	if err := b.AlterBrokerConfigs(ctx, who, -1, []ConfigChange{{Name: "num.partitions", Value: &v}}, false); err != nil {
		t.Fatal(err)
	}
	if all, err := b.BrokerConfigs(ctx, who, -1); len(all) != 1 || configOf(t, all, err, "num.partitions") != "9 num.partitions=9@3 num.partitions=2@4 num.partitions=4@5" {
		t.Errorf("for all: %+v, %v", all, err)
	}
	_, err = b.BrokerConfigs(ctx, who, 2)
	for _, err := range []error{
		err, b.AlterBrokerConfigs(ctx, who, 2, nil, false), b.ReplaceBrokerConfigs(ctx, who, -2, nil, true),
	} {
		if !errors.Is(err, ErrUnknownBroker) {
			t.Errorf("unknown server: %v", err)
		}
	}
}

// Lists are appended to and subtracted from; nothing else is, and what does not
// change is not set.
func TestListConfigs(t *testing.T) {
	b := open(t, disk.NewMem(), nil)
	create(t, b, "t", 1, nil)
	ctx, who := t.Context(), auth.Anonymous
	show := func() string {
		entries, err := b.TopicConfigs(ctx, who, "t")
		return configOf(t, entries, err, "cleanup.policy")
	}
	const fallback = " log.cleanup.policy=delete@5"
	for i, step := range []struct {
		op          ConfigOp
		name, value string
		want        string // empty: refused
	}{
		{ConfigAppend, "cleanup.policy", "delete", "delete" + fallback},
		{ConfigSubtract, "cleanup.policy", "compact", "delete" + fallback},
		{ConfigSubtract, "cleanup.policy", "delete", ""},
		{ConfigAppend, "cleanup.policy", "compact", "delete,compact cleanup.policy=delete,compact@1" + fallback},
		{ConfigAppend, "cleanup.policy", "compact, delete", "delete,compact cleanup.policy=delete,compact@1" + fallback},
		{ConfigSubtract, "cleanup.policy", "delete", "compact cleanup.policy=compact@1" + fallback},
		{ConfigAppend, "cleanup.policy", "nope", ""},
		{ConfigAppend, "retention.ms", "1", ""},
		{ConfigSubtract, "retention.ms", "1", ""},
		{4, "cleanup.policy", "delete", ""},
		{ConfigAppend, "nope", "1", ""},
		{ConfigSet, "cleanup.policy", "delete", "delete cleanup.policy=delete@1" + fallback},
		{ConfigDelete, "cleanup.policy", "ignored", "delete" + fallback},
	} {
		err := b.AlterTopicConfigs(ctx, who, "t", []ConfigChange{{Name: step.name, Value: &step.value, Op: step.op}}, false)
		if step.want == "" {
			if !errors.Is(err, ErrInvalidConfig) {
				t.Errorf("step %d: %v", i, err)
			}
			continue
		}
		if got := show(); err != nil || got != step.want {
			t.Errorf("step %d: %s, %v; want %s", i, got, err, step.want)
		}
	}
	if err := b.AlterTopicConfigs(ctx, who, "t", []ConfigChange{{Name: "cleanup.policy", Op: ConfigAppend}}, false); !errors.Is(err, ErrInvalidConfig) {
		t.Errorf("append of nothing: %v", err)
	}
	if err := b.AlterBrokerConfigs(ctx, who, -1, []ConfigChange{{Name: "log.cleanup.policy", Op: ConfigAppend, Value: new("compact")}}, false); err != nil || show() != "delete,compact log.cleanup.policy=delete,compact@3"+fallback {
		t.Errorf("a list of all servers: %s, %v", show(), err)
	}
	if err := b.ReplaceTopicConfigs(ctx, who, "t", map[string]string{"retention.ms": "1", "nope": "2"}, false); !errors.Is(err, ErrInvalidConfig) || show() != "delete,compact log.cleanup.policy=delete,compact@3"+fallback {
		t.Errorf("a bad replacement: %v", err)
	}
}
