package cli

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// listener is a writer of words that a test can wait for.
type listener struct {
	mu struct {
		sync.Mutex
		buf bytes.Buffer
	}
	wrote chan struct{}
}

func newListener() *listener { return &listener{wrote: make(chan struct{}, 1)} }

func (l *listener) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.wrote <- struct{}{}:
	default:
	}
	return l.mu.buf.Write(p)
}

func (l *listener) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.buf.String()
}

// hear waits until words were said.
func (l *listener) hear(t *testing.T, words string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for !strings.Contains(l.String(), words) {
		select {
		case <-l.wrote:
		case <-deadline:
			t.Fatalf("%q was not said, but %q", words, l.String())
		}
	}
}

// begin runs a command line beside the test; the result arrives in the channel.
func begin(ctx context.Context, t *testing.T, in io.Reader, args ...string) (out, words *listener, result <-chan error) {
	t.Helper()
	done := make(chan error, 1)
	out, words = newListener(), newListener()
	go func() { done <- run(ctx, t, IO{In: in, Out: out, Err: words}, args...) }()
	return out, words, done
}

// TestSilences proves when a server counts as silent: from the first request without an answer, once, until it answers.
func TestSilences(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	s := silences{limit: 3 * time.Second, since: map[string]time.Time{}, told: map[string]bool{}}
	late := func(second int, want ...string) {
		t.Helper()
		if got := s.overdue(at(second)); !slices.Equal(got, want) {
			t.Errorf("at %d: %q, want %q", second, got, want)
		}
	}
	s.asked("a", at(0))
	s.asked("b", at(2))
	s.asked("a", at(2))
	late(2)
	late(3, "a")
	late(4)
	late(9, "b")
	if !s.answered("a") || s.answered("a") || s.answered("c") {
		t.Error("only the first answer after a silence is news")
	}
	late(20)
	s.asked("a", at(20))
	if s.answered("a") {
		t.Error("a was not away for long")
	}
	s.asked("a", at(30))
	late(33, "a")
}

