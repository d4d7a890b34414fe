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
// # Compaction
//
// One goroutine (compaction.go) has storage compact the partition with the
// greatest share of dirty bytes, up to where compactTo says, until none is due; then
// it looks again after log.cleaner.backoff.ms. One that it can do nothing with is
// passed over for the round, and one in which it met damage until it is repaired.
//
// # Damage
//
// A log with holes is fenced by storage: it takes no records (ErrDamaged), a read
// in a hole is a *CorruptError, and everything else is served (damage.go).
// ElectLeaders accepts the holes for good (elect.go).
//
// # Groups
//
// Package group says what groups do, and what of that is to be appended and applied
// before anybody is told; here is who does it. The offsets topic (offsetslog.go) is
// made when the first group comes. Each of its partitions has a shard (shard.go):
// one goroutine around a group.Shard, which alone touches the groups that hash to
// it. A request is a function in the shard's queue of 256, beyond which callers
// wait, and waits for the answer to its token. Whenever something has happened the
// shard tells its core how far the log is committed, and does what that asks for
// (shardwork.go).
//
// What requests change is gathered into a round. A round is one batch, appended as
// with acks=all, and its answers go out once the watermark is past it and the store
// has it; two rounds may be on their way, and what comes meanwhile gathers for the
// next. A commit of more than a batch is refused. One for which the store has no
// room waits, and its callers with it.
//
// The store (offsetstore.go) is what the log says, in the metadata store beside
// the offset up to which it does and the leader epoch of what is before that; one
// that does not fit its log is made again. It is written without waiting for the
// disk, which is asked for once a second; so a start reads the log only from there.
// Compaction of the topic stays behind what is durable of the store. Members get
// a whole session from the start on and keep their generation.
//
// # Leases
//
// A group whose partitions are leased has no members. A take asks the shard for
// partitions and waits there, with the shard's one waiter parked in the lists of
// the partitions that have nothing to hand out (leaseshard.go); what it gets is
// reserved for it. Its own goroutine then reads the data (leaseread.go), writes
// dead letters (deadletter.go), and has the shard lease what it has read. That is
// one round for all partitions of a take, shared with whoever else takes or acks.
// Leases and waits are in memory while they are used and a minute longer; a start
// reads none. A round that is refused makes the shard forget the group's leases
// and read them again. What a take whose caller has gone was given is undone.
//
// An ack is an offset of the group, whose value has the lease in a tag, and the
// end of the lease's record. That record stands in the offsets topic with a key
// that Kafka's tools do not know and skip:
//
//	key    "LT" | len u16 | group | topic id [16] | partition i32
//	value  format u8 = 1 | flags u8 (1: delayed) | nonce [16]
//	       begin, first, next i64       the lease was of [begin, next), and is of [first, next)
//	       until i64                    ms since 1970, of the lease or the delay; 0 for none
//	       span, duration i64           ms: how long before until was set; of the lease by default
//	       deliveries, count, max i32   of the record at first; records handed out; the bound
//	       dead letter topic            the rest
//
// All numbers are big endian. There is a record while a lease lives or a delay
// lasts, and while records were handed out that are not committed.
//
// # Old offsets
//
// Offsets that nobody needs are removed by a goroutine (coordinator.go), through
// the shards: those of deleted topics at once and soon after a start, others by
// age.
//
// # Lock order
//
// Broker.mu, then topic.mu, then partition.mu, then waiter.mu or
// topicMetrics.mu. No lock is held over disk, network, a channel or a wake. Changes of topics and configs are
// serialised by one token (Broker.admin), which may be held over disk.
//
// The doors and main may import it.
package broker
