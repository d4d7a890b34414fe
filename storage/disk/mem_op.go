package disk

import (
	"errors"
	"strconv"
	"syscall"
)

// OpKind is the kind of a file system operation.
type OpKind uint8

// The operations that Mem reports to the function given to SetFault. Close,
// Unmap, Usage and File.Stat are not reported: they cannot fail in a way that
// a caller could do anything about.
const (
	OpOpen     OpKind = iota + 1 // also creates or truncates, as the flags say
	OpRead                       // ReadAt, NextData
	OpWrite                      // WriteAt, WriteVec
	OpTruncate                   // Off is the new size
	OpAllocate
	OpSync
	OpSyncData
	OpMap
	OpPopulate
	OpSyncDir
	OpSyncAll
	OpMkdir
	OpRemove // Remove, RemoveAll
	OpRename // Path is the old name, To the new one
	OpLink   // Path is the old name, To the new one
	OpList
	OpStat
	OpLock
)

var opNames = [...]string{
	OpOpen: "open", OpRead: "read", OpWrite: "write", OpTruncate: "truncate", OpAllocate: "allocate",
	OpSync: "sync", OpSyncData: "syncdata", OpMap: "map", OpPopulate: "populate", OpSyncDir: "syncdir",
	OpSyncAll: "syncall", OpMkdir: "mkdir", OpRemove: "remove", OpRename: "rename", OpLink: "link",
	OpList: "list", OpStat: "stat", OpLock: "lock",
}

// String is the operation's name in lower case.
func (k OpKind) String() string {
	if int(k) < len(opNames) && opNames[k] != "" {
		return opNames[k]
	}
	return "OpKind(" + strconv.Itoa(int(k)) + ")"
}

// Changes says whether the operation changes what a crash leaves.
func (k OpKind) Changes() bool {
	switch k {
	case OpRead, OpMap, OpPopulate, OpList, OpStat:
		return false
	default:
		return true
	}
}

// Op is one operation on a Mem, as seen just before it happens. Path is clean
// and absolute; for a file it is the name under which it was opened.
type Op struct {
	Kind OpKind
	Path string
	To   string // OpRename, OpLink
	Off  int64  // OpRead, OpWrite, OpAllocate, OpTruncate, OpPopulate
	Len  int    // bytes of OpRead, OpWrite, OpAllocate, OpPopulate
}

// ShortWriteError is an error for the function given to SetFault: a write stores
// its first N bytes and then fails with Err.
type ShortWriteError struct {
	N   int
	Err error
}

func (e *ShortWriteError) Error() string {
	return "short write of " + strconv.Itoa(e.N) + " bytes: " + e.Err.Error()
}

// Unwrap returns Err.
func (e *ShortWriteError) Unwrap() error { return e.Err }

// ErrSkip is an error for the function given to SetFault: the operation does
// not happen, but says that it did. So lies a disk that ignores a sync, so
// works a program without the call, and what a process does after kill -9 is
// nothing but such operations. Only an operation that gives nothing back can be
// skipped; for OpOpen, OpLock and those that do not change anything it is EIO.
var ErrSkip = errors.New("operation skipped")

// skippable says whether ErrSkip is possible for the operation.
func (k OpKind) skippable() bool { return k.Changes() && k != OpOpen && k != OpLock }

// SetFault has fn called before every operation; an error that it returns is
// the operation's result, and the operation does not happen (but see
// ShortWriteError). nil removes it. fn runs without any lock held, so it may use m,
// for example to take a CrashClone at this very point; it may be called by
// many goroutines at once.
//
// A sync of file data that fails this way loses data as Linux does: the
// un-synced sectors stay readable, are clean from now on, and no later sync
// writes them unless they are written again.
func (m *Mem) SetFault(fn func(Op) error) {
	if fn == nil {
		m.fault.Store(nil)
		return
	}
	m.fault.Store(&fn)
}

// stall is a disk that hangs.
type stall struct {
	match func(Op) bool
	over  chan struct{}
}

// Stall has every operation that match picks wait, before it happens and
// without any lock, until the disk answers again: when release is called, or
// another Stall takes this one's place. Those that wait then go on.
func (m *Mem) Stall(match func(Op) bool) (release func()) {
	s := &stall{match: match, over: make(chan struct{})}
	if old := m.stall.Swap(s); old != nil {
		close(old.over)
	}
	return func() {
		if m.stall.CompareAndSwap(s, nil) {
			close(s.over)
		}
	}
}

// before waits out a stall and asks the fault function. short is how much of a
// write still happens.
func (m *Mem) before(op Op) (short int, err error) {
	if s := m.stall.Load(); s != nil && s.match(op) {
		<-s.over
	}
	fn := m.fault.Load()
	if fn == nil {
		return 0, nil
	}
	err = (*fn)(op)
	if errors.Is(err, ErrSkip) && !op.Kind.skippable() {
		err = syscall.EIO
	}
	if sw, ok := errors.AsType[*ShortWriteError](err); ok {
		return min(max(sw.N, 0), op.Len), sw.Err
	}
	return 0, err
}
