package sim

import "time"

// consumer is a client that reads one partition from the start on, by offset.
type consumer struct {
	*reader
	process int
	pause   time.Duration
	done    bool
}

func (w *world) addConsumer(at addr, id partID) *consumer {
	c := &consumer{reader: newReader(w, at, id, 0, -1), process: w.newProcess(), pause: w.between(w.cfg.pause, w.cfg.pause*6)}
	w.consumers = append(w.consumers, c)
	w.hist.seek(c.process, id, 0)
	w.at(w.between(0, c.pause), nil, c.work)
	return c
}

// work polls once, or finds out what it must know before.
func (c *consumer) work() {
	w, pause := c.w, c.pause
	if !c.ready() {
		pause = 40 * time.Millisecond
	}
	c.step(c.process, func() bool { return true }, func(a *readAnswer) { w.counts.read += len(a.batches) }, func() {
		if !c.done {
			w.at(w.between(pause/2, pause*3/2), nil, c.work)
		}
	})
}
