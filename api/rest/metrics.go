package rest

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/api"
)

type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	received prometheus.Counter
	sent     prometheus.Counter
	sendfile prometheus.Counter
	refused  prometheus.Counter // connections
	// recordsIn and recordsOut are the two directions of one counter.
	recordsIn  prometheus.Counter
	recordsOut prometheus.Counter
	// recordsFailed is by the code of what was wrong.
	recordsFailed *prometheus.CounterVec
	// streams are by kind.
	streams map[string]*streamMetrics
}

func newMetrics(reg prometheus.Registerer, o *Options, conns *atomic.Int64, under *oldest) *metrics {
	records := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_http_records_total", Help: "Records produced (in) and delivered (out) over HTTP; raw batches out are not counted.",
	}, []string{"direction"})
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leat_http_requests_total", Help: "HTTP requests by route, method and class of status.",
		}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "leat_http_request_duration_seconds", Help: "Time to answer an HTTP request, waits included. Streams are not in it.",
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
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leat_http_refused_connections_total", Help: "Connections closed unserved, because there were as many as there may be.",
		}),
		recordsIn:  records.WithLabelValues("in"),
		recordsOut: records.WithLabelValues("out"),
		recordsFailed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leat_http_failed_records_total", Help: "Records produced over HTTP that were refused or could not be written, by the code of the problem; of a request that is refused for its records, the bad ones that its answer lists.",
		}, []string{"code"}),
		streams: newStreams(reg),
	}
	if reg != nil {
		reg.MustRegister(m.requests, m.duration, m.received, m.sent, m.sendfile, m.refused, records, m.recordsFailed,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "leat_http_in_flight_bytes", Help: "Bytes reserved for request bodies and WebSocket messages being handled.",
			}, func() float64 { return float64(o.Budget.Used()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "leat_http_answer_bytes", Help: "Bytes reserved for what answers to fetches are made in.",
			}, func() float64 { return float64(o.Answers.Used()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "leat_http_connections", Help: "Open HTTP connections.",
			}, func() float64 { return float64(conns.Load()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "leat_http_oldest_request_seconds", Help: "For how long the oldest HTTP request is under way, waits included; streams are not in it.",
			}, func() float64 { return under.age(time.Now()).Seconds() }))
	}
	return m
}

// streamMetrics are of the streams of one kind.
type streamMetrics struct {
	open     prometheus.Gauge
	records  prometheus.Counter
	duration prometheus.Observer
	ended    map[string]prometheus.Counter
}

// newStreams makes the metrics of streams. Every label value is there from the
// start.
func newStreams(reg prometheus.Registerer) map[string]*streamMetrics {
	open := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "leat_http_streams", Help: "Open streams by kind.",
	}, []string{"kind"})
	records := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_http_stream_records_total", Help: "Records sent on streams, or taken from produce streams, by kind; leat_http_records_total has them too.",
	}, []string{"kind"})
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "leat_http_stream_duration_seconds", Help: "How long streams lasted that ended, by kind. They are in no histogram of requests.",
		Buckets: []float64{1, 5, 15, 60, 300, 900, 1800, 3600},
	}, []string{"kind"})
	ended := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_http_streams_ended_total", Help: "Streams that ended, by kind and reason.",
	}, []string{"kind", "reason"})
	if reg != nil {
		reg.MustRegister(open, records, duration, ended)
	}
	out := map[string]*streamMetrics{}
	for _, kind := range []string{kindSSE, kindNDJSON, kindUpload} {
		m := &streamMetrics{
			open: open.WithLabelValues(kind), records: records.WithLabelValues(kind), duration: duration.WithLabelValues(kind),
			ended: map[string]prometheus.Counter{},
		}
		for _, why := range []string{endClient, endSlow, endLifetime, endDrain, endReset, endError, endComplete} {
			m.ended[why] = ended.WithLabelValues(kind, why)
		}
		out[kind] = m
	}
	return out
}

// failed counts records that could not be written.
func (m *metrics) failed(err error, records int) {
	m.recordsFailed.WithLabelValues(api.ProblemOf(err).Code).Add(float64(records))
}

// refusedRecords counts the records that a problem names.
func (m *metrics) refusedRecords(p *api.Problem) {
	for i := range p.Errors {
		m.recordsFailed.WithLabelValues(p.Errors[i].Code).Inc()
	}
}

// request counts one answered request. Its labels are bounded: pattern is of
// the route table or empty, and methods unknown to it are one.
func (m *metrics) request(pattern, method string, w *responseWriter, took time.Duration) {
	if pattern == "" {
		pattern = "none"
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodPut:
	default:
		method = "OTHER"
	}
	m.requests.WithLabelValues(pattern, method, class(w.status)).Inc()
	if !w.stream {
		m.duration.WithLabelValues(pattern, method).Observe(took.Seconds())
	}
	m.sent.Add(float64(w.sent - w.counted))
}

func class(status int) string {
	switch status / 100 {
	case 1:
		return "1xx"
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
