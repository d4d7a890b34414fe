package ws

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"leat/broker"
)

// seeds are messages of every kind, good and bad.
var seeds = []string{
	`{"type":"subscribe","id":1,"sub":"s","topic":"t"}`,
	`{"type":"subscribe","sub":-7,"topic":"t","partitions":[2,0],"from":{"0":17,"2":9},"credit":{"bytes":0,"records":5}}`,
	`{"type":"subscribe","sub":"s","topic":"t","partitions":"all","from":{"ts":5},"credit":{"auto":true,"bytes":9}}`,
	`{"type":"subscribe","sub":"s","topic":"t","from":{"cursor":"x"},"batch":{"max_bytes":1,"max_delay_ms":100},"slow":"skip","on_gap":"fail","topic_id":"x","as":"base64"}`,
	`{"type":"credit","sub":"s","bytes":10,"records":3}`,
	`{"type":"pause","sub":"s"}`, `{"type":"resume","sub":"s","id":"\u00e9"}`, `{"type":"unsubscribe","sub":"s"}`,
	`{"type":"produce","topic":"t","records":[{"value":{"a":1,"a":2}}],"acks":-1,"receipts":"full","timeout_ms":0}`,
	`{"type":"ping"}`, ` { "type" : "ping" } `, `{}`, `[]`, `null`, `{"type":7}`, `{"type":"ping"`, `{"type":"ping"}{`, `{"type":"ping","id":""}`,
}

// A message is read as it was meant.
func TestParseMessage(t *testing.T) {
	m, err := parseMessage([]byte(seeds[1]))
	if err != nil || m.kind != kindSubscribe || m.sub != "-7" || len(m.partitions) != 2 || m.partitions[0] != 0 || m.credit != (grant{false, 0, 5}) ||
		m.from.kind != fromOffsets || len(m.from.offsets) != 2 || m.maxBytes != defaultFrameBytes || m.maxDelay != defaultDelay {
		t.Errorf("%+v %v", m, err)
	}
	m, err = parseMessage([]byte(seeds[2]))
	if err != nil || !m.allPartitions || m.from.kind != fromTime || m.from.ms != 5 || m.credit != (grant{true, 9, defaultWindowRecords}) {
		t.Errorf("%+v %v", m, err)
	}
	m, err = parseMessage([]byte(seeds[3]))
	if err != nil || m.from.kind != fromCursor || m.maxBytes != 1 || m.maxDelay != 100*time.Millisecond || !m.skip || m.onGap != gapFail || m.as != "base64" {
		t.Errorf("%+v %v", m, err)
	}
	m, err = parseMessage([]byte(seeds[8]))
	if err != nil || string(m.records) != `[{"value":{"a":1,"a":2}}]` || m.acks != broker.AcksAll || m.receipts != receiptsFull || m.timeout != 0 {
		t.Errorf("%+v %v", m, err)
	}
}

// A member with a value that it cannot have is refused, and the answer still
// knows whose message it was.
func TestParseRefuses(t *testing.T) {
	for _, members := range []string{
		`"partitions":[]`, `"partitions":"some"`, `"partitions":[0,0]`, `"partitions":[-1]`, `"partitions":[1.5]`, `"partitions":{}`,
		`"from":""`, `"from":7`, `"from":{}`, `"from":{"0":-1}`, `"from":{"00":1}`, `"from":{"0":1,"0":2}`, `"from":{"0":1,"ts":2}`, `"from":{"x":1}`, `"from":{"ts":"x"}`, `"from":{"cursor":1}`,
		`"credit":7`, `"credit":{"bytes":-1}`, `"credit":{"auto":1}`, `"credit":{"auto":true,"records":0}`, `"credit":{"more":1}`, `"credit":{"bytes":99999999999999999}`,
		`"batch":{"max_bytes":0}`, `"batch":{"max_bytes":262145}`, `"batch":{"max_delay_ms":101}`, `"batch":[]`, `"batch":{"x":1}`,
		`"slow":"drop"`, `"slow":1`, `"on_gap":"never"`, `"as":""`, `"topic_id":1`, `"records":[]`, `"id":null`, `"id":1.5`, `"id":{}`,
		`"id":"` + strings.Repeat("x", maxIdent+1) + `"`,
	} {
		m, err := parseMessage([]byte(`{"type":"subscribe","sub":"mine","topic":"t",` + members + `}`))
		if err == nil || m.sub != `"mine"` || m.kind != kindSubscribe {
			t.Errorf("%s: %v", members, err)
		}
	}
	for _, members := range []string{`"acks":2`, `"acks":"most"`, `"acks":[]`, `"receipts":"some"`, `"timeout_ms":-1`, `"timeout_ms":300001`, `"sub":1`} {
		if _, err := parseMessage([]byte(`{"type":"produce","id":"mine","topic":"t","records":[],` + members + `}`)); err == nil {
			t.Errorf("%s is taken", members)
		}
	}
}

// Whatever comes, the parser ends, and what it takes can be echoed.
func FuzzMessage(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		before := bytes.Clone(text)
		m, err := parseMessage(text)
		if !bytes.Equal(text, before) {
			t.Fatal("the text was changed")
		}
		if err != nil {
			if answer := failure(m.id, m.sub, "c", err); !utf8.Valid(answer.b) {
				t.Fatalf("%q", answer.b)
			}
			return
		}
		for _, id := range []ident{m.id, m.sub} {
			if len(id) > maxIdent+2 {
				t.Fatalf("id %q", id)
			}
		}
		if a := decode(t, plain(kindPong, m.id, m.sub).b); a.Type != "pong" {
			t.Fatalf("%s", a.text)
		}
		if m.kind == kindProduce && (len(m.records) == 0 || m.records[0] != '[') {
			t.Fatalf("records %q", m.records)
		}
	})
}

// The reason of a close frame fits into it, in whole characters.
func TestCloseReason(t *testing.T) {
	for _, detail := range []string{"", "short", strings.Repeat("é", 200)} {
		r := closeReason("protocol_error", detail)
		if len(r) > 123 || !utf8.ValidString(r) || !strings.HasPrefix(r, "protocol_error") {
			t.Errorf("%q", r)
		}
	}
}

// A large message is told from its beginning.
func TestIsProduce(t *testing.T) {
	for text, want := range map[string]bool{
		`{"type":"produce","topic"`: true, " {\n\"type\" : \"produce\"": true,
		`{"type":"producer"`: false, `{"topic":"t","type":"produce"`: false, `{"type":"ping"}`: false, ``: false, `{"type`: false,
	} {
		if isProduce([]byte(text)) != want {
			t.Errorf("%q", text)
		}
	}
}
