package storage

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"leat/storage/disk"
	"leat/storage/record"
)

// keyEpoch is a moment that the stamps of these tests are relative to.
var keyEpoch = time.UnixMilli(1_700_000_000_000)

// keyBatch is the sequence of a keyed batch of a request that was first tried so
// long after keyEpoch.
func keyBatch(id int64, epoch int16, first, last int32, base int64, tried time.Duration) sequence {
	return sequence{
		pid: FirstKeyID + id, epoch: epoch, first: first, last: last, base: base, lastOffset: base + int64(last-first),
		timestamp: -1, stamp: keyEpoch.Add(tried).UnixMilli(),
	}
}

// state is a readable form of what is known, by id.
func (k *keys) state(now time.Time) string {
	k.ring.mu.Lock()
	defer k.ring.mu.Unlock()
	var out []string
	for _, e := range k.list(now) {
		out = append(out, fmt.Sprintf("%d/%d@%d %v", e.id-FirstKeyID, e.epoch, (e.stamp-keyEpoch.UnixMilli())/1000, e.batches))
	}
	return strings.Join(out, "\n")
}

// consistent fails unless the ring's counts and links are those of its logs.
func (r *keyring) consistent(t *testing.T, logs ...*keys) {
	t.Helper()
	count, batches, known := 0, 0, 0
	var last *keyEntry
	for e := r.oldest; e != nil; e = e.newer {
		if e.older != last || e.owner.byID[e.id] != e || last != nil && last.written.After(e.written) {
			t.Fatalf("entry %d is out of place", e.id)
		}
		count, batches, last = count+1, batches+len(e.batches), e
	}
	for _, k := range logs {
		known += len(k.byID)
	}
	if last != r.newest || count != r.count || batches != r.batches || known != count {
		t.Fatalf("%d entries with %d batches, counted %d with %d, the logs have %d", count, batches, r.count, r.batches, known)
	}
}

// TestKeysCheck proves what becomes of a batch of a keyed request: what was written
// is a duplicate, what is missing is taken in any order, another request and a
// batch that was written in part are refused, and what has expired is unknown.
func TestKeysCheck(t *testing.T) {
	t.Parallel()
	k := newKeys(newKeyring(0, 0))
	at := func(d time.Duration) time.Time { return keyEpoch.Add(d) }
	k.record(keyBatch(1, 5, 0, 9, 100, 0), at(0))
	k.record(keyBatch(1, 5, 20, 29, 300, 0), at(time.Second))
	for _, tc := range []struct {
		s         sequence
		now       time.Duration
		duplicate int64 // -1 if it is none
		err       error
	}{
		{keyBatch(1, 5, 0, 9, 0, 0), time.Second, 100, nil},
		{keyBatch(1, 5, 20, 29, 0, 0), time.Second, 300, nil},
		{keyBatch(1, 5, 10, 19, 0, 0), time.Second, -1, nil},
		{keyBatch(1, 5, 30, 30, 0, 0), time.Second, -1, nil},
		{keyBatch(1, 5, 5, 12, 0, 0), time.Second, -1, ErrOutOfOrderSequence},
		{keyBatch(1, 5, 15, 20, 0, 0), time.Second, -1, ErrOutOfOrderSequence},
		{keyBatch(1, 5, 0, 29, 0, 0), time.Second, -1, ErrOutOfOrderSequence},
		{keyBatch(1, 5, 1, 8, 0, 0), time.Second, -1, ErrOutOfOrderSequence},
		{keyBatch(1, 6, 0, 9, 0, 0), time.Second, -1, ErrKeyReused},
		{keyBatch(1, 4, 40, 40, 0, 0), time.Second, -1, ErrKeyReused},
		{keyBatch(2, 5, 3, 4, 0, 0), time.Second, -1, nil},
		{keyBatch(1, 5, 0, 9, 0, 0), 10*time.Minute - 1, 100, nil},
		{keyBatch(1, 6, 0, 9, 0, 0), 10 * time.Minute, -1, nil},
		{keyBatch(1, 5, 0, 9, 0, 0), 10 * time.Minute, -1, nil},
	} {
		before := k.state(at(0))
		v, err := k.check(tc.s, at(tc.now))
		if v.duplicate != (tc.duplicate >= 0) || v.duplicate && (v.base != tc.duplicate || v.last != tc.duplicate+9) || !errors.Is(err, tc.err) {
			t.Errorf("%+v at %v: %+v, %v", tc.s, tc.now, v, err)
		}
		if k.state(at(0)) != before {
			t.Errorf("%+v: the check changed something", tc.s)
		}
	}
	k.record(keyBatch(1, 5, 10, 19, 200, 0), at(2*time.Second))
	if got, want := k.state(at(2*time.Second)), "1/5@0 [{0 9 100 -1} {10 19 200 -1} {20 29 300 -1}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	k.ring.consistent(t, k)
}

