package record

import (
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
)

// place is what Times gives of a record.
type place struct{ offset, timestamp int64 }

func timesOf(b Batch, maxExpanded int64) (got []place, err error) {
	err = Times(b, maxExpanded, func(offset, timestamp int64) bool {
		got = append(got, place{offset, timestamp})
		return true
	})
	return got, err
}

// placesOf reads the same with Reader; opened says that Reset took the batch.
func placesOf(b Batch, maxExpanded int64) (got []place, opened bool, err error) {
	var r Reader
	defer r.Close()
	if err := r.Reset(b, maxExpanded); err != nil {
		return nil, false, err
	}
	for {
		var rec Record
		err := r.Next(&rec)
		if errors.Is(err, io.EOF) {
			return got, true, nil
		}
		if err != nil {
			return got, true, err
		}
		got = append(got, place{rec.Offset, rec.Timestamp})
	}
}

// Times gives the offsets and timestamps that Reader gives, for random batches
// of every codec: short and long records, gaps, log append time.
func TestTimes(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 40 {
		var payload []byte
		var want []place
		base, last := rng.Int64N(1<<40), -1
		count := rng.IntN(30)
		for range count {
			last += 1 + rng.IntN(3)
			size := rng.IntN(200)
			if rng.IntN(10) == 0 {
				size = expandBuffer - 20 + rng.IntN(2*expandBuffer)
			}
			value := string(make([]byte, size))
			delta := rng.IntN(2000) - 1000
			payload = append(payload, rec(delta, last, -1, size, value, 1, 1, "h", size, value)...)
			want = append(want, place{base + int64(last), 5000 + int64(delta)})
		}
		plain := remade(build(t, None, Record{}), payload)
		binary.BigEndian.PutUint32(plain[offCount:], uint32(count))
		binary.BigEndian.PutUint32(plain[offLastDelta:], uint32(max(last, 0)+rng.IntN(2)))
		binary.BigEndian.PutUint64(plain[offBaseTime:], 5000)
		plain.SetBaseOffset(base)
		for _, codec := range allCodecs {
			b := compressed(t, plain, codec)
			for _, appendTime := range []bool{false, true} {
				b.SetMaxTimestamp(7777, appendTime)
				want := slices.Clone(want)
				for i := range want {
					if appendTime {
						want[i].timestamp = 7777
					}
				}
				got, err := timesOf(b, 0)
				if err != nil || !slices.Equal(got, want) {
					t.Fatalf("%s, log append time %v: %v, %v, want %v", codec, appendTime, got, err, want)
				}
				if read, _, err := placesOf(b, 0); err != nil || !slices.Equal(got, read) {
					t.Fatalf("%s, log append time %v: %v, Reader %v, %v", codec, appendTime, got, read, err)
				}
			}
		}
	}
}

// Times ends where fn has enough: what is behind is not expanded, so that
// neither its damage nor the limit matters, and the decoder may be used again.
func TestTimesStops(t *testing.T) {
	records := []Record{{Timestamp: 1}, {Timestamp: 2}, {Timestamp: 3, Value: make([]byte, 4*expandBuffer)}}
	for _, codec := range allCodecs {
		b := build(t, codec, records...)
		short := b
		if codec == None {
			short = remade(b, b.Payload()[:len(b.Payload())-1])
		}
		var got []place
		limit := int64(2 * expandBuffer)
		if codec == Snappy {
			limit = 0 // A block says beforehand what it expands to.
		}
		for range 2 {
			got = got[:0]
			if err := Times(short, limit, func(offset, timestamp int64) bool {
				got = append(got, place{offset, timestamp})
				return offset < 1
			}); err != nil || !slices.Equal(got, []place{{0, 1}, {1, 2}}) {
				t.Errorf("%s: %v, %v", codec, got, err)
			}
		}
		if got, err := timesOf(b, 0); err != nil || len(got) != 3 {
			t.Errorf("%s: after it: %v, %v", codec, got, err)
		}
	}
}

// Times takes little memory for records that expand to much, and refuses them
// beyond its limit.
func TestTimesMemory(t *testing.T) {
	for _, codec := range []Codec{Gzip, Snappy, LZ4, Zstd} {
		for _, valueSize := range []int64{1 << 10, 66 << 20} {
			b := bomb(t, codec, valueSize)
			if got := allocated(func() {
				var n int32
				err := Times(b, 128<<20, func(int64, int64) bool { n++; return true })
				if err != nil || n != b.Count() {
					t.Errorf("%s, values of %d bytes: %d records, %v", codec, valueSize, n, err)
				}
			}); got > windows[codec]+2*expandBuffer {
				t.Errorf("%s, values of %d bytes: allocated %d bytes", codec, valueSize, got)
			}
			if _, err := timesOf(b, 0); !errors.Is(err, ErrTooLarge) {
				t.Errorf("%s, values of %d bytes: %v, want ErrTooLarge", codec, valueSize, err)
			}
		}
	}
}

// FuzzTimes: whatever the bytes, Times takes what Reader takes and gives the
// same; where Reader fails at a record, Times gives the records before it and
// fails too.
func FuzzTimes(f *testing.F) {
	addSeeds(f)
	gaps := remade(build(f, None, make([]Record, 10)...), append(rec(3, 2, -1, -1, 0), rec(-1, 9, -1, -1, 0)...))
	binary.BigEndian.PutUint32(gaps[offCount:], 2)
	gaps.SetMaxTimestamp(77, true)
	for _, codec := range allCodecs {
		f.Add([]byte(compressed(f, gaps, codec)))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		p = slices.Clone(p)
		if len(p) >= HeaderSize {
			binary.BigEndian.PutUint32(p[offLength:], uint32(len(p)-lengthPrefix))
		}
		const limit = 1 << 20
		want, opened, wantErr := placesOf(p, limit)
		got, err := timesOf(p, limit)
		if _, ok := errors.AsType[*Error](err); err != nil && !ok {
			t.Fatalf("error of unknown type: %v", err)
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, Reader %v", err, wantErr)
		}
		if opened && !slices.Equal(got, want) {
			t.Fatalf("%v and %v, Reader %v and %v", got, err, want, wantErr)
		}
	})
}
