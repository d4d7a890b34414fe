package cli

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

const testLimit = 3 * blockSize

// cut runs the splitter over blocks of n bytes.
func cut(in []byte, n int) (lines [][]byte, err error) {
	s := splitter{limit: limit{testLimit, "the limit"}}
	each := func(_ int64, text []byte) error {
		lines = append(lines, bytes.Clone(text))
		return nil
	}
	for part := range slices.Chunk(in, n) {
		if err := s.feed(part, each); err != nil {
			return lines, err
		}
	}
	return lines, s.finish(each)
}

// TestSplitter proves where lines begin and end: LF ends a line, CR belongs to it, an empty line counts, and so does a
// last line without LF; and that the size of the reads does not matter.
func TestSplitter(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", nil},
		{"\n", []string{""}},
		{"a", []string{"a"}},
		{"a\n", []string{"a"}},
		{"a\r\n\nb", []string{"a\r", "", "b"}},
		{"\n\n", []string{"", ""}},
		{"one\ntwo\nthree\n", []string{"one", "two", "three"}},
	} {
		for _, n := range []int{1, 2, 3, 100} {
			lines, err := cut([]byte(c.in), n)
			if err != nil || !slices.EqualFunc(lines, c.want, func(a []byte, b string) bool { return string(a) == b }) {
				t.Errorf("%q by %d: %q, %v; want %q", c.in, n, lines, err, c.want)
			}
		}
	}
}

// TestSplitterLimit proves that a line of the limit passes, one byte more does not, and the error names the line.
func TestSplitterLimit(t *testing.T) {
	longest := strings.Repeat("x", testLimit)
	for _, n := range []int{1000, blockSize, 4 * testLimit} {
		if lines, err := cut([]byte("a\n"+longest+"\n"+longest), n); err != nil || len(lines) != 3 {
			t.Errorf("by %d: %d lines, %v", n, len(lines), err)
		}
		_, err := cut([]byte("a\n"+longest+"x\nb\n"), n)
		if bad, ok := errors.AsType[*lineError](err); !ok || err.Error() != "line 2: longer than 786432 bytes, the limit" || bad.Line != 2 {
			t.Errorf("by %d: %v, want a long line 2", n, err)
		}
	}
}

// FuzzSplitter proves that splitting by blocks equals splitting by the whole, for any input and block size.
func FuzzSplitter(f *testing.F) {
	f.Add([]byte("a\nb\r\n\nc"), uint16(1))
	f.Add([]byte("\n"), uint16(7))
	f.Fuzz(func(t *testing.T, in []byte, block uint16) {
		n := int(block) + 1
		want := bytes.Split(in, []byte("\n"))
		if last := len(want) - 1; len(want[last]) == 0 {
			want = want[:last]
		}
		got, err := cut(in, n)
		if err != nil || !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	})
}

// TestLineFormat proves what a line becomes: null and empty stay apart.
func TestLineFormat(t *testing.T) {
	empty := []byte{}
	for _, c := range []struct {
		format     lineFormat
		in         string
		key, value []byte
		err        error
	}{
		{lineFormat{}, "a:b", nil, []byte("a:b"), nil},
		{lineFormat{}, "", nil, empty, nil},
		{lineFormat{tombstone: true}, "k", []byte("k"), nil, nil},
		{lineFormat{separator: []byte(":")}, "k:v:w", []byte("k"), []byte("v:w"), nil},
		{lineFormat{separator: []byte(":")}, ":", empty, empty, nil},
		{lineFormat{separator: []byte("::")}, "a:b::c", []byte("a:b"), []byte("c"), nil},
		{lineFormat{separator: []byte(":")}, "kv", nil, nil, errNoSeparator},
		{lineFormat{separator: []byte(":"), tombstone: true}, "kv", []byte("kv"), nil, nil},
		{lineFormat{separator: []byte(":"), tombstone: true}, "k:", []byte("k"), empty, nil},
		{lineFormat{separator: []byte(":"), tombstone: true}, "", empty, nil, nil},
	} {
		key, value, err := c.format.parse([]byte(c.in))
		same := bytes.Equal(key, c.key) && (key == nil) == (c.key == nil) &&
			bytes.Equal(value, c.value) && (value == nil) == (c.value == nil)
		if !same || !errors.Is(err, c.err) {
			t.Errorf("%+v %q: %#v %#v %v", c.format, c.in, key, value, err)
		}
	}
}
