package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	leaseParts   = 64
	leaseBatches = 60 // of each partition
	leaseRecords = 100
)

// leaseWorker takes work over HTTP on a connection of its own.
type leaseWorker struct {
	client http.Client
	base   string
	done   map[string]string // the lease of each group that is acked with the next take
}

func (w *leaseWorker) post(path, body string) ([]byte, error) {
	resp, err := w.client.Post(w.base+path, "application/json", bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read to its end
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", path, resp.StatusCode, text)
	}
	return text, err
}

// cycle takes a batch of one partition and acks it, in one call with the next take if together, else in a call of its own.
func (w *leaseWorker) cycle(group string, together bool) error {
	ack := ""
	if id := w.done[group]; id != "" {
		ack = `,"ack":["` + id + `"]`
	}
	text, err := w.post("/v1/groups/"+group+"/leases", fmt.Sprintf(`{"topics":["read"],"max_partitions":1,"max_records":%d,"wait_ms":5000%s}`, leaseRecords, ack))
	if err != nil {
		return err
	}
	if bytes.Contains(text[max(0, len(text)-200):], []byte(`"error":`)) {
		return fmt.Errorf("not acked: %s", text[max(0, len(text)-200):])
	}
	// The id comes first; the rest is not looked into, as the other side does not.
	const before = `{"leases":[{"lease_id":"`
	if !bytes.HasPrefix(text, []byte(before)) {
		return fmt.Errorf("no work: %.100s", text)
	}
	id, _, _ := bytes.Cut(text[len(before):], []byte(`"`))
	if together {
		w.done[group] = string(id)
		return nil
	}
	_, err = w.post("/v1/groups/"+group+"/leases/"+string(id)+":ack", "")
	return err
}

// fetch reads a batch of a partition.
func (c *caller) fetch(partition int, offset int64) error {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes = 11, 1<<20
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic = "read"
	p := kmsg.NewFetchRequestTopicPartition()
	p.Partition, p.FetchOffset, p.PartitionMaxBytes, p.CurrentLeaderEpoch = int32(partition), offset, 1, -1
	topic.Partitions = append(topic.Partitions, p)
	req.Topics = append(req.Topics, topic)
	answer, err := c.call(req)
	if err != nil {
		return err
	}
	got := answer.(*kmsg.FetchResponse).Topics[0].Partitions[0]
	if len(got.RecordBatches) == 0 {
		return errors.Join(errors.New("nothing was fetched"), kerr.ErrorForCode(got.ErrorCode))
	}
	return nil
}

// BenchmarkLeases measures how many batches of 100 records a second 1, 8 and 32 workers take over HTTP, as JSON, and ack,
// each on a connection of its own; both the lease and its ack are on disk when they are answered. The ack is a call of its
// own, or goes with the next take. Against as many clients of the Kafka protocol that fetch a batch of a partition of
// theirs, raw, and commit its offset: one thing on disk.
//
//	LEAT_BIN=$PWD/bin/leat go test -run '^$' -bench Leases ./e2e/bench
func BenchmarkLeases(b *testing.B) {
	for b.Loop() {
		for _, workers := range []int{1, 8, 32} {
			l := startLeat(b)
			// The records are of 1970: nothing may go while it is measured.
			l.do(http.MethodPost, "/v1/topics", fmt.Appendf(nil, `{"name":"read","partitions":%d,"configs":{"retention.ms":"-1"}}`, leaseParts), http.StatusCreated)
			batch := noise(10<<10, leaseRecords)
			for range leaseBatches {
				l.fillPartitions("read", leaseParts, batch)
			}
			takers, members := make([]*leaseWorker, workers), make([]*member, workers)
			for i := range takers {
				takers[i] = &leaseWorker{base: "http://" + l.HTTP, done: map[string]string{}, client: http.Client{Transport: &http.Transport{}}}
				members[i] = &member{caller: l.caller(), group: "plain", generation: -1}
			}
			round, next := 0, make([]int64, workers)
			leases := func(together bool) func() float64 {
				return func() float64 {
					round++ // a new group finds all the work undone
					return rate(b, workers, groupSpan, func(i int) error { return takers[i].cycle(fmt.Sprint("lease-", round), together) })
				}
			}
			commits := func() float64 {
				return rate(b, workers, groupSpan, func(i int) error {
					next[i] = (next[i] + leaseRecords) % (leaseRecords * leaseBatches)
					return errors.Join(members[i].fetch(i, next[i]), members[i].commit(i, 1, next[i]+leaseRecords))
				})
			}
			const other = ", against a raw fetch and a commit by Kafka clients"
			compareN(b, groupPairs, fmt.Sprintf("take, then ack, of 100 records as JSON, workers: %d", workers)+other, "batches/s", goal{}, leases(false), commits)
			compareN(b, groupPairs, fmt.Sprintf("take with the last ack, of 100 records as JSON, workers: %d", workers)+other, "batches/s", goal{}, leases(true), commits)
			for _, t := range takers {
				t.client.CloseIdleConnections()
			}
			l.stop()
		}
	}
}
