package storage

import (
	"container/list"
	"errors"
	"log/slog"
	"sync"

	"leat/storage/disk"
)

// maxMappings is how many index files of sealed segments stay mapped. The
// kernel's limit is 65,530 for the process, and the Go heap needs some, too.
const maxMappings = 1024

// tableKind tells a segment's two index files apart.
type tableKind uint8

const (
	offsetTable tableKind = iota
	timeTable
)

func (k tableKind) path(s *segment) string {
	if k == timeTable {
		return s.stem + timeSuffix
	}
	return s.stem + indexSuffix
}

func (k tableKind) magic() [4]byte {
	if k == timeTable {
		return timeMagic
	}
	return indexMagic
}

type tableKey struct {
	seg  *segment
	kind tableKind
}

type cachedTable struct {
	key  tableKey
	refs int           // guarded by tables.mu
	idle *list.Element // in tables.idle while refs is 0
	gone bool          // dropped: close with the last reference
	once sync.Once     // opens t
	t    *table
	err  error
}

// tables keeps the indexes of sealed segments mapped: those in use, and the
// least recently used of the others up to a limit.
type tables struct {
	fs      disk.FS
	limit   int
	metrics *metrics
	logger  *slog.Logger
	fail    func(error) // for a failed sync; set by Open

	mu struct {
		sync.Mutex
		open map[tableKey]*cachedTable
		idle *list.List // of *cachedTable, least recently used first
	}
	// repair serialises the rebuilding of damaged index files.
	repair sync.Mutex
}

func newTables(fs disk.FS, limit int, m *metrics, logger *slog.Logger) *tables {
	t := &tables{fs: fs, limit: limit, metrics: m, logger: logger}
	t.mu.open = make(map[tableKey]*cachedTable)
	t.mu.idle = list.New()
	return t
}

// with calls fn with the table, which is valid during the call.
func (t *tables) with(key tableKey, fn func(*table) error) error {
	c := t.acquire(key)
	defer t.release(c)
	c.once.Do(func() {
		c.t, c.err = openTable(t.fs, key.kind.path(key.seg), key.kind.magic(), key.seg)
	})
	if c.err != nil {
		t.forget(c)
		return c.err
	}
	return fn(c.t)
}

// forget makes the next lookup open the file anew.
func (t *tables) forget(c *cachedTable) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.open[c.key] == c {
		delete(t.mu.open, c.key)
	}
	c.gone = true
}

func (t *tables) acquire(key tableKey) *cachedTable {
	t.mu.Lock()
	c := t.mu.open[key]
	if c == nil {
		c = &cachedTable{key: key}
		t.mu.open[key] = c
	}
	if c.idle != nil {
		t.mu.idle.Remove(c.idle)
		c.idle = nil
	}
	c.refs++
	closing := t.evictLocked()
	t.metrics.mappings.Set(float64(len(t.mu.open)))
	t.mu.Unlock()
	closeTables(closing)
	return c
}

func (t *tables) release(c *cachedTable) {
	t.mu.Lock()
	c.refs--
	var closing []*cachedTable
	if c.refs == 0 {
		if c.gone {
			closing = append(closing, c)
		} else {
			c.idle = t.mu.idle.PushBack(c)
			closing = t.evictLocked()
		}
	}
	t.metrics.mappings.Set(float64(len(t.mu.open)))
	t.mu.Unlock()
	closeTables(closing)
}

// drop forgets the segment's tables.
func (t *tables) drop(s *segment) {
	var closing []*cachedTable
	t.mu.Lock()
	for _, kind := range []tableKind{offsetTable, timeTable} {
		c := t.mu.open[tableKey{s, kind}]
		if c == nil {
			continue
		}
		delete(t.mu.open, c.key)
		c.gone = true
		if c.idle != nil {
			t.mu.idle.Remove(c.idle)
			c.idle = nil
			closing = append(closing, c)
		}
	}
	t.metrics.mappings.Set(float64(len(t.mu.open)))
	t.mu.Unlock()
	closeTables(closing)
}

// evictLocked takes idle tables away until no more than the limit are open.
func (t *tables) evictLocked() (evicted []*cachedTable) {
	for len(t.mu.open) > t.limit && t.mu.idle.Len() > 0 {
		c := t.mu.idle.Remove(t.mu.idle.Front()).(*cachedTable)
		c.idle = nil
		delete(t.mu.open, c.key)
		evicted = append(evicted, c)
	}
	return evicted
}

func closeTables(cs []*cachedTable) {
	for _, c := range cs {
		if c.t != nil {
			c.t.close()
		}
	}
}

// sealedLookup answers lookups from a sealed segment's index files. A file
// that turns out to be damaged is rebuilt from the .log once.
type sealedLookup struct {
	tables *tables
	files  *files
	seg    *segment
	// interval is the index interval for a rebuilt file.
	interval int
}

func (l *sealedLookup) floorOffset(rel uint32) (entry, error) {
	return l.entry(func(p []byte) bool { return decodeEntry(p).rel <= rel })
}

func (l *sealedLookup) floorPos(pos uint32) (entry, error) {
	return l.entry(func(p []byte) bool { return decodeEntry(p).pos <= pos })
}

func (l *sealedLookup) ceilPos(pos uint32) (e entry, ok bool, err error) {
	below := func(p []byte) bool { return decodeEntry(p).pos < pos }
	err = l.look(offsetTable, func(t *table) error {
		return t.next(below, func(p []byte) { e, ok = decodeEntry(p), true })
	})
	return e, ok, err
}

func (l *sealedLookup) beforeTime(ts int64) (timeEntry, error) {
	return l.time(func(p []byte) bool { return decodeTimeEntry(p).ts < ts })
}

func (l *sealedLookup) floorTime(rel uint32) (timeEntry, error) {
	return l.time(func(p []byte) bool { return decodeTimeEntry(p).rel <= rel })
}

func (l *sealedLookup) entry(ok func([]byte) bool) (e entry, err error) {
	err = l.look(offsetTable, func(t *table) error { return t.last(ok, func(p []byte) { e = decodeEntry(p) }) })
	return e, err
}

func (l *sealedLookup) time(ok func([]byte) bool) (timeEntry, error) {
	e := noTime
	err := l.look(timeTable, func(t *table) error { return t.last(ok, func(p []byte) { e = decodeTimeEntry(p) }) })
	return e, err
}

func (l *sealedLookup) look(kind tableKind, lookup func(*table) error) error {
	key := tableKey{l.seg, kind}
	err := l.tables.with(key, lookup)
	if !errors.Is(err, errBadIndex) {
		return err
	}
	if err = l.rebuild(key, lookup); errors.Is(err, errSync) {
		l.tables.fail(err)
	}
	return err
}

// rebuild makes the damaged files anew and looks again.
func (l *sealedLookup) rebuild(key tableKey, lookup func(*table) error) error {
	l.tables.repair.Lock()
	defer l.tables.repair.Unlock()
	// Somebody else may have rebuilt it meanwhile.
	err := l.tables.with(key, lookup)
	if !errors.Is(err, errBadIndex) {
		return err
	}
	if l.files.retired(l.seg) {
		return errRetired
	}
	l.tables.logger.Warn("index file is damaged and is rebuilt from the log",
		slog.String("path", key.kind.path(l.seg)), slog.Any("err", err))
	if err := rebuildSealed(l.tables, l.files, l.seg, l.interval); err != nil {
		return err
	}
	return l.tables.with(key, lookup)
}
