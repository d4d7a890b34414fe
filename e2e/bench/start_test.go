package bench

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkStart measures the time from the start of the process to the ready file on an empty directory, of 20.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		var all []time.Duration
		for range 20 {
			l := startLeat(b)
			all = append(all, l.took)
			l.stop()
		}
		p50, worst := median(all), slices.Max(all)
		b.ReportMetric(ms(p50), "p50-ms")
		b.ReportMetric(ms(worst), "worst-ms")
		single(b, "start to ready, median of 20", "ms", goal{most: 40}, ms(p50))
		single(b, "start to ready, worst of 20", "ms", goal{most: 100}, ms(worst))
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

const gib = 1 << 30

// BenchmarkMemory measures the resident memory at rest, and after 1 GB in and out over the Kafka protocol.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		l := startLeat(b)
		settle(l)
		rest := l.resident()
		l.createTopic("fetch", map[string]string{"flush.messages": "1000000"})
		batch := noise(fetchBatch, fetchRecs)
		l.fill("fetch", batch, fetchFile/fetchBatch)
		for range gib / fetchFile / fetchConns {
			if err := everyConn(func() error { return readLeat(l.Kafka, 1<<20) }); err != nil {
				b.Fatal(err)
			}
		}
		l.createTopic("more", map[string]string{"flush.messages": "1000000"})
		l.fill("more", batch, (gib-fetchFile)/fetchBatch)
		settle(l)
		after := l.resident()
		b.ReportMetric(float64(rest)/1e6, "rest-MB")
		b.ReportMetric(float64(after)/1e6, "after-MB")
		single(b, "resident memory at rest", "MB", goal{most: 40}, float64(rest)/1e6)
		single(b, "resident memory after 1 GB in and out", "MB", goal{most: 60}, float64(after)/1e6)
		l.stop()
	}
}

// settle returns when the server has used next to no processor time for a while.
func settle(l *leat) { quiet(l.process) }

// quiet is settle for any server.
func quiet(p process) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for quiet, before := 0, p.cpu(); quiet < 3; {
		<-tick.C
		now := p.cpu()
		if now-before < time.Millisecond {
			quiet++
		} else {
			quiet = 0
		}
		before = now
	}
}
