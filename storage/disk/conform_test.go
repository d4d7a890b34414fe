package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"testing"
)

// conformer runs one operation after the other and writes down what came out.
type conformer struct {
	t     *testing.T
	fs    FS
	root  string
	out   strings.Builder
	files map[string]File
}

func (c *conformer) path(name string) string { return path.Join(c.root, name) }

// result writes one line: values, then the kind of error.
func (c *conformer) result(op string, err error, values ...any) {
	fmt.Fprintf(&c.out, "%s: %v %s\n", op, values, errorKind(err))
}

func errorKind(err error) string {
	kinds := []error{
		fs.ErrClosed, io.EOF, ErrLocked, ErrUnsupported,
		syscall.ENOENT, syscall.EEXIST, syscall.ENOTEMPTY, syscall.ENOTDIR, syscall.EISDIR,
		syscall.EINVAL, syscall.EBADF, syscall.EACCES, syscall.EPERM, syscall.EFAULT, syscall.ERANGE,
	}
	if err == nil {
		return "ok"
	}
	for _, k := range kinds {
		if errors.Is(err, k) {
			return k.Error()
		}
	}
	return "other: " + err.Error()
}

func (c *conformer) open(name, handle string, flag int) {
	f, err := c.fs.OpenFile(c.path(name), flag)
	c.result("open "+name, err)
	if err == nil {
		c.files[handle] = f
		c.t.Cleanup(func() { _ = f.Close() })
	}
}

func (c *conformer) read(handle string, off int64, n int) {
	b := make([]byte, n)
	got, err := c.files[handle].ReadAt(b, off)
	c.result("read "+handle, err, fmt.Sprintf("%q", b[:got]))
}

func (c *conformer) write(handle string, off int64, bufs ...string) {
	vec := make([][]byte, len(bufs))
	for i, s := range bufs {
		vec[i] = []byte(s)
	}
	var n int
	var err error
	if len(vec) == 1 {
		n, err = c.files[handle].WriteAt(vec[0], off)
	} else {
		n, err = c.files[handle].WriteVec(vec, off)
	}
	c.result("write "+handle, err, n)
}

func (c *conformer) size(handle string) {
	info, err := c.files[handle].Stat()
	if err != nil {
		c.result("size "+handle, err)
		return
	}
	c.result("size "+handle, nil, info.Size(), info.Name(), info.IsDir(), info.Mode().Perm())
}

func (c *conformer) stat(name string) {
	info, err := c.fs.Stat(c.path(name))
	if err != nil {
		c.result("stat "+name, err)
		return
	}
	size := info.Size()
	if info.IsDir() {
		size = 0 // a directory's size is the file system's own affair
	}
	c.result("stat "+name, nil, info.Name(), info.IsDir(), size)
}

func (c *conformer) list(name string) {
	names, err := c.fs.List(c.path(name))
	c.result("list "+name, err, names)
}

const create = os.O_RDWR | os.O_CREATE

