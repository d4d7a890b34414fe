package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"leat/auth"
	"leat/replication/controller"
	"leat/storage"
)

// Election names a partition to elect a leader of.
type Election struct {
	Topic     string
	Partition int32
}

// ElectionResult is what became of one partition. Note says in words what a
// repair gave up; it is fit for a client.
type ElectionResult struct {
	Election
	Note string
	Err  error
}

// ElectLeaders elects leaders (KIP-183, KIP-460). A node that stands alone leads
// everything, so there is nothing to elect: ErrElectionNotNeeded. An unclean
// election of a partition that is damaged accepts for good what is lost: it is
// repaired and takes records again. nil stands for all partitions; of these,
// those that need no election are left out. It needs auth.Alter on the cluster.
func (b *Broker) ElectLeaders(ctx context.Context, p auth.Principal, unclean bool, want []Election) ([]ElectionResult, error) {
	if err := b.allowedCluster(p, auth.Alter); err != nil {
		return nil, err
	}
	all := want == nil
	if all {
		for _, t := range b.proposer.State().Topics() {
			for i := range t.Partitions.Len() {
				want = append(want, Election{Topic: t.Name, Partition: int32(i)})
			}
		}
	}
	var out []ElectionResult
	for _, e := range want {
		note, err := b.elect(ctx, unclean, e)
		if all && errors.Is(err, ErrElectionNotNeeded) {
			continue
		}
		out = append(out, ElectionResult{Election: e, Note: note, Err: err})
	}
	return out, nil
}

func (b *Broker) elect(ctx context.Context, unclean bool, e Election) (note string, err error) {
	t := b.proposer.State().TopicNamed(e.Topic)
	if t == nil {
		return "", fmt.Errorf("%w: %q", ErrUnknownTopic, e.Topic)
	}
	part, err := b.partition(t, e.Partition)
	if err != nil {
		return "", err
	}
	if !unclean || !part.damaged() {
		return "", fmt.Errorf("%w: node %d leads %s/%d", ErrElectionNotNeeded, part.self, e.Topic, e.Partition)
	}
	return b.repair(ctx, t, part)
}

// repair accepts the holes of a partition, and makes it durable where it begins
// if that has moved.
func (b *Broker) repair(ctx context.Context, t *controller.Topic, part *partition) (note string, err error) {
	// With the turn the topic does not go.
	if err := b.take(ctx, b.admin); err != nil {
		return "", err
	}
	defer b.admin.give()
	before := part.log.Offsets().Start
	done, err := part.log.Repair(ctx)
	if err != nil {
		return "", err
	}
	if done.Start > before {
		if err := b.commitStarts(map[*partition]int64{part: done.Start}); err != nil {
			return "", err
		}
	}
	part.uncleanable.Store(false)
	part.unreadable.accept()
	note = lostOffsets(done.Holes)
	b.log.Warn("partition was repaired", slog.String("topic", t.Name), slog.Int("partition", int(part.id.Partition)),
		slog.String("lost", note), slog.Int64("log_start_offset", done.Start), slog.Int64("log_end_offset", done.End))
	return note, nil
}

// Reassignments says whether p may know which partitions are on their way to
// other replicas (KIP-455). There are none: one node has nowhere to move them
// to. It needs auth.Describe on the cluster.
func (b *Broker) Reassignments(_ context.Context, p auth.Principal) error {
	return b.allowedCluster(p, auth.Describe)
}

// lostOffsets says in words which offsets are gone.
func lostOffsets(holes []storage.Hole) string {
	var ranges []string
	for _, h := range holes {
		if h.From < h.To {
			ranges = append(ranges, fmt.Sprintf("%d to %d", h.From, h.To-1))
		}
	}
	if len(ranges) == 0 {
		return "no records are lost"
	}
	return "lost offsets: " + strings.Join(slices.Compact(ranges), ", ")
}
