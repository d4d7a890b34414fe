//go:build race

package ws

// raceEnabled says that memory is not what it is without the detector.
const raceEnabled = true
