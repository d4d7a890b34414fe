package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Places in the header of a record batch of format v2.
const (
	atBaseOffset   = 0
	atLength       = 8
	atEpoch        = 12
	atMagic        = 16
	atCRC          = 17
	atAttributes   = 21
	atLastDelta    = 23
	atMaxTimestamp = 35
	atCount        = 57
	batchHeader    = 61
)

// codecs are the compression codecs of the format, by their number.
var codecs = []struct {
	name   string
	number kgo.CompressionCodecType
	codec  kgo.CompressionCodec
}{
	{"none", kgo.CodecNone, kgo.NoCompression()},
	{"gzip", kgo.CodecGzip, kgo.GzipCompression()},
	{"snappy", kgo.CodecSnappy, kgo.SnappyCompression()},
	{"lz4", kgo.CodecLz4, kgo.Lz4Compression()},
	{"zstd", kgo.CodecZstd, kgo.ZstdCompression()},
}

// rec is one record of a batch that a test builds; nil is null.
type rec struct {
	ts         int64
	key, value []byte
}

// values makes records of values with one time.
func values(ts int64, all ...string) []rec {
	recs := make([]rec, len(all))
	for i, v := range all {
		recs[i] = rec{ts: ts, value: []byte(v)}
	}
	return recs
}

// encode makes a batch as a producer sends it. edits see the header before the checksum is made.
func encode(t testing.TB, codec kgo.CompressionCodec, recs []rec, edits ...func(*kmsg.RecordBatch)) []byte {
	t.Helper()
	var body []byte
	last := recs[0].ts
	for i, r := range recs {
		body = appendRecord(body, i, r.ts-recs[0].ts, r.key, r.value)
		last = max(last, r.ts)
	}
	compressor, err := kgo.DefaultCompressor(codec)
	if err != nil {
		t.Fatal(err)
	}
	number := kgo.CodecNone
	if compressor != nil {
		body, number = compressor.Compress(new(bytes.Buffer), body)
	}
	return seal(number, len(recs), recs[0].ts, last, body, edits...)
}

func appendRecord(dst []byte, i int, tsDelta int64, key, value []byte) []byte {
	r := kmsg.Record{TimestampDelta64: tsDelta, OffsetDelta: int32(i), Key: key, Value: value}
	r.Length = int32(len(r.AppendTo(nil)) - 1)
	return r.AppendTo(dst)
}

// seal puts the header before the records.
func seal(codec kgo.CompressionCodecType, count int, first, last int64, body []byte, edits ...func(*kmsg.RecordBatch)) []byte {
	b := kmsg.RecordBatch{
		Length: int32(batchHeader - 12 + len(body)), PartitionLeaderEpoch: -1, Magic: 2, Attributes: int16(codec),
		LastOffsetDelta: int32(count - 1), FirstTimestamp: first, MaxTimestamp: last,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(count), Records: body,
	}
	for _, edit := range edits {
		edit(&b)
	}
	p := b.AppendTo(nil)
	sum(p)
	return p
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sum writes the checksum of a batch into it.
func sum(p []byte) {
	binary.BigEndian.PutUint32(p[atCRC:], crc32.Checksum(p[atAttributes:], castagnoli))
}

// batch is one whole record batch.
type batch []byte

func (b batch) base() int64  { return int64(binary.BigEndian.Uint64(b[atBaseOffset:])) }
func (b batch) count() int   { return int(binary.BigEndian.Uint32(b[atCount:])) }
func (b batch) maxTS() int64 { return int64(binary.BigEndian.Uint64(b[atMaxTimestamp:])) }
func (b batch) next() int64  { return b.base() + int64(binary.BigEndian.Uint32(b[atLastDelta:])) + 1 }

// sameButPatched reports whether b differs from what was sent only in the bytes that a broker sets: 0–7 and 12–15.
func (b batch) sameButPatched(sent []byte) error {
	if len(b) != len(sent) {
		return fmt.Errorf("%d bytes, sent %d", len(b), len(sent))
	}
	for i := range b {
		if b[i] != sent[i] && i >= atLength && (i < atEpoch || i >= atMagic) {
			return fmt.Errorf("byte %d is %#x, sent %#x", i, b[i], sent[i])
		}
	}
	return nil
}

var errTorn = errors.New("a batch is cut")

// split cuts bytes into whole batches, and checks magic and checksum of each.
func split(p []byte) ([]batch, error) {
	var all []batch
	for len(p) > 0 {
		if len(p) < batchHeader {
			return all, errTorn
		}
		size := 12 + int(binary.BigEndian.Uint32(p[atLength:]))
		if size < batchHeader || size > len(p) {
			return all, errTorn
		}
		b := batch(p[:size])
		if b[atMagic] != 2 {
			return all, fmt.Errorf("magic %d", b[atMagic])
		}
		if crc := binary.BigEndian.Uint32(b[atCRC:]); crc != crc32.Checksum(b[atAttributes:], castagnoli) {
			return all, fmt.Errorf("batch at offset %d: wrong checksum", b.base())
		}
		all, p = append(all, b), p[size:]
	}
	return all, nil
}

// mustSplit is split for bytes that must be whole.
func mustSplit(t testing.TB, p []byte) []batch {
	t.Helper()
	all, err := split(p)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// stored are the batches at the start of a .log file; the file may be longer than what is written of it.
func stored(t testing.TB, p []byte) []batch {
	t.Helper()
	all, err := split(p)
	rest := p
	for _, b := range all {
		rest = rest[len(b):]
	}
	if err != nil && len(bytes.Trim(rest, "\x00")) > 0 {
		t.Fatal(err)
	}
	return all
}

// records decodes the records of the batch.
func (b batch) records(t testing.TB) []kmsg.Record {
	t.Helper()
	body, err := kgo.DefaultDecompressor().Decompress(b[batchHeader:], kgo.CompressionCodecType(b[atAttributes+1]&7))
	if err != nil {
		t.Fatal(err)
	}
	out := make([]kmsg.Record, b.count())
	for i := range out {
		length, n := binary.Varint(body)
		if n <= 0 || int(length)+n > len(body) {
			t.Fatalf("batch at offset %d: a record is cut", b.base())
		}
		if err := out[i].ReadFrom(body[:int(length)+n]); err != nil {
			t.Fatal(err)
		}
		body = body[int(length)+n:]
	}
	return out
}

// values decodes the records of the batch and returns their values.
func (b batch) values(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, r := range b.records(t) {
		out = append(out, string(r.Value))
	}
	return out
}
