package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"leat/storage/meta"
)

// offsetStore is what a partition of the offsets topic says, in the metadata
// store, so that nobody need read the log for it. Every batch of changes stands
// beside the offset up to which they reach: the log is the truth, and the store
// is as of some point in it. Keys, behind the partition's prefix:
//
//	"A"                              applied: format u8, topic id [16], next offset u64
//	"N" group                        the group exists
//	"O" len(group) group topic u32   value of the newest offset record
//	"M" group                        value of the newest group record
//	"L" len(group) group id[16] u32  value of the newest lease record
//
// len is a uvarint; a topic's name has no byte that a partition number could be
// taken for, for the number is always the last four.
type offsetStore struct {
	db     *meta.DB
	topic  TopicID // of the offsets topic
	prefix []byte
}

const storeFormat = 2

func newOffsetStore(db *meta.DB, topic TopicID, partition int32) *offsetStore {
	return &offsetStore{db: db, topic: topic, prefix: binary.BigEndian.AppendUint32([]byte{meta.PrefixGroups}, uint32(partition))}
}

func (s *offsetStore) key(kind byte, rest ...string) []byte {
	k := append(append(make([]byte, 0, 64), s.prefix...), kind)
	for _, r := range rest {
		k = append(k, r...)
	}
	return k
}

// of is the prefix of what a group has of a kind.
func (s *offsetStore) of(kind byte, group string) []byte {
	return append(binary.AppendUvarint(s.key(kind), uint64(len(group))), group...)
}

func (s *offsetStore) offsetKey(group, topic string, partition int32) []byte {
	return binary.BigEndian.AppendUint32(append(s.of('O', group), topic...), uint32(partition))
}

// parseOffsetKey splits what follows the kind of an offset's key.
func parseOffsetKey(k []byte) (group, topic string, partition int32, ok bool) {
	n, size := binary.Uvarint(k)
	if size <= 0 || uint64(len(k)-size) < n || len(k)-size-int(n) < 4 {
		return "", "", 0, false
	}
	k = k[size:]
	last := len(k) - 4
	return string(k[:n]), string(k[n:last]), int32(binary.BigEndian.Uint32(k[last:])), true
}

// applied is the offset up to which the store has the log: 0 for a store that is
// empty, -1 for one of another topic or format, which is to be wiped.
func (s *offsetStore) applied() (int64, error) {
	v, err := s.db.Get(s.key('A'))
	switch {
	case errors.Is(err, meta.ErrNotFound):
		return 0, nil
	case err != nil:
		return 0, err
	case len(v) != 25 || v[0] != storeFormat || TopicID(v[1:17]) != s.topic:
		return -1, nil
	default:
		return int64(binary.BigEndian.Uint64(v[17:])), nil
	}
}

// wipe forgets everything.
func (s *offsetStore) wipe() error {
	b := s.db.NewBatch()
	end := append([]byte(nil), s.prefix...)
	for i := len(end) - 1; ; i-- {
		if end[i]++; end[i] != 0 {
			break
		}
	}
	b.DeleteRange(s.prefix, end)
	return s.db.Commit(b)
}

// apply takes changes over that reach up to the offset next. With sync it is
// durable when it returns, all that was applied before included.
func (s *offsetStore) apply(changes []change, next int64, sync bool) error {
	b := s.db.NewBatch()
	for i := range changes {
		c := &changes[i]
		k, v := s.key('M', c.group), c.value()
		switch {
		case c.topic != "":
			k = s.offsetKey(c.group, c.topic, c.partition)
		case !c.ofGroup():
			k = s.leaseKey(c.group, c.leased, c.partition)
		}
		if v == nil {
			b.Delete(k)
			if c.ofGroup() {
				b.Delete(s.key('N', c.group))
			}
			continue
		}
		b.Set(k, v)
		b.Set(s.key('N', c.group), nil)
	}
	v := append([]byte{storeFormat}, s.topic[:]...)
	b.Set(s.key('A'), binary.BigEndian.AppendUint64(v, uint64(next)))
	if sync {
		return s.db.Commit(b)
	}
	return s.db.CommitLazy(b)
}

