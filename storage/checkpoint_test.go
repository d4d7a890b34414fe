package storage

import (
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"leat/storage/disk"
	"leat/storage/record"
)

// someCheckpoint has n records with every field set, made from seed.
func someCheckpoint(generation uint64, n int, seed uint64) checkpoint {
	rng := rand.New(rand.NewPCG(seed, 0))
	c := checkpoint{generation: generation, wallMs: rng.Int64(), maxAppendMs: -1, records: map[ID]checkpointRecord{}}
	for i := range n {
		c.records[ID{TopicID{0: byte(i % 3), 15: 1}, int32(i)}] = checkpointRecord{
			corrupt: i%2 == 0, compacted: i%3 == 0,
			logStart: rng.Int64(), activeBase: rng.Int64(), activeGen: rng.Uint32(),
			recoveryOffset: rng.Int64(), recoveryPos: rng.Int64(), maxTimestamp: -1, lastAppendMs: rng.Int64(),
			indexEntries: rng.Uint32(), indexCRC: rng.Uint32(), timeIndexEntries: rng.Uint32(), timeIndexCRC: rng.Uint32(),
			logCRC: rng.Uint32(), leaderEpoch: rng.Int32(),
		}
	}
	return c
}

func TestCheckpointCodec(t *testing.T) {
	// Proves that a checkpoint reads back whole, has the size that the format
	// says, and is the same bytes whatever the order of the map.
	for _, n := range []int{0, 1, 7, 100} {
		c := someCheckpoint(41, n, 1)
		b := encodeCheckpoint(c)
		if len(b) != 64+104*n {
			t.Errorf("%d records: %d bytes", n, len(b))
		}
		for range 5 {
			if string(encodeCheckpoint(c)) != string(b) {
				t.Fatalf("%d records: encoded in two ways", n)
			}
		}
		got, err := decodeCheckpoint(b)
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%d records: %v, got %+v, want %+v", n, err, got, c)
		}
		if got, err = decodeCheckpoint(append(b, make([]byte, 200)...)); err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("%d records and a tail: %v, %+v", n, err, got)
		}
	}
}

func TestCheckpointLayout(t *testing.T) {
	// Proves the byte offsets of the format, which other versions read too.
	id := ID{TopicID{0: 0xaa, 15: 0xbb}, 0x01020304}
	b := encodeCheckpoint(checkpoint{
		generation: 0x1112131415161718, wallMs: 0x2122232425262728, maxAppendMs: 0x3132333435363738,
		records: map[ID]checkpointRecord{id: {
			corrupt: true, logStart: 1, activeBase: 2, recoveryOffset: 3, recoveryPos: 4, maxTimestamp: 5, lastAppendMs: 6,
			indexEntries: 7, indexCRC: 8, timeIndexEntries: 9, timeIndexCRC: 10, logCRC: 11, leaderEpoch: 12, activeGen: 13,
		}},
	})
	want := "4c54434b" + "0100" + "0000" + "1817161514131211" + "01000000" + "2827262524232221" + "3837363534333231" + strings.Repeat("00", 20)
	if got := fmt.Sprintf("%x", b[:56]); got != want {
		t.Errorf("header\n%s, want\n%s", got, want)
	}
	want = "aa0000000000000000000000000000bb" + "04030201" + "01000000"
	for _, v := range []int{1, 2, 3, 4, 5, 6} {
		want += fmt.Sprintf("%02x00000000000000", v)
	}
	for _, v := range []int{7, 8, 9, 10, 11, 12, 13} {
		want += fmt.Sprintf("%02x000000", v)
	}
	if got := fmt.Sprintf("%x", b[64:164]); got != want {
		t.Errorf("record\n%s, want\n%s", got, want)
	}
}

func TestCheckpointBitFlips(t *testing.T) {
	// Proves that a flipped bit anywhere costs the slot, or the one record
	// that it is in, and never changes what is read.
	c := someCheckpoint(8, 3, 2)
	b := encodeCheckpoint(c)
	for bit := range len(b) * 8 {
		b[bit/8] ^= 1 << (bit % 8)
		got, err := decodeCheckpoint(b)
		b[bit/8] ^= 1 << (bit % 8)
		if bit/8 < 64 {
			if err == nil {
				t.Fatalf("bit %d: the header was accepted", bit)
			}
			continue
		}
		if err != nil || !got.partial || len(got.records) != 2 {
			t.Fatalf("bit %d: %v, %+v", bit, err, got)
		}
		for id, r := range got.records {
			if r != c.records[id] {
				t.Fatalf("bit %d: record %s changed", bit, id)
			}
		}
	}
}

