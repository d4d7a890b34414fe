// Package cli is the command line client of Leat: `leat produce`, `leat consume`, `leat topic …`, `leat version`.
//
// It speaks to a server and to nothing else, over the Kafka port (kgo, kadm), so it works against any Kafka broker and
// proves on each call that Leat's own door works for a stranger. It is not a library: it has no access to the
// data directory, to the broker or to any other package of Leat, and only main imports it.
//
// The contract with a shell: data goes to stdout, words go to stderr. Exit 0 means that everything asked for was done,
// 1 that something failed, 2 that the command line was wrong (ExitCode). A reader that goes away (`| head`) and Ctrl-C
// end a consumer quietly. Nothing waits without a limit for a server that is not there or a topic that does not exist.
package cli
