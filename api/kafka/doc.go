// Package kafka is the Kafka door: the Kafka wire protocol over TCP, as every
// Kafka client speaks it. It decodes requests, calls broker, and encodes the
// answers; it decides nothing about topics, records or rights.
//
// It does not speak TLS or SASL, serves groups of the classic protocol but not of
// KIP-848, no share groups and no transactions, and advertises nothing that it
// does not serve. SUPPORT.md has every API of Kafka with what is served of it;
// it is made from the table in handlers.go and the comments over the handlers.
// Only main imports it.
//
// # A frame
//
//	int32 size | int16 key | int16 version | int32 correlation id | string client id [| tags] | body
//	int32 size | int32 correlation id [| tags] | body
//
// All integers are big endian. The tags are there in flexible versions
// (KIP-482), except in the answer of ApiVersions (KIP-511).
//
// # A connection
//
// Two goroutines own it. The reader reads frames and starts them in order: a
// produce is appended before the next frame is read, so that requests sent
// back to back share one flush. Calls that have nothing to wait for, behind none
// that waits, are answered by the reader. The others go through a queue to the
// writer, which waits for acknowledgements and for data and answers in the same
// order. Calls that change or show metadata wait for those before them, and the
// next frame for them, so each sees what its predecessors did.
//
// The queue is bounded by calls and by bytes; at the bound the reader stops
// reading and TCP holds the client back. It also does where the client is beyond
// a quota, for as long as the answer says.
//
// # Memory
//
// Nothing is allocated for a size that a client only announces: a body's
// buffer grows as its bytes arrive, and all buffers together stay within a
// budget; beyond it a connection is not read from. Record bytes are appended
// from that buffer in place. A fetch costs the door no allocation: its body is
// read where it arrived, its request is decoded by hand into memory that is used
// again, and bytes are counted by the connection and added up when somebody
// asks. Fetched bytes of 32 KiB or more never enter the process: they leave
// the segment file by sendfile(2) behind a skeleton that is encoded by hand.
//
// An answer is in proportion to what is asked and to what there is: what a
// request names again is answered once, or refused behind a bound, and the size
// of a request is bounded for each API.
//
// # What is refused without an answer
//
// A size that is negative or above the limit, bytes that look like HTTP or
// TLS, an unknown API key or version, and a body that does not decode: the
// connection is closed at once, with one rate-limited line in the log.
package kafka
