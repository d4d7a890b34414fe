package rest

import (
	"net/http"
	"strings"
	"testing"
)

// The trace of a request is told in the log as W3C Trace Context writes it; what
// is no traceparent of a known form is none.
func TestTraceID(t *testing.T) {
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for value, want := range map[string]string{
		"00-" + id + "-" + parent + "-01":                  id,
		"cc-" + id + "-" + parent + "-01-what-comes-later": id,
		"":                                                              "",
		"00-" + id + "-" + parent:                                       "",
		"00-" + id + "-" + parent + "-0":                                "",
		"00-" + id + "-" + parent + "-01-more":                          "",
		"00-" + id + "-" + parent + "-01x":                              "",
		"cc-" + id + "-" + parent + "-01x":                              "",
		"ff-" + id + "-" + parent + "-01":                               "",
		"00-" + strings.ToUpper(id) + "-" + parent + "-01":              "",
		"00-" + strings.Repeat("0", 32) + "-" + parent + "-01":          "",
		"00-" + id + "-" + strings.Repeat("0", 16) + "-01":              "",
		"00_" + id + "-" + parent + "-01":                               "",
		"00-" + strings.Replace(id, "0", "g", 1) + "-" + parent + "-01": "",
		strings.Repeat("x", 4096):                                       "",
	} {
		if got := traceID(http.Header{"Traceparent": {value}}); got != want {
			t.Errorf("%.80q gives %q, want %q", value, got, want)
		}
	}
	if got := traceID(http.Header{"Traceparent": {"00-" + id + "-" + parent + "-01", "00-" + id + "-" + parent + "-01"}}); got != "" {
		t.Errorf("given twice it is %q", got)
	}
}
