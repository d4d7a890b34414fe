//go:build race

package kafka

// raceEnabled says that the detector is on: pools then forget at random.
const raceEnabled = true
