package kafka

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A client beyond a quota gets its answer at once, with the time for which its
// connection is not read then; and it is not.
func TestThrottle(t *testing.T) {
	d := startDoor(t, setup{configs: map[string]string{"quota.producer.default": "200000", "quota.consumer.default": "200000"}})
	c := d.dial(t)
	id := c.create("t", 1)
	records := batch(t, 0, strings.Repeat("v", 300_000))
	held := func(name string, throttle int32, since time.Time) {
		t.Helper()
		if throttle < 400 || throttle > 600 {
			t.Errorf("%s: throttled for %d ms", name, throttle)
		}
		if took := time.Since(since); took > 300*time.Millisecond {
			t.Errorf("%s: answered after %v", name, took)
		}
		ask[*kmsg.MetadataResponse](c, kmsg.NewPtrMetadataRequest(), 9)
		if took := time.Since(since); took < 400*time.Millisecond || took > 5*time.Second {
			t.Errorf("%s: the next request was answered after %v", name, took)
		}
	}
	begun := time.Now()
	p := ask[*kmsg.ProduceResponse](c, produceRequest("t", 0, -1, records), 9)
	if p.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatalf("%+v", p)
	}
	held("produce", p.ThrottleMillis, begun)
	begun = time.Now()
	f := ask[*kmsg.FetchResponse](c, fetchRequest("t", id, 0, 0), 17)
	if n := len(f.Topics[0].Partitions[0].RecordBatches); n != len(records) {
		t.Fatalf("%d bytes", n)
	}
	held("fetch", f.ThrottleMillis, begun)
}

// Requests have a quota too, which every API tells of.
func TestThrottleRequests(t *testing.T) {
	c := startDoor(t, setup{configs: map[string]string{"leat.quota.requests.default": "10"}}).dial(t)
	begun, throttled := time.Now(), int32(0)
	for range 20 {
		throttled = max(throttled, ask[*kmsg.MetadataResponse](c, kmsg.NewPtrMetadataRequest(), 9).ThrottleMillis)
	}
	if took := time.Since(begun); took < 800*time.Millisecond || took > 10*time.Second || throttled < 50 || throttled > 200 {
		t.Errorf("20 requests took %v, throttled for up to %d ms", took, throttled)
	}
}

// A server that stops does not wait for those who are held back.
func TestThrottleDrain(t *testing.T) {
	d := startDoor(t, setup{configs: map[string]string{"quota.producer.default": "1"}})
	c := d.dial(t)
	c.create("t", 1)
	if p := ask[*kmsg.ProduceResponse](c, produceRequest("t", 0, -1, batch(t, 0, "value")), 9); p.ThrottleMillis != int32(maxThrottle/time.Millisecond) {
		t.Errorf("throttled for %d ms", p.ThrottleMillis)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	begun := time.Now()
	if err := d.Shutdown(ctx); err != nil || time.Since(begun) > 5*time.Second {
		t.Errorf("shutdown after %v: %v", time.Since(begun), err)
	}
}
