package rest

import (
	"net/http"
	"testing"
	"time"
)

// gathered is the value of a metric without labels.
func (d *door) gathered(name string) float64 {
	d.t.Helper()
	families, err := d.reg.Gather()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	d.t.Fatalf("no metric %s", name)
	return 0
}

// The oldest request is the one that came first of those that are left.
func TestOldest(t *testing.T) {
	var o oldest
	at := time.Unix(100, 0)
	if age := o.age(at); age != 0 {
		t.Errorf("%v without any", age)
	}
	first, second := o.enter(at), o.enter(at.Add(time.Second))
	if age := o.age(at.Add(3 * time.Second)); age != 3*time.Second {
		t.Errorf("%v, want 3s", age)
	}
	o.leave(first)
	o.leave(first)
	if age := o.age(at.Add(3 * time.Second)); age != 2*time.Second {
		t.Errorf("%v, want 2s", age)
	}
	o.leave(second)
	if age := o.age(at.Add(3 * time.Second)); age != 0 {
		t.Errorf("%v once all have left", age)
	}
}

// A request that waits shows in the metric until it is answered; a stream does
// not.
func TestOldestRequest(t *testing.T) {
	const name = "leat_http_oldest_request_seconds"
	d := openDoor(t)
	d.topic("t", 1)
	l := d.follow(streamT0+"?stream=true", mediaNDJSON)
	l.control("position")
	until(t, "a stream is no request", func() bool { return d.gathered(name) == 0 })
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		d.do(http.MethodGet, streamT0+"?from=latest&wait=30", nil).want(t, 200, "")
	}()
	until(t, "the poll waits", func() bool { return d.gathered(name) > 0.02 })
	d.post(`[{"value":1}]`).want(t, 200, "")
	<-answered
	until(t, "none is left", func() bool { return d.gathered(name) == 0 })
}

// Records that are refused, and those that cannot be written, are counted by what
// was wrong with them, in a stream too.
func TestFailedRecords(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	d.topic("two", 1, "min.insync.replicas", "2")
	count := func(code string) float64 { return counted(t, d.server.metrics.recordsFailed.WithLabelValues(code)) }
	d.post(`[{"value":1},{"valu":1},{"value":1,"partition":7}]`).want(t, 400, "malformed_body")
	d.do("POST", "/v1/topics/two/records", `[{"value":1},{"value":2},{"value":3}]`, "Content-Type", mediaJSON).want(t, 503, "not_enough_replicas")
	d.raw(uploadOf("t", "{\"value\":1}\n{\n"))
	d.do("POST", "/v1/topics/two/records?stream=true", "{\"value\":1}\n", "Content-Type", mediaNDJSON)
	for code, want := range map[string]float64{"malformed_body": 2, "unknown_partition": 1, "not_enough_replicas": 4} {
		if got := count(code); got != want {
			t.Errorf("%s: %v records, want %v", code, got, want)
		}
	}
}
