package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/twmb/franz-go/pkg/kerr"
)

// leat runs a command line as main does and returns what a shell sees. words is stderr and the error together.
func leat(ctx context.Context, t *testing.T, in io.Reader, args ...string) (out, words string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err := run(ctx, t, IO{In: in, Out: &stdout, Err: &stderr}, args...)
	if misuse, ok := errors.AsType[*kong.ParseError](err); ok {
		code := Misused(IO{Err: &stderr}, misuse)
		return stdout.String(), stderr.String(), code
	}
	if err != nil {
		stderr.WriteString(err.Error())
	}
	return stdout.String(), stderr.String(), ExitCode(err)
}

func run(ctx context.Context, t *testing.T, std IO, args ...string) error {
	t.Helper()
	var commands struct {
		Commands
		Flags
	}
	exited := false
	parser, err := kong.New(&commands, append(Options(), kong.Name("leat"), kong.DefaultEnvars("LEAT"), kong.Vars{"version": "v1.2.3"},
		kong.Writers(std.Out, std.Err), kong.Exit(func(int) { exited = true }))...)
	if err != nil {
		t.Fatal(err)
	}
	command, err := parser.Parse(args)
	if exited {
		return nil
	}
	if err != nil {
		return err
	}
	command.BindTo(ctx, (*context.Context)(nil))
	return command.Run(std)
}

