package api

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"leat/auth"
	"leat/broker"
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openBroker opens a broker over a new directory.
func openBroker(t testing.TB) *broker.Broker {
	t.Helper()
	b, err := broker.Open(t.Context(), broker.Options{Path: t.TempDir()})
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

// makeTopic makes a topic. configs are names and values in turn.
func makeTopic(t testing.TB, b *broker.Broker, name string, partitions int32, configs ...string) broker.Topic {
	t.Helper()
	spec := broker.TopicSpec{Name: name, Partitions: partitions, ReplicationFactor: -1, Configs: map[string]string{}}
	for i := 0; i < len(configs); i += 2 {
		spec.Configs[configs[i]] = configs[i+1]
	}
	res := b.CreateTopics(t.Context(), auth.Anonymous, []broker.TopicSpec{spec}, false)[0]
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	return res.Topic
}

// produce appends values to a partition, in one batch if they fit.
func produce(t testing.TB, b *broker.Broker, topic string, partition int32, values ...string) {
	t.Helper()
	set, err := b.NewRecordSet(t.Context(), auth.Anonymous, topic)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	for _, v := range values {
		if err := set.Add(partition, -1, nil, []byte(v), nil); err != nil {
			t.Fatal(err)
		}
	}
	results, err := set.Produce(t.Context(), broker.AcksAll, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

// follow opens a tail that nobody wakes.
func follow(t testing.TB, b *broker.Broker, topic string, starts ...broker.TailStart) *broker.Tail {
	t.Helper()
	tail, err := b.Tail(auth.Anonymous, broker.TopicRef{Name: topic}, starts, false, func() {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tail.Close)
	return tail
}

// filled repeats a letter.
func filled(n int) string { return strings.Repeat("v", n) }
