package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const (
	// patience is how long a check may take, and how long is waited for what must happen; no claim about speed.
	patience = 40 * time.Second
	// closePatience is how long a client may take to say good-bye.
	closePatience = 5 * time.Second
)

var (
	// bin is the binary under test.
	bin string
	// scratch is a folder that is gone after the tests.
	scratch string
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "leat-conformance-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	scratch = dir
	if bin = os.Getenv("LEAT_BIN"); bin == "" {
		bin = filepath.Join(dir, "leat")
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-w", "-o", bin, "leat")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("build the binary: %w\n%s", err, out)
		}
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// long reports whether all clients are asked for.
func long() bool { return os.Getenv("LEAT_LONG") == "1" }

// serve runs a server on a fresh directory until the test ends, and returns the address of its Kafka door. Groups do
// not wait long for more members.
func serve(t *testing.T, args ...string) string {
	t.Helper()
	_, kafka := serveDoors(t, args...)
	return kafka
}

// serveHTTP is serve, for the address of the HTTP door.
func serveHTTP(t *testing.T, args ...string) string {
	t.Helper()
	http, _ := serveDoors(t, args...)
	return http
}

func serveDoors(t *testing.T, args ...string) (http, kafka string) {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready.json")
	cmd := exec.Command(bin, append([]string{
		"serve", "--data-dir", filepath.Join(t.TempDir(), "data"), "--http-addr", "127.0.0.1:0", "--kafka-addr", "127.0.0.1:0",
		"--ops-addr", "127.0.0.1:0", "--ready-file", ready, "--set", "group.initial.rebalance.delay.ms=100",
	}, args...)...)
	stderr := &lockedBuffer{}
	cmd.Stderr = stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("stderr of leat:%s", stderr.last())
		}
	})
	var addresses struct {
		HTTP  string `json:"http"`
		Kafka string `json:"kafka"`
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		text, err := os.ReadFile(ready)
		if err != nil {
			continue
		}
		if json.Unmarshal(text, &addresses) == nil {
			return addresses.HTTP, addresses.Kafka
		}
	}
	t.Fatalf("leat is not ready after %v%s", patience, stderr.last())
	return "", ""
}
