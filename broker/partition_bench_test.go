package broker

import (
	"bytes"
	"testing"
	"time"

	"leat/auth"
	"leat/storage/disk"
	"leat/storage/record"
)

// benchTopic is a broker with one partition in page-cache mode.
func benchTopic(b *testing.B) *Broker {
	b.Helper()
	br, err := Open(b.Context(), Options{FS: disk.NewMem(), Path: "/data", Host: "h", Port: 1})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := br.Close(); err != nil {
			b.Error(err)
		}
	})
	spec := TopicSpec{Name: "t", Partitions: 1, ReplicationFactor: -1, Configs: map[string]string{"flush.messages": "10000000"}}
	if r := br.CreateTopics(b.Context(), auth.Anonymous, []TopicSpec{spec}, false)[0]; r.Err != nil {
		b.Fatal(r.Err)
	}
	return br
}

// BenchmarkAppend is one small batch on its way through a partition in page-cache
// mode: the append, the rise of the watermark, and with acks=all the wait for it.
func BenchmarkAppend(b *testing.B) {
	for _, acks := range []Acks{AcksLeader, AcksAll} {
		b.Run(map[Acks]string{AcksLeader: "acks=1", AcksAll: "acks=all"}[acks], func(b *testing.B) {
			br := benchTopic(b)
			var w record.Builder
			w.Reset(record.Options{})
			w.AddValue(time.Now().UnixMilli(), []byte("value"))
			built, err := w.Finish()
			if err != nil {
				b.Fatal(err)
			}
			one, built := make([]byte, len(built)), bytes.Clone(built)
			b.ReportAllocs()
			for b.Loop() {
				copy(one, built) // the log patches it
				req := ProduceRequest{Acks: acks, Timeout: time.Second, Batches: []ProduceBatch{{Topic: "t", Batch: one}}}
				if r := br.Produce(b.Context(), auth.Anonymous, &req).Wait(b.Context())[0]; r.Err != nil {
					b.Fatal(r.Err)
				}
			}
		})
	}
}

// BenchmarkAdvance is a watermark that is asked to rise, with a place to park
// and to take out again beside it.
func BenchmarkAdvance(b *testing.B) {
	p := benchTopic(b).partitions()[0]
	pl := &place{Waiter: &waiter{wake: func() {}}}
	b.ReportAllocs()
	for b.Loop() {
		p.park(pl, 1)
		p.advance()
		p.unpark(pl)
	}
}
