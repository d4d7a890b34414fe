package storage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"path"
	"strings"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

var optionsProof = disktest.Proof{Name: "TestOptionsChangeNoAnswer", Short: 2, Body: proveOptions}

// TestOptionsChangeNoAnswer proves that the same commands, which also compact the
// log, cut it, and damage and repair it, get the same answers whatever a log's
// options, whenever its process ends, by a stop or by kill -9, and however few
// files and mappings it may keep.
func TestOptionsChangeNoAnswer(t *testing.T) {
	unraced(t)
	disktest.Run(t, optionsProof)
}

// optionSet is one way to run a log.
type optionSet struct {
	cfg             Config
	files, mappings int // how many may stay open; 0: the usual number
	ends            int // one command in so many is followed by the process's end; 0: none
}

// optionSets are a plain one, which the others are compared with, and all that
// make something small, large or frequent.
func optionSets() []optionSet {
	sets := []optionSet{{cfg: Config{SegmentBytes: 1 << 30, Compact: true, TimestampAfter: math.MaxInt64}}}
	for _, segment := range []int64{1 << 10, 5000, 64 << 10, 1 << 30} {
		for _, interval := range []int{1, 1 << 10, 4 << 10, 64 << 10} {
			for _, flush := range []int64{1, 1 << 40} {
				n := len(sets)
				sets = append(sets, optionSet{
					cfg: Config{
						SegmentBytes: segment, IndexInterval: interval, FlushMessages: flush, HeaderOnly: n%3 == 0,
						SegmentIndexBytes: []int{24, 300, 1 << 20}[n%3], Compact: true, TimestampAfter: math.MaxInt64,
					},
					files: []int{0, minFiles, 1}[n%3], mappings: []int{0, 1}[n%2], ends: []int{0, 5, 20, 60}[n%4],
				})
			}
		}
	}
	return sets
}

// command is one step of the stream, and asks something.
type command func(*optionsRun) string

// proveOptions replays one stream of commands under every set.
func proveOptions(t testing.TB, seed uint64, c *disktest.Counts) {
	stream := newStream(t, rand.New(rand.NewPCG(seed, 0)), 80)
	var want []string
	for i, set := range optionSets() {
		got := replay(t, set, seed+uint64(i), stream, c)
		if i == 0 {
			want = got
		}
		for n := range want {
			if got[n] != want[n] {
				t.Fatalf("set %d, %+v: command %d is answered\n%s\nand otherwise\n%s", i, set, n, got[n], want[n])
			}
		}
	}
}

// newStream makes commands: appends, lookups by offset and time, a start that
// rises, leader epochs, compactions, cuts by offset and by epoch, and damage with
// its repair.
func newStream(t testing.TB, rng *rand.Rand, n int) (stream []command) {
	for range n {
		at, codec, share := rng.Int64N(1<<40), record.Codec(rng.IntN(5)), rng.Float64()
		switch kind := rng.IntN(40); {
		case kind < 20:
			one := func() keyed {
				return keyed{key: fmt.Sprint(rng.IntN(12)), value: strings.Repeat(string(rune('a'+kind)), rng.IntN(2000)), dead: rng.IntN(6) == 0, time: 1000 + rng.Int64N(1000)}
			}
			b := keyedBatch(t, codec, one(), one())
			if pid := rng.Int64N(6); pid < 3 {
				b = withProducer(b, 10+at, 0, 0) // each is another's
			}
			stream = append(stream, func(r *optionsRun) string { return r.append(bytes.Clone(b)) })
		case kind < 26:
			stream = append(stream, func(r *optionsRun) string { return r.read(share) })
		case kind < 31:
			stream = append(stream, func(r *optionsRun) string { return r.find(900 + at%1200) })
		case kind < 33:
			stream = append(stream, func(r *optionsRun) string { return r.raise(share / 2) })
		case kind < 34:
			stream = append(stream, func(r *optionsRun) string { r.epoch++; return "" })
		case kind < 36:
			stream = append(stream, (*optionsRun).compact)
		case kind < 37:
			stream = append(stream, func(r *optionsRun) string { return r.truncate(share) })
		case kind < 38:
			stream = append(stream, func(r *optionsRun) string { return r.truncateToEpoch(int32(at % 4)) })
		default:
			stream = append(stream, func(r *optionsRun) string { return r.damage(share) })
		}
	}
	return append(stream, (*optionsRun).everything)
}

// optionsRun is a log under one set of options.
type optionsRun struct {
	t     testing.TB
	set   optionSet
	fs    *disk.Mem
	dir   *Dir
	log   *Log
	start int64
	epoch int32
}

// replay is the answers to the stream.
func replay(t testing.TB, set optionSet, seed uint64, stream []command, c *disktest.Counts) []string {
	rng := rand.New(rand.NewPCG(seed, 1))
	r := &optionsRun{t: t, set: set, fs: disk.NewMem()}
	r.open()
	defer func() { _ = r.dir.Close() }()
	answers := make([]string, len(stream))
	for i, ask := range stream {
		answers[i] = ask(r)
		if set.ends > 0 && rng.IntN(set.ends) == 0 {
			r.end(rng.IntN(2) == 0)
			c.Crashes.Add(1)
		}
	}
	c.Operations.Add(int64(len(stream)))
	return answers
}

func (r *optionsRun) open() {
	r.dir = openDir(r.t, r.fs)
	if r.set.files > 0 {
		r.dir.files.budget = r.set.files
	}
	if r.set.mappings > 0 {
		r.dir.tables.limit = r.set.mappings
	}
	r.log = openLogAt(r.t, r.dir, r.set.cfg, r.start)
}