var conformance = []struct {
	name string
	run  func(c *conformer)
}{
	{"open", func(c *conformer) {
		c.open("none", "x", os.O_RDWR)
		c.open("no/dir", "x", create)
		c.open("a", "a", create|os.O_EXCL)
		c.open("a", "x", create|os.O_EXCL)
		c.open("a/b", "x", create)
		c.open("a/b", "x", os.O_RDONLY)
		c.open("a", "x", os.O_RDWR|os.O_APPEND)
		c.write("a", 0, "hello")
		c.open("a", "t", os.O_RDWR|os.O_TRUNC)
		c.size("a")
	}},
	{"access", func(c *conformer) {
		c.open("a", "w", os.O_WRONLY|os.O_CREATE)
		c.open("a", "r", os.O_RDONLY)
		c.write("w", 0, "abc")
		c.write("r", 0, "abc")
		c.read("w", 0, 1)
		c.read("r", 0, 3)
		c.result("truncate", c.files["r"].Truncate(1))
		c.result("allocate", c.files["r"].Allocate(0, 1))
		_, err := c.files["w"].Map()
		c.result("map", err)
	}},
	{"read and write", func(c *conformer) {
		c.open("a", "a", create)
		c.read("a", 0, 4)
		c.write("a", 3, "xyz")
		c.read("a", 0, 6)
		c.read("a", 0, 7)
		c.read("a", 6, 1)
		c.read("a", 100, 1)
		c.read("a", 0, 0)
		c.write("a", 0, "")
		c.write("a", 1, "A", "", "BC", "D")
		c.write("a", 1)
		c.write("a", 2, "", "")
		c.read("a", 0, 6)
		c.write("a", 4090, strings.Repeat("p", 5000))
		c.read("a", 4088, 8)
		c.read("a", 9085, 10)
		c.size("a")
	}},
	{"truncate and allocate", func(c *conformer) {
		c.open("a", "a", create)
		c.write("a", 0, strings.Repeat("z", 5000))
		c.result("cut", c.files["a"].Truncate(10))
		c.size("a")
		c.result("grow", c.files["a"].Truncate(20))
		c.read("a", 5, 20)
		c.result("allocate", c.files["a"].Allocate(10, 4096))
		c.size("a")
		c.read("a", 8, 4)
		c.read("a", 4100, 10)
		c.result("allocate inside", c.files["a"].Allocate(0, 10))
		c.size("a")
		c.result("allocate nothing", c.files["a"].Allocate(0, 0))
		c.result("allocate negative", c.files["a"].Allocate(-1, 5))
		c.result("truncate negative", c.files["a"].Truncate(-1))
	}},
	{"closed", func(c *conformer) {
		c.open("a", "a", create)
		c.result("close", c.files["a"].Close())
		c.result("close", c.files["a"].Close())
		c.read("a", 0, 1)
		c.write("a", 0, "x")
		c.write("a", 0, "x", "y")
		c.size("a")
		c.result("sync", c.files["a"].Sync())
		c.result("syncdata", c.files["a"].SyncData())
		c.result("truncate", c.files["a"].Truncate(0))
		c.result("allocate", c.files["a"].Allocate(0, 1))
		_, err := c.files["a"].Map()
		c.result("map", err)
	}},
	{"handles outlive names", func(c *conformer) {
		c.open("a", "a", create)
		c.write("a", 0, "one")
		c.result("rename", c.fs.Rename(c.path("a"), c.path("b")))
		c.write("a", 3, "two")
		c.open("b", "b", os.O_RDONLY)
		c.read("b", 0, 6)
		c.result("remove", c.fs.Remove(c.path("b")))
		c.stat("b")
		c.write("a", 6, "three")
		c.read("b", 0, 11)
		c.open("b", "c", create)
		c.read("c", 0, 1)
	}},
	{"rename", func(c *conformer) {
		c.open("a", "a", create)
		c.write("a", 0, "a")
		c.open("b", "b", create)
		c.result("mkdir", c.fs.MkdirAll(c.path("d/e")))
		c.result("mkdir", c.fs.MkdirAll(c.path("f")))
		c.result("over file", c.fs.Rename(c.path("a"), c.path("b")))
		c.read("b", 0, 1)
		c.result("missing", c.fs.Rename(c.path("a"), c.path("b")))
		c.result("to itself", c.fs.Rename(c.path("b"), c.path("b")))
		c.result("over dir", c.fs.Rename(c.path("b"), c.path("f")))
		c.result("dir over dir", c.fs.Rename(c.path("d"), c.path("f")))
		c.result("dir over file", c.fs.Rename(c.path("d"), c.path("b")))
		c.result("into itself", c.fs.Rename(c.path("d"), c.path("d/e/x")))
		c.result("into missing", c.fs.Rename(c.path("b"), c.path("no/b")))
		c.result("dir", c.fs.Rename(c.path("d"), c.path("f/g")))
		c.list("")
		c.list("f/g")
	}},
	{"link", func(c *conformer) {
		c.open("a", "a", create)
		c.result("link", c.fs.Link(c.path("a"), c.path("b")))
		c.result("again", c.fs.Link(c.path("a"), c.path("b")))
		c.result("missing", c.fs.Link(c.path("x"), c.path("y")))
		c.result("mkdir", c.fs.MkdirAll(c.path("d")))
		c.result("dir", c.fs.Link(c.path("d"), c.path("y")))
		c.write("a", 0, "shared")
		c.result("remove", c.fs.Remove(c.path("a")))
		c.open("b", "b", os.O_RDONLY)
		c.read("b", 0, 6)
		c.result("link", c.fs.Link(c.path("b"), c.path("c")))
		c.result("rename to its twin", c.fs.Rename(c.path("b"), c.path("c")))
		c.list("")
	}},
	{"directories", func(c *conformer) {
		c.result("mkdir", c.fs.MkdirAll(c.path("d/e/f")))
		c.result("mkdir", c.fs.MkdirAll(c.path("d/e/f")))
		c.open("d/e/z", "z", create)
		c.open("d/e/a", "a", create)
		c.result("mkdir over file", c.fs.MkdirAll(c.path("d/e/a")))
		c.result("mkdir below file", c.fs.MkdirAll(c.path("d/e/a/b")))
		c.list("d/e")
		c.list("none")
		c.list("d/e/a")
		c.stat("d/e")
		c.stat("d/e/a")
		c.stat("d/none")
		c.stat("d/e/a/b")
		c.result("remove full", c.fs.Remove(c.path("d/e")))
		c.result("remove missing", c.fs.Remove(c.path("none")))
		c.result("remove empty", c.fs.Remove(c.path("d/e/f")))
		c.result("remove all", c.fs.RemoveAll(c.path("d")))
		c.result("remove all of nothing", c.fs.RemoveAll(c.path("d")))
		c.list("")
		c.result("sync dir", c.fs.SyncDir(c.root))
		c.result("sync missing dir", c.fs.SyncDir(c.path("d")))
		c.result("sync all", c.fs.SyncAll(c.root))
		c.result("sync all again", c.fs.SyncAll(c.root))
		c.result("sync all of nothing", c.fs.SyncAll(c.path("d")))
	}},
	{"lock", func(c *conformer) {
		l, err := c.fs.Lock(c.path("LOCK"))
		c.result("lock", err)
		_, err = c.fs.Lock(c.path("LOCK"))
		c.result("lock again", err)
		c.open("LOCK", "l", os.O_RDWR)
		c.write("l", 0, "4711")
		c.result("unlock", l.Close())
		l, err = c.fs.Lock(c.path("LOCK"))
		c.result("lock after unlock", err)
		c.read("l", 0, 4)
		c.result("unlock", l.Close())
		_, err = c.fs.Lock(c.path("no/LOCK"))
		c.result("lock nowhere", err)
		_, err = c.fs.LockExisting(c.path("none"))
		c.result("lock what is not there", err)
		c.list("")
		l, err = c.fs.LockExisting(c.path("LOCK"))
		c.result("lock what is there", err)
		_, err = c.fs.Lock(c.path("LOCK"))
		c.result("lock meanwhile", err)
		_, err = c.fs.LockExisting(c.path("LOCK"))
		c.result("lock what is there again", err)
		c.result("unlock", l.Close())
		l, err = c.fs.Lock(c.path("LOCK"))
		c.result("lock after that", err)
		_, err = c.fs.LockExisting(c.path("LOCK"))
		c.result("lock what is locked", err)
		c.result("unlock", l.Close())
	}},
	{"map", func(c *conformer) {
		c.open("a", "a", create)
		m, err := c.files["a"].Map()
		c.result("map empty", err, len(m.Bytes()))
		c.result("populate nothing", m.Populate(0, 0))
		c.result("unmap", m.Unmap())
		c.write("a", 0, strings.Repeat("0123456789", 2000))
		m, err = c.files["a"].Map()
		c.result("map", err, len(m.Bytes()), string(m.Bytes()[9998:10003]))
		c.result("populate", m.Populate(5000, 10000))
		c.result("populate to the end", m.Populate(19999, 1))
		c.result("populate beyond", m.Populate(19999, 2))
		c.result("populate before", m.Populate(-1, 2))
		c.result("cut", c.files["a"].Truncate(5000))
		c.result("populate what is there", m.Populate(0, 5000))
		c.result("populate what was cut", m.Populate(4096, 15000))
		c.result("unmap", m.Unmap())
		c.result("unmap again", m.Unmap())
	}},
}

