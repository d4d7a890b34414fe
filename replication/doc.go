// Package replication holds what makes copies of a partition agree: one replica
// as a pure core (Replica: leader and follower, high watermark, replicas in sync,
// what to cut off; Waiters: who waits for it), a broker's registration and lease
// (Session, pure too), and the shell that commits the metadata that
// replication/controller decides (Local).
//
// It knows the log's offsets and the metadata store; it knows no topic names,
// no clients and no broker, which it never imports. broker and main may
// import it.
package replication
