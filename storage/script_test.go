package storage

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// world is the disks of a proof, all of which lack the same call: that is how
// TestEverySyncIsNeeded asks a proof whether it would notice.
type world struct {
	mute func() bool  // asked before each sync and rename; nil for a whole world
	hits atomic.Int64 // how often mute said yes
}

// disk is a fresh disk of this world.
func (w *world) disk() *disk.Mem {
	fs := disk.NewMem()
	w.fault(fs, nil)
	return fs
}

// fault is fs.SetFault in this world; fn may be nil.
func (w *world) fault(fs *disk.Mem, fn func(disk.Op) error) {
	fs.SetFault(func(op disk.Op) error {
		var err error
		if fn != nil {
			err = fn(op)
		}
		if err == nil && w.skips(op) {
			err = disk.ErrSkip
		}
		return err
	})
}

// promise is what a directory has said at some moment and must keep.
type promise struct {
	identity Identity // zero until Open has returned
	running  bool     // the next start is not one after a clean stop
	stopped  bool     // the next start is
	created  bool     // the log's directory is whole
	stray    bool     // the log that the metadata will forget has a durable record
	gone     bool     // the second log is removed
	start    int64    // of the log, as its owner has it durable
	was      Offsets  // of the log
}

// cut is what a power cut leaves, and what must be in it.
type cut struct {
	fs      *disk.Mem
	keep    float64
	n       int // of the operation that the cut came before
	promise promise
}

// cutter cuts the power before every operation that changes something.
type cutter struct {
	mu      sync.Mutex
	rolls   *rand.Rand // what is kept; nil: by the number of the cut
	promise promise
	offsets func() Offsets // of the log; nil while it is not open
	cuts    []cut
	n       int
	batches []record.Batch // that the log has in the end
}

// at takes the clones of this moment.
func (c *cutter) at(fs *disk.Mem, keeps []float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	p := c.promise
	if c.offsets != nil {
		p.was = c.offsets()
	}
	for i, keep := range keeps {
		rng := c.rolls
		if rng == nil {
			rng = rand.New(rand.NewPCG(uint64(c.n), uint64(i)+1))
		}
		c.cuts = append(c.cuts, cut{fs: fs.CrashClone(keep, rng), keep: keep, n: c.n, promise: p})
	}
}

// say changes the promise.
func (c *cutter) say(fn func(*promise)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn(&c.promise)
}

// follow takes the log's offsets from now on, nil: as they are.
func (c *cutter) follow(offsets func() Offsets) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.offsets != nil {
		c.promise.was = c.offsets()
	}
	c.offsets = offsets
}

// script is a fixed run over every kind of write that a directory and a log
// do: create, append with and without producers, roll, seal, checkpoint, raise
// the start, remove, set aside, clean stop, start.
type script struct {
	*world
	cutter
	cfg       Config
	noSyncAll bool // the kernel has no syncfs that can be trusted
	keeps     []float64
	model     model
}

var (
	scriptConfig = Config{SegmentBytes: 900, IndexInterval: 1}
	lazyConfig   = Config{SegmentBytes: 900, IndexInterval: 1, FlushMessages: 1 << 40}
	goneID       = ID{Topic: TopicID{9}}
	strayID      = ID{Topic: TopicID{8}}
	lateID       = ID{Topic: TopicID{7}}
)

// watch has every operation on fs seen by c.
func (s *script) watch(fs *disk.Mem, c *cutter) {
	s.fault(fs, func(op disk.Op) error {
		if c != nil && op.Kind.Changes() {
			c.at(fs, s.keeps)
		}
		if s.noSyncAll && op.Kind == disk.OpSyncAll {
			return disk.ErrUnsupported
		}
		return nil
	})
}

// run plays the script.
func (s *script) run(t testing.TB) {
	fs := disk.NewMem()
	s.watch(fs, &s.cutter)
	d := s.open(t, fs)
	err := d.Create([]LogName{{ID: testID, Topic: "orders"}, {ID: goneID, Topic: "gone"}, {ID: strayID, Topic: "stray"}})
	if err != nil {
		t.Fatal(err)
	}
	s.say(func(p *promise) { p.created = true })
	stray := s.other(t, d, strayID)
	mustAppend(t, stray, batchOf(t, record.None, nil, "stray"))
	waitDurable(t, stray)
	s.say(func(p *promise) { p.stray = true })
	s.fill(t, d)
	if err := d.Remove(s.other(t, d, goneID)); err != nil {
		t.Fatal(err)
	}
	s.say(func(p *promise) { p.gone = true })
	s.close(t, d)

	d = s.open(t, fs)
	if err := d.SetAside(fateOf); err != nil {
		t.Fatal(err)
	}
	if err := d.Create([]LogName{{ID: lateID, Topic: "late"}}); err != nil {
		t.Fatal(err)
	}
	s.fill(t, d)
	s.close(t, d)
	fs.SetFault(nil)
	s.batches = s.model.batches
}

