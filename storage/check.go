package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"leat/storage/disk"
)

// CheckOptions say what Check looks at.
type CheckOptions struct {
	// FS is the file system; nil is the operating system's.
	FS disk.FS
	// Path is the data directory.
	Path string
	// Records has every record of every batch looked at, too, which expands
	// what is compressed.
	Records bool
	// Meta reads the metadata store in the given directory, which is not this
	// package's. nil leaves the store out. The error is Check's.
	Meta func(ctx context.Context, dir string) (*Metadata, error)
	// Progress is called after every MiB or so that was read, and at the end;
	// nil for none.
	Progress func(CheckProgress)
}

// Metadata is what the metadata store says of the logs.
type Metadata struct {
	// Findings are what is wrong with the store itself.
	Findings []Finding
	// Missing says that there is no store; the next start would make one.
	Missing bool
	// ClusterID and NodeUUID say whose store it is; empty where it does not.
	ClusterID, NodeUUID string
	// Known says that the rest could be read.
	Known bool
	// Logs are those that there are, with what the store has of each.
	Logs map[ID]LogMetadata
	// Dying are topics that were deleted and whose logs may still be there.
	Dying map[TopicID]bool
}

// LogMetadata is what the metadata store says of one log.
type LogMetadata struct {
	Topic       string
	Start       int64 // the first offset; 0 if it was never raised
	LeaderEpoch int32 // the newest; no batch has a higher one
}

// CheckProgress says how far a check is, in bytes of .log files.
type CheckProgress struct {
	Done, Total int64
}

// Severity says how bad a finding is.
type Severity int8

// The severities.
const (
	// Warning is what the next start deals with, and unknown things: nothing
	// that was durable is lost.
	Warning Severity = iota
	// Damage is what is lost or cannot be trusted.
	Damage
)

// String is "warning" or "damage".
func (s Severity) String() string {
	if s == Damage {
		return "damage"
	}
	return "warning"
}

// Finding is one thing that is not as it should be.
type Finding struct {
	Severity Severity
	Path     string
	Pos      int64 // byte in the file; -1 for all of it
	What     string
}

// String is the finding as a line.
func (f Finding) String() string {
	at := ""
	if f.Pos >= 0 {
		at = " at byte " + strconv.FormatInt(f.Pos, 10)
	}
	return fmt.Sprintf("%s: %s%s: %s", f.Severity, f.Path, at, f.What)
}

// maxFindings is how many findings a report keeps; the others are counted.
const maxFindings = 10_000

// Report is what Check found.
type Report struct {
	Identity Identity // zero if it could not be read
	Clean    bool     // the last run ended with a clean stop
	// Partitions and Segments are those that are there, Batches, Records and
	// Bytes those that hold.
	Partitions, Segments    int
	Batches, Records, Bytes int64
	// Quarantined is how many things lie in quarantine/ for a person to look
	// at.
	Quarantined int
	Findings    []Finding
	Omitted     int // findings beyond those kept
	Damages     int // findings that are damage, kept or not
}

// Check verifies a data directory that no server has open: who it belongs to,
// the checkpoint, and each partition's batches and indexes. It changes nothing,
// so the directory may be read-only, and it goes on behind whatever is damaged.
// Memory is bounded by the checkpoint and the largest batch.
//
// Errors: *BusyError while a server has the directory; *DamagedError if it is
// not a data directory or one of a newer version; ctx's; and those of the file
// system that keep the directory itself from being read. What cannot be read
// within is a finding. The report is complete if the error is nil.
func Check(ctx context.Context, o CheckOptions) (*Report, error) {
	if o.FS == nil {
		o.FS = disk.OS
	}
	c := &checker{ctx: ctx, fs: o.FS, o: o, root: &Dir{opts: Options{FS: o.FS, Path: o.Path}}, report: &Report{}}
	names, err := c.fs.List(o.Path)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return nil, &DamagedError{Path: o.Path, Err: err}
	case err != nil:
		return nil, fmt.Errorf("check: %w", err)
	}
	if err := checkOurs(names); err != nil {
		return nil, &DamagedError{Path: o.Path, Err: err}
	}
	unlock, err := c.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := c.identity(); err != nil {
		return nil, err
	}
	c.checkpoints()
	c.cleanStop()
	c.names(names)
	if err := c.meta(); err != nil {
		return nil, err
	}
	err = c.logs()
	c.progress(0)
	return c.report, err
}

// errNothing says that nothing was ever put into the directory.
var errNothing = errors.New("it is empty: not a data directory of Leat")

