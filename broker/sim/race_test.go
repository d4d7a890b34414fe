//go:build race

package sim

// raceEnabled says that the detector is on, which makes a simulation ten times
// as slow and has nothing to find in one goroutine.
const raceEnabled = true
