package ws

import "sync"

// pool runs the sessions that have something to do. Its workers are few, so
// that a record for a thousand sockets does not begin a thousand goroutines,
// and their stacks stay warm; each turn is short, and a worker whose write
// would block leaves its place to another. With nothing to do there is none.
type pool struct {
	most int
	wg   *sync.WaitGroup
	mu   struct {
		sync.Mutex
		// ready is a ring: count sessions from first on.
		ready        []*session
		first, count int
		// active are the workers that are not in a blocking write.
		active int
	}
}

// push puts a session at the end of the queue. Each session is in it at most
// once, so the connections bound it.
func (p *pool) push(s *session) {
	p.mu.Lock()
	if p.mu.count == len(p.mu.ready) {
		grown := make([]*session, max(64, 2*len(p.mu.ready)))
		n := copy(grown, p.mu.ready[p.mu.first:])
		copy(grown[n:], p.mu.ready[:p.mu.first])
		p.mu.ready, p.mu.first = grown, 0
	}
	p.mu.ready[(p.mu.first+p.mu.count)%len(p.mu.ready)] = s
	p.mu.count++
	p.spawnLocked()
	p.mu.Unlock()
}

// spawnLocked starts a worker if one is missing.
func (p *pool) spawnLocked() {
	if p.mu.active < p.most && p.mu.count > 0 {
		p.mu.active++
		p.wg.Go(p.work)
	}
}

func (p *pool) work() {
	for {
		p.mu.Lock()
		if p.mu.count == 0 || p.mu.active > p.most {
			p.mu.active--
			p.mu.Unlock()
			return
		}
		s := p.mu.ready[p.mu.first]
		p.mu.ready[p.mu.first] = nil
		p.mu.first = (p.mu.first + 1) % len(p.mu.ready)
		p.mu.count--
		p.mu.Unlock()
		s.run()
	}
}

// leave is called by a worker before it blocks, back after it.
func (p *pool) leave() {
	p.mu.Lock()
	p.mu.active--
	p.spawnLocked()
	p.mu.Unlock()
}

func (p *pool) back() {
	p.mu.Lock()
	p.mu.active++
	p.mu.Unlock()
}
