package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// logBytes counts the .log files that hold anything, and their bytes, while files go.
func (s *server) logBytes() (files int, bytes int64) {
	s.t.Helper()
	names, err := filepath.Glob(filepath.Join(s.dir, "logs", "*", "*.log"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && info.Size() > 0 {
			files, bytes = files+1, bytes+info.Size()
		}
	}
	return files, bytes
}

// logStart is where partition 0 of a topic begins.
func (s *server) logStart(topic string) int64 {
	s.t.Helper()
	start, _ := s.wire().listOffset(topic, 0, earliest)
	return start
}

// TestRetentionBySize proves that a topic keeps its newest retention.bytes and gives the rest of the disk back, over
// kill -9 at any moment; that no record of what is kept is missing; and that whoever stands in what went is told.
func TestRetentionBySize(t *testing.T) {
	const batch, rounds, keep = 4 << 10, 400, 65536
	s := start(t, "--set", "log.retention.check.interval.ms=100")
	s.createTopic("t", 1, "segment.bytes=16384", fmt.Sprint("retention.bytes=", keep))
	const route = "/v1/topics/t/partitions/0/records"
	one := func(i int64) []byte {
		return encode(t, kgo.NoCompression(), values(time.Now().UnixMilli(), fmt.Sprintf("%d %s", i, strings.Repeat("v", batch))))
	}
	w := s.wire()
	for i := range int64(3) {
		w.mustProduce("t", 0, one(i))
	}
	events := s.stream(route+"?offset=2", typeSSE)
	if r, err := new(event{data: events.wantEvent("").data}).records(); err != nil || r[0].Offset != 2 {
		t.Fatalf("SSE: %v %v", r, err)
	}
	subscribe := func(k *talk, sub string) {
		k.say(`{"type":"subscribe","id":1,"sub":%q,"topic":"t","from":"earliest","credit":{"bytes":0,"records":0}}`, sub)
		k.want("subscribed")
	}
	k := s.socket()
	subscribe(k, "parked")
	count := int64(3)
	for range rounds {
		w.mustProduce("t", 0, one(count))
		count++
	}
	// check waits until no segment is left that could go, and reads all that is kept.
	check := func() int64 {
		t.Helper()
		eventually(t, "the disk to be given back", func() error {
			// One segment more than is kept, and the one that grows.
			files, n := s.logBytes()
			if start := s.logStart("t"); n > keep+2*16384 || start == 0 {
				return fmt.Errorf("%d bytes in %d files, the log begins at %d of %d", n, files, start, count)
			}
			return nil
		})
		w := s.wire()
		start := s.logStart("t")
		next := start
		for _, b := range mustSplit(t, w.fetchAll("t", 0, start)) {
			v := b.values(t)
			if b.base() != next || !strings.HasPrefix(v[0], fmt.Sprint(next, " ")) {
				t.Fatalf("at offset %d: offset %d, %q", next, b.base(), clip(v[0]))
			}
			next++
		}
		if next != count || (next-start)*batch < keep-batch {
			t.Fatalf("kept [%d, %d) of %d records of %d bytes", start, next, count, batch)
		}
		return start
	}
	low := check()
	k.say(`{"type":"credit","sub":"parked","bytes":1000000,"records":1}`)
	if m := k.want("gap"); m.From != 0 || m.To < low || m.To >= count {
		t.Errorf("a subscription without credit: %s, the log begins at %d", m.text, low)
	}
	if p := s.wire().fetch("t", 0, 0, 1000); p.ErrorCode != codeOffsetOutOfRange || p.LogStartOffset != -1 && p.LogStartOffset < low {
		t.Errorf("a Kafka fetch: code %d, log start %d", p.ErrorCode, p.LogStartOffset)
	}
	s.do("GET", route+"?offset=1", nil).refused(410, "offset_expired")
	s.do("GET", route+"?offset=1&wait=5", nil).refused(410, "offset_expired")
	gap := s.stream(route+"?offset=1", typeSSE).wantEvent("gap")
	if g := gap.gap(t); g.From != 1 || g.To < low {
		t.Errorf("SSE: gap %+v", g)
	}
	if g := s.stream(route+"?offset=1&stream=true", typeNDJSON).wantLine("gap"); g.From != 1 || g.To < low {
		t.Errorf("NDJSON: gap %s", g.text)
	}
	if n := strings.Count(s.stderr.String(), `"expired records were removed"`); n == 0 {
		t.Errorf("nothing was told:\n%s", s.stderr)
	}

	for range 4 {
		for range 20 + rand.N(60) {
			w.mustProduce("t", 0, one(count))
			count++
		}
		after(rand.N(150 * time.Millisecond))
		was := s.logStart("t")
		s.kill()
		s.restart()
		w = s.wire()
		if now := s.logStart("t"); now < was {
			t.Fatalf("after kill -9 the log begins at %d, before at %d", now, was)
		}
		check()
	}
	s.stop()
	if stdout, stderr, code := run(t, "", "check", s.dir); code != 0 {
		t.Errorf("leat check: code %d\n%s%s", code, stdout, stderr)
	}
}

// TestRetentionByAge proves that a topic whose records are too old empties down to the disk though nothing is produced
// any more, tells whoever stood in it, and goes on counting; that a time in the future keeps nothing for longer than it
// may; and that another topic keeps its records.
func TestRetentionByAge(t *testing.T) {
	s := start(t, "--set", "log.retention.check.interval.ms=100")
	const route = "/v1/topics/t/partitions/0/records"
	configs := []string{"retention.ms=500", "segment.ms=200"}
	s.createTopic("kept", 1, "segment.ms=200")
	s.post("/v1/topics/kept/partitions/0/records?value=line", typeNDJSON, "kept\n")
	s.createTopic("t", 1, configs...)
	s.createTopic("future", 1, append(configs, "message.timestamp.after.max.ms=1000")...)
	w := s.wire()
	w.mustProduce("future", 0, encode(t, kgo.NoCompression(), values(time.Now().UnixMilli()+900, "from the future")))
	k := s.socket()
	k.say(`{"type":"subscribe","id":1,"sub":"parked","topic":"t","from":"earliest","credit":{"bytes":0,"records":0}}`)
	k.want("subscribed")
	events, lines := s.stream(route+"?from=earliest", typeSSE), s.stream(route+"?from=earliest&stream=true", typeNDJSON)
	s.post(route+"?value=line", typeNDJSON, "0\n1\n2\n3\n")
	empty := func(end int64) {
		t.Helper()
		eventually(t, "the topics to be empty", func() error {
			if at, other := s.logStart("t"), s.logStart("future"); at != end || other != 1 {
				return fmt.Errorf("the logs begin at %d of %d, and at %d of 1", at, end, other)
			}
			if files, n := s.logBytes(); files != 1 {
				return fmt.Errorf("%d bytes in %d files", n, files)
			}
			return nil
		})
	}
	empty(4)
	// Who was there in time has it all; the others are told.
	if r, err := new(event{data: events.wantEvent("").data}).records(); err != nil || r[0].Offset != 0 {
		t.Errorf("SSE: %v %v", r, err)
	}
	if got := lines.wantLine(""); got.Offset != 0 {
		t.Errorf("NDJSON: %s", got.text)
	}
	k.say(`{"type":"credit","sub":"parked","bytes":1000000,"records":100}`)
	k.wantGap("parked", 0, 4)
	s.do("GET", route+"?offset=3", nil).refused(410, "offset_expired")
	if p := w.fetch("t", 0, 3, 1000); p.ErrorCode != codeOffsetOutOfRange {
		t.Errorf("a Kafka fetch: code %d", p.ErrorCode)
	}
	if n := s.metric("leat_topic_retention_deleted_bytes_total", `topic="t"`); n == 0 {
		t.Error("no bytes were counted")
	}
	end := int64(4)
	for range 3 {
		s.post(route+"?value=line", typeNDJSON, "more\n")
		end++
		after(rand.N(700 * time.Millisecond))
		s.kill()
		s.restart()
		empty(end)
	}
	if f := s.fetchTopic("kept", "from=earliest"); len(f.Records) != 1 || f.Records[0].content() != "kept" {
		t.Errorf("the other topic: %+v", f)
	}
	if f := s.fetchTopic("t", "from=earliest"); len(f.Records) != 0 || len(f.Gaps) != 0 || f.Partitions[0].Start != end || f.Partitions[0].Next != end {
		t.Errorf("an empty topic: %+v", f)
	}
}
