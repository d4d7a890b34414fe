package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// killLoop is a server that is killed again and again, and all that is known of what it answered.
type killLoop struct {
	*testing.T
	s       *server
	rng     *rand.Rand
	proxy   *proxy
	once    *ledger // of an idempotent producer that lives through all kills
	ledgers []*ledger
	trimmed []*ledger // of those, the ones that are trimmed
	keyed   []*keyed
	churn   *churn

	took             []time.Duration // from launch to ready
	files            map[string]int  // descriptors after the first start, by kind
	kills, mostFiles int
	warnings         []string // that the server wrote to its log
}

// compactConfigs has a topic compacted as often as can be.
var compactConfigs = []string{
	"cleanup.policy=compact", "segment.bytes=4000", "segment.ms=300", "min.cleanable.dirty.ratio=0", "delete.retention.ms=100",
}

// TestKillLoop proves that kill -9 at any moment loses nothing: under load over every door, while topics are made,
// configured, trimmed, compacted and deleted, segments end with every few batches, and the server starts. After each
// start every answered topic is there and every deleted one gone; every answered record, of acks=1, too, is at its
// offset with its bytes; no offset ever has two values; an idempotent producer that lives through all of it writes
// once; compacted topics have the last of each key; nothing is left on disk or open that should not be; and the check
// finds no damage.
func TestKillLoop(t *testing.T) {
	cycles := 12
	if long() {
		cycles = 500
	}
	if v := os.Getenv("LEAT_KILLS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		cycles = n
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	k := &killLoop{T: t, rng: rand.New(rand.NewPCG(seed, 0)), proxy: newProxy(t).forgetful(), once: newLedger("kgo-once"), churn: newChurn()}
	k.s = start(t, "--kafka-advertise", k.proxy.addr, "--set", "log.retention.check.interval.ms=200", "--set", "log.cleaner.backoff.ms=20")
	k.files = k.descriptors()
	k.create()
	k.proxy.point(k.s.Kafka)
	client := k.s.kgo(kgo.SeedBrokers(k.proxy.addr), kgo.ProducerLinger(0),
		kgo.MetadataMinAge(20*time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return 10 * time.Millisecond }), kgo.RequestRetries(tireless))
	over := make(chan struct{})
	var living sync.WaitGroup
	living.Go(func() { k.once.produceKgo(t.Context(), client, over) })
	for cycle := range cycles {
		k.loadAndKill(uint64(cycle))
		if cycle%8 == 3 {
			k.offlineCheck("after a kill")
		}
		if k.rng.IntN(3) == 0 {
			for range 1 + k.rng.IntN(3) {
				k.s.killStarting(5*time.Millisecond + rand.N(55*time.Millisecond))
				k.kills++
				k.listen()
			}
		}
		began := time.Now()
		k.s.restart()
		k.took = append(k.took, time.Since(began))
		k.checkDescriptors()
		k.check()
		k.proxy.point(k.s.Kafka)
		if t.Failed() {
			t.Fatalf("in cycle %d", cycle)
		}
	}
	close(over)
	living.Wait()
	if err := client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if k.check(); int64(k.once.next) != k.once.seen {
		t.Errorf("the idempotent producer sent %d records, the log has %d: %v", k.once.next, k.once.seen, k.once.err)
	}
	for _, c := range k.keyed {
		eventually(t, c.topic+" to be compacted", func() error {
			if c.check(t, k.s); 2*c.gone < int(c.seen) {
				return fmt.Errorf("%d of %d records are gone", c.gone, c.seen)
			}
			return nil
		})
	}
	k.s.stop()
	k.leftovers()
	k.offlineCheck("at the end")
	k.s.restart()
	k.again()
	k.report()
}

func (k *killLoop) create() {
	add := func(name string, configs ...string) *ledger {
		l := newLedger(name)
		k.s.createTopic(name, 1, configs...)
		k.ledgers = append(k.ledgers, l)
		return l
	}
	k.s.createTopic("configured", 1, "retention.ms=0")
	k.s.createTopic(k.once.topic, 1, "segment.bytes=200000")
	for _, name := range []string{"kgo-acks-1", "kgo-acks-all", "wire-acks-1", "http-acks-1", "http-acks-all", "socket"} {
		add(name, "segment.bytes=200000")
	}
	add("wire-page-cache", "segment.bytes=100000", "flush.messages=1000000")
	k.trimmed = []*ledger{add("http-trimmed", "segment.bytes=3000"), add("wire-trimmed", "segment.bytes=3000")}
	for name, more := range map[string][]string{"compacted": nil, "compacted-page-cache": {"flush.messages=1000000"}} {
		k.keyed = append(k.keyed, newKeyed(name))
		k.s.createTopic(name, 1, append(more, compactConfigs...)...)
	}
}

