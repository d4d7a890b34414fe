package rest

import (
	"net/http"

	"leat/api"
	"leat/broker"
)

// partitionLag is how far a group is behind in a partition.
type partitionLag struct {
	Topic           string  `json:"topic"`
	Partition       int32   `json:"partition"`
	CommittedOffset *int64  `json:"committed_offset"`
	LogStartOffset  *int64  `json:"log_start_offset"`
	HighWatermark   *int64  `json:"high_watermark"`
	Lag             *int64  `json:"lag"`
	LagSeconds      float64 `json:"lag_seconds"`
	// Error is why there are no numbers, or no time.
	Error *lagError `json:"error,omitzero"`
}

type lagError struct {
	Code      string `json:"code"`
	Retriable bool   `json:"retriable"`
	Detail    string `json:"detail,omitzero"`
}

// groupLag is all of it in one.
type groupLag struct {
	Lag        int64          `json:"lag"`
	LagSeconds float64        `json:"lag_seconds"`
	Items      []partitionLag `json:"items"`
	Next       *string        `json:"next_page_token"`
}

// known is a number that is negative where it is not known.
func known(n *int64) *int64 {
	if *n < 0 {
		return nil
	}
	return n
}

func lagOf(l *broker.PartitionLag) partitionLag {
	out := partitionLag{
		Topic: l.Topic, Partition: l.Partition, LagSeconds: l.Seconds, CommittedOffset: known(&l.Committed),
		LogStartOffset: known(&l.LogStart), HighWatermark: known(&l.HighWatermark), Lag: known(&l.Lag),
	}
	if l.Err != nil {
		p := api.ProblemOf(l.Err)
		out.Error = &lagError{Code: p.Code, Retriable: p.Retriable, Detail: p.Detail}
	}
	return out
}

// getGroupLag says how far a group is behind: in all partitions that it has
// offsets of, or in all of one topic.
func (s *Server) getGroupLag(w *responseWriter, r *http.Request) error {
	id, err := groupParam(r)
	if err != nil {
		return err
	}
	pg, only, before, err := partitionPage(r)
	if err != nil {
		return err
	}
	var topics []string
	if only != "" {
		topics = []string{only}
	}
	lags, err := s.broker.GroupLag(r.Context(), principal(r), id, topics)
	if err != nil {
		return err
	}
	var sum groupLag
	for i := range lags {
		sum.Lag += max(lags[i].Lag, 0)
		sum.LagSeconds = max(sum.LagSeconds, lags[i].Seconds)
	}
	lags, sum.Next = cut(pg, lags,
		func(l *broker.PartitionLag) string { return partitionKey(l.Topic, l.Partition) },
		func(l *broker.PartitionLag) bool { return before(l.Topic, l.Partition) })
	sum.Items = make([]partitionLag, len(lags))
	for i := range lags {
		sum.Items[i] = lagOf(&lags[i])
	}
	w.Header().Set("Cache-Control", "no-store")
	s.writeJSON(w, r, http.StatusOK, &sum)
	return nil
}
