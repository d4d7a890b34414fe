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
package sim
