package api

import (
	"bytes"
	"strings"
	"testing"

	"leat/storage/record"
)

// A value is given as JSON, as text or in base64, such that a record with it is
// no larger than it must be and no deeper than the reader of any other.
func TestAppendRecordForms(t *testing.T) {
	nest := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	large := func(s string) string { return strings.Repeat(s, largeText/len(s)+1) }
	for _, c := range []struct{ name, value, member string }{
		{"JSON", `{"a":1,"a":2}`, "value"},
		{"64 deep", nest(maxDepth), "value"},
		{"65 deep", " " + nest(maxDepth+1), "value_str"},
		{"as deep as stack allows", nest(1 << 20), "value_str"},
		{"as many brackets in a string", `"` + nest(1000) + `"`, "value"},
		{"text", "\x00", "value_str"},
		{"no text", "\xff", "value_b64"},
		{"large text", large("a line with a tab\t\"quoted\"\r\n"), "value_str"},
		{"large, colors", large("\x1b[31mred\x1b[0m"), "value_str"},
		{"large, zeros", large("\x00"), "value_b64"},
		{"large, half zeros", large("\x00a"), "value_b64"},
	} {
		r := record.Record{Value: []byte(c.value)}
		text := AppendRecord(nil, 0, &r, Form{})
		if !bytes.Contains(text, []byte(`,"`+c.member+`":`)) {
			t.Errorf("%s: %.200s", c.name, text)
		}
		if len(text) > 2*len(c.value)+200 {
			t.Errorf("%s: %d bytes for %d", c.name, len(text), len(c.value))
		}
	}
	// What is forced is made without memory for more than it.
	r := record.Record{Value: make([]byte, largeText)}
	if text := AppendRecord(nil, 0, &r, Form{As: AsString}); len(text) < 6*largeText || cap(text) > 8*largeText {
		t.Errorf("%d bytes in a buffer of %d", len(text), cap(text))
	}
}
