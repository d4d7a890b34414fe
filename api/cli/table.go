package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// writeJSON writes one indented document.
func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// writeTable writes rows in aligned columns under a header.
func writeTable(w io.Writer, header []string, rows int, row func(int) []string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, strings.Join(header, "\t")) // an error comes back from Flush
	for i := range rows {
		_, _ = fmt.Fprintln(table, strings.Join(row(i), "\t"))
	}
	return table.Flush()
}
