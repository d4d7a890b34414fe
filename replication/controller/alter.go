package controller

import "leat/storage"

// Member is a replica of an ISR, and the life of its broker that is meant, -1
// for any (KIP-903).
type Member struct {
	ID    int32
	Epoch int64
}

// AlterPartition is what a leader asks to change about its partition, which
// must be as the two epochs say (KIP-497).
type AlterPartition struct {
	ID                          storage.ID
	LeaderEpoch, PartitionEpoch int32
	ISR                         []Member
	// Recovered ends the recovery from an unclean election.
	Recovered bool
}
