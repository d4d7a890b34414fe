package cli

import (
	"fmt"
	"strings"
	"time"
)

// Meter shows how far something is of which the size is known: on a terminal one line that is drawn anew, elsewhere a line
// a second. One goroutine at a time may use it. A nil Meter shows nothing.
type Meter struct {
	line        *statusLine
	what        string
	began, told time.Time
	every       time.Duration
}

// redrawInterval is how often a terminal is drawn anew.
const redrawInterval = 100 * time.Millisecond

// NewMeter begins to show, if stderr is a terminal or the user has asked for it; otherwise it is nil. what is the word for
// what was done, such as "checked".
func NewMeter(std IO, what string, asked bool) *Meter {
	return newMeter(newStatusLine(std.Err), what, asked, time.Now())
}

func newMeter(line *statusLine, what string, asked bool, now time.Time) *Meter {
	if !asked && !line.terminal {
		return nil
	}
	m := &Meter{line: line, what: what, began: now, told: now, every: progressInterval}
	if line.terminal {
		m.every = redrawInterval
	}
	return m
}

// Show says that done of total bytes are behind us.
func (m *Meter) Show(done, total int64) { m.show(done, total, time.Now()) }

func (m *Meter) show(done, total int64, now time.Time) {
	if m == nil || now.Sub(m.told) < m.every {
		return
	}
	m.told = now
	m.line.show(meterStatus(m.what, done, total, now.Sub(m.began), m.line.terminal))
}

// End takes the line away.
func (m *Meter) End() {
	if m != nil {
		m.line.show("")
	}
}

// barWidth is that of the bar in characters.
const barWidth = 20

// meterStatus is, for example, `leat: checked 120.0 of 480.0 MB, 25%, 60.0 MB/s, 6s left`; a terminal gets a bar, too.
func meterStatus(what string, done, total int64, took time.Duration, bar bool) string {
	share := 1.0
	if total > 0 {
		share = min(float64(done)/float64(total), 1)
	}
	rate := float64(done) / max(took.Seconds(), 1e-9)
	s := fmt.Sprintf("leat: %s %.1f of %.1f MB, %d%%, %.1f MB/s", what, float64(done)/1e6, float64(total)/1e6, int(100*share), rate/1e6)
	if bar {
		full := int(share * barWidth)
		s = fmt.Sprintf("leat: [%s%s] %s", strings.Repeat("#", full), strings.Repeat(" ", barWidth-full), strings.TrimPrefix(s, "leat: "))
	}
	if rate > 0 && total > done {
		s += fmt.Sprintf(", %s left", time.Duration(float64(total-done)/rate*float64(time.Second)).Round(time.Second))
	}
	return s
}
