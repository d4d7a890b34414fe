package controller

import "fmt"

// Divisible reports whether what Step decided about an event may be committed in two
// parts, the second of which begins with records[i], i ≥ 1. After each part the state
// is one that other events could have led to. So nothing is wrong if the next part is
// never committed: the same event, when it comes again, or what Active has due decides
// about the rest. After a part:
//
//   - Fence, ShutDown: the broker has left some partitions, and is in service until
//     the last record says that it is not;
//   - Unfence: the broker is in service, and not elected yet everywhere;
//   - Register: the broker has left partitions or got new leader epochs, and the life
//     is not registered yet: it asks again; or it is, in service at once, and not
//     elected yet everywhere;
//   - Elect, AlterPartitions, Reassign: each partition is decided by itself;
//   - CreateTopics, AddPartitions, DeleteTopics, ForgetTopics: each topic is
//     decided by itself and never divided;
//   - SetTopicConfigs, SetBrokerConfigs: some partitions have their leader and their
//     eligible leaders by the new configs already, which come last and all together.
func Divisible(ev Event, records []Record, i int) bool {
	switch ev.(type) {
	case *Fence, *ShutDown, *Unfence, *Register, *Elect, *AlterPartitions, *Reassign, *DeleteTopics, *ForgetTopics:
		return true
	case *CreateTopics:
		_, ok := records[i].(*TopicCreated)
		return ok
	case *AddPartitions:
		before, _ := touches(records[i-1])
		after, _ := touches(records[i])
		return before != after
	case *SetTopicConfigs, *SetBrokerConfigs:
		_, ok := records[i-1].(*PartitionChanged)
		return ok
	default:
		return false
	}
}

// The limits of what is decided about one event.
const (
	// maxItemBytes is how many bytes the records of one item may take, such as a topic
	// of a CreateTopics: they are committed together.
	maxItemBytes = 6 << 20
	// maxEventBytes is how many those of all items may take.
	maxEventBytes = 40 << 20
	// partitionBytes is what the record of a partition takes at least: an item that
	// cannot fit is refused before its records are made.
	partitionBytes = 24
)

// items collects the records that the items of an event make, within the limits. An
// item that does not fit is refused, and smaller ones after it may still fit.
type items struct {
	records []Record
	bytes   int
}

// add takes in the records of one more item, or none of them: ErrTooLarge.
func (s *items) add(item []Record) error {
	n := 0
	for _, r := range item {
		n += len(Encode(r)) + 5 // at most so many for the length in front of it
	}
	if err := s.fits(n); err != nil {
		return err
	}
	s.records, s.bytes = append(s.records, item...), s.bytes+n
	return nil
}

// fits is ErrTooLarge if one more item of so many bytes is too much.
func (s *items) fits(bytes int) error {
	switch {
	case bytes > maxItemBytes:
		return fmt.Errorf("%w: at least %d bytes, there may be %d", ErrTooLarge, bytes, maxItemBytes)
	case s.bytes+bytes > maxEventBytes:
		return fmt.Errorf("%w: with all before it in the request at least %d bytes, there may be %d", ErrTooLarge, s.bytes+bytes, maxEventBytes)
	default:
		return nil
	}
}
