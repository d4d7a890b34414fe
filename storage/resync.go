package storage

import (
	"errors"
	"hash/crc32"
	"io"

	"leat/storage/record"
)

// resync looks behind a batch that does not hold, where a scan of s's .log f has
// ended, for the next one that does: with an offset that may follow at and is
// below until (-1 for none). ok is false if there is none before limit. It reads
// a chunk at a time, however large the batches claim to be. The error is of
// reading.
func resync(f io.ReaderAt, s *segment, limit int64, at scanned, until int64) (to point, ok bool, err error) {
	r := resyncer{f: f, seg: s, limit: limit, at: at, until: until}
	if to, ok, err := r.step(); ok || err != nil {
		return to, ok, err
	}
	return r.search(at.pos + 1)
}

// resyncer is one run of resync.
type resyncer struct {
	f     io.ReaderAt
	seg   *segment
	limit int64
	at    scanned
	until int64
}

// step trusts the header of the batch if it may be sound and a batch seems to
// begin where it says that the next one does.
func (r *resyncer) step() (to point, ok bool, err error) {
	h, ok, err := r.header(r.at.pos, r.at.next)
	if !ok {
		return point{}, false, err
	}
	to = point{offset: h.NextOffset(), pos: r.at.pos + int64(h.Size())}
	if to.pos == r.limit {
		return to, true, nil
	}
	_, ok, err = r.header(to.pos, to.offset)
	return to, ok, err
}

// header reads the header at pos; ok if it can be that of a batch with the
// offset next.
func (r *resyncer) header(pos, next int64) (h record.Batch, ok bool, err error) {
	left := r.limit - pos
	if left < record.HeaderSize {
		return nil, false, nil
	}
	h = make(record.Batch, record.HeaderSize)
	if err := readFull(r.f, h, pos); err != nil {
		return nil, false, err
	}
	return h, checkStoredHeader(h, r.seg, left, next) == nil, nil
}

// search goes from byte to byte for a batch that holds and has a later offset.
func (r *resyncer) search(pos int64) (point, bool, error) {
	chunk := make([]byte, scanChunk)
	for r.limit-pos >= record.HeaderSize {
		p := chunk[:min(scanChunk, r.limit-pos)]
		if err := readFull(r.f, p, pos); err != nil {
			return point{}, false, err
		}
		for i := 0; i+record.HeaderSize <= len(p); i++ {
			h := record.Batch(p[i : i+record.HeaderSize])
			at := point{offset: h.BaseOffset(), pos: pos + int64(i)}
			if h.Magic() != 2 || at.offset < r.at.next || r.until >= 0 && at.offset >= r.until ||
				checkStoredHeader(h, r.seg, r.limit-at.pos, at.offset) != nil {
				continue
			}
			if ok, err := r.holds(at.pos, h); ok || err != nil {
				return at, ok, err
			}
		}
		pos += int64(len(p)) - record.HeaderSize + 1
	}
	return point{}, false, nil
}

// holds compares the checksum of the batch at pos without having all of it in
// memory.
func (r *resyncer) holds(pos int64, h record.Batch) (bool, error) {
	sum := crc32.New(castagnoli)
	body := io.NewSectionReader(r.f, pos+crcCovers, int64(h.Size())-crcCovers)
	n, err := io.Copy(sum, body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, err
	}
	return n == body.Size() && sum.Sum32() == h.CRC(), nil
}
