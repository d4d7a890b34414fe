//go:build !race

package record

// bombSize is what the largest bombs expand to, in bytes.
const bombSize = 1 << 30
