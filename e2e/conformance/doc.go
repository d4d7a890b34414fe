// Package conformance runs the clients that others wrote against the built binary, each from its registry in a pinned
// version, and keeps the table api/kafka/CLIENTS.md. It imports nothing of Leat's, and nothing imports it.
//
// A check is written once, in Go, against a driver. It prepares with the reference client (franz-go, which is a client
// under test as well), asks the client under test to act, and compares byte for byte: what the client wrote is read by
// itself and by the reference, what it reads was written by the reference. A failure that the list of allow_test.go
// does not name fails the run, and so does an entry of that list that passes.
//
// # A client outside Go
//
// It is a program: one process is one instance of the client, and one member of a group. LEAT_BOOTSTRAP in its
// environment is the address. It reads one JSON object a line (an ask) from its standard input and answers each with
// one line (a reply), until its input ends:
//
//	{"op":"list_offset","topic":"t","partition":0,"at":"earliest",…}
//	{"offset":0}
//
// Every field of an ask is always there; bytes are base64, or null. {} is success, {"error":"…"} a failure in the
// client's words, {"not_offered":"…"} says why the client cannot do that. The types ask and reply name all fields.
//
// # Tools, and the tests of others
//
// A suite is a run of commands or of tests that somebody else wrote. It reports each of them by a name of its own, which
// is a row of the second table. franz-go's tests come out of the module cache, in the version of go.mod; what is outside
// Go is pinned in the folder of its language, and make conformance-tools installs it.
//
// LEAT_BIN names the binary to test. LEAT_LONG=1 asks for all clients and writes the table; without it the quick ones
// run and must agree with it. Where CI=true a client that cannot be had is a failure, elsewhere its test is skipped.
package conformance
