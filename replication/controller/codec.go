package controller

import (
	"encoding/binary"

	"leat/storage"
)

func (r *FeatureLevel) append(p []byte) []byte { return binary.AppendUvarint(p, uint64(r.Level)) }

func (r *BrokerRegistered) append(p []byte) []byte {
	p = appendInt32(p, r.ID)
	p = appendString(p, r.UUID)
	p = binary.AppendVarint(p, r.Epoch)
	if r.version() == 0 {
		return p
	}
	p = appendString(appendString(p, r.Incarnation), r.Rack)
	p = binary.AppendUvarint(p, uint64(len(r.Endpoints)))
	for _, e := range r.Endpoints {
		p = appendInt32(appendString(appendString(p, e.Name), e.Host), e.Port)
	}
	p = binary.AppendUvarint(binary.AppendUvarint(p, uint64(r.MinLevel)), uint64(r.MaxLevel))
	return append(p, flags(r.Fenced, r.ShuttingDown))
}

func (r *BrokerUnregistered) append(p []byte) []byte { return appendInt32(p, r.ID) }
func (r *BrokerEpochsTaken) append(p []byte) []byte  { return binary.AppendVarint(p, r.Next) }

func (r *TopicCreated) append(p []byte) []byte { return appendString(append(p, r.ID[:]...), r.Name) }

func (r *PartitionChanged) append(p []byte) []byte {
	p = appendInt32(append(p, r.Topic[:]...), r.Index)
	p = appendInt32(p, r.Leader)
	p = appendInt32(p, r.LeaderEpoch)
	p = appendInt32(p, r.Epoch)
	p = appendInt32s(p, r.Replicas)
	p = appendInt32s(p, r.ISR)
	if r.version() == 0 {
		return p
	}
	p = appendInt32s(appendInt32s(appendInt32s(p, r.ELR), r.Adding), r.Removing)
	return append(p, flags(r.Recovering))
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

func (r *FeatureLevel) decode(d *decoder, _ byte) { r.Level = d.uint32() }

func (r *BrokerRegistered) decode(d *decoder, version byte) {
	r.ID, r.UUID, r.Epoch = d.int32(), d.string(), d.varint()
	if version == 0 {
		return
	}
	r.Incarnation, r.Rack = d.string(), d.string()
	for range d.length() {
		r.Endpoints = append(r.Endpoints, Endpoint{Name: d.string(), Host: d.string(), Port: d.int32()})
	}
	r.MinLevel, r.MaxLevel = d.uint32(), d.uint32()
	d.flags(&r.Fenced, &r.ShuttingDown)
}

func (r *BrokerUnregistered) decode(d *decoder, _ byte) { r.ID = d.int32() }
func (r *BrokerEpochsTaken) decode(d *decoder, _ byte)  { r.Next = d.varint() }

func (r *TopicCreated) decode(d *decoder, _ byte) { r.ID, r.Name = d.topicID(), d.string() }

func (r *PartitionChanged) decode(d *decoder, version byte) {
	r.Topic, r.Index = d.topicID(), d.int32()
	r.Leader, r.LeaderEpoch, r.Epoch = d.int32(), d.int32(), d.int32()
	r.Replicas, r.ISR = d.int32s(), d.int32s()
	if version == 0 {
		return
	}
	r.ELR, r.Adding, r.Removing = d.int32s(), d.int32s(), d.int32s()
	d.flags(&r.Recovering)
}

func (r *TopicConfigSet) decode(d *decoder, _ byte) {
	r.Topic, r.Name, r.Value = d.topicID(), d.string(), d.value()
}

func (r *BrokerConfigSet) decode(d *decoder, _ byte) {
	r.Broker, r.Name, r.Value = d.int32(), d.string(), d.value()
}

func (r *TopicRemoved) decode(d *decoder, _ byte)     { r.ID = d.topicID() }
func (r *TopicGone) decode(d *decoder, _ byte)        { r.ID = d.topicID() }
func (r *ProducerIDsTaken) decode(d *decoder, _ byte) { r.Next = d.varint() }

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

// flags packs up to eight truths into a byte, the first into the lowest bit.
func flags(set ...bool) (b byte) {
	for i, is := range set {
		if is {
			b |= 1 << i
		}
	}
	return b
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

func (d *decoder) uint32() uint32 {
	v := d.uvarint()
	if uint64(uint32(v)) != v {
		d.bad = true
	}
	return uint32(v)
}

// flags reads what flags packed; a bit that none of them takes is damage.
func (d *decoder) flags(out ...*bool) {
	b := d.byte()
	for i, p := range out {
		*p = b&(1<<i) != 0
	}
	if b>>len(out) != 0 {
		d.bad = true
	}
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
	if n == 0 {
		return nil
	}
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