// checkOurs judges a directory by the names in it. One that has lost its
// identity but not its checkpoint is Leat's, and damaged.
func checkOurs(names []string) error {
	if slices.Contains(names, cleanName) || slices.Contains(names, checkpointSlot("", 0)) || slices.Contains(names, checkpointSlot("", 1)) {
		return nil
	}
	if err := checkOwner(names); err != nil {
		return err
	}
	if !slices.ContainsFunc(names, ours) {
		return errNothing
	}
	return nil
}

// ours says whether a name is one that Leat puts into a data directory.
func ours(name string) bool {
	switch name {
	case lockFile, identityName, cleanName, metaDir, logsDir, trashDir, quarantineDir, ballastFile, checkpointSlot("", 0), checkpointSlot("", 1):
		return true
	default:
		return false
	}
}

// checker is one run of Check.
type checker struct {
	ctx  context.Context // of the one call of Check
	fs   disk.FS
	o    CheckOptions
	root *Dir // for its paths only

	report      *Report
	checkpoint  checkpoint
	metadata    Metadata
	done, total int64
	told        int64 // done when Progress was called last
}

func (c *checker) found(s Severity, path string, pos int64, format string, args ...any) {
	if s == Damage {
		c.report.Damages++
	}
	if len(c.report.Findings) == maxFindings {
		c.report.Omitted++
		return
	}
	c.report.Findings = append(c.report.Findings, Finding{Severity: s, Path: path, Pos: pos, What: fmt.Sprintf(format, args...)})
}

// unreadable tells that a file or directory cannot be read.
func (c *checker) unreadable(path string, err error) {
	c.found(Damage, path, -1, "it cannot be read: %v", err)
}

// progress counts n more bytes.
func (c *checker) progress(n int64) {
	c.done += n
	if c.o.Progress != nil && (n == 0 || c.done-c.told >= scanChunk) {
		c.told = c.done
		c.o.Progress(CheckProgress{Done: c.done, Total: c.total})
	}
}

// lock keeps servers away. Where there is no lock file, nobody has had the
// directory open since it was put there.
func (c *checker) lock() (unlock func(), err error) {
	name := c.root.path(lockFile)
	l, err := c.fs.LockExisting(name)
	switch {
	case err == nil:
		return func() { _ = l.Close() }, nil
	case errors.Is(err, disk.ErrLocked):
		return nil, c.root.busy()
	case errors.Is(err, fs.ErrNotExist):
		c.found(Warning, name, -1, "it is missing, so no server was kept away during the check")
		return func() {}, nil
	default:
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
}

func (c *checker) identity() error {
	name := c.root.path(identityName)
	b, err := readFile(c.fs, name, maxIdentityBytes)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		for _, sub := range []string{logsDir, metaDir} {
			if names, err := c.fs.List(c.root.path(sub)); err == nil && len(names) > 0 {
				c.found(Damage, name, -1, "it is missing, but %s/ is not empty", sub)
				return nil
			}
		}
		c.found(Warning, name, -1, "it is missing: the first start was cut short")
		return nil
	case err != nil:
		c.unreadable(name, err)
		return nil
	}
	id, err := parseIdentity(b)
	switch {
	case errors.Is(err, errNewer):
		return &DamagedError{Path: name, Err: err}
	case err != nil:
		pos := int64(-1)
		if at, ok := errors.AsType[*identityError](err); ok {
			pos = at.pos
		}
		c.found(Damage, name, pos, "it does not say who the directory belongs to: %v", err)
	default:
		c.report.Identity = id
		if has, _, pos := identitySum.verify(b); !has {
			c.found(Warning, name, pos, "it has no checksum")
		}
	}
	return nil
}

// meta has the metadata store checked.
func (c *checker) meta() error {
	if c.o.Meta == nil {
		return nil
	}
	dir := c.root.MetaPath()
	m, err := c.o.Meta(c.ctx, dir)
	if err != nil {
		if c.ctx.Err() != nil {
			return context.Cause(c.ctx)
		}
		return fmt.Errorf("check the metadata: %w", err)
	}
	if what, _ := c.root.HasRun(); what != "" && m.Missing { // told otherwise if it cannot be read
		c.found(Damage, dir, -1, "the metadata is missing, but there is %s", what)
	}
	for _, f := range m.Findings {
		c.found(f.Severity, f.Path, f.Pos, "%s", f.What)
	}
	if id := &c.report.Identity; id.ClusterID != "" && !id.Owns(m.ClusterID, m.NodeUUID) {
		c.found(Damage, dir, -1, "%v", id.Foreign(m.ClusterID, m.NodeUUID))
		return nil // what it says is not about these logs
	}
	c.metadata = *m
	return nil
}