func TestCheckpointShort(t *testing.T) {
	// Proves that a slot cut at any byte is an error or gives whole records.
	c := someCheckpoint(8, 3, 2)
	b := encodeCheckpoint(c)
	for n := range b {
		got, err := decodeCheckpoint(b[:n])
		if n < 64 {
			if err == nil {
				t.Fatalf("%d bytes were accepted", n)
			}
			continue
		}
		if err != nil || !got.partial || len(got.records) != (n-64)/104 {
			t.Fatalf("%d bytes: %v, %d records", n, err, len(got.records))
		}
	}
}

func checkpointDir(t *testing.T) *disk.Mem {
	t.Helper()
	m := disk.NewMem()
	if err := errors.Join(m.MkdirAll("/data"), m.SyncAll("/")); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestCheckpointSlots(t *testing.T) {
	// Proves that generations go to the two slots in turn, that a shorter one
	// leaves no tail, and that damage of a slot costs only what is newer.
	m := checkpointDir(t)
	if c := readCheckpoint(m, "/data"); c.generation != 0 || c.records == nil || len(c.records) != 0 || c.partial {
		t.Fatalf("without slots: %+v", c)
	}
	var written []checkpoint
	for g := range uint64(4) {
		c := someCheckpoint(g+1, 9-2*int(g), g)
		if err := writeCheckpoint(m, "/data", c, false); err != nil {
			t.Fatal(err)
		}
		written = append(written, c)
		if got := readCheckpoint(m.CrashClone(0, nil), "/data"); !reflect.DeepEqual(got, c) {
			t.Fatalf("generation %d: %+v", g+1, got)
		}
	}
	if info, err := m.Stat("/data/checkpoint.0"); err != nil || info.Size() != 64+3*104 {
		t.Errorf("slot 0: %v, %v", info, err)
	}
	for name, tc := range map[string]struct {
		damage func(m *disk.Mem)
		want   checkpoint
	}{
		"newest gone":     {func(m *disk.Mem) { putFile(t, m, "/data/checkpoint.0", nil) }, written[2]},
		"older gone":      {func(m *disk.Mem) { putFile(t, m, "/data/checkpoint.1", []byte("junk")) }, written[3]},
		"a future format": {func(m *disk.Mem) { putFile(t, m, "/data/checkpoint.0", futureCheckpoint()) }, written[2]},
		"slots swapped": {func(m *disk.Mem) {
			zero, one := getFile(t, m, "/data/checkpoint.0"), getFile(t, m, "/data/checkpoint.1")
			putFile(t, m, "/data/checkpoint.0", one)
			putFile(t, m, "/data/checkpoint.1", zero)
		}, checkpoint{records: map[ID]checkpointRecord{}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := m.CrashClone(1, nil)
			tc.damage(c)
			if got := readCheckpoint(c, "/data"); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// futureCheckpoint is a valid slot of version 2.
func futureCheckpoint() []byte {
	b := encodeCheckpoint(someCheckpoint(100, 1, 1))
	le.PutUint16(b[4:], 2)
	le.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

func TestCheckpointPartial(t *testing.T) {
	// Proves that partitions that a damaged newest slot lacks come from the
	// other one, and that the next write goes over the damaged slot.
	m := checkpointDir(t)
	older, newer := someCheckpoint(3, 6, 1), someCheckpoint(4, 4, 2)
	for _, c := range []checkpoint{older, newer} {
		if err := writeCheckpoint(m, "/data", c, false); err != nil {
			t.Fatal(err)
		}
	}
	b := getFile(t, m, "/data/checkpoint.0")
	b[64+104+50] ^= 1
	putFile(t, m, "/data/checkpoint.0", b)
	got := readCheckpoint(m, "/data")
	damaged := ID{TopicID{15: 1}, 3} // second in the order of ids
	want := maps.Clone(older.records)
	maps.Copy(want, newer.records)
	want[damaged] = older.records[damaged]
	if !got.partial || !maps.Equal(got.records, want) {
		t.Errorf("got %+v", got)
	}
	if (got.generation+1)%2 != newer.generation%2 || got.generation < newer.generation {
		t.Errorf("generation %d", got.generation)
	}
	got.generation++
	got.partial = false
	if err := writeCheckpoint(m, "/data", got, false); err != nil {
		t.Fatal(err)
	}
	if again := readCheckpoint(m, "/data"); !reflect.DeepEqual(again, got) {
		t.Errorf("rewritten: %+v", again)
	}
}

func TestCheckpointPowerCut(t *testing.T) {
	// Proves that a power cut at any operation of a write leaves the old
	// checkpoint or the new one, or for single partitions the old record: never
	// a record that was not written, and never one left from before the old.
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 9))
		m := checkpointDir(t)
		var cuts []*disk.Mem
		written := []checkpoint{{records: map[ID]checkpointRecord{}}}
		for g := uint64(1); g <= 5; g++ {
			c := someCheckpoint(g, 40, g)
			m.SetFault(func(disk.Op) error {
				cuts = append(cuts, m.CrashClone([]float64{0, 0.5, 0.9}[rng.IntN(3)], rng))
				return nil
			})
			if err := writeCheckpoint(m, "/data", c, false); err != nil {
				t.Fatal(err)
			}
			m.SetFault(nil)
			written = append(written, c)
			for i, crashed := range cuts {
				checkCut(t, readCheckpoint(crashed, "/data"), written[g-1], written[g], fmt.Sprint(seed, " ", g, " ", i))
			}
			cuts = nil
		}
	}
}

func checkCut(t *testing.T, got, before, after checkpoint, at string) {
	t.Helper()
	if got.generation < before.generation || len(got.records) < len(before.records) {
		t.Fatalf("cut %s: generation %d with %d records after %d", at, got.generation, len(got.records), before.generation)
	}
	for id, r := range got.records {
		if r != before.records[id] && r != after.records[id] {
			t.Fatalf("cut %s: record %s is neither old nor new", at, id)
		}
	}
}

func TestCheckpointWriteErrors(t *testing.T) {
	// Proves that a failed write is reported and leaves the other slot.
	for _, kind := range []disk.OpKind{disk.OpOpen, disk.OpWrite, disk.OpTruncate, disk.OpSyncData, disk.OpSyncDir} {
		m := checkpointDir(t)
		c := someCheckpoint(1, 5, 1)
		if err := writeCheckpoint(m, "/data", c, false); err != nil {
			t.Fatal(err)
		}
		m.SetFault(func(op disk.Op) error {
			if op.Kind == kind {
				return syscall.ENOSPC
			}
			return nil
		})
		if err := writeCheckpoint(m, "/data", someCheckpoint(2, 5, 2), false); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", kind, err)
		}
		if got := readCheckpoint(m.CrashClone(0, nil), "/data"); !reflect.DeepEqual(got, c) {
			t.Errorf("%s: generation %d is left", kind, got.generation)
		}
	}
}

func TestCleanMarker(t *testing.T) {
	// Proves that the marker reads back once, is gone durably before anything
	// else, and counts for its own checkpoint only.
	m := checkpointDir(t)
	if _, ok, err := takeClean(m, "/data"); ok || err != nil {
		t.Fatalf("without a marker: %t, %v", ok, err)
	}
	c := someCheckpoint(7, 3, 1)
	want := cleanMarker{generation: 7, partitions: 3, wallMs: 1 << 40, brokerEpoch: 12, bootID: [16]byte{1, 2, 15: 3}}
	if err := writeClean(m, "/data", want); err != nil {
		t.Fatal(err)
	}
	m = m.CrashClone(0, nil)
	got, ok, err := takeClean(m, "/data")
	if err != nil || !ok || got != want {
		t.Errorf("takeClean = %+v, %t, %v", got, ok, err)
	}
	if _, ok, err := takeClean(m.CrashClone(0, nil), "/data"); ok || err != nil {
		t.Errorf("after a crash the marker is back: %t, %v", ok, err)
	}
	if !want.matches(c) {
		t.Error("the marker does not match its checkpoint")
	}
	partial, fewer := c, someCheckpoint(7, 2, 1)
	partial.partial = true
	for _, other := range []checkpoint{someCheckpoint(8, 3, 1), fewer, partial} {
		if want.matches(other) {
			t.Errorf("the marker matches %+v", other)
		}
	}
}

func TestCleanMarkerDamaged(t *testing.T) {
	// Proves that a marker that does not hold is no marker, and is removed.
	b := encodeClean(cleanMarker{generation: 7, partitions: 3})
	if len(b) != cleanSize {
		t.Fatalf("%d bytes", len(b))
	}
	texts := [][]byte{nil, b[:20], append(slices.Clip(b), 0), make([]byte, cleanSize), make([]byte, 10_000)}
	for bit := range len(b) * 8 {
		flipped := append([]byte(nil), b...)
		flipped[bit/8] ^= 1 << (bit % 8)
		texts = append(texts, flipped)
	}
	m := checkpointDir(t)
	for _, text := range texts {
		putFile(t, m, "/data/CLEAN", text)
		if got, ok, err := takeClean(m, "/data"); ok || err != nil || got != (cleanMarker{}) {
			t.Fatalf("%x: %+v, %t, %v", text, got, ok, err)
		}
		if _, err := m.Stat("/data/CLEAN"); err == nil {
			t.Fatalf("%x is still there", text)
		}
	}
	putFile(t, m, "/data/CLEAN", b)
	for _, kind := range []disk.OpKind{disk.OpRemove, disk.OpSyncDir} {
		m.SetFault(func(op disk.Op) error {
			if op.Kind == kind {
				return syscall.EROFS
			}
			return nil
		})
		if _, ok, err := takeClean(m, "/data"); ok || !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: %t, %v", kind, ok, err)
		}
	}
}

func TestReadBootID(t *testing.T) {
	// Proves that the kernel's boot id is read, and that none is zero.
	m := disk.NewMem()
	if got := readBootID(m); got != [16]byte{} {
		t.Errorf("without one: %x", got)
	}
	if err := m.MkdirAll("/proc/sys/kernel/random"); err != nil {
		t.Fatal(err)
	}
	putFile(t, m, bootIDPath, []byte("01020304-0506-0708-090a-0b0c0d0e0f10\n"))
	if got := readBootID(m); fmt.Sprintf("%x", got) != "0102030405060708090a0b0c0d0e0f10" {
		t.Errorf("got %x", got)
	}
	putFile(t, m, bootIDPath, []byte("nonsense"))
	if got := readBootID(m); got != [16]byte{} {
		t.Errorf("nonsense: %x", got)
	}
}

func FuzzDecodeCheckpoint(f *testing.F) {
	// Proves that no slot panics or allocates beyond its size, and that what
	// is read whole is written back the same.
	f.Add(encodeCheckpoint(someCheckpoint(1, 0, 1)))
	f.Add(encodeCheckpoint(someCheckpoint(2, 3, 1)))
	f.Add(encodeCheckpoint(someCheckpoint(3, 3, 2))[:200])
	f.Add(futureCheckpoint())
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCheckpoint(b)
		if err != nil {
			return
		}
		if len(c.records) > len(b)/checkpointRecordSize {
			t.Fatalf("%d records in %d bytes", len(c.records), len(b))
		}
		whole := c
		whole.partial = false
		if again, err := decodeCheckpoint(encodeCheckpoint(whole)); err != nil || !reflect.DeepEqual(again, whole) {
			t.Fatalf("written back: %v, %+v", err, again)
		}
	})
}

