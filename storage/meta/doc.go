// Package meta is the key-value store below a node: cluster metadata, applied
// state, group offsets. It is Pebble over the same disk seam as the log, so a
// crash test cuts both at the same instant; nobody else imports Pebble.
//
// It knows keys and bytes, not records: what a key means is written in
// keys.go, what a value means with whoever writes it. A commit is durable when
// Commit returns, always. There is no way to write without a sync, because a
// NoSync commit of Pebble sits in process memory and does not even survive
// kill -9.
//
// storage's callers above it (replication, broker) and main may import it.
package meta
