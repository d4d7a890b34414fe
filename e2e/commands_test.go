package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	// fenced is a block between fences, with its language.
	fenced = regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$")
	// notPasted begins the blocks that run the server or the tests, or are no commands.
	notPasted = regexp.MustCompile(`^(make|[{]|const|main\.go)`)
)

// pasted runs every block of shell commands of a page of Markdown in one shell, as somebody does who pastes them one after the
// other, against this server, and returns what they print. Blocks that are not commands, or that run the server or the
// tests, are left out. Any command that fails ends it, an error over HTTP too; only a stream may be cut by its time.
func (s *server) pasted(page string) string {
	s.t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		s.t.Fatal(err)
	}
	script := `set -eu
curl() {
	code=0
	command curl --silent --fail "$@" || code=$?
	case " $* " in *' --max-time '*) [ $code = 28 ];; *) return $code;; esac
}
`
	blocks := 0
	for _, block := range fenced.FindAllStringSubmatch(string(text), -1) {
		if block[1] != "" && block[1] != "sh" || notPasted.MatchString(block[2]) {
			continue
		}
		blocks++
		script += block[2]
	}
	if blocks == 0 {
		s.t.Fatalf("%s has no commands", page)
	}
	script = strings.NewReplacer(
		"127.0.0.1:8080", s.HTTP, "127.0.0.1:9092", s.Kafka, "127.0.0.1:9644", s.Ops,
		"bin/leat ", bin+" ", "curl -N ", "curl -N --max-time 1 ", "wait=20s", "wait=1s", "/tmp/cpu.pprof", filepath.Join(s.t.TempDir(), "cpu.pprof"),
	).Replace(script)
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script)
	shell.Dir = ".."
	shell.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	shell.Env = append(os.Environ(), "LEAT_SERVER="+s.Kafka)
	words := &lockedBuffer{}
	shell.Stderr = words
	out, err := shell.Output()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s\n%s", page, err, tail(string(out), 2000), tail(words.String(), 2000))
	}
	return string(out)
}

// inOrder fails unless a text has all parts, one behind the other.
func inOrder(t *testing.T, page, text string, parts ...string) {
	t.Helper()
	rest := text
	for _, part := range parts {
		i := strings.Index(rest, part)
		if i < 0 {
			t.Errorf("%s: there is no %s where it should be in\n%s", page, part, tail(text, 4000))
			return
		}
		rest = rest[i+len(part):]
	}
}

// TestReadmeCommands proves that every command of the README works when it is pasted, in order, and does what is said.
func TestReadmeCommands(t *testing.T) {
	for _, tool := range []string{"kcat", "node"} {
		needTool(t, tool)
	}
	s := start(t)
	out := s.pasted(filepath.Join("..", "README.md"))
	inOrder(t, "README.md", out, `"total":19.90`, "data: {", `"specversion":"1.0"`, "Idempotency-Replayed: true", `"total":19.90`, `"lease_id"`, `"committed_offset":4`, `"type":"ready"`, `"type":"data"`)
}

// TestGuideCommands proves the same of the guides of the documentation, in the order in which they are read.
func TestGuideCommands(t *testing.T) {
	s := start(t)
	for _, guide := range []struct {
		name string
		want []string
	}{
		{"index", []string{`"value_str":"one"`, `"value_str":"three"`}},
		{"produce", []string{`"count":2`}},
		{"consume", []string{`"next_offset"`, `"high_watermark"`}},
		{"groups", []string{`"lease_id"`, `"total":19.90`, `"committed_offset":2`}},
		{"idempotency", []string{"Idempotency-Replayed: true"}},
		{"filters", []string{`"total":19.90`}},
		{"cloudevents", []string{`"count":1`, `"type":"order.placed"`}},
		{"operating", []string{`86400000`}},
	} {
		page := filepath.Join("..", "web", "docs", guide.name+".md")
		inOrder(t, guide.name, s.pasted(page), guide.want...)
	}
}
