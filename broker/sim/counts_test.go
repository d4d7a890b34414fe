package sim

// counts is what a seed, or many, covered.
type counts struct {
	lost, doubled, late, cut   int
	stalled, eioSync, eioWrite int
	torn, cutsUndone           int
}
