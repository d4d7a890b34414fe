package record

import (
	"cmp"
	"encoding/binary"
	"hash/crc32"
	"io"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Next splits the first whole batch from p; b and rest alias p. It looks at
// length and magic only: VerifyCRC and Check judge the rest. Empty p gives
// io.EOF, a batch that is cut an error of kind io.ErrUnexpectedEOF, a length
// or magic that no batch can have ErrCorrupt.
func Next(p []byte) (b Batch, rest []byte, err error) {
	if len(p) == 0 {
		return nil, nil, io.EOF
	}
	if len(p) > offMagic && p[offMagic] != magicV2 {
		return nil, nil, fault(ErrCorrupt, "magic %d, want %d", int8(p[offMagic]), magicV2)
	}
	if len(p) < lengthPrefix {
		return nil, nil, fault(io.ErrUnexpectedEOF, "%d bytes are no batch header", len(p))
	}
	size := Batch(p).Size()
	if size < HeaderSize || size > MaxBatchSize {
		return nil, nil, fault(ErrCorrupt, "batch length %d, want %d to %d",
			size-lengthPrefix, HeaderSize-lengthPrefix, MaxBatchSize-lengthPrefix)
	}
	if len(p) < size {
		return nil, nil, fault(io.ErrUnexpectedEOF, "%d of the batch's %d bytes", len(p), size)
	}
	return Batch(p[:size:size]), p[size:], nil
}

// VerifyCRC compares the checksum with the bytes; ErrCorrupt if they differ
// or if b is not whole.
func (b Batch) VerifyCRC() error {
	if len(b) < HeaderSize || b.Size() != len(b) {
		return b.wrongSize()
	}
	if want, got := b.CRC(), crc32.Checksum(b[offAttributes:], castagnoli); want != got {
		return fault(ErrCorrupt, "checksum of the bytes is %08x, the header says %08x", got, want)
	}
	return nil
}

// VerifyCRCFrom is VerifyCRC for a batch that is not in memory: b is its header,
// r has all of it from pos on, and buf is room to work in.
func (b Batch) VerifyCRCFrom(r io.ReaderAt, pos int64, buf []byte) error {
	if len(b) < HeaderSize || b.Size() < HeaderSize {
		return b.wrongSize()
	}
	want, got := b.CRC(), uint32(0)
	for at, end := pos+offAttributes, pos+int64(b.Size()); at < end; {
		p := buf[:min(int64(len(buf)), end-at)]
		if n, err := r.ReadAt(p, at); n < len(p) {
			return cmp.Or(err, io.ErrUnexpectedEOF)
		}
		got = crc32.Update(got, castagnoli, p)
		at += int64(len(p))
	}
	if want != got {
		return fault(ErrCorrupt, "checksum of the bytes is %08x, the header says %08x", got, want)
	}
	return nil
}

// seal writes the checksum.
func (b Batch) seal() {
	binary.BigEndian.PutUint32(b[offCRC:], crc32.Checksum(b[offAttributes:], castagnoli))
}

func (b Batch) wrongSize() *Error {
	if len(b) < HeaderSize {
		return fault(ErrCorrupt, "%d bytes, a header alone has %d", len(b), HeaderSize)
	}
	return fault(ErrCorrupt, "%d bytes, the header says %d", len(b), b.Size())
}
