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
	// append adds the payload of the newest version.
	append(p []byte) []byte
	// decode reads a payload of the newest version.
	decode(d *decoder)
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
)

// newest is the version written, and the only one read so far.
const newest = 0

// FeatureLevel says which records may appear in the log. A binary writes no
// record above the level, and raises it only when every node can read them.
type FeatureLevel struct{ Level uint32 }

// BrokerRegistered makes a broker known. Epoch grows with each registration,
// so that messages of an earlier life can be told apart.
type BrokerRegistered struct {
	ID    int32
	UUID  string
	Epoch int64
}

// TopicCreated makes a topic. Its partitions follow in the same commit.
type TopicCreated struct {
	ID   storage.TopicID
	Name string
}

// PartitionChanged sets all that is decided about one partition.
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

func (*FeatureLevel) kind() kind     { return kindFeature }
func (*BrokerRegistered) kind() kind { return kindBroker }
func (*TopicCreated) kind() kind     { return kindTopic }
func (*PartitionChanged) kind() kind { return kindPartition }
func (*TopicConfigSet) kind() kind   { return kindTopicConfig }
func (*TopicRemoved) kind() kind     { return kindTopicRemoved }
func (*TopicGone) kind() kind        { return kindTopicGone }
func (*ProducerIDsTaken) kind() kind { return kindProducerIDs }
func (*BrokerConfigSet) kind() kind  { return kindBrokerConfig }

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
	default:
		return nil
	}
}

// Encode gives the bytes of r.
func Encode(r Record) []byte {
	return r.append([]byte{byte(r.kind()), newest})
}

// Decode reads a record. ErrUnknownRecord for a type or version of a newer
// binary, ErrDamagedRecord for bytes that are no record.
func Decode(p []byte) (Record, error) {
	if len(p) < 2 {
		return nil, fmt.Errorf("%w: %d bytes", ErrDamagedRecord, len(p))
	}
	r := newRecord(kind(p[0]))
	if r == nil || p[1] > newest {
		return nil, fmt.Errorf("%w: type %d version %d", ErrUnknownRecord, p[0], p[1])
	}
	d := decoder{p: p[2:]}
	r.decode(&d)
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

func (*FeatureLevel) key() []byte { return []byte("f") }
func (r *BrokerRegistered) key() []byte {
	return binary.BigEndian.AppendUint32([]byte("b"), uint32(r.ID))
}
func (r *TopicCreated) key() []byte { return topicKey(r.ID) }
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

func (*FeatureLevel) removes() bool      { return false }
func (*BrokerRegistered) removes() bool  { return false }
func (*TopicCreated) removes() bool      { return false }
func (*PartitionChanged) removes() bool  { return false }
func (r *TopicConfigSet) removes() bool  { return r.Value == nil }
func (*TopicRemoved) removes() bool      { return false }
func (*TopicGone) removes() bool         { return true }
func (*ProducerIDsTaken) removes() bool  { return false }
func (r *BrokerConfigSet) removes() bool { return r.Value == nil }

func (r *FeatureLevel) append(p []byte) []byte { return binary.AppendUvarint(p, uint64(r.Level)) }

func (r *BrokerRegistered) append(p []byte) []byte {
	p = appendInt32(p, r.ID)
	p = appendString(p, r.UUID)
	return binary.AppendVarint(p, r.Epoch)
}

func (r *TopicCreated) append(p []byte) []byte { return appendString(append(p, r.ID[:]...), r.Name) }

func (r *PartitionChanged) append(p []byte) []byte {
	p = appendInt32(append(p, r.Topic[:]...), r.Index)
	p = appendInt32(p, r.Leader)
	p = appendInt32(p, r.LeaderEpoch)
	p = appendInt32(p, r.Epoch)
	p = appendInt32s(p, r.Replicas)
	return appendInt32s(p, r.ISR)
}

func (r *TopicConfigSet) append(p []byte) []byte {
	return appendValue(appendString(append(p, r.Topic[:]...), r.Name), r.Value)
}

func (r *BrokerConfigSet) append(p []byte) []byte {
	return appendValue(appendString(appendInt32(p, r.Broker), r.Name), r.Value)
}

func (r *TopicRemoved) append(p []byte) []byte     { return append(p, r.ID[:]...) }
func (r *TopicGone) append(p []byte) []byte        { return append(p, r.ID[:]...) }
func (r *ProducerIDsTaken) append(p []byte) []byte { return binary.AppendVarint(p, r.Next) }

func (r *FeatureLevel) decode(d *decoder) { r.Level = uint32(d.uvarint()) }

func (r *BrokerRegistered) decode(d *decoder) {
	r.ID, r.UUID, r.Epoch = d.int32(), d.string(), d.varint()
}

func (r *TopicCreated) decode(d *decoder) { r.ID, r.Name = d.topicID(), d.string() }

func (r *PartitionChanged) decode(d *decoder) {
	r.Topic, r.Index = d.topicID(), d.int32()
	r.Leader, r.LeaderEpoch, r.Epoch = d.int32(), d.int32(), d.int32()
	r.Replicas, r.ISR = d.int32s(), d.int32s()
}

func (r *TopicConfigSet) decode(d *decoder) {
	r.Topic, r.Name, r.Value = d.topicID(), d.string(), d.value()
}

func (r *BrokerConfigSet) decode(d *decoder) {
	r.Broker, r.Name, r.Value = d.int32(), d.string(), d.value()
}

func (r *TopicRemoved) decode(d *decoder)     { r.ID = d.topicID() }
func (r *TopicGone) decode(d *decoder)        { r.ID = d.topicID() }
func (r *ProducerIDsTaken) decode(d *decoder) { r.Next = d.varint() }

func appendInt32(p []byte, v int32) []byte { return binary.AppendVarint(p, int64(v)) }

func appendString(p []byte, s string) []byte {
	return append(binary.AppendUvarint(p, uint64(len(s))), s...)
}

// appendValue writes a string that may be missing.
func appendValue(p []byte, v *string) []byte {
	if v == nil {
		return append(p, 0)
	}
	return appendString(append(p, 1), *v)
}

func appendInt32s(p []byte, vs []int32) []byte {
	p = binary.AppendUvarint(p, uint64(len(vs)))
	for _, v := range vs {
		p = appendInt32(p, v)
	}
	return p
}

// decoder reads a payload. After the first impossible byte it is bad and
// returns zeros.
type decoder struct {
	p   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n < 0 || n > len(d.p) {
		d.bad = true
		return nil
	}
	b := d.p[:n]
	d.p = d.p[n:]
	return b
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.p)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.p = d.p[n:]
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.p)
	if n <= 0 {
		d.bad = true
		return 0
	}
	d.p = d.p[n:]
	return v
}

func (d *decoder) int32() int32 {
	v := d.varint()
	if int64(int32(v)) != v {
		d.bad = true
	}
	return int32(v)
}

func (d *decoder) length() int {
	n := d.uvarint()
	// Every element takes at least a byte, so a length beyond the rest lies.
	if n > uint64(len(d.p)) {
		d.bad = true
		return 0
	}
	return int(n)
}

func (d *decoder) string() string { return string(d.take(d.length())) }

func (d *decoder) value() *string {
	switch d.byte() {
	case 0:
		return nil
	case 1:
		v := d.string()
		return &v
	default:
		d.bad = true
		return nil
	}
}

func (d *decoder) int32s() []int32 {
	n := d.length()
	vs := make([]int32, 0, n)
	for range n {
		vs = append(vs, d.int32())
	}
	return vs
}

func (d *decoder) topicID() (id storage.TopicID) {
	copy(id[:], d.take(len(id)))
	return id
}
