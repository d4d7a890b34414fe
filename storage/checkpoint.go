package storage

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"leat/storage/disk"
)

// The checkpoint says for every partition from where on its active segment
// must be scanned after a crash. It lives in two slots written in turn, so a
// torn write costs the newer one only. Little endian, CRC-32C:
//
//	header, 64 bytes                    record, 104 bytes
//	  0 4 "LTCK"                          0 16 topic id
//	  4 2 version = 1                    16  4 partition
//	  6 2 flags = 0                      20  4 flags: 1 corrupt, 2 compacted; from bit 2 on the seconds
//	                                          from the active segment's first append to its last
//	  8 8 generation                     24  8 log start offset (a hint)
//	 16 4 count of records               32  8 base offset of the active segment
//	 20 8 wall clock, ms                 40  8 recovery offset: first not known durable
//	 28 8 newest append, ms              48  8 its position in the active .log
//	 36 … zero                           56  8 max timestamp of the active segment
//	 56 4 crc of the records             64  8 wall clock of the last append, ms
//	 60 4 crc of [0,60)                  72  4 .index entries for [0, position)
//	                                     76  4 crc of those
//	                                     80  4 .timeindex entries
//	                                     84  4 crc of those
//	                                     88  4 crc of .log [0, position)
//	                                     92  4 leader epoch
//	                                     96  4 generation of the active segment
//	                                    100  4 crc of slot generation (u64) and [0,100)
//
// The record's crc covers the generation of the slot too, so that a record
// left over from the slot's earlier life is never taken for a new one.
const (
	checkpointMagic      = "LTCK"
	checkpointVersion    = 1
	checkpointHeaderSize = 64
	checkpointRecordSize = 104
	// maxCheckpointBytes bounds the read of a slot: ten million partitions.
	maxCheckpointBytes = checkpointHeaderSize + 10_000_000*checkpointRecordSize

	flagCorrupt   = 1 << 0
	flagCompacted = 1 << 1
	// The flags' other bits count seconds.
	secondsShift     = 2
	maxActiveSeconds = 1<<(32-secondsShift) - 1

	bootIDPath = "/proc/sys/kernel/random/boot_id"
)

var (
	le         = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)

	errBadCheckpoint = errors.New("not a valid checkpoint")
	errBadMarker     = errors.New("not a valid clean-stop marker")
)

// checkpointRecord is one partition's line; see the table above.
type checkpointRecord struct {
	corrupt, compacted bool
	logStart           int64
	activeBase         int64
	activeGen          uint32
	recoveryOffset     int64
	recoveryPos        int64
	maxTimestamp       int64
	lastAppendMs       int64
	activeSeconds      uint32 // of the active segment, from the first append to the last; at most maxActiveSeconds
	indexEntries       uint32
	indexCRC           uint32
	timeIndexEntries   uint32
	timeIndexCRC       uint32
	logCRC             uint32
	leaderEpoch        int32
}

// firstAppendMs is about when the active segment got its first record.
func (r *checkpointRecord) firstAppendMs() int64 {
	return r.lastAppendMs - int64(r.activeSeconds)*1000
}

// checkpoint is the content of a slot. The next one to write has generation+1.
type checkpoint struct {
	generation  uint64
	wallMs      int64 // wall clock when it was written
	maxAppendMs int64 // newest append of any partition, wall clock
	records     map[ID]checkpointRecord
	// partial says that some records of the slot were unreadable and left
	// out. It is not stored.
	partial bool
}

// compareIDs is the order of a checkpoint's records.
func compareIDs(x, y ID) int {
	return cmp.Or(bytes.Compare(x.Topic[:], y.Topic[:]), cmp.Compare(x.Partition, y.Partition))
}

