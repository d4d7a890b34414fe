package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"leat/storage/disk"
	"leat/storage/record"
)

// TestRecovery plays the scripts in testdata/recovery: what a log looks like
// after its files were damaged in some way, and what is said about it.
//
//	append n=N size=S       N batches of one record of S bytes
//	checkpoint              wait until durable, write a checkpoint
//	crash                   go on with what is in the files, unclean
//	stop                    a clean stop
//	tear file=F by=N        cut N bytes off the end of F
//	zeros file=F n=N        add N zeros to F
//	garbage file=F n=N      add N other bytes to F
//	flip file=F at=N        change the byte at N (negative: from the end)
//	remove file=F
//	open                    open, say what was logged, read everything
//	repair                  accept the holes, say what was lost, append a record
//	files                   list the files and sizes
//	check                   what the check of the whole directory finds
func TestRecovery(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/recovery", func(t *testing.T, file string) {
		r := &recoveryScript{t: t, fs: disk.NewMem()}
		datadriven.RunTest(t, file, r.command)
		r.stop()
	})
}

type recoveryScript struct {
	t     *testing.T
	fs    *disk.Mem
	dir   *Dir
	log   *Log
	lines bytes.Buffer
}

func (r *recoveryScript) command(t *testing.T, d *datadriven.TestData) string {
	r.t = t
	arg := func(name string) (n int) {
		d.MaybeScanArgs(t, name, &n)
		return n
	}
	var file string
	d.MaybeScanArgs(t, "file", &file)
	switch d.Cmd {
	case "append":
		if r.log == nil {
			if out := r.open(); r.log == nil {
				return out
			}
		}
		for range max(arg("n"), 1) {
			mustAppend(t, r.log, batchOf(t, record.None, nil, strings.Repeat("v", arg("size"))))
		}
		waitDurable(t, r.log)
		return fmt.Sprintf("end %d, %d segments", r.log.Offsets().End, r.log.Segments())
	case "checkpoint":
		forceCheckpoint(t, r.dir)
	case "crash":
		r.crash()
	case "stop":
		r.stop()
	case "open":
		return r.open()
	case "repair":
		return r.repair()
	case "files":
		return r.files()
	case "check":
		return r.check()
	default:
		r.damage(d.Cmd, path.Join("/data/logs", testID.dirName(), file), arg)
	}
	return ""
}

func (r *recoveryScript) check() string {
	out := ""
	for _, f := range check(r.t, r.fs).Findings {
		out += fmt.Sprintf("%v %s: %s\n", f.Severity, path.Base(f.Path), f.What)
	}
	return out
}

func (r *recoveryScript) crash() {
	clone := r.fs.CrashClone(1, nil)
	r.stop()
	r.fs = clone
}

func (r *recoveryScript) stop() {
	if r.dir != nil {
		mustClose(r.t, r.dir)
	}
	r.dir, r.log = nil, nil
}

func (r *recoveryScript) open() string {
	r.lines.Reset()
	logger := slog.New(slog.NewTextHandler(&r.lines, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "took" || a.Key == "topic" || a.Key == "partition" {
			return slog.Attr{}
		}
		return a
	}}))
	if r.dir == nil {
		r.dir = openDir(r.t, r.fs, func(o *Options) { o.Logger = logger })
	}
	l, err := r.dir.OpenLog(context.WithoutCancel(r.t.Context()), testID, "orders", Config{SegmentBytes: 1000, IndexInterval: 200}, 0)
	out := strings.ReplaceAll(r.lines.String(), "/data/logs/"+testID.dirName()+"/", "")
	if err != nil {
		return out + err.Error()
	}
	r.log = l
	out += r.read()
	o := l.Offsets()
	out += fmt.Sprintf("start %d durable %d end %d, %d segments", o.Start, o.Durable, o.End, l.Segments())
	if l.Fenced() {
		_, err := l.Append(Append{Batch: batchOf(r.t, record.None, nil, "v")})
		out += fmt.Sprintf("; append: %v", err)
	}
	return out
}

func (r *recoveryScript) repair() string {
	done, err := r.log.Repair(r.t.Context())
	if err != nil {
		return err.Error()
	}
	var out string
	for _, h := range done.Holes {
		out += fmt.Sprintf("lost [%d, %d)\n", h.From, h.To)
	}
	a := mustAppend(r.t, r.log, batchOf(r.t, record.None, nil, "after"))
	waitDurable(r.t, r.log)
	return out + r.read() + fmt.Sprintf("start %d, appended at %d, %d segments", done.Start, a.Base, r.log.Segments())
}

