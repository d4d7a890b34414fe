package broker

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"leat/auth"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

var brokerProof = disktest.Proof{Name: "TestModel", Short: 10, Body: func(t testing.TB, seed uint64, c *disktest.Counts) {
	r := &modelRun{t: t, counts: c, rng: rand.New(rand.NewPCG(seed, 0)), fs: disk.NewMem(), state: state{}, after: state{}}
	r.open()
	defer func() { _ = r.b.Close() }()
	r.run(60)
}}

// TestModel proves that one power cut, which takes its share of the logs and of
// the metadata at the same instant, or one kill -9, leaves every topic, record,
// start, partition and config that was answered, whole; of what was under way all
// or nothing; and nothing that was deleted. A producer's newest batch, sent again,
// is known. A topic that is compacted, at any of these moments, has the newest
// record of each key, and no record that is another than was produced.
func TestModel(t *testing.T) { disktest.Run(t, brokerProof) }

// TestSoak searches for seeds that break TestModel or TestOrder; see make soak.
func TestSoak(t *testing.T) { disktest.Soak(t, brokerProof, orderProof) }

// state is what the broker must hold, by topic name. It is never changed, only
// replaced: who cuts the power looks at it from another goroutine.
type state map[string]topicState

type topicState struct {
	lazy     bool   // in page-cache mode, where no ack promises durability
	compact  bool   // so that all but each key's newest record may be missing
	maxBytes string // a config
	parts    []partState
}

type partState struct {
	values  []string // of the records from offset 0 on
	kept    int      // so many survive a power cut
	start   int64
	batches []sentBatch
}

// sentBatch is values [base, end) of an idempotent producer.
type sentBatch struct {
	pid       int64
	seq       int32
	base, end int
}

// with is the state with one partition changed.
func (s state) with(topic string, partition int, change func(*partState)) state {
	next := maps.Clone(s)
	t := next[topic]
	t.parts = slices.Clone(t.parts)
	p := &t.parts[partition]
	p.values, p.batches = slices.Clip(p.values), slices.Clip(p.batches)
	change(p)
	next[topic] = t
	return next
}

// modelRun drives one broker at random.
type modelRun struct {
	t       testing.TB
	counts  *disktest.Counts
	rng     *rand.Rand
	fs      *disk.Mem
	b       *Broker
	made    int // topics and values, to name them
	nextPID int64

	mu           sync.Mutex
	state, after state // what was answered; and with what is under way
}

