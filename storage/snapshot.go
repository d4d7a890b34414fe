package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"
)

// A snapshot is what a log knows of its idempotent producers at one offset, so
// that a start need not read all batches for it. Nothing else refers to it: to
// delete one costs reading and nothing more. Little endian, CRC-32C:
//
//	header, 28 bytes                   producer, 19 bytes      window entry, 32 bytes
//	  0 4 "LTPS"                         0 8 producer id         0 4 first sequence
//	  4 2 version = 1                    8 2 epoch               4 4 last sequence
//	  6 2 flags = 0                     10 8 last write, ms      8 8 first offset
//	  8 8 next offset                   18 1 window entries     16 8 last offset
//	 16 8 wall clock, ms                   0 to 5, oldest first 24 8 timestamp or -1
//	 24 4 count of producers            then the entries
//	then the producers, least recent write first, and 4 bytes crc of all before
//
// The last write is by the broker's clock, as it was when the snapshot was taken.
const (
	snapshotSuffix     = ".snap"
	snapshotMagic      = "LTPS"
	snapshotVersion    = 1
	snapshotHeaderSize = 28
	producerSize       = 19
	windowEntrySize    = 32
	maxSnapshotBytes   = snapshotHeaderSize + maxProducers*(producerSize+producerWindow*windowEntrySize) + 4
	snapshotsKept      = 2
	snapshotTraffic    = 256 << 20 // bytes of idempotent producers between two snapshots
)

var errBadSnapshot = errors.New("not a valid snapshot of producers")

// snapshot is a decoded one.
type snapshot struct {
	next      int64
	producers []producer // least recent write first
}

func snapshotName(next int64) string { return fmt.Sprintf("%0*d%s", baseDigits, next, snapshotSuffix) }

// parseSnapshotName is the offset that a snapshot's name has.
func parseSnapshotName(name string) (next int64, ok bool) {
	digits, ok := strings.CutSuffix(name, snapshotSuffix)
	if !ok || len(digits) != baseDigits {
		return 0, false
	}
	next, err := strconv.ParseInt(digits, 10, 64)
	return next, err == nil && next >= 0 && snapshotName(next) == name
}

// encodeSnapshot writes the producers that have not expired as of now, which
// is the state at offset next.
func encodeSnapshot(p *producers, next int64, now time.Time) []byte {
	b := make([]byte, 0, snapshotHeaderSize+len(p.byID)*(producerSize+2*windowEntrySize)+4)
	b = append(b, snapshotMagic...)
	b = le.AppendUint16(b, snapshotVersion)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, uint64(next))
	b = le.AppendUint64(b, uint64(now.UnixMilli()))
	b = le.AppendUint32(b, 0)
	count := uint32(0)
	for e := p.byAge.Front(); e != nil; e = e.Next() {
		k := e.Value.(*producer)
		if p.expired(k, now) {
			continue
		}
		count++
		b = le.AppendUint64(b, uint64(k.id))
		b = le.AppendUint16(b, uint16(k.epoch))
		// By way of the age, which does not mind a clock that was set.
		b = le.AppendUint64(b, uint64(now.UnixMilli()-max(now.Sub(k.lastWrite), 0).Milliseconds()))
		b = append(b, byte(k.count))
		for _, s := range k.window[:k.count] {
			b = le.AppendUint32(b, uint32(s.first))
			b = le.AppendUint32(b, uint32(s.last))
			b = le.AppendUint64(b, uint64(s.base))
			b = le.AppendUint64(b, uint64(s.lastOffset))
			b = le.AppendUint64(b, uint64(s.timestamp))
		}
	}
	le.PutUint32(b[24:], count)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeSnapshot reads a snapshot of the offset next. It takes memory only for
// what is there, whatever the count says.
func decodeSnapshot(b []byte, next int64) (snapshot, error) {
	if len(b) < snapshotHeaderSize+4 || len(b) > maxSnapshotBytes || string(b[:4]) != snapshotMagic {
		return snapshot{}, errBadSnapshot
	}
	body, sum := b[:len(b)-4], le.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return snapshot{}, errBadSnapshot
	}
	if v := le.Uint16(b[4:]); v != snapshotVersion {
		return snapshot{}, fmt.Errorf("%w: version %d", errBadSnapshot, v)
	}
	count := int64(le.Uint32(b[24:]))
	if int64(le.Uint64(b[8:])) != next {
		return snapshot{}, fmt.Errorf("%w: it is of offset %d", errBadSnapshot, int64(le.Uint64(b[8:])))
	}
	body = body[snapshotHeaderSize:]
	if count > maxProducers || count*producerSize > int64(len(body)) {
		return snapshot{}, errBadSnapshot
	}
	s := snapshot{next: next, producers: make([]producer, 0, count)}
	seen := make(map[int64]bool, count)
	last := time.UnixMilli(0)
	for range count {
		k, rest, ok := decodeProducer(body, next)
		if !ok || seen[k.id] || k.lastWrite.Before(last) {
			return snapshot{}, errBadSnapshot
		}
		seen[k.id], last, body = true, k.lastWrite, rest
		s.producers = append(s.producers, k)
	}
	if len(body) > 0 {
		return snapshot{}, errBadSnapshot
	}
	return s, nil
}

func decodeProducer(b []byte, next int64) (k producer, rest []byte, ok bool) {
	if len(b) < producerSize {
		return k, nil, false
	}
	k.id, k.epoch = int64(le.Uint64(b)), int16(le.Uint16(b[8:]))
	k.lastWrite, k.count = time.UnixMilli(int64(le.Uint64(b[10:]))), int(b[18])
	b = b[producerSize:]
	if k.id < 0 || k.count > producerWindow || len(b) < k.count*windowEntrySize {
		return k, nil, false
	}
	for i := range k.count {
		s := sequence{
			pid: k.id, epoch: k.epoch, first: int32(le.Uint32(b)), last: int32(le.Uint32(b[4:])),
			base: int64(le.Uint64(b[8:])), lastOffset: int64(le.Uint64(b[16:])), timestamp: int64(le.Uint64(b[24:])),
		}
		if s.first < 0 || s.last < 0 || s.base < 0 || s.lastOffset < s.base || s.lastOffset >= next ||
			i > 0 && s.base <= k.window[i-1].lastOffset {
			return k, nil, false
		}
		k.window[i] = s
		b = b[windowEntrySize:]
	}
	return k, b, true
}

// load takes over the producers of a snapshot that have not expired as of now.
// p must be empty. A last write that is ahead of the clock counts as of now.
func (p *producers) load(s snapshot, now time.Time) {
	for i := range s.producers {
		k := &s.producers[i]
		// So that it has a reading of the monotonic clock, too.
		k.lastWrite = now.Add(min(k.lastWrite.Sub(now), 0))
		p.byID[k.id] = p.byAge.PushBack(k)
	}
	p.forget(now)
}
