// Package broker is the domain: topics, partitions, produce, fetch, offsets and
// configs of one node, with the data directory that it owns. It knows no
// protocol and no HTTP; the doors in api translate to and from it.
//
// Every method that does something for a client takes the client's
// auth.Principal and asks the authorizer, here and only here.
//
// # A produce
//
// Produce appends every batch, in order, before it returns: the log has the
// bytes in the page cache then. Produced.Wait waits as the acks ask: not at
// all, not at all, or until the high watermark is past the last record. The
// watermark follows the durable ends of the replicas in sync, or their log ends
// for a topic whose flush.messages is off.
//
// # A fetch
//
// Fetch reads every partition once. If that is less than asked it parks on all
// of them, and when a watermark passes the fetch offset reads that partition
// again, until there is enough or the wait is over. Nothing is copied: results
// are sections of segment files, which the caller must release.
//
// # A stream
//
// Tail is a position in each of some partitions and no goroutine. It parks in
// the same lists as a fetch (wait.go); whoever raises a watermark calls its
// wake, and its owner then asks which partition is next.
//
// # Configs
//
// What is in force for a topic is the first of: set for the topic, for this
// server, for all servers (these three are metadata and change at once),
// at the start, the default.
//
// # Retention
//
// One goroutine (retention.go) asks every log what it need not keep, makes the
// new starts durable in one commit, and then raises them, as DeleteRecords does.
// A partition that is damaged is left alone until it is repaired.
//
// # Damage
//
// A log with holes is fenced by storage: it takes no records (ErrDamaged), a read
// in a hole is a *CorruptError, and everything else is served (damage.go).
// ElectLeaders accepts the holes for good (elect.go).
//
// # Lock order
//
// Broker.mu, then topic.mu, then partition.mu, then waiter.mu or
// topicMetrics.mu. No lock is held over disk, network, a channel or a wake. Changes of topics and configs are
// serialised by one token (Broker.admin), which may be held over disk.
//
// The doors and main may import it.
package broker
