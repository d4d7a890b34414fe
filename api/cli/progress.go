package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Reporting is the flag of commands that may take long.
type Reporting struct {
	Progress bool `env:"-" help:"Say on stderr how far it is, once a second; by default only if stderr is a terminal."`
}

// statusLine is a writer of words that many may use, with one line at its end that can be replaced: on a terminal the line
// is erased before anything else is written, elsewhere each state of it is a line of its own.
type statusLine struct {
	terminal bool
	mu       struct {
		sync.Mutex
		out   io.Writer
		shown bool
	}
}

const eraseLine = "\r\x1b[K"

func newStatusLine(out io.Writer) *statusLine {
	s := &statusLine{terminal: isTerminal(out)}
	s.mu.out = out
	return s
}

// Write writes words, without the status.
func (s *statusLine) Write(words []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseLocked()
	return s.mu.out.Write(words)
}

// show replaces the status; "" takes it away.
func (s *statusLine) show(status string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseLocked()
	if status == "" {
		return
	}
	end := "\n"
	if s.terminal {
		end, s.mu.shown = "", true
	}
	_, _ = io.WriteString(s.mu.out, status+end)
}

func (s *statusLine) eraseLocked() {
	if s.mu.shown {
		_, _ = io.WriteString(s.mu.out, eraseLine)
	}
	s.mu.shown = false
}

// isTerminal tells whether someone looks at w.
func isTerminal(w any) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// progress counts what was done and shows it once a second. A nil progress counts nothing.
type progress struct {
	line        *statusLine
	what, unit  string // "produced", "record"
	began       time.Time
	done, bytes atomic.Int64
	end, ended  chan struct{}
}

const progressInterval = time.Second

// progress starts to report, if the user wants it: by --progress, or by looking at stderr. shared says that data goes to
// stdout, which must not be the same terminal.
func (r Reporting) progress(s *session, what, unit string, shared bool) *progress {
	if !r.Progress && (!s.lines.terminal || shared && isTerminal(s.std.Out)) {
		return nil
	}
	p := &progress{
		line: s.lines, what: what, unit: unit, began: time.Now(),
		end: make(chan struct{}), ended: make(chan struct{}),
	}
	go p.run()
	return p
}

func (p *progress) run() {
	defer close(p.ended)
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-p.end:
			return
		case now := <-tick.C:
			p.line.show(p.status(now))
		}
	}
}

// add counts one thing of so many bytes.
func (p *progress) add(bytes int64) {
	if p != nil {
		p.done.Add(1)
		p.bytes.Add(bytes)
	}
}

// stop takes the status away and says how it went as a whole.
func (p *progress) stop() {
	if p == nil {
		return
	}
	close(p.end)
	<-p.ended
	p.line.show("")
	_, _ = fmt.Fprintln(p.line, p.status(time.Now()))
}

// status is the one form of progress, for example `leat: produced 120000 records in 2s: 60000 records/s, 6.0 MB/s`.
func (p *progress) status(now time.Time) string {
	took, done, bytes := now.Sub(p.began), p.done.Load(), p.bytes.Load()
	seconds := max(took.Seconds(), 1e-9)
	s := fmt.Sprintf("leat: %s %s in %.1fs: %.0f %ss/s", p.what, count(done, p.unit), took.Seconds(), float64(done)/seconds, p.unit)
	if bytes > 0 {
		s += fmt.Sprintf(", %.1f MB/s", float64(bytes)/seconds/1e6)
	}
	return s
}
