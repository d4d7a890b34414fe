package rest

import (
	"net/http"
	"strconv"
	"strings"

	"leat/api"
	"leat/broker"
)

// partitionInfo is a partition with its offsets, which are null while it has
// no leader here.
type partitionInfo struct {
	Partition      int32   `json:"partition"`
	Leader         int32   `json:"leader"`
	LeaderEpoch    int32   `json:"leader_epoch"`
	Replicas       []int32 `json:"replicas"`
	ISR            []int32 `json:"isr"`
	Offline        []int32 `json:"offline"`
	LogStartOffset *int64  `json:"log_start_offset"`
	HighWatermark  *int64  `json:"high_watermark"`
}

func (s *Server) listPartitions(w *responseWriter, r *http.Request) error {
	name, err := topicParam(r)
	if err != nil {
		return err
	}
	ps, err := parseParams(r, "limit", "page_token")
	if err != nil {
		return err
	}
	after := int32(-1)
	pg, err := pageParams(ps, func(key string) (ok bool) {
		after, ok = numberKey(key)
		return ok
	})
	if err != nil {
		return err
	}
	t, err := s.broker.Topic(r.Context(), principal(r), broker.TopicRef{Name: name})
	if err != nil {
		return api.ProblemOf(err).At(name, api.AnyPartition)
	}
	parts, next := cut(pg, t.Partitions,
		func(p *broker.Partition) string { return strconv.Itoa(int(p.Index)) },
		func(p *broker.Partition) bool { return p.Index <= after })
	list := struct {
		Items []partitionInfo `json:"items"`
		Next  *string         `json:"next_page_token"`
	}{s.partitions(r, name, parts), next}
	s.writeJSON(w, r, http.StatusOK, &list)
	return nil
}

func (s *Server) getPartition(w *responseWriter, r *http.Request) error {
	name, err := topicParam(r)
	if err != nil {
		return err
	}
	index, err := partitionParam(r)
	if err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	t, err := s.broker.Topic(r.Context(), principal(r), broker.TopicRef{Name: name})
	if err == nil && int(index) >= len(t.Partitions) {
		err = noPartition(name, index, len(t.Partitions))
	}
	if err != nil {
		return api.ProblemOf(err).At(name, index)
	}
	s.writeJSON(w, r, http.StatusOK, &s.partitions(r, name, t.Partitions[index:index+1])[0])
	return nil
}

// partitions describes parts of a topic, with their offsets as of now.
func (s *Server) partitions(r *http.Request, topic string, parts []broker.Partition) []partitionInfo {
	infos := make([]partitionInfo, len(parts))
	queries := make([]broker.OffsetQuery, 0, 2*len(parts))
	for i := range parts {
		p := &parts[i]
		infos[i] = partitionInfo{
			Partition: p.Index, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch,
			Replicas: list(p.Replicas), ISR: list(p.ISR), Offline: list(p.Offline),
		}
		for _, ts := range []int64{broker.OffsetEarliest, broker.OffsetLatest} {
			queries = append(queries, broker.OffsetQuery{Topic: topic, Partition: p.Index, Timestamp: ts, Epoch: -1})
		}
	}
	for i, res := range s.broker.ListOffsets(r.Context(), principal(r), queries) {
		if res.Err != nil {
			continue
		}
		if i%2 == 0 {
			infos[i/2].LogStartOffset = &res.Offset
		} else {
			infos[i/2].HighWatermark = &res.Offset
		}
	}
	return infos
}

// list is never nil, so that it is an array in JSON.
func list(ids []int32) []int32 {
	if ids == nil {
		return []int32{}
	}
	return ids
}

// offsetInfo is an offset and the time of its record; both are null where no
// record fits.
type offsetInfo struct {
	Partition int32  `json:"partition"`
	Offset    *int64 `json:"offset"`
	Timestamp *int64 `json:"timestamp"`
}

// findOffset gives the first offset whose record is not older than a time, or
// an offset by name.
func (s *Server) findOffset(w *responseWriter, r *http.Request) error {
	name, err := topicParam(r)
	if err != nil {
		return err
	}
	index, err := partitionParam(r)
	if err != nil {
		return err
	}
	ts, err := offsetTime(r)
	if err != nil {
		return err
	}
	res := s.broker.ListOffsets(r.Context(), principal(r), []broker.OffsetQuery{
		{Topic: name, Partition: index, Timestamp: ts, Epoch: -1},
	})[0]
	if res.Err != nil {
		return api.ProblemOf(res.Err).At(name, index)
	}
	info := offsetInfo{Partition: index}
	if res.Offset >= 0 {
		info.Offset = &res.Offset
	}
	if res.Timestamp >= 0 {
		info.Timestamp = &res.Timestamp
	}
	s.writeJSON(w, r, http.StatusOK, &info)
	return nil
}

func offsetTime(r *http.Request) (int64, error) {
	ps, err := parseParams(r, "ts", "from")
	if err != nil {
		return 0, err
	}
	ts, hasTime := ps.get("ts")
	from, hasFrom := ps.get("from")
	switch {
	case hasTime && hasFrom:
		return 0, api.InvalidParameter("from", "give ts or from, not both")
	case hasTime:
		return timestamp("ts", ts)
	case !hasFrom:
		return 0, api.InvalidParameter("ts", "ts or from is required")
	}
	switch from {
	case api.FromEarliest:
		return broker.OffsetEarliest, nil
	case api.FromLatest:
		return broker.OffsetLatest, nil
	case "max_timestamp":
		return broker.OffsetMaxTimestamp, nil
	}
	if text, ok := strings.CutPrefix(from, api.FromTime); ok {
		return timestamp("from", text)
	}
	return 0, api.InvalidParameter("from", "want earliest, latest, max_timestamp or ts:TIME")
}