func (r *modelRun) open() {
	b, err := Open(r.t.Context(), Options{FS: r.fs, Path: "/data", Configs: map[string]string{"auto.create.topics.enable": "false"}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.b = b
}

// do calls the broker with what the call will have changed when it returns.
func (r *modelRun) do(after state, call func() error) {
	r.counts.Operations.Add(1)
	r.mu.Lock()
	r.after = after
	r.mu.Unlock()
	if err := call(); err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.state = after
	r.mu.Unlock()
}

func (r *modelRun) run(steps int) {
	for range steps {
		switch n := r.rng.IntN(100); {
		case n < 90:
			r.step()
		case n < 93:
			r.restart()
		default:
			r.crash()
		}
	}
	r.crash()
}

// step does one thing that changes something.
func (r *modelRun) step() {
	names := slices.Sorted(maps.Keys(r.state))
	n := r.rng.IntN(100)
	if len(names) == 0 || n < 10 && len(names) < 5 {
		r.create()
		return
	}
	name := names[r.rng.IntN(len(names))]
	partition := r.rng.IntN(len(r.state[name].parts))
	switch {
	case n < 75:
		r.produce(name, partition)
	case n < 83:
		r.deleteRecords(name, partition)
	case n < 88:
		r.configure(name)
	case n < 92:
		r.grow(name)
	case n < 94:
		r.remove(name)
	case n < 99:
		r.compact()
	default:
		r.compare()
	}
}

func (r *modelRun) create() {
	r.made++
	name := fmt.Sprintf("t%d", r.made)
	configs := map[string]string{"segment.bytes": "1400", "max.message.bytes": "100000"}
	lazy := r.rng.IntN(3) == 0
	if lazy {
		configs["flush.messages"] = "1000000"
	}
	compact := r.rng.IntN(3) == 0
	if compact {
		configs["cleanup.policy"], configs["min.cleanable.dirty.ratio"] = "compact,delete", "0"
	}
	after := maps.Clone(r.state)
	after[name] = topicState{lazy: lazy, compact: compact, maxBytes: "100000", parts: make([]partState, 1+r.rng.IntN(4))}
	r.do(after, func() error {
		spec := TopicSpec{Name: name, Partitions: int32(len(after[name].parts)), ReplicationFactor: -1, Configs: configs}
		return r.b.CreateTopics(r.t.Context(), auth.Anonymous, []TopicSpec{spec}, false)[0].Err
	})
}

func (r *modelRun) remove(name string) {
	after := maps.Clone(r.state)
	delete(after, name)
	r.do(after, func() error {
		return r.b.DeleteTopics(r.t.Context(), auth.Anonymous, []TopicRef{{Name: name}})[0].Err
	})
}

func (r *modelRun) configure(name string) {
	after := maps.Clone(r.state)
	t := after[name]
	t.maxBytes = strconv.Itoa(100_000 + r.rng.IntN(1000))
	after[name] = t
	r.do(after, func() error {
		changes := []ConfigChange{{Name: "max.message.bytes", Value: &t.maxBytes}}
		return r.b.AlterTopicConfigs(r.t.Context(), auth.Anonymous, name, changes, false)
	})
}

func (r *modelRun) grow(name string) {
	after := maps.Clone(r.state)
	t := after[name]
	t.parts = append(slices.Clip(t.parts), partState{})
	after[name] = t
	r.do(after, func() error {
		specs := []PartitionsSpec{{Topic: name, Count: int32(len(t.parts))}}
		return r.b.CreatePartitions(r.t.Context(), auth.Anonymous, specs, false)[0].Err
	})
}

func (r *modelRun) deleteRecords(name string, partition int) {
	p := r.state[name].parts[partition]
	if int64(p.kept) <= p.start {
		return
	}
	to := p.start + r.rng.Int64N(int64(p.kept)-p.start+1)
	r.do(r.state.with(name, partition, func(p *partState) { p.start = to }), func() error {
		specs := []DeleteRecordsSpec{{Topic: name, Partition: int32(partition), Offset: to}}
		return r.b.DeleteRecords(r.t.Context(), auth.Anonymous, specs)[0].Err
	})
}

func (r *modelRun) produce(name string, partition int) {
	p := r.state[name].parts[partition]
	var values []string
	for range 1 + r.rng.IntN(3) {
		r.made++
		values = append(values, fmt.Sprintf("%d:%0*d", r.made, r.rng.IntN(400), 0))
	}
	sent := sentBatch{pid: -1, base: len(p.values), end: len(p.values) + len(values)}
	switch last := p.last(); {
	case last != nil && r.rng.IntN(4) > 0:
		sent.pid, sent.seq = last.pid, last.seq+int32(last.end-last.base)
	case r.rng.IntN(2) == 0:
		r.nextPID++
		sent.pid = r.nextPID
	}
	acks := []Acks{AcksAll, AcksAll, AcksLeader}[r.rng.IntN(3)]
	after := r.state.with(name, partition, func(p *partState) {
		p.values = append(p.values, values...)
		p.batches = append(p.batches, sent)
		if acks == AcksAll && !r.state[name].lazy {
			p.kept = len(p.values)
		}
	})
	r.do(after, func() error {
		res := r.send(name, partition, acks, sent, values)
		if res.Err == nil && (res.Base != int64(sent.base) || res.Duplicate) {
			return fmt.Errorf("%s/%d: produced at %+v, want offset %d", name, partition, res, sent.base)
		}
		return res.Err
	})
}

// last is the newest batch of the producer that wrote last, if it is known.
func (p *partState) last() *sentBatch {
	if n := len(p.batches); n > 0 && p.batches[n-1].pid >= 0 && int64(p.batches[n-1].base) >= p.start {
		return &p.batches[n-1]
	}
	return nil
}

func (r *modelRun) send(name string, partition int, acks Acks, sent sentBatch, values []string) ProduceResult {
	var w record.Builder
	w.Reset(record.Options{})
	for _, v := range values {
		w.Add(time.Now().UnixMilli(), []byte(keyOf(v)), []byte(v), nil) // so that nothing expires
	}
	b, err := w.Finish()
	if err != nil {
		r.t.Fatal(err)
	}
	b = slices.Clone(b)
	if sent.pid >= 0 {
		for i := range 8 {
			b[43+i] = byte(sent.pid >> (56 - 8*i))
		}
		b[51], b[52] = 0, 0
		for i := range 4 {
			b[53+i] = byte(sent.seq >> (24 - 8*i))
		}
		b.SetMaxTimestamp(b.MaxTimestamp(), false) // writes the checksum
	}
	req := &ProduceRequest{Acks: acks, Timeout: time.Minute, Batches: []ProduceBatch{{Topic: name, Partition: int32(partition), Batch: b}}}
	return r.b.Produce(r.t.Context(), auth.Anonymous, req).Wait(r.t.Context())[0]
}

// keyOf is the key of the record with a value, one of five.
func keyOf(value string) string {
	number, _, _ := strings.Cut(value, ":")
	n, _ := strconv.Atoi(number) // it is one
	return strconv.Itoa(n % 5)
}

// compact has every log compacted that is due.
func (r *modelRun) compact() {
	r.do(r.state, func() error {
		cleaner := storage.NewCleaner(storage.CleanerOptions{MapBytes: []int64{64, 1 << 20}[r.rng.IntN(2)]})
		for passed := map[*partition]bool{}; r.b.compactNext(cleaner, passed); {
			continue
		}
		if n := r.b.uncleanable(); n > 0 {
			return fmt.Errorf("%d partitions cannot be compacted", n)
		}
		return nil
	})
}

func (r *modelRun) restart() {
	if err := r.b.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.open()
	r.recovered(1, r.state, r.state)
}

// crash cuts the power, or ends the process as kill -9 does, within the next
// operations on the file system, of whichever goroutine, and opens what is left.
func (r *modelRun) crash() {
	r.counts.Crashes.Add(1)
	keep := []float64{0, 0.1, 0.5, 0.9, 1}[r.rng.IntN(5)]
	rng := rand.New(rand.NewPCG(r.rng.Uint64(), 0))
	leave := func() *disk.Mem { return r.fs.CrashClone(keep, rng) }
	if r.rng.IntN(3) == 0 {
		keep, leave = 1, r.fs.KillClone
	}
	left := 1 + r.rng.IntN(60)
	var clone *disk.Mem
	var before, after state
	cut := func(disk.Op) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if left--; left == 0 {
			before, after = r.state, r.after
			clone = leave()
		}
		return nil
	}
	done := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return clone != nil
	}
	r.fs.SetFault(cut)
	for range 30 {
		if done() {
			break
		}
		r.step()
	}
	r.fs.SetFault(nil)
	r.mu.Lock()
	if clone == nil {
		left = 0
		before, after = r.state, r.state
		clone = leave()
	}
	r.mu.Unlock()
	_ = r.b.Close() // the old world may end as it likes
	r.fs = clone
	r.open()
	r.recovered(keep, before, after)
}

