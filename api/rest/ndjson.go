package rest

import (
	"net/http"
	"time"

	"leat/api"
)

// closeReason is the trailer that says why an NDJSON stream ended.
const closeReason = "Close-Reason"

// ndjson writes a record a line. Lines of control are objects whose first member
// is "$", which no record has. A line "position" follows whatever is sent at a
// time: who keeps it after what stands before it comes back to just there.
type ndjson struct {
	*stream
	// told says that the position was the last that was written.
	told bool
}

func (n *ndjson) begin() {
	n.text(`{"$":"position","topic_id":"`)
	n.text(n.id.String())
	n.text(`",`)
	n.place()
	n.text("}\n")
	n.told = true
}

// place writes the members for the position.
func (n *ndjson) place() {
	if n.o.filter != nil {
		n.text(`"filter_failed":`)
		n.integer(int64(n.failed))
		n.text(",")
	}
	if n.o.whole() {
		n.text(`"cursor":"`)
		n.position()
		n.text(`"`)
		return
	}
	n.text(`"next_offset":`)
	n.position()
}

func (n *ndjson) records(run *api.Run) {
	n.told = false
	for k := range run.Count() {
		_, text := run.Record(k)
		n.raw(text)
		n.text("\n")
	}
}

func (n *ndjson) gap(g gap) {
	n.told = false
	n.text(`{"$":"gap",`)
	n.out = append(n.out, appendGap(nil, g)[1:]...)
	n.text("\n")
}

func (n *ndjson) pause() {
	if !n.told {
		n.beat()
	}
}

func (n *ndjson) beat() {
	n.text(`{"$":"position",`)
	n.place()
	n.text("}\n")
	n.told = true
}

func (n *ndjson) finish(why string, p *api.Problem, again time.Duration) {
	n.text(`{"$":"end","reason":"` + why + `",`)
	n.place()
	if again > 0 {
		n.text(`,"in_ms":`)
		n.integer(again.Milliseconds())
	}
	if p != nil {
		n.text(`,"problem":`)
		n.raw(p.JSON())
	}
	n.text("}\n")
	n.told = true
	n.w.Header()[http.CanonicalHeaderKey(closeReason)] = []string{why}
}
