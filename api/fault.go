package api

import (
	"errors"
	"sync"
	"syscall"
	"time"
)

// FaultInterval is the time between two log lines about faults of one kind.
const FaultInterval = time.Second

// Fault is the kind of an error that is the fault of the server's files or
// limits and of no client, and of which nothing but the answer tells: it belongs
// into the log. "" is any other error. Kinds are few.
func Fault(err error) string {
	if err == nil || Describe(err).Code != storageError.code {
		return ""
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return storageError.code
}

// LogLimit holds back log lines that come again and again. The zero value is
// ready; it is safe for concurrent use.
type LogLimit struct {
	mu struct {
		sync.Mutex
		last    map[string]time.Time
		skipped map[string]int
	}
}

// Allow reports whether a line may be logged, of which kind there is to be one
// in the time every, and how many were not since the last one. There must be
// few kinds: each is remembered.
func (l *LogLimit) Allow(kind string, every time.Duration, now time.Time) (skipped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, seen := l.mu.last[kind]; seen && now.Sub(last) < every {
		l.mu.skipped[kind]++
		return 0, false
	}
	if l.mu.last == nil {
		l.mu.last, l.mu.skipped = map[string]time.Time{}, map[string]int{}
	}
	skipped = l.mu.skipped[kind]
	l.mu.last[kind] = now
	delete(l.mu.skipped, kind)
	return skipped, true
}
