package storage

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

var optionsProof = disktest.Proof{Name: "TestOptionsChangeNoAnswer", Short: 3, Body: proveOptions}

// TestOptionsChangeNoAnswer proves that the same commands get the same answers
// whatever a log's options, whenever its process ends, by a stop or by kill -9,
// and however few files and mappings it may keep.
func TestOptionsChangeNoAnswer(t *testing.T) { disktest.Run(t, optionsProof) }

// optionSet is one way to run a log.
type optionSet struct {
	cfg             Config
	files, mappings int // how many may stay open; 0: the usual number
	ends            int // one command in so many is followed by the process's end; 0: none
}

// optionSets are a plain one, which the others are compared with, and all that
// make something small, large or frequent.
func optionSets() []optionSet {
	sets := []optionSet{{cfg: Config{SegmentBytes: 1 << 30}}}
	for _, segment := range []int64{1 << 10, 5000, 64 << 10, 1 << 30} {
		for _, interval := range []int{1, 1 << 10, 4 << 10, 64 << 10} {
			for _, flush := range []int64{1, 1 << 40} {
				n := len(sets)
				sets = append(sets, optionSet{
					cfg: Config{
						SegmentBytes: segment, IndexInterval: interval, FlushMessages: flush, HeaderOnly: n%3 == 0,
						SegmentIndexBytes: []int{24, 300, 1 << 20}[n%3],
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
// rises.
func newStream(t testing.TB, rng *rand.Rand, n int) (stream []command) {
	for range n {
		at, codec, share := rng.Int64N(1<<40), record.Codec(rng.IntN(5)), rng.Float64()
		switch kind := rng.IntN(20); {
		case kind < 11:
			times := []int64{1000 + rng.Int64N(1000), 1000 + rng.Int64N(1000)}
			b := batchOf(t, codec, times, string(bytes.Repeat([]byte{byte(kind)}, rng.IntN(2000))), "b")
			if pid := rng.Int64N(6); pid < 3 {
				b = withProducer(b, 10+at, 0, 0) // each is another's
			}
			stream = append(stream, func(r *optionsRun) string { return r.append(bytes.Clone(b)) })
		case kind < 15:
			stream = append(stream, func(r *optionsRun) string { return r.read(share) })
		case kind < 18:
			stream = append(stream, func(r *optionsRun) string { return r.find(900 + at%1200) })
		default:
			stream = append(stream, func(r *optionsRun) string { return r.raise(share / 2) })
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
	at := mustAppend(r.t, r.log, b)
	return fmt.Sprint(at.Base, at.Last, at.Start, at.Duplicate)
}

// read is the batch that has an offset some share into the log. Where it is
// below the start, the rest of what is in one section is not compared: that
// depends on the segments.
func (r *optionsRun) read(share float64) string {
	o := r.log.Offsets()
	from := o.Start + int64(share*float64(o.End-o.Start))
	if from == o.End {
		return "end"
	}
	b, _, err := record.Next(mustRead(r.t, r.log, from, 1, o.End))
	if err != nil {
		r.t.Fatal(err)
	}
	return fmt.Sprint(o.Start, o.End, b.BaseOffset(), crc32.Checksum(b, castagnoli))
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

// everything is all the bytes of the log.
func (r *optionsRun) everything() string {
	o := r.log.Offsets()
	all := slices.Concat(readAll(r.t, r.log, o.Start, o.End, 1<<20)...)
	return fmt.Sprint(o.Start, o.End, len(all), crc32.Checksum(all, castagnoli))
}
