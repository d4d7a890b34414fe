package disk

import (
	"maps"
	"math/bits"
	"math/rand/v2"
)

// CrashClone returns what a power cut at this moment leaves of m; m itself
// goes on. Synced bytes and synced names survive. Each 512-byte sector written
// since the last sync of its file, each change of size and each change of a
// name survives by itself with probability keep: 0 is the strict disk that
// keeps nothing it did not promise, 1 is kill -9. rng may be nil for those
// two. All that survives is durable in the clone; no locks, no fault function
// and no open handles go over.
func (m *Mem) CrashClone(keep float64, rng *rand.Rand) *Mem {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := crasher{keep: keep, rng: rng, kept: map[*nameChange]bool{}, nodes: map[*node]*node{}}
	clone := NewMem()
	clone.root = c.node(m.root)
	clone.space = space{limit: m.space.limit, used: c.used}
	return clone
}

// crasher builds the tree that a power cut leaves.
type crasher struct {
	keep  float64
	rng   *rand.Rand
	kept  map[*nameChange]bool
	nodes map[*node]*node
	used  int64
}

func (c *crasher) node(n *node) *node {
	if done := c.nodes[n]; done != nil {
		done.links++
		return done
	}
	clone := &node{links: 1}
	c.nodes[n] = clone
	if n.dir == nil {
		clone.content = *n.crash(c.keep, c.rng)
		for _, w := range clone.charged {
			c.used += int64(bits.OnesCount64(w)) * pageSize
		}
		return clone
	}
	left := n.dir.synced
	if len(n.dir.pending) > 0 && c.keep > 0 {
		left = c.replay(n.dir)
	}
	clone.dir = &dirContent{names: make(map[string]*node, len(left)), synced: make(map[string]*node, len(left))}
	for _, name := range sortedNames(left) {
		child := c.node(left[name])
		clone.dir.names[name], clone.dir.synced[name] = child, child
	}
	return clone
}

// replay applies to the synced names those pending changes that survive.
func (c *crasher) replay(d *dirContent) map[string]*node {
	left := maps.Clone(d.synced)
	for _, ch := range d.pending {
		kept, tossed := c.kept[ch]
		if !tossed {
			kept = survives(c.keep, c.rng)
			c.kept[ch] = kept
		}
		if !kept {
			continue
		}
		for _, p := range ch.parts {
			switch {
			case p.dir != d:
			case p.node == nil:
				delete(left, p.name)
			default:
				left[p.name] = p.node
			}
		}
	}
	return left
}