// encodeCheckpoint writes c with its records in the order of their ids.
func encodeCheckpoint(c checkpoint) []byte {
	b := make([]byte, checkpointHeaderSize, checkpointHeaderSize+len(c.records)*checkpointRecordSize)
	ids := slices.SortedFunc(maps.Keys(c.records), compareIDs)
	for _, id := range ids {
		b = appendCheckpointRecord(b, c.generation, id, c.records[id])
	}
	copy(b, checkpointMagic)
	le.PutUint16(b[4:], checkpointVersion)
	le.PutUint64(b[8:], c.generation)
	le.PutUint32(b[16:], uint32(len(ids)))
	le.PutUint64(b[20:], uint64(c.wallMs))
	le.PutUint64(b[28:], uint64(c.maxAppendMs))
	le.PutUint32(b[56:], crc32.Checksum(b[checkpointHeaderSize:], castagnoli))
	le.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

func appendCheckpointRecord(b []byte, generation uint64, id ID, r checkpointRecord) []byte {
	start := len(b)
	b = append(b, id.Topic[:]...)
	b = le.AppendUint32(b, uint32(id.Partition))
	var flags uint32
	if r.corrupt {
		flags |= flagCorrupt
	}
	if r.compacted {
		flags |= flagCompacted
	}
	flags |= min(r.activeSeconds, maxActiveSeconds) << secondsShift
	b = le.AppendUint32(b, flags)
	for _, v := range [...]int64{
		r.logStart, r.activeBase, r.recoveryOffset, r.recoveryPos, r.maxTimestamp, r.lastAppendMs,
	} {
		b = le.AppendUint64(b, uint64(v))
	}
	for _, v := range [...]uint32{
		r.indexEntries, r.indexCRC, r.timeIndexEntries, r.timeIndexCRC,
		r.logCRC, uint32(r.leaderEpoch), r.activeGen,
	} {
		b = le.AppendUint32(b, v)
	}
	return le.AppendUint32(b, checkpointRecordCRC(generation, b[start:]))
}

func checkpointRecordCRC(generation uint64, body []byte) uint32 {
	var g [8]byte
	le.PutUint64(g[:], generation)
	return crc32.Update(crc32.Checksum(g[:], castagnoli), castagnoli, body)
}

// decodeCheckpoint reads a slot. A header that does not hold is an error; a
// record that does not hold is left out and makes the checkpoint partial.
func decodeCheckpoint(b []byte) (checkpoint, error) {
	if len(b) < checkpointHeaderSize || string(b[:4]) != checkpointMagic ||
		le.Uint32(b[60:]) != crc32.Checksum(b[:60], castagnoli) {
		return checkpoint{}, errBadCheckpoint
	}
	if v := le.Uint16(b[4:]); v != checkpointVersion {
		return checkpoint{}, fmt.Errorf("%w: version %d", errBadCheckpoint, v)
	}
	count, body := int64(le.Uint32(b[16:])), b[checkpointHeaderSize:]
	there := min(count, int64(len(body))/checkpointRecordSize)
	body = body[:there*checkpointRecordSize]
	c := checkpoint{
		generation:  le.Uint64(b[8:]),
		wallMs:      int64(le.Uint64(b[20:])),
		maxAppendMs: int64(le.Uint64(b[28:])),
		records:     make(map[ID]checkpointRecord, there),
		partial:     there < count || le.Uint32(b[56:]) != crc32.Checksum(body, castagnoli),
	}
	for ; len(body) > 0; body = body[checkpointRecordSize:] {
		if id, r, ok := decodeCheckpointRecord(c.generation, body[:checkpointRecordSize]); ok {
			c.records[id] = r
		} else {
			c.partial = true
		}
	}
	return c, nil
}

func decodeCheckpointRecord(generation uint64, b []byte) (id ID, r checkpointRecord, ok bool) {
	if le.Uint32(b[100:]) != checkpointRecordCRC(generation, b[:100]) {
		return id, r, false
	}
	copy(id.Topic[:], b)
	id.Partition = int32(le.Uint32(b[16:]))
	flags := le.Uint32(b[20:])
	i64 := func(off int) int64 { return int64(le.Uint64(b[off:])) }
	return id, checkpointRecord{
		corrupt: flags&flagCorrupt != 0, compacted: flags&flagCompacted != 0,
		logStart: i64(24), activeBase: i64(32), recoveryOffset: i64(40), recoveryPos: i64(48),
		maxTimestamp: i64(56), lastAppendMs: i64(64), activeSeconds: flags >> secondsShift,
		indexEntries: le.Uint32(b[72:]), indexCRC: le.Uint32(b[76:]),
		timeIndexEntries: le.Uint32(b[80:]), timeIndexCRC: le.Uint32(b[84:]),
		logCRC: le.Uint32(b[88:]), leaderEpoch: int32(le.Uint32(b[92:])), activeGen: le.Uint32(b[96:]),
	}, true
}

func checkpointSlot(dir string, generation uint64) string {
	return path.Join(dir, fmt.Sprintf("checkpoint.%d", generation%2))
}

// readCheckpoint returns the newest valid slot of dir, or an empty checkpoint.
// It never fails: without a checkpoint recovery only reads more.
//
// If the newest slot is partial (its write was torn, or it rotted), the
// partitions that it lacks are taken from the other slot, whose older
// positions are as durable as ever; and the generation is raised by one, so
// that the next write goes over the damaged slot and not over the whole one.
func readCheckpoint(fsys disk.FS, dir string) checkpoint {
	var slots []checkpoint
	for g := range uint64(2) {
		b, err := readFile(fsys, checkpointSlot(dir, g), maxCheckpointBytes)
		if err != nil {
			continue
		}
		if c, err := decodeCheckpoint(b); err == nil && c.generation%2 == g {
			slots = append(slots, c)
		}
	}
	if len(slots) == 0 {
		return checkpoint{records: make(map[ID]checkpointRecord)}
	}
	slices.SortFunc(slots, func(x, y checkpoint) int { return cmp.Compare(y.generation, x.generation) })
	c := slots[0]
	if c.partial {
		for _, older := range slots[1:] {
			for id, r := range older.records {
				if _, ok := c.records[id]; !ok {
					c.records[id] = r
				}
			}
		}
		c.generation++
	}
	return c
}

// writeCheckpoint makes c durable in the slot of its generation, which must
// be one more than that of the checkpoint before. What c claims to be durable
// must be so already. named says that the slot's name is durable: a slot that is
// there need not have one, for whoever made it may have come no further. An
// error leaves the other slot whole.
func writeCheckpoint(fsys disk.FS, dir string, c checkpoint, named bool) error {
	name := checkpointSlot(dir, c.generation)
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return fmt.Errorf("checkpoint %d: %w", c.generation, err)
	}
	b := encodeCheckpoint(c)
	if _, err = f.WriteAt(b, 0); err == nil {
		if err = f.Truncate(int64(len(b))); err == nil {
			err = syncFault(name, f.SyncData())
		}
	}
	if err = errors.Join(err, f.Close()); err == nil && !named {
		err = syncFault(dir, fsys.SyncDir(dir))
	}
	if err != nil {
		return fmt.Errorf("checkpoint %d: %w", c.generation, err)
	}
	return nil
}

