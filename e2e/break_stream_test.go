package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestBreakHugeTopic proves that of a topic with more partitions than fit a cursor no cursor is given out that is not
// taken back, that it is read in parts, and that it goes at once for those who follow it.
func TestBreakHugeTopic(t *testing.T) {
	s := start(t)
	s.createTopic("t", 4000)
	const path = "/v1/topics/t/records?from=earliest"
	s.do("GET", path, nil).refused(http.StatusBadRequest, "invalid_parameter")
	s.do("GET", path, nil, "Accept: "+typeSSE).refused(http.StatusBadRequest, "invalid_parameter")
	events := s.stream(path+"&partitions=3999", typeSSE)
	s.post("/v1/topics/t/partitions/3999/records?value=line", typeNDJSON, "last\n")
	if e := events.wantEvent(""); !strings.Contains(e.data, `"partition":3999,"offset":0`) {
		t.Errorf("got %s", e.data)
	}
	if a := s.do("DELETE", "/v1/topics/t", nil); a.status != http.StatusNoContent {
		t.Errorf("delete: %d", a.status)
	}
	events.wantEvent("stream_reset")
	s.kill()
	s.restart()
	eventually(t, "the directories to be gone", func() error {
		for _, dir := range []string{"logs", "trash"} {
			names, err := os.ReadDir(filepath.Join(s.dir, dir))
			if err != nil || len(names) > 0 {
				return fmt.Errorf("%s: %d left, %w", dir, len(names), err)
			}
		}
		return nil
	})
}

// TestBreakLargeRecord proves that a record of zeros, which a small batch expands to, is read over HTTP and by a stream
// in a small multiple of its size.
func TestBreakLargeRecord(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	client := s.kgo(kgo.ProducerBatchMaxBytes(64<<20), kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	const size = 32 << 20
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "t", Value: make([]byte, size)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	before := s.memory()
	stop := s.watchMemory()
	for _, accept := range []string{"application/json", typeNDJSON} {
		a := s.do("GET", "/v1/topics/t/records?from=earliest", nil, "Accept: "+accept)
		if a.status != http.StatusOK || len(a.body) > 2*size {
			t.Errorf("%s: %d, %d bytes", accept, a.status, len(a.body))
		}
	}
	e := s.stream("/v1/topics/t/records?from=earliest", typeSSE).wantEvent("")
	if records, err := e.records(); err != nil || len(records) != 1 || len(records[0].content()) != size {
		t.Errorf("SSE: %d records, %v", len(records), err)
	}
	if grown := stop() - before; grown > 8*size {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
}

// TestBreakCheckForeignThings proves that `leat check` waits for no pipe, and that it says that the metadata is gone.
func TestBreakCheckForeignThings(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	s.post("/v1/topics/t/records?value=line", typeNDJSON, "a\n")
	s.stop()
	if err := syscall.Mkfifo(filepath.Join(s.dir, "logs", "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, words, code := run(t, "", "check", s.dir); code != 0 || !strings.Contains(out, "pipe") {
		t.Errorf("with a pipe: exit code %d\n%s%s", code, out, words)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, "db")); err != nil {
		t.Fatal(err)
	}
	if out, words, code := run(t, "", "check", s.dir); code != 78 || !strings.Contains(out, "metadata is missing") {
		t.Errorf("without metadata: exit code %d\n%s%s", code, out, words)
	}
}
