package storage

import "github.com/prometheus/client_golang/prometheus"

// metrics are the counters of one data directory. They count whether or not
// a registerer was given.
type metrics struct {
	flushRounds   prometheus.Counter
	flushSeconds  prometheus.Histogram
	flushFiles    prometheus.Histogram
	flushSyncAlls prometheus.Counter
	writes        prometheus.Counter
	bytes         prometheus.Counter
	batches       prometheus.Counter
	rolls         prometheus.Counter
	recoveries    prometheus.Counter
	cutBytes      prometheus.Counter
	rebuilt       prometheus.Counter
	checkpoints   prometheus.Counter
	openFiles     prometheus.Gauge
	maxFiles      prometheus.Gauge
	mappings      prometheus.Gauge
	unflushed     prometheus.GaugeFunc
	writeSeconds  prometheus.Histogram
	logBytes      prometheus.Gauge
	segments      prometheus.Gauge
	diskTotal     prometheus.Gauge
	diskFree      prometheus.Gauge
	clockUnsteady prometheus.Gauge
	diskLow       prometheus.Gauge
	stalled       prometheus.GaugeFunc
	diskFull      prometheus.Gauge
	ballast       prometheus.Gauge
	compaction    compactMetrics
	scrubBytes    prometheus.Counter
	scrubBatches  prometheus.Counter
	scrubDamages  prometheus.Counter
	scrubPass     prometheus.Gauge
	holes         prometheus.Counter
}

// compactMetrics are those of compaction. The passes are the count of seconds.
type compactMetrics struct {
	seconds                      prometheus.Histogram
	read, written, kept, removed prometheus.Counter
}

// held counts segments that a log has from now on (sign 1) or has no more (-1).
func (m *metrics) held(segs []*segment, sign int) {
	var bytes int64
	for _, s := range segs {
		bytes += s.size
	}
	m.segments.Add(float64(sign * len(segs)))
	m.logBytes.Add(float64(int64(sign) * bytes))
}

func newMetrics(r prometheus.Registerer, unflushed, stalled func() float64) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "leat", Subsystem: "storage", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "leat", Subsystem: "storage", Name: name, Help: help})
	}
	histogram := func(name, help string, first, factor float64, n int) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "leat", Subsystem: "storage", Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(first, factor, n),
		})
	}
	m := &metrics{
		flushRounds:   counter("flush_rounds_total", "Rounds of the group-commit flusher."),
		flushSeconds:  histogram("flush_round_seconds", "Time that a flush round took.", 1e-4, 2, 16),
		flushFiles:    histogram("flush_round_files", "Logs made durable by a flush round.", 1, 4, 8),
		flushSyncAlls: counter("flush_syncfs_total", "Flush rounds that used one syncfs for all files."),
		writes:        counter("append_writes_total", "Writes to logs; appends that come together share one."),
		bytes:         counter("appended_bytes_total", "Bytes appended to logs."),
		batches:       counter("appended_batches_total", "Batches appended to logs."),
		rolls:         counter("segment_rolls_total", "Segments closed because the next one was begun."),
		recoveries:    counter("recoveries_total", "Logs that were scanned when they were opened."),
		cutBytes:      counter("recovery_cut_bytes_total", "Bytes cut from torn tails when logs were opened."),
		rebuilt:       counter("indexes_rebuilt_total", "Index files rebuilt because they were missing or damaged."),
		checkpoints:   counter("checkpoints_total", "Checkpoints written."),
		openFiles:     gauge("segment_open_files", "Segment files open now."),
		maxFiles:      gauge("segment_max_files", "Segment files that may stay open while nobody uses them."),
		mappings:      gauge("index_mappings", "Index files mapped now."),
		writeSeconds:  histogram("append_write_seconds", "Time that a write to a log took, into the page cache.", 1e-5, 2, 18),
		logBytes:      gauge("log_bytes", "Bytes of all batches in open logs."),
		segments:      gauge("segments", "Segments of open logs."),
		diskTotal:     gauge("disk_total_bytes", "Size of the file system that holds the data directory."),
		diskFree:      gauge("disk_free_bytes", "Room left on the file system that holds the data directory, measured each second."),
		clockUnsteady: gauge("clock_unsteady", "1 while the wall clock is not trusted after a step, and nothing is deleted by age."),
		scrubBytes:    counter("scrub_bytes_total", "Bytes of sealed segments that were read again to find damage."),
		scrubBatches:  counter("scrub_batches_total", "Batches of sealed segments that were read again and hold."),
		scrubDamages:  counter("scrub_damages_total", "Damages that were found in sealed segments and their indexes by reading them again; each is counted once in a run of the server."),
		scrubPass:     gauge("scrub_last_pass_timestamp_seconds", "When all sealed segments had been read again, as Unix time; 0 before the first time."),
		diskLow:       gauge("disk_low_water_bytes", "Free room below which records are refused."),
		stalled: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "leat", Subsystem: "storage", Name: "stalled_seconds",
			Help: "How long the longest write or sync that is under way has been waiting for the disk.",
		}, stalled),
		diskFull: gauge("full", "0 while records are taken, 1 while they are refused for lack of room, 2 when half of the reserve is gone, too."),
		ballast:  gauge("ballast_bytes", "Room set aside that is given back when the disk is full."),
		holes:    counter("log_holes_total", "Holes found in logs: records that are lost or cannot be trusted."),
		unflushed: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "leat", Subsystem: "storage", Name: "page_cache_unflushed_bytes",
			Help: "Bytes of page-cache-mode logs that no flush has covered yet.",
		}, unflushed),
	}
	m.compaction = compactMetrics{
		seconds: histogram("compaction_seconds", "Time that the compaction of a log took, where something was rewritten.", 1e-3, 4, 10),
		read:    counter("compaction_read_bytes_total", "Bytes of batches that compaction read; those that it reads twice count twice."),
		written: counter("compaction_written_bytes_total", "Bytes of batches that compaction wrote."),
		kept:    counter("compaction_kept_records_total", "Records that compaction looked at and kept."),
		removed: counter("compaction_removed_records_total", "Records that compaction removed."),
	}
	if r != nil {
		c := &m.compaction
		r.MustRegister(c.seconds, c.read, c.written, c.kept, c.removed)
		r.MustRegister(m.flushRounds, m.flushSeconds, m.flushFiles, m.flushSyncAlls, m.writes, m.bytes, m.batches, m.rolls, m.recoveries,
			m.cutBytes, m.rebuilt, m.checkpoints, m.openFiles, m.maxFiles, m.mappings, m.unflushed, m.writeSeconds, m.logBytes, m.segments,
			m.diskTotal, m.diskFree, m.clockUnsteady, m.scrubBytes, m.scrubBatches, m.scrubDamages, m.scrubPass,
			m.diskLow, m.diskFull, m.ballast, m.stalled, m.holes)
	}
	return m
}
