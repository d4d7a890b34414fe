package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// oldestNode is the first major version of Node that can drive the browser.
const oldestNode = 20

// needBrowser returns the browser to use. It fails in CI, and skips elsewhere, when what the browser tests stand on is
// missing.
func needBrowser(t *testing.T) string {
	t.Helper()
	needTool(t, "node")
	missing := func(what string) {
		t.Helper()
		if os.Getenv("CI") == "true" {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	version, err := exec.Command("node", "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(string(version), "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldestNode {
		missing(fmt.Sprintf("Node is %s, but %d or newer is needed", strings.TrimSpace(string(version)), oldestNode))
	}
	for _, name := range []string{"playwright-core", "axe-core"} {
		if _, err := os.Stat(filepath.Join("browser", "node_modules", name)); err != nil {
			missing(name + " is missing; make test installs it")
		}
	}
	for _, name := range []string{"chromium", "google-chrome"} {
		if browser, err := exec.LookPath(name); err == nil {
			return browser
		}
	}
	missing("chromium is missing; make test installs it")
	return ""
}

// otherOrigin serves an empty page, so that a browser has a page of another origin.
func otherOrigin(t *testing.T) string {
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!doctype html><title>elsewhere</title>")
	}))
	t.Cleanup(site.Close)
	return site.URL
}

// TestTailPage proves, in a real browser, that the example page shows every record of a topic once and in order, across
// a kill and a stop of the server, a pause, deleted records and a deleted topic, and never those of a topic that was left;
// that it says what it does; that the commands of the first page work; and that only pages of the server or of
// an allowed origin get a socket. What is checked is in browser/tail.mjs; this side does to the server what it asks.
func TestTailPage(t *testing.T) {
	browser := needBrowser(t)
	foreign, allowed := otherOrigin(t), otherOrigin(t)
	s := start(t, "--allow-origin", allowed)
	s.args = append(s.args, "--http-addr", s.HTTP) // the page knows the server by its address

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	profile := t.TempDir()
	node := exec.CommandContext(ctx, "node", filepath.Join("browser", "tail.mjs"), browser, profile, "http://"+s.HTTP, foreign, allowed)
	node.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	node.Env = append(os.Environ(), "HOME="+profile)
	words := &lockedBuffer{}
	node.Stderr = words
	replies, err := node.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	orders, err := node.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(orders)
	for lines.Scan() {
		reply := "done"
		if err := s.obey(ctx, lines.Text()); err != nil {
			reply = err.Error()
		}
		if _, err := fmt.Fprintln(replies, reply); err != nil {
			break // Wait says how it ended
		}
	}
	if err := node.Wait(); err != nil {
		t.Errorf("%v\n%s", err, words)
	}
}

// TestDocsPages proves, in a real browser, that the documentation can be read: every page, link and anchor is there, and
// so is every place to which an error leads; nothing is asked of another host; there are no errors of the page or its policy
// and none that axe-core finds, in light and dark; nothing is wider than a telephone; and the keyboard is seen. What is checked is
// in browser/docs.mjs.
func TestDocsPages(t *testing.T) {
	browser := needBrowser(t)
	s := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	profile := t.TempDir()
	node := exec.CommandContext(ctx, "node", filepath.Join("browser", "docs.mjs"), browser, profile, "http://"+s.HTTP)
	node.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	node.Env = append(os.Environ(), "HOME="+profile)
	if words, err := node.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, words)
	}
}

// obey carries out an order of a browser script.
func (s *server) obey(ctx context.Context, order string) error {
	verb, rest, _ := strings.Cut(order, " ")
	switch verb {
	case "kill":
		s.kill()
	case "freeze":
		return s.freeze()
	case "stop":
		s.stop()
	case "start":
		s.restart()
	case "trim":
		var topic string
		var partition int32
		var offset int64
		if _, err := fmt.Sscan(rest, &topic, &partition, &offset); err != nil {
			return err
		}
		return s.trim(ctx, topic, partition, offset)
	default:
		return fmt.Errorf("unknown order %q", order)
	}
	return nil
}

// freeze has the process stand still with its connections open, until it is killed.
func (s *server) freeze() error {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	eventually(s.t, "the process stands still", func() error {
		status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.pid()), "status"))
		if err == nil && !strings.Contains(string(status), "\nState:\tT") {
			err = errors.New("it runs")
		}
		return err
	})
	return nil
}

// trim deletes the records of a partition below an offset, as a Kafka client does.
func (s *server) trim(ctx context.Context, topic string, partition int32, offset int64) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Kafka))
	if err != nil {
		return err
	}
	defer client.Close()
	var offsets kadm.Offsets
	offsets.AddOffset(topic, partition, offset, -1)
	done, err := kadm.NewClient(client).DeleteRecords(ctx, offsets)
	if err != nil {
		return err
	}
	return done.Error()
}
