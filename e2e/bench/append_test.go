package bench

import (
	"encoding/binary"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// logFile is the least that keeps a partition: appends in order under a lock, and in fsync mode one fdatasync for all
// that wait.
type logFile struct {
	file    *os.File
	waiters chan chan error // nil in page-cache mode
	mu      struct {
		sync.Mutex
		offset, size int64
	}
}

func createLog(name string, fsync bool) (*logFile, error) {
	file, err := os.Create(name)
	l := &logFile{file: file}
	if err == nil && fsync {
		l.waiters = make(chan chan error, 1024)
		go l.flush()
	}
	return l, err
}

// flush syncs for ever, each time for all that wait.
func (l *logFile) flush() {
	for first := range l.waiters {
		all := []chan error{first}
		for more := true; more; {
			select {
			case w := <-l.waiters:
				all = append(all, w)
			default:
				more = false
			}
		}
		err := unix.Fdatasync(int(l.file.Fd()))
		for _, w := range all {
			w <- err
		}
	}
}

// reset empties the log, so that the next run writes new pages as a new topic does.
func (l *logFile) reset() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.offset, l.mu.size = 0, 0
	return l.file.Truncate(0)
}

// appendBatch patches the base offset into the batch, writes it, and waits until it is on disk in fsync mode.
func (l *logFile) appendBatch(batch []byte, records int) (base int64, err error) {
	base, err = l.write(batch, records)
	if err == nil && l.waiters != nil {
		done := make(chan error, 1)
		l.waiters <- done
		err = <-done
	}
	return base, err
}

func (l *logFile) write(batch []byte, records int) (base int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	base = l.mu.offset
	binary.BigEndian.PutUint64(batch, uint64(base))
	if _, err := l.file.WriteAt(batch, l.mu.size); err != nil {
		return 0, err
	}
	l.mu.size += int64(len(batch))
	l.mu.offset += int64(records)
	return base, nil
}
