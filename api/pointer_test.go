package api

import (
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// A pointer finds what RFC 6901 says, and nothing where there is nothing.
func TestPointer(t *testing.T) {
	const none = "(none)"
	for _, tc := range []struct{ pointer, line, want string }{
		{"/user/id", `{"a":1,"user":{"x":[],"id":"u-7"}}`, "u-7"},
		{"/user/id", `{"user":{"id":73314510714175488}}`, "73314510714175488"},
		{"/user/id", `{"user":{"id":null}}`, none},
		{"/user/id", `{"user":5}`, none},
		{"/user/id", `{}`, none},
		{"/a", `{"a":{"b": 1}}`, `{"b": 1}`},
		{"/a", `{"a":"\u00fc\n"}`, "ü\n"},
		{"/a", `{"a":""}`, ""},
		{"/a", `{"a":1,"a":2}`, "1"},
		{"/a~1b/~01", `{"a/b":{"~1":true}}`, "true"},
		{"/", `{"":"x"}`, "x"},
		{"", `"whole"`, "whole"},
		{"", `[1]`, "[1]"},
		{"/1/0", `[0,["x"]]`, "x"},
		{"/01", `[0,1]`, none},
		{"/-", `[0]`, none},
		{"/2", `[0,1]`, none},
		{"/a", `{"a":1}` + "\r", "1"},
	} {
		p, err := ParsePointer(tc.pointer)
		if err != nil {
			t.Fatalf("%q: %v", tc.pointer, err)
		}
		got, err := p.Key([]byte(tc.line))
		if err != nil || got == nil != (tc.want == none) || got != nil && string(got) != tc.want {
			t.Errorf("%s in %s: %q, %v, want %q", tc.pointer, tc.line, got, err, tc.want)
		}
	}
	for _, line := range []string{"", "text", `{"a":1}{}`, `{"a":1`, "{\"a\":\"\xff\"}"} {
		p, _ := ParsePointer("/a")
		if _, err := p.Key([]byte(line)); err == nil {
			t.Errorf("%q is taken for JSON", line)
		}
	}
	for _, pointer := range []string{"a", "/~", "/~2", "/" + strings.Repeat("x", maxPointer)} {
		if _, err := ParsePointer(pointer); err == nil {
			t.Errorf("%q is taken for a pointer", pointer)
		}
	}
}

// Whatever the pointer and the line, finding a key neither panics nor finds one
// in what is no JSON.
func FuzzPointer(f *testing.F) {
	f.Add("/a/b", `{"a":{"b":1}}`)
	f.Add("/0/~1", `[{"/":"x"}]`)
	f.Add("", `null`)
	f.Fuzz(func(t *testing.T, pointer, line string) {
		p, err := ParsePointer(pointer)
		if err != nil {
			return
		}
		key, err := p.Key([]byte(line))
		if valid := jsontext.Value(line).IsValid(valueOptions...); valid != (err == nil) || !valid && key != nil {
			t.Fatalf("%q in %q: %q, %v", pointer, line, key, err)
		}
	})
}