func TestConformance(t *testing.T) {
	// Proves that the file system in memory answers every operation, wrong
	// ones too, as the operating system does.
	for _, tc := range conformance {
		t.Run(tc.name, func(t *testing.T) {
			run := func(fsys FS, root string) string {
				c := &conformer{t: t, fs: fsys, root: root, files: map[string]File{}}
				tc.run(c)
				return c.out.String()
			}
			mem := NewMem()
			if err := mem.MkdirAll("/data"); err != nil {
				t.Fatal(err)
			}
			want, got := run(OS, t.TempDir()), run(mem, "/data")
			if want != got {
				t.Errorf("operating system:\n%s\nmemory:\n%s", want, got)
			}
			if strings.Contains(want, "other: ") {
				t.Errorf("an error of no known kind:\n%s", want)
			}
		})
	}
}

func TestErrorsNamePath(t *testing.T) {
	// Proves that what fails on either file system says which path it was.
	dir := t.TempDir()
	mem := NewMem()
	if err := mem.MkdirAll(dir); err != nil {
		t.Fatal(err)
	}
	for name, fsys := range map[string]FS{"os": OS, "mem": mem} {
		t.Run(name, func(t *testing.T) {
			f, err := fsys.OpenFile(path.Join(dir, "subject"), create)
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			missing := path.Join(dir, "subject", "x")
			_, mapErr := f.Map()
			_, vecErr := f.WriteVec([][]byte{{1}, {2}}, 0)
			_, openErr := fsys.OpenFile(missing, os.O_RDWR)
			_, listErr := fsys.List(missing)
			_, lockErr := fsys.Lock(missing)
			_, existErr := fsys.LockExisting(missing)
			_, useErr := fsys.Usage(missing)
			for op, err := range map[string]error{
				"allocate": f.Allocate(0, 1), "syncdata": f.SyncData(), "sync": f.Sync(), "map": mapErr,
				"writevec": vecErr, "open": openErr, "list": listErr, "lock": lockErr, "lock existing": existErr, "usage": useErr,
				"rename": fsys.Rename(missing, missing+"y"), "link": fsys.Link(missing, missing+"y"),
				"syncdir": fsys.SyncDir(missing), "syncall": fsys.SyncAll(missing), "remove": fsys.Remove(missing),
			} {
				if err == nil || !strings.Contains(err.Error(), "subject") {
					t.Errorf("%s: error %v does not name the path", op, err)
				}
			}
		})
	}
}

