package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unicode/utf16"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker/group"
)

// offsetsTopic holds the groups and their offsets: a compacted topic of the
// server's own, in Kafka's record formats, so that tools that read it work.
const offsetsTopic = "__consumer_offsets"

// The versions of keys and values that are written. Readers of Kafka's tools
// tell what a record is by the version of its key.
const (
	offsetKeyVersion   = 1
	groupKeyVersion    = 2
	offsetValueVersion = 4 // has the topic's id
	groupValueVersion  = 3
)

// expiryTag is a tagged field of the server's own in the value of an offset: when
// it expires, u64, for a client that has said so. Version 1 has a field for that
// and none for the topic's id; readers skip tags that they do not know.
const expiryTag = 10_000

// ackedTag is another: the nonce of the lease that was acked last, 16 bytes.
const ackedTag = 10_001

// offsetsPartition is the partition of the offsets topic that a group belongs
// to, as Kafka's tools reckon: Java's hash of the id.
func offsetsPartition(group string, partitions int32) int32 {
	var h int32
	for _, c := range utf16.Encode([]rune(group)) {
		h = 31*h + int32(c)
	}
	return h & 0x7fffffff % partitions
}

// change is one record of the offsets topic: what was committed for a partition
// of a topic; or, with a topic's id, the lease of a partition; or, with neither,
// who is in the group. nil removes it.
type change struct {
	group     string
	topic     string
	leased    TopicID
	partition int32
	offset    *committed
	lease     *group.LeaseRecord
	members   *group.Record
}

// ofGroup says that the change is of the group itself.
func (c *change) ofGroup() bool { return c.topic == "" && c.leased == TopicID{} }

// committed is an offset as it was committed.
type committed struct {
	topic    TopicID
	offset   int64
	epoch    int32 // of the leader, -1 if the client did not say
	metadata string
	at       int64 // wall clock, ms
	acked    group.Nonce
	expires  int64 // wall clock, ms; -1 for the server's rules
}

// size is about what the change adds to the log.
func (c *change) size() int {
	n := len(c.group) + len(c.topic) + 100
	if c.offset != nil {
		n += len(c.offset.metadata)
	}
	if c.lease != nil {
		n += leaseSize + len(c.lease.DeadLetter)
	}
	if c.members != nil {
		for i := range c.members.Members {
			m := &c.members.Members[i]
			n += len(m.ID) + len(m.ClientID) + len(m.Metadata) + len(m.Assignment) + 100
		}
	}
	return n
}

// key is the record's key.
func (c *change) key() []byte {
	if !c.leased.IsZero() {
		return encodeLeaseKey(c.group, c.leased, c.partition)
	}
	if c.topic == "" {
		k := kmsg.GroupMetadataKey{Version: groupKeyVersion, Group: c.group}
		return k.AppendTo(nil)
	}
	k := kmsg.OffsetCommitKey{Version: offsetKeyVersion, Group: c.group, Topic: c.topic, Partition: c.partition}
	return k.AppendTo(nil)
}

// value is the record's value; nil is a tombstone.
func (c *change) value() []byte {
	switch {
	case c.offset != nil:
		return c.offset.encode()
	case c.members != nil:
		return encodeMembers(c.members)
	case c.lease != nil:
		return encodeLease(c.lease)
	default:
		return nil
	}
}

func (o *committed) encode() []byte {
	v := kmsg.OffsetCommitValue{
		Version: offsetValueVersion, Offset: o.offset, LeaderEpoch: o.epoch, Metadata: o.metadata,
		CommitTimestamp: o.at, TopicID: o.topic,
	}
	if o.expires >= 0 {
		v.UnknownTags.Set(expiryTag, binary.BigEndian.AppendUint64(nil, uint64(o.expires)))
	}
	if o.acked != (group.Nonce{}) {
		v.UnknownTags.Set(ackedTag, o.acked[:])
	}
	return v.AppendTo(nil)
}