func (s *script) open(t testing.TB, fs *disk.Mem) *Dir {
	s.say(func(p *promise) { p.stopped = false })
	d := openDir(t, fs)
	t.Cleanup(func() { _ = d.Close() })
	s.say(func(p *promise) { p.identity, p.running = d.Identity(), true })
	return d
}

func (s *script) close(t testing.TB, d *Dir) {
	s.follow(nil)
	s.say(func(p *promise) { p.running = false })
	mustClose(t, d)
	s.say(func(p *promise) { p.stopped, p.was.Durable = true, p.was.End })
}

func (s *script) other(t testing.TB, d *Dir, id ID) *Log {
	l, err := d.OpenLog(t.Context(), id, "other", scriptConfig, 0)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// fateOf is what the metadata says in the end: one log is there, one was
// deleted, and of the third it knows nothing.
func fateOf(id ID) Fate {
	switch id {
	case testID, lateID:
		return Keep
	case goneID:
		return Trash
	default:
		return Unknown
	}
}

// fill opens the log, appends to it and raises its start.
func (s *script) fill(t testing.TB, d *Dir) {
	l := openLogAt(t, d, s.cfg, s.promise.start)
	s.follow(l.Offsets)
	for i := range 8 {
		b := batchOf(t, record.None, nil, strings.Repeat(string(rune('a'+i)), 100+50*i), "second")
		if i%2 == 0 {
			b = withProducer(b, 100+s.model.end(), 0, 0)
		}
		if _, err := l.Append(Append{Batch: b, Epoch: 3}); err != nil {
			t.Fatal(err)
		}
		s.model.add(b)
		switch i {
		case 3:
			waitDurableOrLazy(t, l, s.cfg)
		case 4:
			forceCheckpoint(t, d)
		case 5, 7:
			// Within a segment, in the middle of a batch; and all there is.
			start := s.model.end() - int64(7-i)*3/2
			s.say(func(p *promise) { p.start = start })
			s.model.start = start
			if err := l.SetStart(start); err != nil {
				t.Fatal(err)
			}
			forceCheckpoint(t, d)
		}
	}
}

// judge opens what a cut has left and compares it with what was promised. The
// directory is used and closed. batches are those that may be in the log; c, if there is one, cuts the power on the way.
func (s *script) judge(t testing.TB, left cut, batches []record.Batch, c *cutter) {
	defer func() {
		if t.Failed() {
			t.Errorf("keep=%v, cut before operation %d, promised %+v", left.keep, left.n, left.promise)
		}
	}()
	p, fs := left.promise, left.fs
	s.watch(fs, c)
	defer fs.SetFault(nil)
	checkNames(t, fs, p)
	checkCrashed(t, fs, p)
	d := openDir(t, fs)
	defer func() { _ = d.Close() }()
	switch {
	case p.identity != (Identity{}) && d.Identity() != p.identity:
		t.Fatalf("the directory is %+v", d.Identity())
	case p.running && !d.Unclean(), p.stopped && d.Unclean():
		t.Fatalf("unclean %t", d.Unclean())
	}
	err := d.SetAside(func(id ID) Fate {
		if _, err := fs.Stat(d.logPath(id)); err != nil {
			return Unknown // the crash came before it was made, and before the metadata knew it
		}
		return fateOf(id)
	})
	if err != nil {
		t.Fatal(err)
	}
	checkAside(t, fs, p)
	l := openWhole(t, d, s.cfg, p.start)
	o := l.Offsets()
	if o.Start != p.start || o.End < p.was.Durable || left.keep == 1 && o.End < p.was.End || o.Durable != o.End {
		t.Fatalf("the log is %+v", o)
	}
	m := model{batches: slices.Clip(batches), start: p.start}
	m.cutAt(o.End)
	m.check(t, l, rand.New(rand.NewPCG(1, 1)))
	if c != nil {
		c.say(func(p *promise) { p.was = o })
		c.follow(l.Offsets)
	}
	b := batchOf(t, record.None, nil, "next")
	if at, err := l.Append(Append{Batch: b, Epoch: 3}); err != nil || at.Base != o.End {
		t.Fatalf("the next append got offset %d, want %d: %v", at.Base, o.End, err)
	}
	m.batches = append(slices.Clip(m.batches), b)
	m.check(t, l, rand.New(rand.NewPCG(1, 1)))
	waitDurableOrLazy(t, l, s.cfg)
	if c != nil {
		c.follow(nil)
		c.batches = m.batches
	}
}

// checkNames looks for what must have a name before anything is opened.
func checkNames(t testing.TB, fs *disk.Mem, p promise) {
	dir := path.Join("/data", logsDir)
	if p.created {
		text, err := readFile(fs, path.Join(dir, testID.dirName(), partitionFile), 1<<10)
		if err != nil || !strings.Contains(string(text), "created:") {
			t.Fatalf("the file that says which log it is: %q, %v", text, err)
		}
	}
	if _, err := fs.Stat(path.Join(dir, goneID.dirName())); p.gone && err == nil {
		t.Fatal("a removed log came back")
	}
}

// checkCrashed wants Check to find warnings at most in what a crash left.
func checkCrashed(t testing.TB, fs *disk.Mem, p promise) {
	r, err := Check(t.Context(), CheckOptions{FS: fs, Path: "/data", Records: true})
	if p.identity == (Identity{}) && err != nil {
		return // the cut came before there was anything
	}
	if err != nil {
		t.Fatal(err)
	}
	if r.Damages > 0 {
		t.Fatalf("check:\n%s", r.lines())
	}
}

// checkAside looks at what SetAside left.
func checkAside(t testing.TB, fs *disk.Mem, p promise) {
	names, err := fs.List(path.Join("/data", logsDir))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if id, ok := parseDirName(name); !ok || fateOf(id) != Keep {
			t.Fatalf("%s was not set aside", name)
		}
	}
	kept, err := fs.List(path.Join("/data", quarantineDir))
	if err != nil {
		t.Fatal(err)
	}
	if p.stray && !slices.ContainsFunc(kept, func(name string) bool { return strings.HasPrefix(name, strayID.dirName()) }) {
		t.Fatalf("the records of an unknown log are gone: %v", kept)
	}
}

