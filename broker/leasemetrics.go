package broker

import (
	"github.com/prometheus/client_golang/prometheus"

	"leat/broker/group"
)

// leaseMetrics are the counters of leases. No label names a group or a topic.
type leaseMetrics struct {
	live, waiting                             prometheus.Gauge
	taken, acked, expired, lost, deadLettered prometheus.Counter
}

func newLeaseMetrics(reg prometheus.Registerer) *leaseMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &leaseMetrics{
		live:         prometheus.NewGauge(prometheus.GaugeOpts{Name: "leat_leases", Help: "Leases that live, of groups that were asked for since the start."}),
		waiting:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "leat_lease_takes_waiting", Help: "Takes that wait for something to lease."}),
		taken:        counter("leat_leases_taken_total", "Leases that were handed out."),
		acked:        counter("leat_leases_acked_total", "Acks of leases, of all or of a part, that committed something."),
		expired:      counter("leat_leases_expired_total", "Leases that came to their deadline."),
		lost:         counter("leat_leases_lost_total", "Calls about leases that did not live any more."),
		deadLettered: counter("leat_lease_dead_letters_total", "Records that were written to a dead letter topic."),
	}
	reg.MustRegister(m.live, m.waiting, m.taken, m.acked, m.expired, m.lost, m.deadLettered)
	return m
}

// move brings the metrics from what they show of a shard to what is.
func (m *leaseMetrics) move(was, is *group.ShardStats) {
	m.live.Add(float64(is.Leases - was.Leases))
	m.waiting.Add(float64(is.Takes - was.Takes))
	m.expired.Add(float64(is.Expired - was.Expired))
}