func decodeOffset(p []byte) (*committed, error) {
	v := kmsg.OffsetCommitValue{LeaderEpoch: -1, ExpireTimestamp: -1}
	if err := v.ReadFrom(p); err != nil {
		return nil, fmt.Errorf("committed offset: %w", err)
	}
	var acked group.Nonce
	v.UnknownTags.Each(func(tag uint32, value []byte) {
		switch {
		case tag == expiryTag && len(value) == 8:
			v.ExpireTimestamp = int64(binary.BigEndian.Uint64(value))
		case tag == ackedTag && len(value) == len(acked):
			acked = group.Nonce(value)
		}
	})
	return &committed{
		topic: v.TopicID, offset: v.Offset, epoch: v.LeaderEpoch, metadata: v.Metadata, at: v.CommitTimestamp, acked: acked, expires: v.ExpireTimestamp,
	}, nil
}

func encodeMembers(r *group.Record) []byte {
	v := kmsg.GroupMetadataValue{
		Version: groupValueVersion, ProtocolType: r.ProtocolType, Generation: r.Generation, CurrentStateTimestamp: r.Since.UnixMilli(),
	}
	if r.Protocol != "" {
		v.Protocol = &r.Protocol
	}
	if r.Leader != "" {
		v.Leader = &r.Leader
	}
	for i := range r.Members {
		m := &r.Members[i]
		out := kmsg.GroupMetadataValueMember{
			MemberID: m.ID, ClientID: m.ClientID, ClientHost: m.Host, RebalanceTimeoutMillis: int32(m.RebalanceTimeout.Milliseconds()),
			SessionTimeoutMillis: int32(m.Session.Milliseconds()), Subscription: m.Metadata, Assignment: m.Assignment,
		}
		if m.InstanceID != "" {
			out.InstanceID = &m.InstanceID
		}
		v.Members = append(v.Members, out)
	}
	return v.AppendTo(nil)
}

func decodeMembers(p []byte) (*group.Record, error) {
	v := kmsg.GroupMetadataValue{CurrentStateTimestamp: -1}
	if err := v.ReadFrom(p); err != nil {
		return nil, fmt.Errorf("group: %w", err)
	}
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	r := &group.Record{ProtocolType: v.ProtocolType, Protocol: text(v.Protocol), Leader: text(v.Leader), Generation: v.Generation}
	if v.CurrentStateTimestamp >= 0 {
		r.Since = time.UnixMilli(v.CurrentStateTimestamp)
	}
	for i := range v.Members {
		m := &v.Members[i]
		out := group.Member{
			ID: m.MemberID, InstanceID: text(m.InstanceID), ClientID: m.ClientID, Host: m.ClientHost,
			Session: time.Duration(m.SessionTimeoutMillis) * time.Millisecond, Metadata: m.Subscription, Assignment: m.Assignment,
		}
		// Version 0 has no timeout of its own.
		if out.RebalanceTimeout = time.Duration(m.RebalanceTimeoutMillis) * time.Millisecond; out.RebalanceTimeout < 0 {
			out.RebalanceTimeout = out.Session
		}
		r.Members = append(r.Members, out)
	}
	return r, nil
}

// errForeignRecord says that a record of the offsets topic is of a kind that
// this version does not know: readers skip it, as Kafka's do.
var errForeignRecord = errors.New("record of an unknown kind")

// decodeChange reads a record of the offsets topic.
func decodeChange(key, value []byte) (c change, err error) {
	if len(key) < 2 {
		return c, errForeignRecord
	}
	switch version := int16(key[0])<<8 | int16(key[1]); version {
	case 0, offsetKeyVersion:
		var k kmsg.OffsetCommitKey
		if err := k.ReadFrom(key); err != nil {
			return c, fmt.Errorf("key of a committed offset: %w", err)
		}
		c = change{group: k.Group, topic: k.Topic, partition: k.Partition}
		if value != nil {
			c.offset, err = decodeOffset(value)
		}
		return c, err
	case groupKeyVersion:
		var k kmsg.GroupMetadataKey
		if err := k.ReadFrom(key); err != nil {
			return c, fmt.Errorf("key of a group: %w", err)
		}
		c.group = k.Group
		if value != nil {
			c.members, err = decodeMembers(value)
		}
		return c, err
	case leaseKeyVersion:
		if c.group, c.leased, c.partition, err = decodeLeaseKey(key); err == nil && value != nil {
			c.lease, err = decodeLease(value)
		}
		return c, err
	default:
		return c, fmt.Errorf("%w: key version %d", errForeignRecord, version)
	}
}
