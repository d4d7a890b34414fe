// Package record is record batch v2, the one format that producers send,
// segments hold and consumers get: a view of the header, the checksum, the
// walk over the records, the builder, and the four codecs; and the Rewriter, by
// which compaction reads keys and leaves records out. It also names the file
// section that the log hands to the doors.
//
// It does no I/O and imports nothing of Leat's; everyone may import it.
//
//	off len field                off len field
//	  0   8 baseOffset       *    27   8 baseTimestamp
//	  8   4 batchLength      *    35   8 maxTimestamp
//	 12   4 leaderEpoch      *    43   8 producerId
//	 16   1 magic = 2        *    51   2 producerEpoch
//	 17   4 crc32c of [21:]  *    53   4 baseSequence
//	 21   2 attributes            57   4 recordCount
//	 23   4 lastOffsetDelta       61   … records, or one compressed blob
//
// All integers are big endian. The fields marked * are outside the checksum,
// which is why the log may patch offset and epoch in place.
//
// In a stored batch recordCount may be less than lastOffsetDelta + 1, or 0, where
// compaction has left records out; the batch keeps its range of offsets. Bit 6 of
// the attributes says that baseTimestamp is the delete horizon (KIP-534).
//
// Source: Kafka's DefaultRecordBatch, KIP-98, KIP-32, KIP-35.
package record
