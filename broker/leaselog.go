package broker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"leat/broker/group"
)

// leaseKeyVersion is that of the keys of leases, "LT": far from those of Kafka,
// whose tools skip what they do not know.
const leaseKeyVersion = 0x4c54

// leaseFormat is the version of the values.
const leaseFormat = 1

const (
	leaseDelayed = 1 << 0 // the flag

	leaseSize = 1 + 1 + 16 + 6*8 + 3*4 // of a value without its topic
)

func encodeLeaseKey(group string, topic TopicID, partition int32) []byte {
	k := binary.BigEndian.AppendUint16(make([]byte, 0, 24+len(group)), leaseKeyVersion)
	k = append(binary.BigEndian.AppendUint16(k, uint16(len(group))), group...)
	return binary.BigEndian.AppendUint32(append(k, topic[:]...), uint32(partition))
}

func decodeLeaseKey(k []byte) (group string, topic TopicID, partition int32, err error) {
	if len(k) < 24 || len(k) != 24+int(binary.BigEndian.Uint16(k[2:])) {
		return "", topic, 0, fmt.Errorf("key of a lease: %d bytes", len(k))
	}
	rest := k[len(k)-20:]
	topic, partition = TopicID(rest[:16]), int32(binary.BigEndian.Uint32(rest[16:]))
	if topic.IsZero() || partition < 0 {
		return "", topic, 0, fmt.Errorf("key of a lease: partition %d of topic %s", partition, topic)
	}
	return string(k[4 : len(k)-20]), topic, partition, nil
}

func encodeLease(r *group.LeaseRecord) []byte {
	flags, until := byte(0), int64(0)
	if r.Delayed {
		flags = leaseDelayed
	}
	if !r.Until.IsZero() {
		until = r.Until.Add(time.Millisecond - 1).UnixMilli() // up: who has the lease was told the whole of it
	}
	v := append(make([]byte, 0, leaseSize+len(r.DeadLetter)), leaseFormat, flags)
	v = append(v, r.Nonce[:]...)
	for _, n := range []int64{r.Begin, r.First, r.Next, until, r.Span.Milliseconds(), r.Duration.Milliseconds()} {
		v = binary.BigEndian.AppendUint64(v, uint64(n))
	}
	for _, n := range []int32{r.Deliveries, r.Count, r.MaxDeliveries} {
		v = binary.BigEndian.AppendUint32(v, uint32(n))
	}
	return append(v, r.DeadLetter...)
}

var errLeaseRecord = errors.New("lease is not as it is written")

func decodeLease(v []byte) (*group.LeaseRecord, error) {
	if len(v) < leaseSize || v[0] != leaseFormat || v[1]&^leaseDelayed != 0 {
		return nil, fmt.Errorf("%w: %d bytes of format %d", errLeaseRecord, len(v), v[:min(2, len(v))])
	}
	long := func(i int) int64 { return int64(binary.BigEndian.Uint64(v[18+8*i:])) }
	short := func(i int) int32 { return int32(binary.BigEndian.Uint32(v[66+4*i:])) }
	r := &group.LeaseRecord{
		Nonce: group.Nonce(v[2:18]), Delayed: v[1] == leaseDelayed,
		LeaseTerms: group.LeaseTerms{
			Duration: time.Duration(long(5)) * time.Millisecond, MaxDeliveries: short(2), DeadLetter: string(v[leaseSize:]),
		},
		Span: time.Duration(long(4)) * time.Millisecond, Begin: long(0), First: long(1), Next: long(2), Deliveries: short(0), Count: short(1),
	}
	if until := long(3); until != 0 {
		r.Until = time.UnixMilli(until)
	}
	ordered := 0 <= r.Begin && r.Begin <= r.First && r.First <= r.Next
	longest := group.MaxLease.Milliseconds()
	timely := 0 <= long(4) && long(4) <= longest && 0 <= long(5) && long(5) <= longest && 0 <= long(3) && long(3) < 1<<52
	if !ordered || !timely || r.Deliveries < 0 || r.Count < 0 || r.MaxDeliveries < 0 {
		return nil, fmt.Errorf("%w: %+v", errLeaseRecord, *r)
	}
	return r, nil
}
