// Package controller decides about metadata: which topics, partitions, leaders
// and configs exist. It is a pure function, Step(state, event, now) -> records,
// and a pure fold, State.With(records) -> state, without goroutine, clock, disk
// or network; package replication is the shell that commits the records.
//
// Metadata is a log of versioned records. A record is
//
//	type u8 | version u8 | payload
//
// with unsigned varints, and strings and lists led by their length. A record
// whose type or version is unknown is refused, so that an older binary never
// runs on newer metadata. Each record either sets or removes entries of the
// state, named by a key, so that the state is the log compacted by key and a
// start reads the state alone.
//
// replication and broker may import it; it imports the identifiers of storage.
package controller
