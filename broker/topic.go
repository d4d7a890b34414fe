package broker

import (
	"sync"
	"sync/atomic"
)

// topic is what this node keeps of a topic beside its partitions: who tails it
// and what was counted.
type topic struct {
	id   TopicID
	name string
	// turn counts the record sets: records without a key go to another
	// partition with each set.
	turn   atomic.Uint32
	counts *topicCounts
	// growths is odd while the topic is given more partitions, and grows with
	// each time that begins and ends.
	growths atomic.Int64
	mu      struct {
		sync.Mutex
		tails map[*Tail]struct{}
		// running are the requests that have an idempotency key, by the producer
		// id that stands for it. The doors bound them.
		running map[int64]struct{}
		// gone is why the topic is served no more, or nil.
		gone error
	}
}

// topic finds a topic that this node serves, or returns nil.
func (b *Broker) topic(id TopicID) *topic {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.mu.topics[id]
}

// addTopicLocked makes the topic known, unless it is.
func (b *Broker) addTopicLocked(id TopicID, name string) *topic {
	t := b.mu.topics[id]
	if t == nil {
		t = &topic{id: id, name: name, counts: b.metrics.topics.countsFor(name)}
		b.mu.topics[id] = t
	}
	return t
}

// dropTopic forgets a topic and tells those who tail it why. Its partitions
// are the caller's to end, after this.
func (b *Broker) dropTopic(id TopicID, why error) {
	b.mu.Lock()
	t := b.mu.topics[id]
	delete(b.mu.topics, id)
	b.mu.Unlock()
	if t != nil {
		b.metrics.topics.forget(t.counts)
		t.end(why)
	}
}

// end stops the topic, for the first reason given, and wakes all who tail it,
// also those who wait for nothing.
func (t *topic) end(why error) {
	t.mu.Lock()
	if t.mu.gone == nil {
		t.mu.gone = why
	}
	tails := t.mu.tails
	t.mu.tails = nil
	t.mu.Unlock()
	for tail := range tails {
		tail.stir(true)
	}
}

// err is why the topic is served no more, or nil.
func (t *topic) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.gone
}

// join lists a tail to be told what becomes of the topic.
func (t *topic) join(tail *Tail) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.gone != nil {
		return t.mu.gone
	}
	if t.mu.tails == nil {
		t.mu.tails = map[*Tail]struct{}{}
	}
	t.mu.tails[tail] = struct{}{}
	return nil
}

func (t *topic) leave(tail *Tail) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.tails, tail)
}

// grew tells those who follow every partition that there are more.
func (t *topic) grew() {
	var tails []*Tail
	t.mu.Lock()
	for tail := range t.mu.tails {
		if tail.all {
			tails = append(tails, tail)
		}
	}
	t.mu.Unlock()
	for _, tail := range tails {
		tail.stir(false)
	}
}
