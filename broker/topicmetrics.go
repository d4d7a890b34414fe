package broker

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// maxTopicLabels is how many topics have series of their own; what the others
// do is counted together, under otherTopics.
const (
	maxTopicLabels = 1000
	otherTopics    = "_other"
)

// refusals names the reasons worth telling apart, the last one for all else.
var refusals = []struct {
	err  error
	name string
}{
	{ErrCorruptBatch, "corrupt"},
	{ErrInvalidRecord, "invalid"},
	{ErrBatchTooLarge, "too_large"},
	{ErrExpandsTooLarge, "expands_too_large"},
	{ErrTimestamp, "timestamp"},
	{ErrUnsupportedCodec, "codec"},
	{ErrOutOfOrderSequence, "out_of_order_sequence"},
	{ErrProducerEpoch, "producer_epoch"},
	{ErrNotEnoughReplicas, "not_enough_replicas"},
	{ErrStorageFull, "disk_full"},
	{ErrStorageFailed, "disk_failed"},
	{nil, "other"},
}

// topicCounts is what was counted for one topic, or for all that share a label.
// The partitions hold it, so that nothing is looked up to count.
type topicCounts struct {
	label                                                      string
	appendedBytes, appendedRecords, fetchedBytes, expiredBytes atomic.Int64
	// refused is indexed as refusals.
	refused []atomic.Int64
}

func newTopicCounts(label string) *topicCounts {
	return &topicCounts{label: label, refused: make([]atomic.Int64, len(refusals))}
}

func (c *topicCounts) appended(bytes, records int) {
	c.appendedBytes.Add(int64(bytes))
	c.appendedRecords.Add(int64(records))
}

func (c *topicCounts) failed(err error) {
	i := 0
	for i < len(refusals)-1 && !errors.Is(err, refusals[i].err) {
		i++
	}
	c.refused[i].Add(1)
}

// topicMetrics gives out counts and collects them. It is made of what exists
// when it is asked, so that the series of a topic go with the topic.
type topicMetrics struct {
	broker *Broker
	// other counts for the topics without series of their own.
	other *topicCounts
	mu    struct {
		sync.Mutex
		own int // counts given out, without other
		// shared says that other was given out. It counts on when the last of
		// its topics is gone: a counter never goes back.
		shared bool
	}
	appendedBytes, appendedRecords, fetchedBytes, expiredBytes, refused, partitions, logBytes *prometheus.Desc
}

func (m *topicMetrics) init(b *Broker) {
	m.broker, m.other = b, newTopicCounts(otherTopics)
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc("leat_topic_"+name, help+" Topics beyond the first 1000 share the label "+otherTopics+".", append([]string{"topic"}, more...), nil)
	}
	m.appendedBytes = desc("appended_bytes_total", "Bytes of batches appended.")
	m.appendedRecords = desc("appended_records_total", "Records appended.")
	m.fetchedBytes = desc("fetched_bytes_total", "Bytes of batches read for clients; streams that share a read count once.")
	m.expiredBytes = desc("retention_deleted_bytes_total", "Bytes of batches removed because they were too old or too many.")
	m.refused = desc("failed_appends_total", "Batches that were not appended, by reason.", "reason")
	m.partitions = desc("partitions", "Partitions served by this node.")
	m.logBytes = desc("log_bytes", "Bytes of all batches in the logs.")
}

// countsFor gives a new topic its counts. They must be given back by forget.
func (m *topicMetrics) countsFor(name string) *topicCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A topic may be called like the label.
	if m.mu.own == maxTopicLabels || name == otherTopics {
		m.mu.shared = true
		return m.other
	}
	m.mu.own++
	return newTopicCounts(name)
}

func (m *topicMetrics) forget(c *topicCounts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c != m.other {
		m.mu.own--
	}
}

// Describe is prometheus.Collector's.
func (m *topicMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.appendedBytes, m.appendedRecords, m.fetchedBytes, m.expiredBytes, m.refused, m.partitions, m.logBytes} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (m *topicMetrics) Collect(ch chan<- prometheus.Metric) {
	type sum struct{ partitions, bytes int64 }
	sums := map[*topicCounts]*sum{}
	m.mu.Lock()
	if m.mu.shared {
		sums[m.other] = &sum{}
	}
	m.mu.Unlock()
	m.broker.mu.RLock()
	for _, t := range m.broker.mu.topics {
		sums[t.counts] = &sum{}
	}
	m.broker.mu.RUnlock()
	for _, p := range m.broker.partitions() {
		if s := sums[p.topic.counts]; s != nil {
			s.partitions++
			s.bytes += p.log.Size()
		}
	}
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, kind, float64(v), labels...)
	}
	for c, s := range sums {
		send(m.appendedBytes, prometheus.CounterValue, c.appendedBytes.Load(), c.label)
		send(m.appendedRecords, prometheus.CounterValue, c.appendedRecords.Load(), c.label)
		send(m.fetchedBytes, prometheus.CounterValue, c.fetchedBytes.Load(), c.label)
		send(m.expiredBytes, prometheus.CounterValue, c.expiredBytes.Load(), c.label)
		send(m.partitions, prometheus.GaugeValue, s.partitions, c.label)
		send(m.logBytes, prometheus.GaugeValue, s.bytes, c.label)
		for i := range c.refused {
			// What an alert watches is there from the start, so that its first
			// rise is seen.
			n, disk := c.refused[i].Load(), errors.Is(refusals[i].err, ErrStorageFull) || errors.Is(refusals[i].err, ErrStorageFailed)
			if n > 0 || disk {
				send(m.refused, prometheus.CounterValue, n, c.label, refusals[i].name)
			}
		}
	}
}
