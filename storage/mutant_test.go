package storage

import (
	"strings"
	"sync"
	"testing"

	"leat/storage/disk"
	"leat/storage/disk/disktest"
)

// needless are the sites that no proof needs to notice, each with the reason.
var needless = map[string]string{
	"swaprecord.go endSwap SyncDir": "a COMPACT that comes back says the same as before, and the next start removes it again",
}

type mutantProof struct {
	name  string
	prove func(testing.TB, *world)
}

// mutantProofs are the proofs that must notice a sync or rename that is not
// there, the quickest first. Who adds such a call adds what would break without
// it; a call that no other proof needs must be noticed in every run.
var mutantProofs = []mutantProof{
	{"created logs are there", proveCreated},
	{"removed files are gone", proveRemoved},
	{"a checkpoint is there before what it vouches for goes", proveCheckpoint},
	{"a clean stop is known", proveCleanStop},
	{"many logs are durable", proveMany},
	{"killed, started, and cut", proveKilled},
	{"a checkpoint names what has a name", proveCheckpointNames},
	{"recovered names", proveRecoveredNames},
	{"a log that was not created is", proveBegun},
	{"an index is rebuilt once", proveRebuilt},
	{"what is sealed is not read again", proveSealed},
	{"stale index files", proveOrphans},
	{"seals have no holes", proveSealOrder},
	{"what was behind a torn end stays away", proveTorn},
	{"what was set aside stays away", proveAside},
	{"removed logs stay away", proveGone},
	{"a file that is no part of a log is set aside", proveOrphanLog},
	{"a producer outlives its batches", proveSnapshot},
	{"a snapshot of what is lost stays away", proveStale},
	{"a lost log begins anew and what was there is kept", proveAnew},
	{"what a truncation leaves is durable", proveTruncated},
	{"nothing comes before what it waits for, 0", orderProofOf(0)},
	{"nothing comes before what it waits for, 1", orderProofOf(1)},
	{"nothing comes before what it waits for, 2", orderProofOf(2)},
	{"nothing comes before what it waits for, 3", orderProofOf(3)},
	{"what was cut off stays away, sealed", truncateProof(cutCase{[2]int64{21, 4}, 0, true})},
	{"what was cut off stays away", truncateProof(cutCase{[2]int64{27, 13}, 0, false})},
	{"what was cut off stays away, the start included", truncateProof(cutCase{[2]int64{20, 9}, 9, true})},
	{"segments are replaced whole or not at all", proveSwap},
}

// TestEverySyncIsNeeded proves that each sync and each rename in the sources is
// there for a reason: without it some proof fails. It finds the calls in the
// sources, so that none is forgotten.
func TestEverySyncIsNeeded(t *testing.T) {
	t.Parallel()
	sites := disktest.Sites(t, "leat/storage", ".")
	if len(sites) < 20 {
		t.Fatalf("only %d sites were found", len(sites))
	}
	whole := make([]func() string, len(mutantProofs))
	for i, p := range mutantProofs {
		whole[i] = sync.OnceValue(func() string {
			return disktest.Attempt(t, func(t testing.TB) { p.prove(t, &world{}) })
		})
	}
	known := map[string]bool{}
	for i, site := range sites {
		known[site.String()] = true
		if needless[site.String()] != "" {
			continue
		}
		t.Run(strings.ReplaceAll(site.String(), " ", "_"), func(t *testing.T) {
			t.Parallel()
			proveNeeded(t, sites, i, whole)
		})
	}
	for name := range needless {
		if !known[name] {
			t.Errorf("%q is called needless, but there is no such call", name)
		}
	}
}

// proveNeeded looks for a proof that fails without the site, and does not
// otherwise.
func proveNeeded(t *testing.T, sites []disktest.Site, i int, whole []func() string) {
	reached := false
	for n, p := range mutantProofs {
		w := &world{mute: func() bool { return disktest.Caller(sites) == i }}
		failure := disktest.Attempt(t, func(t testing.TB) { p.prove(t, w) })
		reached = reached || w.hits.Load() > 0
		if failure == "" {
			continue
		}
		if failure := whole[n](); failure != "" {
			t.Fatalf("%s fails in a whole world:\n%s", p.name, failure)
		}
		t.Logf("%s: %s", p.name, failure)
		return
	}
	t.Errorf("nothing breaks without %s (reached: %t): add to mutantProofs what would, or to needless why not", sites[i], reached)
}

// skips says whether the operation is the one that this world lacks.
func (w *world) skips(op disk.Op) bool {
	if w.mute == nil || !disktest.Asks(op.Kind) || !w.mute() {
		return false
	}
	w.hits.Add(1)
	return true
}

// reopened is fs as a disk of this world.
func (w *world) reopened(fs *disk.Mem) *disk.Mem {
	w.fault(fs, nil)
	return fs
}

// openDir opens a directory that the proof's end closes, also when it fails.
func (w *world) openDir(t testing.TB, fs *disk.Mem, change ...func(*Options)) *Dir {
	d := openDir(t, fs, change...)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// kill ends the process that has d open, as kill -9 does: what it wrote is in
// the page cache, and not one byte more comes.
func (w *world) kill(fs *disk.Mem, d *Dir) {
	fs.SetFault(func(op disk.Op) error {
		if op.Kind.Changes() {
			return disk.ErrSkip
		}
		return nil
	})
	_ = d.Close()
	w.fault(fs, nil)
}
