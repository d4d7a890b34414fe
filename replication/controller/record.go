package controller

import (
	"encoding/binary"
	"errors"
	"fmt"

	"leat/storage"
)

// ErrUnknownRecord says that metadata holds a record that this binary does not
// know: it was written by a newer one.
var ErrUnknownRecord = errors.New("unknown metadata record")

// ErrDamagedRecord says that the bytes of a metadata record make no sense.
var ErrDamagedRecord = errors.New("damaged metadata record")

// Record is one change of metadata.
type Record interface {
	// kind is the type number of the record.
	kind() kind
	// version is the oldest version that carries the record, and the one written:
	// what does not use a newer feature reads as it always did.
	version() byte
	// level is the feature level that the record needs, 0 if it was always there.
	level() uint32
	// append adds the payload of that version.
	append(p []byte) []byte
	// decode reads a payload of a version up to newest.
	decode(d *decoder, version byte)
	// key names the entry of the state that the record sets or removes.
	key() []byte
	// removes reports that the record removes its entry instead of setting it.
	removes() bool
	// apply changes a state that the caller owns.
	apply(s *State) error
}

type kind uint8

// The numbers are on disk: never reuse one.
const (
	kindFeature kind = iota + 1
	kindBroker
	kindTopic
	kindPartition
	kindTopicConfig
	kindTopicRemoved
	kindTopicGone
	kindProducerIDs
	kindBrokerConfig
	kindBrokerGone
	kindBrokerEpochs
)

// newest is the newest version of each type that this binary reads.
func newest(k kind) byte {
	if k == kindBroker || k == kindPartition {
		return 1
	}
	return 0
}

// FeatureLevel says which records may appear in the log. A binary writes no
// record above the level, and raises it only when every node can read them.
type FeatureLevel struct{ Level uint32 }

// BrokerRegistered sets all that is known about one broker: at its registration
// and when it is fenced, unfenced or begins to shut down. What is more than id,
// uuid and epoch is version 1.
type BrokerRegistered struct{ Broker }

// BrokerUnregistered ends a broker.
type BrokerUnregistered struct{ ID int32 }

// BrokerEpochsTaken says that all broker epochs below Next were given out. It is
// written when a broker ends, whose own record said so before.
type BrokerEpochsTaken struct{ Next int64 }

// TopicCreated makes a topic. Its partitions follow in the same commit.
type TopicCreated struct {
	ID   storage.TopicID
	Name string
}

// PartitionChanged sets all that is decided about one partition. Eligible leader
// replicas, a reassignment and recovery are version 1.
type PartitionChanged struct {
	Topic storage.TopicID
	Index int32
	Partition
}

// TopicConfigSet sets one config of a topic; a nil Value takes it back to the
// default.
type TopicConfigSet struct {
	Topic storage.TopicID
	Name  string
	Value *string
}

// BrokerConfigSet sets one config of a broker, or of AllBrokers; a nil Value
// takes it back to what is in force without it. It needs feature level 2.
type BrokerConfigSet struct {
	Broker int32
	Name   string
	Value  *string
}

// AllBrokers stands for every broker in a BrokerConfigSet.
const AllBrokers int32 = -1

// TopicRemoved ends a topic. Its id stays among the dying until TopicGone, so
// that a crash in between cannot leave its data behind.
type TopicRemoved struct{ ID storage.TopicID }

// TopicGone says that the data of a removed topic is gone.
type TopicGone struct{ ID storage.TopicID }

// ProducerIDsTaken says that all producer ids below Next are given out.
type ProducerIDsTaken struct{ Next int64 }

func (*FeatureLevel) kind() kind       { return kindFeature }
func (*BrokerRegistered) kind() kind   { return kindBroker }
func (*TopicCreated) kind() kind       { return kindTopic }
func (*PartitionChanged) kind() kind   { return kindPartition }
func (*TopicConfigSet) kind() kind     { return kindTopicConfig }
func (*TopicRemoved) kind() kind       { return kindTopicRemoved }
func (*TopicGone) kind() kind          { return kindTopicGone }
func (*ProducerIDsTaken) kind() kind   { return kindProducerIDs }
func (*BrokerConfigSet) kind() kind    { return kindBrokerConfig }
func (*BrokerUnregistered) kind() kind { return kindBrokerGone }
func (*BrokerEpochsTaken) kind() kind  { return kindBrokerEpochs }

func (*FeatureLevel) version() byte       { return 0 }
func (*TopicCreated) version() byte       { return 0 }
func (*TopicConfigSet) version() byte     { return 0 }
func (*TopicRemoved) version() byte       { return 0 }
func (*TopicGone) version() byte          { return 0 }
func (*ProducerIDsTaken) version() byte   { return 0 }
func (*BrokerConfigSet) version() byte    { return 0 }
func (*BrokerUnregistered) version() byte { return 0 }
func (*BrokerEpochsTaken) version() byte  { return 0 }
func (r *BrokerRegistered) version() byte {
	b := &r.Broker
	if b.Incarnation != "" || b.Rack != "" || len(b.Endpoints) > 0 || b.MinLevel != 0 || b.MaxLevel != 0 || b.Fenced || b.ShuttingDown {
		return 1
	}
	return 0
}

