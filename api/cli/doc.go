// Package cli is the command line client of Leat: `leat produce`, `leat consume`, `leat topic …`, `leat partition …`,
// `leat cluster …`, `leat bench …`, `leat completion`, `leat version`, `leat help`.
//
// It speaks to a server and to nothing else, over the Kafka port (kgo, kadm), so it works against any Kafka broker and
// proves on each call that Leat's own door works for a stranger. It is not a library: it has no access to the
// data directory, to the broker or to any other package of Leat, and only main imports it.
//
// The contract with a shell: data goes to stdout, words go to stderr, and so does progress, which is shown only to a
// terminal or by --progress. Exit 0 means that everything asked for was done, 1 that something failed, 2 that the command
// line was wrong (ExitCode). A reader that goes away (`| head`) ends any command quietly, and Ctrl-C a consumer that was
// not told where to stop.
//
// Who waits for a server, and how long: one that refuses the connection at the start, or answers but not in the Kafka
// protocol, is an error at once. One that does not answer is an error after --timeout, with a word to the user after 3
// seconds (watch). Only a consumer without an end waits for ever, once it has begun, and says so.
package cli
