package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"leat/broker/group"
	"leat/storage/meta"
)

// offsetStore is what a partition of the offsets topic says, in the metadata
// store, so that nobody need read the log for it. Every batch of changes stands
// beside the offset up to which they reach: the log is the truth, and the store
// is as of some point in it. Keys, behind the partition's prefix:
//
//	"A"                              applied: format u8, topic id [16], next offset u64,
//	                                 leader epoch u32 of the record before it
//	"N" group                        the group exists
//	"O" len(group) group topic u32   value of the newest offset record
//	"M" group                        value of the newest group record
//	"L" len(group) group id[16] u32  value of the newest lease record
//
// len is a uvarint; a topic's name has no byte that a partition number could be
// taken for, for the number is always the last four. Format 2 had no epoch. It is
// the committed view of a group.Shard.
type offsetStore struct {
	db     *meta.DB
	topic  TopicID // of the offsets topic
	prefix []byte
}

const storeFormat = 3

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
func (s *offsetStore) of(kind byte, id string) []byte {
	return append(binary.AppendUvarint(s.key(kind), uint64(len(id))), id...)
}

func (s *offsetStore) offsetKey(id, topic string, partition int32) []byte {
	return binary.BigEndian.AppendUint32(append(s.of('O', id), topic...), uint32(partition))
}

// parseOffsetKey splits what follows the kind of an offset's key.
func parseOffsetKey(k []byte) (id, topic string, partition int32, ok bool) {
	n, size := binary.Uvarint(k)
	if size <= 0 || uint64(len(k)-size) < n || len(k)-size-int(n) < 4 {
		return "", "", 0, false
	}
	k = k[size:]
	last := len(k) - 4
	return string(k[:n]), string(k[n:last]), int32(binary.BigEndian.Uint32(k[last:])), true
}

// applied is how far the store has the log: not at all if it is empty, and ahead of
// any log, so that it is wiped, if it is of another topic or format.
func (s *offsetStore) applied() (group.Applied, error) {
	v, err := s.db.Get(s.key('A'))
	switch {
	case errors.Is(err, meta.ErrNotFound):
		return group.Applied{Epoch: -1}, nil
	case err != nil:
		return group.Applied{}, err
	case len(v) == 25 && v[0] == 2 && TopicID(v[1:17]) == s.topic:
		return group.Applied{Next: int64(binary.BigEndian.Uint64(v[17:])), Epoch: -1}, nil
	case len(v) != 29 || v[0] != storeFormat || TopicID(v[1:17]) != s.topic:
		return group.Applied{Next: math.MaxInt64, Epoch: -1}, nil
	default:
		return group.Applied{Next: int64(binary.BigEndian.Uint64(v[17:])), Epoch: int32(binary.BigEndian.Uint32(v[25:]))}, nil
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

// apply takes changes over that reach as far as to says. With sync it is durable
// when it returns, all that was applied before included.
func (s *offsetStore) apply(changes []group.Change, to group.Applied, sync bool) error {
	b := s.db.NewBatch()
	for i := range changes {
		c := &changes[i]
		k, v := s.key('M', c.Group), encodeValue(c)
		switch {
		case c.Topic != "":
			k = s.offsetKey(c.Group, c.Topic, c.Partition)
		case !c.OfGroup():
			k = s.leaseKey(c.Group, c.Leased, c.Partition)
		}
		if v == nil {
			b.Delete(k)
			if c.OfGroup() {
				b.Delete(s.key('N', c.Group))
			}
			continue
		}
		b.Set(k, v)
		b.Set(s.key('N', c.Group), nil)
	}
	v := append([]byte{storeFormat}, s.topic[:]...)
	v = binary.BigEndian.AppendUint64(v, uint64(to.Next))
	b.Set(s.key('A'), binary.BigEndian.AppendUint32(v, uint32(to.Epoch)))
	if sync {
		return s.db.Commit(b)
	}
	return s.db.CommitLazy(b)
}

// Offset finds what was committed; nil for nothing.
func (s *offsetStore) Offset(id, topic string, partition int32) (*group.Offset, error) {
	v, err := s.db.Get(s.offsetKey(id, topic, partition))
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
func (s *offsetStore) ofTopic(id, topic string, partitions []int32) ([]*group.Offset, error) {
	out := make([]*group.Offset, len(partitions))
	if !dense(partitions) {
		var err error
		for i, p := range partitions {
			if out[i], err = s.Offset(id, topic, p); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	low, high := slices.Min(partitions), slices.Max(partitions)
	found := make(map[int32]*group.Offset, len(partitions))
	err := s.db.ScanRange(s.offsetKey(id, topic, low), s.offsetKey(id, topic, high+1), func(k, v []byte) (err error) {
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
func (s *offsetStore) offsets(id string, all bool, fn func(id, topic string, partition int32, o *group.Offset) error) error {
	kind := s.key('O')
	prefix := kind
	if !all {
		prefix = s.of('O', id)
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

// EachOffset calls fn with what a group has committed.
func (s *offsetStore) EachOffset(id string, fn func(topic string, partition int32, o *group.Offset) error) error {
	return s.offsets(id, false, func(_, topic string, partition int32, o *group.Offset) error { return fn(topic, partition, o) })
}

// Members finds who is in a group; nil for nobody ever.
func (s *offsetStore) Members(id string) (*group.Record, error) {
	v, err := s.db.Get(s.key('M', id))
	if errors.Is(err, meta.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return decodeMembers(v)
}

// EachGroup calls fn with the name of each group, in order.
func (s *offsetStore) EachGroup(fn func(id string) error) error {
	kind := s.key('N')
	return s.db.Scan(kind, func(k, _ []byte) error { return fn(string(k[len(kind):])) })
}

// Exists says whether there is such a group.
func (s *offsetStore) Exists(id string) (bool, error) {
	_, err := s.db.Get(s.key('N', id))
	if errors.Is(err, meta.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// EachMembers calls fn for each group that ever had members.
func (s *offsetStore) EachMembers(fn func(id string, r *group.Record) error) error {
	kind := s.key('M')
	return s.db.Scan(kind, func(k, v []byte) error {
		r, err := decodeMembers(bytes.Clone(v))
		if err != nil {
			return err
		}
		return fn(string(k[len(kind):]), r)
	})
}

func (s *offsetStore) leaseKey(id string, topic TopicID, partition int32) []byte {
	return binary.BigEndian.AppendUint32(append(s.of('L', id), topic[:]...), uint32(partition))
}

// EachLease calls fn with the lease records of a group.
func (s *offsetStore) EachLease(id string, fn func(at group.Partition, r *group.LeaseRecord) error) error {
	return s.leases(id, false, func(_ string, at group.Partition, v []byte) error {
		r, err := decodeLease(v)
		if err != nil {
			return err
		}
		return fn(at, r)
	})
}

// leases calls fn for each lease record of a group, or of all groups with all, by
// group, topic and partition. The record is decoded by decodeLease.
func (s *offsetStore) leases(id string, all bool, fn func(id string, at group.Partition, v []byte) error) error {
	kind := s.key('L')
	prefix := kind
	if !all {
		prefix = s.of('L', id)
	}
	return s.db.Scan(prefix, func(k, v []byte) error {
		id, topic, partition, ok := parseOffsetKey(k[len(kind):])
		if !ok || len(topic) != len(TopicID{}) {
			return fmt.Errorf("key of a lease: %x", k)
		}
		return fn(id, group.Partition{Topic: TopicID([]byte(topic)), Number: partition}, v)
	})
}
