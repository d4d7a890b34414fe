package group

import (
	"strings"
	"testing"
)

// A batch takes as many changes as fit, and one at least.
func TestRoundFits(t *testing.T) {
	r := round{}
	for _, n := range []int{300, 100, 100, 500} {
		r.changes = append(r.changes, Change{Group: strings.Repeat("g", n-100)})
	}
	for limit, want := range map[int]int{100: 1, 299: 1, 300: 1, 399: 1, 400: 2, 500: 3, 999: 3, 1000: 4} {
		if got := r.fit(limit); got != want {
			t.Errorf("%d of them fit %d bytes, want %d", got, limit, want)
		}
	}
}
