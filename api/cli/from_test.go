package cli

import (
	"strings"
	"testing"
)

// TestParseStart proves the four forms of --from and that nothing else passes.
func TestParseStart(t *testing.T) {
	for in, want := range map[string]start{
		"earliest": {fromEarliest, 0}, "latest": {fromLatest, 0}, "0": {fromOffset, 0}, "17": {fromOffset, 17},
		"ts:1700000000000": {fromTime, 1700000000000},
	} {
		if got, err := parseStart("--from", in); err != nil || got != want {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "-1", "1.5", "ts:", "ts:-4", "ts:now", "Latest", "9223372036854775808", " 1"} {
		if got, err := parseStart("--from", in); ExitCode(err) != 2 {
			t.Errorf("%q: %+v, %v; want a usage error", in, got, err)
		}
	}
}

// TestPlan proves where a consumer begins in a partition that holds [10, 20).
func TestPlan(t *testing.T) {
	for _, c := range []struct {
		from string
		at   int64 // the answer of the time lookup
		want int64
		err  string
	}{
		{"earliest", -1, 10, ""},
		{"latest", -1, 20, ""},
		{"10", -1, 10, ""},
		{"20", -1, 20, ""},
		{"9", -1, 0, "offset 9 is outside partition 0, which holds 10 to 19 (next 20)"},
		{"21", -1, 0, "offset 21 is outside"},
		{"ts:5", 12, 12, ""},
		{"ts:99", -1, 20, ""},
	} {
		from, err := parseStart("--from", c.from)
		if err != nil {
			t.Fatal(err)
		}
		spans, err := plan(from, []span{{first: 10, end: 20, atTimestamp: c.at}})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", c.from, err, c.err)
			}
			continue
		}
		if err != nil || spans[0].next != c.want {
			t.Errorf("%s: %+v, %v; want %d", c.from, spans, err, c.want)
		}
	}
}