// toServer dials the server wherever its metadata says that it is.
func toServer(addr string) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}

// loadAndKill has every door busy for at most half a second, and kills the server.
func (k *killLoop) loadAndKill(seed uint64) {
	stop := make(chan struct{})
	var work sync.WaitGroup
	var clients []*kgo.Client
	for _, l := range k.ledgers {
		door, acks, _ := strings.Cut(l.topic, "-")
		switch door {
		case "kgo":
			required := map[string]kgo.Acks{"acks-1": kgo.LeaderAck(), "acks-all": kgo.AllISRAcks()}[acks]
			client, err := kgo.NewClient(kgo.SeedBrokers(k.s.Kafka), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(required),
				kgo.MaxProduceRequestsInflightPerBroker(1), kgo.RecordRetries(0), kgo.ProducerLinger(0), kgo.Dialer(toServer(k.s.Kafka)))
			if err != nil {
				k.Fatal(err)
			}
			clients = append(clients, client)
			work.Go(func() { l.produceKgo(k.Context(), client, stop) })
		case "wire":
			if w, err := k.s.tryWire(); err == nil {
				defer w.nc.Close() //nolint:errcheck // the server is gone
				work.Go(func() { l.produceWire(k.T, w, stop) })
			}
		case "http":
			work.Go(func() { l.produceHTTP(k.s, map[bool]string{true: "1", false: "all"}[acks == "acks-1"], stop) })
		case "socket":
			work.Go(func() { l.produceSocket(k.s, stop) })
		}
	}
	for _, l := range k.trimmed {
		work.Go(func() { l.trim(k.s, 100, stop) })
	}
	for i, c := range k.keyed {
		work.Go(func() { c.produce(k.T, k.s, seed<<8|uint64(i), stop) })
	}
	work.Go(func() { k.churn.work(k.s, stop) })
	after(time.Millisecond + time.Duration(k.rng.Int64N(int64(499*time.Millisecond))))
	k.s.kill()
	k.kills++
	k.listen()
	close(stop)
	for _, client := range clients {
		client.Close()
	}
	work.Wait()
}

// listen keeps what the process that was killed last warned of.
func (k *killLoop) listen() {
	for line := range strings.Lines(k.s.stderr.String()) {
		if !strings.Contains(line, "level=INFO") && len(k.warnings) < 30 {
			k.warnings = append(k.warnings, line)
		}
	}
}

// check compares what the server has with what it answered.
func (k *killLoop) check() {
	k.Helper()
	for _, l := range append(k.ledgers, k.once) {
		l.check(k.T, k.s)
	}
	for _, c := range k.keyed {
		c.check(k.T, k.s)
	}
	partitions := k.churn.check(k.T, k.s)
	eventually(k, "the trash to be emptied", func() error {
		trash, err := os.ReadDir(filepath.Join(k.s.dir, "trash"))
		if err == nil && len(trash) > 0 {
			err = fmt.Errorf("%d things in it", len(trash))
		}
		return err
	})
	if dirs, err := os.ReadDir(filepath.Join(k.s.dir, "logs")); err != nil || len(dirs) != partitions {
		k.Errorf("%d directories for %d partitions, %v", len(dirs), partitions, err)
	}
	k.mostFiles = max(k.mostFiles, k.countFiles(nil))
}

// checkDescriptors wants a process that is ready to have no more open than the first one had.
func (k *killLoop) checkDescriptors() {
	k.Helper()
	now := k.descriptors()
	for kind, n := range k.files {
		// The files of logs and of the metadata store are bounded by themselves.
		if kind != "log" && kind != "db" && now[kind] > n+4 {
			k.Errorf("%d descriptors of kind %s after a start, %d after the first", now[kind], kind, n)
		}
	}
	if now["db"] > 100 || now["log"] > 300 {
		k.Errorf("descriptors after a start: %v", now)
	}
}

// descriptors counts what the process has open, by kind.
func (k *killLoop) descriptors() map[string]int {
	k.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(k.s.pid()), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		k.Fatal(err)
	}
	counts := map[string]int{"socket": 0, "other": 0}
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		kind := "other"
		switch {
		case err != nil: // closed meanwhile
			continue
		case strings.HasPrefix(target, filepath.Join(k.s.dir, "logs")):
			kind = "log"
		case strings.HasPrefix(target, filepath.Join(k.s.dir, "db")):
			kind = "db"
		case strings.HasPrefix(target, "socket:"):
			kind = "socket"
		}
		counts[kind]++
	}
	return counts
}

// countFiles counts the files below the data directory, and shows each.
func (k *killLoop) countFiles(show func(name string)) (n int) {
	k.Helper()
	err := filepath.WalkDir(k.s.dir, func(name string, entry fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // removed meanwhile
		}
		if err != nil || entry.IsDir() {
			return err
		}
		n++
		if show != nil {
			rel, err := filepath.Rel(k.s.dir, name)
			show(rel)
			return err
		}
		return nil
	})
	if err != nil {
		k.Fatal(err)
	}
	return n
}