// TestKeysFold proves that a fold over all batches ends where the state is that
// saw them come: also where a key was used again after its time, or after the
// bound had pushed it out, for the same request or another.
func TestKeysFold(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 11))
		live := newKeys(newKeyring(time.Minute, 5))
		var log []sequence
		offset, now := int64(0), time.Duration(0)
		for range 200 {
			now += time.Duration(rng.IntN(4000)) * time.Millisecond
			at := keyEpoch.Add(now)
			s := keyBatch(rng.Int64N(9), int16(rng.IntN(2)), 0, int32(rng.IntN(3)), offset, now)
			if e := live.find(s.pid, at); e != nil && rng.IntN(3) > 0 {
				last := e.batches[len(e.batches)-1]
				s.epoch, s.first, s.last, s.stamp = e.epoch, last.Last+1, last.Last+1+s.last, e.stamp
			}
			s.lastOffset = s.base + int64(s.last-s.first)
			if v, err := live.check(s, at); err != nil || v.duplicate {
				continue
			}
			live.record(s, at)
			log = append(log, s)
			offset = s.lastOffset + 1
		}
		at := keyEpoch.Add(now)
		again := newKeys(newKeyring(time.Minute, 5))
		for _, s := range log {
			again.record(s, at)
		}
		if live.state(at) != again.state(at) {
			t.Fatalf("seed %d: it is\n%s\nthe fold finds\n%s", seed, live.state(at), again.state(at))
		}
		live.ring.consistent(t, live)
		again.ring.consistent(t, again)
	}
}

// TestKeysBounds proves that a topic's bound pushes out the oldest key, of
// whichever log and whoever came last, that the newest request is known as a
// whole however many batches it has, and that one log's keys go with it.
func TestKeysBounds(t *testing.T) {
	t.Parallel()
	r := newKeyring(time.Hour, 3)
	a, b := newKeys(r), newKeys(r)
	for i := range int64(3) {
		a.record(keyBatch(i, 0, 0, 0, i, time.Duration(i)*time.Second), keyEpoch.Add(time.Minute))
	}
	b.record(keyBatch(9, 0, 0, 0, 0, 5*time.Second), keyEpoch.Add(time.Minute))
	if got := a.state(keyEpoch) + "|" + b.state(keyEpoch); got != "1/0@1 [{0 0 1 -1}]\n2/0@2 [{0 0 2 -1}]|9/0@5 [{0 0 0 -1}]" {
		t.Errorf("after the fourth: %s", got)
	}
	r.consistent(t, a, b)
	for i := range int32(fewBatches + 10) {
		b.record(keyBatch(10, 0, i, i, int64(i)+1, 6*time.Second), keyEpoch.Add(time.Minute))
	}
	if e := b.byID[FirstKeyID+10]; len(e.batches) != fewBatches+10 || r.count != 1 {
		t.Errorf("a request of many batches: %d are known, of %d requests", len(e.batches), r.count)
	}
	b.record(keyBatch(11, 0, 0, 0, 1<<20, 7*time.Second), keyEpoch.Add(time.Minute))
	if _, there := b.byID[FirstKeyID+10]; there || r.count != 1 {
		t.Errorf("more batches than are remembered: %d requests", r.count)
	}
	a.record(keyBatch(12, 0, 0, 0, 0, 8*time.Second), keyEpoch.Add(time.Minute))
	b.clear()
	r.consistent(t, a, b)
	if a.empty() || !b.empty() {
		t.Error("the keys of the wrong log are gone")
	}
	r.configure(time.Second, 3)
	a.record(keyBatch(13, 0, 0, 0, 1, time.Minute), keyEpoch.Add(time.Minute))
	if r.count != 1 {
		t.Errorf("%d keys stayed behind a shorter time", r.count)
	}
}

