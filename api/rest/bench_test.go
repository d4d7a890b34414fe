package rest

import (
	"bufio"
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// nullWriter drops an answer, as cheaply as possible.
type nullWriter struct {
	header http.Header
	status int
}

func (w *nullWriter) Header() http.Header         { return w.header }
func (w *nullWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *nullWriter) WriteHeader(status int)      { w.status = status }

// benchProduce measures the door and what is below it, without a connection.
func benchProduce(b *testing.B, query, media string, body []byte, count int) {
	d := openDoor(b, func(s *setup) { s.Registerer = prometheus.NewRegistry() })
	d.topic("t", 1, "flush.messages", "9223372036854775807")
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, produceT+query, bytes.NewReader(body))
		r.Header.Set("Content-Type", media)
		w := &nullWriter{header: http.Header{}}
		d.server.Handler().ServeHTTP(w, r)
		if w.status != http.StatusOK {
			b.Fatalf("status %d", w.status)
		}
	}
	b.ReportMetric(float64(count)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkProduceLines is the fast lane: 1,000 lines of 100 bytes a request.
func BenchmarkProduceLines(b *testing.B) {
	benchProduce(b, "?value=line", mediaNDJSON, []byte(strings.Repeat(strings.Repeat("x", 99)+"\n", 1000)), 1000)
}

// BenchmarkProduceJSON is 1,000 records with a key and a small object each.
func BenchmarkProduceJSON(b *testing.B) {
	one := `{"key":"user-0042","value":{"id":73314510714175488,"name":"some name","tags":["a","b"],"ok":true,"n":1.25}},`
	body := `{"records":[` + strings.Repeat(one, 999) + strings.TrimSuffix(one, ",") + `]}`
	benchProduce(b, "", mediaJSON, []byte(body), 1000)
}

// BenchmarkFetchJSON reads 1,000 records of 100 bytes as JSON.
func BenchmarkFetchJSON(b *testing.B) {
	d := openDoor(b)
	d.topic("t", 1)
	d.do("POST", produceT+"?value=line", strings.Repeat(strings.Repeat("x", 99)+"\n", 1000), "Content-Type", mediaNDJSON).want(b, 200, "")
	b.SetBytes(100_000)
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, recordsOfT0+"offset=0", nil)
		w := &nullWriter{header: http.Header{}}
		d.server.Handler().ServeHTTP(w, r)
		if w.status != http.StatusOK {
			b.Fatalf("status %d", w.status)
		}
	}
}

// BenchmarkEventsCatchUp is one event stream over a connection, client
// included, that reads 50,000 records of 256 bytes each time.
func BenchmarkEventsCatchUp(b *testing.B) {
	for name, query := range map[string]string{"one": "?offset=0", "batch": "?offset=0&batch=true"} {
		b.Run(name, func(b *testing.B) {
			const count = 50_000
			d := openDoor(b)
			d.topic("t", 1)
			d.do("POST", produceT+"?value=line", strings.Repeat(strings.Repeat("x", 256)+"\n", count), "Content-Type", mediaNDJSON).want(b, 200, "")
			b.SetBytes(count * 256)
			for b.Loop() {
				l := d.follow(streamT0+query, mediaEvents)
				last := "id: " + strconv.Itoa(count)
				for {
					line, err := l.lines.ReadSlice('\n')
					if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
						b.Fatal(err)
					}
					if len(line) < 20 && strings.TrimSpace(string(line)) == last {
						break
					}
				}
				l.close()
			}
			b.ReportMetric(count*float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}
