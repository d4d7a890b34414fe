package storage

import (
	"math/rand/v2"
	"slices"
	"testing"

	"leat/storage/disk/disktest"
)

// What a log is exposed to, and which tests prove that it stands that; where nothing
// else is said they are in this package. LEAT_LONG=1 makes some as large as they can
// be, and make soak looks for new seeds.
//
//   - power cut at any moment, any share kept: TestModel, TestCompactModel,
//     TestCrashTwice; broker TestModel.
//   - before each operation of a fixed life: TestCrashEverywhere, TestTruncateCrash,
//     TestSwapCrash, TestRepairCrash.
//   - again during the recovery from one: TestCrashEverywhere, TestCrashTwice.
//   - order of syncs, and each one needed: TestOrder, TestEverySyncIsNeeded,
//     TestNoticed; broker TestOrder; meta TestEverySyncIsNeeded.
//   - a disk that lies: TestLyingDisk.
//   - torn ends, lost sectors, foreign bytes, zeros: TestTornAtEveryByte,
//     TestTornSector, TestForeignTail, TestZerosDoNotGrow.
//   - bits that flip in logs: TestFlippedHeader, TestFlips, TestFlipsAreNotRead,
//     TestCheckFlips; e2e TestFlippedBits, TestFlippedBitsAtDoors.
//   - damaged indexes, checkpoints, marks, snapshots: TestDamagedIndex,
//     TestCheckpointBitFlips, TestCheckpointSlots, TestCleanMarkerDamaged,
//     TestSnapshotBad.
//   - damaged metadata: meta TestDamageNamesFile, TestLostMarkers; e2e
//     TestDamagedMetadata.
//   - missing, unknown, swapped, restored files: TestRecovery,
//     TestLostAndBroughtBack, TestSetAside, TestSwappedDirectories, TestReplacedLog,
//     TestOlderBackup, TestOddLog.
//   - no room, quota, file size: TestNoSpaceEverywhere, TestNoRoomAnywhere,
//     TestLowWater, TestFilledByOthers; meta TestFullDiskEverywhere; broker
//     TestFullDisk; e2e TestDiskFull, TestDiskFilledByOthers, TestFileSizeLimit.
//   - errors of any call, syncs that fail once: TestErrorsAnywhere,
//     TestSyncErrorIsFinal, TestWriteErrorIsUndone, TestTruncateFault; meta
//     TestFailureIsFinal.
//   - a disk that hangs: TestStalledDisk.
//   - kill -9, stop under load, pause, second process: TestModel; broker TestModel;
//     e2e TestKillLoop, TestKillsAtEachStep, TestStopUnderPolls, TestPausedProcess,
//     TestSecondProcess.
//   - descriptors and mappings: TestOutOfDescriptors, TestFileAndMappingLimits,
//     TestMappingsAreBounded; e2e TestFewDescriptors, TestIndexesAreHurt.
//   - clocks: TestClockJumps, TestClockWatch, TestSteady, TestAgeSurvivesRestarts;
//     broker TestRetentionWithoutClock.
//   - nothing, the largest, the furthest: TestEmptyFiles, TestForeignDirectory,
//     TestLargestBatches, TestLargestSegment, TestLargeOffsets, TestHugeHole.
//   - rewriting beside readers: TestSwap, TestSwapCrash, TestCompactConcurrently.
//   - everything at once under the race detector: TestConcurrentUse,
//     TestTruncateStress, TestSetStartStress; broker TestRetentionRaces.
//   - the same answers with any options: TestOptionsChangeNoAnswer.
//   - any bytes in any decoder: FuzzDecoders, FuzzIndex, FuzzSnapshot,
//     FuzzSwapRecord, FuzzDecodeCheckpoint, FuzzDecodeClean, FuzzParseIdentity;
//     record FuzzNext, FuzzCheck, FuzzReader, FuzzTimes, FuzzRewrite.
//   - scrub and check: TestScrub, TestFindFlip, TestCheckDamage, TestCheckOnDisk;
//     e2e TestScrubFinds, TestCheck.

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
