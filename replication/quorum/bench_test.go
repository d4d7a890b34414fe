package quorum_test

import "testing"

// BenchmarkIdle is a second of a cluster of three that has nothing to do, 40 ticks.
func BenchmarkIdle(b *testing.B) {
	c := benchCluster(b)
	b.ReportAllocs()
	for b.Loop() {
		c.tick(40)
	}
}

func benchCluster(b *testing.B) *cluster {
	b.Helper()
	c := &cluster{t: b, nodes: map[uint64]*node{}, cut: map[[2]uint64]bool{}}
	for id := uint64(1); id <= 3; id++ {
		c.work(c.add(id, []uint64{1, 2, 3}))
	}
	c.elect()
	return c
}

// BenchmarkPropose is a proposal that three nodes commit and apply.
func BenchmarkPropose(b *testing.B) {
	c := benchCluster(b)
	l := c.leader()
	b.ReportAllocs()
	for b.Loop() {
		if err := l.core.Propose(c.id(), []byte("some bytes of a record")); err != nil {
			b.Fatal(err)
		}
		c.settle()
	}
}
