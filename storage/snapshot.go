package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"
)

// A snapshot is what a log knows of its idempotent producers and of requests with
// an idempotency key at one offset, so that a start need not read all batches for
// it. Nothing else refers to it: to delete one costs reading and nothing more.
// Little endian, CRC-32C:
//
//	header, 32 bytes                   producer, 19 bytes      window entry, 40 bytes
//	  0 4 "LTPS"                         0 8 producer id         0 4 first sequence
//	  4 2 version = 2                    8 2 epoch               4 4 last sequence
//	  6 2 flags = 0                     10 8 last write, ms      8 8 first offset
//	  8 8 next offset                   18 1 window entries     16 8 last offset
//	 16 8 wall clock, ms                   0 to 5, oldest first 24 8 timestamp or -1
//	 24 4 count of producers            then the entries
//	 28 4 count of keys                                         32 8 stamp or -1
//	                                   key, 30 bytes           batch of it, 24 bytes
//	then the producers, least            0 8 producer id         0 4 first sequence
//	recent write first, the keys,        8 2 epoch               4 4 last sequence
//	oldest first, and 4 bytes crc       10 8 first try, ms       8 8 first offset
//	of all before                       18 8 its stamp or -1    16 8 timestamp or -1
//	                                    26 4 batches, 1 or more
//	                                   then the batches, in the order of sequences
//
// The last write and the first try are by the broker's clock, as it was when the
// snapshot was taken; a stamp is the base timestamp of a batch.
const (
	snapshotSuffix     = ".snap"
	snapshotMagic      = "LTPS"
	snapshotVersion    = 2
	snapshotHeaderSize = 32
	producerSize       = 19
	windowEntrySize    = 40
	keySize            = 30
	keyBatchSize       = 24
	maxSnapshotBytes   = snapshotHeaderSize + maxProducers*(producerSize+producerWindow*windowEntrySize) +
		maxKeys*(keySize+batchesPerKey*keyBatchSize) + 4
	snapshotsKept   = 2
	snapshotTraffic = 256 << 20 // bytes of idempotent producers between two snapshots
)

var errBadSnapshot = errors.New("not a valid snapshot of producers")

