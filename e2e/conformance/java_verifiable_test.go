package conformance

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
)

// event is a line that the verifiable producer or consumer writes.
type event struct {
	Name       string
	Value      string
	Partition  int32
	Offset     int64
	Success    bool
	Acked      int
	Partitions []struct{ Partition int32 }
}

func events(text string) (out []event, err error) {
	for line := range strings.Lines(text) {
		var e event
		// The last line may be half written.
		if strings.HasPrefix(line, "{") && strings.HasSuffix(line, "\n") {
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				return nil, fmt.Errorf("%w in %q", err, line)
			}
			out = append(out, e)
		}
	}
	return out, nil
}

// verifiableRecords has the verifiable producer write n numbers to a new topic.
func (j *java) verifiableRecords(topic string, partitions int32, n int) error {
	if err := j.oracle.create(j.ctx, topic, partitions); err != nil {
		return err
	}
	return j.moreRecords(topic, n)
}

func (j *java) moreRecords(topic string, n int) error {
	out, err := j.tool("VerifiableProducer", "--topic", topic, "--max-messages", fmt.Sprint(n), "--acks", "-1")
	if err != nil {
		return err
	}
	written, err := events(out)
	if err != nil {
		return err
	}
	acked := 0
	for _, e := range written {
		if e.Name == "producer_send_success" {
			acked++
		}
	}
	if len(written) == 0 {
		return fmt.Errorf("no events in %q", out)
	}
	if last := written[len(written)-1]; acked != n || last.Name != "tool_data" || last.Acked != n {
		return fmt.Errorf("%d of %d sent, and at last %+v", acked, n, last)
	}
	return nil
}

// verifiableTools proves that the numbers of the producer come to the consumer, each once and in order within its
// partition, and that they are committed.
func verifiableTools(j *java) error {
	const topic, n = "verifiable-tools", 1000
	if err := j.verifiableRecords(topic, 3, n); err != nil {
		return err
	}
	out, err := j.tool("VerifiableConsumer", "--topic", topic, "--group-id", topic, "--max-messages", fmt.Sprint(n), "--reset-policy", "earliest", "--verbose")
	if err != nil {
		return err
	}
	read, err := events(out)
	if err != nil {
		return err
	}
	next, seen := map[int32]int64{}, map[string]bool{}
	for _, e := range read {
		switch e.Name {
		case "record_data":
			if e.Offset != next[e.Partition] || seen[e.Value] {
				return fmt.Errorf("%+v, where offset %d was due", e, next[e.Partition])
			}
			next[e.Partition]++
			seen[e.Value] = true
		case "offsets_committed":
			if !e.Success {
				return fmt.Errorf("a commit failed: %+v", e)
			}
		}
	}
	if len(seen) != n {
		return fmt.Errorf("%d of %d records", len(seen), n)
	}
	offsets, err := j.oracle.admin.FetchOffsets(j.ctx, topic)
	if err != nil {
		return err
	}
	for partition, want := range next {
		if o, ok := offsets.Lookup(topic, partition); !ok || o.At != want {
			return fmt.Errorf("committed in partition %d: %d, want %d", partition, o.At, want)
		}
	}
	return nil
}

// verifiableKill proves that the member which is left takes over the partitions of one that was killed, within the session
// timeout, and goes on where the other had committed.
func verifiableKill(j *java) error {
	const topic, n = "verifiable-kill", 500
	if err := j.verifiableRecords(topic, 4, n); err != nil {
		return err
	}
	member := func() (*service, error) {
		return j.start("org.apache.kafka.tools.VerifiableConsumer", "--bootstrap-server", j.addr, "--topic", topic, "--group-id", topic,
			"--session-timeout", "6000", "--reset-policy", "earliest", "--verbose")
	}
	stays, err := member()
	if err != nil {
		return err
	}
	dies, err := member()
	if err != nil {
		return err
	}
	if err := j.until("an even share", func() error { return owners(2, stays, dies) }); err != nil {
		return err
	}
	if err := j.until("all records", func() error { return together(n, stays, dies) }); err != nil {
		return err
	}
	if err := j.until("all commits", func() error { return j.committed(topic, n) }); err != nil {
		return err
	}
	dies.kill()
	if err := j.until("the take-over", func() error { return owners(4, stays) }); err != nil {
		return err
	}
	if err := j.moreRecords(topic, n); err != nil {
		return err
	}
	if err := j.until("all records after the take-over", func() error { return together(2*n, stays, dies) }); err != nil {
		return err
	}
	return stays.stop()
}

// committed is nil when the offsets that a group has committed add up to n.
func (j *java) committed(group string, n int64) error {
	offsets, err := j.oracle.admin.FetchOffsets(j.ctx, group)
	if err != nil {
		return err
	}
	var sum int64
	offsets.Each(func(o kadm.OffsetResponse) { sum += max(o.At, 0) })
	if sum != n {
		return fmt.Errorf("%d records are committed, want %d", sum, n)
	}
	return nil
}

// owners is nil when each member has n partitions.
func owners(n int, members ...*service) error {
	for i, m := range members {
		all, err := events(m.words.String())
		if err != nil {
			return err
		}
		has := 0
		for _, e := range all {
			if e.Name == "partitions_assigned" {
				has = len(e.Partitions)
			}
		}
		if has != n {
			return fmt.Errorf("member %d has %d partitions, want %d", i, has, n)
		}
	}
	return nil
}

// together is nil when the members have read n records between them, each once.
func together(n int, members ...*service) error {
	type place struct {
		partition int32
		offset    int64
	}
	seen := map[place]int{}
	for _, m := range members {
		all, err := events(m.words.String())
		if err != nil {
			return err
		}
		for _, e := range all {
			if e.Name == "record_data" {
				seen[place{e.Partition, e.Offset}]++
			}
		}
	}
	for at, times := range seen {
		if times != 1 {
			return fmt.Errorf("record %+v was read %d times", at, times)
		}
	}
	if len(seen) != n {
		return fmt.Errorf("%d of %d records", len(seen), n)
	}
	return nil
}
