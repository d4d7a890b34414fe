// Package e2e runs the built binary as processes and asserts what a user sees: the doors, bad input, crashes, zero
// copy, the command line, and the cases of public reports. It imports nothing of Leat's, and nothing imports it.
//
// LEAT_BIN names the binary to test; without it the tests build one. LEAT_LONG=1 asks for the long forms (more kills,
// more bytes), LEAT_FRAMES=10m for that long of spoiled frames with a new seed (LEAT_SEED repeats one), LEAT_KILLS=500
// for so many kills under load, LEAT_CHURN=10m for that long of groups that lose members. Where CI=true a tool that is
// missing (kcat, strace) is a failure, elsewhere the test is skipped.
package e2e