// TestKeysReplace proves that what a log's fold has found takes its place between
// the keys of other logs by age, and nothing of before stays.
func TestKeysReplace(t *testing.T) {
	t.Parallel()
	now := keyEpoch.Add(time.Minute)
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 12))
		r := newKeyring(time.Hour, 12)
		a, b := newKeys(r), newKeys(r)
		found := newKeys(newKeyring(time.Hour, 12))
		fill := func(k *keys, n int, from int64) {
			for i := range n {
				age := time.Duration(i*7+rng.IntN(7)) * time.Second / 2
				k.record(keyBatch(from+int64(i), 0, 0, int32(rng.IntN(3)), int64(i*10), age), now)
			}
		}
		fill(a, rng.IntN(5), 0)
		fill(b, rng.IntN(8), 100)
		fill(found, rng.IntN(8), 200)
		want := found.state(now)
		count := r.count - len(a.byID) + found.ring.count
		a.replace(found, now)
		r.consistent(t, a, b)
		if count <= 12 && a.state(now) != want || r.count != min(count, 12) {
			t.Fatalf("seed %d: %d keys, it is\n%s\nwant of %d\n%s", seed, r.count, a.state(now), count, want)
		}
	}
}

// TestKeysSnapshot proves that a snapshot brings back every key with its batches,
// its stamp and its age, and leaves out the expired.
func TestKeysSnapshot(t *testing.T) {
	t.Parallel()
	k := newKeys(newKeyring(time.Hour, 0))
	offset := int64(0)
	for i := range int64(300) {
		tried := time.Duration(i) * 20 * time.Second
		for j := range int32(1 + i%7) {
			s := keyBatch(i, int16(i*97%(1<<15)), j*10, j*10+9, offset, tried)
			s.timestamp = []int64{-1, offset}[i%2]
			k.record(s, keyEpoch.Add(tried))
			offset += 10
		}
	}
	for _, age := range []time.Duration{0, time.Minute, 30 * time.Minute, time.Hour} {
		now := keyEpoch.Add(299*20*time.Second + age)
		b := encodeSnapshot(newProducers(0, 0), k, offset, now)
		s, err := decodeSnapshot(b, offset)
		if err != nil {
			t.Fatal(err)
		}
		is := newKeys(newKeyring(time.Hour, 0))
		is.load(s, now)
		if is.state(now) != k.state(now) {
			t.Fatalf("after %v it is\n%s\nwas\n%s", age, is.state(now), k.state(now))
		}
		is.ring.consistent(t, is)
		if again := encodeSnapshot(newProducers(0, 0), is, offset, now); !reflect.DeepEqual(again, b) {
			t.Error("written again it is another one")
		}
		for i := range min(len(b), 400) {
			if _, err := decodeSnapshot(b[:i], offset); !errors.Is(err, errBadSnapshot) {
				t.Fatalf("cut at %d: %v", i, err)
			}
		}
		if _, err := decodeSnapshot(encodeSnapshot(newProducers(0, 0), k, offset-1, now), offset-1); age < time.Hour && !errors.Is(err, errBadSnapshot) {
			t.Errorf("a batch past the end: %v", err)
		}
	}
}

// sendKeyed appends a keyed batch of two records, of a request that is tried now.
func sendKeyed(t *testing.T, l *Log, id int64, first int32) Appended {
	t.Helper()
	now := l.dir.opts.Now().UnixMilli()
	b := batchOf(t, record.None, []int64{now, now}, strings.Repeat("v", 100), "second")
	return mustAppend(t, l, withProducer(b, FirstKeyID+id, 3, first))
}