// recovered compares what is there with what was answered before and what was
// under way, and goes on from what is there.
func (r *modelRun) recovered(keep float64, before, after state) {
	now := state{}
	topics, err := r.b.Topics(r.t.Context(), auth.Anonymous)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, topic := range topics {
		a, known := before[topic.Name]
		b, wanted := after[topic.Name]
		if !known && !wanted {
			r.t.Fatalf("keep=%v: topic %s is there", keep, topic.Name)
		}
		if !known {
			a = topicState{lazy: b.lazy, compact: b.compact, maxBytes: b.maxBytes, parts: make([]partState, len(b.parts))}
		}
		if !wanted {
			b = a
		}
		now[topic.Name] = r.recoveredTopic(keep, topic, a, b)
	}
	for name := range before {
		_, there := now[name]
		if _, stays := after[name]; stays && !there {
			r.t.Fatalf("keep=%v: topic %s is gone", keep, name)
		}
	}
	r.mu.Lock()
	r.state, r.after = now, now
	r.mu.Unlock()
	r.sendAgain()
}

func (r *modelRun) recoveredTopic(keep float64, topic Topic, a, b topicState) topicState {
	if n := len(topic.Partitions); n != len(a.parts) && n != len(b.parts) {
		r.t.Fatalf("keep=%v: %s has %d partitions, want %d or %d", keep, topic.Name, n, len(a.parts), len(b.parts))
	}
	now := topicState{lazy: a.lazy, compact: a.compact, maxBytes: r.maxBytes(topic.Name)}
	if now.maxBytes != a.maxBytes && now.maxBytes != b.maxBytes {
		r.t.Fatalf("keep=%v: %s has max.message.bytes %s, want %s or %s", keep, topic.Name, now.maxBytes, a.maxBytes, b.maxBytes)
	}
	for i := range topic.Partitions {
		var before, after partState
		if i < len(a.parts) {
			before = a.parts[i]
		}
		if i < len(b.parts) {
			after = b.parts[i]
		}
		if len(after.values) < len(before.values) {
			after = before // the topic was on its way out
		}
		now.parts = append(now.parts, r.recoveredPart(keep, topic.Name, i, a.compact, before, after))
	}
	return now
}

