package sim

import (
	"errors"
	"testing"
	"time"
)

// What a disk answers when it has failed, and when there is no room left on it.
var (
	errIO   = errors.New("input/output error")
	errFull = errors.New("no space left on device")
)

// diskFaults is how a disk misbehaves while faults are on.
type diskFaults struct {
	latency, jitter time.Duration // of a sync
	eioSync         float64       // share of syncs that fail
	eioWrite        float64       // share of writes that fail; they are undone
	eioRead         float64       // share of reads that fail
}

var soundDisk = diskFaults{latency: 300 * time.Microsecond, jitter: 700 * time.Microsecond}

// disk is the disk of one machine. What was written is in the page cache; what
// was synced stays over a power cut. It promises what storage/disk's Mem does:
//
//   - the end of the process (kill -9) loses nothing that was written, but for a
//     write that was under way;
//   - a power cut keeps, of what was written behind the last sync, a part that
//     chance chooses, and the sector in which it ends may be torn;
//   - after a sync that failed the kernel may have dropped what it was to write:
//     it is lost as in a power cut, and the process ends.
//
// A stalled disk answers nothing until the stall ends.
type disk struct {
	k       *kernel
	faults  diskFaults
	stalled time.Duration // until when
	// crawl is until when each sync takes crawling, full until when there is no room:
	// what is written then fails, and what was written before can be synced.
	crawl, full time.Duration
	counts      *counts
	// boots counts the starts of the machine: the kernel's boot id.
	boots int
	// run is the file that says how the last process ended.
	run runFile
}

// runFile is CLEAN, and what is known of the process before.
type runFile struct {
	clean bool
	epoch int64 // of the broker, as it last knew
	boot  int
	io    bool // ended by an I/O error
	// owed says that records may have been lost and the controller does not know
	// yet: a process that ends before it has registered must leave it behind.
	owed bool
}

func newDisk(k *kernel, c *counts) *disk { return &disk{k: k, faults: soundDisk, counts: c} }

// sync has done called when the disk has answered. What is durable then is up to
// the caller: what was written before the call.
func (d *disk) sync(of *life, done func(took time.Duration, err error)) {
	wait := d.faults.latency + d.k.between(0, d.faults.jitter)
	if d.crawl > d.k.now {
		d.counts.crawled++
		wait += crawling
	}
	began := d.k.now
	if d.stalled > began {
		d.counts.stalled++
		wait += d.stalled - began
	}
	var err error
	if d.k.chance(d.faults.eioSync) {
		d.counts.eioSync++
		err = errIO
	}
	d.k.at(wait, of, func() { d.finish(of, began, err, done) })
}

// finish answers a sync, later if a stall began meanwhile.
func (d *disk) finish(of *life, began time.Duration, err error, done func(time.Duration, error)) {
	if d.stalled > d.k.now {
		d.k.at(d.stalled-d.k.now, of, func() { d.finish(of, began, err, done) })
		return
	}
	done(d.k.now-began, err)
}

// crawling is how long a sync takes on a disk that is slow.
const crawling = 500 * time.Millisecond

// room reports whether there is room for more.
func (d *disk) room() error {
	if d.full > d.k.now {
		d.counts.noRoom++
		return errFull
	}
	return nil
}

// read reports whether a read of a log succeeds.
func (d *disk) read() error {
	if d.k.chance(d.faults.eioRead) {
		d.counts.eioRead++
		return errIO
	}
	return nil
}

// write reports whether a write into the page cache succeeds.
func (d *disk) write() error {
	if err := d.room(); err != nil {
		return err
	}
	if d.k.chance(d.faults.eioWrite) {
		d.counts.eioWrite++
		return errIO
	}
	return nil
}

// lossPossible reports whether what the process before had written may be lost:
// it did not end cleanly, and the page cache did not outlive it.
func (d *disk) lossPossible() bool {
	return d.run.owed || !d.run.clean && (d.run.boot != d.boots || d.run.io)
}

// A disk answers in its time, after a stall if there is one, and not to a life
// that is over.
func TestDisk(t *testing.T) {
	k := newKernel(3)
	d := newDisk(k, &counts{})
	of := &life{}
	var took []time.Duration
	ask := func() {
		d.sync(of, func(d time.Duration, err error) {
			if err != nil {
				t.Error(err)
			}
			took = append(took, d)
		})
	}
	ask()
	k.run(time.Second, func() bool { return false })
	ask()
	d.stalled = k.now + 5*time.Second // while the sync is under way
	k.run(10*time.Second, func() bool { return false })
	if len(took) != 2 || took[0] > 2*time.Millisecond || took[1] != 5*time.Second {
		t.Fatalf("took %v", took)
	}
	ask()
	of.over = true
	k.run(time.Minute, func() bool { return false })
	if len(took) != 2 {
		t.Errorf("a process that has ended was answered")
	}
}

// Loss is possible after a power cut and after a failed sync, not after kill -9
// or a clean stop.
func TestLossPossible(t *testing.T) {
	d := newDisk(newKernel(1), &counts{})
	for _, c := range []struct {
		run  runFile
		boot int
		want bool
	}{
		{run: runFile{clean: true}},
		{run: runFile{clean: true}, boot: 1},
		{run: runFile{}},
		{run: runFile{}, boot: 1, want: true},
		{run: runFile{io: true}, want: true},
		{run: runFile{clean: true, owed: true}, want: true},
	} {
		d.run, d.boots = c.run, c.boot
		if got := d.lossPossible(); got != c.want {
			t.Errorf("%+v boot %d: %v", c.run, c.boot, got)
		}
	}
}
