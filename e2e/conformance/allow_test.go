package conformance

// key is a field of the tables: a client and a feature, or a suite and a test.
type key struct{ column, row string }

// anyRow stands for all rows of a client that cannot be had.
const anyRow = "*"

// allowed is what may fail, and why.
var allowed = map[key]string{}
