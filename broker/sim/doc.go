// Package sim proves the cores of a cluster in a simulation. It is tests only;
// nobody imports it.
//
// One goroutine runs a whole cluster of real cores (the replica, the
// controller, the quorum, the group shard) on virtual time, over a network that
// loses, doubles and reorders messages and over disks that crash, tear and
// fail, all from one seed: the same seed is the same run. Three things judge
// what happened:
//
//   - the invariants I1 to I28, asked after every step of the world;
//   - the history checker, asked at the end about all that clients were told;
//   - an explorer, which tries every interleaving of a small case.
//
// That they see what they are there to see is proven by breakages: rules of the
// cores that are broken on purpose, each of which must be caught.
package sim
