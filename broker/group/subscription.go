package group

import "encoding/binary"

// ConsumerType is the protocol type of consumers, whose metadata names topics.
const ConsumerType = "consumer"

// Subscribes reports whether a member reads the topic, so that its offsets are
// in use. Where that cannot be told it is so: what a member of another type, or
// with metadata of its own form, reads is its own affair.
func (g *Group) Subscribes(topic string) bool {
	if len(g.members) == 0 {
		return false
	}
	if g.protocolType != ConsumerType || g.protocol == "" {
		return true
	}
	for _, m := range g.members {
		meta, _ := m.metadata(g.protocol)
		if topics, ok := subscription(meta); !ok || topics.has(topic) {
			return true
		}
	}
	return false
}

// topicList is the encoded topics of a subscription, known to be whole.
type topicList []byte

// subscription finds the topics in a consumer's metadata: a version, the count
// of topics, each with its length; what follows depends on the version.
// Source: Kafka's ConsumerProtocolSubscription, all versions.
func subscription(meta []byte) (topics topicList, ok bool) {
	if len(meta) < 6 {
		return nil, false
	}
	count, rest := int32(binary.BigEndian.Uint32(meta[2:])), meta[6:]
	at := 0
	for range count {
		if len(rest)-at < 2 {
			return nil, false
		}
		n := int(int16(binary.BigEndian.Uint16(rest[at:])))
		if n < 0 || len(rest)-at-2 < n {
			return nil, false
		}
		at += 2 + n
	}
	return topicList(rest[:at]), count >= 0
}

func (l topicList) has(topic string) bool {
	for len(l) > 0 {
		n := int(binary.BigEndian.Uint16(l))
		if string(l[2:2+n]) == topic {
			return true
		}
		l = l[2+n:]
	}
	return false
}
