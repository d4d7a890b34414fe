package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"syscall"
	"testing"
)

// bench is a Mem with short-hands that end the test on an error.
type bench struct {
	t *testing.T
	*Mem
}

func newBench(t *testing.T) bench { return bench{t, NewMem()} }

func (b bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b bench) file(name string) File {
	b.t.Helper()
	f, err := b.OpenFile(name, create)
	b.must(err)
	return f
}

func (b bench) put(name, data string) File {
	b.t.Helper()
	f := b.file(name)
	_, err := f.WriteAt([]byte(data), 0)
	b.must(err)
	return f
}

// durable makes a file that survives any crash.
func (b bench) durable(name, data string) File {
	b.t.Helper()
	b.must(b.MkdirAll(path.Dir(name)))
	f := b.put(name, data)
	b.must(b.SyncAll("/"))
	return f
}

// tree is every path of m with its content; directories have "dir".
func tree(t *testing.T, m *Mem) map[string]string {
	t.Helper()
	got := map[string]string{}
	var walk func(dir string)
	walk = func(dir string) {
		names, err := m.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			p := path.Join(dir, name)
			info, err := m.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			if info.IsDir() {
				got[p] = "dir"
				walk(p)
				continue
			}
			f, err := m.OpenFile(p, os.O_RDONLY)
			if err != nil {
				t.Fatal(err)
			}
			data, err := io.ReadAll(io.NewSectionReader(f, 0, info.Size()+1))
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			got[p] = string(data)
		}
	}
	walk("/")
	return got
}

func TestFault(t *testing.T) {
	// Proves that the fault function sees each operation before it happens,
	// outside all locks, and that its error is the result.
	b := newBench(t)
	b.durable("/d/a", "abc")
	var seen []string
	b.SetFault(func(op Op) error {
		seen = append(seen, fmt.Sprintf("%s %s %d+%d", op.Kind, op.Path, op.Off, op.Len))
		b.CrashClone(0, nil)
		switch op.Kind {
		case OpWrite:
			return &ShortWriteError{N: 2, Err: syscall.EIO}
		case OpRemove:
			return syscall.EROFS
		default:
			return nil
		}
	})
	f := b.file("d//x/../a")
	n, err := f.WriteVec([][]byte{[]byte("X"), []byte("YZ")}, 1)
	if n != 2 || !errors.Is(err, syscall.EIO) {
		t.Errorf("WriteVec = %d, %v", n, err)
	}
	if err := b.Remove("/d/a"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("Remove = %v", err)
	}
	b.must(b.Rename("/d/a", "/d/b"))
	b.SetFault(nil)
	if got := tree(t, b.Mem)["/d/b"]; got != "aXY" {
		t.Errorf("content %q", got)
	}
	want := []string{"open /d/a 0+0", "write /d/a 1+3", "remove /d/a 0+0", "rename /d/a 0+0"}
	if !slices.Equal(seen, want) {
		t.Errorf("seen %q, want %q", seen, want)
	}
}

func TestNoSpace(t *testing.T) {
	// Proves that a full disk cuts writes short, refuses allocations whole,
	// and that space comes back when the last name and handle are gone.
	b := newBench(t)
	b.SetFree(3 * pageSize)
	f := b.file("/a")
	n, err := f.WriteAt(make([]byte, 4*pageSize), 100)
	if n != 3*pageSize-100 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("WriteAt = %d, %v", n, err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 3*pageSize {
		t.Errorf("size %d, %v", info.Size(), err)
	}
	_, err = f.WriteAt([]byte("inside"), 10)
	b.must(err)
	g := b.file("/b")
	if err := g.Allocate(0, 1); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Allocate = %v", err)
	}
	b.must(f.Truncate(pageSize + 1))
	if err := g.Allocate(0, 2*pageSize); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Allocate = %v", err)
	}
	b.must(g.Allocate(0, pageSize))
	b.must(b.Remove("/a"))
	if _, err := g.WriteAt([]byte("x"), pageSize); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the space of an open file came back: %v", err)
	}
	b.must(f.Close())
	_, err = g.WriteAt([]byte("x"), pageSize)
	b.must(err)
	if u, err := b.Usage("/"); err != nil || u.Free != pageSize {
		t.Errorf("Usage = %+v, %v", u, err)
	}
	b.must(g.Sync())
	b.must(b.SyncDir("/"))
	if u, err := b.CrashClone(0, nil).Usage("/"); err != nil || u.Free != pageSize {
		t.Errorf("Usage of the clone = %+v, %v", u, err)
	}
}

func TestCapacity(t *testing.T) {
	// Proves that a disk of a given size reports that size however much is on it,
	// takes what fits and no more, and has room again when files go.
	b := newBench(t)
	usage := func(total, free uint64) {
		t.Helper()
		if u, err := b.Usage("/"); err != nil || u != (Usage{Total: total * pageSize, Free: free * pageSize}) {
			t.Fatalf("Usage = %+v, %v; want %d and %d pages", u, err, total, free)
		}
	}
	b.SetCapacity(4 * pageSize)
	usage(4, 4)
	f := b.file("/a")
	b.must(f.Allocate(0, 3*pageSize))
	usage(4, 1)
	if n, err := b.file("/b").WriteAt(make([]byte, 2*pageSize), 0); n != pageSize || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("WriteAt = %d, %v", n, err)
	}
	usage(4, 0)
	b.SetCapacity(2 * pageSize) // smaller than what it holds
	usage(2, 0)
	b.must(f.Truncate(0))
	usage(2, 1)
	b.SetCapacity(-1)
	b.must(f.Allocate(0, 100*pageSize))
}

func TestStall(t *testing.T) {
	// Proves that a stalled operation waits and then does what it should, that
	// others do not wait for it, and that release ends its own stall only.
	b := newBench(t)
	f := b.file("/a")
	begun := make(chan bool, 9)
	syncs := func(op Op) bool {
		if op.Kind == OpSync {
			begun <- true
		}
		return op.Kind == OpSync
	}
	first := b.Stall(syncs)
	done := make(chan error, 2)
	go func() { done <- f.Sync() }()
	<-begun
	_, err := f.WriteAt([]byte("x"), 0)
	b.must(err)
	b.must(f.SyncData())
	select {
	case err := <-done:
		t.Fatalf("a stalled sync came back: %v", err)
	default:
	}
	second := b.Stall(syncs)
	b.must(<-done)
	go func() { done <- f.Sync() }()
	<-begun
	first()
	select {
	case err := <-done:
		t.Fatalf("a stalled sync came back: %v", err)
	default:
	}
	second()
	second()
	b.must(<-done)
	b.must(f.Sync())
}
