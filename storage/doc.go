// Package storage keeps the logs of a node's partitions in one data directory:
// Dir is the directory, Log one partition. It appends batches as producers sent
// them, makes them durable in groups, hands out file sections for sendfile, and
// after a crash opens with every durable record in its place.
//
// It knows nothing of replication, topics' metadata, or protocols: it never
// decides about an epoch and never deletes records by itself. broker,
// replication and main may import it; the doors only know record.
//
// # Directory
//
//	LOCK                     flock; the process id for people
//	meta.json                whose directory this is; written once
//	CLEAN                    only between a clean stop and the next start
//	BALLAST                  space set aside; see Room
//	checkpoint.0 .1          how far each log is durable; written in turn
//	db/                      the metadata store
//	logs/<topic id, 32 hex digits>-<partition>/
//	    partition            text: topic id, name, partition
//	    <base>-<gen>.log         batches one after the other, nothing else
//	    <base>-<gen>.index       offset → position
//	    <base>-<gen>.timeindex   time → offset
//	    COMPACT                  only while segments are rewritten
//	    <offset>.snap            idempotent producers as of that offset
//	trash/                   deleted logs and segments on their way out
//	quarantine/              what was set aside; nothing is ever removed here
//
// base is the segment's first offset in 20 decimal digits, gen in 6 hex digits
// is 0 in a segment as it was written and greater in one that was rewritten.
//
// The batches of a log are a chain: each begins at the offset where the one
// before ends, from segment to segment, too. As they were written they have a
// record for each of their offsets. In a rewritten segment a batch may have
// lost some or all of its records; it keeps its range of offsets. Instead of
// several batches in a row that lost all, there may be one without records that
// has their range.
//
// # Index files
//
// Little endian, CRC-32C. A 64-byte header, then entries of 12 bytes:
//
//	 0  4 "LTIX" or "LTTX"              40  8 wall clock of the last append, ms
//	 4  2 version = 2                   48  4 count of entries
//	 6  2 flags: 1 sealed, 2 rewritten  52  4 crc of the .log
//	      4 some batch has a producer   56  4 crc of the entries
//	      8 compacted up to its end
//	 8  8 base offset                   60  4 crc of [0,60)
//	16  8 next offset
//	24  8 bytes of the .log             .index entry:     u32 offset - base, u32 position,
//	32  8 max timestamp, -1 none                          u32 crc of .log [0, position)
//	                                    .timeindex entry: i64 T, u32 offset - base
//
// An .index entry says where the batch with that base offset begins, and what
// checksum all in front of it has; there is at most one in index.interval.bytes.
// So each part of a .log between two entries can be verified by itself, to the
// last byte. A .timeindex entry says that every
// record before its offset has a timestamp of at most T. Both grow strictly in
// offset. There is no entry for the segment's beginning.
//
// The seal (flag 1) is written when the segment has ended and its .log is
// durable, and then never changes: a start trusts it and the .log's size and
// reads nothing else of the segment. Before that the header says how far the
// entries reach and whether idempotent producers wrote up to there, and the
// checkpoint has the checksum of the entries.
//
// # Durability
//
// An append is in the page cache when Append returns: it survives the end of
// the process. It survives a power cut once Offsets().Durable is past it. In
// fsync mode (flush.messages=1) every append, whatever its acks, starts a
// flush round at once or is in the one after the running round; in page-cache
// mode a round comes when 16 MiB, flush.messages records or one second have
// gathered. Durable only moves on when all before it is durable, the name of
// the segment's file included.
//
// After a failed sync nothing more becomes durable and nothing more is
// appended, because the kernel may have dropped the data and will not say so
// again. A failed write is cut off; if that fails too, the same holds.
//
// Preallocation (fsync mode) extends the active .log with zeros, so that a sync
// need not write a size. Readers never see them: they are bounded by what was
// appended. They are cut off when the segment ends and at a clean stop.
//
// # Room
//
// Below the low-water mark (a fiftieth of the disk, 256 MiB to 4 GiB, and at
// most an eighth) appends are refused with ErrFull, so that reading, removing
// and the metadata's commits go on; the server's own appends, and new
// partitions, end at half of the mark. There is room again a quarter above.
// Nothing is preallocated below the mark. Free space is measured each second,
// and by the append that reaches the mark by its own count.
//
// BALLAST is a hundredth of the disk, at most 1 GiB; on disks under 8 GiB a
// 32nd, at most 16 MiB. It is removed when somebody else has filled the disk
// down to the last bytes, and made again when there is room. Its content means
// nothing, and nothing of it is synced. What meets a full disk nevertheless is
// undone and its request fails (appends), or is done again later (checkpoints,
// seals, removals, which need no room: a segment that cannot be moved into the
// trash is removed where it is).
//
// Every write, sync and change of names is noted while the disk has not answered
// it: Stalled is how long the oldest has been waiting, and from 5 s on it is told.
// Nothing is given up then: reads that need no disk go on, the rest waits.
//
// # Idempotent producers
//
// Their state is a fold over the log's batches. A snapshot of it, snapshot.go has
// the format, is taken at a segment's end, after 256 MiB of their batches and at
// a clean stop, if any wrote since the last one, and written once all before it
// is durable. The newest two are kept, and none is of an offset past the log's
// end: such go before anything is appended. Nothing refers to a snapshot. One
// that is missing or does not hold costs reading: a start takes the newest that
// holds and reads the headers of the batches behind it.
//
// A producer is remembered for ProducerExpiration after its last write by the
// broker's clock, over restarts, and also when its batches were deleted: segments
// go only when there is a snapshot behind them. Without that, which is so on a
// full disk, and for who is not remembered, any sequence will do. Should the wall
// clock have gone back over a restart, the time counts from the restart; and for
// what was written behind the last snapshot before a kill, from the last append to
// the segment, if the topic has no log append time.
//
// # Keyed requests
//
// The idempotency key of a request is a producer id from 2^62 on, which no producer
// is given; its batches count their sequence from 0 in each partition, and their
// base timestamp is when the request was first tried. What the logs of a topic
// have of such requests is a fold over their batches as well, in the same
// snapshots, but for itself: neither producers nor keys push the others out. All
// batches of a key are remembered, for KeyRetention from the first try on by the
// broker's clock, and at most MaxKeys in all logs of a topic, of which the oldest
// goes first, and so do those whose batches are too many: four for each of MaxKeys,
// 200,000 at least. A key of one batch takes some 145 bytes of memory and 54 of a
// snapshot: 100,000 take 15 MB. A batch that is sent again is a duplicate, one of
// another request is refused, and one that is missing is taken whatever others
// there are: so who retries writes what is not there, and no more.
//
// Compaction keeps the headers of the batches that are remembered, and gives none
// of them a delete horizon, which would take the place of the first try.
//
// # Leader epochs
//
// The epochs of a log's batches never fall, so where one ends is three binary
// searches: by the first batches of the segments, by the index, and in between
// from batch to batch. No file has a list of them. The log remembers what was asked
// and what was appended since, the newest without a gap; EpochEnd and
// TruncateToEpoch are all that needs it.
//
// # Truncation
//
// Truncate cuts batches off the end, durable ones too; only a follower does that,
// whose leader has others. What stays is synced, snapshots past the new end are
// removed, and the checkpoint says that no more is durable. Then the log in memory
// ends there, and on the disk go the segments behind it, the last one first and
// the directory synced after each, so that a crash leaves no gap; the indexes of
// the one that gets shorter, which is the active one from here on; and what is
// too much of its .log, which is synced before anything is appended. An error
// behind the checkpoint, which is in both slots, fails the directory. So a crash
// leaves a whole log that ends at the new end or behind it, by its usual rules.
//
// The segment that gets shorter is another one to those in the process, with an
// index that was made from the batches that stay. Whoever looks something up
// compares Log.cuts before and after, and looks again if it has grown.
//
// # The start
//
// SetStart raises the first offset; the caller makes it durable before and
// gives it to OpenLog. A segment that is wholly below it leaves the log once it
// is sealed and the durable mark is past it, and its files leave the disk after
// the next checkpoint, which says where the log begins: so whoever looks at the
// directory alone does not miss the records. Nothing is synced for that. What a
// crash brings back of such files, some or all, is unread and removed again. A
// log that ends below its start after a crash begins anew there. When the start
// is past all that the active segment holds, the keeper ends that one too.
//
// Expired says where the start may rise to by age and size, and Steady whether
// the wall clock is good for telling ages; the caller does the rest.
//
// # The scrub
//
// The scrub reads all sealed segments again, pass after pass, at ScrubRate bytes
// a second: each batch, the chain of offsets, the checksum of the file in the
// seal, and every index entry against the log. A batch that does not hold is
// told; where only the checksum of the file differs, it is a leader epoch that
// has changed, or the file is another one: then the entries' checksums tell where,
// and of one bit the place follows from the difference of two checksums. An index
// that does not hold is made anew from a log that does. It reads by the segments'
// open files, under no lock, and turns to the next when a segment has left its
// log. It remembers nothing over a restart, and begins with any log, so that
// frequent restarts do not leave out the same ones. The page cache keeps what is
// used more than once, so what the scrub reads once goes first.
//
// # Rewriting
//
// Segments change in one way only: others take their place. First COMPACT says
// that files of a generation that no segment has are no part of the log. They
// are written, sealed and made durable with their names. Then another COMPACT,
// put there by a rename, says that they are the log now instead of those that
// it names; that is the moment in which the log changes. The old files go, and
// COMPACT after them; a start does what of it a crash left undone. The new ones
// cover the same offsets, so whoever reads goes on; sections over the old ones
// stay valid. If the old ones have left the log meanwhile, nothing takes their
// place. A COMPACT whose checksum does not hold is not used: of each base the
// lowest generation counts, and a file that is none of the log's is set aside.
//
// # Compaction
//
// Compact goes over a log twice. First it takes the keys of what is dirty into
// a map of fixed size, each with the offset of its newest record: all behind the
// clean segments, up to the active one, the bound and what is too young, or as
// much as the map has room for. Then it rewrites all segments up to there,
// in groups that fit into one, and leaves out records with a newer one of their
// key, records without a key, and tombstones past their horizon. A segment of
// which all was in a map is clean, which its seal says; where the map was full
// within one it is divided. A clean segment can lose records, but adds none to
// the map: all in front of it has been held against its keys.
//
// A record's offset, timestamp, key, value and headers stay, and so do a
// batch's header and codec; its greatest timestamp is that of the records that
// are left. Tombstones that a pass went over get a horizon, delete.retention.ms
// from then: a flag in the attributes says that the base timestamp is it. A
// batch without records stays while a producer's retry would be compared with
// it, or might be after a crash that takes what is not durable. Of others a run
// within one leader epoch becomes a batch without records and producer, with -1
// for its timestamps, which lookups by time ignore.
//
// # After a crash
//
//   - Where there are many logs, one syncfs before any is opened makes durable
//     what is in the page cache only; where there are few, or it is not to be
//     had, each log that has grown since the checkpoint is synced.
//   - Segments in front of the one that has the start are not looked at.
//   - A segment that begins within a sealed one, whose .log has the size in the
//     seal, is none of the log's and goes to quarantine/; so it is where the seals
//     are damaged or missing and the batches reach to where a later one begins.
//     Where they end within another one, what both have is a hole.
//   - A sealed segment whose .log has the size in the seal is taken as it is, and
//     verified when it is read.
//   - Another one is scanned from the checkpoint's position, or from its
//     beginning: magic, length, checksum, offset chain and count of each batch.
//   - Where both seals agree and the .log has another size, the batches up to the
//     size in the seal must have its checksum, or where some do not hold or are
//     cut off, begin where the index says. Otherwise the .log is not the one that
//     was sealed, however sound its batches are, and all of it is a gap.
//   - What is behind the last valid batch is a torn end, if nothing that was
//     durable is missing: zeros stay as preallocation, anything else is copied
//     to quarantine/ (1 MiB of it) and cut, and the cut is synced before the
//     next append.
//   - A batch that does not hold below the durable bound is damage. The bound
//     is the seal's next offset, the checkpoint's offset, or the beginning of
//     the next segment if that is sealed or in the checkpoint. So are segments
//     that are missing. The log has holes then, see below.
//   - Segments behind a torn end go to quarantine/: they were never durable.
//   - Indexes that are missing or do not match are rebuilt from the .log, unless
//     that does not match the checksum of the whole: then there is a gap.
//
// # Damage
//
// A log with holes is fenced: a read that begins in a hole is a *CorruptError, one
// in front of a hole ends there, everything else is read as ever. Appends,
// SetStart and retention are refused or do nothing, and nothing of its files is
// changed. The checkpoint has that it is fenced, and it stays so over a restart.
//
// Within a .log a hole is a gap: from the batch that does not hold to the place
// from which the batches chain up to one that is known, by an index entry, the
// seal or the checkpoint. What only looks like a batch in between is not believed.
// The segment's CRC does not cover a gap.
//
// What this process has neither written nor scanned is verified once before it is
// handed out, or an epoch of it is: checksum and offset chain of each batch, and the
// checksum of the file from the index entry in front of it to the one behind, which
// covers what no batch's own does, such as the leader epoch, and tells a file with
// other sound batches in the place of the one that was written. A segment remembers
// what is left to verify as at most 64 ranges; what would make it more is verified
// again next time. Whatever makes new checksums of what it reads, which are a
// rebuilt index, a truncation, a compaction and a repair, verifies it against the
// old ones before.
//
// Two things no checksum covers: the leader epochs of batches behind the checkpoint
// of a run that did not end cleanly, of which nothing but the log says what they
// were, so that a change there counts as written; and, between a part that is
// damaged and the next index entry on either side, the epochs of batches that hold,
// which must only be in order.
//
// Repair accepts the holes: segments with gaps are rewritten by a swap, with an
// empty batch for the offsets of each hole, and so is the one in front of missing
// segments; the old files have a second name in quarantine/ before. Of two
// batches of which either may have the wrong epoch both are given up.
//
// A directory that is missing, or that holds nothing that can be a log, such as one
// in which something else than a file has a .log's name, is a hole from the log's
// start to its end: the log is lost. So it is when the text in the directory, whose
// checksum holds, names another partition; nothing of that one's files is touched.
// A text that is missing or damaged costs a warning. Its end is the last
// checkpoint's, and 2^32 more if the last run did not end cleanly, so that no
// offset is given twice. Repair puts what is there into quarantine/ and begins
// the log anew at that end.
//
// # Locks
//
// In the order in which they may be taken:
//
//  1. Log.rewriting: the turn of who rewrites, repairs or truncates the log, held
//     over all of it, for minutes maybe; whoever waits for it can be told to stop
//     waiting.
//  2. Log.cutting: over a truncation, and for reading over a flush, a seal, the
//     log's line of a checkpoint, the writing of a snapshot, the removal of
//     segments, and a raise of the start.
//  3. Log.writing: over one append, roll or trim; held over the write to the
//     file, never over a sync or a read but by a truncation and at a clean stop.
//  4. Log.examining: over the reading of a segment that is damaged; without cutting
//     and writing.
//  5. tables.repair: over the rebuilding of an index and the removal of a segment's
//     files. Dir.checkpointing: over the writing of a checkpoint.
//  6. Log.mu: the published state; never held over a system call.
//  7. Dir.mu, then keeper.mu.
//  8. queue.mu, files.mu, tables.mu, flusher.mu, unread.mu: leaves, for memory only.
//
// room.measuring, and then room.ballast, are held over a measurement of the disk and
// a change of the file, and taken without any other. OnFlush is called with cutting
// held for reading; OnDamage, OnFailure and OnRoom with no lock.
//
// # Goroutines
//
// Open starts five, and Close ends them and waits: the flusher, for the rounds of
// syncs; the keeper, for all that nobody waits for, which are seals, checkpoints,
// snapshots, removals, rolling by age, and the ballast; the scrub; one that
// measures the room, and may wait for the disk where it removes the ballast; and one
// that notices a stall and waits for nothing. What each does is its work alone and
// needs no lock among itself. A round of the flusher has workers that end with it,
// and the removal of trash has goroutines that Close waits for. All else is done
// by who asks for it: a compaction, which Close makes end soon, and a repair and a
// truncation, for which it waits.
//
// # Bounds
//
//	appends in line           the requests in flight, which the doors bound
//	appended and not durable  in page-cache mode 16 MiB or a second of each log
//	idle open files           a sixth of the descriptors; the one used longest ago closes
//	idle mapped indexes       1,024, likewise
//	producers of a log        65,536; the one that wrote longest ago is forgotten
//	epochs in memory          1,024 of a log; older ones are looked up
//	parts left to verify      64 of a segment; see Damage
//	compaction's map of keys  CleanerOptions.MapBytes; the next pass does the rest
//	snapshots of a log        2, and one that waits to be written
//	COMPACT                   16 MiB; a longer one does not hold
//	watched operations        64; more are as good as those
package storage
