package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// toolPatience is how long a test of tools may take, each of which starts a virtual machine.
const toolPatience = 2 * time.Minute

// javaSuites are what comes with Kafka besides the client.
var javaSuites = []suite{
	{"Kafka's tools", true, javaSuite("lib", toolTests)},
	{"Kafka Streams", true, javaSuite("lib", streamsTests)},
	{"Kafka Connect", true, javaSuite("connect", connectTests)},
}

// javaTest is a test of programs in Java.
type javaTest struct {
	name string
	run  func(*java) error
}

// java runs programs of Kafka's against a server.
type java struct {
	t      *testing.T
	ctx    context.Context
	addr   string
	jars   string // folder of the programs
	dir    string // for files of the test
	oracle *oracle
	failed bool
}

// javaSuite runs tests one after the other, each against a server of its own, with the jars of a folder.
func javaSuite(jars string, tests []javaTest) func(*testing.T, string, func(string, error)) (string, error) {
	return func(t *testing.T, _ string, report func(string, error)) (string, error) {
		if err := whole("java"); err != nil {
			return "", err
		}
		client, err := filepath.Glob(filepath.Join(installDir, "java", jars, "kafka-clients-*.jar"))
		if err != nil || len(client) != 1 {
			return "", errors.Join(fmt.Errorf("kafka-clients in %s: %q", jars, client), err)
		}
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), toolPatience)
				defer cancel()
				addr := serve(t)
				j := &java{t: t, ctx: ctx, addr: addr, jars: jars, dir: t.TempDir(), oracle: newOracle(t, addr)}
				err := test.run(j)
				j.failed = err != nil
				report(test.name, err)
			})
		}
		version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(client[0]), "kafka-clients-"), ".jar")
		return version, nil
	}
}

// command prepares a program, which ends at the latest with the test.
func (j *java) command(class string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(j.ctx, "java", slices.Concat(javaFlags, []string{"-cp", j.jars + "/*", class}, args)...)
	cmd.Dir = installDir + "/java"
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run lets a program end and returns what it wrote to its standard output.
func (j *java) run(input, class string, args ...string) (string, error) {
	cmd := j.command(class, args...)
	var out, words bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &words
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", class, strings.Join(args, " "), err, out.String(), words.String())
	}
	return out.String(), nil
}

// tool is run for one of org.apache.kafka.tools; the server's address comes with it.
func (j *java) tool(class string, args ...string) (string, error) {
	return j.run("", "org.apache.kafka.tools."+class, append([]string{"--bootstrap-server", j.addr}, args...)...)
}

// says runs a tool whose output must have all of the words.
func (j *java) says(words []string, class string, args ...string) error {
	out, err := j.tool(class, args...)
	if err != nil {
		return err
	}
	return hasAll(out, words...)
}

// silent runs a tool whose output must not have the word.
func (j *java) silent(word, class string, args ...string) error {
	out, err := j.tool(class, args...)
	if err == nil && strings.Contains(out, word) {
		err = fmt.Errorf("%q is in:\n%s", word, out)
	}
	return err
}

// hasAll is nil for a text that has all the words. Any white space is one space.
func hasAll(text string, words ...string) error {
	plain := strings.Join(strings.Fields(text), " ")
	for _, w := range words {
		if !strings.Contains(plain, w) {
			return fmt.Errorf("%q is not in:\n%s", w, text)
		}
	}
	return nil
}

// file writes a file of the test and returns its path.
func (j *java) file(name, text string) (string, error) {
	path := filepath.Join(j.dir, name)
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// until polls until ok returns nil or the test's time is up.
func (j *java) until(what string, ok func() error) error {
	c := check{ctx: j.ctx}
	return c.until(what, ok)
}

// service is a program that runs until it is stopped.
type service struct {
	cmd   *exec.Cmd
	words *lockedBuffer
	ended chan struct{} // closed when the program has been waited for
	err   error         // of that wait
}

// start runs a program on its own until stop or kill, or the end of the test.
func (j *java) start(class string, args ...string) (*service, error) {
	s := &service{cmd: j.command(class, args...), words: &lockedBuffer{}, ended: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = s.words, s.words
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(s.ended)
		s.err = s.cmd.Wait()
	}()
	j.t.Cleanup(func() {
		s.kill()
		if j.failed {
			j.t.Logf("output of %s:%s", class, s.words.last())
		}
	})
	return s, nil
}

// stop asks the program to end, and waits.
func (s *service) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.ended
	// A virtual machine that ends for the signal says so by its code.
	var exit *exec.ExitError
	if s.err == nil || errors.As(s.err, &exit) && exit.ExitCode() == 128+int(syscall.SIGTERM) {
		return nil
	}
	return fmt.Errorf("the program ended badly: %w%s", s.err, s.words.last())
}

// kill ends the program at once.
func (s *service) kill() {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.ended
}
