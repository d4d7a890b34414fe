package bench

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// What each partition holds before a start is measured.
const (
	readyBatch   = 4 << 10
	readyBatches = 4
)

// createPartitions makes a topic of many partitions.
func (l *leat) createPartitions(name string, n int) {
	l.b.Helper()
	l.do(http.MethodPost, "/v1/topics", fmt.Appendf(nil, `{"name":%q,"partitions":%d}`, name, n), http.StatusCreated)
}

// fillPartitions writes a batch to each of n partitions of a topic and returns when all are acknowledged.
func (l *leat) fillPartitions(topic string, n int, batch []byte) {
	l.b.Helper()
	nc := dial(l.b, l.Kafka)
	defer nc.Close() //nolint:errcheck // every answer has been read
	const together = 500
	for from := 0; from < n; from += together {
		req := kmsg.NewPtrProduceRequest()
		req.Version, req.Acks, req.TimeoutMillis = 8, -1, 30_000
		t := kmsg.NewProduceRequestTopic()
		t.Topic = topic
		for p := from; p < min(n, from+together); p++ {
			part := kmsg.NewProduceRequestTopicPartition()
			part.Partition, part.Records = int32(p), slices.Clone(batch)
			t.Partitions = append(t.Partitions, part)
		}
		req.Topics = append(req.Topics, t)
		if _, err := nc.Write(kmsg.NewRequestFormatter().AppendRequest(nil, req, 1)); err != nil {
			l.b.Fatal(err)
		}
		var size [4]byte
		if _, err := io.ReadFull(nc, size[:]); err != nil {
			l.b.Fatal(err)
		}
		answer := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(nc, answer); err != nil {
			l.b.Fatal(err)
		}
		resp := kmsg.NewPtrProduceResponse()
		resp.Version = 8
		if err := resp.ReadFrom(answer[4:]); err != nil {
			l.b.Fatal(err)
		}
		for _, p := range resp.Topics[0].Partitions {
			if p.ErrorCode != 0 {
				l.b.Fatalf("partition %d: code %d", p.Partition, p.ErrorCode)
			}
		}
	}
}

// terminate sends SIGTERM and returns how long the process took to end.
func (l *leat) terminate() time.Duration {
	l.b.Helper()
	begun := time.Now()
	if err := l.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		l.b.Fatal(err)
	}
	if err := l.cmd.Wait(); err != nil {
		l.b.Fatal(err)
	}
	return time.Since(begun)
}

// BenchmarkReady measures how long a server with 1,000 and with 10,000 partitions, each with 16 KiB, takes until it is
// ready: after kill -9 right behind the last acknowledgement, and after a clean stop; and how long that stop takes.
func BenchmarkReady(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				l := startLeat(b)
				l.createPartitions("many", n)
				batch := noise(readyBatch, 4)
				for range readyBatches {
					l.fillPartitions("many", n, batch)
				}
				var killed, stopped, stops []time.Duration
				for range 5 {
					l.fillPartitions("many", n, batch) // behind the last checkpoint
					l.kill()
					l.again()
					killed = append(killed, l.took)
				}
				for range 3 {
					stops = append(stops, l.terminate())
					l.again()
					stopped = append(stopped, l.took)
				}
				l.stop()
				most := map[int]float64{1_000: 500, 10_000: 3_000}[n]
				b.ReportMetric(ms(median(killed)), "killed-ms")
				b.ReportMetric(ms(median(stopped)), "stopped-ms")
				what := fmt.Sprintf("%d partitions: ", n)
				single(b, what+"ready after kill -9, median of 5", "ms", goal{most: most}, ms(median(killed)))
				single(b, what+"ready after a clean stop, median of 3", "ms", goal{most: most}, ms(median(stopped)))
				single(b, what+"clean stop, worst of 3", "ms", goal{most: 15_000}, ms(slices.Max(stops)))
			}
		})
	}
}

// BenchmarkIdlePartitions measures the 99th percentile of a produce (100 bytes, fsync mode, acks=all, one at a time) at a
// server that has 1,000 more partitions with records than another.
func BenchmarkIdlePartitions(b *testing.B) {
	for b.Loop() {
		with, without := startLeat(b), startLeat(b)
		with.createPartitions("idle", 1_000)
		with.fillPartitions("idle", 1_000, noise(1<<10, 1))
		for _, l := range []*leat{with, without} {
			l.createTopic("busy", nil)
			settle(l)
		}
		frame := produceFrame("busy", -1, noise(200, 1))
		run := func(l *leat) func() float64 {
			nc := dial(b, l.Kafka)
			b.Cleanup(func() { _ = nc.Close() })
			return func() float64 {
				return ms(p99(b, 500, func() error { return pipeline(nc, 1, 1, frame, produceAnswer) }))
			}
		}
		compareN(b, 7, "produce p99 with 1,000 more idle partitions, fsync mode", "ms", goal{most: 1.5}, run(with), run(without))
		with.stop()
		without.stop()
	}
}

// p99 is the 99th percentile of n calls.
func p99(b *testing.B, n int, call func() error) time.Duration {
	b.Helper()
	all := make([]time.Duration, n)
	for i := range all {
		begun := time.Now()
		if err := call(); err != nil {
			b.Fatal(err)
		}
		all[i] = time.Since(begun)
	}
	slices.Sort(all)
	return all[n*99/100]
}

// BenchmarkPartitions measures what a partition costs: memory of each of 1,000 and 10,000 empty ones, processor time of
// a server that has 10,000 and nothing to do, and the time to make 1,000 against the time to make one.
func BenchmarkPartitions(b *testing.B) {
	for b.Loop() {
		l := startLeat(b)
		settle(l)
		rest := l.resident()
		made := 0
		for _, n := range []int{1_000, 10_000} {
			l.createPartitions("t"+strconv.Itoa(n), n-made)
			made = n
			l.terminate()
			l.again()
			settle(l)
			each := float64(l.resident()-rest) / float64(n)
			b.ReportMetric(each, "B/partition")
			single(b, fmt.Sprintf("resident memory of each of %d empty partitions", n), "bytes", goal{most: 8 << 10}, each)
		}
		used := l.cpu()
		timer := time.NewTimer(10 * time.Second)
		<-timer.C
		single(b, "processor time of 10,000 idle partitions in 10 s", "ms", goal{}, ms(l.cpu()-used))
		l.stop()

		l = startLeat(b)
		topics := 0
		create := func(n int) func() float64 {
			return func() float64 {
				topics++
				begun := time.Now()
				l.createPartitions("t"+strconv.Itoa(topics), n)
				return ms(time.Since(begun))
			}
		}
		compareN(b, 5, "create 1,000 partitions, against one", "ms", goal{}, create(1_000), create(1))
		l.stop()
	}
}