func TestWriteVecMany(t *testing.T) {
	// Proves that one WriteVec may have more buffers than the kernel takes at
	// once, and that the caller's slices are left as they were.
	f, err := OS.OpenFile(path.Join(t.TempDir(), "a"), create)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	var want []byte
	bufs := make([][]byte, 3000)
	for i := range bufs {
		bufs[i] = bytes.Repeat([]byte{byte(i)}, i%7)
		want = append(want, bufs[i]...)
	}
	n, err := f.WriteVec(bufs, 5)
	if err != nil || n != len(want) {
		t.Fatalf("WriteVec = %d, %v; want %d", n, err, len(want))
	}
	got := make([]byte, len(want))
	if _, err := f.ReadAt(got, 5); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read back: %v, equal %t", err, bytes.Equal(got, want))
	}
	for i := range bufs {
		if len(bufs[i]) != i%7 {
			t.Fatalf("buffer %d now has %d bytes", i, len(bufs[i]))
		}
	}
}

func TestReleaseAtLeast(t *testing.T) {
	// Proves that kernel releases are compared as numbers and that one that
	// cannot be read counts as old.
	for release, want := range map[string]bool{
		"5.8.0": true, "5.8": true, "5.15.0-91-generic": true, "6.1.12+deb12": true, "10.0": true,
		"5.7.19": false, "4.19.0": false, "3.10.0-1160.el7": false, "": false, "6": false, "x.y": false,
	} {
		if got := releaseAtLeast(release, 5, 8); got != want {
			t.Errorf("releaseAtLeast(%q, 5, 8) = %t", release, got)
		}
	}
}

func TestUsage(t *testing.T) {
	// Proves that both file systems report room, and that what the memory one
	// reports is what SetFree left.
	u, err := OS.Usage(t.TempDir())
	if err != nil || u.Total == 0 || u.Free > u.Total {
		t.Errorf("OS.Usage = %+v, %v", u, err)
	}
	m := NewMem()
	m.SetFree(10 * pageSize)
	if u, err = m.Usage("/"); err != nil || u.Free != 10*pageSize {
		t.Errorf("Mem.Usage = %+v, %v", u, err)
	}
}
