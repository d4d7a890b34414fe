package sim

// memory is what all changes of nodes have come to: a hash table without
// pointers, of 24 bytes a change.
type memory struct {
	entries []xmemo
	n       int
	extras  []xextra
	extraOf map[xextra]uint32
}

// changeKey is a change: what comes to a node, and which node that is.
type changeKey struct {
	kind changeKind
	node uint32
	arg  uint64
}

type xmemo struct {
	what  uint64 // kind and node, 0 for a gap
	arg   uint64
	node  uint32 // that it became
	extra uint32
}

// nobody stands for no node.
const nobody = 1<<32 - 1

func (k changeKey) what() uint64 { return uint64(k.kind)<<32 | uint64(k.node) }

func (m *memory) find(what, arg uint64) *xmemo {
	mask := len(m.entries) - 1
	i := int(mix(what, arg)) & mask
	for m.entries[i].what != 0 && (m.entries[i].what != what || m.entries[i].arg != arg) {
		i = (i + 1) & mask
	}
	return &m.entries[i]
}

func (m *memory) add(k changeKey, node uint32, extra xextra) {
	if 4*m.n >= 3*len(m.entries) {
		old := m.entries
		m.entries = make([]xmemo, max(1<<10, 2*len(old)))
		for i := range old {
			if e := &old[i]; e.what != 0 {
				*m.find(e.what, e.arg) = *e
			}
		}
	}
	num, ok := m.extraOf[extra]
	if !ok {
		num = uint32(len(m.extras))
		m.extras = append(m.extras, extra)
		m.extraOf[extra] = num
	}
	*m.find(k.what(), k.arg) = xmemo{k.what(), k.arg, node, num}
	m.n++
}

// recall is what a change has come to, if it is known.
func (x *exploration) recall(key changeKey) (out xchange, ok bool) {
	if x.plain || len(x.memory.entries) == 0 {
		return out, false
	}
	e := x.memory.find(key.what(), key.arg)
	if e.what == 0 {
		return out, false
	}
	if e.node != nobody {
		out.node = x.nodes[e.node]
	}
	out.xextra = x.memory.extras[e.extra]
	return out, true
}

// remember takes in what a change has come to: c is nil if it is nothing that the
// node does.
func (x *exploration) remember(key changeKey, c *xnode, extra xextra) xchange {
	out, num := xchange{xextra: extra}, uint32(nobody)
	if c != nil {
		out.node = x.node(c)
		num = out.node.num
	}
	if !x.plain {
		x.memory.add(key, num, extra)
	}
	return out
}
