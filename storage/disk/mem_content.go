package disk

import (
	"bytes"
	"math/bits"
	"math/rand/v2"
	"slices"
	"syscall"
)

const (
	pageSize   = 4096
	sectorSize = 512
	allSectors = 1<<(pageSize/sectorSize) - 1
)

type page [pageSize]byte

var zeros page

// content is the bytes of a file now, and what is needed to tell what a power
// cut would leave of them. Pages are copied on the first write after a sync
// and never changed while anyone else can see them: those in dirty and not
// lost belong to this content alone, all others may be shared with a crash
// clone. A nil page, or one beyond the slice, is zeros. Bytes beyond size are
// zero. Mem.mu guards it.
type content struct {
	size       int64
	syncedSize int64
	pages      []*page
	dirty      map[int64]dirtyPage
	// charged has a bit for each page that takes space: written or allocated.
	charged []uint64
}

// dirtyPage is a page that differs, or may differ, from what is on the disk.
type dirtyPage struct {
	old     *page // what is on the disk
	sectors uint8 // which of the eight were written since
	lost    bool  // a sync failed: it stays as it is here, but is not written
}

func (c *content) page(i int64) *page {
	if i < int64(len(c.pages)) {
		return c.pages[i]
	}
	return nil
}

// writable returns page i to be changed in the given sectors.
func (c *content) writable(i int64, sectors uint8) *page {
	d, ok := c.dirty[i]
	p := c.page(i)
	switch {
	case !ok:
		d.old = p
	case d.lost:
		// The kernel writes whole pages: what was lost goes with them.
		d.lost, d.sectors, ok = false, allSectors, false
	}
	if !ok || p == nil {
		fresh := new(page)
		if p != nil {
			*fresh = *p
		}
		p = fresh
		c.setPage(i, p)
	}
	d.sectors |= sectors
	if c.dirty == nil {
		c.dirty = make(map[int64]dirtyPage)
	}
	c.dirty[i] = d
	return p
}

func (c *content) setPage(i int64, p *page) {
	for int64(len(c.pages)) <= i {
		c.pages = append(c.pages, nil)
	}
	c.pages[i] = p
}

// sectorsOf is the mask of the sectors that [from, to) of a page touches.
func sectorsOf(from, to int) uint8 {
	first, last := from/sectorSize, (to-1)/sectorSize
	return uint8(1<<(last+1) - 1<<first)
}

