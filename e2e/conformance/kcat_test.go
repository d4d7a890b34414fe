package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// kcatClients are Debian's kcat, with an old librdkafka.
var kcatClients = []client{{name: "kcat", open: openKcat}}

// kcat runs the command once for each call. As a member it is one command that lives.
type kcat struct {
	ops
	addr string

	// Of a member.
	cmd    *exec.Cmd
	output sync.WaitGroup
	mu     struct {
		sync.Mutex
		arrived  []record
		assigned []int32
		revoked  int
		err      error
	}
}

// kcatFormat prints a record so that its lengths tell where it ends.
const kcatFormat = "%p %o %T %K %S\n%k%s%h\n"

// Between records, and between key and value; no sample has them.
const kcatRecordEnd, kcatKeyEnd = "\x1e\x1d\x1e<end>", "\x1d\x1e\x1d<key>"

func openKcat(_ *testing.T, addr string) (driver, error) {
	if _, err := exec.LookPath("kcat"); err != nil {
		return nil, err
	}
	k := &kcat{addr: addr}
	k.ops = ops{
		"hello": k.hello, "metadata": k.metadata, "produce": act(k.produce), "read": k.read, "list_offset": k.listOffset,
		"join": act(k.join), "poll": k.poll, "commit": act(k.commit), "leave": act(k.leave),
	}
	return k, nil
}

func (k *kcat) run(ctx context.Context, stdin []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "kcat", append([]string{"-b", k.addr}, args...)...)
	var out, words bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &words
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%w: %s", err, words.String())
	}
	return out.Bytes(), nil
}

func (k *kcat) hello(ctx context.Context, _ ask) (r reply, err error) {
	out, err := exec.CommandContext(ctx, "kcat", "-V").CombinedOutput()
	found := regexp.MustCompile(`(?s)Version (\S+) .*librdkafka (\S+)`).FindSubmatch(out)
	if err != nil || found == nil {
		return r, errors.Join(err, fmt.Errorf("kcat -V says %q", out))
	}
	r.Version = fmt.Sprintf("%s, librdkafka %s", found[1], found[2])
	return r, nil
}

func (k *kcat) metadata(ctx context.Context, _ ask) (r reply, err error) {
	out, err := k.run(ctx, nil, "-L", "-J")
	if err != nil {
		return r, err
	}
	var meta struct {
		Brokers []any
		Topics  []struct {
			Topic      string
			Partitions []any
		}
	}
	if err := json.Unmarshal(out, &meta); err != nil {
		return r, err
	}
	r.Topics, r.Nodes = map[string]int{}, len(meta.Brokers)
	for _, topic := range meta.Topics {
		r.Topics[topic.Topic] = len(topic.Partitions)
	}
	return r, nil
}

// produce runs one command for all records, or one for each where they need different flags.
func (k *kcat) produce(ctx context.Context, q ask) error {
	plain := func(r record) bool { return len(r.Key) > 0 && len(r.Value) > 0 && len(r.Headers) == 0 }
	args := []string{
		"-P", "-t", q.Topic, "-p", strconv.Itoa(int(q.Partition)), "-z", orElse(q.Codec, "none"), "-D", kcatRecordEnd,
		"-X", "acks=" + q.Acks, "-X", fmt.Sprint("enable.idempotence=", q.Idempotent),
		"-X", "topic.metadata.propagation.max.ms=1000", "-X", "message.timeout.ms=20000",
	}
	if !slices.ContainsFunc(q.Records, func(r record) bool { return !plain(r) }) {
		return k.produceSame(ctx, args, q.Records)
	}
	for _, r := range q.Records {
		if err := k.produceSame(ctx, args, []record{r}); err != nil {
			return err
		}
	}
	return nil
}

// produceSame takes the flags from the first record.
func (k *kcat) produceSame(ctx context.Context, args []string, records []record) error {
	args = slices.Clone(args)
	first := records[0]
	if first.Timestamp != 0 {
		return notOffered("kcat gives its records no time")
	}
	if first.Key != nil {
		args = append(args, "-K", kcatKeyEnd)
	}
	if first.Value == nil {
		args = append(args, "-Z")
	}
	for _, h := range first.Headers {
		if bytes.ContainsRune(h.Value, 0) {
			return notOffered("an argument cannot hold a zero byte")
		}
		args = append(args, "-H", h.Key+"="+string(h.Value))
	}
	var in []byte
	for _, r := range records {
		if r.Key != nil {
			in = append(append(in, r.Key...), kcatKeyEnd...)
		}
		in = append(append(in, r.Value...), kcatRecordEnd...)
	}
	_, err := k.run(ctx, in, args...)
	return err
}

func (k *kcat) read(ctx context.Context, q ask) (r reply, err error) {
	from := map[string]string{earliest: "beginning", latest: "end", atOffset: strconv.FormatInt(q.Offset, 10), atTime: fmt.Sprint("s@", q.Offset)}[q.At]
	out, err := k.run(ctx, nil, "-C", "-t", q.Topic, "-p", strconv.Itoa(int(q.Partition)), "-o", from, "-c", strconv.Itoa(q.Count), "-q", "-f", kcatFormat)
	if err != nil {
		return r, err
	}
	in := bufio.NewReader(bytes.NewReader(out))
	for {
		rec, err := parseKcat(in)
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return r, err
		}
		r.Records = append(r.Records, rec)
	}
}

