package rest

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"leat/auth"
	"leat/broker"
)

// set changes a config of the server while it runs.
func (d *door) set(name, value string) {
	d.t.Helper()
	err := d.broker.AlterBrokerConfigs(d.t.Context(), auth.Anonymous, d.broker.NodeID(), []broker.ConfigChange{{Name: name, Value: &value}}, false)
	if err != nil {
		d.t.Fatal(err)
	}
}

// A request beyond the rate is refused with when to come again, metered routes
// tell what is left, and what is no part of the API is not metered.
func TestRequestQuota(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for _, path := range []string{"/v1/topics", "/healthz"} {
		if a := d.do("GET", path, nil).want(t, 200, ""); a.Header.Get("RateLimit") != "" || a.Header.Get("RateLimit-Policy") != "" {
			t.Errorf("%s tells of a quota that is off: %v", path, a.Header)
		}
	}
	d.set("leat.quota.requests.default", "3")
	if a := d.do("GET", "/v1/topics", nil).want(t, 200, ""); a.Header.Get("RateLimit-Policy") != `"requests";q=3;w=1` || !strings.HasPrefix(a.Header.Get("RateLimit"), `"requests";r=2;t=1`) {
		t.Errorf("%v", a.Header)
	}
	served, refused := 0, 0
	for range 20 {
		a := d.do("GET", "/v1/topics", nil)
		if a.StatusCode == http.StatusOK {
			served++
			continue
		}
		refused++
		p := a.want(t, 429, "quota_rate").problem(t)
		if after, err := strconv.Atoi(a.Header.Get("Retry-After")); err != nil || after != 1 || p.RetryAfterMS < 1 || p.RetryAfterMS > 1000 || !p.Retriable || p.Limit != 3 {
			t.Fatalf("%v %s", a.Header, a.body)
		}
		if !strings.HasPrefix(a.Header.Get("RateLimit"), `"requests";r=0;`) {
			t.Fatalf("%v", a.Header)
		}
	}
	if served < 2 || refused < 10 {
		t.Errorf("%d served, %d refused", served, refused)
	}
	for range 10 {
		if a := d.do("GET", "/healthz", nil).want(t, 200, ""); a.Header.Get("RateLimit") != "" {
			t.Fatalf("%v", a.Header)
		}
	}
}

// Bytes are counted as they come and go: a request is served whole, and the next
// has to wait until it is paid for. Reading and writing have a quota each.
func TestByteQuotas(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	value := strings.Repeat("v", 100_000)
	d.set("quota.producer.default", "50000")
	d.do("POST", produceT, value, "Content-Type", mediaBytes).want(t, 200, "")
	a := d.do("POST", produceT, "v", "Content-Type", mediaBytes).want(t, 429, "quota_rate")
	if p := a.problem(t); a.Header.Get("RateLimit-Policy") != `"produce";q=50000;w=1;qu="content-bytes"` || p.RetryAfterMS < 500 || p.RetryAfterMS > 1000 {
		t.Errorf("%v %s", a.Header, a.body)
	}
	d.do("GET", fetchAll, nil).want(t, 200, "")
	d.set("quota.consumer.default", "60000")
	d.do("GET", fetchAll, nil).want(t, 200, "")
	d.do("GET", fetchAll, nil).want(t, 429, "quota_rate")
	d.do("GET", "/v1/topics", nil).want(t, 200, "")
	deadline := time.Now().Add(10 * time.Second)
	for d.do("POST", produceT, "v", "Content-Type", mediaBytes).StatusCode != http.StatusOK {
		if time.Now().After(deadline) {
			t.Fatal("the debt is not paid off")
		}
	}
}

// A stream is not refused in the middle: it sends no faster than the quota lets
// it, and beats in between.
func TestStreamQuota(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	atPace(d, func(p *pace) { p.beat = 50 * time.Millisecond })
	value := strings.Repeat("v", 20_000)
	for range 10 {
		d.do("POST", produceT, value, "Content-Type", mediaBytes).want(t, 200, "")
	}
	d.set("quota.consumer.default", "100000")
	begun := time.Now()
	l := d.follow(streamT0+"?from=earliest", mediaEvents)
	beats := 0
	for n := 0; n < 10; {
		line, err := l.line()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.HasPrefix(line, "data:") && len(line) > 20_000:
			n++
		case strings.HasPrefix(line, ": hb"):
			beats++
		}
	}
	if took := time.Since(begun); took < 500*time.Millisecond || took > 10*time.Second {
		t.Errorf("200 KB at 100 KB/s took %v", took)
	}
	if beats == 0 {
		t.Error("the stream was silent while it waited")
	}
}
