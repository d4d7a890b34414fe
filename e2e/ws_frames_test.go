package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// padded is a JSON message of exactly n bytes: white space before its last brace.
func padded(t *testing.T, text string, n int) []byte {
	t.Helper()
	if len(text) > n {
		t.Fatalf("%s is longer than %d bytes", text, n)
	}
	return []byte(strings.TrimSuffix(text, "}") + strings.Repeat(" ", n-len(text)) + "}")
}

// TestFrameSizes proves that messages of every size at which the framing changes are understood, whole and in pieces,
// with other frames between, and that each is answered.
func TestFrameSizes(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	k := s.socket()
	id := 0
	for _, size := range []int{125, 126, 127, 65535, 65536, 65537, 1 << 20} {
		id++
		if err := k.frame(true, opText, padded(t, fmt.Sprintf(`{"type":"ping","id":%d}`, id), size)); err != nil {
			t.Fatal(err)
		}
		if m := k.want("pong"); string(m.ID) != fmt.Sprint(id) {
			t.Errorf("%d bytes: %s", size, m.text)
		}
	}
	// A produce may be larger than a control message. Its value is what pads it.
	offset := int64(0)
	for _, size := range []int{126, 65535, 65536, 500_000} {
		id++
		head, tail := fmt.Sprintf(`{"type":"produce","id":%d,"topic":"t","records":[{"partition":0,"value":"`, id), `"}]}`
		value := strings.Repeat("v", size-len(head)-len(tail))
		k.say("%s%s%s", head, value, tail)
		if m := k.want("produced"); string(m.ID) != fmt.Sprint(id) || !strings.Contains(m.text, fmt.Sprintf(`"offset":%d`, offset)) {
			t.Errorf("a produce of %d bytes: %s", size, m.text)
		}
		f := s.records("t", 0, fmt.Sprint("offset=", offset))
		if len(f.Records) != 1 || string(f.Records[0].Value) != `"`+value+`"` {
			t.Errorf("a produce of %d bytes was stored as %d records", size, len(f.Records))
		}
		offset++
	}
	// In pieces: of one byte, empty ones, and a ping and a pong between.
	text := `{"type":"ping","id":"pieces"}`
	for i := range text {
		opcode := opContinue
		if i == 0 {
			opcode = opText
		}
		if err := k.frame(i == len(text)-1, opcode, []byte{text[i]}); err != nil {
			t.Fatal(err)
		}
		if i == 5 {
			k.mustFrame(true, opPing, []byte("between"))
			k.mustFrame(true, opPong, nil)
			k.mustFrame(false, opContinue, nil)
		}
	}
	opcode, payload, err := k.readFrame()
	if err != nil || opcode != opPong || string(payload) != "between" {
		t.Fatalf("the answer to a ping between pieces: opcode %d, %q, %v", opcode, payload, err)
	}
	if m := k.want("pong"); string(m.ID) != `"pieces"` {
		t.Errorf("a message in pieces: %s", m.text)
	}
	for _, size := range []int{0, 125} {
		k.mustFrame(true, opPing, bytes.Repeat([]byte{0xff}, size)) // any bytes
		opcode, payload, err := k.readFrame()
		if err != nil || opcode != opPong || len(payload) != size {
			t.Errorf("a ping of %d bytes: opcode %d, %d bytes, %v", size, opcode, len(payload), err)
		}
	}
}

func (k *talk) mustFrame(final bool, opcode byte, payload []byte) {
	k.t.Helper()
	if err := k.frame(final, opcode, payload); err != nil {
		k.t.Fatal(err)
	}
}

