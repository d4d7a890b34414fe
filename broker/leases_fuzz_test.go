package broker

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"leat/broker/group"
)

// Any bytes may stand in the offsets topic: what is read of a lease is written the
// same again, and all else is an error.
func FuzzLeaseRecord(f *testing.F) {
	r := &group.LeaseRecord{
		Nonce: group.Nonce{1, 2}, LeaseTerms: group.LeaseTerms{Duration: 30 * time.Second, MaxDeliveries: 3, DeadLetter: "dead"},
		Begin: 1, First: 2, Next: 9, Until: time.UnixMilli(1<<40 + 7), Span: time.Minute, Delayed: true, Deliveries: 2, Count: 7,
	}
	f.Add(encodeLeaseKey("g", TopicID{1}, 3), encodeLease(r))
	f.Add(encodeLeaseKey("", TopicID{1}, 0), encodeLease(&group.LeaseRecord{}))
	f.Add([]byte{0x4c, 0x54}, []byte{})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		c, err := decodeChange(key, value)
		if err != nil || c.Leased == (TopicID{}) {
			return
		}
		if !bytes.Equal(encodeKey(&c), key) {
			t.Errorf("key %x became %x", key, encodeKey(&c))
		}
		if c.Lease != nil && !bytes.Equal(encodeValue(&c), value) {
			t.Errorf("value %x became %x", value, encodeValue(&c))
		}
		if c.Lease == nil && value != nil {
			t.Errorf("value %x became a tombstone", value)
		}
	})
}

// Any text may be a lease id: one that is taken for one is written the same, and
// all else is ErrBadLease.
func FuzzLeaseID(f *testing.F) {
	f.Add(leaseID(group.Partition{Topic: [16]byte{1}, Number: 7}, group.Nonce{9}))
	f.Add("")
	f.Fuzz(func(t *testing.T, id string) {
		at, n, err := parseLeaseID(id)
		if err == nil && leaseID(at, n) != id {
			t.Errorf("%q became %q", id, leaseID(at, n))
		}
		if err != nil && !errors.Is(err, ErrBadLease) {
			t.Error(err)
		}
	})
}