// read reads everything and says where it cannot.
func (r *recoveryScript) read() (out string) {
	o := r.log.Offsets()
	for from := o.Start; from < o.End; {
		s, err := r.log.Read(from, 1, o.End)
		if hole, is := errors.AsType[*CorruptError](err); is && hole.To > from {
			out += fmt.Sprintf("hole [%d, %d): %s at %d: %v\n", hole.From, hole.To, path.Base(hole.Path), hole.Pos, hole.Err)
			from = hole.To
			continue
		}
		if err != nil || s == nil {
			return out + fmt.Sprintf("read %d: %v\n", from, err)
		}
		b := make(record.Batch, s.Len())
		if _, err := s.ReadAt(b, 0); err != nil {
			r.t.Fatal(err)
		}
		s.Release()
		if err := b.VerifyCRC(); err != nil || b.BaseOffset() != from {
			out += fmt.Sprintf("offset %d: %d, %v\n", from, b.BaseOffset(), err)
		}
		from = b.NextOffset()
	}
	return out
}

func (r *recoveryScript) files() string {
	var b strings.Builder
	for _, dir := range []string{path.Join("/data/logs", testID.dirName()), "/data/quarantine"} {
		names, err := r.fs.List(dir)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, name := range names {
			info, err := r.fs.Stat(path.Join(dir, name))
			if err != nil {
				r.t.Fatal(err)
			}
			if dir == "/data/quarantine" {
				name = "quarantine/" + name[:strings.LastIndexByte(name, '.')]
			}
			if name != partitionFile {
				fmt.Fprintf(&b, "%s %d\n", strings.TrimPrefix(name, "quarantine/"+testID.dirName()+"."), info.Size())
			}
		}
	}
	return b.String()
}

func (r *recoveryScript) damage(cmd, file string, arg func(string) int) {
	if cmd == "remove" {
		if err := r.fs.Remove(file); err != nil {
			r.t.Fatal(err)
		}
		return
	}
	var p []byte
	if _, err := r.fs.Stat(file); err == nil {
		p = fileBytes(r.t, r.fs, file)
	}
	if strings.HasSuffix(file, logSuffix) {
		p = bytes.TrimRight(p, "\x00") // preallocated
		p = append(p, 0)               // the last byte of a record without headers
	}
	switch cmd {
	case "tear":
		p = p[:len(p)-arg("by")]
	case "zeros":
		p = append(p, make([]byte, arg("n"))...)
	case "garbage":
		p = append(p, bytes.Repeat([]byte{0xa5}, arg("n"))...)
	case "flip":
		at := arg("at")
		if at < 0 {
			at += len(p)
		}
		p[at] ^= 0x10
	default:
		r.t.Fatalf("unknown command %s", cmd)
	}
	setFile(r.t, r.fs, file, p)
}

// TestTornAtEveryByte proves that a log whose last two batches were torn at
// any byte ends with the last whole batch, and that the next record gets that
// offset (case 37).
func TestTornAtEveryByte(t *testing.T) {
	unraced(t)
	t.Parallel()
	whole, m := recoveryFixture(t)
	name := path.Join("/data/logs", testID.dirName(), segmentName(0, 0)+logSuffix)
	p := bytes.TrimRight(fileBytes(t, whole, name), "\x00")
	total := 0
	for _, b := range m.batches {
		total += len(b)
	}
	p = append(p, make([]byte, total-len(p))...) // a batch may end in zeros
	last := len(m.batches[len(m.batches)-1]) + len(m.batches[len(m.batches)-2])
	for cut := range last + 1 {
		for _, tail := range [][]byte{nil, make([]byte, 700), bytes.Repeat([]byte{0xff}, 700)} {
			fs := whole.CrashClone(1, nil)
			want := model{batches: m.batches}
			content := append(bytes.Clone(p[:len(p)-cut]), tail...)
			setFile(t, fs, name, content)
			d := openDir(t, fs)
			l := openLog(t, d, Config{})
			// What was torn off may be the same as what is there now.
			kept := 0
			for kept < min(len(content), len(p)) && content[kept] == p[kept] {
				kept++
			}
			for {
				size := 0
				for _, b := range want.batches {
					size += len(b)
				}
				if size <= kept {
					break
				}
				want.batches = want.batches[:len(want.batches)-1]
			}
			want.check(t, l, rand.New(rand.NewPCG(1, 1)))
			next := batchOf(t, record.None, nil, "next")
			mustAppend(t, l, next)
			want.batches = append(slices.Clip(want.batches), next)
			mustClose(t, d)
			d = openDir(t, fs)
			want.check(t, openLog(t, d, Config{}), rand.New(rand.NewPCG(1, 1)))
			mustClose(t, d)
		}
	}
}