// snapshot is a decoded one.
type snapshot struct {
	next      int64
	producers []producer // least recent write first
	keys      []keyEntry // oldest first
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

// encodeSnapshot writes the producers and keys that have not expired as of now,
// which is the state at offset next.
func encodeSnapshot(p *producers, k *keys, next int64, now time.Time) []byte {
	k.ring.mu.Lock()
	defer k.ring.mu.Unlock()
	b := make([]byte, 0, snapshotHeaderSize+len(p.byID)*(producerSize+2*windowEntrySize)+len(k.byID)*(keySize+keyBatchSize)+4)
	b = append(b, snapshotMagic...)
	b = le.AppendUint16(b, snapshotVersion)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, uint64(next))
	b = le.AppendUint64(b, uint64(now.UnixMilli()))
	b = le.AppendUint64(b, 0)
	b, producers := appendProducers(b, p, now)
	b, keys := appendKeys(b, k, now)
	le.PutUint32(b[24:], producers)
	le.PutUint32(b[28:], keys)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// ago is a time in ms by way of its age, which does not mind a clock that was set.
func ago(t, now time.Time) uint64 {
	return uint64(now.UnixMilli() - max(now.Sub(t), 0).Milliseconds())
}

func appendProducers(b []byte, p *producers, now time.Time) (out []byte, count uint32) {
	for e := p.byAge.Front(); e != nil; e = e.Next() {
		k := e.Value.(*producer)
		if p.expired(k, now) {
			continue
		}
		count++
		b = le.AppendUint64(b, uint64(k.id))
		b = le.AppendUint16(b, uint16(k.epoch))
		b = le.AppendUint64(b, ago(k.lastWrite, now))
		b = append(b, byte(k.count))
		for _, s := range k.window[:k.count] {
			b = le.AppendUint32(b, uint32(s.first))
			b = le.AppendUint32(b, uint32(s.last))
			b = le.AppendUint64(b, uint64(s.base))
			b = le.AppendUint64(b, uint64(s.lastOffset))
			b = le.AppendUint64(b, uint64(s.timestamp))
			b = le.AppendUint64(b, uint64(s.stamp))
		}
	}
	return b, count
}

func appendKeys(b []byte, k *keys, now time.Time) (out []byte, count uint32) {
	entries := k.list(now)
	for _, e := range entries {
		b = le.AppendUint64(b, uint64(e.id))
		b = le.AppendUint16(b, uint16(e.epoch))
		b = le.AppendUint64(b, ago(e.written, now))
		b = le.AppendUint64(b, uint64(e.stamp))
		b = le.AppendUint32(b, uint32(len(e.batches)))
		for _, w := range e.batches {
			b = le.AppendUint32(b, uint32(w.First))
			b = le.AppendUint32(b, uint32(w.Last))
			b = le.AppendUint64(b, uint64(w.Base))
			b = le.AppendUint64(b, uint64(w.Timestamp))
		}
	}
	return b, uint32(len(entries))
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
	producers, keys := int64(le.Uint32(b[24:])), int64(le.Uint32(b[28:]))
	if int64(le.Uint64(b[8:])) != next {
		return snapshot{}, fmt.Errorf("%w: it is of offset %d", errBadSnapshot, int64(le.Uint64(b[8:])))
	}
	body = body[snapshotHeaderSize:]
	if producers > maxProducers || keys > maxKeys || producers*producerSize+keys*(keySize+keyBatchSize) > int64(len(body)) {
		return snapshot{}, errBadSnapshot
	}
	s := snapshot{next: next, producers: make([]producer, 0, producers), keys: make([]keyEntry, 0, keys)}
	seen := make(map[int64]bool, producers+keys)
	last := time.UnixMilli(0)
	for range producers {
		k, rest, ok := decodeProducer(body, next)
		if !ok || seen[k.id] || k.lastWrite.Before(last) {
			return snapshot{}, errBadSnapshot
		}
		seen[k.id], last, body = true, k.lastWrite, rest
		s.producers = append(s.producers, k)
	}
	last = time.UnixMilli(0)
	for range keys {
		e, rest, ok := decodeKey(body, next)
		if !ok || seen[e.id] || e.written.Before(last) {
			return snapshot{}, errBadSnapshot
		}
		seen[e.id], last, body = true, e.written, rest
		s.keys = append(s.keys, e)
	}
	if len(body) > 0 {
		return snapshot{}, errBadSnapshot
	}
	return s, nil
}

func decodeKey(b []byte, next int64) (e keyEntry, rest []byte, ok bool) {
	if len(b) < keySize {
		return e, nil, false
	}
	e.id, e.epoch, e.written = int64(le.Uint64(b)), int16(le.Uint16(b[8:])), time.UnixMilli(int64(le.Uint64(b[10:])))
	e.stamp = int64(le.Uint64(b[18:]))
	count := int64(le.Uint32(b[26:]))
	b = b[keySize:]
	if e.id < FirstKeyID || e.stamp < -1 || count == 0 || count*keyBatchSize > int64(len(b)) {
		return e, nil, false
	}
	e.batches = make([]Written, count)
	for i := range e.batches {
		w := Written{
			First: int32(le.Uint32(b)), Last: int32(le.Uint32(b[4:])),
			Base: int64(le.Uint64(b[8:])), Timestamp: int64(le.Uint64(b[16:])),
		}
		if w.First < 0 || w.Last < w.First || w.Base < 0 || w.Base > next-int64(w.Last-w.First)-1 || w.Timestamp < -1 ||
			i > 0 && w.First <= e.batches[i-1].Last {
			return e, nil, false
		}
		e.batches[i] = w
		b = b[keyBatchSize:]
	}
	return e, b, true
}

func decodeProducer(b []byte, next int64) (k producer, rest []byte, ok bool) {
	if len(b) < producerSize {
		return k, nil, false
	}
	k.id, k.epoch = int64(le.Uint64(b)), int16(le.Uint16(b[8:]))
	k.lastWrite, k.count = time.UnixMilli(int64(le.Uint64(b[10:]))), int(b[18])
	b = b[producerSize:]
	if k.id < 0 || k.id >= FirstKeyID || k.count > producerWindow || len(b) < k.count*windowEntrySize {
		return k, nil, false
	}
	for i := range k.count {
		s := sequence{
			pid: k.id, epoch: k.epoch, first: int32(le.Uint32(b)), last: int32(le.Uint32(b[4:])),
			base: int64(le.Uint64(b[8:])), lastOffset: int64(le.Uint64(b[16:])), timestamp: int64(le.Uint64(b[24:])), stamp: int64(le.Uint64(b[32:])),
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

// load takes over the keys of a snapshot likewise.
func (k *keys) load(s snapshot, now time.Time) {
	r := k.ring
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range s.keys {
		e := s.keys[i] // apart from the others, so that it can be forgotten
		e.owner, e.written = k, now.Add(min(e.written.Sub(now), 0))
		k.byID[e.id] = &e
		r.batches += len(e.batches)
		r.push(&e)
	}
	r.forget(now)
}
