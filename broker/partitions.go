package broker

import (
	"context"
	"fmt"

	"leat/auth"
	"leat/replication/controller"
)

// PartitionsSpec asks for more partitions of a topic.
type PartitionsSpec struct {
	Topic string
	// Count is how many there will be.
	Count int32
	// Assignments gives the replicas of each new partition; nil lets the server
	// choose.
	Assignments [][]int32
}

// CreatePartitions gives topics more partitions, each topic by itself. They can
// be used when it returns, and the tails that follow all partitions know of
// them. With validateOnly nothing is made.
func (b *Broker) CreatePartitions(ctx context.Context, p auth.Principal, specs []PartitionsSpec, validateOnly bool) []TopicResult {
	results := make([]TopicResult, len(specs))
	named := map[string]int{}
	for i := range specs {
		named[specs[i].Topic]++
	}
	ev := &controller.AddPartitions{}
	var places []int // ev.Topics[i] is specs[places[i]]
	for i := range specs {
		t, err := b.resolve(p, auth.Alter, TopicRef{Name: specs[i].Topic})
		if err == nil && named[specs[i].Topic] > 1 {
			err = fmt.Errorf("%w: topic %q is named twice", ErrInvalidRequest, specs[i].Topic)
		}
		if err != nil {
			results[i].Topic, results[i].Err = Topic{Name: specs[i].Topic}, err
			continue
		}
		results[i].Topic = describe(t)
		ev.Topics = append(ev.Topics, controller.MorePartitions{ID: t.ID, Count: specs[i].Count, Assignments: specs[i].Assignments})
		places = append(places, i)
	}
	if len(places) == 0 {
		return results
	}
	errs, next, err := b.makeLogs(ctx, ev, validateOnly, func(i int) TopicID { return ev.Topics[i].ID })
	for i, place := range places {
		switch {
		case err != nil:
			results[place].Err = err
		case errs[i] != nil:
			results[place].Err = errs[i]
		default:
			results[place].Topic = describe(next.Topic(ev.Topics[i].ID))
			if t := b.topic(ev.Topics[i].ID); t != nil && !validateOnly {
				t.grew()
			}
		}
	}
	return results
}
