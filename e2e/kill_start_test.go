package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// epoch is the leader epoch of a partition.
func (s *server) epoch(topic string, partition int32) int32 {
	s.t.Helper()
	m, err := s.admin().Metadata(s.t.Context(), topic)
	if err != nil {
		s.t.Fatal(err)
	}
	return m.Topics[topic].Partitions[partition].LeaderEpoch
}

// killStarting starts a process and kills it within a few milliseconds, most often before it is ready.
func (s *server) killStarting(after time.Duration) {
	s.t.Helper()
	s.launch()
	select {
	case <-s.exited:
		s.t.Fatalf("leat ended by itself: %v\n%s", s.cmd.ProcessState, s.stderr)
	case <-time.After(after):
	}
	s.kill()
}

// has wants the values "0", "1" … in a partition, and the next one to get the next offset.
func (s *server) has(topic string, count *int64) {
	s.t.Helper()
	w := s.wire()
	var next int64
	for _, b := range mustSplit(s.t, w.fetchAll(topic, 0, 0)) {
		for _, v := range b.values(s.t) {
			if v != fmt.Sprint(next) {
				s.t.Fatalf("%s: offset %d is %q", topic, next, clip(v))
			}
			next++
		}
	}
	if next != *count {
		s.t.Fatalf("%s: %d records, want %d", topic, next, *count)
	}
	if base := w.mustProduce(topic, 0, encode(s.t, kgo.NoCompression(), values(1, fmt.Sprint(next)))); base != next {
		s.t.Fatalf("%s: the next record got offset %d, want %d", topic, base, next)
	}
	*count++
}

// TestCase39KillsDuringStart proves that kills while a server starts after a clean stop do not make a later start
// believe that nothing happened since: what is torn is cut and told, what is damaged is told and neither cut nor
// written over, and the end offset is right.
func TestCase39KillsDuringStart(t *testing.T) {
	s := start(t)
	s.createTopic("whole", 1)
	s.createTopic("torn", 1)
	s.createTopic("damaged", 1)
	w := s.wire()
	counts := map[string]*int64{"whole": new(int64), "torn": new(int64), "damaged": new(int64)}
	file := map[string]string{}
	for topic, count := range counts {
		known := fmt.Sprint(s.logFiles())
		for ; *count < 10; *count++ {
			w.mustProduce(topic, 0, encode(t, kgo.NoCompression(), values(1, fmt.Sprint(*count))))
		}
		for _, name := range s.logFiles() {
			if !strings.Contains(known, name) {
				file[topic] = name
			}
		}
	}
	epoch := s.epoch("torn", 0)
	s.stop()
	half := encode(t, kgo.NoCompression(), values(1, strings.Repeat("x", 400)))
	f, err := os.OpenFile(file["torn"], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(half[:len(half)-5]); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file["damaged"])
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Close(), os.Truncate(file["damaged"], info.Size()-5)); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(file["damaged"])
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		s.killStarting(5*time.Millisecond + rand.N(75*time.Millisecond))
	}
	s.restart()
	words := s.stderr.String()
	if !strings.Contains(words, "did not end with a clean stop") {
		t.Errorf("nothing is told of a recovery:\n%s", words)
	}
	if aside, err := filepath.Glob(filepath.Join(s.dir, "quarantine", "*")); err != nil || len(aside) != 1 {
		t.Errorf("the quarantine has %q, %v, want what was torn", aside, err)
	} else if kept, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(kept, half[:len(half)-5]) {
		t.Errorf("the quarantine has %d bytes of %d that were torn, %v", len(kept), len(half)-5, err)
	}
	if !strings.Contains(words, "level=ERROR") || !strings.Contains(words, filepath.Base(filepath.Dir(file["damaged"]))) {
		t.Errorf("the damage is not told with its file:\n%s", words)
	}
	if now := s.epoch("torn", 0); now <= epoch {
		t.Errorf("leader epoch %d after kills, %d before", now, epoch)
	}
	s.has("whole", counts["whole"])
	s.has("torn", counts["torn"])
	w = s.wire()
	for next := range int64(10) {
		p := w.fetch("damaged", 0, next, 1)
		if lost := next == 9; lost && p.ErrorCode != codeCorruptMessage || !lost && (p.ErrorCode != codeNone || mustSplit(t, p.RecordBatches)[0].values(t)[0] != fmt.Sprint(next)) {
			t.Errorf("offset %d of the damaged partition: code %d", next, p.ErrorCode)
		}
	}
	if end := w.end("damaged", 0); end != 10 {
		t.Errorf("the damaged partition ends at %d, want 10", end)
	}
	if p := w.produce("damaged", 0, -1, encode(t, kgo.NoCompression(), values(1, "in the place of another"))); p.ErrorCode != codeStorageError {
		t.Errorf("a produce to the damaged partition: code %d, base offset %d", p.ErrorCode, p.BaseOffset)
	}
	s.stop()
	if now, err := os.ReadFile(file["damaged"]); err != nil || string(now) != string(before) {
		t.Errorf("the damaged log was changed: %d bytes of %d, %v", len(now), len(before), err)
	}
}

