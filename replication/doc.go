// Package replication holds what makes copies of a partition agree: one replica
// as a pure core (Replica: leader and follower, high watermark, replicas in sync,
// what to cut off; Waiters: who waits for it), a broker's registration and lease
// (Session, pure too), and the metadata: Machine makes the state from the log of
// replication/quorum, Desk has replication/controller decide and the quorum commit
// (both pure), and Metadata is the shell around them.
//
// It knows the log's offsets and the metadata store; it knows no topic names,
// no clients and no broker, which it never imports. broker and main may
// import it.
//
// # Metadata
//
// A decision is made on the state that all decisions before it lead to, and is
// one entry of the log: all its records are in force, or none. A large one, about
// a broker with very many partitions or a request of many items, is several
// entries, after each of which the state is legal (controller.Divisible). Where the
// quorum has one member, an entry, the applied index and the records of the state are
// saved in one batch with one sync; term, vote and the first entry of a term go with
// the first decision's. The log keeps 1,024 entries.
//
// The store has, beside the quorum's keys, a record for each entry of the state
// under its key, and the hash of the state at the newest multiple of 1,000 of the
// log, on which all nodes must agree. A store of a version that had no quorum
// goes on as it is: its state counts as a snapshot at its applied index, and the
// log that it kept is removed.
//
// # What the owner of the cores keeps
//
// The cores do no I/O, so some of what they rely on is in the hands of whoever
// moves their bytes. In broker/sim that is a simulated node.
//
//   - The noted high watermark is lowered, durably, before the log is cut below it,
//     and when the log opens shorter (NewReplica).
//   - A Raise is done, as any Action is, before anything else is appended to the
//     log.
//   - When a flush ends, whoever waits is looked at again. The leader's own flush may
//     raise the high watermark (Advance), of which its followers are to hear. What a
//     follower has flushed it can say only by its next fetch: one that said that less
//     is flushed than it has is not held back until records come, but answered when
//     that flush has ended, or after a few milliseconds.
//   - A partition that turns from page-cache to fsync mode does not make durable what
//     it acknowledged before. Until a flush has covered that, it counts as one of
//     page-cache mode after a power cut (controller.Register.Lost).
//   - That records may be lost, and of which partitions, stays on the disk until a
//     registration that says so is answered, over any number of starts:
//     Register.PreviousEpoch, Lost and Unclean. A life that ends before the answer
//     leaves no trace of the loss elsewhere.
//   - Desk.Tick is called when Desk.Next says, which is asked again after every
//     other call: only so is a silent broker fenced.
//   - A message of the quorum for another member id than this node's is dropped
//     before quorum.Core.Step: the node had another directory when it was sent.
//   - A node that is removed from the quorum is taken away when all voters that
//     remain know of the removal (quorum.Core.Remove), not when it is committed.
package replication
