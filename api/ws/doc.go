// Package ws is the WebSocket door: subscriptions with credits and resume, and
// produce, on one socket. It knows package api for what the JSON doors share and
// broker for everything else. main may import it, and nothing else does.
//
// # The protocol, leat.v1.json
//
// GET /v1/ws with Sec-WebSocket-Protocol: leat.v1.json. A request that cannot
// become a WebSocket gets a problem (RFC 9457) before any upgrade: 426
// upgrade_required or unsupported_version, 400 bad_handshake or
// unsupported_subprotocol, 403 origin_not_allowed (an Origin that is neither the
// server's own nor listed), 503 too_many_connections or shutting_down.
//
// Each text message is one JSON object with the member "type" first. id and sub
// are strings of 1 to 64 bytes or integers, which come back as they were
// written. Members in brackets may be left out; others that are not listed are
// errors. Nothing is compressed.
//
// From the client:
//
//	subscribe    sub, topic, [id], [partitions], [from], [credit], [batch], [slow], [on_gap], [topic_id], [as]
//	  partitions  [0,2], or "all": every partition, also those to come. Absent
//	              means all, or with offsets in from those that it names.
//	  from        "earliest" · "latest" (default) · "ts:TIME" · "tail:N" · a cursor of the HTTP door
//	              {"ts":MS} · {"cursor":"…"} · {"0":123,"1":45} (the next offset wanted, by partition;
//	              partitions that it does not name begin at 0, if they are followed at all)
//	  credit      absent or {"auto":true,["bytes"],["records"]}: a window (1 MiB, 1000 records) that the server
//	              tops up when a frame is written. {"bytes":B,"records":R}: only credit messages add to it.
//	  batch       {["max_bytes"] of records in a frame, 1 to 262144, default 65536,
//	              ["max_delay_ms"] 0 to 100, default 25: how long frames may wait under load}
//	  slow        "park" (default): what lags, lags. "skip": see below.
//	  on_gap      "earliest" (default) · "latest" · "fail"
//	  topic_id    of an earlier subscribed; another topic of that name is a stream_reset
//	  as          "json" · "string" · "base64", as at the HTTP door
//	credit       sub, [bytes], [records], [id]       adds; for an automatic credit it widens the window
//	pause        sub, [id]                           nothing is read from the log while paused
//	resume       sub, [id]
//	unsubscribe  sub, [id]
//	produce      topic, records, [id], [acks], [receipts], [timeout_ms], [producer]
//	  records     an array of records as in POST /v1/topics/{topic}/records
//	  acks        "all" (default, -1) · "leader" (1) · "none" (0)
//	  receipts    "full" (default up to 1000 records) · "summary" · "none"
//	  timeout_ms  0 to 300000, default 30000: the wait for acks
//	  producer    {"id":1,"epoch":0,"seq":7,"partition":0}: as the headers Producer-Id, -Epoch and -Seq of the HTTP door
//	ping         [id]
//
// From the server:
//
//	ready         conn, hb_ms, limits                first of all
//	subscribed    [id], sub, topic, topic_id, positions {"0":123}    before the first data
//	data          sub, p, prev, next, records        records of partition p, as the HTTP door writes them
//	gap           sub, p, from, to, reason           "expired" (retention) or "skipped"; takes the place of [from, to)
//	stream_reset  [id], sub, topic                   the topic is gone, or another one; the subscription is over
//	paused, resumed, unsubscribed    [id], sub
//	produced      [id], count, [failed], [receipts] or [partitions]
//	pong          [id]
//	hb                                               after hb_ms of silence, for clients that cannot see pings
//	goaway        after_ms                           the server stops; reconnect after so long, 0.5 to 10 s: each client
//	                                                 is told another time
//	error         [id], [sub], problem               a subscription that ends by an error ends with this
//
// An error answers a message, and leaves the connection and what else it has
// as they are. A produce is checked whole before anything is written; its
// problem has the index of each bad record.
//
// # Neither lost nor repeated
//
// For each partition the data and gap messages of a subscription are a chain:
// the first prev (or from) is the position that subscribed named, each later one
// is the next (or to) of the message before. A client that keeps next once it is
// done with a message, and subscribes from it, with partitions "all" and the
// topic_id, misses nothing and gets nothing twice. The server keeps nothing for
// clients that are gone. A record's offset plus one is not always next: batches
// may hold fewer records than offsets.
//
// Answers to produce come in the order of the messages, and so do the appends.
// One that a broken connection swallowed may have been written or not: who wants
// to know gives each message its producer and sends it again.
//
// # Flow
//
// One data frame is under way on a connection; its subscriptions take turns by
// frames, and other messages go before data. Nothing is read from the log
// without credit, or ahead of the socket: a client that does not read costs one
// frame, and some 128 KiB of the kernel beside what it has offered to take. At least one record goes while both credits are above zero. A
// subscription with slow "skip" that was up to date once, then lags for a second
// by more than 1000 records in a partition, is moved to 100 before its end.
//
// The first frame after a pause goes at once. Under load the next waits for
// company, counted from when the one before was begun: not up to 1,000 frames a
// second of the whole server, max_delay_ms from 10,000 on, and in proportion
// between.
//
// The server does not read from a client whose produce messages of 4 MiB wait
// for receipts, or which does not take its answers. One that is beyond a quota
// for what it sends is told so by an error without id, quota_rate, and not read
// for the retry_after_ms there; its message was taken. One that is beyond the
// quota for what it is sent gets no data for as long.
//
// # Liveness and close codes
//
// The server pings every 25 s and expects the pong within 10 s. The reason of a
// close frame begins with the word below.
//
//	1000  client           the answer to the client's close, with its own code
//	1001  ping_timeout
//	1002  protocol_error   unmasked frames, bad opcodes, bad fragments …
//	1003  unsupported_data binary messages
//	1007  invalid_utf8
//	1009  message_too_big  1 MiB; a produce --max-request-bytes
//	1011  internal
//	4002  slow_consumer    a write took 10 s; most clients see 1006, since a close
//	                       frame cannot overtake what they do not read
//	4008  overloaded       too many bytes are on their way to the server
//	4010  draining         the server stops
//
// After 4000 to 4499, 1001 and 1006 a client may come again, after 0.5 to 30 s
// with full jitter.
//
// # Inside
//
// core.go, subscription.go, credit.go, parse.go, reply.go and pace.go decide and
// do no I/O. session.go is a connection: its reader is its only goroutine
// while it is idle, and each message begins a fresh one, so that no grown stack
// is kept. What is sent leaves in turns of one message, run by the few workers
// of pool.go, so a slow client has its worker only while its write blocks, and
// then another takes its place. wire.go is the socket under the library: small
// buffers, one write a frame. wheel.go has the timers.
//
// # Lock order
//
// Server.mu, session.mu, pool.mu, wheel.mu and wire.mu are never held together,
// nor over a write, a read or a call of the broker.
package ws
