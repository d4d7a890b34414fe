package record

// longWalk is the state within a record that is larger than the expander's
// buffer. Its bytes pass through without being held; after an error nothing
// more is read.
type longWalk struct {
	left int64 // bytes of the record not read yet
	err  *Error
}

// longRecord walks a long record of size bytes.
func (w *walker) longRecord(i int, size int64) *Error {
	w.long = longWalk{left: size}
	w.skip(1) // attributes
	timestampDelta := w.number("timestamp delta", 64)
	offsetDelta := w.number("offset delta", 32)
	nullKey := w.bytes("key") < 0
	w.bytes("value")
	headers := w.number("header count", 32)
	if w.long.err == nil && (headers < 0 || headers > w.long.left/2) {
		w.long.err = fault(ErrInvalid, "header count %d, %d bytes left", headers, w.long.left)
	}
	for h := 0; int64(h) < headers && w.long.err == nil; h++ {
		w.longHeader(h)
	}
	switch {
	case w.long.err != nil:
		return w.long.err
	case w.long.left > 0:
		return trailing(int(w.long.left))
	}
	return w.accept(i, timestampDelta, offsetDelta, nullKey)
}

// longHeader passes over header number h.
func (w *walker) longHeader(h int) {
	if w.bytes("header key") < 0 && w.long.err == nil {
		w.long.err = fault(ErrInvalid, "null key")
	}
	w.bytes("header value")
	if w.long.err != nil && w.long.err != w.streamErr {
		w.long.err = inHeader(w.long.err, h)
	}
}

// number reads a varint of so many bits.
func (w *walker) number(what string, bits int) int64 {
	if w.long.err == nil && len(w.have) < maxVarint {
		w.long.err = w.fill(maxVarint)
	}
	if w.long.err != nil {
		return 0
	}
	read := varint32
	if bits == 64 {
		read = varint
	}
	v, n := read(w.have[:min(int64(len(w.have)), w.long.left)])
	if n <= 0 {
		w.long.err = badVarint(what, n, bits)
		return 0
	}
	w.have = w.have[n:]
	w.long.left -= int64(n)
	return v
}

// bytes passes over a length and as many bytes and returns the length.
func (w *walker) bytes(what string) int64 {
	size := w.number(what+" length", 32)
	switch {
	case w.long.err != nil:
	case size < -1 || size > w.long.left:
		w.long.err = badLength(what, size, int(w.long.left))
	case size > 0:
		w.skip(size)
	}
	return size
}

// skip passes over n bytes, no more than are left of the record.
func (w *walker) skip(n int64) {
	for w.long.err == nil {
		m := min(n, int64(len(w.have)))
		w.have = w.have[m:]
		w.long.left -= m
		if n -= m; n == 0 {
			return
		}
		if w.long.err = w.fill(1); w.long.err == nil && len(w.have) == 0 {
			w.long.err = fault(ErrInvalid, "%d bytes of the record are missing", w.long.left)
		}
	}
}
