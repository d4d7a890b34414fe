package sim

import (
	"errors"
	"time"

	"leat/replication/controller"
)

// readRequest asks for what is committed from an offset on.
type readRequest struct {
	id   partID
	from int64
}

// readAnswer is what a node says to it.
type readAnswer struct {
	err       error
	batches   []batch
	start, hw int64
}

// consumer is a client that reads one partition from the start on, by offset.
type consumer struct {
	w       *world
	at      addr
	id      partID
	process int
	pause   time.Duration
	leader  int32
	next    int64
	done    bool
}

func (w *world) addConsumer(at addr, id partID) *consumer {
	c := &consumer{w: w, at: at, id: id, process: w.newProcess(), pause: w.between(w.cfg.pause, w.cfg.pause*6)}
	w.consumers = append(w.consumers, c)
	w.hist.seek(c.process, id, 0)
	w.at(w.between(0, c.pause), nil, c.step)
	return c
}

func (c *consumer) again(d time.Duration) {
	if !c.done {
		c.w.at(c.w.between(d/2, d*3/2), nil, c.step)
	}
}

// step polls once.
func (c *consumer) step() {
	w := c.w
	if c.leader == 0 {
		w.describe(c.at, func(s *controller.State) {
			c.leader = leaderOf(s, c.id)
			c.again(40 * time.Millisecond)
		})
		return
	}
	n := w.node(c.leader)
	op := w.hist.poll(c.process, c.id, c.next)
	call(w.net, nil, c.at, n.addr(), w.cfg.timeout, func(answer func(readAnswer)) { n.read(readRequest{id: c.id, from: c.next}, answer) },
		func(a readAnswer, err error) {
			if err == nil {
				err = a.err
			}
			switch {
			case errors.Is(err, errOutOfRange):
				w.hist.polled(op, nil, a.hw, failed)
				to := min(max(c.next, a.start), a.hw)
				if c.next < a.start {
					w.hist.seek(c.process, c.id, to) // the records were deleted
				} else {
					w.hist.reset(c.process, c.id, to)
				}
				c.next = to
			case err != nil:
				w.hist.polled(op, nil, -1, failed)
				c.leader = 0
			default:
				w.hist.polled(op, a.batches, a.hw, okay)
				if k := len(a.batches); k > 0 {
					w.counts.read += k
					c.next = a.batches[k-1].next()
				}
			}
			c.again(c.pause)
		})
}
