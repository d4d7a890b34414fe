package ws

import (
	"net"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Clients that never read cost a frame each and no worker, others are served
// meanwhile, and when a write has taken too long they are closed.
func TestSlowClients(t *testing.T) {
	const clients = 50
	d := openDoor(t, func(o *Options) {
		o.heartbeat, o.pongTimeout, o.writeTimeout = 25*time.Second, 10*time.Second, 2*time.Second
	})
	d.topic("t", 1)
	value := `"` + strings.Repeat("x", 10_000) + `"`
	for range 20 {
		d.append("t", 0, strings.Split(strings.Repeat(value+" ", 49)+value, " ")...)
	}
	slow := make([]*raw, clients)
	for i := range slow {
		slow[i] = d.raw()
		if err := slow[i].nc.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, r := range slow {
		r.write(maskedFrame(final|opText, []byte(`{"type":"subscribe","sub":"s","topic":"t","from":"earliest"}`)))
	}
	eventually(t, "all blocked", func() bool { return d.server.blocked.Load() == clients })
	healthy := d.dial()
	healthy.send(`{'type':'subscribe','sub':'s','topic':'t'}`)
	healthy.want("subscribed")
	d.append("t", 0, "1")
	healthy.want("data")
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > clients*256<<10 && !raceEnabled {
		t.Errorf("%d bytes for %d clients", grown, clients)
	}
	eventually(t, "all closed", func() bool { return d.metric("leat_ws_closes_total", "cause", "slow_consumer") == clients })
	eventually(t, "none blocked", func() bool { return d.metric("leat_ws_blocked_connections") == 0 })
	if n := d.metric("leat_ws_connections"); n != 1 {
		t.Errorf("%v connections", n)
	}
}

// A client that pings and does not read is no burden: its pongs wait, within a
// bound, and keep nobody from their turn.
func TestPingFlood(t *testing.T) {
	d := openDoor(t, func(o *Options) {
		o.heartbeat, o.pongTimeout, o.writeTimeout = 25*time.Second, 10*time.Second, time.Second
	})
	r := d.raw()
	flood := []byte(strings.Repeat(string(maskedFrame(final|opPing, make([]byte, 125))), 1000))
	if err := r.nc.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := r.nc.Write(flood); err != nil {
			break // it was closed
		}
	}
	eventually(t, "closed", func() bool { return d.metric("leat_ws_closes_total", "cause", "slow_consumer") == 1 })
}

// What a client does not take waits in one place, not in the kernel too. A ping
// meanwhile holds up neither the reader nor the connection: its pong goes behind
// the frame.
func TestPingWhileBlocked(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	value := `"` + strings.Repeat("x", 10_000) + `"`
	for range 20 {
		d.append("t", 0, strings.Split(strings.Repeat(value+" ", 49)+value, " ")...)
	}
	r := d.raw()
	if err := r.nc.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	r.write(maskedFrame(final|opText, []byte(`{"type":"subscribe","sub":"s","topic":"t","from":"earliest","credit":{"bytes":5000000,"records":1000}}`)))
	eventually(t, "blocked", func() bool { return d.server.blocked.Load() == 1 })
	if n := d.metric("leat_ws_sent_bytes_total"); n > 512<<10 {
		t.Errorf("%v bytes wait in the kernel for a client that does not read", n)
	}
	r.write(maskedFrame(final|opPing, []byte("are you there")))
	r.write(maskedFrame(final|opText, []byte(`{"type":"ping"}`)))
	eventually(t, "message read", func() bool { return d.metric("leat_ws_messages_total", "direction", "in", "type", "ping") == 1 })
	if d.server.blocked.Load() != 1 {
		t.Error("the write does not block any more")
	}
	if err := r.nc.(*net.TCPConn).SetReadBuffer(1 << 20); err != nil {
		t.Fatal(err)
	}
	for pongs := 0; pongs < 2; {
		switch op, payload := r.frame(); {
		case op == opPong && string(payload) == "are you there":
			pongs++
		case op != opText:
			t.Fatalf("frame %d %q", op, payload)
		case strings.HasPrefix(string(payload), `{"type":"pong"`):
			pongs++
		}
	}
}

// What panics takes its connection with it, and no other.
func TestPanic(t *testing.T) {
	d := openDoor(t)
	other, r := d.dial(), d.raw()
	d.server.broker = nil // every call of it panics
	r.write(maskedFrame(final|opText, []byte(`{"type":"subscribe","sub":"s","topic":"t"}`)))
	if reason := r.closed(1011); reason != "internal" {
		t.Errorf("reason %q", reason)
	}
	d.server.broker = d.broker
	other.send(`{'type':'ping'}`)
	other.want("pong")
}
