package e2e

import (
	"encoding/json"
	"net"
	"strings"
	"testing"
)

// TestCommandLine proves that topics and records go round through the command line alone, with data on stdout, words
// on stderr and exit code 0.
func TestCommandLine(t *testing.T) {
	s := start(t)
	leat := func(stdin string, args ...string) string {
		t.Helper()
		out, words, code := run(t, stdin, append(args, "--server", s.Kafka)...)
		if code != 0 {
			t.Fatalf("leat %s: exit code %d: %s", strings.Join(args, " "), code, words)
		}
		return out
	}
	leat("", "topic", "create", "t", "--partitions", "2", "--replication-factor", "1", "--config", "max.message.bytes=5000")
	if out := leat("", "topic", "list"); !strings.Contains(out, "t") {
		t.Errorf("list: %q", out)
	}
	var described struct {
		Name string `json:"name"`
	}
	if out := leat("", "topic", "describe", "t", "--json"); json.Unmarshal([]byte(out), &described) != nil || described.Name != "t" {
		t.Errorf("describe: %q", out)
	}
	if out := leat("k1:one\nk2:two\nk1:three\n", "produce", "t", "--key-separator", ":", "--compression", "zstd"); out != "" {
		t.Errorf("produce wrote to stdout: %q", out)
	}
	out := leat("", "consume", "t", "--from", "earliest", "--max", "3")
	if got := strings.Join(sortedLines(out), " "); got != "one three two" {
		t.Errorf("consume: %q", out)
	}
	if strings.Index(out, "one") > strings.Index(out, "three") {
		t.Errorf("records of one key came out of order: %q", out)
	}
	if out := leat("", "consume", "t", "--exit-at-end", "--json"); strings.Count(out, "\n") != 3 || !json.Valid([]byte(strings.SplitN(out, "\n", 2)[0])) {
		t.Errorf("consume --json: %q", out)
	}
	for range 2 { // the second goes on where the first was, at the end
		out += leat("", "consume", "t", "--group", "g", "--exit-at-end")
	}
	if got := strings.Join(sortedLines(out), " "); got != "one one three three two two" {
		t.Errorf("consume --group: %q", out)
	}
	if out := leat("", "group", "reset-offsets", "g", "t", "--to", "earliest"); strings.Count(out, "\nt ") != 2 {
		t.Errorf("reset-offsets: %q", out)
	}
	if out := leat("", "consume", "t", "--group", "g", "--max", "3"); strings.Count(out, "\n") != 3 {
		t.Errorf("consume --group after reset-offsets: %q", out)
	}
	if out := leat("", "group", "describe", "g"); !strings.Contains(out, "g      Empty  consumer") || strings.Count(out, "\nt ") != 2 {
		t.Errorf("group describe: %q", out)
	}
	leat("", "group", "delete", "g")
	if out := leat("", "group", "list", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("group list: %q", out)
	}
	for _, acks := range []string{"all", "1", "0"} {
		leat("x\n", "produce", "t", "--acks", acks, "--partition", "0")
	}
	leat("", "topic", "delete", "t")
	if out := leat("", "topic", "list"); strings.TrimSpace(out) != "" && strings.Contains(out, "\nt ") {
		t.Errorf("list after delete: %q", out)
	}
	if out, _, code := run(t, "", "version"); code != 0 || !strings.HasPrefix(out, "leat ") {
		t.Errorf("version: exit code %d, %q", code, out)
	}
}

// TestCommandLineFailures proves that a command that could not do all of its work says so with exit code 1, a wrong
// one with 2, and that neither hangs.
func TestCommandLineFailures(t *testing.T) {
	s := start(t, "--set", "auto.create.topics.enable=false")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code  int
		says  string
		stdin string
		args  []string
	}{
		{1, "missing", "x\n", []string{"produce", "missing", "--server", s.Kafka}},
		{1, "missing", "", []string{"consume", "missing", "--exit-at-end", "--server", s.Kafka}},
		{1, "missing", "", []string{"topic", "describe", "missing", "--server", s.Kafka}},
		{1, "missing", "", []string{"topic", "delete", "missing", "--server", s.Kafka}},
		{1, "a/b", "", []string{"topic", "create", "a/b", "--server", s.Kafka}},
		{1, "replication", "", []string{"topic", "create", "r", "--replication-factor", "3", "--server", s.Kafka}},
		{1, nobody, "", []string{"topic", "list", "--server", nobody}},
		{1, s.HTTP + " speaks HTTP, not Kafka", "", []string{"topic", "list", "--server", s.HTTP}},
		{1, s.Ops + " speaks HTTP, not Kafka", "", []string{"topic", "list", "--server", s.Ops}},
		{1, "topic missing: no such topic at " + s.Kafka, "", []string{"topic", "alter", "missing", "--config", "retention.ms=1", "--server", s.Kafka}},
		{2, "--acks", "", []string{"produce", "t", "--acks", "two", "--server", s.Kafka}},
		{2, "--from", "", []string{"consume", "t", "--from", "yesterday", "--server", s.Kafka}},
		{2, "", "", []string{"consume"}},
	} {
		out, words, code := run(t, c.stdin, c.args...)
		if code != c.code || !strings.Contains(words, c.says) || out != "" {
			t.Errorf("leat %s: exit code %d, want %d; stdout %q, stderr %q", strings.Join(c.args, " "), code, c.code, out, tail(words, 300))
		}
	}
}

// TestCommandLineLimits proves that the topic says how long a line may be, in one record or in a batch of many, that what
// is longer is named, and that describe and config show what is set.
func TestCommandLineLimits(t *testing.T) {
	s := start(t)
	leat := func(stdin string, code int, args ...string) (out, words string) {
		t.Helper()
		out, words, got := run(t, stdin, append(args, "--server", s.Kafka)...)
		if got != code {
			t.Fatalf("leat %s: exit code %d, want %d: %s", strings.Join(args, " "), got, code, tail(words, 300))
		}
		return out, words
	}
	leat("", 0, "topic", "create", "large", "--config", "max.message.bytes=4000000")
	leat("", 0, "topic", "create", "small", "--config", "max.message.bytes=2000")
	leat("ok\n"+strings.Repeat("x", 3_900_000)+"\n", 0, "produce", "large")
	if out, _ := leat("", 0, "consume", "large", "--exit-at-end"); len(out) != 3_900_004 {
		t.Errorf("%d bytes came back", len(out))
	}
	if _, words := leat("ok\n"+strings.Repeat("x", 4_000_001)+"\n", 1, "produce", "large"); !strings.Contains(words, "line 2: longer than 4000000 bytes") {
		t.Errorf("large: %s", words)
	}
	leat(strings.Repeat(strings.Repeat("y", 700)+"\n", 500), 0, "produce", "small")
	if _, words := leat("ok\n"+strings.Repeat("x", 1999)+"\n", 1, "produce", "small"); !strings.Contains(words, "line 2: MESSAGE_TOO_LARGE") {
		t.Errorf("small: %s", words)
	}
	if out, _ := leat("", 0, "topic", "describe", "small"); !strings.HasPrefix(out, "TOPIC ") || !strings.Contains(out, "  max.message.bytes=2000\n\nPARTITION ") {
		t.Errorf("describe: %q", out)
	}
	set, words := leat("", 0, "topic", "config", "small")
	all, _ := leat("", 0, "topic", "config", "small", "--all")
	if strings.Count(set, "\n") != 2 || !strings.Contains(set, "max.message.bytes") || !strings.Contains(words, "--all shows") || strings.Count(all, "\n") < 20 {
		t.Errorf("config: %q, %q; --all: %q", set, words, clip(all))
	}
}
