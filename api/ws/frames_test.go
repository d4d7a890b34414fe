package ws

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"leat/api"
	"leat/auth"
)

// A text message of any length is read and written, whole or in fragments.
func TestFrameLengths(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	r := d.raw()
	r.write(maskedFrame(final|opText, []byte(`{"type":"subscribe","sub":"s","topic":"t"}`)))
	r.frame()
	const ping = `{"type":"ping"}`
	for _, size := range []int{len(ping), 125, 126, 127, 65535, 65536, 1 << 20} {
		message := []byte(ping + strings.Repeat(" ", size-len(ping)))
		r.write(maskedFrame(final|opText, message))
		if _, text := r.frame(); string(text) != `{"type":"pong"}` {
			t.Fatalf("%d bytes: %.100s", size, text)
		}
		half := size / 2
		r.write(maskedFrame(opText, message[:half]))
		r.write(maskedFrame(final|opPing, []byte("between")))
		r.write(maskedFrame(opCont, nil))
		r.write(maskedFrame(final|opCont, message[half:]))
		if op, text := r.frame(); op != opPong || string(text) != "between" {
			t.Fatalf("%d bytes: frame %d %.100s", size, op, text)
		}
		if _, text := r.frame(); string(text) != `{"type":"pong"}` {
			t.Fatalf("%d bytes in fragments: %.100s", size, text)
		}
	}
	// The lengths of the server's frames: near each change of form, and of the
	// write buffer.
	frame := func(value int) int {
		d.append("t", 0, `"`+strings.Repeat("v", value)+`"`)
		_, text := r.frame()
		if !bytes.Contains(text, []byte(`"`+strings.Repeat("v", value)+`"`)) {
			t.Fatalf("value of %d bytes: frame of %d bytes %.200s", value, len(text), text)
		}
		return len(text)
	}
	overhead := frame(0)
	for _, size := range []int{2 * writeBuffer, 65535, 65536} {
		for slack := range 3 {
			frame(size - overhead - slack)
		}
	}
	frame(1 << 19)
	sub := strings.Repeat("s", maxIdent)
	r.write(maskedFrame(final|opText, []byte(`{"type":"subscribe","sub":"`+sub+`","topic":"t"}`)))
	r.frame()
	shortest, longest := math.MaxInt, 0
	for n := range maxIdent {
		id := strings.Repeat("i", n+1)
		r.write(maskedFrame(final|opText, []byte(`{"type":"pause","id":"`+id+`","sub":"`+sub+`"}`)))
		_, text := r.frame()
		if want := `{"type":"paused","id":"` + id + `","sub":"` + sub + `"}`; string(text) != want {
			t.Fatalf("got %s, want %s", text, want)
		}
		shortest, longest = min(shortest, len(text)), max(longest, len(text))
	}
	if shortest > writeBuffer-5 || longest < writeBuffer+1 {
		t.Errorf("frames of %d to %d bytes are not around the buffer of %d", shortest, longest, writeBuffer)
	}
	// An empty message is no JSON, which is an answer and no reason to close.
	r.write(maskedFrame(final|opText, nil))
	if _, text := r.frame(); !strings.Contains(string(text), "malformed_body") {
		t.Fatalf("%s", text)
	}
}

// A frame that breaks the rules closes the connection with the code for it.
func TestBadFrames(t *testing.T) {
	const limit = 2 << 20
	produce := `{"type":"produce","topic":"t","records":[{"value":"`
	for _, tc := range []struct {
		name   string
		frames [][]byte
		code   int
		reason string
	}{
		{"binary", [][]byte{maskedFrame(final|opBin, []byte("x"))}, 1003, "unsupported_data"},
		{"bad UTF-8", [][]byte{maskedFrame(final|opText, []byte("{\"type\":\"\xff\"}"))}, 1007, "invalid_utf8"},
		{"bad UTF-8 across fragments", [][]byte{maskedFrame(opText, []byte("{\xc3")), maskedFrame(final|opCont, []byte("("))}, 1007, "invalid_utf8"},
		{"unmasked", [][]byte{append(frameStart(final|opText, 0, 15), `{"type":"ping"}`...)}, 1002, "protocol_error"},
		{"large control message", [][]byte{maskedFrame(final|opText, []byte(`{"type":"ping"}`+strings.Repeat(" ", maxControlBytes)))}, 1009, "message_too_big"},
		{"produce that does not say so first", [][]byte{maskedFrame(final|opText, []byte(strings.Repeat(" ", maxControlBytes)+`{"topic":"t","type":"produce"}`))}, 1009, ""},
		{"oversize", [][]byte{maskedFrame(final|opText, []byte(produce+strings.Repeat("x", limit)))}, 1009, ""},
		{"oversize in fragments", [][]byte{maskedFrame(opText, []byte(produce)), maskedFrame(opCont, make([]byte, limit)), maskedFrame(opCont, make([]byte, 10))}, 1009, ""},
		{"reserved bit", [][]byte{maskedFrame(final|0x40|opText, []byte("{}"))}, 1002, ""},
		{"unknown opcode", [][]byte{maskedFrame(final|3, nil)}, 1002, ""},
		{"continuation of nothing", [][]byte{maskedFrame(final|opCont, []byte("{}"))}, 1002, ""},
		{"message within a message", [][]byte{maskedFrame(opText, []byte("{")), maskedFrame(final|opText, []byte("{}"))}, 1002, ""},
		{"fragmented ping", [][]byte{maskedFrame(opPing, nil)}, 1002, ""},
		{"long ping", [][]byte{maskedFrame(final|opPing, make([]byte, 126))}, 1002, ""},
		{"close with a bad code", [][]byte{maskedFrame(final|opClose, []byte{0x03, 0xed})}, 1002, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := openDoor(t, func(o *Options) { o.MaxRequestBytes = limit })
			r := d.raw()
			for _, f := range tc.frames {
				// The server may have closed before it is all written.
				if _, err := r.nc.Write(f); err != nil {
					break
				}
			}
			reason := r.closed(tc.code)
			if tc.reason != "" && !strings.HasPrefix(reason, tc.reason) {
				t.Errorf("reason %q", reason)
			}
		})
	}
}

