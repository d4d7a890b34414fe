// Package bench measures the built binary against bare loops that do the least that the same work needs, side by side
// in one run: paired, alternating, the median of the ratios. It imports nothing of Leat's; README.md says what each
// benchmark measures. LEAT_BIN names the binary; without it the benchmarks build one.
package bench