// TestTornSector proves that a batch of which any sector was lost is cut, and
// with it whatever valid batch is behind it.
func TestTornSector(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, Config{})
	value := make([]byte, 5000)
	for i := range value {
		value[i] = byte(i) | 1
	}
	for range 3 {
		mustAppend(t, l, batchOf(t, record.None, nil, string(value)))
	}
	name := l.activeLocked().logPath()
	left := fs.CrashClone(1, nil)
	mustClose(t, d)
	p := fileBytes(t, left, name)
	size := len(batchOf(t, record.None, nil, string(value)))
	for at := size; at < 2*size; at += 512 {
		torn := bytes.Clone(p)
		clear(torn[at:min(at+512, 2*size)])
		fs := left.CrashClone(1, nil)
		setFile(t, fs, name, torn)
		d := openDir(t, fs)
		if o := openLog(t, d, Config{}).Offsets(); o.End != 1 {
			t.Fatalf("sector at %d lost: %+v", at, o)
		}
		mustClose(t, d)
	}
}

// recoveryFixture is a log of six batches after kill -9 without a checkpoint.
func recoveryFixture(t *testing.T) (*disk.Mem, *model) {
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, Config{})
	m := &model{}
	for i := range 6 {
		b := batchOf(t, record.None, nil, strings.Repeat("x", 20), fmt.Sprint(i))
		mustAppend(t, l, b)
		m.add(b)
	}
	waitDurable(t, l)
	clone := fs.CrashClone(1, nil)
	mustClose(t, d)
	return clone, m
}

// TestZerosDoNotGrow proves that preallocated zeros behind the last batch are
// no damage, and that restarts change neither the number of files nor their
// sizes, nor take their time.
func TestZerosDoNotGrow(t *testing.T) {
	t.Parallel()
	fs, m := recoveryFixture(t)
	name := path.Join("/data/logs", testID.dirName(), segmentName(0, 0)+logSuffix)
	setFile(t, fs, name, append(fileBytes(t, fs, name), make([]byte, 32<<20)...))
	began := time.Now()
	var size int64
	for i := range 20 {
		d := openDir(t, fs)
		l := openLog(t, d, Config{})
		m.check(t, l, rand.New(rand.NewPCG(1, 1)))
		info, err := fs.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && info.Size() != size || info.Size() > 1<<20 {
			t.Fatalf("start %d: the .log has %d bytes, before %d", i, info.Size(), size)
		}
		size = info.Size()
		left := fs.CrashClone(1, nil)
		mustClose(t, d)
		fs = left
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Fatalf("20 starts took %v", took)
	}
	names, err := fs.List(path.Join("/data/logs", testID.dirName()))
	if err != nil || len(names) != 4 {
		t.Fatalf("files after 20 starts: %v, %v", names, err)
	}
}

// TestDurableUntil is the table of how far a segment is known to be durable.
func TestDurableUntil(t *testing.T) {
	rec := checkpointRecord{activeBase: 100, recoveryOffset: 130}
	for _, c := range []struct {
		what        string
		base, next  int64
		sealed      bool
		later, know bool
		want        int64
	}{
		{"nothing known, last", 50, -1, false, false, false, 50},
		{"nothing known, another behind it", 50, 100, false, false, false, 50},
		{"sealed", 50, -1, true, false, false, 90},
		{"a sealed one behind it", 50, 100, false, true, false, 100},
		{"the checkpoint is past it", 50, 100, false, false, true, 100},
		{"the checkpoint is in it", 100, -1, false, false, true, 130},
		{"behind the checkpoint", 200, -1, false, false, true, 200},
	} {
		got := durableUntil(c.base, c.next, c.sealed, seal{next: 90}, c.later, rec, c.know)
		if got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
}

// TestChooseTail is the table of what happens behind the last whole batch.
func TestChooseTail(t *testing.T) {
	for _, c := range []struct {
		rest        int64
		zero, inner bool
		want        tailAction
	}{
		{0, true, false, tailKeep},
		{1000, true, false, tailKeep},
		{maxPrealloc + 1, true, false, tailCut},
		{1000, true, true, tailCut},
		{1, false, false, tailSave},
		{1, false, true, tailSave},
	} {
		if got := chooseTail(c.rest, c.zero, c.inner); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// TestStartWithoutDescriptors proves that a log opens, and the directory has not
// failed, when there is no descriptor for a moment while the checkpoint is told
// where the log begins.
func TestStartWithoutDescriptors(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	d := openDir(t, fs)
	refused := 0
	fs.SetFault(func(op disk.Op) error { // of the name of the checkpoint's slot
		if op.Kind == disk.OpSyncDir && op.Path == "/data" && refused < 3 {
			refused++
			return syscall.EMFILE
		}
		return nil
	})
	if o := openLogAt(t, d, Config{}, 5).Offsets(); o.Start != 5 || o.End != 5 {
		t.Errorf("the log begins with %+v", o)
	}
	if err := d.Failed(); err != nil || refused < 3 {
		t.Errorf("refused %d times, failed: %v", refused, err)
	}
	fs.SetFault(nil)
	if r := readCheckpoint(fs.CrashClone(0, nil), "/data").records[testID]; r.logStart != 5 {
		t.Errorf("after a power cut the checkpoint has the start %d", r.logStart)
	}
	mustClose(t, d)
}
