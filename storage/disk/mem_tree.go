package disk

import (
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// node is a file or a directory (dir != nil). Mem.mu guards it.
type node struct {
	content // of a file
	dir     *dirContent
	links   int // names of a file
	handles int // open handles of a file
}

// dirContent is the names in a directory now, and on the disk: synced with
// pending not yet applied. A power cut applies a part of pending.
type dirContent struct {
	names   map[string]*node
	synced  map[string]*node
	pending []*nameChange
}

// nameChange is one operation on names that is not durable yet: name of dir
// becomes node (nil: is removed). A rename has two parts; both are in one
// change, so that no power cut takes a file away without putting it anywhere.
type nameChange struct {
	parts []namePart
	ofDir bool // a directory is made, moved or removed
}

type namePart struct {
	dir  *dirContent
	name string
	node *node
}

func newDir() *node {
	return &node{dir: &dirContent{names: map[string]*node{}, synced: map[string]*node{}}}
}

// change does parts now and notes them as pending in each directory. ofDir
// says that it is a directory that comes, goes or moves.
func change(ofDir bool, parts ...namePart) {
	c := &nameChange{parts: parts, ofDir: ofDir}
	for i, p := range parts {
		if p.node == nil {
			delete(p.dir.names, p.name)
		} else {
			p.dir.names[p.name] = p.node
		}
		if !slices.ContainsFunc(parts[:i], func(q namePart) bool { return q.dir == p.dir }) {
			p.dir.pending = append(p.dir.pending, c)
		}
	}
}

// sync makes the names durable.
func (d *dirContent) sync() { d.commit(len(d.pending)) }

// commit makes the first n pending changes durable. What a file system with a
// journal guarantees of a rename into another directory is kept: the old name
// never goes without the new one, and a directory is never in two places. A
// journal commits in order, so all that came before the other half goes too.
func (d *dirContent) commit(n int) {
	done := d.pending[:n]
	d.pending = slices.Clone(d.pending[n:])
	for _, c := range done {
		for _, p := range c.parts {
			switch {
			case p.dir == d && p.node == nil:
				delete(d.synced, p.name)
			case p.dir == d:
				d.synced[p.name] = p.node
			case p.node != nil || c.ofDir:
				if i := slices.Index(p.dir.pending, c); i >= 0 {
					p.dir.commit(i + 1)
				}
			}
		}
	}
}

func sortedNames(m map[string]*node) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// clean makes every name absolute: Mem has no working directory but the root.
func clean(name string) string { return path.Clean("/" + name) }

// lookup finds the node at a clean path. Locked by the caller.
func (m *Mem) lookup(p string) (*node, error) {
	n := m.root
	for rest := p[1:]; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		if n.dir == nil {
			return nil, syscall.ENOTDIR
		}
		if n = n.dir.names[name]; n == nil {
			return nil, syscall.ENOENT
		}
	}
	return n, nil
}

// parent finds the directory that holds the last name of a clean path.
func (m *Mem) parent(p string) (*dirContent, string, error) {
	dir, name := path.Split(p)
	if name == "" {
		return nil, "", syscall.EBUSY // the root
	}
	n, err := m.lookup(path.Clean(dir))
	if err != nil {
		return nil, "", err
	}
	if n.dir == nil {
		return nil, "", syscall.ENOTDIR
	}
	return n.dir, name, nil
}

// fileInfo is fs.FileInfo. Mem keeps no times: code that relies on them would
// be wrong after a restore.
type fileInfo struct {
	name string
	size int64
	mode fs.FileMode
}

func (n *node) info(name string) fileInfo {
	if n.dir != nil {
		return fileInfo{name: path.Base(name), mode: fs.ModeDir | dirMode}
	}
	return fileInfo{name: path.Base(name), size: n.size, mode: fileMode}
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return i.size }
func (i fileInfo) Mode() fs.FileMode  { return i.mode }
func (i fileInfo) ModTime() time.Time { return time.Time{} }
func (i fileInfo) IsDir() bool        { return i.mode.IsDir() }
func (i fileInfo) Sys() any           { return nil }

// walk visits n and all below it.
func (n *node) walk(fn func(*node)) {
	fn(n)
	if n.dir != nil {
		for _, child := range n.dir.names {
			child.walk(fn)
		}
	}
}
