package e2e

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestFewDescriptors proves that a server with 256 descriptors serves 2,000 partitions, of which it cannot have all open:
// every record is written and read; that more clients than fit are kept waiting or turned away and do no harm; and that
// the lack is never taken for a disk that fails. A restart under the same limit finds everything.
func TestFewDescriptors(t *testing.T) {
	const limit, topics, each = 256, 20, 100
	s := startWithFiles(t, limit)
	w := s.wire()
	for i := range topics {
		if code, why := w.create(fmt.Sprint("t-", i), each, 1); code != codeNone {
			t.Fatalf("create: code %d %s", code, why)
		}
	}
	write := func(round int) {
		t.Helper()
		for i := range topics {
			req := produceRequest(fmt.Sprint("t-", i), 0, int16(1-2*(i%2)), nil)
			parts := make([]kmsg.ProduceRequestTopicPartition, each)
			for p := range parts {
				parts[p] = kmsg.NewProduceRequestTopicPartition()
				parts[p].Partition = int32(p)
				parts[p].Records = encode(t, kgo.NoCompression(), values(1, fmt.Sprint(i, "/", p, " ", round)))
			}
			req.Topics[0].Partitions = parts
			for _, p := range w.call(req).(*kmsg.ProduceResponse).Topics[0].Partitions {
				if p.ErrorCode != codeNone || p.BaseOffset != int64(round) {
					t.Fatalf("t-%d/%d: code %d %s, base offset %d, want %d", i, p.Partition, p.ErrorCode, text(p.ErrorMessage), p.BaseOffset, round)
				}
			}
		}
	}
	read := func(rounds int) {
		t.Helper()
		for i := range topics {
			name := fmt.Sprint("t-", i)
			for p := range int32(each) {
				all := mustSplit(t, w.fetchAll(name, p, 0))
				if len(all) != rounds {
					t.Fatalf("%s/%d: %d batches, want %d", name, p, len(all), rounds)
				}
				for round, b := range all {
					if v := b.values(t); v[0] != fmt.Sprint(i, "/", p, " ", round) {
						t.Fatalf("%s/%d: offset %d is %q", name, p, round, v[0])
					}
				}
			}
		}
	}
	write(0)
	read(1)
	var crowd []net.Conn
	for i := range 2 * limit {
		nc, err := net.Dial("tcp", []string{s.HTTP, s.Kafka}[i%2])
		if err != nil {
			t.Fatal(err)
		}
		crowd = append(crowd, nc)
	}
	write(1)
	read(2)
	if n := s.openFiles(); n > limit {
		t.Errorf("%d descriptors of %d", n, limit)
	}
	for _, nc := range crowd {
		if err := nc.Close(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "new clients to be served", func() error {
		a, err := s.try("POST", "/v1/topics/t-0/partitions/0/records?value=line", []byte("0/0 2\n"), "Content-Type: "+typeNDJSON)
		if err == nil && a.status != 200 {
			err = fmt.Errorf("status %d: %s", a.status, clip(string(a.body)))
		}
		if errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
		return err
	})
	s.get("/readyz")
	if most, open := s.metric("process_max_fds"), s.metric("process_open_fds"); most != limit || open > most {
		t.Errorf("metrics: %v of %v descriptors", open, most)
	}
	if words := s.stderr.String(); strings.Contains(words, "level=ERROR") || strings.Contains(words, "panic") {
		t.Errorf("the server says:\n%s", tail(words, 4<<10))
	}
	began := time.Now()
	s.stop()
	t.Logf("stopped in %v", time.Since(began))
}
