package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestCase04KeylessRecord proves that a record without a key is refused at once in a compacted topic, that the answer
// says which of several it is, that nothing of the request is written, and that it is so over each door, also when the
// topic became compacted later.
func TestCase04KeylessRecord(t *testing.T) {
	s := start(t)
	s.createTopic("born", 1, "cleanup.policy=compact")
	s.createTopic("both", 1, "cleanup.policy=compact,delete")
	s.createTopic("made", 1)
	answers, err := s.admin().AlterTopicConfigs(t.Context(), []kadm.AlterConfig{set("cleanup.policy", "compact")}, "made")
	altered(t, answers, err)
	w, k := s.wire(), s.socket()
	for _, topic := range []string{"born", "both", "made"} {
		began := time.Now()
		for _, route := range []string{"/v1/topics/" + topic + "/records", "/v1/topics/" + topic + "/partitions/0/records"} {
			one := s.do("POST", route, []byte(`{"records":[{"value":"v"}]}`), "Content-Type: "+typeJSON).refused(422, "invalid_record")
			mixed := s.do("POST", route, []byte(`{"records":[{"key":"a","value":1},{"value":2},{"key":"c","value":3}]}`), "Content-Type: "+typeJSON).
				refused(422, "invalid_record")
			for i, p := range []problem{one, mixed} {
				if len(p.Errors) != 1 || p.Errors[0].Index == nil || *p.Errors[0].Index != i || *p.Retriable {
					t.Errorf("%s: want an error for record %d alone: %+v", route, i, p)
				}
			}
			s.do("POST", route+"?value=line", []byte("a\nb\n"), "Content-Type: "+typeNDJSON).refused(422, "invalid_record")
		}
		batch := encode(t, kgo.NoCompression(), []rec{{1, []byte("a"), nil}, {1, nil, []byte("2")}, {1, []byte("c"), nil}})
		for _, acks := range []int16{1, -1} {
			p := w.produce(topic, 0, acks, batch)
			if p.ErrorCode != codeInvalidRecord || p.BaseOffset != -1 || len(p.ErrorRecords) != 1 || p.ErrorRecords[0].RelativeOffset != 1 || text(p.ErrorMessage) == "" {
				t.Errorf("%s: acks %d: code %d, base offset %d, %+v", topic, acks, p.ErrorCode, p.BaseOffset, p.ErrorRecords)
			}
		}
		none := s.wire()
		if _, err := none.send(produceRequest(topic, 0, 0, batch)); err != nil {
			t.Fatal(err)
		}
		_, _ = none.try(produceRequest(topic, 0, 1, batch)) // a refusal or the end of the connection: either comes after
		k.say(`{"type":"produce","id":1,"topic":%q,"records":[{"key":"a","value":1},{"value":2}]}`, topic)
		if m := k.want("error"); m.Problem.Code != "invalid_record" || len(m.Problem.Errors) != 1 || *m.Problem.Errors[0].Index != 1 {
			t.Errorf("%s: WebSocket: %s", topic, m.text)
		}
		if took := time.Since(began); took > patience/2 {
			t.Errorf("%s: %v for refusals", topic, took)
		}
		if end := s.wire().end(topic, 0); end != 0 {
			t.Errorf("%s: end offset %d, want 0", topic, end)
		}
		if base := w.mustProduce(topic, 0, encode(t, kgo.NoCompression(), []rec{{1, []byte("a"), nil}})); base != 0 {
			t.Errorf("%s: a tombstone with a key got offset %d", topic, base)
		}
	}
}

// TestCase32QuietTopic proves that the only record of a topic that nobody writes to any more goes when it is too old,
// though its segment is neither full nor old enough by itself, and that the next one gets the next offset, also after
// kill -9 and after a clean stop.
func TestCase32QuietTopic(t *testing.T) {
	s := start(t, "--set", "log.retention.check.interval.ms=100")
	s.createTopic("t", 1, "retention.ms=1000")
	next := int64(0)
	for _, end := range []func(){s.kill, s.stop} {
		began := time.Now()
		s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, "one\n")
		if first, early := s.logStart("t"), time.Since(began); first != next && early < time.Second {
			t.Errorf("gone %v after it was written", early)
		}
		next++
		eventually(t, "the record to go", func() error {
			if first := s.logStart("t"); first != next || s.wire().end("t", 0) != next {
				return fmt.Errorf("the log begins at %d, want %d", first, next)
			}
			return nil
		})
		end()
		s.restart()
		if first, last := s.logStart("t"), s.wire().end("t", 0); first != next || last != next {
			t.Errorf("after the restart: [%d, %d), want [%d, %d)", first, last, next, next)
		}
	}
	if base := s.wire().mustProduce("t", 0, encode(t, kgo.NoCompression(), values(time.Now().UnixMilli(), "next"))); base != next {
		t.Errorf("the next record got offset %d, want %d", base, next)
	}
}

