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

// encodeKey makes the key of the record of a change.
func encodeKey(c *group.Change) []byte {
	if c.Leased != (TopicID{}) {
		return encodeLeaseKey(c.Group, c.Leased, c.Partition)
	}
	if c.Topic == "" {
		k := kmsg.GroupMetadataKey{Version: groupKeyVersion, Group: c.Group}
		return k.AppendTo(nil)
	}
	k := kmsg.OffsetCommitKey{Version: offsetKeyVersion, Group: c.Group, Topic: c.Topic, Partition: c.Partition}
	return k.AppendTo(nil)
}

// encodeValue makes its value; nil is a tombstone.
func encodeValue(c *group.Change) []byte {
	switch {
	case c.Offset != nil:
		return encodeOffset(c.Offset)
	case c.Members != nil:
		return encodeMembers(c.Members)
	case c.Lease != nil:
		return encodeLease(c.Lease)
	default:
		return nil
	}
}

func encodeOffset(o *group.Offset) []byte {
	v := kmsg.OffsetCommitValue{
		Version: offsetValueVersion, Offset: o.Offset, LeaderEpoch: o.Epoch, Metadata: o.Metadata,
		CommitTimestamp: o.At, TopicID: o.Topic,
	}
	if o.Expires >= 0 {
		v.UnknownTags.Set(expiryTag, binary.BigEndian.AppendUint64(nil, uint64(o.Expires)))
	}
	if o.Acked != (group.Nonce{}) {
		v.UnknownTags.Set(ackedTag, o.Acked[:])
	}
	return v.AppendTo(nil)
}

func decodeOffset(p []byte) (*group.Offset, error) {
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
	return &group.Offset{
		Topic: v.TopicID, Offset: v.Offset, Epoch: v.LeaderEpoch, Metadata: v.Metadata, At: v.CommitTimestamp, Acked: acked, Expires: v.ExpireTimestamp,
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
func decodeChange(key, value []byte) (c group.Change, err error) {
	if len(key) < 2 {
		return c, errForeignRecord
	}
	switch version := int16(key[0])<<8 | int16(key[1]); version {
	case 0, offsetKeyVersion:
		var k kmsg.OffsetCommitKey
		if err := k.ReadFrom(key); err != nil {
			return c, fmt.Errorf("key of a committed offset: %w", err)
		}
		c = group.Change{Group: k.Group, Topic: k.Topic, Partition: k.Partition}
		if value != nil {
			c.Offset, err = decodeOffset(value)
		}
		return c, err
	case groupKeyVersion:
		var k kmsg.GroupMetadataKey
		if err := k.ReadFrom(key); err != nil {
			return c, fmt.Errorf("key of a group: %w", err)
		}
		c.Group = k.Group
		if value != nil {
			c.Members, err = decodeMembers(value)
		}
		return c, err
	case leaseKeyVersion:
		if c.Group, c.Leased, c.Partition, err = decodeLeaseKey(key); err == nil && value != nil {
			c.Lease, err = decodeLease(value)
		}
		return c, err
	default:
		return c, fmt.Errorf("%w: key version %d", errForeignRecord, version)
	}
}
