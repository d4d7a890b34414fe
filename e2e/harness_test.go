package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen; it is no claim about speed.
const patience = 30 * time.Second

// running holds every server process that has not been waited for, so that TestMain leaves none behind.
var running struct {
	sync.Mutex
	commands map[*exec.Cmd]struct{}
}

// bin is the path of the binary under test.
var bin string

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	running.commands = map[*exec.Cmd]struct{}{}
	dir, err := os.MkdirTemp("", "leat-e2e-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if bin = os.Getenv("LEAT_BIN"); bin == "" {
		bin = filepath.Join(dir, "leat")
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-w", "-o", bin, "..")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("build the binary: %w\n%s", err, out)
		}
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return 0, err
	}
	defer func() {
		running.Lock()
		defer running.Unlock()
		for cmd := range running.commands {
			_ = cmd.Process.Kill()
		}
	}()
	return m.Run(), contractKept()
}

// long reports whether the long forms of the tests are asked for.
func long() bool { return os.Getenv("LEAT_LONG") == "1" }

// needTool fails in CI, and skips elsewhere, when a tool is missing.
func needTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is missing; make test installs it", name)
		}
		t.Skipf("%s is missing", name)
	}
}

// lockedBuffer keeps what a process writes.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// addresses is what the ready file says.
type addresses struct {
	HTTP      string  `json:"http"`
	Kafka     string  `json:"kafka"`
	Ops       string  `json:"ops"`
	Peer      *string `json:"peer"`
	NodeID    int32   `json:"node_id"`
	ClusterID string  `json:"cluster_id"`
	PID       int     `json:"pid"`
}

// server is one `leat serve` with its own data directory. It outlives its process: restart starts another.
type server struct {
	addresses
	t      testing.TB
	dir    string // data directory
	args   []string
	cmd    *exec.Cmd
	stderr *lockedBuffer // of the latest process
	exited chan struct{} // closed when the latest process has been waited for
}

// start runs a server until the test ends, and returns when it is ready.
func start(t testing.TB, args ...string) *server {
	t.Helper()
	return startIn(t, filepath.Join(t.TempDir(), "data"), args...)
}

func startIn(t testing.TB, dir string, args ...string) *server {
	t.Helper()
	s := &server{t: t, dir: dir, args: args}
	t.Cleanup(func() {
		if s.cmd != nil {
			s.kill()
		}
		if t.Failed() {
			t.Logf("stderr of leat:\n%s", tail(s.stderr.String(), 8<<10))
		}
	})
	s.restart()
	return s
}

// tail is the end of a long text.
func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// serveArgs is a command line that binds free ports; later arguments win.
func serveArgs(dir string, more ...string) []string {
	return append([]string{
		"serve", "--data-dir", dir, "--http-addr", "127.0.0.1:0", "--kafka-addr", "127.0.0.1:0", "--ops-addr", "127.0.0.1:0",
	}, more...)
}

// restart starts a process on the data directory, with the arguments of the first one, and waits until it is ready.
func (s *server) restart() {
	s.t.Helper()
	ready := filepath.Join(s.t.TempDir(), "ready.json")
	s.launch("--ready-file", ready)
	eventually(s.t, "the ready file", func() error {
		select {
		case <-s.exited:
			s.t.Fatalf("leat ended before it was ready: %v\n%s", s.cmd.ProcessState, s.stderr)
		default:
		}
		text, err := os.ReadFile(ready)
		if err != nil {
			return err
		}
		s.addresses = addresses{}
		return json.Unmarshal(text, &s.addresses)
	})
	operators.Store(s.Ops, true)
}

// launch starts a process and does not wait for anything.
func (s *server) launch(more ...string) {
	s.t.Helper()
	s.stderr = &lockedBuffer{}
	s.cmd = command(append(serveArgs(s.dir, s.args...), more...)...)
	s.cmd.Stderr = s.stderr
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	running.Lock()
	running.commands[s.cmd] = struct{}{}
	running.Unlock()
	cmd, exited := s.cmd, make(chan struct{})
	s.exited = exited
	go func() {
		_ = cmd.Wait() // ProcessState says how it ended
		running.Lock()
		delete(running.commands, cmd)
		running.Unlock()
		close(exited)
	}()
}

// command is the binary with arguments; it dies with the tests, and no variable of ours reaches it.
func command(args ...string) *exec.Cmd {
	cmd := exec.Command(bin, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
	return cmd
}

// kill is kill -9.
func (s *server) kill() {
	s.t.Helper()
	_ = s.cmd.Process.Kill() // it may have ended by itself
	s.wait()
}

// stop is SIGTERM; the process must end by itself with exit code 0.
func (s *server) stop() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatalf("SIGTERM: %v", err)
	}
	s.wait()
	if code := s.cmd.ProcessState.ExitCode(); code != 0 {
		s.t.Fatalf("exit code %d after SIGTERM, want 0 (%v)\n%s", code, s.cmd.ProcessState, s.stderr)
	}
}

// wait returns when the process has ended.
func (s *server) wait() {
	s.t.Helper()
	select {
	case <-s.exited:
	case <-time.After(patience):
		_ = s.cmd.Process.Kill()
		s.t.Fatalf("leat did not end within %v\n%s", patience, s.stderr)
	}
}

// pid is the process under test.
func (s *server) pid() int { return s.cmd.Process.Pid }

// run runs the binary to its end and returns what it wrote and its exit code.
func run(t testing.TB, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := command(args...)
	var out, words bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &words
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		<-done
		t.Fatalf("leat %s did not end within %v\n%s", strings.Join(args, " "), patience, words.String())
	}
	return out.String(), words.String(), cmd.ProcessState.ExitCode()
}

// eventually polls until ok returns nil.
func eventually(t testing.TB, what string, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
		<-tick.C
	}
}

// after returns when d has passed; for measuring over a span of time, not for waiting until something is so.
func after(d time.Duration) { <-time.After(d) }

// logFiles lists the .log files of the data directory that hold anything, by path.
func (s *server) logFiles() []string {
	s.t.Helper()
	var names []string
	err := filepath.WalkDir(filepath.Join(s.dir, "logs"), func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".log" {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Size() > 0 {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return names
}

// onlyLog is the one .log file that holds anything.
func (s *server) onlyLog() string {
	s.t.Helper()
	names := s.logFiles()
	if len(names) != 1 {
		s.t.Fatalf("log files %v, want one", names)
	}
	return names[0]
}
