package broker

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"

	"leat/broker/group"
)

// leaseIDFormat is the version of lease ids:
//
//	format u8 | topic id [16] | partition u32 | nonce [16]
//
// in base64url without padding. Only the nonce is secret; what it is good for is
// in the group's state.
const leaseIDFormat = 1

const leaseIDSize = 1 + 16 + 4 + 16

func leaseID(at group.Partition, n group.Nonce) string {
	b := append(make([]byte, 0, leaseIDSize), leaseIDFormat)
	b = binary.BigEndian.AppendUint32(append(b, at.Topic[:]...), uint32(at.Number))
	return base64.RawURLEncoding.EncodeToString(append(b, n[:]...))
}

func parseLeaseID(id string) (at group.Partition, n group.Nonce, err error) {
	var b [leaseIDSize]byte
	if len(id) != base64.RawURLEncoding.EncodedLen(leaseIDSize) {
		return at, n, fmt.Errorf("%w: it has %d characters, not %d", ErrBadLease, len(id), base64.RawURLEncoding.EncodedLen(leaseIDSize))
	}
	if _, err := base64.RawURLEncoding.Strict().Decode(b[:], []byte(id)); err != nil {
		return at, n, fmt.Errorf("%w: it is not base64url", ErrBadLease)
	}
	at = group.Partition{Topic: [16]byte(b[1:17]), Number: int32(binary.BigEndian.Uint32(b[17:21]))}
	n = group.Nonce(b[21:])
	if b[0] != leaseIDFormat || at.Topic == [16]byte{} || at.Number < 0 || n == (group.Nonce{}) {
		return at, n, fmt.Errorf("%w: it is none of this server's", ErrBadLease)
	}
	return at, n, nil
}

// leaseError is an error of the state machine as clients get it.
func leaseError(err error) error {
	switch {
	case errors.Is(err, group.ErrLeaseRange):
		return fmt.Errorf("%w: %w", ErrInvalidRequest, err)
	case errors.Is(err, group.ErrTooManyWaiter):
		return fmt.Errorf("%w: %w", ErrOverloaded, err)
	default:
		return err
	}
}
