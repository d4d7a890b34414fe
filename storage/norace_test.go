//go:build !race

package storage

// raceEnabled says that the race detector is on.
const raceEnabled = false
