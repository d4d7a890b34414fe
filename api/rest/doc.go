// Package rest is the HTTP door: topics, groups, produce, long-poll fetch and
// streams as JSON, NDJSON, server-sent events, CloudEvents, plain bytes and raw
// record batches, the documentation and the health pages. It translates between
// HTTP and broker and decides nothing about records itself.
//
// Every answer that is not a success is application/problem+json (RFC 9457)
// and is written by problem.go alone. openapi.yaml at the top of the module is
// the contract; a test keeps it equal to the table in routes.go.
//
// # Paths
//
// chi is the server's handler itself, because a ServeMux in front answers 301
// to unclean paths. Paths are matched as escaped, so a topic segment can never
// become two, and are neither cleaned nor redirected: a trailing slash is
// another path and has no route.
//
// # Bodies
//
// A request's body is read whole into a pooled buffer, against a limit on the
// bytes of the wire, one on the bytes decoded, and an api.Budget for all
// requests and for those of each principal. A client that sends less than a
// certain number of bytes in each span of time is refused. The body is checked
// whole before the first append.
//
// With stream=true a body is an upload (upload.go): it has no end, is appended a
// part at a time, and its receipts go back on the same connection while more
// comes. The queues between its three goroutines are of a fixed length.
//
// # Answers
//
// Long ones are written a chunk at a time, and compressed as Accept-Encoding
// asks. An encoder counts in the Budget; an answer that finds no room there goes
// as it is. Raw batches leave by sendfile, and answers with an entity tag as they
// are: neither is compressed.
//
// # Groups
//
// A worker of a group is no session here: each request carries what it is about,
// and the leases are the broker's. What this door adds is the answer: records
// of a lease are looked through before the first byte, and a lease that cannot be
// shown, or whose client is gone before that, is given back. An ETag stands for a
// state, and If-Match is compared by the broker in the step that changes it.
//
// # Streams
//
// A stream is the handler's goroutine and a broker.Tail. It has no queue: it
// reads the log at its own pace, through an api.Feed that makes the text of a
// place once for all, and copies that into one buffer, which it has only while
// there is something to send. A client that does not read holds up its own
// stream until the write deadline ends it. While nothing comes, a stream wakes
// for its heartbeat alone.
//
// main may import it. It imports api, auth, broker and storage/record.
package rest
