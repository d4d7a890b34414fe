package storage

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

var orderProof = disktest.Proof{Name: "TestOrder", Short: 8, Body: func(t testing.TB, seed uint64, c *disktest.Counts) {
	runOrder(t, &world{}, seed, 60, c)
}}

// TestOrder proves, at the moment of each write and whatever else is going on,
// that what it says of other files is durable already: records and names before
// they are acknowledged, sealed, or in a checkpoint; a checkpoint before what it
// tells of goes; rewritten segments before they are the log; everything before
// the mark of a clean stop, and that mark gone before records come.
func TestOrder(t *testing.T) { disktest.Run(t, orderProof) }

// orderRules are what a run of some length must have come across.
var orderRules = []string{
	"the mark of a clean stop is gone before records come", "a torn end is cut off before records come",
	"records are durable before a snapshot of their producers", "records are durable before a checkpoint that has them",
	"a segment has its name before a checkpoint that names it", "bytes are durable before a checkpoint that has them",
	"a segment is synced before its seal", "a segment is durable before its seal", "a segment is durable before the seal of the next",
	"a file is durable before it takes its name", "the last checkpoint is durable before the mark of a clean stop",
	"all is durable before the mark of a clean stop", "a rewritten segment is durable before it is the log",
	"a rewritten segment is sealed before it is the log", "a segment goes only when it is known not to be missed",
	"records and names are durable before they count as that", "a checkpoint holds",
}

// TestOrderSeesAll proves that the runs of TestOrder meet each of its rules.
func TestOrderSeesAll(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for seed := range uint64(2) {
		for rule, n := range runOrder(t, &world{}, seed, 60, &disktest.Counts{}) {
			seen[rule] += n
		}
	}
	for _, rule := range orderRules {
		if seen[rule] == 0 {
			t.Errorf("never asked: %s", rule)
		}
		delete(seen, rule)
	}
	if len(seen) > 0 {
		t.Errorf("unknown rules: %v", seen)
	}
}

// orderProofOf is a run with one seed as a proof for TestEverySyncIsNeeded.
func orderProofOf(seed uint64) func(testing.TB, *world) {
	return func(t testing.TB, w *world) { runOrder(t, w, seed, 40, &disktest.Counts{}) }
}

// orderRun drives one log at random under the eyes of an order.
type orderRun struct {
	t      testing.TB
	world  *world
	counts *disktest.Counts
	rng    *rand.Rand
	fs     *disk.Mem
	order  *order
	dir    *Dir
	log    *Log
	cfg    Config
	start  int64
	made   int   // logs beside the one
	next   int64 // the next producer
	seen   map[string]int
}

// runOrder says how often each rule was asked.
func runOrder(t testing.TB, w *world, seed uint64, steps int, c *disktest.Counts) map[string]int {
	r := &orderRun{t: t, world: w, counts: c, rng: rand.New(rand.NewPCG(seed, 11)), seen: map[string]int{}}
	r.begin(disk.NewMem())
	defer func() { _ = r.dir.Close() }()
	r.open()
	for range steps {
		c.Operations.Add(1)
		r.step()
		r.judge()
	}
	mustClose(t, r.dir)
	r.judge()
	r.note()
	return r.seen
}

// begin goes on with a disk.
func (r *orderRun) begin(fs *disk.Mem) {
	r.fs, r.order = fs, r.world.watch(fs)
	r.order.raised(r.start)
}

func (r *orderRun) note() {
	r.order.mu.Lock()
	defer r.order.mu.Unlock()
	for rule, n := range r.order.seen {
		r.seen[rule] += n
	}
}

func (r *orderRun) judge() {
	r.t.Helper()
	if wrong := r.order.faults(); len(wrong) > 0 {
		r.t.Fatal(strings.Join(wrong, "\n"))
	}
}

func (r *orderRun) open() {
	o := r.order
	r.dir = openDir(r.t, r.fs, func(opts *Options) { opts.OnFlush = o.flushed })
	pick := func(of ...int64) int64 { return of[r.rng.IntN(len(of))] }
	r.cfg = Config{
		SegmentBytes: pick(300, 900, 4000), IndexInterval: int(pick(1, 200)), FlushMessages: pick(1, 1, 3, 1<<40),
		TimestampAfter: math.MaxInt64,
	}
	r.log = openLogAt(r.t, r.dir, r.cfg, r.start)
	if r.log.Fenced() {
		r.t.Fatalf("the log has holes: %+v", r.log.Holes())
	}
	o.flushed(r.log) // what was recovered counts as durable
}