// TestCase40PartitionMoved proves that a partition whose directory somebody moved away is reported and not made anew,
// that the others are served, that a directory that nobody knows is set aside with every byte, and that all is there
// again when the directory is back, though there were kills meanwhile.
func TestCase40PartitionMoved(t *testing.T) {
	s := start(t)
	s.createTopic("t", 2)
	w := s.wire()
	for i := range 20 {
		w.mustProduce("t", int32(i%2), encode(t, kgo.NoCompression(), values(1, fmt.Sprint(i))))
	}
	s.stop()
	moved, err := filepath.Glob(filepath.Join(s.dir, "logs", "*-0"))
	if err != nil || len(moved) != 1 {
		t.Fatalf("directories %q, %v", moved, err)
	}
	away := filepath.Join(t.TempDir(), filepath.Base(moved[0]))
	if err := os.Rename(moved[0], away); err != nil {
		t.Fatal(err)
	}
	stranger := filepath.Join(s.dir, "logs", strings.Repeat("ab", 16)+"-7")
	if err := os.CopyFS(stranger, os.DirFS(away)); err != nil {
		t.Fatal(err)
	}
	before := contents(t, away)
	for _, end := range []func(){s.kill, s.stop} {
		s.restart()
		w := s.wire()
		if p := w.produce("t", 0, -1, encode(t, kgo.NoCompression(), values(1, "lost"))); p.ErrorCode != codeStorageError {
			t.Errorf("a produce to the partition that is away: code %d", p.ErrorCode)
		}
		s.do("POST", "/v1/topics/t/partitions/0/records?value=line", []byte("x\n"), "Content-Type: "+typeNDJSON).refused(503, "partition_damaged")
		w.mustProduce("t", 1, encode(t, kgo.NoCompression(), values(1, "served")))
		if words := s.stderr.String(); strings.Count(words, "level=ERROR") == 0 {
			t.Errorf("nothing was told: %s", words)
		}
		if _, err := os.Stat(moved[0]); err == nil {
			t.Error("the partition was made anew")
		}
		end()
	}
	aside, err := filepath.Glob(filepath.Join(s.dir, "quarantine", "*"))
	if err != nil || len(aside) != 1 || contents(t, aside[0]) != before {
		t.Errorf("the quarantine has %q, %v: want the unknown directory with what was in it", aside, err)
	}
	if err := os.Rename(away, moved[0]); err != nil {
		t.Fatal(err)
	}
	s.restart()
	w = s.wire()
	for p, n := range []int{10, 12} {
		var got []string
		for _, b := range mustSplit(t, w.fetchAll("t", int32(p), 0)) {
			got = append(got, b.values(t)...)
		}
		if len(got) != n || got[1] != fmt.Sprint(2+p) {
			t.Errorf("partition %d: %q", p, got)
		}
	}
	if base := w.mustProduce("t", 0, encode(t, kgo.NoCompression(), values(1, "next"))); base != 10 {
		t.Errorf("the next record got offset %d, want 10", base)
	}
	s.stop()
	if out, words, code := run(t, "", "check", s.dir); code != 0 {
		t.Errorf("leat check: code %d\n%s%s", code, out, words)
	}
}

// contents is the names and bytes of the files of a directory.
func contents(t *testing.T, dir string) string {
	t.Helper()
	return strings.ReplaceAll(fingerprint(t, dir), dir, "")
}

