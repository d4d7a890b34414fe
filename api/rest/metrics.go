package rest

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	received prometheus.Counter
	sent     prometheus.Counter
	sendfile prometheus.Counter
	// recordsIn and recordsOut are the two directions of one counter.
	recordsIn  prometheus.Counter
	recordsOut prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, b *budget, conns *atomic.Int64) *metrics {
	records := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_http_records_total", Help: "Records produced (in) and delivered (out) over HTTP; raw batches out are not counted.",
	}, []string{"direction"})
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leat_http_requests_total", Help: "HTTP requests by route, method and class of status.",
		}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "leat_http_request_duration_seconds", Help: "Time to answer an HTTP request, waits included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"route", "method"}),
		received: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leat_http_received_bytes_total", Help: "Bytes of request bodies, as on the wire.",
		}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leat_http_sent_bytes_total", Help: "Bytes of response bodies.",
		}),
		sendfile: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leat_http_sendfile_bytes_total", Help: "Bytes of response bodies that went from segment file to socket in the kernel.",
		}),
		recordsIn:  records.WithLabelValues("in"),
		recordsOut: records.WithLabelValues("out"),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.duration, m.received, m.sent, m.sendfile, records,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "leat_http_in_flight_bytes", Help: "Bytes reserved for request bodies being handled.",
			}, func() float64 { return float64(b.used.Load()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "leat_http_connections", Help: "Open HTTP connections.",
			}, func() float64 { return float64(conns.Load()) }))
	}
	return m
}

// request counts one answered request. Its labels are bounded: pattern is of
// the route table or empty, and methods unknown to it are one.
func (m *metrics) request(pattern, method string, status int, took time.Duration, sent int64) {
	if pattern == "" {
		pattern = "none"
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodPut:
	default:
		method = "OTHER"
	}
	m.requests.WithLabelValues(pattern, method, class(status)).Inc()
	m.duration.WithLabelValues(pattern, method).Observe(took.Seconds())
	m.sent.Add(float64(sent))
}

func class(status int) string {
	switch status / 100 {
	case 2:
		return "2xx"
	case 3:
		return "3xx"
	case 4:
		return "4xx"
	case 5:
		return "5xx"
	}
	return "none"
}
