package record

import "errors"

// sourceBuffer is how much of a batch's records a source holds at a time.
const sourceBuffer = 1 << 20

// source gives the bytes of a batch's records, expanded. What fits into its
// buffer, or is not compressed, is at hand as a whole.
type source struct {
	have  []byte    // not taken yet
	whole []byte    // all of it, if it is at hand
	x     *expander // where more comes from
	buf   []byte
}

// sink takes bytes.
type sink interface{ write(p []byte) }

func (s *source) open(b Batch, limit int64) *Error {
	s.whole, s.have, s.x = nil, nil, nil
	if b.Codec() == None {
		s.whole = b.Payload()
		s.have = s.whole
		return nil
	}
	x, err := expand(b, limit)
	if err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			e = fault(ErrInvalid, "%v", err)
		}
		return e
	}
	s.x = x
	if s.buf == nil {
		s.buf = make([]byte, sourceBuffer)
	}
	if err := s.fill(sourceBuffer); err != nil {
		s.close()
		return err
	}
	if s.x.done {
		s.whole = s.have
		s.close()
	}
	return nil
}

// again begins anew with the batch that is open.
func (s *source) again(b Batch, limit int64) *Error {
	if s.whole != nil {
		s.have = s.whole
		return nil
	}
	s.close()
	return s.open(b, limit)
}

func (s *source) close() {
	if s.x != nil {
		s.x.release()
		s.x = nil
	}
}

// fill has at least need bytes at hand, no more than the buffer holds, unless
// there are no more.
func (s *source) fill(need int) *Error {
	if s.x == nil || len(s.have) >= need {
		return nil
	}
	n := copy(s.buf, s.have)
	for n < need && !s.x.done {
		m, err := s.x.read(s.buf[n:])
		if err != nil {
			return err
		}
		n += m
	}
	s.have = s.buf[:n]
	return nil
}

// recordSize takes the next record's length and has what is before its key at
// hand.
func (s *source) recordSize() (int64, *Error) {
	if err := s.fill(recordFront); err != nil {
		return 0, err
	}
	size, n := varint32(s.have)
	switch {
	case len(s.have) == 0:
		return 0, fault(ErrInvalid, "the payload ends before it")
	case n <= 0:
		return 0, badVarint("record length", n, 32)
	case size <= 0:
		return 0, fault(ErrInvalid, "record length %d", size)
	case s.x == nil && size > int64(len(s.have)-n):
		return 0, fault(ErrInvalid, "record length %d, %d bytes left in the batch", size, len(s.have)-n)
	}
	s.have = s.have[n:]
	return size, nil
}

// take hands n bytes to to, which may be nil.
func (s *source) take(n int64, to sink) *Error {
	for n > 0 {
		if len(s.have) == 0 {
			if err := s.fill(sourceBuffer); err != nil {
				return err
			}
			if len(s.have) == 0 {
				return fault(ErrInvalid, "%d bytes of the record are missing", n)
			}
		}
		p := s.have[:min(n, int64(len(s.have)))]
		if to != nil {
			to.write(p)
		}
		s.have = s.have[len(p):]
		n -= int64(len(p))
	}
	return nil
}

// end is nil if nothing follows; the decoder has then compared its checksum.
func (s *source) end() *Error {
	if err := s.fill(1); err != nil {
		return err
	}
	if len(s.have) > 0 {
		return fault(ErrInvalid, "bytes after the last record")
	}
	return nil
}
