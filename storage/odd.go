package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"leat/storage/disk"
)

// findSegment looks at a segment of which a .log is listed. What cannot be one
// costs its partition only.
func findSegment(fsys disk.FS, s *segment) (found, error) {
	f := found{seg: s}
	info, err := fsys.Stat(s.logPath())
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENOTDIR):
		f.odd = &CorruptError{Path: s.logPath(), Err: fmt.Errorf("it leads nowhere: %w", err)}
	case err != nil:
		return found{}, err
	case !info.Mode().IsRegular():
		f.odd = &CorruptError{Path: s.logPath(), Err: fmt.Errorf("it is no file: %s", info.Mode())}
	case info.Size() > maxSegmentBytes:
		f.odd = &CorruptError{Path: s.logPath(), Pos: maxSegmentBytes, Err: fmt.Errorf("the file has %d bytes", info.Size())}
	default:
		f.size = info.Size()
		f.readSeals(fsys)
	}
	return f, nil
}

// oddDirectory says that something else than a directory has the name of one
// that the data directory has: nil, or a *DamagedError.
func oddDirectory(fsys disk.FS, path string) error {
	info, err := fsys.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ELOOP):
		return &DamagedError{Path: path, Err: fmt.Errorf("it leads nowhere: %w", err)}
	case err != nil:
		return err
	case !info.IsDir():
		return &DamagedError{Path: path, Err: fmt.Errorf("it is no directory: %s", info.Mode())}
	default:
		return nil
	}
}

// checkDirectories refuses a data directory in which something else has the name
// of a directory, before anything else is changed.
func (d *Dir) checkDirectories() error {
	names, err := d.opts.FS.List(d.opts.Path)
	if err != nil {
		return err
	}
	for _, name := range []string{logsDir, metaDir, trashDir, quarantineDir} {
		if slices.Contains(names, name) {
			if err := oddDirectory(d.opts.FS, d.path(name)); err != nil {
				return err
			}
		}
	}
	return nil
}