// TestKeysRestart proves that keys are known after a stop, a kill and a power cut,
// with snapshots and without, until their time is over by the broker's clock, and
// that real producers and keys do not push each other out.
func TestKeysRestart(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	var now atomic.Int64
	now.Store(keyEpoch.UnixMilli())
	clock := func(o *Options) { o.Now = func() time.Time { return time.UnixMilli(now.Load()) } }
	cfg := Config{SegmentBytes: 20_000, MaxKeys: 50}
	d := openDir(t, fs, clock)
	l := openLog(t, d, cfg)
	for i := range int64(60) {
		sendKeyed(t, l, i, 0)
		sendKeyed(t, l, i, 2)
		send(t, l, i, 0)
		now.Add(1000)
	}
	waitDurable(t, l)
	var want []KeyedRequest
	for i := range int64(60) {
		k, known := l.KeyedRequest(FirstKeyID + i)
		if known != (i >= 10) {
			t.Fatalf("key %d: known is %v", i, known)
		}
		want = append(want, k)
	}
	if n := len(l.Producers()); n != 60 || l.Keys() != 50 {
		t.Fatalf("%d producers and %d keys", n, l.Keys())
	}
	power, kill := fs.CrashClone(0, rand.New(rand.NewPCG(1, 1))), fs.CrashClone(1, nil)
	mustClose(t, d)
	bare := fs.CrashClone(1, nil)
	removeSnapshots(t, bare)
	for what, left := range map[string]*disk.Mem{"stop": fs, "kill": kill, "power cut": power, "no snapshots": bare} {
		now.Store(keyEpoch.UnixMilli() + 60_000)
		d := openDir(t, left, clock)
		l := openLog(t, d, cfg)
		for i, k := range want {
			if is, _ := l.KeyedRequest(FirstKeyID + int64(i)); !reflect.DeepEqual(is, k) {
				t.Errorf("%s: key %d is %+v, was %+v", what, i, is, k)
			}
		}
		// Key 20 was tried 20 s after the beginning.
		now.Store(keyEpoch.UnixMilli() + 620_000 - 1)
		_, at19 := l.KeyedRequest(FirstKeyID + 19)
		_, at20 := l.KeyedRequest(FirstKeyID + 20)
		now.Add(1)
		_, after := l.KeyedRequest(FirstKeyID + 20)
		if at19 || !at20 || after {
			t.Errorf("%s: expiry: %v %v %v", what, at19, at20, after)
		}
		mustClose(t, d)
	}
}

// TestKeysOutliveRetention proves that a key whose batches are all deleted is
// known after a restart.
func TestKeysOutliveRetention(t *testing.T) {
	t.Parallel()
	fs := disk.NewMem()
	d := openDir(t, fs)
	l := openLog(t, d, startConfig)
	wrote := sendKeyed(t, l, 1, 0)
	for range 12 {
		mustAppend(t, l, batchOf(t, record.None, nil, strings.Repeat("v", 150)))
	}
	waitDurable(t, l)
	start := l.Offsets().End - 1
	mustNil(t, l.SetStart(start))
	eventually(t, "the removal", func() bool {
		d.keeper.bytes.Store(checkpointBytes)
		d.keeper.signal()
		names, err := fs.List("/data/logs/" + testID.dirName())
		return err == nil && !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, segmentName(0, 0)) })
	})
	kill := fs.CrashClone(1, nil)
	mustClose(t, d)
	for what, left := range map[string]*disk.Mem{"stop": fs, "kill": kill} {
		d := openDir(t, left)
		l := openLogAt(t, d, startConfig, start)
		if at := sendKeyed(t, l, 1, 0); !at.Duplicate || at.Base != wrote.Base {
			t.Errorf("%s: %+v", what, at)
		}
		mustClose(t, d)
	}
}

// TestKeysMemory proves what 100,000 keys of one batch take, on the heap and in a
// snapshot: no more than documented.
func TestKeysMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector changes what memory is taken")
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	k := newKeys(newKeyring(0, 0))
	for i := range int64(defaultMaxKeys) {
		k.record(keyBatch(i*7919, int16(i%100), 0, 9, i*10, 0), keyEpoch)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	heap := float64(after.HeapAlloc-before.HeapAlloc) / defaultMaxKeys
	disk := float64(len(encodeSnapshot(newProducers(0, 0), k, 1<<40, keyEpoch))) / defaultMaxKeys
	t.Logf("a key takes %.0f bytes of memory and %.0f of a snapshot", heap, disk)
	if heap > 200 || disk > 60 {
		t.Errorf("a key takes %.0f bytes of memory and %.0f of a snapshot", heap, disk)
	}
	runtime.KeepAlive(k)
}