func (r *modelRun) recoveredPart(keep float64, topic string, i int, compact bool, before, after partState) partState {
	start, end := r.bounds(topic, i)
	if start != before.start && start != after.start {
		r.t.Fatalf("keep=%v: %s/%d begins at %d, want %d or %d", keep, topic, i, start, before.start, after.start)
	}
	least := before.kept
	if keep == 1 {
		least = len(before.values)
	}
	whole := end == 0 || end == start || slices.ContainsFunc(after.batches, func(b sentBatch) bool { return int64(b.end) == end })
	if end < int64(least) || end > int64(len(after.values)) || !whole {
		r.t.Fatalf("keep=%v: %s/%d ends at %d, acknowledged %d, sent %d", keep, topic, i, end, least, len(after.values))
	}
	now := partState{values: after.values[:end], kept: int(end), start: start}
	for _, b := range after.batches {
		if int64(b.end) <= end {
			now.batches = append(now.batches, b)
		}
	}
	r.comparePart(topic, i, compact, now)
	return now
}

// sendAgain sends the newest batch of each partition's producer once more.
func (r *modelRun) sendAgain() {
	for name, t := range r.state {
		for i := range t.parts {
			p := &t.parts[i]
			last := p.last()
			if last == nil {
				continue
			}
			res := r.send(name, i, AcksAll, *last, p.values[last.base:last.end])
			if res.Err != nil || !res.Duplicate || res.Base != int64(last.base) {
				r.t.Fatalf("%s/%d: a batch that was sent again, %+v, gave %+v", name, i, *last, res)
			}
		}
	}
}

// compare reads everything.
func (r *modelRun) compare() {
	for name, t := range r.state {
		if got := r.maxBytes(name); got != t.maxBytes {
			r.t.Fatalf("%s has max.message.bytes %s, want %s", name, got, t.maxBytes)
		}
		for i := range t.parts {
			r.comparePart(name, i, t.compact, t.parts[i])
		}
	}
}

