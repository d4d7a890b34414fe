package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestCase67CommandLine proves that a tombstone is written only by its flag, that what could not be written or read is
// exit code 1 and a wrong flag 2, and that data and words keep apart.
func TestCase67CommandLine(t *testing.T) {
	s := start(t, "--set", "auto.create.topics.enable=false")
	s.createTopic("t", 1)
	for _, c := range []struct {
		stdin string
		args  []string
		code  int
		want  string // the last record's value in JSON; "" is no record
	}{
		{"null\n", nil, 0, `"null"`},
		{"\n", nil, 0, `""`},
		{"k:null\n", []string{"--key-separator", ":"}, 0, `"null"`},
		{"k:\n", []string{"--key-separator", ":"}, 0, `""`},
		{"k\n", []string{"--key-separator", ":", "--tombstone"}, 0, `null`},
		{"k:v\n", []string{"--key-separator", ":", "--tombstone"}, 0, `"v"`},
		{"k\n", []string{"--key-separator", ":"}, 1, ""},
		{"k\n", []string{"--tombstone"}, 2, ""},
		{"k\n", []string{"--tombston"}, 2, ""},
		{"k\n", []string{"--partition", "7"}, 1, ""},
	} {
		before := s.wire().end("t", 0)
		out, words, code := run(t, c.stdin, append([]string{"produce", "t", "--server", s.Kafka}, c.args...)...)
		if code != c.code || out != "" || code != 0 && words == "" {
			t.Errorf("produce %v: exit code %d, want %d; stdout %q, stderr %q", c.args, code, c.code, out, tail(words, 300))
		}
		records := s.records("t", 0, fmt.Sprint("offset=", before)).Records
		got := ""
		if len(records) == 1 {
			r := records[0]
			if got = string(r.Value); r.ValueStr != nil {
				got = fmt.Sprintf("%q", *r.ValueStr)
			}
		}
		if len(records) > 1 || got != c.want {
			t.Errorf("produce %q %v: %d records, value %s, want %s", c.stdin, c.args, len(records), got, c.want)
		}
	}
	if _, words, code := run(t, "x\n", "produce", "missing", "--server", s.Kafka); code != 1 || !strings.Contains(words, "missing") {
		t.Errorf("produce to no topic: exit code %d, %q", code, words)
	}
	s.stop()
	for _, args := range [][]string{{"produce", "t", "--timeout", "1s"}, {"consume", "t", "--exit-at-end", "--timeout", "1s"}, {"topic", "list", "--timeout", "1s"}} {
		out, words, code := run(t, "x\n", append(args, "--server", s.Kafka)...)
		if code != 1 || out != "" || !strings.Contains(words, s.Kafka) {
			t.Errorf("%v against a stopped server: exit code %d, stdout %q, stderr %q", args, code, out, tail(words, 300))
		}
	}
}

// program is a running command whose output a test reads.
type program struct {
	t      *testing.T
	stdin  io.WriteCloser
	stdout io.ReadCloser
	words  *lockedBuffer
	signal func(os.Signal) error
	exited chan int
}

// launchCLI starts a command that does not end by itself.
func launchCLI(t *testing.T, args ...string) *program {
	t.Helper()
	cmd := command(args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, stdin: in, stdout: reader, words: &lockedBuffer{}, exited: make(chan int, 1)}
	cmd.Stdout, cmd.Stderr = writer, p.words
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	p.signal = cmd.Process.Signal
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = reader.Close() })
	go func() {
		_ = cmd.Wait()
		p.exited <- cmd.ProcessState.ExitCode() // -1 is a signal
	}()
	return p
}

// wantExit waits for the end; nothing that a panic or a broken pipe says may be among the words.
func (p *program) wantExit(code int) {
	p.t.Helper()
	select {
	case got := <-p.exited:
		if got != code {
			p.t.Errorf("exit code %d, want %d: %s", got, code, tail(p.words.String(), 500))
		}
	case <-time.After(patience):
		p.t.Errorf("no end within %v: %s", patience, tail(p.words.String(), 500))
	}
	for _, word := range []string{"panic", "goroutine", "broken pipe", "EPIPE"} {
		if strings.Contains(p.words.String(), word) {
			p.t.Errorf("stderr says %q: %s", word, tail(p.words.String(), 500))
		}
	}
}

// TestCase67ClosedPipe proves that a reader of stdout that goes away ends a consumer as a success, in the middle of
// much data and while it waits for more.
func TestCase67ClosedPipe(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, strings.Repeat("some line of text\n", 50_000))
	for name, args := range map[string][]string{
		"much data": {"--from", "earliest"}, "JSON": {"--from", "earliest", "--json"}, "while it waits": {"--from", "tail:1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := launchCLI(t, append([]string{"consume", "t", "--server", s.Kafka}, args...)...)
			if line, err := bufio.NewReaderSize(p.stdout, 16).ReadString('\n'); err != nil || !strings.Contains(line, "some line of text") {
				t.Errorf("first line %q: %v: %s", line, err, p.words)
			}
			if err := p.stdout.Close(); err != nil {
				t.Fatal(err)
			}
			p.wantExit(0)
		})
	}
	p := launchCLI(t, "topic", "list", "--server", s.Kafka)
	if err := p.stdout.Close(); err != nil {
		t.Fatal(err)
	}
	p.wantExit(0)
}

