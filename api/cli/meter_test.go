package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestMeter proves when a meter says something and what: on a terminal one line drawn anew ten times a second with a bar,
// elsewhere a line a second and only when asked for.
func TestMeter(t *testing.T) {
	began := time.Unix(1000, 0)
	for _, c := range []struct {
		terminal, asked bool
		want            string
	}{
		{false, false, ""},
		{false, true, "leat: checked 120.0 of 480.0 MB, 25%, 60.0 MB/s, 6s left\nleat: checked 480.0 of 480.0 MB, 100%, 120.0 MB/s\n"},
		{true, false, "leat: [                    ] checked 6.0 of 480.0 MB, 1%, 60.0 MB/s, 8s left" + eraseLine +
			"leat: [#####               ] checked 120.0 of 480.0 MB, 25%, 60.0 MB/s, 6s left" + eraseLine +
			"leat: [####################] checked 480.0 of 480.0 MB, 100%, 120.0 MB/s" + eraseLine},
	} {
		var out bytes.Buffer
		line := newStatusLine(&out)
		line.terminal = c.terminal
		m := newMeter(line, "checked", c.asked, began)
		for _, at := range []struct {
			after time.Duration
			done  int64
		}{{100 * time.Millisecond, 6e6}, {150 * time.Millisecond, 7e6}, {2 * time.Second, 120e6}, {4 * time.Second, 480e6}} {
			m.show(at.done, 480e6, began.Add(at.after))
		}
		m.End()
		if out.String() != c.want {
			t.Errorf("terminal %t, asked for %t:\n%q, want\n%q", c.terminal, c.asked, out.String(), c.want)
		}
	}
	if s := meterStatus("checked", 0, 0, 0, true); !strings.Contains(s, "100%") {
		t.Errorf("of nothing: %q", s)
	}
}
