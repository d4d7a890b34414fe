package group

import "testing"

// A view belongs to a log that has all that the view has, of the same leader.
func TestViewFits(t *testing.T) {
	offsets := func(n int) []Change { return make([]Change, n) }
	// [10, 13) of epoch 0, [13, 15) of epoch 2, [15, 20) of epoch 3
	l := &memLog{start: 10, batches: []memBatch{{epoch: 0, changes: offsets(3)}, {epoch: 2, changes: offsets(2)}, {epoch: 3, changes: offsets(5)}}}
	for a, want := range map[Applied]bool{
		{9, 0}:   false, // what is between is lost
		{10, 0}:  true,  // there is nothing to compare with, and nothing is missing
		{10, 7}:  true,
		{10, -1}: true,
		{15, -1}: true,
		{11, 0}:  true,
		{13, 0}:  true,
		{14, 0}:  false,
		{13, 1}:  false,
		{13, 2}:  false,
		{14, 2}:  true,
		{15, 2}:  true,
		{15, 3}:  false,
		{16, 2}:  false,
		{16, 3}:  true,
		{20, 3}:  true,
		{20, 4}:  false,
		{21, 3}:  false, // the log has lost what the view has
	} {
		if got, err := a.fits(l); got != want || err != nil {
			t.Errorf("%+v: got %t, %v", a, got, err)
		}
	}
}
