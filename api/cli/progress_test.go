package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestStatusLine proves that words never land in the status on a terminal, and that elsewhere nothing is erased.
func TestStatusLine(t *testing.T) {
	for _, c := range []struct {
		terminal bool
		want     string
	}{
		{true, "1" + eraseLine + "2" + eraseLine + "word\n" + "3" + eraseLine + "end\n"},
		{false, "1\n2\nword\n3\nend\n"},
	} {
		var out bytes.Buffer
		s := newStatusLine(&out)
		s.terminal = c.terminal
		s.show("1")
		s.show("2")
		_, _ = s.Write([]byte("word\n"))
		s.show("3")
		s.show("")
		_, _ = s.Write([]byte("end\n"))
		if out.String() != c.want {
			t.Errorf("terminal %v: %q, want %q", c.terminal, out.String(), c.want)
		}
	}
}

// TestIsTerminal proves that a pseudo terminal is one, and that a file, a pipe and a buffer are not.
func TestIsTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{null, r, w} {
		if isTerminal(f) {
			t.Errorf("%s is a terminal", f.Name())
		}
		_ = f.Close()
	}
	if isTerminal(&bytes.Buffer{}) {
		t.Error("a buffer is a terminal")
	}
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	if !isTerminal(pty) {
		t.Error("a pseudo terminal is none")
	}
	_ = pty.Close()
}

// TestProgressPace proves one state a second, rates over the whole time, and a sum at the end.
func TestProgressPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		lines := newStatusLine(&out)
		p := Reporting{Progress: true}.progress(&session{lines: lines}, "produced", "record", false)
		for range 5 {
			time.Sleep(250 * time.Millisecond) // of the bubble
			for range 100 {
				p.add(20_000)
			}
			time.Sleep(250 * time.Millisecond)
		}
		p.stop()
		want := "leat: produced 200 records in 1.0s: 200 records/s, 4.0 MB/s\n" +
			"leat: produced 400 records in 2.0s: 200 records/s, 4.0 MB/s\n" +
			"leat: produced 500 records in 2.5s: 200 records/s, 4.0 MB/s\n"
		if out.String() != want {
			t.Errorf("%s\nwant\n%s", out.String(), want)
		}
	})
}

// TestProgressWanted proves that progress goes to stderr, with the data untouched, and only if it is asked for.
func TestProgressWanted(t *testing.T) {
	f := newFake(t)
	f.create("t", 1)
	for _, c := range []struct{ in, args, out, words string }{
		{"a\nb\n", "produce t --progress", "", "leat: produced 2 records in "},
		{"c\n", "produce t", "", "leat: 1 record written to t\n"},
		{"", "consume t --exit-at-end --progress", "a\nb\nc\n", "leat: consumed 3 records in "},
		{"", "consume t --exit-at-end", "a\nb\nc\n", ""},
	} {
		out, words, code := leat(t.Context(), t, strings.NewReader(c.in), append(strings.Fields(c.args), "--server", f.addr)...)
		wanted := strings.HasSuffix(c.args, "--progress")
		if code != 0 || out != c.out || wanted && !strings.Contains(words, c.words) || !wanted && words != c.words {
			t.Errorf("%s: exit %d, %q, %s", c.args, code, out, words)
		}
	}
}

// TestHistogram proves the quantiles within the promised error, at the edges of the parts and for any size.
func TestHistogram(t *testing.T) {
	for n := uint64(1); n < 1<<62; n += n/8 + 1 {
		if i := slot(n); slotTop(i) < time.Duration(n) || float64(slotTop(i)) > float64(n)*(1+1.0/32) || i > 0 && slotTop(i-1) >= time.Duration(n) {
			t.Fatalf("%d is in part %d, which ends at %d", n, i, slotTop(i))
		}
	}
	var h histogram
	if h.latencies() != (latencies{}) {
		t.Error("of nothing: ", h.latencies())
	}
	for ms := range 1000 {
		h.add(time.Duration(ms+1) * time.Millisecond)
	}
	h.add(-time.Second) // a clock that was set back
	got := h.latencies()
	for _, c := range []struct{ got, want float64 }{{got.P50, 500}, {got.P95, 950}, {got.P99, 990}, {got.P999, 999}, {got.Max, 1000}} {
		if c.got < c.want || c.got > c.want*(1+1.0/32)+1 {
			t.Errorf("%+v: %v, want %v", got, c.got, c.want)
		}
	}
}

// TestBench proves that the load is what was asked for, and what is printed of it.
func TestBench(t *testing.T) {
	f := newFake(t)
	f.create("t", 2)
	read := func(args string) benchResult {
		t.Helper()
		out, words, code := leat(t.Context(), t, nil, append(strings.Fields(args), "--server", f.addr)...)
		if code != 0 || words != "" {
			t.Fatalf("%s: exit %d, %s", args, code, words)
		}
		var r benchResult
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if r.Topic != "t" || r.Seconds <= 0 || r.Rate <= 0 || r.Latency.Max < r.Latency.P50 || r.Latency.Max <= 0 {
			t.Errorf("%s: %+v", args, r)
		}
		return r
	}
	if r := read("bench produce t --records 3000 --size 7 --compression lz4 --partition 1 --json"); r.Records != 3000 || r.Bytes != 21000 {
		t.Errorf("%+v", r)
	}
	if r := read("bench produce t --records 20 --size 0 --rate 1000 --partition 0 --json"); r.Records != 20 || r.Bytes != 0 || r.Rate > 1200 {
		t.Errorf("%+v", r)
	}
	if r := read("bench consume t --json"); r.Records != 3020 || r.Bytes != 21000 {
		t.Errorf("%+v", r)
	}
	if r := read("bench consume t --records 5 --partition 1 --from 2990 --json"); r.Records != 5 || r.Bytes != 35 {
		t.Errorf("%+v", r)
	}
	out, words, code := leat(t.Context(), t, nil, "bench", "consume", "t", "--server", f.addr)
	if code != 0 || !strings.HasPrefix(out, "RECORDS  SECONDS  RECORDS/S") || strings.Count(out, "\n") != 2 {
		t.Errorf("exit %d, %s%s", code, out, words)
	}
	out, words, code = leat(t.Context(), t, nil, "bench", "produce", "nope", "--server", f.addr)
	if code != 1 || out != "" || !strings.Contains(words, "nope: no such topic") {
		t.Errorf("exit %d, %s%s", code, out, words)
	}
}
