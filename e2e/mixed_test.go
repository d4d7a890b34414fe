package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// mixedAnswer is what a produce tells of records of which some failed.
type mixedAnswer struct {
	Count    int `json:"count"`
	Failed   int `json:"failed"`
	Receipts []struct {
		Partition int32           `json:"partition"`
		Offset    *int64          `json:"offset"`
		Error     json.RawMessage `json:"error"`
	} `json:"receipts"`
	Partitions []struct {
		Partition int32           `json:"partition"`
		Base      *int64          `json:"base_offset"`
		Count     int             `json:"count"`
		Error     json.RawMessage `json:"error"`
	} `json:"partitions"`
}

// damagedOne is a server whose topic "t" has one damaged partition, number 1, out of three.
func damagedOne(t *testing.T) *server {
	t.Helper()
	s := start(t)
	s.createTopic("t", 3, "segment.bytes=4000", "index.interval.bytes=1000")
	w, dirs := s.wire(), map[string]bool{}
	for p := range int32(3) {
		if p == 1 {
			for _, dir := range s.logDirs() {
				dirs[dir] = true
			}
		}
		if p == 2 {
			break
		}
		for range 60 {
			w.mustProduce("t", p, encode(t, kgo.NoCompression(), values(1000, strings.Repeat("x", 300))))
		}
	}
	s.stop()
	for _, dir := range s.logDirs() {
		if dirs[dir] {
			continue
		}
		logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
		if err != nil || len(logs) < 3 {
			t.Fatalf("%s: %q, %v", dir, logs, err)
		}
		flip(t, logs[1], 8*100)
	}
	s.restart()
	// It is found when it is read, at the latest.
	s.do(http.MethodGet, "/v1/topics/t/partitions/1/records?from=earliest&max_bytes=4194304", nil)
	eventually(t, "the damage to be found", func() error {
		if n := s.metric("leat_broker_damaged_partitions"); n != 1 {
			return fmt.Errorf("%v partitions are damaged", n)
		}
		return nil
	})
	return s
}

// TestMixedReceipts proves that records for a topic with one damaged partition out of three are answered with 207 that
// tells which failed and why, in every form of receipts; that without receipts the failures are counted; that a
// streaming produce tells, too; and that what was receipted, and nothing else, is in the log.
func TestMixedReceipts(t *testing.T) {
	s := damagedOne(t)
	const body = `{"records":[{"partition":0,"value":0},{"partition":1,"value":1},{"partition":2,"value":2},{"partition":1,"value":3},{"partition":2,"value":4}]}`
	w := s.wire()
	before := [3]int64{w.end("t", 0), w.end("t", 1), w.end("t", 2)}
	for i, form := range []string{"full", "summary", "none"} {
		a := s.do(http.MethodPost, "/v1/topics/t/records?receipts="+form, []byte(body), "Content-Type: "+typeJSON).want(http.StatusMultiStatus)
		var m mixedAnswer
		a.decode(&m)
		if m.Count != 5 || m.Failed != 2 {
			t.Errorf("%s: %s", form, a.body)
		}
		if form == "full" != (len(m.Receipts) == 5) || form == "summary" != (len(m.Partitions) == 3) {
			t.Errorf("%s: %s", form, a.body)
		}
		for _, r := range m.Receipts {
			if bad := strings.Contains(string(r.Error), `"partition_damaged"`); bad != (r.Partition == 1) || bad == (r.Offset != nil) {
				t.Errorf("%s: partition %d: %s", form, r.Partition, a.body)
			}
		}
		for _, r := range m.Partitions {
			if bad := strings.Contains(string(r.Error), `"partition_damaged"`); bad != (r.Partition == 1) || bad == (r.Base != nil) {
				t.Errorf("%s: partition %d: %s", form, r.Partition, a.body)
			}
		}
		n := int64(i + 1)
		if got, want := [3]int64{w.end("t", 0), w.end("t", 1), w.end("t", 2)}, [3]int64{before[0] + n, before[1], before[2] + 2*n}; got != want {
			t.Errorf("%s: the log ends at %v, want %v", form, got, want)
		}
	}
	s.do(http.MethodPost, "/v1/topics/t/partitions/1/records?receipts=none", []byte(`{"records":[{"value":1}]}`), "Content-Type: "+typeJSON).
		refused(http.StatusServiceUnavailable, "partition_damaged")
	for _, form := range []string{"full", "summary", "none"} {
		nc, err := net.Dial("tcp", s.HTTP)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		u, err := openUpload(nc, "/v1/topics/t/records?stream=true&receipts="+form)
		if err != nil {
			t.Fatal(err)
		}
		if err := u.send(`{"partition":0,"value":0}` + "\n" + `{"partition":1,"value":1}` + "\n"); err != nil {
			t.Fatal(err)
		}
		if err := u.end(); err != nil {
			t.Fatal(err)
		}
		told := false
		for {
			l, err := u.read()
			if err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			told = told || strings.Contains(l.text, `"partition_damaged"`)
			if l.Control == "end" {
				if l.Reason != "complete" || l.Count != 2 || l.Failed != 1 || !told {
					t.Errorf("%s: told %t, %s", form, told, l.text)
				}
				break
			}
		}
	}
}
