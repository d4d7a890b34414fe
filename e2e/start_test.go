package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBusyPort proves that a port in use is named together with its flag, with exit code 1, and leaves nothing on disk.
func TestBusyPort(t *testing.T) {
	for _, flag := range []string{"--http-addr", "--kafka-addr", "--ops-addr"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "data")
		_, words, code := run(t, "", serveArgs(dir, flag, ln.Addr().String())...)
		_, port, _ := net.SplitHostPort(ln.Addr().String())
		if code != 1 || !strings.Contains(words, flag) || !strings.Contains(words, port) {
			t.Errorf("%s: exit code %d: %s", flag, code, words)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: the data directory was made", flag)
		}
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOutsideLoopback proves that an address outside loopback is refused without --insecure, and taken with it.
func TestOutsideLoopback(t *testing.T) {
	for _, flag := range []string{"--http-addr", "--kafka-addr", "--ops-addr"} {
		for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0"} {
			_, words, code := run(t, "", serveArgs(filepath.Join(t.TempDir(), "data"), flag, addr)...)
			if code != 2 || !strings.Contains(words, flag) || !strings.Contains(words, "--insecure") {
				t.Errorf("%s %s: exit code %d: %s", flag, addr, code, words)
			}
		}
	}
	s := start(t, "--http-addr", "0.0.0.0:0", "--insecure")
	_, port, _ := net.SplitHostPort(s.HTTP)
	s.HTTP = net.JoinHostPort("127.0.0.1", port)
	s.get("/healthz")
}

// TestBadUsage proves that a wrong command line is exit code 2 with words on stderr and nothing on stdout.
func TestBadUsage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for _, args := range [][]string{
		{"serve", "--no-such-flag"},
		{"no-such-command"},
		{"serve", "--max-request-bytes", "many"},
		serveArgs(dir, "--max-request-bytes", "0"),
		serveArgs(dir, "--set", "no.such.config=1"),
		serveArgs(dir, "--set", "num.partitions=none"),
		serveArgs(dir, "--kafka-advertise", "nowhere"),
		serveArgs(dir, "--allow-origin", "*"),
	} {
		out, words, code := run(t, "", args...)
		if code != 2 || words == "" || out != "" {
			t.Errorf("leat %s: exit code %d, stdout %q, stderr %q", strings.Join(args, " "), code, clip(out), clip(words))
		}
	}
}

// TestSecondProcess proves that a data directory in use is exit code 75, and that its holder goes on.
func TestSecondProcess(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	_, words, code := run(t, "", serveArgs(s.dir)...)
	if code != 75 || !strings.Contains(words, s.dir) {
		t.Errorf("exit code %d: %s", code, words)
	}
	s.post("/v1/topics/t/records?value=line", typeNDJSON, "still here\n")
}

// TestDamagedDirectory proves that a data directory that is not Leat's, or is damaged, is exit code 78 and stays as
// it is.
func TestDamagedDirectory(t *testing.T) {
	s := start(t)
	s.stop()
	identity := filepath.Join(s.dir, "meta.json")
	for name, content := range map[string]string{"not JSON": "hello", "foreign": `{"format":"something else"}`} {
		if err := os.WriteFile(identity, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, words, code := run(t, "", serveArgs(s.dir)...)
		if code != 78 || !strings.Contains(words, "meta.json") {
			t.Errorf("%s: exit code %d: %s", name, code, words)
		}
		if left, err := os.ReadFile(identity); err != nil || string(left) != content {
			t.Errorf("%s: meta.json was changed to %q (%v)", name, left, err)
		}
	}
}

// TestCleanStop proves that SIGTERM ends the process with exit code 0, that everything is there after the restart,
// and that a restart after a clean stop reads no log.
func TestCleanStop(t *testing.T) {
	const lines, size = 40, 1 << 20
	s := start(t, "--set", "num.partitions=1")
	block := strings.Repeat(strings.Repeat("x", 99)+"\n", size/100)
	for range lines {
		s.post("/v1/topics/t/records?value=line&receipts=none", typeNDJSON, block)
	}
	id := s.ClusterID
	end := s.wire().end("t", 0)
	waiting := make(chan answer, 1)
	go func() { // a long poll under way must not hold the stop up
		a, err := s.try("GET", "/v1/topics/t/partitions/0/records?from=latest&wait=60", nil)
		if err != nil {
			a.body = []byte(err.Error())
		}
		waiting <- a
	}()
	eventually(t, "the poll to wait", func() error {
		if n := s.metric("leat_broker_waiting_fetches"); n != 1 {
			return fmt.Errorf("%v waiting fetches", n)
		}
		return nil
	})
	s.stop()
	if a := <-waiting; a.status != 200 {
		t.Errorf("a poll during the stop: status %d, %s", a.status, a.body)
	}
	s.restart()
	if read := s.procField("io", "rchar"); read > lines*size/4 {
		t.Errorf("%d bytes read at start, the log has %d", read, lines*size)
	}
	if words := s.stderr.String(); strings.Contains(words, "recovered") || strings.Contains(words, "level=WARN") || strings.Contains(words, "level=ERROR") {
		t.Errorf("a clean start says: %s", words)
	}
	if s.ClusterID != id {
		t.Errorf("cluster id %s, was %s", s.ClusterID, id)
	}
	if got := s.wire().end("t", 0); got != end {
		t.Errorf("end offset %d, was %d", got, end)
	}
}

// TestConfigSources proves that flags win over variables, and variables over the file.
func TestConfigSources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "leat.yaml")
	if err := os.WriteFile(file, []byte("max-request-bytes: 1000\nconfig:\n  num.partitions: 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := start(t, "--config", file)
	s.post("/v1/topics/t/records?value=line", typeNDJSON, "x\n")
	if end := s.wire().end("t", 1); end < 0 {
		t.Errorf("end offset %d", end)
	}
	s.do("GET", "/v1/topics/t/partitions/2/records?from=earliest", nil).refused(404, "unknown_partition")
	s.do("POST", "/v1/topics/t/records?value=line", make([]byte, 1001), "Content-Type: "+typeNDJSON).refused(413, "request_too_large")

	if err := os.WriteFile(file, []byte("http_addr: 127.0.0.1:0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, words, code := run(t, "", serveArgs(filepath.Join(t.TempDir(), "data"), "--config", file)...)
	if code != 2 || !strings.Contains(words, "http_addr") {
		t.Errorf("a name that is no flag: exit code %d: %s", code, words)
	}
}

// TestSignalTwice proves that a signal that comes twice at once, as from a terminal and from the program that runs the
// server in it, is one: the server stops cleanly.
func TestSignalTwice(t *testing.T) {
	for range 5 {
		s := start(t)
		s.post("/v1/topics/t/records?value=line", typeNDJSON, "a\n")
		for range 2 {
			if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
		s.wait()
		if code := s.cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(s.stderr.String(), "msg=stopped") {
			t.Fatalf("exit code %d\n%s", code, s.stderr)
		}
	}
}
