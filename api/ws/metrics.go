package ws

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the door's counters. Labels take values from fixed sets only.
type metrics struct {
	opened    prometheus.Counter
	subs      prometheus.Gauge
	sentBytes prometheus.Counter
	recordsIn prometheus.Counter
	// recordsOut counts the records of data frames that were written.
	recordsOut prometheus.Counter
	produced   prometheus.Histogram
	in, out    [kinds]prometheus.Counter
	closes     [closeCauses]prometheus.Counter
	refusals   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, s *Server) *metrics {
	messages := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_ws_messages_total", Help: "WebSocket messages, by direction and type.",
	}, []string{"direction", "type"})
	records := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_ws_records_total", Help: "Records produced (in) and delivered (out) over WebSockets.",
	}, []string{"direction"})
	closes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "leat_ws_closes_total", Help: "WebSocket connections that ended, by cause.",
	}, []string{"cause"})
	m := &metrics{
		opened: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leat_ws_opened_total", Help: "WebSocket connections that were opened.",
		}),
		subs: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "leat_ws_subscriptions", Help: "Subscriptions of all WebSocket connections.",
		}),
		sentBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "leat_ws_sent_bytes_total", Help: "Bytes written to WebSocket connections, frame heads included.",
		}),
		recordsIn:  records.WithLabelValues("in"),
		recordsOut: records.WithLabelValues("out"),
		produced: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "leat_ws_produce_seconds", Help: "Time from a produce message to its receipts.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 16),
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "leat_ws_refused_total", Help: "WebSocket handshakes that were refused, by reason.",
		}, []string{"reason"}),
	}
	for k := range kinds {
		if k <= kindPing {
			m.in[k] = messages.WithLabelValues("in", kindNames[k])
		} else {
			m.out[k] = messages.WithLabelValues("out", kindNames[k])
		}
	}
	for c := range closeCauses {
		m.closes[c] = closes.WithLabelValues(closeNames[c])
	}
	if reg == nil {
		return m
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	reg.MustRegister(messages, records, closes, m.opened, m.subs, m.sentBytes, m.produced, m.refusals,
		gauge("leat_ws_connections", "Open WebSocket connections.", func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(len(s.mu.sessions))
		}),
		gauge("leat_ws_blocked_connections", "WebSocket connections whose client does not take what is sent.", func() float64 {
			return float64(s.blocked.Load())
		}),
		gauge("leat_ws_frame_delay_seconds", "How long data frames wait now for more records, by the load.", func() float64 {
			return s.pace.delay(s.now(), defaultDelay).Seconds()
		}),
	)
	return m
}

func (m *metrics) refused(code string) { m.refusals.WithLabelValues(refusal(code)).Inc() }
