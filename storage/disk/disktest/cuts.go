package disktest

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"leat/storage/disk"
)

// Cut is what a power cut leaves before an operation.
type Cut struct {
	FS *disk.Mem
	// Done is how often Did was called before.
	Done int64
	Op   string
}

// Cuts are the power cuts before each operation that changes a disk. It is safe
// for concurrent use.
type Cuts struct {
	fs   *disk.Mem
	keep []float64
	mu   sync.Mutex
	rng  *rand.Rand
	done int64
	cuts []Cut
}

// CutEverywhere begins to take cuts of fs, in place of the faults that it has: one
// for each share that is kept of what is not durable.
func CutEverywhere(fs *disk.Mem, keep ...float64) *Cuts {
	c := &Cuts{fs: fs, keep: keep, rng: rand.New(rand.NewPCG(1, 2))}
	fs.SetFault(c.before)
	return c
}

func (c *Cuts) before(op disk.Op) error {
	if !op.Kind.Changes() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, keep := range c.keep {
		c.cuts = append(c.cuts, Cut{c.fs.CrashClone(keep, c.rng), c.done, fmt.Sprint(op)})
	}
	return nil
}

// Done is how often Did was called.
func (c *Cuts) Done() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done
}

// Did says that something more is durable, as the caller was told.
func (c *Cuts) Did() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done++
}

// End ends the taking, and returns what was taken.
func (c *Cuts) End() []Cut {
	c.fs.SetFault(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts
}