// TestProduceConsume proves that what the lines said comes back: values, keys, null and empty values, headers, with
// every codec and every acks.
func TestProduceConsume(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		name string
		args []string
		in   string
		want string // of consume --json: offset, key, value, and headers if any
	}{
		{
			"lines", nil, "a\n\n{\"b\": 1}\nnull\r\nlast",
			`0 "key":null,"value_str":"a"|1 "key":null,"value_str":""|2 "key":null,"value":{"b": 1}|3 "key":null,"value_str":"null\r"|4 "key":null,"value_str":"last"`,
		},
		{
			"keys",
			[]string{"--key-separator", ":"},
			"k:v:w\n:x\nk:\n",
			`0 "key_str":"k","value_str":"v:w"|1 "key_str":"","value_str":"x"|2 "key_str":"k","value_str":""`,
		},
		{"tab", []string{"--key-separator", `\t`}, "k\tv\n", `0 "key_str":"k","value_str":"v"`},
		{
			"tombstones",
			[]string{"--key-separator", ":", "--tombstone"},
			"k1\nk2:\nk3:null\nk4:x\n",
			`0 "key_str":"k1","value":null|1 "key_str":"k2","value_str":""|2 "key_str":"k3","value_str":"null"|3 "key_str":"k4","value_str":"x"`,
		},
		{"bytes", nil, "\xff\xfe\n", `0 "key":null,"value_b64":"//4="`},
		{
			"headers",
			[]string{"--header", "a=1=2", "--header", "b="},
			"x\n",
			`0 "key":null,"value_str":"x" [{"name":"a","value":"1=2"},{"name":"b","value":""}]`,
		},
		{"gzip", []string{"--compression", "gzip"}, "x\n", `0 "key":null,"value_str":"x"`},
		{"snappy", []string{"--compression", "snappy"}, "x\n", `0 "key":null,"value_str":"x"`},
		{"lz4", []string{"--compression", "lz4"}, "x\n", `0 "key":null,"value_str":"x"`},
		{"zstd", []string{"--compression", "zstd"}, "x\n", `0 "key":null,"value_str":"x"`},
		{"acks1", []string{"--acks", "1"}, "x\n", `0 "key":null,"value_str":"x"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			f.create(c.name, 1)
			args := append([]string{"produce", c.name, "--server", f.addr}, c.args...)
			if out, words, code := leat(t.Context(), t, strings.NewReader(c.in), args...); code != 0 || out != "" {
				t.Fatalf("produce: exit %d, stdout %q, %s", code, out, words)
			}
			out, words, code := leat(t.Context(), t, nil, "consume", c.name, "--server", f.addr, "--exit-at-end", "--json")
			if code != 0 || words != "" {
				t.Fatalf("consume: exit %d, %s", code, words)
			}
			var got []string
			for line := range strings.Lines(out) {
				_, rest, _ := strings.Cut(line, `,"offset":`)
				offset, rest, _ := strings.Cut(rest, `,"timestamp":`)
				_, rest, _ = strings.Cut(rest, ",")
				members, headers, _ := strings.Cut(strings.TrimSuffix(rest, "}\n"), `,"headers":`)
				if headers != "[]" {
					members += " " + headers
				}
				got = append(got, offset+" "+members)
			}
			if joined := strings.Join(got, "|"); joined != c.want {
				t.Errorf("got  %s\nwant %s", joined, c.want)
			}
		})
	}
}

// TestProduceRefused proves that a line that was not written makes the exit code 1 and is named, and that what came
// before it was written.
func TestProduceRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		in     string
		refuse *kerr.Error
		want   string
		stored int64
	}{
		{"no separator", []string{"--key-separator", ":"}, "a:b\nc:d\noops\ne:f\n", nil, "line 3: no key separator", 2},
		{"long line", nil, "ok\n" + strings.Repeat("x", 1048589) + "\n", nil, "line 2: longer than 1048588 bytes, Kafka's default of max.message.bytes", 1},
		{"long last line", nil, "ok\n" + strings.Repeat("x", 3<<20), nil, "line 2: longer than 1048588 bytes", 1},
		{
			"too large for a batch", nil, strings.Repeat("x", 1048588) + "\n", nil,
			"line 1: MESSAGE_TOO_LARGE: with its key and headers longer than 1048588 bytes", 0,
		},
		{"refused as too large", nil, "a\nb\n", kerr.MessageTooLarge, "line 1: MESSAGE_TOO_LARGE", 0},
		{"refused", nil, "a\nb\n", kerr.InvalidRecord, "0 of 2 records written to t; the first failure is line 1: INVALID_RECORD", 0},
		{"partition", []string{"--partition", "2"}, "a\n", nil, "topic t has partitions 0 to 1, not 2", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			f.create("t", 2)
			if c.refuse != nil {
				f.refuse = func(int) *kerr.Error { return c.refuse }
			}
			out, words, code := leat(t.Context(), t, strings.NewReader(c.in), append([]string{"produce", "t", "--server", f.addr}, c.args...)...)
			if code != 1 || out != "" || !strings.Contains(words, c.want) {
				t.Errorf("exit %d, stdout %q, %s; want 1, nothing, %s", code, out, words, c.want)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if stored := f.mu.topics["t"][0].next + f.mu.topics["t"][1].next; stored != c.stored {
				t.Errorf("%d records stored, want %d", stored, c.stored)
			}
		})
	}
}

// TestProduceAcks proves that --acks is what goes over the wire.
func TestProduceAcks(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	for _, acks := range []string{"all", "1", "0"} {
		if _, words, code := leat(t.Context(), t, strings.NewReader("x\n"), "produce", "t", "--server", f.addr, "--acks", acks); code != 0 {
			t.Fatalf("acks %s: exit %d, %s", acks, code, words)
		}
	}
	if acks := f.waitAcks(t, 3); !slices.Equal(acks, []int16{-1, 1, 0}) {
		t.Errorf("acks on the wire %v", acks)
	}
}

// TestProducePartition proves that --partition decides, against the key.
func TestProducePartition(t *testing.T) {
	f := newFake(t)
	f.create("t", 4)
	in := strings.NewReader("a:1\nb:2\nc:3\nd:4\n")
	if _, words, code := leat(t.Context(), t, in, "produce", "t", "--server", f.addr, "--partition", "3", "--key-separator", ":"); code != 0 {
		t.Fatalf("exit %d, %s", code, words)
	}
	out, _, _ := leat(t.Context(), t, nil, "consume", "t", "--server", f.addr, "--partition", "3", "--exit-at-end", "--from", "2")
	if out != "3\n4\n" {
		t.Errorf("partition 3 from 2: %q", out)
	}
}

// TestProduceCreates proves that a server that creates topics on demand does so, and that the user is told.
func TestProduceCreates(t *testing.T) {
	f := newFake(t)
	f.autoCreate = 3
	_, words, code := leat(t.Context(), t, strings.NewReader("x\n"), "produce", "fresh", "--server", f.addr)
	if code != 0 || !strings.Contains(words, "topic fresh is new, with 3 partitions") {
		t.Errorf("exit %d, %s", code, words)
	}
}

// TestFailsFast proves that what cannot work is refused within a second, in words that name it.
func TestFailsFast(t *testing.T) {
	f := newFake(t)
	f.create("t", 2)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"produce", "nope", "--server", f.addr}, 1, "topic nope: no such topic at " + f.addr},
		{[]string{"consume", "nope", "--server", f.addr}, 1, "topic nope: no such topic at " + f.addr},
		{[]string{"topic", "describe", "nope", "--server", f.addr}, 1, "topic nope: no such topic at " + f.addr},
		{[]string{"topic", "delete", "nope", "--server", f.addr}, 1, "topic nope: no such topic at " + f.addr},
		{[]string{"topic", "alter", "nope", "--partitions", "3", "--server", f.addr}, 1, "topic nope: no such topic at " + f.addr},
		{[]string{"topic", "config", "nope", "--server", f.addr}, 1, "topic nope: no such topic at " + f.addr},
		{[]string{"bench", "produce", "nope", "--server", f.addr}, 1, "topic nope: no such topic at " + f.addr},
		{[]string{"bench", "produce", "t", "--size", "2000000", "--server", f.addr}, 1, "--size 2000000 is longer than 1048588 bytes"},
		{[]string{"topic", "create", "t", "--server", f.addr}, 1, "TOPIC_ALREADY_EXISTS"},
		{[]string{"topic", "create", "u", "--server", f.addr, "--replication-factor", "3"}, 1, "one node cannot hold 3 copies"},
		{[]string{"produce", "t", "--server", down}, 1, "no server at " + down},
		{[]string{"consume", "t", "--server", down}, 1, "no server at " + down},
		{[]string{"topic", "list", "--server", down}, 1, "no server at " + down},
		{[]string{"consume", "t", "--server", f.addr, "--partition", "7"}, 1, "partitions 0 to 1, not 7"},
		{[]string{"consume", "t", "--server", f.addr, "--partition", "0", "--from", "1"}, 1, "offset 1 is outside partition 0, which is empty (next 0)"},
		{[]string{"consume", "t", "--server", f.addr, "--from", "5"}, 2, "needs --partition"},
		{[]string{"consume", "t", "--server", f.addr, "--from", "yesterday"}, 2, `--from "yesterday"`},
		{[]string{"consume", "t", "--server", f.addr, "--max=-1"}, 2, "--max -1"},
		{[]string{"consume", "t", "--server", "localhost"}, 2, "not HOST:PORT"},
		{[]string{"consume"}, 2, "topic"},
		{[]string{"consume", "t", "--nonsense"}, 2, "--nonsense"},
		{[]string{"produce", "t", "--acks", "2"}, 2, "--acks"},
		{[]string{"produce", "t", "--compression", "brotli"}, 2, "--compression"},
		{[]string{"produce", "t", "--header", "novalue"}, 2, "not K=V"},
		{[]string{"produce", "t", "--tombstone"}, 2, "--tombstone needs --key-separator"},
		{[]string{"produce", "t", "--partition=-5"}, 2, "count from 0"},
		{[]string{"topic", "create", "t", "--config", "novalue"}, 2, "not K=V"},
		{[]string{"topic", "create", "t", "--config", "a=1", "--config", "a=2"}, 2, "given twice"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			began := time.Now()
			out, words, code := leat(t.Context(), t, strings.NewReader("x\n"), c.args...)
			if code != c.code || out != "" || !strings.Contains(words, c.want) {
				t.Errorf("%q: exit %d, stdout %q, %s; want %d and %s", c.args, code, out, words, c.code, c.want)
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("%q took %s", c.args, took)
			}
		})
	}
}

// TestConsumeLimits proves where a consumer stops by itself: after --max records, and with --exit-at-end at the end, which
// may be at once.
func TestConsumeLimits(t *testing.T) {
	f := newFake(t)
	f.create("t", 3)
	leat(t.Context(), t, strings.NewReader("a\nb\nc\n"), "produce", "t", "--server", f.addr, "--partition", "1")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--max", "2"}, "a\nb\n"},
		{[]string{"--exit-at-end"}, "a\nb\nc\n"},
		{[]string{"--exit-at-end", "--from", "latest"}, ""},
		{[]string{"--exit-at-end", "--from", "ts:2999-01-01T00:00:00Z"}, ""},
		{[]string{"--exit-at-end", "--from", "ts:99", "--max", "1"}, "a\n"},
		{[]string{"--exit-at-end", "--partition", "0"}, ""},
		{[]string{"--exit-at-end", "--partition", "1", "--from", "3"}, ""},
		{[]string{"--exit-at-end", "--max", "1", "--partition", "1", "--from", "1"}, "b\n"},
	} {
		out, words, code := leat(t.Context(), t, nil, append([]string{"consume", "t", "--server", f.addr}, c.args...)...)
		if code != 0 || out != c.want {
			t.Errorf("%q: exit %d, %q, %s; want %q", c.args, code, out, words, c.want)
		}
	}
}

// TestConsumeTail proves that a consumer prints a record that arrives while it waits, and that Ctrl-C then is success.
func TestConsumeTail(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	ctx, interrupt := context.WithCancel(t.Context())
	out, in := io.Pipe()
	result := make(chan error, 1)
	go func() {
		result <- run(ctx, t, IO{Out: in, Err: io.Discard}, "consume", "t", "--server", f.addr)
	}()
	leat(t.Context(), t, strings.NewReader("hello\n"), "produce", "t", "--server", f.addr)
	got := make([]byte, 6)
	if _, err := io.ReadFull(out, got); err != nil || string(got) != "hello\n" {
		t.Errorf("got %q, %v", got, err)
	}
	interrupt()
	if err := <-result; err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
}

// TestConsumeReaderGone proves that a consumer whose reader goes away ends quietly, both when it is writing and when it
// waits at the end of an idle topic.
func TestConsumeReaderGone(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	leat(t.Context(), t, strings.NewReader(strings.Repeat("line\n", 1000)), "produce", "t", "--server", f.addr)
	for _, from := range []string{"earliest", "latest"} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), t, IO{Out: w, Err: io.Discard}, "consume", "t", "--server", f.addr, "--from", from); err != nil {
			t.Errorf("from %s: %v", from, err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestConsumeInterrupted proves that Ctrl-C before the end is no success when the end was asked for, and that a topic
// deleted while it is read is an error.
func TestConsumeInterrupted(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	result := make(chan error, 1)
	go func() {
		result <- run(t.Context(), t, IO{Out: io.Discard, Err: io.Discard}, "consume", "t", "--server", f.addr)
	}()
	if _, words, code := leat(t.Context(), t, nil, "topic", "delete", "t", "--server", f.addr); code != 0 {
		t.Fatal(words)
	}
	if err := <-result; err == nil {
		t.Error("the topic went away and consume succeeded")
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, code := leat(canceled, t, nil, "consume", "t", "--server", f.addr, "--exit-at-end"); code != 1 {
		t.Errorf("interrupted: exit %d", code)
	}
}

// TestTopicCommands proves the round: create, list, describe, delete, for people and for programs.
func TestTopicCommands(t *testing.T) {
	f := newFake(t)
	f.create("other", 1)
	f.mu.topics["other"][0].damaged = true
	f.mu.configs["topic logs"] = map[string]string{"retention.ms": "1000", "cleanup.policy": "compact"}
	for _, c := range []struct {
		in, args string
		file     string
	}{
		{"", "topic create logs --partitions 2 --config retention.ms=1000", ""},
		{"x\ny\n", "produce logs --partition 1", ""},
		{"", "topic list", "topic_list.txt"},
		{"", "topic list --json", "topic_list.json"},
		{"", "topic describe logs", "topic_describe.txt"},
		{"", "topic describe logs --json", "topic_describe.json"},
		{"", "topic describe other", "topic_describe_damaged.txt"},
		{"", "topic describe other --json", "topic_describe_damaged.json"},
		{"", "topic delete logs", ""},
	} {
		out, words, code := leat(t.Context(), t, strings.NewReader(c.in), append(strings.Fields(c.args), "--server", f.addr)...)
		want := ""
		if c.file != "" {
			golden, err := os.ReadFile(filepath.Join("testdata", c.file))
			if err != nil {
				t.Fatal(err)
			}
			want = string(golden)
		}
		if code != 0 || out != want {
			t.Errorf("%s: exit %d, %s\n%s\nwant\n%s", c.args, code, words, out, want)
		}
	}
}

// TestVersion proves that the version that main was given is printed.
func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}, {"topic", "list", "--version"}} {
		if out, words, code := leat(t.Context(), t, nil, args...); code != 0 || out != "leat v1.2.3\n" {
			t.Errorf("%q: exit %d, %q, %s", args, code, out, words)
		}
	}
}

// TestExitCode proves the three codes.
func TestExitCode(t *testing.T) {
	wrapped := errors.Join(errors.New("while parsing"), usagef("no"))
	for _, c := range []struct {
		err  error
		want int
	}{{nil, 0}, {io.EOF, 1}, {wrapped, 2}, {&kong.ParseError{}, 2}} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("%v: %d, want %d", c.err, got, c.want)
		}
	}
}
