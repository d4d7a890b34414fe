//go:build race

package record

// bombSize is smaller than without the race detector, which makes the
// compressors ten times slower.
const bombSize = 80 << 20

// raceEnabled says that pools drop what is put into them now and then.
const raceEnabled = true