// write stores b at off, as much of it as there is space for.
func (c *content) write(b []byte, off int64, room *space) (int, error) {
	n := 0
	for n < len(b) {
		i, at := (off+int64(n))/pageSize, int((off+int64(n))%pageSize)
		if !c.charge(i, i+1, room) {
			break
		}
		end := min(at+len(b)-n, pageSize)
		n += copy(c.writable(i, sectorsOf(at, end))[at:end], b[n:])
	}
	if n > 0 {
		c.size = max(c.size, off+int64(n))
	}
	if n < len(b) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// read copies from off into b and returns how much there was.
func (c *content) read(b []byte, off int64) int {
	if off >= c.size {
		return 0
	}
	b = b[:min(int64(len(b)), c.size-off)]
	for n := 0; n < len(b); {
		i, at := (off+int64(n))/pageSize, int((off+int64(n))%pageSize)
		end := min(at+len(b)-n, pageSize)
		if p := c.page(i); p != nil {
			n += copy(b[n:], p[at:end])
		} else {
			clear(b[n : n+end-at])
			n += end - at
		}
	}
	return len(b)
}

// nextData is the first position at or behind off in a page that is not all
// zeros.
func (c *content) nextData(off int64) (int64, bool) {
	for i := off / pageSize; i*pageSize < c.size && i < int64(len(c.pages)); i++ {
		if p := c.pages[i]; p != nil && *p != zeros {
			next := max(off, i*pageSize)
			return next, next < c.size
		}
	}
	return 0, false
}

func (c *content) truncate(size int64, room *space) {
	if size < c.size {
		for i := int64(len(c.pages)) - 1; i*pageSize >= size && i >= 0; i-- {
			if c.pages[i] != nil {
				c.writable(i, allSectors)
				c.pages[i] = nil
			}
			c.pages = c.pages[:i]
		}
		if i, at := size/pageSize, int(size%pageSize); at > 0 && c.page(i) != nil {
			clear(c.writable(i, sectorsOf(at, pageSize))[at:])
		}
		c.release((size+pageSize-1)/pageSize, room)
	}
	c.size = size
}

func (c *content) allocate(off, n int64, room *space) error {
	if !c.charge(off/pageSize, (off+n+pageSize-1)/pageSize, room) {
		return syscall.ENOSPC
	}
	c.size = max(c.size, off+n)
	return nil
}

// charge takes space for the pages [from, to), all or none.
func (c *content) charge(from, to int64, room *space) bool {
	for int64(len(c.charged))*64 < to {
		c.charged = append(c.charged, 0)
	}
	need := int64(0)
	for i := from; i < to; i++ {
		if c.charged[i/64]&(1<<(i%64)) == 0 {
			need++
		}
	}
	if need == 0 {
		return true
	}
	if !room.take(need * pageSize) {
		return false
	}
	for i := from; i < to; i++ {
		c.charged[i/64] |= 1 << (i % 64)
	}
	return true
}

// release gives back the space of the pages from the given one on.
func (c *content) release(from int64, room *space) {
	for w := range c.charged {
		keep := uint64(0)
		if from > int64(w)*64 {
			keep = 1<<min(from-int64(w)*64, 64) - 1
		}
		room.used -= int64(bits.OnesCount64(c.charged[w]&^keep)) * pageSize
		c.charged[w] &= keep
	}
}

// sync makes the content durable, except what an earlier failure has lost.
func (c *content) sync() {
	c.syncedSize = c.size
	for i, d := range c.dirty {
		if !d.lost {
			delete(c.dirty, i)
		}
	}
}

// syncFailed marks everything clean without making it durable.
func (c *content) syncFailed() {
	for i, d := range c.dirty {
		d.lost = true
		c.dirty[i] = d
	}
}

// crash returns what a power cut leaves: the synced bytes, and each sector
// written since, and the change of size, with probability keep.
func (c *content) crash(keep float64, rng *rand.Rand) *content {
	n := &content{size: c.sizeAfterCrash(keep, rng), pages: slices.Clone(c.pages)}
	for _, i := range c.dirtyPages() {
		d := c.dirty[i]
		n.setPage(i, d.old)
		if d.lost || keep <= 0 {
			continue
		}
		var mixed page
		if d.old != nil {
			mixed = *d.old
		}
		var now page
		if p := c.page(i); p != nil {
			now = *p
		}
		for s := range pageSize / sectorSize {
			if d.sectors&(1<<s) != 0 && survives(keep, rng) {
				at := s * sectorSize
				copy(mixed[at:at+sectorSize], now[at:])
			}
		}
		n.setPage(i, &mixed)
	}
	n.cutTail()
	n.syncedSize = n.size
	n.charged = slices.Clone(c.charged)
	n.release((n.size+pageSize-1)/pageSize, new(space))
	return n
}

// dirtyPages is in order, so that one seed gives one outcome.
func (c *content) dirtyPages() []int64 {
	if len(c.dirty) == 0 {
		return nil
	}
	is := make([]int64, 0, len(c.dirty))
	for i := range c.dirty {
		is = append(is, i)
	}
	slices.Sort(is)
	return is
}

// sizeAfterCrash is the new size or the synced one, or sometimes a sector
// boundary between: several writes may have changed it.
func (c *content) sizeAfterCrash(keep float64, rng *rand.Rand) int64 {
	if c.size == c.syncedSize || survives(keep, rng) {
		return c.size
	}
	lo, hi := min(c.size, c.syncedSize), max(c.size, c.syncedSize)
	if sectors := (hi - lo) / sectorSize; sectors > 0 && survives(keep, rng) {
		return min(lo/sectorSize*sectorSize+(1+rng.Int64N(sectors))*sectorSize, hi)
	}
	return c.syncedSize
}

// cutTail restores the rule that bytes beyond size are zero.
func (c *content) cutTail() {
	whole := (c.size + pageSize - 1) / pageSize
	if int64(len(c.pages)) > whole {
		c.pages = c.pages[:whole]
	}
	at := int(c.size % pageSize)
	p := c.page(c.size / pageSize)
	if at > 0 && p != nil && !bytes.Equal(p[at:], zeros[at:]) {
		cut := *p
		clear(cut[at:])
		c.pages[c.size/pageSize] = &cut
	}
}

// survives tosses the coin; with keep 0 or 1 it needs none.
func survives(keep float64, rng *rand.Rand) bool {
	switch {
	case keep <= 0:
		return false
	case keep >= 1:
		return true
	default:
		return rng.Float64() < keep
	}
}
