package ws

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkFanOut delivers records to a thousand sockets in this process, whose
// readers are a part of the time. It counts deliveries.
func BenchmarkFanOut(b *testing.B) {
	for _, size := range []int{256, 8 << 10} {
		b.Run(fmt.Sprintf("%d", size), func(b *testing.B) {
			const sockets = 1000
			d := openDoor(b)
			d.topic("t", 1, "flush.messages", "9223372036854775807")
			var got atomic.Int64
			for range sockets {
				c := d.raw()
				c.write(maskedFrame(final|opText, []byte(`{"type":"subscribe","sub":"s","topic":"t"}`)))
				c.frame()
				if err := c.nc.SetReadDeadline(time.Time{}); err != nil {
					b.Fatal(err)
				}
				go func() {
					buf := make([]byte, 64<<10)
					for {
						n, err := c.nc.Read(buf)
						if err != nil {
							return
						}
						got.Add(int64(n))
					}
				}()
			}
			value := `"` + strings.Repeat("x", size-2) + `"`
			d.append("t", 0, value)
			var one int64
			eventually(b, "first record", func() bool {
				n := got.Load()
				defer func() { one = n }()
				return n > sockets*int64(size) && n == one
			})
			b.ResetTimer()
			for range b.N {
				before := got.Load()
				d.append("t", 0, value)
				for began := time.Now(); got.Load() < before+one; runtime.Gosched() {
					if time.Since(began) > patience {
						b.Fatal("a record did not arrive")
					}
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*sockets), "ns/delivery")
		})
	}
}
