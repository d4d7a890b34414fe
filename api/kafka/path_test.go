package kafka

import (
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/auth"
)

// The path of a fetch through the door costs no memory of its own, whatever
// the broker's part costs: request, call, answer and figures are all used again.
func TestFetchPathAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes pools forget")
	}
	const section = 256 << 10
	for _, version := range []int16{4, 11, 12, 13, 17} {
		l := startFetchLoop(t, version, section)
		var cl call
		fc := new(fetchCall)
		cl.state = fc
		if err := fc.decode(new(interner), l.body, version); err != nil {
			t.Fatal(err)
		}
		broker := testing.AllocsPerRun(500, func() {
			for _, r := range l.d.opts.Broker.Fetch(context.Background(), auth.Anonymous, &fc.query) {
				if r.Err != nil || r.Section.Len() < section/2 {
					t.Fatalf("version %d: %+v", version, r)
				}
				r.Section.Release()
			}
		})
		all := testing.AllocsPerRun(500, func() {
			if err := l.once(); err != nil {
				t.Fatal(err)
			}
		})
		if all > broker {
			t.Errorf("version %d: %v allocations, %v of them the broker's", version, all, broker)
		}
	}
}

// Beyond the limit of bytes in flight connections are not read from, and small
// requests pass all the same; what waited goes on when there is room.
func TestInFlightLimit(t *testing.T) {
	d := startDoor(t, setup{opts: Options{MaxInFlightBytes: 128 << 10}})
	slow, next, small := d.dial(t), d.dial(t), d.dial(t)
	small.create("t", 1)
	large := produceRequest("t", 0, -1, batch(t, 0, string(make([]byte, 1000<<10))))
	large.SetVersion(9)
	wire := slow.frame(large)
	slow.send(wire[:len(wire)/2])
	const gauge = "leat_kafka_in_flight_bytes"
	eventually(t, "half a request is in", func() bool { return d.counter(t, gauge) >= 512<<10 })
	medium := produceRequest("t", 0, -1, batch(t, 0, string(make([]byte, 100<<10))))
	medium.SetVersion(9)
	next.send(next.frame(medium))
	eventually(t, "the next one waits", func() bool {
		d.budget.mu.Lock()
		defer d.budget.mu.Unlock()
		return len(d.budget.mu.waiting) == 1
	})
	if p := small.produce(9, "t", 0, batch(t, 0, "a")); p.ErrorCode != 0 || p.BaseOffset != 0 {
		t.Errorf("small request: %+v", p)
	}
	slow.send(wire[len(wire)/2:])
	for i, c := range []*client{slow, next} {
		corr, body := c.recv()
		resp := kmsg.NewPtrProduceResponse()
		resp.SetVersion(9)
		if p := decode(t, resp, body).Topics[0].Partitions[0]; corr != c.corr || p.ErrorCode != 0 || p.BaseOffset != int64(i+1) {
			t.Errorf("request %d: %+v", i, p)
		}
	}
	if n := d.counter(t, gauge); n != 0 {
		t.Errorf("%v bytes in flight at the end", n)
	}
	if n := d.counter(t, "leat_kafka_in_flight_limit_bytes"); n != 128<<10 {
		t.Errorf("the limit is told as %v", n)
	}
}

// Figures of connections that are gone stay in the sums.
func TestTrafficOfEndedConnections(t *testing.T) {
	d := startDoor(t, setup{noBroker: true})
	c := d.dial(t)
	frame := c.frame(kmsg.NewPtrApiVersionsRequest())
	c.send(frame)
	_, body := c.recv()
	_ = c.Close()
	eventually(t, "the connection is given up", func() bool { return d.counter(t, "leat_kafka_connections") == 0 })
	if got := d.counter(t, "leat_kafka_received_bytes_total"); got != float64(len(frame)) {
		t.Errorf("%v bytes received, want %d", got, len(frame))
	}
	if got := d.counter(t, "leat_kafka_sent_bytes_total"); got != float64(8+len(body)) {
		t.Errorf("%v bytes sent, want %d", got, 8+len(body))
	}
}
