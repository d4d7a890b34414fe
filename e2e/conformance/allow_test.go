package conformance

// key is a field of the tables: a client and a feature, or a suite and a test.
type key struct{ column, row string }

// anyRow stands for all rows of a client that cannot be had.
const anyRow = "*"

// allowed is what may fail, and why.
var allowed = map[key]string{
	{"franz-go's tests", "TestTxnEtl"}:                           "transactions are not offered yet",
	{"kafka-go", "times of the server"}:                          "kafka-go gives its reader the producer's time, whatever the batch says of it",
	{"@platformatic/kafka", "times of the server"}:               "the client gives its reader the producer's time, whatever the batch says of it",
	{"@platformatic/kafka", "group: static member"}:              "a static member that closes leaves the group, because this client sends LeaveGroup for it",
	{"aiokafka", "record without key, compacted topic: refused"}: "the client does not know error 87 (INVALID_RECORD) and calls it UnknownError",
	{"kafka-go", "empty keys, values and headers"}:               "kafka-go gives its reader nil for an empty key, value or header; stored they are empty",
}
