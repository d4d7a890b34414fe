package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"

	"leat/storage/disk"
)

// pageSize is the unit in which a table is brought into memory.
const (
	pageSize = 4096
	perPage  = pageSize / entrySize // entries
)

// table is one index file of a sealed segment, opened for lookups. It is
// mapped where that is possible and read by ReadAt where not. The first entry
// of each page is kept on the heap, so that a lookup touches one page of the
// file, and that page is brought in by a system call first: a page fault on a
// slow disk would hold a thread that the scheduler believes to be running, and
// on a file that was cut short it would end the process.
type table struct {
	count   int
	fences  []byte // the first entry of each page
	mapping disk.Mapping
	file    disk.File // nil if mapped
}

// openTable opens the index file name of the segment that s describes and
// verifies all of it. errBadIndex if it is not that segment's index.
func openTable(fs disk.FS, name string, magic [4]byte, s *segment) (t *table, err error) {
	f, err := fs.OpenFile(name, os.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errBadIndex, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if t == nil || t.file == nil {
			_ = f.Close() // only read
		}
	}()
	h, err := readSeal(f, magic)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if h.base != s.base || h.next != s.next || h.logBytes != s.size ||
		info.Size() != sealSize+int64(h.count)*entrySize {
		return nil, errBadIndex
	}
	t = &table{count: int(h.count)}
	if err := t.attach(f); err != nil {
		return nil, err
	}
	if err := t.verify(h.entriesCRC); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// attach maps f, or keeps it for ReadAt where it cannot be mapped safely.
func (t *table) attach(f disk.File) error {
	if t.count == 0 {
		return nil
	}
	m, err := f.Map()
	if err == nil {
		if err = m.Populate(0, len(m.Bytes())); err == nil {
			t.mapping = m
			return nil
		}
		_ = m.Unmap()
	}
	if !errors.Is(err, disk.ErrUnsupported) {
		return fmt.Errorf("%w: %w", errBadIndex, err)
	}
	t.file = f
	return nil
}

// verify reads all entries once, compares their checksum and keeps the fences.
func (t *table) verify(want uint32) error {
	var crc uint32
	for i := 0; i < t.count; i += perPage {
		p, err := t.page(i / perPage)
		if err != nil {
			return err
		}
		crc = crc32.Update(crc, castagnoli, p)
		t.fences = append(t.fences, p[:entrySize]...)
	}
	if crc != want {
		return errBadIndex
	}
	return nil
}

// page is the bytes of the n-th page of entries; they may be the mapping's.
func (t *table) page(n int) ([]byte, error) {
	first := n * perPage
	size := min(perPage, t.count-first) * entrySize
	off := sealSize + first*entrySize
	if t.mapping == nil {
		p := make([]byte, size)
		if _, err := t.file.ReadAt(p, int64(off)); err != nil {
			return nil, fmt.Errorf("%w: %w", errBadIndex, err)
		}
		return p, nil
	}
	if err := t.mapping.Populate(off, size); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadIndex, err)
	}
	return t.mapping.Bytes()[off : off+size], nil
}

// last passes the last entry for which ok holds to use; ok must hold for a
// prefix. use is not called if there is none.
func (t *table) last(ok func(p []byte) bool, use func(p []byte)) error {
	n := lastTrue(len(t.fences)/entrySize, func(i int) bool { return ok(t.fences[i*entrySize:]) })
	if n < 0 {
		return nil
	}
	p, err := t.page(n)
	if err != nil {
		return err
	}
	i := lastTrue(len(p)/entrySize, func(i int) bool { return ok(p[i*entrySize:]) })
	if i < 0 {
		return errBadIndex // it held for the same entry when it was verified
	}
	use(p[i*entrySize:])
	return nil
}

// next passes the entry behind the last one for which ok holds to use; ok must
// hold for a prefix. use is not called if there is none.
func (t *table) next(ok func(p []byte) bool, use func(p []byte)) error {
	n := lastTrue(len(t.fences)/entrySize, func(i int) bool { return ok(t.fences[i*entrySize:]) })
	if n >= 0 {
		p, err := t.page(n)
		if err != nil {
			return err
		}
		i := lastTrue(len(p)/entrySize, func(i int) bool { return ok(p[i*entrySize:]) }) + 1
		if i*entrySize < len(p) {
			use(p[i*entrySize:])
			return nil
		}
	}
	if at := (n + 1) * entrySize; at < len(t.fences) {
		use(t.fences[at:])
	}
	return nil
}

func (t *table) close() {
	if t.mapping != nil {
		_ = t.mapping.Unmap()
	}
	if t.file != nil {
		_ = t.file.Close() // only read
	}
}

// readSeal reads the header of an index file.
func readSeal(f disk.File, magic [4]byte) (seal, error) {
	var p [sealSize]byte
	if n, err := f.ReadAt(p[:], 0); n < len(p) {
		return seal{}, fmt.Errorf("%w: header: %w", errBadIndex, err)
	}
	return decodeSeal(p[:], magic)
}

// readHead reads the first sealSize bytes of an index file.
func readHead(fs disk.FS, name string) ([]byte, error) {
	f, err := fs.OpenFile(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	p := make([]byte, sealSize)
	return p, errors.Join(readFull(f, p, 0), f.Close())
}
