package storage

import (
	"math/rand/v2"
	"slices"
	"testing"

	"leat/storage/disk/disktest"
)

// TestSoak searches for seeds that break a proof; see make soak.
func TestSoak(t *testing.T) {
	disktest.Soak(t, modelProof, compactProof, scriptSoak, optionsProof, lyingProof, orderProof, mutantSoak)
}

// TestCrashTwice proves what TestCrashEverywhere does for second cuts that a
// seed chooses, and for any share that is kept.
func TestCrashTwice(t *testing.T) {
	unraced(t)
	disktest.Run(t, scriptSoak)
}

var scriptSoak = disktest.Proof{Name: "TestCrashTwice", Short: 2, Body: func(t testing.TB, seed uint64, c *disktest.Counts) {
	rng := rand.New(rand.NewPCG(seed, 0))
	s := &script{world: &world{}, cfg: scriptConfig, noSyncAll: rng.IntN(2) == 0, keeps: []float64{rng.Float64()}}
	s.rolls = rng
	if rng.IntN(2) == 0 {
		s.cfg = lazyConfig
	}
	cuts, again := s.prove(t, shortStep+rng.IntN(shortStep))
	c.Crashes.Add(int64(cuts + again))
	c.Operations.Add(int64(cuts))
}}

// mutantSoak leaves out a random sync or rename: the proofs that notice it must
// notice it in every run.
var mutantSoak = disktest.Proof{Name: "TestNoticed", Short: 1, Body: func(t testing.TB, seed uint64, c *disktest.Counts) {
	sites := disktest.Sites(t, "leat/storage", ".")
	sites = slices.DeleteFunc(sites, func(s disktest.Site) bool { return needless[s.String()] != "" })
	i := int(seed % uint64(len(sites)))
	noticed := slices.ContainsFunc(mutantProofs, func(p mutantProof) bool {
		c.Crashes.Add(1)
		w := &world{mute: func() bool { return disktest.Caller(sites) == i }}
		return disktest.Attempt(t, func(t testing.TB) { p.prove(t, w) }) != ""
	})
	if !noticed {
		t.Fatalf("nothing breaks without %s", sites[i])
	}
}}

// TestNoticed runs the seeds with which a missing sync was not noticed.
func TestNoticed(t *testing.T) { disktest.Run(t, mutantSoak) }