func (r *orderRun) step() {
	switch n := r.rng.IntN(100); {
	case n < 50:
		r.append()
	case n < 58:
		r.checkpoint()
	case n < 64:
		waitDurableOrLazy(r.t, r.log, r.cfg)
	case n < 70:
		r.raise()
	case n < 75:
		r.truncate()
	case n < 82:
		r.compact()
	case n < 87:
		r.others()
	case n < 92:
		mustClose(r.t, r.dir)
		r.judge()
		r.open()
	case n < 96:
		r.kill()
	default:
		r.cut()
	}
}

func (r *orderRun) append() {
	for range 1 + r.rng.IntN(4) {
		b := keyedBatch(r.t, record.None, keyed{key: fmt.Sprint(r.rng.IntN(5)), value: strings.Repeat("v", r.rng.IntN(300))})
		if r.next++; r.rng.IntN(3) == 0 {
			b = withProducer(b, r.next, 0, 0) // each is another's
		}
		mustAppend(r.t, r.log, b)
	}
}

func (r *orderRun) raise() {
	o := r.log.Offsets()
	if o.Durable > r.start {
		r.start += r.rng.Int64N(o.Durable - r.start + 1)
	}
	r.order.raised(r.start)
	if err := r.log.SetStart(r.start); err != nil {
		r.t.Fatal(err)
	}
	if r.rng.IntN(2) == 0 {
		r.checkpoint()
	}
}

// checkpoint has the keeper write one, while others go on.
func (r *orderRun) checkpoint() {
	r.dir.keeper.bytes.Store(checkpointBytes)
	r.dir.keeper.signal()
}

func (r *orderRun) truncate() {
	o := r.log.Offsets()
	if err := r.log.Truncate(context.WithoutCancel(r.t.Context()), max(r.start, o.End-r.rng.Int64N(8))); err != nil {
		r.t.Fatal(err)
	}
}

func (r *orderRun) compact() {
	rollNow(r.t, r.log)
	mustCompact(r.t, r.log, NewCleaner(CleanerOptions{MapBytes: []int64{4 * keySlotBytes, 1 << 20}[r.rng.IntN(2)]}))
}

// others makes logs beside the one, which are there when Create returns, and
// removes one, which is gone when Remove returns.
func (r *orderRun) others() {
	var names []LogName
	for range 1 + r.rng.IntN(3) {
		r.made++
		names = append(names, LogName{ID: ID{Topic: TopicID{42}, Partition: int32(r.made)}, Topic: "other"})
	}
	if err := r.dir.Create(names); err != nil {
		r.t.Fatal(err)
	}
	left := r.fs.CrashClone(0, nil)
	for _, n := range names {
		dir := r.dir.logPath(n.ID)
		p, err := readFile(left, path.Join(dir, partitionFile), 1<<10)
		if err != nil || !strings.Contains(string(p), "created:") || len(segmentsIn(left, dir)) != 1 {
			r.t.Fatalf("a log was made and is not durable: %q, %v", p, err)
		}
	}
	l, err := r.dir.OpenLog(context.WithoutCancel(r.t.Context()), names[0].ID, "other", r.cfg, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	mustAppend(r.t, l, batchOf(r.t, record.None, nil, "v"))
	if err := r.dir.Remove(l); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.fs.CrashClone(0, nil).Stat(l.path); err == nil {
		r.t.Fatal("a log was removed, and a power cut brings it back")
	}
}

// kill ends the process; what it has written is in the page cache.
func (r *orderRun) kill() {
	r.counts.Crashes.Add(1)
	r.order.die()
	_ = r.dir.Close()
	r.order.live()
	r.open()
}

// cut cuts the power.
func (r *orderRun) cut() {
	r.counts.Crashes.Add(1)
	left := r.fs.CrashClone(r.rng.Float64(), r.rng)
	r.order.die()
	_ = r.dir.Close()
	r.judge()
	r.note()
	r.begin(left)
	r.open()
}
