package storage

import (
	"runtime"
	"strings"
	"testing"

	"leat/storage/record"
)

// FuzzDecoders proves of everything that is read from a file or is a file's
// name that no content panics or makes a decoder allocate more than its input is
// worth, and that a name which is understood is the only one for what it says.
func FuzzDecoders(f *testing.F) {
	f.Add(encodeCheckpoint(someCheckpoint(3, 5, 1)))
	f.Add(encodeClean(cleanMarker{generation: 7, partitions: 2}))
	s := seal{flags: sealedFlag, base: 5, next: 9, logBytes: 400}
	f.Add(s.encode(indexMagic))
	f.Add(s.encode(timeMagic))
	f.Add(appendEntries([]byte{}, []entry{{1, 70, 7}, {3, 300, 8}}))
	f.Add(appendTimes([]byte{}, []timeEntry{{ts: 5, rel: 2}}))
	f.Add((&swapRecord{gen: 3}).encode())
	f.Add([]byte(segmentName(7, 1) + indexSuffix))
	f.Add([]byte(snapshotName(7)))
	f.Add([]byte(testID.dirName()))
	f.Add([]byte(`{"format":1,"min_reader":1,"node_id":1}`))
	f.Add([]byte(batchOf(f, record.Zstd, nil, strings.Repeat("v", 3000))))
	f.Fuzz(func(t *testing.T, p []byte) {
		before := allocated()
		_, _ = decodeCheckpoint(p)
		_, _ = decodeClean(p)
		_, _ = parseIdentity(p)
		_, _ = decodeSwap(p)
		_, _ = decodeSnapshot(p, 7)
		_, _ = parseEntries(p, 1<<20, 1<<30)
		_, _ = parseTimes(p, 1<<20)
		_, _ = decodeHeader(p, indexMagic)
		_, _ = decodeHeader(p, timeMagic)
		if b, _, err := record.Next(p); err == nil {
			_ = b.VerifyCRC()
		}
		// Each decoder may keep what it has read, in a form that is a little larger.
		if n, most := allocated()-before, uint64(16*len(p)+64<<10); n > most {
			t.Fatalf("%d bytes were allocated for %d", n, len(p))
		}
		proveNames(t, string(p))
	})
}

// proveNames wants a name that is understood to be the one that would be given.
func proveNames(t *testing.T, name string) {
	if base, gen, suffix, ok := parseSegmentName(name); ok && segmentName(base, gen)+suffix != name {
		t.Errorf("%q is taken for %s", name, segmentName(base, gen)+suffix)
	}
	if next, ok := parseSnapshotName(name); ok && snapshotName(next) != name {
		t.Errorf("%q is taken for %s", name, snapshotName(next))
	}
	if id, ok := parseDirName(name); ok && id.dirName() != name {
		t.Errorf("%q is taken for %s", name, id.dirName())
	}
}

// allocated is how much was ever allocated.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
