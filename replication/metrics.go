package replication

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"leat/replication/controller"
)

// How a proposal can end, as the metrics have it.
const (
	outcomeDone = iota
	outcomeNotController
	outcomeUnknown
	outcomeRefused
	outcomes
)

var outcomeNames = [outcomes]string{"done", "not_controller", "unknown", "refused"}

// proposalMetrics count what became of proposals.
type proposalMetrics struct{ ended [outcomes]prometheus.Counter }

func newProposalMetrics(reg prometheus.Registerer, m *Metadata) *proposalMetrics {
	ended := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_quorum_proposals_total", Help: "Changes of metadata that this node was asked for, by what became of them.",
	}, []string{"outcome"})
	out := &proposalMetrics{}
	for i, name := range outcomeNames {
		out.ended[i] = ended.WithLabelValues(name)
	}
	gauge := func(name, help string, value func(s *shown) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(m.shown.Load()) })
	}
	reg.MustRegister(ended,
		gauge("leat_quorum_term", "The term of the metadata quorum that this node is in.", func(s *shown) float64 { return float64(s.status.Term) }),
		gauge("leat_quorum_leader", "The node that leads the metadata quorum, -1 if this node knows of none.", func(s *shown) float64 { return float64(s.leader) }),
		gauge("leat_quorum_active", "Whether this node is the active controller.", func(s *shown) float64 {
			if s.status.Active {
				return 1
			}
			return 0
		}),
		gauge("leat_quorum_commit_index", "The last entry of the metadata log that this node knows to be committed.", func(s *shown) float64 { return float64(s.status.Commit) }),
		gauge("leat_quorum_applied_index", "The last entry of the metadata log that this node has applied.", func(s *shown) float64 { return float64(s.status.Applied) }),
	)
	return out
}

func (m *proposalMetrics) count(err error) {
	switch {
	case err == nil:
		m.ended[outcomeDone].Inc()
	case errors.Is(err, controller.ErrNotController):
		m.ended[outcomeNotController].Inc()
	case errors.Is(err, ErrUnknownOutcome):
		m.ended[outcomeUnknown].Inc()
	default:
		m.ended[outcomeRefused].Inc()
	}
}
