package api

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

// parts parses text in two parts, which are cut at a line's end.
func parts(text []byte, cut int, values bool) (*memorySink, error) {
	sink := &memorySink{}
	at := Part{}
	first := text[:cut]
	first = first[:bytes.LastIndexByte(first, '\n')+1]
	for _, part := range [][]byte{first, text[len(first):]} {
		rs := &Records{Sink: sink, Route: AnyPartition}
		if err := ParsePart(rs, part, values); err != nil {
			return sink, err
		}
		if rs.Bad() {
			rs.Shift(at, part)
			return sink, rs.Finish()
		}
		at.Records += rs.Count
		at.Lines += bytes.Count(part, []byte{'\n'})
		at.Bytes += int64(len(part))
	}
	return sink, nil
}

// Wherever a stream is cut into parts, the same records are taken, up to the first
// bad line, and that is named by the same place as in one piece.
func FuzzParts(f *testing.F) {
	f.Add([]byte("{\"value\":1}\n\n{\"valu\":2}\n{\"value\":3}"), 14, false)
	f.Add([]byte("{\"key\":\"a\"}\r\n{\"key\":\"b\",\"headers\":{\"a\":\"b\"}}\nx"), 20, false)
	f.Add([]byte("{\"value\":1}\n{\"value\":2} x\n"), 5, false)
	f.Add([]byte("a\n\nb\r\nc"), 3, true)
	f.Fuzz(func(t *testing.T, text []byte, cut int, values bool) {
		if len(text) == 0 || cut < 0 || cut > len(text) {
			return
		}
		got, err := parts(text, cut, values)
		want, wantErr := parts(text, 0, values)
		if len(got.records) != len(want.records) || (err == nil) != (wantErr == nil) {
			t.Fatalf("%q at %d: %d records, %v; in one piece %d, %v", text, cut, len(got.records), err, len(want.records), wantErr)
		}
		for i := range got.records {
			a, b := &got.records[i], &want.records[i]
			if !bytes.Equal(a.Key, b.Key) || !bytes.Equal(a.Value, b.Value) || a.Value == nil != (b.Value == nil) || len(a.Headers) != len(b.Headers) {
				t.Fatalf("%q at %d: record %d is %+v", text, cut, i, *a)
			}
		}
		if err == nil {
			return
		}
		p, ok := errors.AsType[*Problem](err)
		q, okToo := errors.AsType[*Problem](wantErr)
		if !ok || !okToo || p.Detail != q.Detail || len(p.Errors) != 1 || p.Errors[0].Line != q.Errors[0].Line || *p.Errors[0].Byte != *q.Errors[0].Byte ||
			*p.Errors[0].Index != len(got.records) || *p.Errors[0].Byte > int64(len(text)) {
			t.Fatalf("%q at %d: %+v; in one piece %+v", text, cut, err, wantErr)
		}
		// It is the first of those that a body in one piece is refused for.
		if values {
			return
		}
		rs := &Records{Sink: &memorySink{}, Route: AnyPartition}
		whole, ok := errors.AsType[*Problem](errors.Join(ParseNDJSON(rs, text), rs.Finish()))
		if !ok || !slices.ContainsFunc(whole.Errors[:1], func(e ItemError) bool { return e.Line == p.Errors[0].Line && *e.Byte == *p.Errors[0].Byte }) {
			t.Fatalf("%q: %+v; whole %+v", text, p.Errors, whole)
		}
	})
}
