package broker

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/broker/group"
)

// groupMetrics are the counters of groups. No label names a group, a member or a
// topic.
type groupMetrics struct {
	// states holds the gauges of the states that a group with members may have.
	states                     map[group.State]prometheus.Gauge
	members                    prometheus.Gauge
	rebalances, commits        prometheus.Counter
	roundChanges, roundSeconds prometheus.Histogram
}

func newGroupMetrics(reg prometheus.Registerer) *groupMetrics {
	states := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "leat_groups", Help: "Groups that have members, by state."}, []string{"state"})
	m := &groupMetrics{
		states:     map[group.State]prometheus.Gauge{},
		members:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "leat_group_members", Help: "Members of all groups."}),
		rebalances: prometheus.NewCounter(prometheus.CounterOpts{Name: "leat_group_rebalances_total", Help: "Generations that groups have begun."}),
		commits:    prometheus.NewCounter(prometheus.CounterOpts{Name: "leat_group_commits_total", Help: "Offsets that were committed, one for each partition of a request."}),
		roundChanges: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "leat_group_round_changes", Help: "Changes of groups and offsets that shared one batch and one sync.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 9),
		}),
		roundSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "leat_group_round_seconds", Help: "Time from the append of such a batch until its changes were on disk and in force.",
			Buckets: prometheus.ExponentialBuckets(1e-4, 2, 16),
		}),
	}
	for _, s := range []group.State{group.Preparing, group.Completing, group.Stable} {
		m.states[s] = states.WithLabelValues(s.String())
	}
	reg.MustRegister(states, m.members, m.rebalances, m.commits, m.roundChanges, m.roundSeconds)
	return m
}

// move brings the metrics from what they show of a shard to what is.
func (m *groupMetrics) move(was, is *group.ShardStats) {
	for state, gauge := range m.states {
		gauge.Add(float64(is.Groups[state] - was.Groups[state]))
	}
	m.members.Add(float64(is.Members - was.Members))
	m.rebalances.Add(float64(is.Rebalances - was.Rebalances))
}

// applied counts a round that is in force.
func (m *groupMetrics) applied(changes []group.Change, began time.Time) {
	offsets := 0
	for i := range changes {
		if changes[i].Offset != nil {
			offsets++
		}
	}
	m.commits.Add(float64(offsets))
	m.roundChanges.Observe(float64(len(changes)))
	m.roundSeconds.Observe(time.Since(began).Seconds())
}
