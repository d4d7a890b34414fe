//go:build !race

package record

// bombSize is what the largest bombs expand to, in bytes.
const bombSize = 1 << 30

// raceEnabled says that pools drop what is put into them now and then.
const raceEnabled = false
