package broker

import (
	"context"

	"leat/auth"
)

// EpochQuery asks where a leader epoch ends in a partition.
type EpochQuery struct {
	Topic     string
	Partition int32
	// CurrentEpoch is the leader epoch that the asker knows, -1 for any.
	CurrentEpoch int32
	// Epoch is the one asked for.
	Epoch int32
}

// EpochResult is the largest epoch of the log that is not above the one asked
// for, and the offset after its last record. Both are -1 if there is none.
type EpochResult struct {
	Epoch     int32
	EndOffset int64
	Err       error
}

// EpochEnds answers each query (KIP-101, KIP-320), so that a reader learns
// whether what it read was cut off by a change of leader. It needs
// auth.Describe.
func (b *Broker) EpochEnds(_ context.Context, p auth.Principal, queries []EpochQuery) []EpochResult {
	out := make([]EpochResult, len(queries))
	for i := range queries {
		r, err := b.epochEnd(p, &queries[i])
		if err != nil {
			r = EpochResult{Epoch: -1, EndOffset: -1, Err: err}
		}
		out[i] = r
	}
	return out
}

func (b *Broker) epochEnd(pr auth.Principal, q *EpochQuery) (EpochResult, error) {
	t, err := b.resolve(pr, auth.Describe, TopicRef{Name: q.Topic})
	if err != nil {
		return EpochResult{}, err
	}
	p, err := b.partition(t, q.Partition)
	if err != nil {
		return EpochResult{}, err
	}
	if err := p.readable(q.CurrentEpoch); err != nil {
		return EpochResult{}, err
	}
	switch latest := p.leaderEpoch(); {
	case q.Epoch < 0 || q.Epoch > latest:
		return EpochResult{Epoch: -1, EndOffset: -1}, nil
	case q.Epoch == latest:
		return EpochResult{Epoch: latest, EndOffset: p.log.Offsets().End}, nil
	}
	found, end, err := p.log.EpochEnd(q.Epoch)
	if err != nil {
		return EpochResult{}, b.readError(p, err)
	}
	if found < 0 { // below every epoch of the log
		found = q.Epoch
	}
	return EpochResult{Epoch: found, EndOffset: max(end, p.log.Offsets().Start)}, nil
}
