package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
)

// logLines makes a batch of about 64 KiB of lines that compress like logs do.
func logLines(b *testing.B, codec Codec) (batch Batch, lines int) {
	b.Helper()
	var w Builder
	w.Reset(Options{Codec: codec})
	for w.Size() < 64<<10 {
		i := w.Count()
		w.AddValue(1_700_000_000_000+int64(i), fmt.Appendf(nil,
			"2026-01-02T03:04:05.%06dZ INFO request served method=GET path=/v1/topics/%d/records status=200", i*7919, i%31))
	}
	batch, err := w.Finish()
	if err != nil {
		b.Fatal(err)
	}
	return batch, w.Count()
}

func perRecord(b *testing.B, records int) {
	b.Helper()
	b.ReportMetric(float64(b.N)*float64(records)/b.Elapsed().Seconds(), "records/s")
}

func BenchmarkBuilderAddValue(b *testing.B) {
	for _, size := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			value := bytes.Repeat([]byte("x"), size)
			var w Builder
			w.Reset(Options{})
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if w.Size() > 1<<20-2000 {
					w.Reset(Options{})
				}
				w.AddValue(1_700_000_000_000+int64(i&1023), value)
			}
			perRecord(b, 1)
		})
	}
}

func BenchmarkBuilderFinish(b *testing.B) {
	for _, codec := range allCodecs {
		b.Run(codec.String(), func(b *testing.B) {
			plain, _ := logLines(b, None)
			var w Builder
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			for b.Loop() {
				w.Reset(Options{Codec: codec})
				w.AddValue(0, plain)
				if _, err := w.Finish(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, codec := range allCodecs {
		b.Run(codec.String(), func(b *testing.B) {
			batch, n := logLines(b, codec)
			plain, _ := logLines(b, None)
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Check(batch, Limits{}); err != nil {
					b.Fatal(err)
				}
			}
			perRecord(b, n)
		})
	}
}

func BenchmarkReader(b *testing.B) {
	for _, codec := range allCodecs {
		b.Run(codec.String(), func(b *testing.B) {
			batch, n := logLines(b, codec)
			plain, _ := logLines(b, None)
			var r Reader
			var rec Record
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Reset(batch, 0); err != nil {
					b.Fatal(err)
				}
				for {
					if err := r.Next(&rec); errors.Is(err, io.EOF) {
						break
					} else if err != nil {
						b.Fatal(err)
					}
				}
			}
			perRecord(b, n)
		})
	}
}
