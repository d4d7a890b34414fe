package broker

import (
	"errors"
	"os"
	"testing"

	"leat/storage"
	"leat/storage/disk"
	"leat/storage/record"
)

// overwrite changes a byte of the first .log of a partition.
func overwrite(t *testing.T, fs *disk.Mem, p *partition, at int64, value byte) {
	t.Helper()
	file, _, err := p.log.Locate(0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fs.OpenFile(file, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{value}, at); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// wound damages the first batch of a partition and has the log notice.
func wound(t *testing.T, fs *disk.Mem, p *partition) {
	t.Helper()
	overwrite(t, fs, p, record.HeaderSize+1, 0xff)
	if err := p.log.Suspect(0); !errors.Is(err, storage.ErrCorrupt) {
		t.Fatal(err)
	}
}
