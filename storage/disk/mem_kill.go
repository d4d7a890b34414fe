package disk

import (
	"maps"
	"math/bits"
	"slices"
)

// KillClone returns what kill -9 at this moment leaves of m for the next process,
// on a machine that goes on: every byte and name, in the page cache as it is, so
// that what was not durable is not yet. m itself goes on; no locks, no fault
// function and no open handles go over.
func (m *Mem) KillClone() *Mem {
	m.mu.RLock()
	defer m.mu.RUnlock()
	k := killer{nodes: map[*node]*node{}, dirs: map[*dirContent]*dirContent{}, changes: map[*nameChange]*nameChange{}}
	clone := NewMem()
	clone.root = k.node(m.root)
	clone.space = space{limit: m.space.limit, used: k.used}
	return clone
}

// killer copies a tree with what is not durable of it.
type killer struct {
	nodes   map[*node]*node
	dirs    map[*dirContent]*dirContent
	changes map[*nameChange]*nameChange
	used    int64
}

// node copies a node, nil for nil.
func (k *killer) node(n *node) *node {
	if n == nil {
		return nil
	}
	if done := k.nodes[n]; done != nil {
		return done
	}
	clone := &node{links: n.links}
	k.nodes[n] = clone
	if n.dir != nil {
		clone.dir = k.dir(n.dir)
		return clone
	}
	clone.content = n.clone()
	if n.links == 0 {
		clone.release(0, new(space)) // only a handle kept it
	}
	for _, w := range clone.charged {
		k.used += int64(bits.OnesCount64(w)) * pageSize
	}
	return clone
}

func (k *killer) dir(d *dirContent) *dirContent {
	if done := k.dirs[d]; done != nil {
		return done
	}
	clone := &dirContent{}
	k.dirs[d] = clone
	clone.names, clone.synced = k.names(d.names), k.names(d.synced)
	for _, c := range d.pending {
		clone.pending = append(clone.pending, k.change(c))
	}
	return clone
}

func (k *killer) names(names map[string]*node) map[string]*node {
	clone := make(map[string]*node, len(names))
	for name, n := range names {
		clone[name] = k.node(n)
	}
	return clone
}

func (k *killer) change(c *nameChange) *nameChange {
	if done := k.changes[c]; done != nil {
		return done
	}
	clone := &nameChange{ofDir: c.ofDir}
	k.changes[c] = clone
	for _, p := range c.parts {
		clone.parts = append(clone.parts, namePart{k.dir(p.dir), p.name, k.node(p.node)})
	}
	return clone
}

// clone copies the content, and those of its pages that may be changed in place.
func (c *content) clone() content {
	n := content{
		size: c.size, syncedSize: c.syncedSize,
		pages: slices.Clone(c.pages), dirty: maps.Clone(c.dirty), charged: slices.Clone(c.charged),
	}
	for i := range n.dirty {
		if p := n.page(i); p != nil {
			own := *p
			n.pages[i] = &own
		}
	}
	return n
}
