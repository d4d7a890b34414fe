package meta

// Every key in the store starts with one of these bytes. Two owners never
// share one; numbers in keys are big endian, so that keys sort as numbers do.
//
//	key                     value                          owner
//	"L" …                   the log of versions without    replication
//	                        a quorum, removed at a start
//	"S" record key          state made from the log        replication/controller
//	"A"                     last applied index, u64        replication/quorum
//	"Q" …                   log, term, vote, members, see  replication/quorum
//	                        replication/quorum/doc.go
//	"H"                     index u64, hash u64 of the     replication
//	                        state that the log makes up
//	                        to it
//	"B" "s" topic id,       first offset of a log that     broker
//	        partition u32   this node holds, u64
//	"B" "o"                 whose directory the store      broker
//	                        is in: cluster id, space,
//	                        node uuid
//	"G" partition u32 …     groups and offsets, see        broker
//	                        broker/offsetstore.go
const (
	PrefixLog     = 'L'
	PrefixState   = 'S'
	PrefixApplied = 'A'
	PrefixQuorum  = 'Q'
	PrefixHash    = 'H'
	PrefixBroker  = 'B'
	PrefixGroups  = 'G'
)

// StateKey is the key of the state record named by key.
func StateKey(key []byte) []byte { return append([]byte{PrefixState}, key...) }

// StateKeys bounds the keys [from, to) of all state records.
func StateKeys() (from, to []byte) { return []byte{PrefixState}, []byte{PrefixState + 1} }

// StateHashKey is the key of the newest hash of the state.
func StateHashKey() []byte { return []byte{PrefixHash} }

// AppliedKey is the key of the index of the last entry that state contains.
func AppliedKey() []byte { return []byte{PrefixApplied} }

// prefixEnd is the smallest key greater than every key with the prefix; nil
// when there is none.
func prefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			end := append([]byte(nil), prefix[:i+1]...)
			end[i]++
			return end
		}
	}
	return nil
}