// checkpoints looks at both slots. A slot that does not hold costs only a
// longer start.
func (c *checker) checkpoints() {
	c.checkpoint = readCheckpoint(c.fs, c.o.Path)
	for slot := range uint64(2) {
		name := checkpointSlot(c.o.Path, slot)
		b, err := readFile(c.fs, name, maxCheckpointBytes)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if c.checkpoint.generation > 1 {
				c.found(Warning, name, -1, "the checkpoint is missing")
			}
		case err != nil:
			c.unreadable(name, err)
		default:
			c.checkSlot(slot, name, b)
		}
	}
}

func (c *checker) checkSlot(slot uint64, name string, b []byte) {
	cp, err := decodeCheckpoint(b)
	if err != nil {
		c.found(Warning, name, 0, "the checkpoint does not hold: %v", err)
		return
	}
	if cp.generation%2 != slot {
		c.found(Warning, name, 8, "the checkpoint of generation %d does not belong here", cp.generation)
	}
	if !cp.partial {
		return
	}
	told := false
	count := int64(le.Uint32(b[16:]))
	for i := range count {
		at := checkpointHeaderSize + i*checkpointRecordSize
		if int64(len(b)) < at+checkpointRecordSize {
			c.found(Warning, name, int64(len(b)), "the checkpoint ends after %d of %d partitions", i, count)
			return
		}
		if _, _, ok := decodeCheckpointRecord(cp.generation, b[at:at+checkpointRecordSize]); !ok {
			c.found(Warning, name, at, "what the checkpoint says of partition number %d does not hold", i)
			told = true
		}
	}
	if !told {
		c.found(Warning, name, 56, "the checkpoint's partitions do not match their checksum")
	}
}

func (c *checker) cleanStop() {
	name := c.root.path(cleanName)
	b, err := readFile(c.fs, name, cleanSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.found(Warning, c.o.Path, -1, "the last run did not end with a clean stop")
		return
	case errors.Is(err, errFileTooLarge):
	case err != nil:
		c.unreadable(name, err)
		return
	}
	var m cleanMarker
	if err == nil {
		m, err = decodeClean(b)
	}
	switch {
	case err != nil:
		c.found(Warning, name, 0, "the mark of a clean stop does not hold, the next start takes the stop for unclean: %v", err)
	case !m.matches(c.checkpoint):
		c.found(Warning, name, 8, "the mark of a clean stop is of another checkpoint than the newest, the next start takes the stop for unclean")
	default:
		c.report.Clean = true
	}
}

// names tells of what does not belong into the directory.
func (c *checker) names(names []string) {
	odd := false
	for _, name := range names {
		switch {
		case name == trashDir || name == quarantineDir:
			if err := oddDirectory(c.fs, c.root.path(name)); err != nil {
				c.found(Damage, c.root.path(name), -1, "no server starts with it: %v", errors.Unwrap(err))
				odd = true
			}
		case ours(name) || name == "lost+found" || strings.HasPrefix(name, "."):
		case strings.HasSuffix(name, ".tmp") && ours(strings.TrimSuffix(name, ".tmp")):
			c.found(Warning, c.root.path(name), -1, "it was left over by a write that was cut short")
		default:
			c.found(Warning, c.root.path(name), -1, "it is nothing of Leat's")
		}
	}
	set, err := c.fs.List(c.root.path(quarantineDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !odd {
		c.unreadable(c.root.path(quarantineDir), err)
	}
	c.report.Quarantined = len(set)
}

// logs looks at every partition. The error is ctx's.
func (c *checker) logs() error {
	dir := c.root.path(logsDir)
	names, err := c.fs.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.unreadable(dir, err)
		return c.ctx.Err()
	}
	for _, name := range names {
		c.total += c.logBytes(name)
	}
	there := make(map[ID]bool)
	for _, name := range names {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		id, ok := parseDirName(name)
		if !ok {
			c.found(Warning, c.root.path(logsDir, name), -1, "it is no partition's directory, the next start sets it aside")
			continue
		}
		there[id] = true
		c.report.Partitions++
		if c.expected(id) {
			c.log(id)
		}
	}
	c.absent(there)
	return c.ctx.Err()
}

// logBytes is the size of a partition's .log files.
func (c *checker) logBytes(name string) (n int64) {
	files, err := c.fs.List(c.root.path(logsDir, name))
	if err != nil {
		return 0 // told when the partition is looked at
	}
	for _, f := range files {
		if _, _, suffix, ok := parseSegmentName(f); !ok || suffix != logSuffix {
			continue
		}
		if info, err := c.fs.Stat(c.root.path(logsDir, name, f)); err == nil {
			n += info.Size()
		}
	}
	return n
}