// offset finds what was committed; nil for nothing.
func (s *offsetStore) offset(group, topic string, partition int32) (*committed, error) {
	v, err := s.db.Get(s.offsetKey(group, topic, partition))
	if errors.Is(err, meta.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeOffset(v)
}

// scanFactor is how many neighbours may be read along for each offset that is
// looked for: so many cost as much as a search of its own.
const scanFactor = 8

// ofTopic finds what was committed for partitions of a topic, in their order;
// nil for nothing.
func (s *offsetStore) ofTopic(group, topic string, partitions []int32) ([]*committed, error) {
	out := make([]*committed, len(partitions))
	if !dense(partitions) {
		var err error
		for i, p := range partitions {
			if out[i], err = s.offset(group, topic, p); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	low, high := slices.Min(partitions), slices.Max(partitions)
	found := make(map[int32]*committed, len(partitions))
	err := s.db.ScanRange(s.offsetKey(group, topic, low), s.offsetKey(group, topic, high+1), func(k, v []byte) (err error) {
		found[int32(binary.BigEndian.Uint32(k[len(k)-4:]))], err = decodeOffset(v)
		return err
	})
	for i, p := range partitions {
		out[i] = found[p]
	}
	return out, err
}

// dense says that one scan finds partitions sooner than a search for each.
func dense(partitions []int32) bool {
	if len(partitions) < 2 {
		return false
	}
	low, high := slices.Min(partitions), slices.Max(partitions)
	return low >= 0 && high < math.MaxInt32 && int64(high)-int64(low) < scanFactor*int64(len(partitions))
}

// offsets calls fn for each offset of a group, or of all groups with all, by
// group, topic and partition.
func (s *offsetStore) offsets(group string, all bool, fn func(group, topic string, partition int32, o *committed) error) error {
	kind := s.key('O')
	prefix := kind
	if !all {
		prefix = s.of('O', group)
	}
	return s.db.Scan(prefix, func(k, v []byte) error {
		g, topic, partition, ok := parseOffsetKey(k[len(kind):])
		if !ok {
			return fmt.Errorf("key of an offset: %x", k)
		}
		o, err := decodeOffset(v)
		if err != nil {
			return err
		}
		return fn(g, topic, partition, o)
	})
}

// members finds who is in a group, encoded; nil for nobody ever.
func (s *offsetStore) members(group string) ([]byte, error) {
	v, err := s.db.Get(s.key('M', group))
	if errors.Is(err, meta.ErrNotFound) {
		return nil, nil
	}
	return v, err
}

// groups calls fn with the name of each group, in order.
func (s *offsetStore) groups(fn func(group string) error) error {
	kind := s.key('N')
	return s.db.Scan(kind, func(k, _ []byte) error { return fn(string(k[len(kind):])) })
}

// has says whether there is such a group.
func (s *offsetStore) has(group string) (bool, error) {
	_, err := s.db.Get(s.key('N', group))
	if errors.Is(err, meta.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// eachMembers calls fn for each group that ever had members.
func (s *offsetStore) eachMembers(fn func(group string, v []byte) error) error {
	kind := s.key('M')
	return s.db.Scan(kind, func(k, v []byte) error { return fn(string(k[len(kind):]), bytes.Clone(v)) })
}

func (s *offsetStore) leaseKey(group string, topic TopicID, partition int32) []byte {
	return binary.BigEndian.AppendUint32(append(s.of('L', group), topic[:]...), uint32(partition))
}

// leases calls fn for each lease record of a group, or of all groups with all, by
// group, topic and partition. The record is decoded by decodeLease.
func (s *offsetStore) leases(group string, all bool, fn func(group string, topic TopicID, partition int32, v []byte) error) error {
	kind := s.key('L')
	prefix := kind
	if !all {
		prefix = s.of('L', group)
	}
	return s.db.Scan(prefix, func(k, v []byte) error {
		group, id, partition, ok := parseOffsetKey(k[len(kind):])
		if !ok || len(id) != len(TopicID{}) {
			return fmt.Errorf("key of a lease: %x", k)
		}
		return fn(group, TopicID([]byte(id)), partition, v)
	})
}
