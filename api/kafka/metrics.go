package kafka

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the door's own figures. Labels take values from fixed lists
// only: the API's name, ok or error, Kafka's error codes, the way that bytes
// left, the reason of a refusal. Bytes are counted by the connections and added
// up when they are asked for, see Server.traffic.
type metrics struct {
	connections prometheus.Gauge
	accepted    prometheus.Counter
	refused     *prometheus.CounterVec
	requests    *prometheus.CounterVec
	errors      *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
}

// apiMetrics are the figures of one API, looked up once.
type apiMetrics struct {
	ok, failed prometheus.Counter
	seconds    prometheus.Observer
}

func newMetrics() *metrics {
	return &metrics{
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "leat_kafka_connections",
			Help: "Open connections.",
		}),
		accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leat_kafka_accepted_connections_total",
			Help: "Connections accepted since the start.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leat_kafka_refused_connections_total",
			Help: "Connections closed without an answer, by reason.",
		}, []string{"reason"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leat_kafka_requests_total",
			Help: "Requests answered, by API and by whether any part of the answer was an error.",
		}, []string{"api", "result"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leat_kafka_errors_total",
			Help: "Errors in answers, each part counted, by Kafka's error code.",
		}, []string{"code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "leat_kafka_request_seconds",
			Help:    "Time from the last byte of a request to the last byte of its answer, waits included.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}, []string{"api"}),
	}
}

// register gives r the figures, and those that s adds up.
func (m *metrics) register(r prometheus.Registerer, s *Server) {
	const fetched = "leat_kafka_fetched_bytes_total"
	const fetchedHelp = "Record bytes sent to consumers, by sendfile(2) or copied through the process."
	sum := func(name, help, via string, of func(traffic) int64) prometheus.Collector {
		opts := prometheus.CounterOpts{Name: name, Help: help}
		if via != "" {
			opts.ConstLabels = prometheus.Labels{"via": via}
		}
		return prometheus.NewCounterFunc(opts, func() float64 { return float64(of(s.traffic())) })
	}
	r.MustRegister(
		m.connections, m.accepted, m.refused, m.requests, m.errors, m.seconds,
		sum("leat_kafka_received_bytes_total", "Bytes received.", "", func(t traffic) int64 { return t.received }),
		sum("leat_kafka_sent_bytes_total", "Bytes sent.", "", func(t traffic) int64 { return t.sent }),
		sum(fetched, fetchedHelp, "sendfile", func(t traffic) int64 { return t.spliced }),
		sum(fetched, fetchedHelp, "copy", func(t traffic) int64 { return t.copied }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "leat_kafka_in_flight_bytes",
			Help: "Buffers of requests that are being read; at the limit connections wait to be read from.",
		}, func() float64 { return float64(s.budget.inFlight()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "leat_kafka_in_flight_limit_bytes",
			Help: "The limit of leat_kafka_in_flight_bytes.",
		}, func() float64 { return float64(s.budget.max) }),
	)
}

// traffic is what connections have moved, in bytes. Fetched records are part of
// what was sent.
type traffic struct{ received, sent, spliced, copied int64 }

func (t *traffic) add(c *conn) {
	t.received += c.in.got.Load()
	t.sent += c.out.sent.Load()
	t.spliced += c.out.spliced.Load()
	t.copied += c.out.copied.Load()
}

func (m *metrics) api(name string) apiMetrics {
	return apiMetrics{
		ok:      m.requests.WithLabelValues(name, "ok"),
		failed:  m.requests.WithLabelValues(name, "error"),
		seconds: m.seconds.WithLabelValues(name),
	}
}

// refusedWith counts an error in an answer.
func (m *metrics) refusedWith(code int16) {
	m.errors.WithLabelValues(strconv.Itoa(int(code))).Inc()
}

func (a *apiMetrics) done(began time.Time, failed bool) {
	if failed {
		a.failed.Inc()
	} else {
		a.ok.Inc()
	}
	a.seconds.Observe(time.Since(began).Seconds())
}