func FuzzDecodeClean(f *testing.F) {
	// Proves that no marker panics and that what is read is written the same.
	f.Add(encodeClean(cleanMarker{generation: 1, partitions: 2, wallMs: 3, brokerEpoch: 4}))
	f.Add([]byte("LTCL"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeClean(b)
		if err != nil {
			return
		}
		if again, err := decodeClean(encodeClean(m)); err != nil || again != m {
			t.Fatalf("written back: %v, %+v", err, again)
		}
	})
}

func TestCheckpointSyncIsFinal(t *testing.T) {
	// Proves that a failed sync of a checkpoint ends the directory whatever the
	// error, also one that would pass by for a write.
	for _, kind := range []disk.OpKind{disk.OpSyncData, disk.OpSyncDir} {
		m := disk.NewMem()
		d := openDir(t, m)
		l := openLog(t, d, Config{})
		m.SetFault(func(op disk.Op) error {
			if op.Kind == kind && (strings.HasPrefix(op.Path, "/data/checkpoint.") || op.Path == "/data") {
				return syscall.ENOSPC
			}
			return nil
		})
		mustAppend(t, l, batchOf(t, record.None, nil, "v"))
		waitDurable(t, l)
		d.keeper.bytes.Store(checkpointBytes)
		d.keeper.signal()
		eventually(t, "the failure", func() bool { return d.Failed() != nil })
		m.SetFault(nil)
		if err := d.Close(); !errors.Is(err, ErrFailed) {
			t.Errorf("%s: close gave %v", kind, err)
		}
	}
}