// What a trace shows of syncs, of writes to a log, and of answers to a client.
var (
	syncBegins = regexp.MustCompile(`^(\d+) +(?:fdatasync|fsync|syncfs)\(`)
	syncEnds   = regexp.MustCompile(`^(\d+) +(?:fdatasync\(|fsync\(|syncfs\(|<\.\.\. (?:fdatasync|fsync|syncfs) resumed>).* = 0$`)
	logWritten = regexp.MustCompile(`^\d+ +(?:pwritev2?|pwrite64)\(\d+<[^>]*\.log>`)
	clientTold = regexp.MustCompile(`^\d+ +(?:write|writev|sendto|sendmsg)\(\d+<(?:socket|TCP)`)
)

// TestCase41SyncBeforeTheAnswer proves that an answer with acks=all comes after a sync that began after the records
// were written, that one with acks=1 does not wait for it, and that the documentation says what that risks. That
// records answered with acks=all outlive a power cut is proved on a file system that can crash, in package storage.
func TestCase41SyncBeforeTheAnswer(t *testing.T) {
	const produces = 20
	s := start(t)
	s.createTopic("t", 1)
	w := s.wire()
	batch := encode(t, kgo.NoCompression(), values(1, "a", "b"))
	w.mustProduce("t", 0, batch)
	if !canTrace(t) {
		for range produces {
			before := s.metric("leat_storage_flush_rounds_total")
			w.mustProduce("t", 0, batch)
			if s.metric("leat_storage_flush_rounds_total") == before {
				t.Fatal("acks=all was answered without a flush")
			}
		}
		t.Log("no trace is allowed here: flushes were counted instead")
	} else {
		stop := s.trace("-y", "-e", "trace=pwritev,pwritev2,pwrite64,fdatasync,fsync,syncfs,write,writev,sendto,sendmsg")
		for range produces {
			w.mustProduce("t", 0, batch)
		}
		lines := stop()
		if answers, early := answersBeforeSync(lines); answers < produces || early > 0 {
			t.Errorf("%d answers, %d of them before what was written was synced:\n%s", answers, early, tail(lines, 4<<10))
		}
	}
	for name, want := range map[string][]string{
		"README.md":    {"`acks=1`", "may be lost", "power cut"},
		"openapi.yaml": {"name: acks", "power cut"},
	} {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		for _, words := range want {
			if !strings.Contains(string(text), words) {
				t.Errorf("%s does not say %q", name, words)
			}
		}
	}
}

// answersBeforeSync counts the answers in a trace that follow a write to a log, and those among them with no sync
// between that began after the write.
func answersBeforeSync(lines string) (answers, early int) {
	writes, durable, waiting := 0, 0, false
	begun := map[string]int{} // thread -> writes before the sync that it is in
	for line := range strings.Lines(lines) {
		line = strings.TrimRight(line, "\n")
		if m := syncBegins.FindStringSubmatch(line); m != nil {
			begun[m[1]] = writes
		}
		if m := syncEnds.FindStringSubmatch(line); m != nil {
			durable = max(durable, begun[m[1]])
		}
		switch {
		case logWritten.MatchString(line):
			writes++
			waiting = true
		case clientTold.MatchString(line) && waiting:
			waiting = false
			if answers++; durable < writes {
				early++
			}
		}
	}
	return answers, early
}

// TestAnswersBeforeSync proves that an answer that comes too early is seen in a trace.
func TestAnswersBeforeSync(t *testing.T) {
	answers, early := answersBeforeSync(`10 pwritev(7</d/logs/a/0.log>, [{iov_base="x", iov_len=1}], 1, 0) = 1
11 fdatasync(7</d/logs/a/0.log> <unfinished ...>
10 write(9</d/db/1.log>, "x", 1) = 1
11 <... fdatasync resumed>)                = 0
10 write(8<TCP:[1->2]>, "x", 1) = 1
10 write(8<TCP:[1->2]>, "x", 1) = 1
10 pwritev(7</d/logs/a/0.log>, [{iov_base="x", iov_len=1}], 1, 1 <unfinished ...>
11 syncfs(5</d>) = -1 EIO (Input/output error)
10 write(8<socket:[77]>, "x", 1) = 1
11 syncfs(5</d> <unfinished ...>
10 pwritev(7</d/logs/a/0.log>, [{iov_base="x", iov_len=1}], 1, 2) = 1
11 <... syncfs resumed>) = 0
10 sendto(8<socket:[77]>, "x", 1) = 1
`)
	if answers != 3 || early != 2 {
		t.Errorf("%d answers, %d early, want 3 and 2", answers, early)
	}
}
