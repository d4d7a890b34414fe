// Package meta is the key-value store below a node: cluster metadata, applied
// state, group offsets. It is Pebble over the same disk seam as the log, so a
// crash test cuts both at the same instant; nobody else imports Pebble.
//
// It knows keys and bytes, not records: what a key means is written in
// keys.go, what a value means with whoever writes it. A commit is durable when
// Commit returns, always. One of CommitLazy is not: it sits in process memory
// until the next Commit or Sync and does not even survive kill -9, so it is only
// for what can be made again from a log.
//
// storage's callers above it (replication, broker) and main may import it.
package meta