// cleanMarker is the file CLEAN, which exists only between a clean stop and
// the next start. Little endian:
//
//	0 4 "LTCL"       8 8 checkpoint generation    28  8 broker epoch
//	4 2 version = 1  16 4 count of partitions     36 16 boot id
//	6 2 flags = 0    20 8 wall clock, ms          52  4 crc of [0,52)
type cleanMarker struct {
	generation  uint64 // of the checkpoint written just before
	partitions  uint32 // count of its records
	wallMs      int64
	brokerEpoch int64
	bootID      [16]byte // zero when unknown; see readBootID
}

const (
	cleanName    = "CLEAN"
	cleanMagic   = "LTCL"
	cleanVersion = 1
	cleanSize    = 56
)

// matches says whether m was written right after c and c is whole: only then
// do the partitions end where c says.
func (m cleanMarker) matches(c checkpoint) bool {
	return !c.partial && m.generation == c.generation && int64(m.partitions) == int64(len(c.records))
}

func encodeClean(m cleanMarker) []byte {
	b := make([]byte, 8, cleanSize)
	copy(b, cleanMagic)
	le.PutUint16(b[4:], cleanVersion)
	b = le.AppendUint64(b, m.generation)
	b = le.AppendUint32(b, m.partitions)
	b = le.AppendUint64(b, uint64(m.wallMs))
	b = le.AppendUint64(b, uint64(m.brokerEpoch))
	b = append(b, m.bootID[:]...)
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeClean(b []byte) (cleanMarker, error) {
	if len(b) != cleanSize || string(b[:4]) != cleanMagic || le.Uint16(b[4:]) != cleanVersion ||
		le.Uint32(b[52:]) != crc32.Checksum(b[:52], castagnoli) {
		return cleanMarker{}, errBadMarker
	}
	return cleanMarker{
		generation:  le.Uint64(b[8:]),
		partitions:  le.Uint32(b[16:]),
		wallMs:      int64(le.Uint64(b[20:])),
		brokerEpoch: int64(le.Uint64(b[28:])),
		bootID:      [16]byte(b[36:52]),
	}, nil
}

// takeClean reads and removes the marker, durably, before anything else of
// the directory changes: a crash from here on is an unclean stop. ok is false
// when there is no marker or it does not hold.
func takeClean(fsys disk.FS, dir string) (m cleanMarker, ok bool, err error) {
	name := path.Join(dir, cleanName)
	b, err := readFile(fsys, name, cleanSize)
	if errors.Is(err, fs.ErrNotExist) {
		return cleanMarker{}, false, nil
	}
	if err == nil {
		m, err = decodeClean(b)
	}
	ok = err == nil
	if err := fsys.Remove(name); err != nil {
		return cleanMarker{}, false, fmt.Errorf("remove clean-stop marker: %w", err)
	}
	if err := fsys.SyncDir(dir); err != nil {
		return cleanMarker{}, false, fmt.Errorf("remove clean-stop marker: %w", err)
	}
	return m, ok, nil
}

// writeClean is the last write of a clean stop, after every log and the
// checkpoint of m.generation are durable.
func writeClean(fsys disk.FS, dir string, m cleanMarker) error {
	if err := replaceFile(fsys, path.Join(dir, cleanName), encodeClean(m)); err != nil {
		return fmt.Errorf("write clean-stop marker: %w", err)
	}
	return nil
}

// readBootID tells one run of the kernel from the next: if it is the same as
// before, there was no power cut. Zero where the system has none.
func readBootID(fsys disk.FS) [16]byte {
	var id [16]byte
	b, err := readFile(fsys, bootIDPath, 64)
	if err != nil {
		return id
	}
	digits := strings.ReplaceAll(strings.TrimSpace(string(b)), "-", "")
	if raw, err := hex.DecodeString(digits); err == nil && len(raw) == len(id) {
		copy(id[:], raw)
	}
	return id
}