// TestConsumeServerAway proves that a consumer outlives its server: it says that there is no answer, and that there is one
// again, and goes on with the next record.
func TestConsumeServerAway(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	ctx, interrupt := context.WithCancel(t.Context())
	out, words, result := begin(ctx, t, nil, "consume", "t", "--server", f.addr, "--timeout", "600ms")
	leat(t.Context(), t, strings.NewReader("one\n"), "produce", "t", "--server", f.addr)
	out.hear(t, "one\n")
	f.leave()
	words.hear(t, "leat: "+f.addr+" does not answer; trying again until it does\n")
	f.restart(t)
	leat(t.Context(), t, strings.NewReader("two\n"), "produce", "t", "--server", f.addr)
	out.hear(t, "one\ntwo\n")
	words.hear(t, "leat: "+f.addr+" answers again\n")
	interrupt()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestSilentServer proves that a server that accepts and says nothing is given up after --timeout, with a word on the way;
// and that one that falls silent later is, too.
func TestSilentServer(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	for _, command := range []string{"topic list", "consume t", "produce t", "cluster describe", "bench consume t"} {
		addr := silent.Addr().String()
		_, words, code := leat(t.Context(), t, strings.NewReader("x\n"), append(strings.Fields(command), "--server", addr, "--timeout", "2s")...)
		if code != 1 || !strings.Contains(words, "leat: "+addr+" does not answer; ") || !strings.Contains(words, addr+" did not answer within 2s (--timeout)") {
			t.Errorf("%s: exit %d, %s", command, code, words)
		}
	}
	in, lines := io.Pipe()
	_, words, result := begin(t.Context(), t, in, "produce", "t", "--server", f.addr, "--timeout", "500ms")
	_, _ = io.WriteString(lines, "one\n")
	f.waitAcks(t, 1)
	f.silence(true)
	_, _ = io.WriteString(lines, "two\n")
	words.hear(t, "does not answer; waiting up to 500ms")
	err = <-result
	if ExitCode(err) != 1 || !strings.Contains(err.Error(), "1 of 2 records written to t; the first failure is line 2") {
		t.Errorf("%v", err)
	}
	_ = lines.Close()
}

// TestProduceInterrupted proves that Ctrl-C ends reading, that what was read is written, and that the user learns how much.
func TestProduceInterrupted(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	ctx, interrupt := context.WithCancel(t.Context())
	in, lines := io.Pipe()
	_, _, result := begin(ctx, t, in, "produce", "t", "--server", f.addr)
	_, _ = io.WriteString(lines, "one\ntwo\nhalf a li")
	f.waitAcks(t, 1)
	interrupt()
	if err := <-result; ExitCode(err) != 1 || err.Error() != "2 records written to t, then interrupted after line 2" {
		t.Errorf("%v", err)
	}
	_ = lines.Close()
}

// TestConsumeInterruptedEarly proves that Ctrl-C while a consumer without an end still waits for its server is success.
func TestConsumeInterruptedEarly(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	f.silence(true)
	ctx, interrupt := context.WithCancel(t.Context())
	_, words, result := begin(ctx, t, nil, "consume", "t", "--server", f.addr, "--timeout", "10s")
	words.hear(t, "does not answer")
	interrupt()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestConsumeInterruptedBeforeMax proves that Ctrl-C is a failure when a number of records was asked for.
func TestConsumeInterruptedBeforeMax(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	leat(t.Context(), t, strings.NewReader("one\n"), "produce", "t", "--server", f.addr)
	ctx, interrupt := context.WithCancel(t.Context())
	out, _, result := begin(ctx, t, nil, "consume", "t", "--max", "2", "--server", f.addr)
	out.hear(t, "one\n")
	interrupt()
	if err := <-result; ExitCode(err) != 1 || err.Error() != "interrupted after 1 of 2 records" {
		t.Errorf("%v", err)
	}
}

// TestConsumeFollows proves that a consumer of a topic reads partitions that the topic gets later, from their first record.
func TestConsumeFollows(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	ctx, interrupt := context.WithCancel(t.Context())
	out, _, result := begin(ctx, t, nil, "consume", "t", "--from", "latest", "--metadata-max-age", "5ms", "--server", f.addr)
	for _, c := range []struct{ partition, line string }{{"0", "old\n"}, {"2", "new\n"}} {
		if c.partition == "2" {
			if _, words, code := leat(t.Context(), t, nil, "topic", "alter", "t", "--partitions", "3", "--server", f.addr); code != 0 {
				t.Fatal(words)
			}
		} else {
			waitFetch(t, f)
		}
		leat(t.Context(), t, strings.NewReader(c.line), "produce", "t", "--partition", c.partition, "--server", f.addr)
		out.hear(t, c.line)
	}
	interrupt()
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// waitFetch waits until someone fetches, who has then decided where to begin.
func waitFetch(t *testing.T, f *fake) {
	t.Helper()
	select {
	case <-f.fetched:
	case <-time.After(20 * time.Second):
		t.Fatal("nobody fetches")
	}
}

// TestConsumeForms proves what each --print flag adds, and that a null value is not an empty one.
func TestConsumeForms(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	in := strings.NewReader("k:v\nk:\nk\n")
	args := []string{"produce", "t", "--key-separator", ":", "--tombstone", "--header", "a=1", "--header", "b=", "--timestamp", "1970-01-01T00:00:01Z"}
	if _, words, code := leat(t.Context(), t, in, append(args, "--server", f.addr)...); code != 0 {
		t.Fatal(words)
	}
	for _, c := range []struct{ args, want string }{
		{"", "v\n\n\n"},
		{"--print-key", "k\tv\nk\t\nk\n"},
		{"--print-key --key-separator :", "k:v\nk:\nk\n"},
		{"--print-offset --print-partition", "0\t0\tv\n0\t1\t\n0\t2\t\n"},
		{"--print-timestamp --max 1", "1000\tv\n"},
		{"--print-headers --print-key --key-separator | --from tail:2", "a=1,b=|k|\na=1,b=|k\n"},
		{"--from ts:1970-01-01T00:00:02Z --max 3 --partition 0", ""},
	} {
		out, words, code := leat(t.Context(), t, nil, append([]string{"consume", "t", "--exit-at-end", "--server", f.addr}, strings.Fields(c.args)...)...)
		if code != 0 || out != c.want {
			t.Errorf("%q: exit %d, %q, %s; want %q", c.args, code, out, words, c.want)
		}
	}
}

// TestBadFlags proves that a value that cannot be meant is exit code 2 and names the flag, before anything is connected.
func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"consume t --json --print-key":          "--json prints everything",
		"consume t --metadata-max-age 0s":       "--metadata-max-age",
		"consume t --timeout 0s":                "--timeout 0s",
		"consume t --timeout soon":              "--timeout",
		"consume t --max many":                  "--max",
		"consume t --from tail:":                "--from",
		"consume t --partition=-2":              "--partition -2",
		"produce t --timestamp noon":            `--timestamp "noon"`,
		"topic offsets t --at noon":             `--at "noon"`,
		"topic offsets t --partition=-2":        "--partition -2",
		"topic create t --partitions many":      "--partitions",
		"topic delete":                          "topic",
		"topic":                                 "create",
		"bench produce t --records 0":           "--records 0",
		"bench produce t --size=-1":             "--size -1",
		"bench produce t --rate=-1":             "--rate -1",
		"bench produce t --rate NaN":            "--rate NaN",
		"bench produce t --linger=-1s":          "--linger -1s",
		"bench produce t --acks 3":              "--acks",
		"bench consume t --records=-1":          "--records -1",
		"completion powershell":                 "powershell",
		"nonsense":                              "nonsense",
		"topic list --server 127.0.0.1":         "--server",
		"cluster config --node first":           "--node",
		"partition delete-records t --before 1": "--partition",
	} {
		out, words, code := leat(t.Context(), t, nil, strings.Fields(args)...)
		if code != 2 || out != "" || !strings.Contains(words, want) {
			t.Errorf("%s: exit %d, %q, %s; want 2 and %s", args, code, out, words, want)
		}
	}
}

// TestReaderGone proves that a reader that is not there any more is success for whatever prints.
func TestReaderGone(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	for _, args := range []string{
		"topic list", "topic describe t", "topic config t --json", "partition list", "cluster describe --json", "version",
		"completion bash", "bench consume t", "consume t --exit-at-end",
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		line := strings.Fields(args)
		if !slices.Contains([]string{"version", "completion"}, line[0]) {
			line = append(line, "--server", f.addr)
		}
		if err := run(t.Context(), t, IO{Out: w, Err: io.Discard}, line...); err != nil {
			t.Errorf("%s: %v", args, err)
		}
		_ = w.Close()
	}
}

// TestBounds proves that control records move a reader on without being read, and that nothing past the end counts.
func TestBounds(t *testing.T) {
	b := newBounds(0, true, []span{{partition: 0, next: 0, end: 2}, {partition: 1, next: 5, end: 8}, {partition: 2, next: 3, end: 3}})
	for _, c := range []struct {
		partition     int32
		offset        int64
		control, take bool
		finished      []int32
		done          bool
	}{
		{0, 0, false, true, nil, false},
		{0, 1, true, false, []int32{0}, false},
		{0, 2, false, false, nil, false},
		{1, 5, false, true, nil, false},
		{1, 9, false, false, []int32{1}, true},
	} {
		if take := b.take(c.partition, c.offset, c.control); take != c.take {
			t.Errorf("%+v: taken %v", c, take)
		}
		if finished := b.takeFinished(); !slices.Equal(finished, c.finished) || b.done() != c.done {
			t.Errorf("%+v: finished %v, done %v", c, finished, b.done())
		}
	}
}

// TestPartialFailure proves that a server that refuses some records makes the exit code 1, with the number.
func TestPartialFailure(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	f.refuse = func(n int) *kerr.Error {
		if n > 1 {
			return kerr.InvalidRecord
		}
		return nil
	}
	in, lines := io.Pipe()
	_, _, result := begin(t.Context(), t, in, "produce", "t", "--server", f.addr)
	_, _ = io.WriteString(lines, "one\n")
	f.waitAcks(t, 1)
	_, _ = io.WriteString(lines, "two\n")
	if err := <-result; ExitCode(err) != 1 || !strings.Contains(err.Error(), "1 of 2 records written to t; the first failure is line 2: INVALID_RECORD") {
		t.Errorf("%v", err)
	}
	_ = lines.Close()
}
