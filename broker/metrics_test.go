package broker

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"leat/auth"
	"leat/storage/disk"
	"leat/storage/record"
)

func openMetered(t *testing.T) (*Broker, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	b, err := Open(t.Context(), Options{FS: disk.NewMem(), Path: "/data", Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b, reg
}

// series counts the series of a registry.
func series(t *testing.T, reg *prometheus.Registry) int {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range families {
		n += len(f.GetMetric())
	}
	return n
}

// What goes through a topic is counted under its name.
func TestTopicMetrics(t *testing.T) {
	b, reg := openMetered(t)
	create(t, b, "t", 2, map[string]string{"max.message.bytes": "100"})
	r := produce(t, b, AcksAll, "t", 0, "a", "b")
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	produce(t, b, AcksLeader, "t", 1, strings.Repeat("v", 200))
	size := len(batch(t, "a", "b"))
	fetchAll(t, b, "t", 0, 0)
	tail, _ := newTail(t, b, "t", true)
	drain(t, tail)
	want := map[string]float64{
		`leat_topic_appended_bytes_total topic="t"`:                      float64(size),
		`leat_topic_appended_records_total topic="t"`:                    2,
		`leat_topic_failed_appends_total reason="too_large" topic="t"`:   1,
		`leat_topic_failed_appends_total reason="disk_full" topic="t"`:   0,
		`leat_topic_failed_appends_total reason="disk_failed" topic="t"`: 0,
		`leat_broker_damaged_partitions`:                                 0,
		`leat_topic_fetched_bytes_total topic="t"`:                       float64(2 * size),
		`leat_topic_retention_deleted_bytes_total topic="t"`:             0,
		`leat_topic_log_bytes topic="t"`:                                 float64(size),
		`leat_topic_partitions topic="t"`:                                2,
		`leat_broker_tails`:                                              1,
		`leat_broker_topics`:                                             1,
		`leat_broker_partitions`:                                         2,
		`leat_broker_produce_seconds acks="all"`:                         1,
		`leat_broker_produce_seconds acks="leader"`:                      0,
		`leat_broker_waiting_fetches`:                                    0,
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += fmt.Sprintf(" %s=%q", l.GetName(), l.GetValue())
			}
			got := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			if v, ok := want[name]; ok && v != got {
				t.Errorf("%s is %v, want %v", name, got, v)
			} else if !ok && strings.HasPrefix(name, "leat_topic_") {
				t.Errorf("unexpected %s", name)
			}
			delete(want, name)
		}
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
}

// After a thousand topics came and went the series are as many as before, and
// they are never more than a thousand topics' (case 66).
func TestSeriesOfTopicsGo(t *testing.T) {
	b, reg := openMetered(t)
	create(t, b, "stays", 1, nil)
	baseline := series(t, reg)
	const topics = maxTopicLabels + 50
	specs := make([]TopicSpec, topics)
	refs := make([]TopicRef, topics)
	for i := range specs {
		name := fmt.Sprint("t", i)
		if i == 0 {
			name = otherTopics // a topic may be called so
		}
		specs[i] = TopicSpec{Name: name, Partitions: 1, ReplicationFactor: 1}
		refs[i].Name = name
	}
	for _, r := range b.CreateTopics(t.Context(), auth.Anonymous, specs, false) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	for i := range specs {
		if r := produce(t, b, AcksLeader, specs[i].Name, 0, "v"); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	const each = 8 // six figures, and the two reasons of refusal that are there from the start
	full := series(t, reg)
	if limit := baseline + each*maxTopicLabels; full < limit-2*each || full > limit {
		t.Errorf("%d series with %d topics, %d before", full, topics, baseline)
	}
	for _, r := range b.DeleteTopics(t.Context(), auth.Anonymous, refs) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	// The shared label stays, because a counter must not go back.
	if after := series(t, reg); after != baseline+each {
		t.Errorf("%d series after the topics went, %d before", after, baseline)
	}
	// A name that comes back has its own series again, from zero.
	create(t, b, "t7", 1, nil)
	if after := series(t, reg); after != baseline+2*each {
		t.Errorf("%d series with a topic that came back, %d before", after, baseline)
	}
}

// Damage that a reader of batches meets is counted once a partition, and the
// operator is told the file and the position, be it damage of the file or what a
// producer sent.
func TestNoteDamage(t *testing.T) {
	for name, c := range map[string]struct {
		damaged  bool
		from, to int64
		want     string
	}{
		"file":  {true, 1, 2, `partition is damaged.* from_offset=1 to_offset=2 file=/data/logs/\S+\.log position=%d `},
		"batch": {false, 1, 2, `cannot be read as records.* offset=1 .*file=/data/logs/\S+\.log position=%d\s`},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			fs := disk.NewMem()
			b, err := Open(t.Context(), Options{
				FS: fs, Path: "/data", Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close() })
			create(t, b, "t", 1, nil)
			produce(t, b, AcksAll, "t", 0, "a")
			produce(t, b, AcksAll, "t", 0, "b")
			size := int64(len(batch(t, "a")))
			if c.damaged {
				overwrite(t, fs, partitionOf(b, "t"), size+record.HeaderSize+1, 0xff)
			}
			tail, _ := newTail(t, b, "t", true)
			if err := b.NoteDamage("gone", 0, 1, io.ErrUnexpectedEOF); !errors.Is(err, ErrUnknownTopic) {
				t.Error(err)
			}
			for range 2 {
				met, ok := errors.AsType[*CorruptError](b.NoteDamage("t", 0, 1, io.ErrUnexpectedEOF))
				if !ok || met.From != c.from || met.To != c.to {
					t.Errorf("%+v", err)
				}
			}
			if err := tail.NoteDamage(0, 1, io.ErrUnexpectedEOF); !errors.Is(err, ErrCorruptRecord) {
				t.Error(err)
			}
			if n := b.damages(); n != 1 {
				t.Errorf("%d partitions are damaged", n)
			}
			where := regexp.MustCompile(fmt.Sprintf(c.want, size))
			if text := log.String(); strings.Count(text, "level=ERROR") != 1 || !where.MatchString(text) {
				t.Errorf("want %s in:\n%s", where, text)
			}
			if p := partitionOf(b, "t"); p.log.Fenced() != c.damaged {
				t.Errorf("fenced: %v", p.log.Fenced())
			}
			// A repair accepts it, be it a hole or not.
			r, err := b.ElectLeaders(t.Context(), auth.Anonymous, true, nil)
			if err != nil || len(r) != 1 || r[0].Err != nil || b.damages() != 0 {
				t.Errorf("repaired: %+v, %v; %d partitions are damaged", r, err, b.damages())
			}
			if c.damaged {
				return
			}
			_ = b.NoteDamage("t", 0, 1, io.ErrUnexpectedEOF)
			if r, err := b.ElectLeaders(t.Context(), auth.Anonymous, true, nil); err != nil || len(r) != 0 || b.damages() != 0 {
				t.Errorf("of what was accepted: %+v, %v; %d partitions are damaged", r, err, b.damages())
			}
			// Another one counts until it is deleted.
			produce(t, b, AcksAll, "t", 0, "c")
			_ = b.NoteDamage("t", 0, 2, io.ErrUnexpectedEOF)
			if n := b.damages(); n != 1 || strings.Count(log.String(), "level=ERROR") != 2 {
				t.Errorf("%d partitions are damaged:\n%s", n, log.String())
			}
			del := b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "t", Partition: 0, Offset: 3}})
			if del[0].Err != nil || b.damages() != 0 {
				t.Errorf("deleted: %+v; %d partitions are damaged", del, b.damages())
			}
		})
	}
}
