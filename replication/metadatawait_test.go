package replication

import (
	"context"
	"errors"
	"testing"

	"leat/storage/disk"
)

// Who proposes while the disk hangs is told, when its context ends, that the outcome
// is unknown. What it has proposed is committed all the same when the disk goes on, and
// has a turn until then.
func TestMetadataAnswersInTime(t *testing.T) {
	fs := disk.NewMem()
	m := openMetadata(t, openMeta(t, fs))
	propose(t, m, register("a"))
	hanging, goOn := hang(fs)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- proposed(ctx, m, creation("slow")) }()
	<-hanging
	cancel()
	if err := <-done; !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Errorf("a proposal on a disk that hangs: %v", err)
	}
	if err := proposed(ctx, m, creation("never")); !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("one that was not made: %v", err)
	}
	if n := len(m.slots); n != 1 {
		t.Errorf("%d have a turn", n)
	}
	goOn()
	propose(t, m, creation("next"))
	m.Close() // a turn ends just after its answer
	if s := m.State(); s.TopicNamed("slow") == nil || s.TopicNamed("never") != nil || len(m.slots) != 0 {
		t.Errorf("%d topics, %d have a turn", len(s.Topics()), len(m.slots))
	}
}
