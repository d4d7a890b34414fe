package bench

import (
	"net/url"
	"testing"
)

// BenchmarkFilter measures the server's processor time for each record that a filter looks at and leaves out, against
// the same read as NDJSON without a filter, which is also the server's part of a client that reads all and filters.
func BenchmarkFilter(b *testing.B) {
	const path = "/v1/topics/fetch/partitions/0/records?"
	for _, c := range []struct{ name, text string }{
		{"a header", `"type" in headers && headers.type == "a"`},
		{"a field of JSON", `has(value.none) && value.none == 1`},
		{"a text within", `value_str.contains("is not there")`},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := startLeat(b)
			l.createTopic("fetch", map[string]string{"flush.messages": "1000000"})
			l.fill("fetch", doorBatch(), doorBatches)
			run := func(path string) float64 {
				return 1e6 * cpuOf(b, l.process, func() error {
					return everyConn(func() error { return readPages(l.HTTP, path, "application/x-ndjson") })
				}) / (fetchConns * doorBatches * doorRecords)
			}
			for b.Loop() {
				compareN(b, doorPairs, "filter on "+c.name+", against no filter", "CPU µs/record", goal{},
					func() float64 { return run(path + "filter=" + url.QueryEscape(c.text) + "&") }, func() float64 { return run(path) })
			}
			l.stop()
		})
	}
}