// end ends the process, by kill -9 or a stop, and starts another.
func (r *optionsRun) end(killed bool) {
	left := r.fs
	if killed {
		left = r.fs.CrashClone(1, nil)
	}
	if err := r.dir.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.fs = left
	r.open()
}

func (r *optionsRun) append(b record.Batch) string {
	at, err := r.log.Append(Append{Batch: b, Epoch: r.epoch})
	if err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprint(at.Base, at.Last, at.Start, at.Duplicate)
}

// next is the first batch that has records, from some share into the log on; nil
// if there is none. Which offsets share a batch that has lost all depends on the
// segments, so those are no place to do anything at.
func (r *optionsRun) next(share float64) record.Batch {
	o := r.log.Offsets()
	for from := o.Start + int64(share*float64(o.End-o.Start)); from < o.End; {
		b, _, err := record.Next(mustRead(r.t, r.log, from, 1, o.End))
		if err != nil {
			r.t.Fatal(err)
		}
		if b.Count() > 0 && b.BaseOffset() >= o.Start {
			return bytes.Clone(b)
		}
		from = b.NextOffset()
	}
	return nil
}

// read is the next batch.
func (r *optionsRun) read(share float64) string {
	o := r.log.Offsets()
	b := r.next(share)
	if b == nil {
		return fmt.Sprint(o.Start, o.End, "end")
	}
	return fmt.Sprint(o.Start, o.End, b.BaseOffset(), b.NextOffset(), b.LeaderEpoch(), b.Count())
}

func (r *optionsRun) find(ts int64) string {
	end := r.log.Offsets().End
	offset, at, err := r.log.FindTime(ts, end)
	newest, when, failed := r.log.FindMaxTime(end)
	if err = errors.Join(err, failed); err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprint(offset, at, newest, when)
}

func (r *optionsRun) raise(share float64) string {
	o := r.log.Offsets()
	r.start = o.Start + int64(share*float64(o.End-o.Start))
	if err := r.log.SetStart(r.start); err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprint(r.log.Offsets().Start)
}

// compact compacts all there is, whatever the segments.
func (r *optionsRun) compact() string {
	rollNow(r.t, r.log)
	mustCompact(r.t, r.log, NewCleaner(CleanerOptions{MapBytes: 1 << 20}))
	return r.everything()
}

func (r *optionsRun) truncate(share float64) string {
	b := r.next(max(share, 0.7))
	if b == nil {
		return "nothing"
	}
	if err := r.log.Truncate(context.WithoutCancel(r.t.Context()), b.BaseOffset()); err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprint(r.log.Offsets().End)
}

func (r *optionsRun) truncateToEpoch(below int32) string {
	found, end, err := r.log.TruncateToEpoch(context.WithoutCancel(r.t.Context()), r.epoch-below, math.MaxInt64)
	if err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprint(found, end)
}

// damage changes the next batch on the disk, which is noticed when it is read,
// or by the scan after a crash, and repairs the log. How much more is given up
// depends on the index, so that is cut off.
func (r *optionsRun) damage(share float64) string {
	b := r.next(max(share, 0.7))
	if b == nil {
		return "nothing"
	}
	at := b.BaseOffset()
	r.end(false)
	if err := r.dir.Close(); err != nil {
		r.t.Fatal(err)
	}
	hurt(r.t, r.fs, b)
	r.open()
	_, err := r.log.Read(at, 1, r.log.Offsets().End)
	if !errors.Is(err, ErrCorrupt) {
		r.t.Fatalf("offset %d was damaged, and is read: %v", at, err)
	}
	ctx := context.WithoutCancel(r.t.Context())
	done, err := r.log.Repair(ctx)
	if err != nil || len(done.Holes) != 1 || done.Holes[0].From != at || done.Holes[0].To < b.NextOffset() {
		r.t.Fatalf("offset %d was damaged: repaired %+v, %v", at, done, err)
	}
	if err := r.log.Truncate(ctx, at); err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprint(r.log.Offsets().End)
}

// hurt changes a bit of the batch in the .log that has it.
func hurt(t testing.TB, fs *disk.Mem, b record.Batch) {
	t.Helper()
	for _, s := range segmentsIn(fs, path.Join("/data", logsDir, testID.dirName())) {
		p := fileBytes(t, fs, s.logPath())
		if i := bytes.Index(p, b); i >= 0 {
			p[i+len(b)-1] ^= 1
			setFile(t, fs, s.logPath(), p)
			return
		}
	}
	t.Fatalf("no segment has the batch at %d", b.BaseOffset())
}

// everything is all the records of the log, with the epochs of their batches.
func (r *optionsRun) everything() string {
	o := r.log.Offsets()
	sum, n := crc32.New(castagnoli), 0
	var reader record.Reader
	defer reader.Close()
	for _, b := range readAll(r.t, r.log, o.Start, o.End, 1<<20) {
		if err := reader.Reset(b, math.MaxInt32); err != nil {
			r.t.Fatal(err)
		}
		var rec record.Record
		for reader.Next(&rec) == nil {
			if rec.Offset >= o.Start {
				n++
				_, _ = fmt.Fprintf(sum, "%d %d %d %q %q %t\n", rec.Offset, rec.Timestamp, b.LeaderEpoch(), rec.Key, rec.Value, rec.Value == nil) // a hash takes all
			}
		}
	}
	return fmt.Sprint(o.Start, o.End, n, sum.Sum32())
}
