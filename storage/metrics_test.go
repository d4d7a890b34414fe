package storage

import (
	"bytes"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"leat/storage/disk"
	"leat/storage/record"
)

// gathered is the value of a gauge or counter, or the count of a histogram.
func gathered(t testing.TB, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "leat_storage_"+name {
			continue
		}
		m := f.GetMetric()[0]
		if h := m.GetHistogram(); h != nil {
			return float64(h.GetSampleCount())
		}
		return m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// TestTotals proves that the gauges of bytes and segments follow appends, rolls,
// restarts, a start that is raised and the end of logs, that writes are timed,
// and that the disk's size and room are those that Usage tells.
func TestTotals(t *testing.T) {
	t.Parallel()
	m := disk.NewMem()
	m.SetFree(1 << 30)
	registry := prometheus.NewRegistry()
	open := func() *Dir {
		registry = prometheus.NewRegistry()
		return openDir(t, m, func(o *Options) { o.Registerer = registry })
	}
	d := open()
	want := func(what string, logs ...*Log) {
		t.Helper()
		var bytes, segments float64
		for _, l := range logs {
			bytes += float64(l.Size())
			segments += float64(l.Segments())
		}
		if b, s := gathered(t, registry, "log_bytes"), gathered(t, registry, "segments"); b != bytes || s != segments {
			t.Errorf("%s: %v bytes in %v segments, want %v in %v", what, b, s, bytes, segments)
		}
	}
	want("no log")
	l := openLog(t, d, startConfig)
	other, err := d.OpenLog(t.Context(), ID{Topic: TopicID{9}}, "other", Config{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	want("empty logs", l, other)
	b := batchOf(t, record.None, nil, strings.Repeat("v", 100), "second")
	for range 40 {
		mustAppend(t, l, bytes.Clone(b))
		mustAppend(t, other, bytes.Clone(b))
	}
	want("appended", l, other)
	if n := gathered(t, registry, "append_write_seconds"); n != 80 {
		t.Errorf("%v writes were timed", n)
	}
	waitDurable(t, l)
	eventually(t, "the seals", func() bool { return sealedCount(l) == l.Segments()-1 })
	before := gathered(t, registry, "log_bytes")
	if err := l.SetStart(50); err != nil {
		t.Fatal(err)
	}
	want("start raised", l, other)
	if gathered(t, registry, "log_bytes") >= before {
		t.Error("no bytes went")
	}
	if err := d.Remove(other); err != nil {
		t.Fatal(err)
	}
	want("removed", l)
	mustClose(t, d)
	want("closed")

	d = open()
	l = openLog(t, d, startConfig)
	want("opened again", l)
	total, free, err := d.Usage()
	if err != nil || free <= 0 || total <= free {
		t.Errorf("usage: %d of %d, %v", free, total, err)
	}
	d.room.measure()
	if gathered(t, registry, "disk_total_bytes") != float64(total) || gathered(t, registry, "disk_free_bytes") <= 0 {
		t.Errorf("disk metrics: %v of %v", gathered(t, registry, "disk_free_bytes"), gathered(t, registry, "disk_total_bytes"))
	}
	mustClose(t, d)
}
