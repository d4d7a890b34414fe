package cli

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// script is what `leat completion` prints for a shell; the test is skipped where the shell is not installed.
func script(t *testing.T, shell string) string {
	t.Helper()
	if _, err := exec.LookPath(shell); err != nil {
		t.Skip(shell + " is not installed")
	}
	out, words, code := leat(t.Context(), t, nil, "completion", shell)
	if code != 0 || words != "" {
		t.Fatalf("exit %d, %s", code, words)
	}
	return out
}

// shell runs a program given on stdin.
func shell(t *testing.T, program string, command ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	var out, words bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(program), &out, &words
	if err := cmd.Run(); err != nil || words.Len() > 0 {
		t.Fatalf("%v: %s", err, words.String())
	}
	return out.String()
}

// completions is what each shell must offer for a line, the last word of which is being typed.
var completions = []struct {
	line string
	want []string
}{
	{"leat to", []string{"topic"}},
	{"leat topic ", []string{"alter", "config", "create", "delete", "describe", "list", "offsets"}},
	{"leat topic del", []string{"delete"}},
	{"leat topic create --par", []string{"--partitions"}},
	{"leat topic list --server x --js", []string{"--json"}},
	{"leat produce t --acks ", []string{"0", "1", "all"}},
	{"leat bench produce t --compression z", []string{"zstd"}},
	{"leat consume topic --exit", []string{"--exit-at-end"}},
	{"leat consume --from topic --exit", []string{"--exit-at-end"}},
	{"leat completion z", []string{"zsh"}},
	{"leat produce t --key-separator ", nil},
	{"leat consume t --gro", []string{"--group"}},
	{"leat group re", []string{"reset-offsets"}},
}

// TestBashCompletion proves that real bash offers the right words, also after --flag=, which it splits at the sign.
func TestBashCompletion(t *testing.T) {
	source := script(t, "bash")
	try := func(words []string) []string {
		var line strings.Builder
		for _, word := range words {
			line.WriteString(" '" + word + "'")
		}
		program := source + "\nCOMP_WORDS=(" + line.String() + ")\nCOMP_CWORD=$((${#COMP_WORDS[@]}-1))\n_leat\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
		return strings.Fields(shell(t, program, "bash", "--norc"))
	}
	for _, c := range completions {
		got := try(strings.Split(c.line, " "))
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
	}
	for _, words := range [][]string{{"leat", "produce", "t", "--acks", "=", "a"}, {"leat", "produce", "--acks", "=", "1", "--acks", "=", "al"}} {
		if got := try(words); !slices.Equal(got, []string{"all"}) {
			t.Errorf("%q: %q", words, got)
		}
	}
	if got := try([]string{"leat", "produce", "t", "--acks", "="}); len(got) != 3 {
		t.Errorf("after the sign: %q", got)
	}
}

// TestFishCompletion proves that real fish offers the right words.
func TestFishCompletion(t *testing.T) {
	source := script(t, "fish")
	for _, c := range completions {
		var got []string
		for line := range strings.Lines(shell(t, source+"\ncomplete -C '"+c.line+"'\n", "fish", "--no-config")) {
			word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			got = append(got, word)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
	}
}

// TestZshCompletion proves that real zsh accepts the script, and that the function walks a line to its place.
func TestZshCompletion(t *testing.T) {
	source := script(t, "zsh")
	stubs := "compdef() { :; }\n_describe() { local -a o; o=(\"${(@P)argv[-1]}\"); print -rl -- \"${(@)o%%:*}\"; }\ncompadd() { shift; print -rl -- \"$@\"; }\n" +
		"_message() { :; }\n_files() { print FILES; }\ncompset() { :; }\n"
	for line, want := range map[string]string{
		"leat topic ":                     "create list describe offsets config alter delete",
		"leat produce t --acks ":          "all 1 0",
		"leat produce t --acks=":          "all 1 0",
		"leat completion ":                "bash zsh fish",
		"leat help ":                      "produce consume topic partition group cluster bench completion version help",
		"leat produce t --key-separator ": "",
		"leat topic delete -":             "--help -h --version --server --timeout --progress --if-exists",
	} {
		quotedWords := "'" + strings.Join(strings.Split(line, " "), "' '") + "'"
		program := stubs + source + "\nwords=(" + quotedWords + ")\nCURRENT=${#words}\n_leat\n"
		if got := strings.Join(strings.Fields(shell(t, program, "zsh", "-f")), " "); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}