// parseKcat reads what kcatFormat prints.
func parseKcat(in *bufio.Reader) (r record, err error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return r, err
	}
	var keySize, valueSize int
	if _, err := fmt.Sscan(line, &r.Partition, &r.Offset, &r.Timestamp, &keySize, &valueSize); err != nil {
		return r, fmt.Errorf("%q: %w", line, err)
	}
	for _, part := range []struct {
		to   *[]byte
		size int
	}{{&r.Key, keySize}, {&r.Value, valueSize}} {
		if part.size < 0 {
			continue
		}
		*part.to = make([]byte, part.size)
		if _, err := io.ReadFull(in, *part.to); err != nil {
			return r, err
		}
	}
	headers, err := in.ReadString('\n')
	for pair := range strings.SplitSeq(strings.TrimSuffix(headers, "\n"), ",") {
		if name, value, ok := strings.Cut(pair, "="); ok {
			r.Headers = append(r.Headers, header{Key: name, Value: []byte(value)})
		}
	}
	return r, err
}

func (k *kcat) listOffset(ctx context.Context, q ask) (r reply, err error) {
	at := map[string]int64{earliest: -2, latest: -1, atTime: q.Offset}[q.At]
	out, err := k.run(ctx, nil, "-Q", "-t", fmt.Sprintf("%s:%d:%d", q.Topic, q.Partition, at))
	if err != nil {
		return r, err
	}
	found := regexp.MustCompile(`offset (-?\d+)`).FindSubmatch(out)
	if found == nil {
		return r, fmt.Errorf("kcat -Q says %q", out)
	}
	r.Offset, err = strconv.ParseInt(string(found[1]), 10, 64)
	return r, err
}

func (k *kcat) join(_ context.Context, q ask) error {
	args := []string{
		"-b", k.addr, "-G", q.Group, "-u", "-f", kcatFormat, "-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=10000",
		"-X", "heartbeat.interval.ms=200", "-X", "fetch.wait.max.ms=200",
	}
	if q.Strategy == cooperative {
		args = append(args, "-X", "partition.assignment.strategy=cooperative-sticky")
	}
	if q.Instance != "" {
		args = append(args, "-X", "group.instance.id="+q.Instance)
	}
	k.cmd = exec.Command("kcat", append(args, q.Topic)...)
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	words, err := k.cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := k.cmd.Start(); err != nil {
		return err
	}
	k.output.Go(func() { k.records(out) })
	k.output.Go(func() { k.rebalances(words) })
	return nil
}

// records keeps what the member prints.
func (k *kcat) records(out io.Reader) {
	in := bufio.NewReader(out)
	for {
		rec, err := parseKcat(in)
		k.mu.Lock()
		if err == nil {
			k.mu.arrived = append(k.mu.arrived, rec)
		} else if !errors.Is(err, io.EOF) {
			k.mu.err = err
		}
		k.mu.Unlock()
		if err != nil {
			return
		}
	}
}

var kcatRebalance = regexp.MustCompile(`rebalanced.*(assign|revoke).*: (\S+ \[.*)`)

// rebalances keeps what the member says of its partitions.
func (k *kcat) rebalances(words io.Reader) {
	lines := bufio.NewScanner(words)
	for lines.Scan() {
		found := kcatRebalance.FindStringSubmatch(lines.Text())
		if found == nil {
			continue
		}
		var parts []int32
		for _, p := range regexp.MustCompile(`\[(\d+)\]`).FindAllStringSubmatch(found[2], -1) {
			n, err := strconv.ParseInt(p[1], 10, 32)
			if err == nil {
				parts = append(parts, int32(n))
			}
		}
		k.mu.Lock()
		if found[1] == "assign" {
			k.mu.assigned = append(k.mu.assigned, parts...)
		} else {
			k.mu.revoked += len(parts)
			k.mu.assigned = slices.DeleteFunc(k.mu.assigned, func(p int32) bool { return slices.Contains(parts, p) })
		}
		k.mu.Unlock()
	}
}

func (k *kcat) poll(ctx context.Context, _ ask) (r reply, err error) {
	wait, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	<-wait.Done()
	k.mu.Lock()
	defer k.mu.Unlock()
	r.Records, k.mu.arrived = k.mu.arrived, nil
	r.Assigned, r.Revoked = slices.Clone(k.mu.assigned), k.mu.revoked
	return r, k.mu.err
}

// commit is left to kcat: it commits by itself what it has printed, also when partitions are taken from it.
func (*kcat) commit(context.Context, ask) error { return nil }

// leave waits for kcat to end by itself for as long as ctx lasts.
func (k *kcat) leave(ctx context.Context, _ ask) error {
	if err := k.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	process := k.cmd.Process
	stop := context.AfterFunc(ctx, func() { _ = process.Kill() })
	defer stop()
	k.output.Wait()
	err := k.cmd.Wait()
	k.cmd = nil
	return err
}

func (k *kcat) close() {
	if k.cmd != nil {
		_ = k.cmd.Process.Kill()
		k.output.Wait()
		_ = k.cmd.Wait() // it was killed
	}
}
