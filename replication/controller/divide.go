package controller

import "fmt"

// Divisible reports whether the records of an event may be committed in two parts, of
// which the second begins with record i, the first being 0. After each part the state
// is one that other events could have led to, so that nothing is wrong if the next one
// never is committed, and the same event, or what Active has due, decides about the
// rest:
//
//   - Fence, ShutDown: the broker has left some partitions, and is in service until
//     the last record says that it is not;
//   - Unfence: the broker is in service, and not elected yet everywhere;
//   - Register: the broker has left partitions or got new leader epochs, and the life
//     is not registered yet: it asks again; or it is, in service at once, and not
//     elected yet everywhere;
//   - Elect, AlterPartitions, Reassign: each partition is for itself;
//   - CreateTopics, AddPartitions, DeleteTopics, ForgetTopics: each topic is for itself;
//   - SetTopicConfigs, SetBrokerConfigs: some partitions have their leader and their
//     eligible leaders by the configs that are to be, which come last and all together.
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

// What a decision may take: maxItemBytes is for one item, which is one commit, and
// maxEventBytes for all items of one event.
const (
	maxItemBytes  = 6 << 20
	maxEventBytes = 40 << 20
	// partitionBytes is what a partition takes at least: what cannot fit is refused
	// before it is made.
	partitionBytes = 24
)

// size is records that items make, and the bytes that they take.
type size struct {
	records []Record
	bytes   int
}

// add takes the records of one more item, all or none: ErrTooLarge.
func (s *size) add(item []Record) error {
	n := 0
	for _, r := range item {
		n += len(Encode(r)) + 5 // its length, at the most
	}
	if err := s.fits(n); err != nil {
		return err
	}
	s.records, s.bytes = append(s.records, item...), s.bytes+n
	return nil
}

// fits says whether one more item of so many bytes may come.
func (s *size) fits(bytes int) error {
	switch {
	case bytes > maxItemBytes:
		return fmt.Errorf("%w: at least %d bytes, there may be %d", ErrTooLarge, bytes, maxItemBytes)
	case s.bytes+bytes > maxEventBytes:
		return fmt.Errorf("%w: with all before it in the request at least %d bytes, there may be %d", ErrTooLarge, s.bytes+bytes, maxEventBytes)
	default:
		return nil
	}
}
