package broker

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strings"

	"leat/auth"
	"leat/storage"
	"leat/storage/meta"
)

// DeleteRecordsSpec asks for the records below an offset to go.
type DeleteRecordsSpec struct {
	Topic     string
	Partition int32
	// Offset becomes the first that can be read; -1 is the high watermark.
	Offset int64
}

// DeleteRecordsResult is what became of one partition. LowWatermark is the
// first offset that can be read, -1 if it failed.
type DeleteRecordsResult struct {
	LowWatermark int64
	Err          error
}

// DeleteRecords moves the starts of logs, each by itself (KIP-107). That they
// moved is durable when it returns; the room comes back with whole segments. An
// offset below the start changes nothing, one above the high watermark is
// ErrOffsetOutOfRange. A topic that is only compacted keeps its records:
// ErrPolicyViolation.
func (b *Broker) DeleteRecords(ctx context.Context, p auth.Principal, specs []DeleteRecordsSpec) []DeleteRecordsResult {
	results := make([]DeleteRecordsResult, len(specs))
	for i := range results {
		results[i].LowWatermark = -1
	}
	fail := func(err error) []DeleteRecordsResult {
		for i := range results {
			results[i].Err = err
		}
		return results
	}
	// With the turn no topic goes, so no start is left behind for one.
	if err := b.take(ctx, b.admin); err != nil {
		return fail(err)
	}
	defer b.admin.give()
	parts, starts := make([]*partition, len(specs)), make([]int64, len(specs))
	raised := map[*partition]int64{}
	for i := range specs {
		part, start, err := b.newStart(p, &specs[i])
		if err != nil {
			results[i].Err = err
			continue
		}
		parts[i], starts[i] = part, start
		if start > max(part.log.Offsets().Start, raised[part]) {
			raised[part] = start
		}
	}
	if err := b.commitStarts(raised); err != nil {
		return fail(err)
	}
	for i, part := range parts {
		if part == nil {
			continue
		}
		if err := part.log.SetStart(starts[i]); err != nil {
			results[i].Err = err
			continue
		}
		results[i].LowWatermark = part.log.Offsets().Start
	}
	return results
}

// commitStarts makes it durable where logs begin, before it is so. The turn must
// be held.
func (b *Broker) commitStarts(starts map[*partition]int64) error {
	if len(starts) == 0 {
		return nil
	}
	batch := b.db.NewBatch()
	for part, start := range starts {
		batch.Set(startKey(part.id), binary.BigEndian.AppendUint64(nil, uint64(start)))
	}
	return b.db.Commit(batch)
}

// newStart finds the partition and the offset that is asked for.
func (b *Broker) newStart(p auth.Principal, spec *DeleteRecordsSpec) (*partition, int64, error) {
	t, err := b.resolve(p, auth.Delete, TopicRef{Name: spec.Topic})
	if err != nil {
		return nil, 0, err
	}
	part, err := b.partition(t, spec.Partition)
	if err != nil {
		return nil, 0, err
	}
	if policy, _ := b.configs().topicValue(topicConfig("cleanup.policy"), t.Configs); !strings.Contains(policy, "delete") {
		return nil, 0, fmt.Errorf("%w: cleanup.policy of %q is %s", ErrPolicyViolation, t.Name, policy)
	}
	if part.log.Fenced() {
		return nil, 0, fmt.Errorf("%w: %s/%d", ErrDamaged, t.Name, spec.Partition)
	}
	hw, start := part.hw.Load(), part.log.Offsets().Start
	switch {
	case spec.Offset == -1:
		return part, max(hw, start), nil
	case spec.Offset < -1 || spec.Offset > hw:
		return nil, 0, &OffsetError{Offset: spec.Offset, Start: start, End: hw}
	default:
		return part, max(spec.Offset, start), nil
	}
}

// The starts that DeleteRecords and retention set are this node's own and not replicated:
//
//	"B" "s" topic id [16] partition u32   offset u64
var startPrefix = []byte{meta.PrefixBroker, 's'}

func topicStarts(id TopicID) []byte {
	return append(append([]byte(nil), startPrefix...), id[:]...)
}

func startKey(id storage.ID) []byte {
	return binary.BigEndian.AppendUint32(topicStarts(id.Topic), uint32(id.Partition))
}

// parseStart reads a key and value that say where a log begins.
func parseStart(key, value []byte) (id storage.ID, start int64, ok bool) {
	key = key[len(startPrefix):]
	if len(key) != 20 || len(value) != 8 {
		return id, 0, false
	}
	id = storage.ID{Topic: TopicID(key[:16]), Partition: int32(binary.BigEndian.Uint32(key[16:]))}
	start = int64(binary.BigEndian.Uint64(value))
	return id, start, start >= 0
}

// readStarts reads the starts of all partitions, and removes those of topics
// that a crash let go before their starts.
func (b *Broker) readStarts() (map[storage.ID]int64, error) {
	starts, err := scanStarts(b.db, b.dir.MetaPath())
	if err != nil {
		return nil, err
	}
	gone, state := map[TopicID]bool{}, b.proposer.State()
	for id := range starts {
		if state.Topic(id.Topic) == nil {
			gone[id.Topic] = true
		}
	}
	b.forgetStarts(gone)
	return starts, nil
}

// forgetStarts removes the starts of topics that are gone. What stays behind
// goes with the next start.
func (b *Broker) forgetStarts(topics map[TopicID]bool) {
	if len(topics) == 0 {
		return
	}
	batch := b.db.NewBatch()
	for id := range topics {
		batch.DeleteRange(topicStarts(id), append(topicStarts(id), 0xff, 0xff, 0xff, 0xff, 0xff))
	}
	if err := b.db.Commit(batch); err != nil {
		b.log.Warn("starts of removed topics were left behind", slog.Any("err", err))
	}
}