// comparePart reads a partition up to what is committed.
func (r *modelRun) comparePart(topic string, i int, compact bool, p partState) {
	_, end := r.bounds(topic, i)
	if end < int64(p.kept) || end > int64(len(p.values)) {
		r.t.Fatalf("%s/%d: committed up to %d of %d, acknowledged %d", topic, i, end, len(p.values), p.kept)
	}
	newest := map[string]int64{}
	for at := p.start; at < end; at++ {
		newest[keyOf(p.values[at])] = at
	}
	for from := p.start; from < end; {
		got, next := r.fetch(topic, i, from)
		if next <= from {
			r.t.Fatalf("%s/%d: nothing at offset %d below %d", topic, i, from, end)
		}
		for _, rec := range got {
			if rec.Offset < from {
				continue // the batch begins below
			}
			for ; from < rec.Offset; from++ {
				r.mayLack(topic, i, compact, newest, from, p.values[from])
			}
			if string(rec.Value) != p.values[from] || string(rec.Key) != keyOf(p.values[from]) {
				r.t.Fatalf("%s/%d: offset %d has %q:%q, want %q", topic, i, from, rec.Key, rec.Value, p.values[from])
			}
			from++
		}
		for ; from < next; from++ {
			r.mayLack(topic, i, compact, newest, from, p.values[from])
		}
	}
}

// mayLack judges a record that is not there.
func (r *modelRun) mayLack(topic string, i int, compact bool, newest map[string]int64, offset int64, value string) {
	if !compact || newest[keyOf(value)] == offset {
		r.t.Fatalf("%s/%d: offset %d is missing, compacted %t, the newest of each key are %v", topic, i, offset, compact, newest)
	}
}

// fetch reads the records of one section, and says where the next begins.
func (r *modelRun) fetch(topic string, i int, from int64) (out []record.Record, next int64) {
	res := r.b.Fetch(r.t.Context(), auth.Anonymous, &FetchRequest{
		MaxBytes: 1 << 20, Partitions: []FetchPartition{{Topic: topic, Partition: int32(i), Offset: from, Epoch: -1, MaxBytes: 1 << 20}},
	})[0]
	if res.Err != nil {
		r.t.Fatal(res.Err)
	}
	if res.Section == nil {
		return nil, from
	}
	defer res.Section.Release()
	p := make([]byte, res.Section.Len())
	if _, err := res.Section.ReadAt(p, 0); err != nil && !errors.Is(err, io.EOF) {
		r.t.Fatal(err)
	}
	var reader record.Reader
	defer reader.Close()
	for len(p) > 0 {
		b, rest, err := record.Next(p)
		if err == nil {
			err = reader.Reset(b, 1<<20)
		}
		for err == nil {
			var rec record.Record
			if err = reader.Next(&rec); err == nil {
				rec.Key, rec.Value = slices.Clone(rec.Key), slices.Clone(rec.Value)
				out = append(out, rec)
			}
		}
		if !errors.Is(err, io.EOF) {
			r.t.Fatal(err)
		}
		p, next = rest, b.NextOffset()
	}
	return out, next
}

// bounds are the first offset and the high watermark.
func (r *modelRun) bounds(topic string, i int) (start, end int64) {
	res := r.b.ListOffsets(r.t.Context(), auth.Anonymous, []OffsetQuery{
		{Topic: topic, Partition: int32(i), Timestamp: OffsetEarliest, Epoch: -1},
		{Topic: topic, Partition: int32(i), Timestamp: OffsetLatest, Epoch: -1},
	})
	if err := errors.Join(res[0].Err, res[1].Err); err != nil {
		r.t.Fatal(err)
	}
	return res[0].Offset, res[1].Offset
}

func (r *modelRun) maxBytes(topic string) string {
	entries, err := r.b.TopicConfigs(r.t.Context(), auth.Anonymous, topic)
	if err != nil {
		r.t.Fatal(err)
	}
	i := slices.IndexFunc(entries, func(e ConfigEntry) bool { return e.Name == "max.message.bytes" })
	return entries[i].Value
}
