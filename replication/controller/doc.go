// Package controller decides about metadata: which topics, partitions, leaders
// and configs exist. It is a pure function, Step(state, event) -> records,
// and a pure fold, State.With(records) -> state, without goroutine, clock, disk
// or network; package replication is the shell that commits the records.
//
// Metadata is a log of versioned records. A record is
//
//	type u8 | version u8 | payload
//
// with unsigned varints, and strings and lists led by their length. A record
// whose type or version is unknown is refused, so that an older binary never
// runs on newer metadata. A record is written in the oldest version that carries
// it, and only if the feature level of the log is at least that of the version.
// Each record either sets or removes entries of the state, named by a key, so
// that the state is the log compacted by key and a start reads the state alone.
//
// Brokers register, are fenced when they are not heard of, and shut down by asking
// (register.go). A registration names the life of the broker before it that it knows
// of, so that one that comes late ends no later life, and the partitions of which
// acknowledged records may be lost. Every change of a partition, whatever led to it,
// is built in change.go: epochs, the ISR, eligible leader replicas (KIP-966), the end
// of a reassignment (KIP-455) and the election. Who may lead or be in sync is decided
// by one test, Eligible (KIP-841, KIP-903).
//
// A decision with many records may be committed in parts, between which the state is
// legal; what one request may take is bounded (divide.go).
//
// Active (active.go, heartbeat.go) is the soft state of the one controller that
// decides: what it proposed and has not seen committed, and when it heard of each
// broker. It is as pure; time comes in as an argument.
//
// replication and broker may import it; it imports the identifiers of storage.
package controller
