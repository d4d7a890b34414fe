package record

// fields are one record's parts, aliasing the bytes that they were parsed
// from:
//
//	length varint | attributes int8 | timestampDelta | offsetDelta |
//	keyLength | key | valueLength | value | headerCount | headers
//
// All but the attributes are varints; a length of -1 is null.
type fields struct {
	timestampDelta int64
	offsetDelta    int64
	key, value     []byte
	headerCount    int
	headers        []byte
}

// parse takes p apart, which is one record without its length. The headers
// are left as they are for nextHeader.
func (f *fields) parse(p []byte) *Error {
	if len(p) == 0 {
		return fault(ErrInvalid, "record length 0")
	}
	p = p[1:] // The attributes have no meaning yet.
	var n int
	if f.timestampDelta, n = varint(p); n <= 0 {
		return badVarint("timestamp delta", n, 64)
	}
	p = p[n:]
	if f.offsetDelta, n = varint32(p); n <= 0 {
		return badVarint("offset delta", n, 32)
	}
	var err *Error
	if f.key, p, err = nextBytes(p[n:], "key"); err != nil {
		return err
	}
	if f.value, p, err = nextBytes(p, "value"); err != nil {
		return err
	}
	count, n := varint32(p)
	if n <= 0 {
		return badVarint("header count", n, 32)
	}
	f.headers = p[n:]
	// A header has two bytes at least, so this bounds what a reader allocates.
	if count < 0 || count > int64(len(f.headers)/2) {
		return fault(ErrInvalid, "header count %d, %d bytes left", count, len(f.headers))
	}
	f.headerCount = int(count)
	if count == 0 && len(f.headers) > 0 {
		return trailing(len(f.headers))
	}
	return nil
}

// checkHeaders walks the headers.
func (f *fields) checkHeaders() *Error {
	p := f.headers
	for i := range f.headerCount {
		var err *Error
		if _, _, p, err = nextHeader(p, i); err != nil {
			return err
		}
	}
	if len(p) > 0 {
		return trailing(len(p))
	}
	return nil
}

// nextHeader splits header number i from p.
func nextHeader(p []byte, i int) (key, value, rest []byte, err *Error) {
	if key, p, err = nextBytes(p, "header key"); err != nil {
		return nil, nil, nil, inHeader(err, i)
	}
	if key == nil {
		return nil, nil, nil, fault(ErrInvalid, "header %d: null key", i)
	}
	if value, p, err = nextBytes(p, "header value"); err != nil {
		return nil, nil, nil, inHeader(err, i)
	}
	return key, value, p, nil
}

// nextBytes splits a length and as many bytes from p; v is nil for null and
// never for empty.
func nextBytes(p []byte, what string) (v, rest []byte, err *Error) {
	size, n := varint32(p)
	if n <= 0 {
		return nil, nil, badVarint(what+" length", n, 32)
	}
	p = p[n:]
	if size == -1 {
		return nil, p, nil
	}
	if size < 0 || size > int64(len(p)) {
		return nil, nil, badLength(what, size, len(p))
	}
	return p[:size:size], p[size:], nil
}

func badVarint(what string, n, bits int) *Error {
	if n == 0 {
		return fault(ErrInvalid, "ends within the %s", what)
	}
	return fault(ErrInvalid, "%s is a varint of more than %d bits", what, bits)
}

func badLength(what string, size int64, left int) *Error {
	return fault(ErrInvalid, "%s length %d, %d bytes left in the record", what, size, left)
}

func trailing(n int) *Error {
	return fault(ErrInvalid, "%d bytes after the record's last header", n)
}

func inHeader(err *Error, i int) *Error {
	return fault(err.Kind, "header %d: %s", i, err.Reason)
}
