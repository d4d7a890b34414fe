package kafka

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the door's own figures. Labels take values from fixed lists
// only: the API's name, ok or error, the way that bytes left, the reason of a
// refusal.
type metrics struct {
	connections prometheus.Gauge
	accepted    prometheus.Counter
	refused     *prometheus.CounterVec
	received    prometheus.Counter
	sent        prometheus.Counter
	viaSendfile prometheus.Counter
	viaCopy     prometheus.Counter
	requests    *prometheus.CounterVec
	seconds     *prometheus.HistogramVec
}

// apiMetrics are the figures of one API, looked up once.
type apiMetrics struct {
	ok, failed prometheus.Counter
	seconds    prometheus.Observer
}

func newMetrics(r prometheus.Registerer) *metrics {
	fetched := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_kafka_fetched_bytes_total",
		Help: "Record bytes sent to consumers, by sendfile(2) or copied through the process.",
	}, []string{"via"})
	m := &metrics{
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
		received: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leat_kafka_received_bytes_total",
			Help: "Bytes of whole requests received.",
		}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leat_kafka_sent_bytes_total",
			Help: "Bytes of responses sent.",
		}),
		viaSendfile: fetched.WithLabelValues("sendfile"),
		viaCopy:     fetched.WithLabelValues("copy"),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leat_kafka_requests_total",
			Help: "Requests answered, by API and by whether any part of the answer was an error.",
		}, []string{"api", "result"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "leat_kafka_request_seconds",
			Help:    "Time from the last byte of a request to the last byte of its answer, waits included.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 10),
		}, []string{"api"}),
	}
	if r != nil {
		r.MustRegister(m.connections, m.accepted, m.refused, m.received, m.sent, fetched, m.requests, m.seconds)
	}
	return m
}

func (m *metrics) api(name string) apiMetrics {
	return apiMetrics{
		ok:      m.requests.WithLabelValues(name, "ok"),
		failed:  m.requests.WithLabelValues(name, "error"),
		seconds: m.seconds.WithLabelValues(name),
	}
}

func (a *apiMetrics) done(began time.Time, failed bool) {
	if failed {
		a.failed.Inc()
	} else {
		a.ok.Inc()
	}
	a.seconds.Observe(time.Since(began).Seconds())
}
