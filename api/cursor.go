package api

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"leat/broker"
)

var (
	// ErrBadCursor says that a text is no cursor, or none that fits the topic.
	ErrBadCursor = errors.New("bad cursor")
	// ErrStreamReset says that a position is of a topic that was deleted, and
	// made again under the same name: it means nothing there.
	ErrStreamReset = errors.New("stream reset")
)

// Cursor is a position in a whole topic: an offset for each partition. To clients
// it is opaque text that says all, so no server keeps anything for them.
type Cursor struct {
	Topic broker.TopicID
	// At are the positions, one for a partition.
	At []broker.TailStart
}

// The text of a cursor is base64url without padding (RFC 4648 section 5) of
//
//	version   1 byte, cursorVersion
//	topic id  16 bytes
//	for each partition, in ascending order
//	    partition less that of the one before and one, uvarint
//	    offset, uvarint
//	CRC-32C of all that, 4 bytes, big endian
const (
	// MaxCursorPartitions is how many partitions a cursor may hold, so that
	// what is given out as one is taken back, at whatever offsets.
	MaxCursorPartitions = 3000

	cursorVersion = 1
	cursorHead    = 1 + 16
	cursorSum     = 4
	// maxCursorText bounds the text that is looked at, in bytes.
	maxCursorText = 48 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// String is the cursor as text.
func (c Cursor) String() string { return string(c.AppendText(nil)) }

// AppendText appends the cursor as text.
func (c Cursor) AppendText(dst []byte) []byte {
	at := c.At
	byPartition := func(a, b broker.TailStart) int { return int(a.Partition) - int(b.Partition) }
	if !slices.IsSortedFunc(at, byPartition) {
		at = slices.SortedFunc(slices.Values(at), byPartition)
	}
	// Most cursors fit, and take no memory but their text.
	var few [256]byte
	raw := append(few[:0], cursorVersion)
	raw = append(raw, c.Topic[:]...)
	next := int32(0)
	for _, s := range at {
		raw = binary.AppendUvarint(raw, uint64(s.Partition-next))
		raw = binary.AppendUvarint(raw, uint64(s.Offset))
		next = s.Partition + 1
	}
	raw = binary.BigEndian.AppendUint32(raw, crc32.Checksum(raw, castagnoli))
	return base64.RawURLEncoding.AppendEncode(dst, raw)
}

// ParseCursor reads what String writes and nothing else. The error is
// ErrBadCursor.
func ParseCursor(text string) (Cursor, error) {
	if len(text) > maxCursorText {
		return Cursor{}, fmt.Errorf("%w: it is longer than %d bytes", ErrBadCursor, maxCursorText)
	}
	raw, err := AppendBase64(nil, base64.RawURLEncoding, []byte(text))
	switch {
	case err != nil, len(raw) < cursorHead+cursorSum:
		return Cursor{}, fmt.Errorf("%w: not a cursor of this server", ErrBadCursor)
	case raw[0] != cursorVersion:
		return Cursor{}, fmt.Errorf("%w: version %d is not known", ErrBadCursor, raw[0])
	}
	body, sum := raw[:len(raw)-cursorSum], raw[len(raw)-cursorSum:]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(sum) {
		return Cursor{}, fmt.Errorf("%w: it was changed or cut off", ErrBadCursor)
	}
	c := Cursor{Topic: broker.TopicID(body[1:cursorHead])}
	body = body[cursorHead:]
	for next := uint64(0); len(body) > 0; {
		delta, n := binary.Uvarint(body)
		if n <= 0 || delta > math.MaxInt32 || next+delta > math.MaxInt32 {
			return Cursor{}, fmt.Errorf("%w: malformed partition", ErrBadCursor)
		}
		offset, m := binary.Uvarint(body[n:])
		if m <= 0 || offset > math.MaxInt64 {
			return Cursor{}, fmt.Errorf("%w: malformed offset", ErrBadCursor)
		}
		c.At = append(c.At, broker.TailStart{Partition: int32(next + delta), Offset: int64(offset)})
		next += delta + 1
		body = body[n+m:]
	}
	if c.String() != text {
		return Cursor{}, fmt.Errorf("%w: it was not written so", ErrBadCursor)
	}
	return c, nil
}

// StreamReset is the error of a position in the topic that name was: it is
// ErrStreamReset.
func StreamReset(name string) error {
	return fmt.Errorf("%w: the position is of another topic than %q is now, which was deleted or made again", ErrStreamReset, name)
}
