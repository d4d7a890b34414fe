package storage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

// flipFixture is a data directory after a clean stop and what a power cut leaves
// of one: logs with sealed segments and a growing one whose newest batches the
// checkpoint does not have, and the mark of a rewriting that was cut short.
func flipFixture(t testing.TB, clean bool) *disk.Mem {
	t.Helper()
	m := checkFixture(t)
	if err := m.MkdirAll("/data/db"); err != nil {
		t.Fatal(err)
	}
	setFile(t, m, "/data/db/something", []byte("of the metadata store"))
	setFile(t, m, path.Join("/data/logs", testID.dirName(), swapFile), (&swapRecord{gen: 9}).encode())
	if clean {
		return m
	}
	d := openDir(t, m)
	l := openLogAt(t, d, checkConfig, fixtureStart)
	for i := range 6 {
		_, err := l.Append(Append{Batch: batchOf(t, record.None, nil, strings.Repeat("w", 50+i), "second"), Epoch: 7})
		if err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			waitDurable(t, l)
			forceCheckpoint(t, d)
		}
	}
	waitDurable(t, l)
	left := m.CrashClone(1, rand.New(rand.NewPCG(1, 1)))
	mustClose(t, d)
	setFile(t, left, path.Join("/data/logs", testID.dirName(), swapFile), (&swapRecord{gen: 9}).encode())
	return left
}

// unit is the bytes of a file that belong together, of which a check says where
// they begin or which of them has changed.
type unit struct{ from, to int64 }

// unitsOf splits a file into what a check may point at.
func unitsOf(name string, p []byte) []unit {
	size := int64(len(p))
	each := func(head, width int64) []unit {
		units := []unit{{0, min(head, size)}}
		for at := head; at < size; at += width {
			units = append(units, unit{at, min(at+width, size)})
		}
		return units
	}
	switch base := path.Base(name); {
	case strings.HasPrefix(base, "checkpoint."):
		return each(checkpointHeaderSize, checkpointRecordSize)
	case path.Ext(name) == indexSuffix:
		return each(sealSize, entrySize)
	case path.Ext(name) == timeSuffix:
		return each(sealSize, entrySize)
	case path.Ext(name) == logSuffix:
		var units []unit
		for at := int64(0); at < size; {
			end := size
			if b := record.Batch(p[at:]); len(b) >= record.HeaderSize && b.Magic() == 2 {
				end = at + int64(b.Size())
			}
			units = append(units, unit{at, end})
			at = end
		}
		return units
	case base == identityName, base == partitionFile:
		return each(0, 1)
	default:
		return []unit{{0, size}}
	}
}

// flipClass names the kind of file, or for a .log the part of a batch.
func flipClass(name string, u unit, at int64) string {
	switch ext := path.Ext(name); ext {
	case logSuffix:
		switch at -= u.from; {
		case at < 8:
			return "base offset"
		case at < epochAt:
			return "length"
		case at < epochAt+4:
			return "leader epoch"
		case at < 17:
			return "magic"
		case at < crcCovers:
			return "checksum"
		case at < record.HeaderSize:
			return "header"
		}
		return "payload"
	case indexSuffix, timeSuffix:
		if at < sealSize {
			return ext + " header"
		}
		return ext
	default:
		return path.Base(name)
	}
}

// flipRounds is how many flips are made in each class: ten, and more by
// LEAT_SEEDS; with 40 it is over a thousand.
func flipRounds(seed uint64) (int, *rand.Rand) {
	if n, err := strconv.Atoi(os.Getenv("LEAT_SEEDS")); err == nil {
		return n, rand.New(rand.NewPCG(rand.Uint64(), seed))
	}
	return 10, rand.New(rand.NewPCG(seed, seed))
}

// place is a byte of a file and the unit that it is of.
type place struct {
	name string
	unit unit
	at   int64
}

// flipPlaces are all bytes in which a flip matters, by their class.
func flipPlaces(t testing.TB, m *disk.Mem) map[string][]place {
	classes := make(map[string][]place)
	for name, content := range disktest.Tree(t, m, "/data") {
		if content == "" || path.Base(name) == lockFile || path.Dir(name) == "/data/db" {
			continue
		}
		p := []byte(content)
		if path.Ext(name) == logSuffix {
			p = p[:len(p)-trailingZeros(p)] // those are preallocated
		}
		for _, u := range unitsOf(name, p) {
			for at := u.from; at < u.to; at++ {
				class := flipClass(name, u, at)
				classes[class] = append(classes[class], place{name, u, at})
			}
		}
	}
	return classes
}

// TestFlips proves that the check names the file and the place of any one bit
// that has changed: the batch, the index entry or header, the checkpoint's
// record or header, the byte of a text. As many flips are made in each class of
// bytes; the lock file, which has a process id for people, is left out.
func TestFlips(t *testing.T) {
	unraced(t)
	t.Parallel()
	rounds, rng := flipRounds(5)
	for _, clean := range []bool{true, false} {
		m := flipFixture(t, clean)
		classes := flipPlaces(t, m)
		for _, class := range slices.Sorted(maps.Keys(classes)) {
			places := classes[class]
			for range rounds {
				x := places[rng.IntN(len(places))]
				c := m.CrashClone(1, nil)
				flipBit(t, c, x.name, 8*x.at+rng.Int64N(8))
				if err := flipFound(c, x.name, x.unit, clean); err != nil {
					t.Errorf("clean %t, %s: byte %d of %s: %v", clean, class, x.at, x.name, err)
				}
			}
		}
	}
}

// flipFound checks a directory in which a byte of the unit has changed.
func flipFound(m disk.FS, name string, u unit, clean bool) error {
	r, err := Check(context.Background(), CheckOptions{FS: m, Path: "/data", Meta: func(context.Context, string) (*Metadata, error) {
		return &Metadata{Known: true, Logs: map[ID]LogMetadata{
			testID: {Topic: "orders", Start: fixtureStart, LeaderEpoch: 7}, {Topic: TopicID{9}, Partition: 1}: {Topic: "other"},
		}}, nil
	}})
	if damaged, ok := errors.AsType[*DamagedError](err); ok && damaged.Path == name {
		return nil // as of a newer version
	}
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Path == name && f.Pos >= u.from && f.Pos < u.to }) {
		return fmt.Errorf("it is not named:\n%s", r.lines())
	}
	// What a crash may have torn is not known to be damage.
	if clean && path.Ext(name) == logSuffix && r.Damages == 0 {
		return fmt.Errorf("it is no damage:\n%s", r.lines())
	}
	return nil
}

func trailingZeros(p []byte) (n int) {
	for n < len(p) && p[len(p)-1-n] == 0 {
		n++
	}
	return n
}
