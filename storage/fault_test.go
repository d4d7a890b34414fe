package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// oneFault fails the n-th operation that pick picks, anywhere in the directory,
// and says afterwards which one that was.
type oneFault struct {
	mu   sync.Mutex
	n    int
	err  error
	pick func(disk.OpKind) bool
	hit  disk.Op
}

func (f *oneFault) fault(op disk.Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.pick(op.Kind) {
		return nil
	}
	if f.n--; f.n != 0 {
		return nil
	}
	f.hit = op
	if op.Kind == disk.OpWrite {
		return &disk.ShortWriteError{N: op.Len / 2, Err: f.err}
	}
	return f.err
}

func (f *oneFault) what() disk.Op {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hit
}

// faultScript is a life of a log with everything that writes: appends that
// begin segments, checkpoints, seals, a start that rises, a partition that is
// made and one that is removed. It returns what was appended, and each error
// goes to judge.
func faultScript(t *testing.T, d *Dir, l *Log, judge func(step string, err error)) model {
	t.Helper()
	var m model
	for i := range 10 {
		b := batchOf(t, record.None, nil, strings.Repeat("x", 150), fmt.Sprint(i))
		_, err := l.Append(Append{Batch: b})
		judge("append", err)
		if err == nil {
			m.add(b)
		}
		switch i {
		case 3, 7:
			d.keeper.bytes.Store(checkpointBytes)
			d.keeper.signal()
		case 5:
			id := ID{Topic: TopicID{7}}
			err := d.Create([]LogName{{ID: id}})
			judge("create", err)
			if err != nil {
				continue
			}
			second, err := d.OpenLog(t.Context(), id, "second", scriptConfig, 0)
			judge("open", err)
			if err == nil {
				judge("remove", d.Remove(second))
			}
		case 8:
			// What is not durable cannot be given up.
			m.start = min(l.Offsets().Durable, 4)
			judge("start", l.SetStart(m.start))
		}
	}
	return m
}

func TestNoRoomAnywhere(t *testing.T) {
	// Proves that a disk, a quota or a limit that is full at any one write,
	// allocation, create or rename, also of what the background writes, fails at
	// most the request that met it: the directory goes on, and after a clean stop
	// everything that was appended is there and nothing else.
	t.Parallel()
	picks := func(k disk.OpKind) bool {
		switch k { //nolint:exhaustive // the others take no room
		case disk.OpWrite, disk.OpAllocate, disk.OpOpen, disk.OpMkdir, disk.OpRename:
			return true
		}
		return false
	}
	for i, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG} {
		for at := 1 + i; ; at += 1 + i { // each for the first, some for the others
			fs := disk.NewMem()
			d := openDir(t, fs)
			if err := d.Create([]LogName{{ID: testID}}); err != nil {
				t.Fatal(err)
			}
			l := openLog(t, d, scriptConfig)
			f := &oneFault{n: at, err: errno, pick: picks}
			fs.SetFault(f.fault)
			m := faultScript(t, d, l, func(step string, err error) {
				if err != nil && !errors.Is(err, errno) {
					t.Fatalf("%v at operation %d, %v of %s: %s: %v", errno, at, f.what().Kind, f.what().Path, step, err)
				}
			})
			waitDurable(t, l)
			hit := f.what()
			fs.SetFault(nil)
			if err := d.Failed(); err != nil {
				t.Fatalf("%v at operation %d, %v of %s failed the directory: %v", errno, at, hit.Kind, hit.Path, err)
			}
			m.check(t, l, rand.New(rand.NewPCG(1, 1)))
			mustClose(t, d)
			d = openDir(t, fs)
			m.check(t, openLogAt(t, d, scriptConfig, m.start), rand.New(rand.NewPCG(1, 1)))
			mustClose(t, d)
			if hit.Path == "" {
				t.Logf("%v at up to %d operations", errno, at-1)
				break
			}
		}
	}
}

func TestErrorsAnywhere(t *testing.T) {
	// Proves of an I/O error at any one operation: whatever it was, nothing that
	// was durable is lost by a power cut afterwards; if it was a sync, which works
	// again the next time, the directory has failed nevertheless, and nothing
	// becomes durable any more.
	t.Parallel()
	for at := 1; ; at++ {
		fs := disk.NewMem()
		d := openDir(t, fs)
		if err := d.Create([]LogName{{ID: testID}}); err != nil {
			t.Fatal(err)
		}
		l := openLog(t, d, scriptConfig)
		f := &oneFault{n: at, err: syscall.EIO, pick: func(k disk.OpKind) bool { return k != disk.OpStat }}
		fs.SetFault(f.fault)
		m := faultScript(t, d, l, func(step string, err error) {
			if err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, ErrFailed) {
				t.Fatalf("operation %d, %v of %s: %s: %v", at, f.what().Kind, f.what().Path, step, err)
			}
		})
		eventually(t, "the end", func() bool { return d.Failed() != nil || l.Offsets().Durable == l.Offsets().End })
		hit := f.what()
		switch hit.Kind { //nolint:exhaustive // syncs only
		case disk.OpSync, disk.OpSyncData, disk.OpSyncAll, disk.OpSyncDir:
			eventually(t, fmt.Sprintf("the failure by %v of %s", hit.Kind, hit.Path), func() bool { return d.Failed() != nil })
			was := l.Offsets().Durable
			d.flusher.touch(l, l.config.Load())
			if _, err := l.Append(Append{Batch: batchOf(t, record.None, nil, "after")}); !errors.Is(err, ErrFailed) || l.Offsets().Durable != was {
				t.Fatalf("%v of %s: append after it: %v", hit.Kind, hit.Path, err)
			}
		}
		durable := l.Offsets().Durable
		fs.SetFault(nil)
		cut := fs.CrashClone(0, nil)
		_ = d.Close() // it says what failed
		d = openDir(t, cut)
		l = openLogAt(t, d, scriptConfig, m.start)
		if o := l.Offsets(); o.End < durable {
			t.Fatalf("operation %d, %v of %s: %d was durable, after the power cut %+v", at, hit.Kind, hit.Path, durable, o)
		}
		m.cutAt(l.Offsets().End)
		m.check(t, l, rand.New(rand.NewPCG(1, 1)))
		mustClose(t, d)
		if hit.Path == "" {
			t.Logf("failed at each of %d operations", at-1)
			return
		}
	}
}
