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
	file  *os.File
	fsync bool
	mu    struct {
		sync.Mutex
		offset, size int64
	}
	round struct {
		sync.Mutex
		waiting chan struct{} // closed when the next sync is done
		running bool
	}
}

func createLog(name string, fsync bool) (*logFile, error) {
	file, err := os.Create(name)
	return &logFile{file: file, fsync: fsync}, err
}

// reset empties the log, so that the next run writes new pages as a new topic does.
func (l *logFile) reset() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.offset, l.mu.size = 0, 0
	return l.file.Truncate(0)
}

// appendBatch patches the base offset into the batch and writes it.
func (l *logFile) appendBatch(batch []byte, records int) (base int64, err error) {
	l.mu.Lock()
	base = l.mu.offset
	binary.BigEndian.PutUint64(batch, uint64(base))
	_, err = l.file.WriteAt(batch, l.mu.size)
	l.mu.size += int64(len(batch))
	l.mu.offset += int64(records)
	l.mu.Unlock()
	if err == nil && l.fsync {
		err = l.sync()
	}
	return base, err
}

// sync returns when what was written before the call is on disk. One caller syncs for all that came while the sync
// before it ran.
func (l *logFile) sync() error {
	r := &l.round
	r.Lock()
	if r.running {
		if r.waiting == nil {
			r.waiting = make(chan struct{})
		}
		next := r.waiting
		r.Unlock()
		<-next // the round under way is over, and this caller's is next
		r.Lock()
	}
	for r.running {
		next := r.waiting
		if next == nil {
			next = make(chan struct{})
			r.waiting = next
		}
		r.Unlock()
		<-next
		return nil // another caller's sync began after this one's write
	}
	r.running = true
	r.Unlock()
	err := unix.Fdatasync(int(l.file.Fd()))
	r.Lock()
	r.running = false
	if r.waiting != nil {
		close(r.waiting)
		r.waiting = nil
	}
	r.Unlock()
	return err
}
