package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// procField reads a number from a file of "name: number" lines under /proc/PID.
func (s *server) procField(file, name string) int64 {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.pid()), file))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return n
		}
	}
	s.t.Fatalf("/proc/PID/%s has no %s", file, name)
	return 0
}

// memory is the anonymous resident memory in bytes: what the process holds for itself, without mapped files.
func (s *server) memory() int64 { return s.procField("status", "RssAnon") << 10 }

// watchMemory samples the memory until stop is called, which returns the most there was.
func (s *server) watchMemory() (stop func() int64) {
	most, done := s.memory(), make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				most = max(most, s.memory())
			}
		}
	})
	return func() int64 {
		close(done)
		work.Wait()
		return most
	}
}

// openFiles counts the descriptors of the process.
func (s *server) openFiles() int {
	s.t.Helper()
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(s.pid()), "fd"))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(entries)
}

// cpu is the processor time that the process has used, of all its threads, by the scheduler's own account.
func (s *server) cpu() time.Duration {
	s.t.Helper()
	names, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(s.pid()), "task", "*", "schedstat"))
	if err != nil {
		s.t.Fatal(err)
	}
	var total time.Duration
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			s.t.Fatal(err)
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		total += time.Duration(ns)
	}
	return total
}

// metric is the sum of the samples of a metric whose labels contain every one of labels, such as `api="Fetch"`.
func (s *server) metric(name string, labels ...string) float64 {
	s.t.Helper()
	resp, err := httpClient.Get("http://" + s.Ops + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	a, err := readAnswer(s.t, "/metrics", resp)
	if err != nil {
		s.t.Fatal(err)
	}
	total, found := 0.0, false
next:
	for line := range strings.Lines(string(a.body)) {
		sample, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		metric, set, _ := strings.Cut(sample, "{")
		if !ok || metric != name {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(set, label) {
				continue next
			}
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			s.t.Fatal(err)
		}
		total, found = total+n, true
	}
	if !found && len(labels) == 0 {
		s.t.Fatalf("/metrics has no %s", name)
	}
	return total
}

// straceWorks probes once: containers may forbid ptrace.
var straceWorks = sync.OnceValue(func() bool {
	return exec.Command("strace", "-f", "-o", "/dev/null", "true").Run() == nil
})

// canTrace reports whether the test may trace the server; it needs a second way where it may not. In CI strace must at
// least be installed.
func canTrace(t *testing.T) bool {
	t.Helper()
	if _, err := exec.LookPath("strace"); err != nil && os.Getenv("CI") == "true" {
		t.Fatal("strace is missing; make test installs it")
	}
	return straceWorks()
}

// trace attaches strace to the server and returns when every thread is attached. stop detaches and returns the lines.
func (s *server) trace(args ...string) (stop func() string) {
	s.t.Helper()
	out := filepath.Join(s.t.TempDir(), "strace")
	cmd := exec.Command("strace", append([]string{"-f", "-o", out, "-p", strconv.Itoa(s.pid())}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	words, err := cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	lines := bufio.NewScanner(words)
	for lines.Scan() {
		if strings.Contains(lines.Text(), " attached") {
			break
		}
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for lines.Scan() {
			continue
		}
	}()
	stopped := false
	stop = func() string {
		if stopped {
			return ""
		}
		stopped = true
		_ = cmd.Process.Signal(syscall.SIGINT)
		<-drained
		_ = cmd.Wait() // strace ends by the signal that it was sent
		text, err := os.ReadFile(out)
		if err != nil {
			s.t.Fatal(err)
		}
		return string(text)
	}
	s.t.Cleanup(func() { stop() })
	return stop
}

// syscalls is what a trace with -y shows of the bytes that moved.
type syscalls struct {
	sendfile int64            // bytes that sendfile moved
	sockets  int64            // bytes that write calls gave to sockets
	logReads []string         // calls that read from a .log
	calls    map[string]int64 // calls by name
}

var (
	callStart  = regexp.MustCompile(`^\d+\s+(\w+)\((?:(\d+)<([^>]*)>)?`)
	callResume = regexp.MustCompile(`^(\d+)\s+<\.\.\. (\w+) resumed>`)
	callResult = regexp.MustCompile(` = (-?\d+)(?: |$)`)
)

// parseTrace adds up a trace.
func parseTrace(text string) syscalls {
	sum := syscalls{calls: map[string]int64{}}
	pending := map[string]string{} // thread -> the file of the call that it is in
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		thread, _, _ := strings.Cut(line, " ")
		name, file := "", ""
		if m := callStart.FindStringSubmatch(line); m != nil {
			name, file = m[1], m[3]
			sum.calls[name]++
			if strings.HasSuffix(file, ".log") && (strings.HasPrefix(name, "read") || strings.HasPrefix(name, "pread")) {
				sum.logReads = append(sum.logReads, line)
			}
			if strings.HasSuffix(line, "<unfinished ...>") {
				pending[thread] = file
				continue
			}
		} else if m := callResume.FindStringSubmatch(line); m != nil {
			name, file = m[2], pending[thread]
		}
		m := callResult.FindAllStringSubmatch(line, -1)
		if m == nil {
			continue
		}
		n, err := strconv.ParseInt(m[len(m)-1][1], 10, 64)
		if err != nil || n <= 0 {
			continue
		}
		switch name {
		case "sendfile":
			sum.sendfile += n
		case "write", "writev", "sendto", "sendmsg":
			if strings.HasPrefix(file, "socket:") || strings.HasPrefix(file, "TCP") {
				sum.sockets += n
			}
		}
	}
	return sum
}

// TestParseTrace proves that a trace is read right, also where the calls of two threads are woven together.
func TestParseTrace(t *testing.T) {
	got := parseTrace(`10 sendfile(12<socket:[77]>, 15</d/logs/a/0.log>, [0] => [4096], 1048576) = 4096
10 sendfile(12<socket:[77]>, 15</d/logs/a/0.log>, [4096], 1048576 <unfinished ...>
11 write(13<socket:[78]>, "\0\0"..., 100 <unfinished ...>
10 <... sendfile resumed> => [8192])     = 4096
11 <... write resumed>)                  = 100
11 sendfile(12<socket:[77]>, 15</d/logs/a/0.log>, [8192], 10) = -1 EAGAIN (Resource temporarily unavailable)
11 write(2</dev/pts/0>, "x", 1)            = 1
11 pread64(15</d/logs/a/0.log>, "x = 5", 61, 0) = 61
11 read(15</d/logs/a/0.index>, "x", 61)    = 61
`)
	if got.sendfile != 8192 || got.sockets != 100 || len(got.logReads) != 1 || got.calls["sendfile"] != 3 {
		t.Errorf("got %+v", got)
	}
}

// countCalls reads the table of strace -c: calls by name.
func countCalls(table string) (map[string]int64, error) {
	calls := map[string]int64{}
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		n, err := strconv.ParseInt(f[3], 10, 64)
		if err == nil {
			calls[f[len(f)-1]] += n
		}
	}
	if len(calls) == 0 {
		return nil, fmt.Errorf("no table of calls: %s", bytes.TrimSpace([]byte(table)))
	}
	return calls, nil
}
