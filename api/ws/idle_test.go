package ws

import (
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/coder/websocket"
)

// An idle connection costs at most 12 KB, with a subscription to a topic of
// four partitions, also after it had something to do.
func TestIdleMemory(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector has memory of its own")
	}
	const sockets, most = 500, 12 << 10
	d := openDoor(t)
	d.topic("t", 4)
	d.append("t", 0, "1")
	measure := func() (bytes, goroutines int) {
		// Twice: the first empties the pools, and stacks shrink by halves.
		for range 4 {
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
	}
	dial := func(subscribe bool) (bytes, goroutines float64) {
		clients := make([]*raw, sockets)
		before, routines := measure()
		for i := range clients {
			c := d.raw()
			clients[i] = c
			if subscribe {
				c.write(maskedFrame(final|opText, []byte(`{"type":"subscribe","sub":"all","topic":"t","from":"earliest"}`)))
				c.frame()
				c.frame()
			}
			// The client's memory is not the server's.
			c.in = nil
		}
		eventually(t, "no workers", func() bool { return runtime.NumGoroutine() <= routines+sockets })
		after, all := measure()
		for _, c := range clients {
			_ = c.nc.Close()
		}
		eventually(t, "all are gone", func() bool { return d.metric("leat_ws_connections") == 0 })
		return float64(after-before) / sockets, float64(all-routines) / sockets
	}
	dial(true) // what is made once
	for _, subscribe := range []bool{false, true} {
		bytes, goroutines := dial(subscribe)
		t.Logf("subscribed %t: %.0f bytes, %.2f goroutines a connection", subscribe, bytes, goroutines)
		if bytes > most || goroutines > 1.01 {
			t.Errorf("subscribed %t: %.0f bytes and %.2f goroutines a connection, want at most %d and 1", subscribe, bytes, goroutines, most)
		}
	}
}

// Nothing keeps what a connection took once it has ended, though it would have
// been pinged later.
func TestEndedSessionIsFreed(t *testing.T) {
	d := openDoor(t, func(o *Options) {
		o.heartbeat, o.pongTimeout, o.writeTimeout = time.Hour, time.Hour, time.Hour
	})
	c := d.dial()
	session := weak.Make(d.server.sessions()[0])
	if err := c.ws.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "session freed", func() bool {
		runtime.GC()
		return session.Value() == nil
	})
}