// A client that closes is answered with its own code, and a client that leaves
// without a word is noticed; both are counted.
func TestClose(t *testing.T) {
	d := openDoor(t)
	r := d.raw()
	r.write(maskedFrame(final|opClose, append([]byte{0x0f, 0xa0}, "bye"...)))
	if reason := r.closed(4000); reason != "bye" {
		t.Errorf("reason %q", reason)
	}
	gone := d.raw()
	_ = gone.nc.Close()
	eventually(t, "both closed", func() bool {
		return d.metric("leat_ws_closes_total", "cause", "client") == 1 && d.metric("leat_ws_closes_total", "cause", "lost") == 1
	})
	if n := d.metric("leat_ws_connections"); n != 0 {
		t.Errorf("%v connections", n)
	}
}

// Messages that say nonsense get an error each and the connection stays.
func TestBadMessages(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	c := d.dial()
	for _, tc := range []struct{ message, code, detail string }{
		{``, "malformed_body", "ended early"},
		{`[]`, "malformed_body", "must be a JSON object"},
		{`{'type':'ping'`, "malformed_body", "ended early"},
		{`{'type':'ping'} x`, "malformed_body", "data after"},
		{`{'type':'ping','type':'ping'}`, "malformed_body", "more than once"},
		{`{'type':'dance'}`, "unknown_type", "subscribe, credit"},
		{`{'id':1}`, "malformed_body", "type is missing"},
		{`{'type':'ping','more':1}`, "malformed_body", "unknown member"},
		{`{'type':'ping','topic':'t'}`, "malformed_body", "does not belong"},
		{`{'type':'subscribe','topic':'t'}`, "malformed_body", "sub is missing"},
		{`{'type':'subscribe','sub':'s','topic':'no such'}`, "invalid_topic", ""},
		{`{'type':'subscribe','sub':'s','topic':'missing'}`, "unknown_topic", ""},
		{`{'type':'subscribe','sub':'s','topic':'t','partitions':[1]}`, "unknown_partition", ""},
		{`{'type':'subscribe','sub':'s','topic':'t','partitions':[0,0]}`, "invalid_parameter", "different"},
		{`{'type':'subscribe','sub':'s','topic':'t','from':'rubbish'}`, "bad_cursor", ""},
		{`{'type':'subscribe','sub':'s','topic':'t','from':'tail:x'}`, "invalid_parameter", ""},
		{`{'type':'subscribe','sub':'s','topic':'t','from':{'0':99}}`, "offset_out_of_range", "outside"},
		{`{'type':'credit','sub':'nobody'}`, "unknown_subscription", ""},
		{`{'type':'produce','topic':'t','records':[]}`, "empty_body", ""},
	} {
		c.send("%s", tc.message)
		if p := c.problem(tc.code); !strings.Contains(p.Detail, tc.detail) || p.Status < 400 {
			t.Errorf("%s: %d %s", tc.message, p.Status, p.Detail)
		}
	}
	c.send(`{'type':'ping','id':'%s'}`, strings.Repeat("i", maxIdent))
	if a := c.want("pong"); a.ID != strings.Repeat("i", maxIdent) {
		t.Error(a.text)
	}
	if n := d.metric("leat_ws_messages_total", "direction", "in", "type", "invalid"); n != 11 {
		t.Errorf("%v invalid messages", n)
	}
}

// Large messages of all clients together have a bound; small ones go on.
func TestOverloaded(t *testing.T) {
	budget := api.NewBudget(1<<20, 1<<20)
	d := openDoor(t, func(o *Options) { o.Budget = budget })
	large, small := d.raw(), d.raw()
	if err := budget.Take(auth.Anonymous, 1<<20); err != nil {
		t.Fatal(err)
	}
	small.write(maskedFrame(final|opText, []byte(`{"type":"ping"}`+strings.Repeat(" ", 100_000))))
	if _, text := small.frame(); string(text) != `{"type":"pong"}` {
		t.Errorf("%s", text)
	}
	large.write(maskedFrame(final|opText, []byte(`{"type":"ping"}`+strings.Repeat(" ", 500_000))))
	if reason := large.closed(4008); reason != "overloaded" {
		t.Errorf("reason %q", reason)
	}
	if n := budget.Used(); n != 1<<20 {
		t.Errorf("%d bytes", n-1<<20)
	}
}