// TestFramesThatClose proves which frames end a connection, and with which code, each on its own connection while
// another one goes on.
func TestFramesThatClose(t *testing.T) {
	const most = 2 << 20
	s := start(t, "--max-request-bytes", fmt.Sprint(most))
	s.createTopic("t", 1)
	other := s.socket()
	if err := other.nc.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	frame := func(final bool, opcode byte, payload string) func(*talk) {
		return func(k *talk) { k.mustFrame(final, opcode, []byte(payload)) }
	}
	bytesOf := func(p ...byte) func(*talk) {
		return func(k *talk) {
			if err := k.write(p); err != nil {
				k.t.Fatal(err)
			}
		}
	}
	// Payloads that are too large are only promised: the header alone decides, or the first bytes.
	promised := func(size uint64, begins string) func(*talk) {
		return func(k *talk) {
			head := binary.BigEndian.AppendUint64([]byte{0x80 | opText, 0x80 | 127}, size)
			head = append(head, 0, 0, 0, 0) // a mask that changes nothing
			if err := k.write(append(head, begins...)); err != nil {
				k.t.Fatal(err)
			}
			// The server may close while this is under way.
			rest := make([]byte, 64<<10)
			for sent := 0; sent < 3*most; sent += len(rest) {
				if k.write(rest) != nil {
					return
				}
			}
		}
	}
	for _, c := range []struct {
		name string
		code int
		send func(*talk)
	}{
		{"bad UTF-8", 1007, frame(true, opText, "{\"type\":\"ping\",\"id\":\"\xff\"}")},
		{"UTF-8 that is cut", 1007, frame(true, opText, "{\"type\":\"ping\"}\xe2\x82")},
		{"a surrogate as UTF-8", 1007, frame(true, opText, "\"\xed\xa0\x80\"")},
		{"bad UTF-8 across pieces", 1007, func(k *talk) {
			k.mustFrame(false, opText, []byte("\"\xe2"))
			k.mustFrame(true, opContinue, []byte("\x28\xa1\""))
		}},
		{"binary", 1003, frame(true, opBinary, "{\"type\":\"ping\"}")},
		{"an empty binary", 1003, frame(true, opBinary, "")},
		{"more than a request may have", 1009, promised(most+4096, `{"type":"produce","id":1,"topic":"t","records":[{"value":"`)},
		{"a promise of 2^62 bytes", 1009, promised(1<<62, `{"type":"produce"`)},
		{"a control message over 1 MiB", 1009, func(k *talk) {
			k.mustFrame(true, opText, padded(t, `{"type":"ping","id":1}`, 1<<20+1))
		}},
		{"unmasked", 1002, bytesOf(0x80|opText, 2, '{', '}')},
		{"a reserved bit", 1002, bytesOf(0xc0|opText, 0x80, 0, 0, 0, 0)},
		{"a reserved opcode", 1002, frame(true, 3, "")},
		{"a reserved control opcode", 1002, frame(true, 11, "")},
		{"a ping in pieces", 1002, frame(false, opPing, "x")},
		{"a ping of 126 bytes", 1002, frame(true, opPing, strings.Repeat("x", 126))},
		{"a continuation of nothing", 1002, frame(true, opContinue, "x")},
		{"a message inside another", 1002, func(k *talk) {
			k.mustFrame(false, opText, []byte("{"))
			k.mustFrame(true, opText, []byte("{}"))
		}},
		{"a length of 2^63", 1002, bytesOf(0x80|opText, 0x80|127, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)},
		{"close 1000", 1000, frame(true, opClose, "\x03\xe8bye")},
		{"close 3000", 3000, frame(true, opClose, "\x0b\xb8")},
		{"a close of one byte", 1002, frame(true, opClose, "\x03")},
		{"close 1005, which is none", 1002, frame(true, opClose, "\x03\xed")},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := s.socket()
			k.t = t
			if err := k.nc.SetDeadline(time.Now().Add(patience / 2)); err != nil {
				t.Fatal(err)
			}
			c.send(k)
			if reason := k.wantClose(c.code); len(reason) > 123 || strings.Contains(reason, ".go") {
				t.Errorf("reason %q", reason)
			}
			if _, err := io.Copy(io.Discard, k.nc); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Errorf("the connection stays: %v", err)
			}
			other.say(`{"type":"ping","id":1}`)
			other.want("pong")
		})
	}
}

