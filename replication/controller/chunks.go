package controller

import "slices"

// chunkLen is how many partitions change hands at a time: a change costs a copy
// of a chunk, and of the list of chunks.
const chunkLen = 64

// Partitions lists the partitions of a topic, by index. A copy shares with what it
// was copied from all that is not changed.
type Partitions struct {
	chunks [][]Partition
	len    int
	// own tells which chunks are this copy's own; nil: not even chunks is.
	own []bool
}

// Len is how many there are.
func (p *Partitions) Len() int { return p.len }

// At is partition i, from 0 to below Len. It must only be read.
func (p *Partitions) At(i int) *Partition { return &p.chunks[i/chunkLen][i%chunkLen] }

// edit is a copy that may be changed until it is sealed; p stays as it is.
func (p *Partitions) edit() Partitions {
	c := *p
	c.own = nil
	return c
}

// seal ends the changes.
func (p *Partitions) seal() { p.own = nil }

// chunk is the chunk of partition i, to be written. It may be one more than there
// are.
func (p *Partitions) chunk(i int) *[]Partition {
	k := i / chunkLen
	if p.own == nil {
		p.chunks, p.own = slices.Clone(p.chunks), make([]bool, len(p.chunks))
	}
	if k == len(p.chunks) {
		p.chunks, p.own = append(p.chunks, nil), append(p.own, true)
	}
	if !p.own[k] {
		p.chunks[k], p.own[k] = slices.Clone(p.chunks[k]), true
	}
	return &p.chunks[k]
}

// set changes partition i, or adds it if i is Len.
func (p *Partitions) set(i int, v Partition) {
	c := p.chunk(i)
	if i < p.len {
		(*c)[i%chunkLen] = v
		return
	}
	*c = append(*c, v)
	p.len++
}