// proveScript runs the script and cuts the power before every operation of it,
// and before every step-th operation of the recovery after that.
func (s *script) prove(t testing.TB, step int) (cuts, again int) {
	s.run(t)
	for i, left := range s.cuts {
		var c *cutter
		if i%step == 0 {
			c = &cutter{promise: left.promise}
			c.promise.running, c.promise.stopped = false, false
		}
		s.keepsFor(left.keep, func() { s.judge(t, left, s.batches, c) })
		if c == nil {
			continue
		}
		for _, twice := range c.cuts {
			s.judge(t, twice, c.batches, nil)
		}
		again += len(c.cuts)
	}
	return len(s.cuts), again
}

// keepsFor has cuts in fn keep as much as the one before.
func (s *script) keepsFor(keep float64, fn func()) {
	was := s.keeps
	s.keeps = []float64{keep}
	fn()
	s.keeps = was
}

// shortStep leaves enough second cuts out for the race detector's patience.
const shortStep = 48

// TestCrashEverywhere proves that a power cut before any operation on the
// file system loses nothing that was promised and leaves a log that opens,
// appends and reads, and in which Check finds no damage; and so does a second
// cut before any operation of the recovery.
func TestCrashEverywhere(t *testing.T) {
	unraced(t)
	t.Parallel()
	for _, keep := range []float64{0, 0.5, 1} {
		for _, s := range []*script{
			{world: &world{}, cfg: scriptConfig},
			{world: &world{}, cfg: scriptConfig, noSyncAll: true},
			{world: &world{}, cfg: lazyConfig},
		} {
			s.keeps = []float64{keep}
			t.Run(fmt.Sprintf("keep=%v,syncfs=%t,flush=%d", keep, !s.noSyncAll, s.cfg.FlushMessages), func(t *testing.T) {
				t.Parallel()
				cuts, again := s.prove(t, shortStep)
				t.Logf("cut before each of %d operations, and %d times again", cuts, again)
			})
		}
	}
}
