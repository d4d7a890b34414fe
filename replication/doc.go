// Package replication holds what makes copies of a partition agree: one replica
// as a pure core (Replica: leader and follower, high watermark, replicas in sync,
// what to cut off; Waiters: who waits for it), a broker's registration and lease
// (Session, pure too), and the metadata: Machine makes the state from the log of
// replication/quorum, Desk has replication/controller decide and the quorum commit
// (both pure), and Metadata is the shell around them.
//
// # Metadata
//
// A decision is made on the state that all decisions before it lead to, and is
// one entry of the log: all its records are in force, or none. What is decided
// about a broker with very many partitions is several, after each of which the
// state is legal (controller.Divisible). Where the quorum has one member, an entry,
// the applied index and the records of the state are saved in one batch with one
// sync; term, vote and the first entry of a term go with the first decision's. The
// log keeps 1,024 entries.
//
// The store has, beside the quorum's keys, a record for each entry of the state
// under its key, and the hash of the state at the newest multiple of 1,000 of the
// log, on which all nodes must agree. A store of a version that had no quorum
// goes on as it is: its state counts as a snapshot at its applied index, and the
// log that it kept is removed.
//
// It knows the log's offsets and the metadata store; it knows no topic names,
// no clients and no broker, which it never imports. broker and main may
// import it.
package replication
