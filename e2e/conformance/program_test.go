package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a client outside Go. A process that does not answer in time is killed, and the next ask starts another.
type process struct {
	t       *testing.T
	argv    []string
	dir     string
	addr    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	stderr  *lockedBuffer
	running bool
}

// program returns what starts instances of a client: a process of argv in dir.
func program(dir string, argv ...string) func(t *testing.T, addr string) (driver, error) {
	return func(t *testing.T, addr string) (driver, error) {
		p := &process{t: t, argv: argv, dir: dir, addr: addr}
		return p, p.start()
	}
}

func (p *process) start() error {
	p.cmd = exec.Command(p.argv[0], p.argv[1:]...)
	p.cmd.Dir = p.dir
	p.cmd.Env = append(os.Environ(), "LEAT_BOOTSTRAP="+p.addr)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.stderr = &lockedBuffer{}
	p.cmd.Stderr = p.stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	p.in, p.out = in, bufio.NewReaderSize(out, 1<<20)
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.running = true
	return nil
}

func (p *process) do(ctx context.Context, q ask) (reply, error) {
	if !p.running {
		if err := p.start(); err != nil {
			return reply{}, err
		}
	}
	unblock := context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })
	r, err := p.exchange(q)
	if !unblock() || err != nil {
		p.end()
		return r, fmt.Errorf("%s: no answer: %w%s", q.Op, errors.Join(err, ctx.Err()), p.stderr.last())
	}
	switch {
	case r.NotOffered != "":
		return r, notOffered(r.NotOffered)
	case r.Error != "":
		return r, errors.New(r.Error)
	}
	return r, nil
}

func (p *process) exchange(q ask) (r reply, err error) {
	line, err := json.Marshal(q)
	if err != nil {
		return r, err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return r, err
	}
	answer, err := p.out.ReadBytes('\n')
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(answer, &r); err != nil {
		return r, fmt.Errorf("%w in %q", err, answer)
	}
	return r, nil
}

// end waits for the process, which its input has told to end, or which is dead.
func (p *process) end() {
	if !p.running {
		return
	}
	p.running = false
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// close lets the process end by itself for a while, so that a client says good-bye.
func (p *process) close() {
	if !p.running {
		return
	}
	_ = p.in.Close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), closePatience)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })()
	_, _ = io.Copy(io.Discard, p.out) // until it has ended
	p.end()
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

// last is the end of what was written, on lines of its own.
func (b *lockedBuffer) last() string {
	text := b.String()
	if text == "" {
		return ""
	}
	return "\n" + text[max(0, len(text)-4<<10):]
}

// TestProgram proves what a program's answers mean, and that one which hangs is killed and started again.
func TestProgram(t *testing.T) {
	const script = `while read -r line; do case $line in
		*'"op":"hello"'*) echo "{\"version\":\"$LEAT_BOOTSTRAP\"}";;
		*'"op":"metadata"'*) echo '{"error":"no such thing"}';;
		*'"op":"read"'*) exec sleep 60;;
		*'"op":"leave"'*) exit 3;;
		*) echo '{"not_offered":"never heard of it"}';;
	esac; done`
	d, err := program(t.TempDir(), "sh", "-c", script)(t, "host:1")
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	for _, c := range []struct{ op, want string }{
		{"hello", ""}, {"metadata", "no such thing"}, {"poll", "never heard of it"}, {"leave", "no answer"}, {"hello", ""}, {"read", "deadline"}, {"hello", ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if c.op == "read" {
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		}
		r, err := d.do(ctx, ask{Op: c.op})
		cancel()
		if c.want == "" && (err != nil || r.Version != "host:1") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %+v, %v; want %q", c.op, r, err, c.want)
		}
		if errors.Is(err, errNotOffered) != (c.op == "poll") {
			t.Errorf("%s: %v", c.op, err)
		}
	}
}