var (
	segmentFile  = regexp.MustCompile(`^(logs/[^/]+/\d{20})-([0-9a-f]{6})\.(log|index|timeindex)$`)
	snapshotFile = regexp.MustCompile(`^\d{20}\.snap$`)
)

// leftovers wants nothing in the directory of a stopped server that has no use: each segment once, with its indexes.
func (k *killLoop) leftovers() {
	logs, indexes := map[string]string{}, map[string]int{} // by the file's name without its generation
	last := map[string]string{}                            // directory -> its last log
	snapshots, store := map[string]int{}, 0
	var quarantined []string
	total := k.countFiles(func(name string) {
		m := segmentFile.FindStringSubmatch(name)
		dir, base := filepath.Split(name)
		switch {
		case m != nil && m[3] == "log":
			if gen, ok := logs[m[1]]; ok {
				k.Errorf("%s has two generations, %s and %s", m[1], gen, m[2])
			}
			logs[m[1]] = m[2]
			last[dir] = max(last[dir], m[1])
		case m != nil:
			indexes[m[1]+m[2]]++
		case strings.HasPrefix(dir, "db/"):
			store++
		case strings.HasPrefix(dir, "quarantine/"):
			quarantined = append(quarantined, base)
		case strings.HasPrefix(dir, "logs/") && snapshotFile.MatchString(base):
			snapshots[dir]++
		case strings.HasPrefix(dir, "trash/"), strings.HasPrefix(dir, "logs/") && base != "partition":
			k.Errorf("%s was left behind", name)
		}
	})
	for name, gen := range logs {
		// The last segment gets its indexes with their first entries, if a kill came when it was made.
		if n := indexes[name+gen]; n != 2 && (n > 2 || name != last[filepath.Dir(name)+"/"]) {
			k.Errorf("%s-%s has %d indexes", name, gen, n)
		}
		delete(indexes, name+gen)
	}
	if len(indexes) > 0 {
		k.Errorf("indexes without a log: %v", indexes)
	}
	for dir, n := range snapshots {
		if n > 2 {
			k.Errorf("%s has %d snapshots", dir, n)
		}
	}
	if store > 100 {
		k.Errorf("%d files of the metadata store", store)
	}
	k.Logf("%d files at the end, at most %d; %d segments; in quarantine %q", total, k.mostFiles, len(logs), quarantined)
}

func (k *killLoop) offlineCheck(when string) {
	k.Helper()
	if out, words, code := run(k, "", "check", k.s.dir); code != 0 {
		k.Errorf("leat check %s: code %d\n%s%s", when, code, tail(out, 4<<10), tail(words, 2<<10))
	}
}

// again reads everything from the beginning once more: every offset has the value that it had when it was first seen.
func (k *killLoop) again() {
	for _, l := range append(k.ledgers, k.once) {
		before := l.at
		l.seen, l.last, l.at = 0, -1, map[int64]int64{}
		l.check(k.T, k.s)
		for number, offset := range l.at {
			if was, ok := before[number]; ok && was != offset {
				k.Fatalf("%s: number %d was at offset %d, and is at %d", l.topic, number, was, offset)
			}
		}
		if len(l.at) != len(before) && l.cut.high == 0 {
			k.Errorf("%s: %d records, there were %d", l.topic, len(l.at), len(before))
		}
	}
	for _, c := range k.keyed {
		c.check(k.T, k.s)
	}
	k.churn.check(k.T, k.s)
}

func (k *killLoop) report() {
	for _, l := range append(k.ledgers, k.once) {
		k.Logf("%s: %d sent, %d in the log, of which [0, %d) were deleted", l.topic, l.next, l.seen, l.cut.low)
		if l.seen == 0 {
			k.Errorf("%s: nothing was written", l.topic)
		}
	}
	for _, c := range k.keyed {
		k.Logf("%s: %d sent, %d in the log, %d compacted away", c.topic, c.sent, c.seen, c.gone)
	}
	k.Logf("%d topics were made, %d deleted, %d are there; retention.ms was set %d times", k.churn.made, k.churn.deleted, len(k.churn.present), k.churn.setting.low)
	slices.Sort(k.took)
	k.Logf("%d kills; ready after %v in the middle, %v at most", k.kills, k.took[len(k.took)/2].Round(time.Millisecond), k.took[len(k.took)-1].Round(time.Millisecond))
	k.Logf("%d warnings: %s", len(k.warnings), strings.Join(k.warnings, ""))
	k.Logf("descriptors after the first start %v, after the last %v", k.files, k.descriptors())
}
