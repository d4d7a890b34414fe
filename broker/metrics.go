package broker

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the domain's counters. Labels take values from fixed sets only.
type metrics struct {
	refused *prometheus.CounterVec
	waiting prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, b *Broker) *metrics {
	m := &metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leat_broker_batches_refused_total",
			Help: "Batches that were not appended, by reason.",
		}, []string{"reason"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "leat_broker_waiting_fetches", Help: "Fetches that wait for records.",
		}),
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	reg.MustRegister(m.refused, m.waiting,
		gauge("leat_broker_partitions", "Partitions served by this node.", func() float64 {
			b.mu.RLock()
			defer b.mu.RUnlock()
			return float64(len(b.mu.parts))
		}),
		gauge("leat_broker_topics", "Topics of the cluster.", func() float64 {
			if b.proposer == nil {
				return 0
			}
			return float64(len(b.proposer.State().Topics()))
		}),
	)
	return m
}

// refusals names the reasons worth telling apart.
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
}

func (m *metrics) appendFailed(err error) {
	reason := "other"
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			reason = r.name
			break
		}
	}
	m.refused.WithLabelValues(reason).Inc()
}