func (r *PartitionChanged) version() byte {
	if len(r.ELR) > 0 || len(r.Adding) > 0 || len(r.Removing) > 0 || r.Recovering {
		return 1
	}
	return 0
}

func (*FeatureLevel) level() uint32       { return 0 }
func (*TopicCreated) level() uint32       { return 0 }
func (*TopicConfigSet) level() uint32     { return 0 }
func (*TopicRemoved) level() uint32       { return 0 }
func (*TopicGone) level() uint32          { return 0 }
func (*ProducerIDsTaken) level() uint32   { return 0 }
func (*BrokerConfigSet) level() uint32    { return 2 }
func (*BrokerUnregistered) level() uint32 { return clusterLevel }
func (*BrokerEpochsTaken) level() uint32  { return clusterLevel }
func (r *BrokerRegistered) level() uint32 { return versionLevel(r.version()) }
func (r *PartitionChanged) level() uint32 { return versionLevel(r.version()) }

// versionLevel is the level that versions of brokers and partitions need.
func versionLevel(v byte) uint32 {
	if v > 0 {
		return clusterLevel
	}
	return 0
}

func newRecord(k kind) Record {
	switch k {
	case kindFeature:
		return new(FeatureLevel)
	case kindBroker:
		return new(BrokerRegistered)
	case kindTopic:
		return new(TopicCreated)
	case kindPartition:
		return new(PartitionChanged)
	case kindTopicConfig:
		return new(TopicConfigSet)
	case kindTopicRemoved:
		return new(TopicRemoved)
	case kindTopicGone:
		return new(TopicGone)
	case kindProducerIDs:
		return new(ProducerIDsTaken)
	case kindBrokerConfig:
		return new(BrokerConfigSet)
	case kindBrokerGone:
		return new(BrokerUnregistered)
	case kindBrokerEpochs:
		return new(BrokerEpochsTaken)
	default:
		return nil
	}
}

// Encode gives the bytes of r.
func Encode(r Record) []byte {
	return r.append([]byte{byte(r.kind()), r.version()})
}

// Decode reads a record. ErrUnknownRecord for a type or version of a newer
// binary, ErrDamagedRecord for bytes that are no record.
func Decode(p []byte) (Record, error) {
	if len(p) < 2 {
		return nil, fmt.Errorf("%w: %d bytes", ErrDamagedRecord, len(p))
	}
	r := newRecord(kind(p[0]))
	if r == nil || p[1] > newest(kind(p[0])) {
		return nil, fmt.Errorf("%w: type %d version %d", ErrUnknownRecord, p[0], p[1])
	}
	d := decoder{p: p[2:]}
	r.decode(&d, p[1])
	if d.bad || len(d.p) != 0 {
		return nil, fmt.Errorf("%w: type %d", ErrDamagedRecord, p[0])
	}
	return r, nil
}

// Key is the entry of the state that r sets or, if removes is true, ends. A
// removed topic also ends every entry between its TopicKeys.
func Key(r Record) (key []byte, removes bool) { return r.key(), r.removes() }

// TopicKeys bounds the keys [from, to) of all entries that end with a topic.
func TopicKeys(id storage.TopicID) (from, to []byte) {
	return topicKey(id), append(topicKey(id), 0xff)
}

// topicKey is the key of a topic and the prefix of the keys of its parts; it
// sorts before them, so that a scan meets the topic first.
func topicKey(id storage.TopicID) []byte { return append([]byte{'t'}, id[:]...) }

func (*FeatureLevel) key() []byte         { return []byte("f") }
func (r *BrokerRegistered) key() []byte   { return brokerKey(r.ID) }
func (r *BrokerUnregistered) key() []byte { return brokerKey(r.ID) }
func (*BrokerEpochsTaken) key() []byte    { return []byte("e") }
func brokerKey(id int32) []byte           { return binary.BigEndian.AppendUint32([]byte("b"), uint32(id)) }
func (r *TopicCreated) key() []byte       { return topicKey(r.ID) }
func (r *PartitionChanged) key() []byte {
	return binary.BigEndian.AppendUint32(append(topicKey(r.Topic), 'p'), uint32(r.Index))
}
func (r *TopicConfigSet) key() []byte { return append(append(topicKey(r.Topic), 'c'), r.Name...) }
func (r *TopicRemoved) key() []byte   { return append([]byte{'x'}, r.ID[:]...) }
func (r *TopicGone) key() []byte      { return append([]byte{'x'}, r.ID[:]...) }
func (*ProducerIDsTaken) key() []byte { return []byte("i") }
func (r *BrokerConfigSet) key() []byte {
	return append(binary.BigEndian.AppendUint32([]byte("c"), uint32(r.Broker)), r.Name...)
}

func (*FeatureLevel) removes() bool       { return false }
func (*BrokerRegistered) removes() bool   { return false }
func (*BrokerUnregistered) removes() bool { return true }
func (*BrokerEpochsTaken) removes() bool  { return false }
func (*TopicCreated) removes() bool       { return false }
func (*PartitionChanged) removes() bool   { return false }
func (r *TopicConfigSet) removes() bool   { return r.Value == nil }
func (*TopicRemoved) removes() bool       { return false }
func (*TopicGone) removes() bool          { return true }
func (*ProducerIDsTaken) removes() bool   { return false }
func (r *BrokerConfigSet) removes() bool  { return r.Value == nil }
