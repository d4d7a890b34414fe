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

// tally is what the metrics have of a group.
type tally struct {
	state      group.State
	members    int
	generation int32
}

// count brings the metrics up to date with a group.
func (m *groupMetrics) count(h *held) {
	state, _ := h.State()
	now := tally{state: state, members: h.Size(), generation: h.Generation()}
	if now == h.tally {
		return
	}
	m.move(h.tally.state, -1)
	m.move(now.state, 1)
	m.members.Add(float64(now.members - h.tally.members))
	if now.generation > h.tally.generation && now.members > 0 {
		m.rebalances.Inc()
	}
	h.tally = now
}

// forget takes a group out of the gauges.
func (m *groupMetrics) forget(h *held) {
	m.move(h.tally.state, -1)
	m.members.Sub(float64(h.tally.members))
	h.tally = tally{generation: h.tally.generation}
}

func (m *groupMetrics) move(s group.State, by float64) {
	if g := m.states[s]; g != nil {
		g.Add(by)
	}
}

// applied counts a round that is in force.
func (m *groupMetrics) applied(r *round) {
	offsets := 0
	for i := range r.changes {
		if r.changes[i].offset != nil {
			offsets++
		}
	}
	m.commits.Add(float64(offsets))
	m.roundChanges.Observe(float64(len(r.changes)))
	m.roundSeconds.Observe(time.Since(r.began).Seconds())
}