// traced starts a process that strace kills by a rule, and returns when that is done or, if no call fits the rule, when
// the server is ready and killed.
func (s *server) traced(rule ...string) (killed bool) {
	s.t.Helper()
	ready := filepath.Join(s.t.TempDir(), "ready.json")
	args := append([]string{"-f", "-o", "/dev/null"}, rule...)
	cmd := exec.Command("strace", append(append(args, bin), serveArgs(s.dir, "--ready-file", ready)...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // strace ends as its server did
	}()
	eventually(s.t, "the server to be killed or ready", func() error {
		select {
		case <-exited:
			killed = true
			return nil
		default:
		}
		var a addresses
		text, err := os.ReadFile(ready)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(text, &a); err != nil {
			return err
		}
		return syscall.Kill(a.PID, syscall.SIGKILL)
	})
	<-exited
	return killed
}

// TestKillsAtEachStep proves that a start may be killed before any of its calls that change the directory: while the
// mark of the clean stop is there nothing else has changed, and once it is gone the next start takes the stop for
// unclean and gives the partition a new epoch. Nothing is lost either way.
func TestKillsAtEachStep(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1, "segment.bytes=20000")
	if !canTrace(t) {
		t.Skip("no trace is allowed here")
	}
	mark := filepath.Join(s.dir, "CLEAN")
	rules := [][]string{ // before the mark goes, and before that is durable
		{"-P", mark, "-e", "inject=unlink,unlinkat:signal=KILL"},
		{"-P", s.dir, "-e", "inject=fsync:signal=KILL"},
	}
	var more [][]string // each counts the calls of one thread, which may be any
	for call, most := range map[string]int{
		"openat": 12, "fsync": 6, "getdents64": 4, "newfstatat": 6, "pread64": 6, "unlinkat": 2, "pwrite64": 2, "write": 3, "renameat": 1, "ftruncate": 1, "statfs": 1,
	} {
		for n := range most {
			more = append(more, []string{"-e", "trace=" + call, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n+1)})
		}
	}
	if !long() {
		rand.Shuffle(len(more), func(i, j int) { more[i], more[j] = more[j], more[i] })
		more = more[:10]
	}
	rules = append(rules, more...)
	var count int64
	kills, clean := 0, 0
	for i, rule := range rules {
		s.has("t", &count)
		epoch := s.epoch("t", 0)
		s.stop()
		before := fingerprint(t, s.dir)
		if s.traced(rule...) {
			kills++
		}
		_, err := os.Stat(mark)
		if marked := err == nil; marked {
			if clean++; fingerprint(t, s.dir) != before {
				t.Errorf("%q: the mark of the clean stop is there, but the directory has changed", rule)
			}
			s.restart()
			if now := s.epoch("t", 0); now != epoch {
				t.Errorf("%q: epoch %d after a start that changed nothing, %d before", rule, now, epoch)
			}
		} else {
			s.restart()
			if now := s.epoch("t", 0); now <= epoch {
				t.Errorf("%q: epoch %d after a start that was killed, %d before", rule, now, epoch)
			}
		}
		if i == 0 && err != nil || i == 1 && err == nil {
			t.Errorf("%q: the mark of the clean stop: %v", rule, err)
		}
	}
	if kills < 3 || clean == 0 {
		t.Errorf("%d kills, %d of them before the mark went", kills, clean)
	}
	t.Logf("%d starts were killed, %d of them before the mark of the clean stop went", kills, clean)
	s.has("t", &count)
}

