package broker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the domain's counters. Labels take values from bounded sets only.
type metrics struct {
	waiting prometheus.Gauge
	tails   prometheus.Gauge
	// produce holds the observers of a histogram by acks: none, leader, all.
	produce [3]prometheus.Observer
	topics  topicMetrics
	groups  *groupMetrics
	leases  *leaseMetrics
	// filtered counts the records that filters saw, by Verdict.
	filtered [3]prometheus.Counter
	// dirtyRatio is the greatest of all partitions, when they were last looked at.
	dirtyRatio prometheus.Gauge
	// throttled counts by quota.
	throttled [quotaKinds]prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, b *Broker) *metrics {
	m := &metrics{
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "leat_broker_waiting_fetches", Help: "Fetches that wait for records.",
		}),
		tails: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "leat_broker_tails", Help: "Streams and subscriptions that follow a topic.",
		}),
	}
	m.dirtyRatio = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "leat_broker_max_dirty_ratio", Help: "The greatest share of bytes that compaction has not gone over, of all compacted partitions.",
	})
	produce := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "leat_broker_produce_seconds",
		Help:    "Time from the append of a request's batches until they were acknowledged as the acks asked.",
		Buckets: prometheus.ExponentialBuckets(1e-4, 2, 16),
	}, []string{"acks"})
	for i, acks := range []string{"none", "leader", "all"} {
		m.produce[i] = produce.WithLabelValues(acks)
	}
	throttled := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_broker_throttled_total", Help: "Requests that were refused or held back because their principal is beyond a quota.",
	}, []string{"quota"})
	for k := range quotaKinds {
		m.throttled[k] = throttled.WithLabelValues(k.String())
	}
	m.topics.init(b)
	m.groups, m.leases = newGroupMetrics(reg), newLeaseMetrics(reg)
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	reg.MustRegister(m.waiting, m.tails, produce, &m.topics, m.dirtyRatio, throttled, m.filters(),
		gauge("leat_broker_partitions", "Partitions served by this node.", func() float64 {
			b.mu.RLock()
			defer b.mu.RUnlock()
			return float64(len(b.mu.parts))
		}),
		gauge("leat_broker_topics", "Topics served by this node.", func() float64 {
			b.mu.RLock()
			defer b.mu.RUnlock()
			return float64(len(b.mu.topics))
		}),
		gauge("leat_broker_uncleanable_partitions", "Compacted partitions that compaction leaves alone because they are damaged.", func() float64 {
			return float64(b.uncleanable())
		}),
		gauge("leat_broker_damaged_partitions", "Partitions of which a part cannot be read.", func() float64 {
			return float64(b.damages())
		}),
	)
	return m
}

// acknowledged counts a produce of which something was acknowledged after d.
func (m *metrics) acknowledged(acks Acks, d time.Duration) {
	i := 2
	if acks >= 0 {
		i = int(acks)
	}
	m.produce[i].Observe(d.Seconds())
}

// filters makes the counter of the records that filters saw.
func (m *metrics) filters() prometheus.Collector {
	seen := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_broker_filtered_records_total",
		Help: "Records that filters of readers saw: let through (matched), left out (unmatched), or left out because the filter has no answer for them (failed).",
	}, []string{"verdict"})
	for v, name := range []string{Unmatched: "unmatched", Matched: "matched", Failed: "failed"} {
		m.filtered[v] = seen.WithLabelValues(name)
	}
	return seen
}