// TestMessagesThatDoNotClose proves that what is wrong inside a message gets a whole problem, that the id comes back,
// and that the socket goes on.
func TestMessagesThatDoNotClose(t *testing.T) {
	s := start(t, "--set", "auto.create.topics.enable=false")
	s.createTopic("t", 2)
	k := s.socket()
	k.say(`{"type":"subscribe","id":0,"sub":"there","topic":"t"}`)
	k.want("subscribed")
	for _, c := range []struct{ text, id, code string }{
		{``, ``, ""},
		{`{`, ``, ""},
		{`null`, ``, ""},
		{`[]`, ``, ""},
		{`"ping"`, ``, ""},
		{`{}`, ``, ""},
		{`{"id":7}`, `7`, ""},
		{`{"type":"fly","id":7}`, `7`, ""},
		{`{"type":7}`, ``, ""},
		{`{"type":"ping"}{"type":"ping"}`, ``, ""},
		{`{"type":"ping","type":"pong"}`, ``, ""},
		{`{"type":"ping","id":7,"wings":2}`, `7`, ""},
		{`{"type":"ping","id":{}}`, `{}`, ""},
		{`{"type":"ping","id":"` + strings.Repeat("x", 65) + `"}`, `"` + strings.Repeat("x", 65) + `"`, ""},
		{`{"type":"subscribe","id":7,"topic":"t"}`, `7`, ""},
		{`{"type":"subscribe","id":7,"sub":"s"}`, `7`, ""},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"missing"}`, `7`, "unknown_topic"},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"a/b"}`, `7`, ""},
		{`{"type":"subscribe","id":7,"sub":"there","topic":"t"}`, `7`, ""},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"t","partitions":[2]}`, `7`, "unknown_partition"},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"t","partitions":[-1]}`, `7`, ""},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"t","from":"no cursor"}`, `7`, ""},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"t","from":{"0":-1}}`, `7`, ""},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"t","from":{"0":1.5}}`, `7`, ""},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"t","from":{"9":0}}`, `7`, "unknown_partition"},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"t","from":{"0":5}}`, `7`, "offset_out_of_range"},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"t","credit":{"bytes":-1,"records":1}}`, `7`, ""},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"t","slow":"fast"}`, `7`, ""},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"t","as":"xml"}`, `7`, ""},
		{`{"type":"subscribe","id":7,"sub":"s","topic":"t","batch":{"max_delay_ms":101}}`, `7`, ""},
		{`{"type":"credit","sub":"nobody","bytes":1,"records":1}`, ``, ""},
		{`{"type":"pause","sub":"nobody"}`, ``, ""},
		{`{"type":"unsubscribe","id":7,"sub":"nobody"}`, `7`, ""},
		{`{"type":"produce","id":7,"records":[{"value":1}]}`, `7`, ""},
		{`{"type":"produce","id":7,"topic":"t","records":[]}`, `7`, ""},
		{`{"type":"produce","id":7,"topic":"t","records":[{"value":1},{"valve":1}]}`, `7`, ""},
		{`{"type":"produce","id":7,"topic":"t","records":[{"value":1,"partition":2}]}`, `7`, "unknown_partition"},
		{`{"type":"produce","id":7,"topic":"missing","records":[{"value":1}]}`, `7`, "unknown_topic"},
		{`{"type":"produce","id":7,"topic":"t","acks":"two","records":[{"value":1}]}`, `7`, ""},
	} {
		k.mustFrame(true, opText, []byte(c.text))
		m := k.want("error")
		if got := string(m.ID); got != c.id && (c.id != "" || got != "null") {
			t.Errorf("%s: id %s, want %q: %s", c.text, m.ID, c.id, m.text)
		}
		p := m.Problem
		if p.Code == "" || p.Title == "" || p.Status < 400 || p.Status > 499 || p.Type != "/problems/"+p.Code || p.Retriable == nil {
			t.Errorf("%s: no whole problem: %s", c.text, m.text)
		}
		if c.code != "" && p.Code != c.code {
			t.Errorf("%s: %s, want %s", c.text, m.text, c.code)
		}
		for _, inside := range []string{"goroutine", ".go:", "panic", "leat/"} {
			if strings.Contains(m.text, inside) {
				t.Errorf("%s: the answer shows %q: %s", c.text, inside, m.text)
			}
		}
	}
	s.post("/v1/topics/t/partitions/1/records?value=line", typeNDJSON, "still there\n")
	if r := k.wantData(1, 0, 1)[0]; r.content() != "still there" {
		t.Errorf("got %q", r.content())
	}
	// Nothing of what was refused was written.
	if w := s.fetchTopic("t", "from=earliest"); len(w.Records) != 1 {
		t.Errorf("%d records, want 1", len(w.Records))
	}
}