// TestCase67Interrupt proves that Ctrl-C ends a consumer that waits as a success, and a producer after what it has read
// is written, with a count and exit code 1.
func TestCase67Interrupt(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, "one\n")
	consumer := launchCLI(t, "consume", "t", "--from", "earliest", "--server", s.Kafka)
	if line, err := bufio.NewReader(consumer.stdout).ReadString('\n'); err != nil || line != "one\n" {
		t.Errorf("first line %q: %v", line, err)
	}
	if err := consumer.signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	consumer.wantExit(0)

	producer := launchCLI(t, "produce", "t", "--server", s.Kafka)
	if _, err := io.WriteString(producer.stdin, "two\nthree\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what the producer has read", func() error {
		if end := s.wire().end("t", 0); end != 3 {
			return fmt.Errorf("end offset %d", end)
		}
		return nil
	})
	if err := producer.signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	producer.wantExit(1)
	if words := producer.words.String(); !strings.Contains(words, "2 records") {
		t.Errorf("the producer says %q", words)
	}
}

// TestCommandLineAdmin proves that the commands change what they say, and that --json is JSON and nothing else.
func TestCommandLineAdmin(t *testing.T) {
	s := start(t)
	leat := func(args ...string) string {
		t.Helper()
		out, words, code := run(t, "", append(args, "--server", s.Kafka)...)
		if code != 0 {
			t.Fatalf("leat %s: exit code %d: %s", strings.Join(args, " "), code, words)
		}
		return out
	}
	leat("topic", "create", "t", "--partitions", "1")
	leat("topic", "alter", "t", "--partitions", "3", "--config", "retention.ms=7000000")
	if got := describe(t, s, "t")["retention.ms"].value(); got != "7000000" {
		t.Errorf("retention.ms is %s", got)
	}
	if base := s.wire().mustProduce("t", 2, encode(t, kgo.NoCompression(), values(time.Now().UnixMilli(), "a", "b", "c"))); base != 0 {
		t.Errorf("base offset %d", base)
	}
	for _, args := range [][]string{
		{"topic", "list"}, {"topic", "describe", "t"}, {"topic", "offsets", "t"}, {"topic", "config", "t"}, {"cluster", "describe"}, {"version"},
	} {
		if args[0] == "version" {
			if out, words, code := run(t, "", "version", "--json"); code != 0 || !json.Valid([]byte(out)) {
				t.Errorf("version --json: %q %s", out, words)
			}
			continue
		}
		text, out := leat(args...), leat(append(args, "--json")...)
		if text == "" || text == out {
			t.Errorf("%v: the same text with --json and without: %q", args, text)
		}
		d := json.NewDecoder(strings.NewReader(out))
		n := 0
		for ; ; n++ {
			var v any
			if err := d.Decode(&v); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Errorf("%v --json: %v: %q", args, err, clip(out))
				break
			}
		}
		if n == 0 {
			t.Errorf("%v --json: nothing: %q", args, out)
		}
	}
	if out := leat("topic", "offsets", "t", "--json"); !strings.Contains(out, "3") {
		t.Errorf("offsets: %q", out)
	}
}

// TestCompletion proves that each shell gets a script that names the commands.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, words, code := run(t, "", "completion", shell)
		if code != 0 || !strings.Contains(out, "leat") || len(out) < 100 {
			t.Errorf("%s: exit code %d, %d bytes, %s", shell, code, len(out), words)
		}
	}
	if _, words, code := run(t, "", "completion", "cmd.exe"); code != 2 {
		t.Errorf("a shell that is none: exit code %d, %s", code, words)
	}
}

// TestCheck proves that `leat check` finds a stopped directory sound, says which place of which file is damaged with
// exit code 78, refuses a directory in use with 75, and changes no byte.
func TestCheck(t *testing.T) {
	s := start(t)
	s.createTopic("t", 2, "segment.bytes=20000")
	w := s.wire()
	for i := range 50 {
		w.mustProduce("t", int32(i%2), encode(t, codecs[i%len(codecs)].codec, values(time.Now().UnixMilli(), strings.Repeat(fmt.Sprint(i), 500), "x")))
	}
	if out, words, code := run(t, "", "check", s.dir); code != 75 {
		t.Errorf("in use: exit code %d, want 75: %q %s", code, out, tail(words, 300))
	}
	s.stop()
	before := fingerprint(t, s.dir)
	out, words, code := run(t, "", "check", s.dir)
	if code != 0 || !strings.Contains(words, "batches 50, records 100") {
		t.Errorf("a sound directory: exit code %d, %q, %s", code, out, tail(words, 500))
	}
	if out, words, code := run(t, "", "check", s.dir, "--json"); code != 0 || !json.Valid([]byte(strings.SplitN(out, "\n", 2)[0])) {
		t.Errorf("--json: exit code %d, %q, %s", code, clip(out), tail(words, 300))
	}
	if after := fingerprint(t, s.dir); after != before {
		t.Error("a check changed the directory")
	}
	name := s.logFiles()[0]
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{0xa5, 0x5a}, 100); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	before = fingerprint(t, s.dir)
	if out, words, code := run(t, "", "check", s.dir); code != 78 || !strings.Contains(out+words, filepath.Base(name)) {
		t.Errorf("two bytes are wrong: exit code %d, want 78, and the name %s: %q %s", code, filepath.Base(name), tail(out, 500), tail(words, 500))
	}
	if after := fingerprint(t, s.dir); after != before {
		t.Error("a check of damage changed the directory")
	}
	for _, dir := range []string{filepath.Join(t.TempDir(), "missing"), t.TempDir()} {
		if _, words, code := run(t, "", "check", dir); code == 0 || code == 2 || words == "" {
			t.Errorf("%s: exit code %d, %q", dir, code, words)
		}
	}
}

// fingerprint is all names, sizes and bytes of a directory, but of the file that locks it.
func fingerprint(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(dir, func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == "LOCK" {
			return err
		}
		text, err := os.ReadFile(name)
		fmt.Fprintf(&all, "%s %d %08x\n", name, len(text), crc(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func crc(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }
