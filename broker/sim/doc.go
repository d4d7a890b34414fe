// Package sim proves the cores of a cluster in a simulation. It is tests only;
// nobody imports it.
//
// One goroutine runs a whole cluster of real cores (the replica, the
// controller, the quorum, the group shard) on virtual time, over a network that
// loses, doubles, reorders and delays messages and over disks that crash, tear,
// fail, are slow or full, all from one seed: the same seed is the same run. Some
// faults hit any node (faults_test.go), others are aimed at one that leads or decides
// (trouble_test.go). Nodes lose their disks (lost_test.go), and whole clusters shrink
// to one broker and grow again (shrink_test.go). Three things judge what happened:
//
//   - the invariants I1 to I28, asked after every step of the world;
//   - the history checker, asked at the end about all that clients were told;
//   - an explorer, which goes through every state that three replicas and a
//     controller can get into within limits. Worlds that go on alike are one in
//     their normal form (explorer_normal_test.go), so that the number of elections
//     needs no limit.
//
// That they see what they are there to see is proven by breakages: rules of the
// cores that are broken on purpose, each of which must be caught.
//
// # Invariants
//
// Of a partition and its replicas:
//
//	I1  a leader epoch has one leader
//	I2  no epoch or term that anybody sees ever falls
//	I3  a batch of one epoch and offset is the same bytes wherever it is
//	I4  and so is all in front of it, as far as a log goes back
//	I5  the epochs that a log knows are those of its batches, rising
//	I6  a high watermark is within its log
//	I7  what is committed stays: with a leader, and with each that is elected cleanly
//	I8  who is or may be in sync holds what its leader has committed
//	I9  a leader is in sync
//	I10 nobody enters the ISR who is fenced, shuts down or is of an earlier life
//	I11 eligible leaders are there only while too few are in sync, and hold what is committed
//	I12 with too few in sync nothing is committed
//	I13 an acks=all append is acknowledged when as many hold it as must, on disk in fsync mode
//	I14 nobody reads at or above the high watermark of whom it asks
//	I15 records below a high watermark are cut off only after an unclean election
//	I16 an offset has one value for ever
//	I17 a sequence of an idempotent producer is at one offset
//	I18 what a log knows of producers is the fold of its batches
//
// Of groups, metadata and nodes:
//
//	I19 what is applied to a view is committed, and the view is the fold of it
//	I20 a committed group offset is a linearizable register; generations never fall
//	I21 all nodes have the same metadata at the same index
//	I22 after an I/O error nobody acknowledges, votes or decides before a restart
//	I23 what waits is answered by its deadline
//	I24 without faults every partition is led and wholly in sync soon
//	I25 no log goes without a decision that says so
//	I26 a controller decides only in a term whose first entry it has applied
//	I27 a vote, a term and an entry that were promised are on disk
//	I28 who answers without others, or serves reads, holds a lease, and no other leads meanwhile
package sim
