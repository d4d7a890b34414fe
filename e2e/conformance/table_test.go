package conformance

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// tablePath is the generated table.
const tablePath = "../../api/kafka/CLIENTS.md"

// What a field of the table says.
const (
	pass    = "pass"
	fail    = "fail"
	absent  = "–"
	without = "?" // the client could not be had
)

// ledger collects the results of one run.
type ledger struct {
	mu       sync.Mutex
	versions map[string]string
	errors   map[string]string            // of what could not be had
	results  map[string]map[string]string // by client or suite, then by feature or test
	order    map[string][]string          // the tests of a suite
}

func newLedger() *ledger {
	return &ledger{versions: map[string]string{}, errors: map[string]string{}, results: map[string]map[string]string{}, order: map[string][]string{}}
}

func (l *ledger) set(column, row, result string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.results[column] == nil {
		l.results[column] = map[string]string{}
	}
	if _, ok := l.results[column][row]; !ok {
		l.order[column] = append(l.order[column], row)
	}
	l.results[column][row] = result
}

func (l *ledger) version(column, version string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.versions[column] = version
}

func (l *ledger) lost(column, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	reason, _, _ = strings.Cut(reason, "\n")
	l.errors[column] = reason
}

// complete reports whether every client and every suite has all its results.
func (l *ledger) complete() bool {
	for _, cl := range clients() {
		if l.errors[cl.name] == "" && len(l.results[cl.name]) != len(features) {
			return false
		}
	}
	return !slices.ContainsFunc(suites(), func(s suite) bool { return l.errors[s.name] == "" && l.versions[s.name] == "" })
}

// settle writes the table when everything ran, and else compares what ran with it.
func (l *ledger) settle(t *testing.T) {
	t.Helper()
	if l.complete() && long() {
		text := l.render()
		old, err := os.ReadFile(tablePath)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if bytes.Equal(old, text) {
			return
		}
		if err := os.WriteFile(tablePath, text, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Log("CLIENTS.md has changed")
		return
	}
	if long() {
		return // a part of the long form
	}
	text, err := os.ReadFile(tablePath)
	if err != nil {
		t.Fatal(err)
	}
	written := parseTables(string(text))
	var differ []string
	for column, rows := range l.results {
		for row, result := range rows {
			if was := written[key{column, row}]; was != result {
				differ = append(differ, fmt.Sprintf("%s, %s: %q, was %q", column, row, result, was))
			}
		}
	}
	if len(differ) > 0 {
		slices.Sort(differ)
		t.Errorf("CLIENTS.md is not what was seen; run make conformance\n%s", strings.Join(differ, "\n"))
	}
}

const preamble = `# Kafka clients

Written by ` + "`make conformance`" + ` (e2e/conformance); do not edit. Each client does against a running server what the row says. What it
writes is read by itself and by a reference client, what it reads was written by the reference, and both are compared byte for byte.

**pass** · **fail**: see the reasons below · **–** the client has no call for it · **?** the client could not be had
`

// render is the whole file.
func (l *ledger) render() []byte {
	var b bytes.Buffer
	b.WriteString(preamble)
	b.WriteString("\n| |")
	for _, cl := range clients() {
		fmt.Fprintf(&b, " %s |", cl.name)
	}
	b.WriteString("\n|---" + strings.Repeat("|---", len(clients())) + "|\n| version |")
	for _, cl := range clients() {
		fmt.Fprintf(&b, " %s |", orElse(l.versions[cl.name], without))
	}
	b.WriteByte('\n')
	for _, f := range features {
		fmt.Fprintf(&b, "| %s |", f.name)
		for _, cl := range clients() {
			fmt.Fprintf(&b, " %s |", orElse(l.results[cl.name][f.name], without))
		}
		b.WriteByte('\n')
	}
	if len(suites()) > 0 {
		b.WriteString("\n## Tools, and the tests of others\n\n| | test | |\n|---|---|---|\n")
	}
	for _, s := range suites() {
		name := strings.TrimSpace(s.name + " " + l.versions[s.name])
		for _, test := range l.order[s.name] {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", name, test, l.results[s.name][test])
			name = ""
		}
		if l.errors[s.name] != "" {
			fmt.Fprintf(&b, "| %s | all | %s |\n", name, without)
		}
	}
	l.reasons(&b)
	return b.Bytes()
}

// reasons lists what fails and what could not be had, in the order of the tables.
func (l *ledger) reasons(b *bytes.Buffer) {
	var lines []string
	column := func(name string, rows []string) {
		if reason := l.errors[name]; reason != "" {
			lines = append(lines, fmt.Sprintf("* **%s** could not be had: %s", name, reason))
		}
		for _, row := range rows {
			if l.results[name][row] == fail {
				lines = append(lines, fmt.Sprintf("* **%s**, %s: %s", name, row, orElse(allowed[key{name, row}], "not known")))
			}
		}
	}
	for _, cl := range clients() {
		var rows []string
		for _, f := range features {
			rows = append(rows, f.name)
		}
		column(cl.name, rows)
	}
	for _, s := range suites() {
		column(s.name, l.order[s.name])
	}
	if len(lines) > 0 {
		fmt.Fprintf(b, "\n## What fails, and why\n\n%s\n", strings.Join(lines, "\n"))
	}
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// parseTables reads back what render has written.
func parseTables(text string) map[key]string {
	out := map[key]string{}
	var columns []string
	var suiteName string
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 4 {
			columns = nil
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		cells = cells[1 : len(cells)-1]
		switch {
		case strings.HasPrefix(cells[0], "---"):
		case columns == nil:
			columns, suiteName = cells[1:], ""
		case len(columns) == 2 && columns[0] == "test":
			if cells[0] != "" {
				suiteName = cells[0]
			}
			for _, s := range suites() {
				if suiteName == s.name || strings.HasPrefix(suiteName, s.name+" ") {
					out[key{s.name, cells[1]}] = cells[2]
				}
			}
		default:
			for i, c := range columns {
				out[key{c, cells[0]}] = cells[1+i]
			}
		}
	}
	return out
}

// TestTable proves that the quick form reads back what the long form has written, and that the list of what may fail
// names fields that there are.
func TestTable(t *testing.T) {
	l := newLedger()
	for i, cl := range clients() {
		l.version(cl.name, fmt.Sprint("1.", i))
		for j, f := range features {
			l.set(cl.name, f.name, []string{pass, fail, absent}[(i+j)%3])
		}
	}
	for _, s := range suites() {
		l.version(s.name, "2.0")
		l.set(s.name, "TestOne", pass)
		l.set(s.name, "TestTwo", fail)
	}
	if !l.complete() {
		t.Error("a full ledger is not complete")
	}
	text := string(l.render())
	got := parseTables(text)
	for column, rows := range l.results {
		for row, want := range rows {
			if got[key{column, row}] != want {
				t.Errorf("%s, %s is read back as %q, want %q", column, row, got[key{column, row}], want)
			}
		}
	}
	for k, reason := range allowed {
		_, known := l.results[k.column]
		if !known || reason == "" {
			t.Errorf("%v may fail for the reason %q, but there is no such client or no reason", k, reason)
		}
	}
	if t.Failed() {
		t.Log(text)
	}
}
