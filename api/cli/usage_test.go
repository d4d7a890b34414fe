package cli

import (
	"strings"
	"testing"
)

// TestHelp proves that help comes by asking for it in any of the usual ways, and that a group without a command shows
// what there is, on stderr and as a wrong command line.
func TestHelp(t *testing.T) {
	for _, c := range []struct {
		args     string
		code     int
		contains []string
	}{
		{"", 2, []string{"Usage: leat <command>", "topic create", "consume", "help"}},
		{"topic", 2, []string{"Usage: leat topic <command>", "topic create", "Add partitions to a topic"}},
		{"bench", 2, []string{"Usage: leat bench <command>", "bench consume"}},
		{"help", 0, []string{"Usage: leat <command>", "topic create"}},
		{"help topic", 0, []string{"Usage: leat topic <command>", "topic create"}},
		{"help topic create", 0, []string{"Usage: leat topic create <topic>", "--partitions=N", "Show this help."}},
		{"topic create --help", 0, []string{"Usage: leat topic create <topic>", "--partitions=N"}},
		{"help completion", 0, []string{"    bash  source <(leat completion bash)    ~/.bashrc\n"}},
	} {
		out, words, code := leat(t.Context(), t, nil, strings.Fields(c.args)...)
		text := out
		if c.code != 0 {
			text = words
		}
		if code != c.code || out != "" && words != "" {
			t.Errorf("leat %s: exit %d, %q, %q; want %d", c.args, code, out, words, c.code)
		}
		for _, want := range c.contains {
			if !strings.Contains(text, want) {
				t.Errorf("leat %s: no %q in\n%s", c.args, want, text)
			}
		}
	}
}

// TestMisused proves the words for a command line that cannot be meant: one line that names the flag, says what it wants,
// and where help is.
func TestMisused(t *testing.T) {
	for args, want := range map[string]string{
		"topic frobnicate":                       `leat: unexpected argument frobnicate; see leat topic --help`,
		"help frobnicate":                        `help frobnicate: unexpected argument frobnicate`,
		"consume":                                `leat: expected "<topic>"; see leat consume --help`,
		"consume t --max many":                   `leat: --max: want a whole number, not "many"; see leat consume --help`,
		"consume t --max 99999999999999999999":   `leat: --max: 99999999999999999999 is out of range; see leat consume --help`,
		"consume t --partition 3000000000":       `leat: --partition: 3000000000 is out of range; see leat consume --help`,
		"consume t --partition -1":               `leat: --partition: want a whole number; see leat consume --help`,
		"consume t --max":                        `leat: --max: want a whole number; see leat consume --help`,
		"consume t --from":                       `leat: --from: want a value; see leat consume --help`,
		"consume t --timeout soon":               `leat: --timeout: want a time such as 500ms, 30s or 2m, not "soon"; see leat consume --help`,
		"bench produce t --rate fast":            `leat: --rate: want a number, not "fast"; see leat bench produce --help`,
		"consume t --server localhost":           `--server "localhost" is not HOST:PORT, for example 127.0.0.1:9092`,
		"consume t --server localhost:kafka":     `--server "localhost:kafka" is not HOST:PORT, for example 127.0.0.1:9092`,
		"consume t --server 127.0.0.1:99999":     `--server "127.0.0.1:99999" is not HOST:PORT, for example 127.0.0.1:9092`,
		"topic list --server ::1":                `--server "::1" is not HOST:PORT, for example 127.0.0.1:9092`,
		"partition delete-records t --before 17": `leat: missing flags: --partition=N; see leat partition delete-records --help`,
	} {
		out, words, code := leat(t.Context(), t, nil, strings.Fields(args)...)
		if code != 2 || out != "" || strings.TrimSuffix(words, "\n") != want {
			t.Errorf("leat %s: exit %d, %q, %q; want 2, %q", args, code, out, words, want)
		}
	}
}
