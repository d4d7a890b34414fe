package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// process is a server under measurement: leat, or a bare one.
type process struct {
	b   *testing.B
	cmd *exec.Cmd
}

func startProcess(b *testing.B, cmd *exec.Cmd) process {
	b.Helper()
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	p := process{b, cmd}
	b.Cleanup(p.kill)
	return p
}

// kill ends the process; again does nothing.
func (p process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p process) file(name string) string {
	return filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), name)
}

// cpu is the processor time of all threads so far, by the scheduler's account in nanoseconds.
func (p process) cpu() time.Duration {
	p.b.Helper()
	names, err := filepath.Glob(p.file("task/*/schedstat"))
	if err != nil {
		p.b.Fatal(err)
	}
	var total time.Duration
	for _, name := range names {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			p.b.Fatal(err)
		}
		ns, err := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
		if err != nil {
			p.b.Fatal(err)
		}
		total += time.Duration(ns)
	}
	return total
}

// resident is VmRSS in bytes: everything, also the pages of the binary.
func (p process) resident() int64 {
	p.b.Helper()
	text, err := os.ReadFile(p.file("status"))
	if err != nil {
		p.b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				p.b.Fatal(err)
			}
			return kib << 10
		}
	}
	p.b.Fatal("no VmRSS")
	return 0
}

// leat is a running `leat serve`.
type leat struct {
	process
	dir   string
	took  time.Duration // from the start of the process to the ready file
	HTTP  string        `json:"http"`
	Kafka string        `json:"kafka"`

	topics int // how many nextTopic has made
	args   []string
}

// startLeat starts a server on a fresh directory and waits until it is ready.
func startLeat(b *testing.B, args ...string) *leat {
	b.Helper()
	l := &leat{dir: filepath.Join(b.TempDir(), "data"), args: args, process: process{b: b}}
	l.again()
	return l
}

// again starts the server on its directory after the one before has ended, and waits until it is ready.
func (l *leat) again() {
	b := l.b
	b.Helper()
	ready := filepath.Join(filepath.Dir(l.dir), "ready.json")
	if err := os.Remove(ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		b.Fatal(err)
	}
	cmd := exec.Command(bin, append([]string{
		"serve", "--data-dir", l.dir, "--http-addr", "127.0.0.1:0", "--kafka-addr", "127.0.0.1:0", "--ops-addr", "127.0.0.1:0",
		"--log-level", "warn", "--ready-file", ready,
	}, l.args...)...)
	begun := time.Now()
	l.process = startProcess(b, cmd)
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for time.Since(begun) < 30*time.Second {
		text, err := os.ReadFile(ready)
		if err == nil {
			l.took = time.Since(begun)
			if err := json.Unmarshal(text, l); err != nil {
				b.Fatal(err)
			}
			return
		}
		<-tick.C
	}
	b.Fatal("leat is not ready after 30 s")
}

// stop ends the server and removes what it wrote.
func (l *leat) stop() {
	l.kill()
	if err := os.RemoveAll(l.dir); err != nil {
		l.b.Fatal(err)
	}
}

// bare is a server of this test binary, run as its own process.
type bare struct {
	process
	addr string
}

// startBare runs the role with arguments. It prints the address that it listens at.
func startBare(b *testing.B, role string, args ...string) *bare {
	b.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "LEAT_BENCH_ROLE="+role)
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	s := &bare{process: startProcess(b, cmd)}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	s.addr = strings.TrimSpace(line)
	return s
}

// listen binds a bare server's port and says where it listens.
func listen() (net.Listener, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintln(os.Stdout, ln.Addr())
	return ln, err
}

// serveConns is a bare server over TCP: serve has one connection each until the
// client goes.
func serveConns(serve func(*net.TCPConn) error) error {
	ln, err := listen()
	if err != nil {
		return err
	}
	for {
		nc, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer nc.Close()             //nolint:errcheck // the client has gone
			_ = serve(nc.(*net.TCPConn)) // it ends when the client goes
		}()
	}
}
