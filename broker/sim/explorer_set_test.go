package sim

import "math/bits"

// xstate is a world: the numbers of its nodes, and of the rest.
type xstate [4]uint32

// xset holds states in the order in which they came, each with the one before it.
// A state takes 16 bytes, 4 for where it came from and 5 to 11 for finding it. It is
// kept whole, so that no two are ever taken for one.
type xset struct {
	blocks [][]xfound
	n      uint32
	// index has the place of each state plus one, by its hash, with gaps.
	index []uint32
}

type xfound struct {
	state  xstate
	before uint32
}

const blockBits = 14

func (s *xset) at(i uint32) *xfound { return &s.blocks[i>>blockBits][i&(1<<blockBits-1)] }

// add takes in a state, and reports whether it is new.
func (s *xset) add(state xstate, before uint32) bool {
	if 4*int(s.n) >= 3*len(s.index) {
		s.grow()
	}
	i := s.find(state)
	if s.index[i] != 0 {
		return false
	}
	if int(s.n>>blockBits) == len(s.blocks) {
		s.blocks = append(s.blocks, make([]xfound, 1<<blockBits))
	}
	*s.at(s.n) = xfound{state, before}
	s.n++
	s.index[i] = s.n
	return true
}

func (s *xset) has(state xstate) bool { return s.n > 0 && s.index[s.find(state)] != 0 }

// find is where in the index a state is, or belongs.
func (s *xset) find(state xstate) int {
	mask := len(s.index) - 1
	i := int(state.hash()) & mask
	for s.index[i] != 0 && s.at(s.index[i]-1).state != state {
		i = (i + 1) & mask
	}
	return i
}

func (s *xset) grow() {
	s.index = make([]uint32, max(1<<10, 2*len(s.index)))
	for i := range s.n {
		s.index[s.find(s.at(i).state)] = i + 1
	}
}

func (s xstate) hash() uint64 {
	return mix(uint64(s[0])<<32|uint64(s[1]), uint64(s[2])<<32|uint64(s[3]))
}

func mix(a, b uint64) uint64 {
	const odd = 0x9e3779b97f4a7c15
	hi, lo := bits.Mul64(a^odd, odd)
	hi, lo = bits.Mul64(hi^lo^b, 0xd6e8feb86659fd93)
	return hi ^ lo
}
