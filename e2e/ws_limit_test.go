package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// startWithFiles starts a server that may have so many descriptors.
func startWithFiles(t *testing.T, files int) *server {
	t.Helper()
	s := &server{t: t, dir: filepath.Join(t.TempDir(), "data"), stderr: &lockedBuffer{}, exited: make(chan struct{})}
	ready := filepath.Join(t.TempDir(), "ready.json")
	script := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files)
	s.cmd = exec.Command("sh", append([]string{"-c", script, bin}, serveArgs(s.dir, "--ready-file", ready)...)...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.cmd.Stderr = s.stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.kill)
	go func() {
		_ = s.cmd.Wait() // ProcessState says how it ended
		close(s.exited)
	}()
	eventually(t, "the ready file", func() error {
		text, err := os.ReadFile(ready)
		if err != nil {
			return fmt.Errorf("%w: %s", err, s.stderr)
		}
		return json.Unmarshal(text, &s.addresses)
	})
	return s
}

// TestSocketsLeaveRoom proves that sockets end at their own limit with an answer that says so, that requests, streams
// and Kafka clients are served while there are as many, and that a socket that goes makes room for another.
func TestSocketsLeaveRoom(t *testing.T) {
	const files = 400
	s := startWithFiles(t, files)
	s.createTopic("t", 1)
	var open []net.Conn
	connect := func() error {
		nc, err := net.Dial("tcp", s.HTTP)
		if err != nil {
			return err
		}
		if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := openSocket(nc); err != nil {
			return errors.Join(err, nc.Close())
		}
		open = append(open, nc)
		return nil
	}
	defer func() {
		for _, nc := range open {
			_ = nc.Close()
		}
	}()
	var refused *refusedError
	for refused == nil && len(open) <= files {
		if err := connect(); err != nil && !errors.As(err, &refused) {
			t.Fatalf("socket %d of %d descriptors: want a socket or a refusal: %v", len(open)+1, files, err)
		}
	}
	if refused == nil || len(open) < files/10 {
		t.Fatalf("%d sockets with %d descriptors, then %v", len(open), files, refused)
	}
	a := answer{t: t, asked: "GET /v1/ws", status: refused.status, header: refused.header, body: refused.body}
	if p := a.refused(503, "too_many_connections"); p.Retriable == nil || !*p.Retriable {
		t.Errorf("the refusal is not retriable: %s", refused.body)
	}
	t.Logf("%d sockets with %d descriptors", len(open), files)
	s.post("/v1/topics/t/partitions/0/records?value=line", typeNDJSON, "one\n")
	if e := s.stream("/v1/topics/t/records?from=earliest", typeSSE).wantEvent(""); e.id == "" {
		t.Errorf("event %+v", e)
	}
	if end := s.wire().end("t", 0); end != 1 {
		t.Errorf("end offset %d", end)
	}
	if err := open[0].Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "room for another socket", connect)
}