// TestStopUnderPolls proves that SIGTERM while a thousand long polls wait and producers write ends in time: every poll
// is answered or closed, everything answered is there, and the next start finds a clean stop and reads no log.
func TestStopUnderPolls(t *testing.T) {
	polls := 1000
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	polls = min(polls, int(files.Cur)/20) // the doors have a share each
	s := start(t)
	s.createTopic("idle", 1)
	s.createTopic("bulk", 1) // so much that nothing else that a start reads comes near
	for range 4 {
		s.post("/v1/topics/bulk/partitions/0/records?value=line", typeNDJSON, strings.Repeat(strings.Repeat("x", 1023)+"\n", 8<<10))
	}
	raw, lines := newLedger("raw"), newLedger("lines")
	for _, l := range []*ledger{raw, lines} {
		s.createTopic(l.topic, 1, "segment.bytes=100000")
	}
	var waiting, producing sync.WaitGroup
	failures := make(chan error, polls)
	for i := range polls {
		if i%2 == 0 {
			w := s.wire()
			waiting.Go(func() {
				_, err := w.try(fetchRequest("idle", 0, 0, 1<<20, time.Minute)) // answered or closed
				if errors.Is(err, os.ErrDeadlineExceeded) {
					failures <- fmt.Errorf("a fetch: %w", err)
				}
			})
			continue
		}
		waiting.Go(func() {
			a, err := s.try("GET", "/v1/topics/idle/partitions/0/records?offset=0&wait=60", nil)
			if err != nil || a.status != 200 {
				failures <- fmt.Errorf("a long poll: status %d, %w", a.status, err)
			}
		})
	}
	stop := make(chan struct{})
	w := s.wire()
	producing.Go(func() { raw.produceWire(t, w, stop) })
	producing.Go(func() { lines.produceHTTP(s, "1", stop) })
	eventually(t, "the polls to wait", func() error {
		if n := s.metric("leat_broker_waiting_fetches"); n < float64(polls) || raw.unchecked() < 300 || lines.unchecked() < 300 {
			return fmt.Errorf("%v wait", n)
		}
		return nil
	})
	s.stop()
	close(stop)
	waiting.Wait()
	producing.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "CLEAN")); err != nil {
		t.Error(err)
	}
	_, size := s.logBytes()
	s.restart()
	if read := s.procField("io", "rchar"); size < 32<<20 || read > size/4 {
		t.Errorf("%d bytes read at start, the logs have %d", read, size)
	}
	if words := s.stderr.String(); strings.Contains(words, "recovered") || strings.Contains(words, "level=WARN") || strings.Contains(words, "level=ERROR") {
		t.Errorf("a clean start says: %s", words)
	}
	raw.check(t, s)
	lines.check(t, s)
}

// TestPausedProcess proves that a process that stands still for a while goes on where it was: no record goes before its
// time, long polls and sockets are served, an idempotent producer writes once, and a second process still finds the
// directory busy.
func TestPausedProcess(t *testing.T) {
	pause := 3 * time.Second
	if long() {
		pause = 30 * time.Second
	}
	s := start(t, "--set", "log.retention.check.interval.ms=50")
	s.createTopic("kept", 1, fmt.Sprintf("retention.ms=%d", (pause+10*time.Second).Milliseconds()), "segment.ms=1000")
	l := newLedger("once")
	s.createTopic(l.topic, 1)
	client, stop := s.kgo(kgo.ProducerLinger(0)), make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() { l.produceKgo(t.Context(), client, stop) })
	eventually(t, "records", func() error {
		if n := l.unchecked(); n < 100 {
			return fmt.Errorf("%d answers", n)
		}
		return nil
	})
	began := time.Now()
	s.post("/v1/topics/kept/partitions/0/records?value=line", typeNDJSON, "0\n1\n2\n")
	k := s.socket()
	k.say(`{"type":"subscribe","id":1,"sub":"s","topic":"kept","from":"latest"}`)
	k.want("subscribed")
	poll := make(chan error, 1)
	go func() {
		a, err := s.try("GET", "/v1/topics/kept/partitions/0/records?offset=3&wait=60", nil)
		if err == nil && (a.status != 200 || !strings.Contains(string(a.body), `"offset":3`)) {
			err = fmt.Errorf("status %d: %s", a.status, clip(string(a.body)))
		}
		poll <- err
	}()
	eventually(t, "the poll to wait", func() error {
		if n := s.metric("leat_broker_waiting_fetches"); n < 1 {
			return fmt.Errorf("%v wait", n)
		}
		return nil
	})
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	_, words, code := run(t, "", serveArgs(s.dir)...)
	if code != 75 || !strings.Contains(words, fmt.Sprint(s.pid())) {
		t.Errorf("a second process: code %d, want 75 and the process %d: %s", code, s.pid(), words)
	}
	after(pause)
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s.post("/v1/topics/kept/partitions/0/records?value=line", typeNDJSON, "3\n")
	if err := <-poll; err != nil {
		t.Errorf("the long poll: %v", err)
	}
	k.wantData(0, 3, 1)
	seen := l.unchecked()
	eventually(t, "more records", func() error {
		if n := l.unchecked(); n < seen+100 {
			return fmt.Errorf("%d answers", n)
		}
		return nil
	})
	if first := s.logStart("kept"); first != 0 && time.Since(began) < pause+10*time.Second {
		t.Errorf("the log begins at %d after %v", first, time.Since(began))
	}
	close(stop)
	work.Wait()
	if err := client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.check(t, s)
	if int64(l.next) != l.seen {
		t.Errorf("%d records were sent, the log has %d: %v", l.next, l.seen, l.err)
	}
}
