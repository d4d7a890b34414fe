package bench

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
)

// pairs is how often each side of a comparison runs. Many short runs in turns see the same machine; few long ones do not.
const pairs = 15

var bin string

// roles are the bare servers; the test binary becomes one when the environment says so.
var roles = map[string]func(args []string) error{
	"sendfile": serveSendfile,
	"copy":     serveCopy,
	"lines":    serveLines,
	"receive":  serveReceive,
	"fan":      serveFan,
	"doors":    serveDoors,
}

func TestMain(m *testing.M) {
	if role := os.Getenv("LEAT_BENCH_ROLE"); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		return
	}
	code, err := runBenchmarks(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runBenchmarks(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "leat-bench-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if bin = os.Getenv("LEAT_BIN"); bin == "" {
		bin = filepath.Join(dir, "leat")
		build := exec.Command("go", "build", "-trimpath", "-ldflags=-w", "-o", bin, "leat")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("build the binary: %w\n%s", err, out)
		}
	}
	code = m.Run()
	return code, table.print(os.Stdout)
}

// row is one line of the table at the end.
type row struct {
	what, leat, other, ratio, goal string
	ok                             bool
}

// results collects the rows of all benchmarks.
type results struct {
	mu   sync.Mutex
	rows []row
}

var table results

// add puts a row in, in place of an earlier one of the same name.
func (r *results) add(n row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.IndexFunc(r.rows, func(o row) bool { return o.what == n.what }); i >= 0 {
		r.rows[i] = n
		return
	}
	r.rows = append(r.rows, n)
}

func (r *results) print(w io.Writer) error {
	if len(r.rows) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "\nmeasured\tleat\tagainst\tratio (median, least–most)\tgoal\t")
	for _, n := range r.rows {
		verdict := "reached"
		if !n.ok {
			verdict = "MISSED"
		}
		if n.goal == "" {
			verdict = ""
		}
		_, _ = fmt.Fprintln(t, strings.Join([]string{n.what, n.leat, n.other, n.ratio, strings.TrimSpace(n.goal + " " + verdict)}, "\t")+"\t")
	}
	return t.Flush()
}

// goal is what a ratio should be; the zero goal is none.
type goal struct {
	most, least float64
}

func (g goal) String() string {
	switch {
	case g.most > 0:
		return fmt.Sprintf("≤ %g", g.most)
	case g.least > 0:
		return fmt.Sprintf("≥ %g", g.least)
	}
	return ""
}

func (g goal) reached(v float64) bool {
	return (g.most == 0 || v <= g.most) && v >= g.least
}

// compare runs both sides in turns, the other way round each time, and notes the ratio leat : other of each pair.
func compare(b *testing.B, what, unit string, g goal, leat, other func() float64) {
	b.Helper()
	compareN(b, pairs, what, unit, g, leat, other)
}

// compareN is compare with a number of pairs, for runs that are long or steady.
func compareN(b *testing.B, pairs int, what, unit string, g goal, leat, other func() float64) {
	b.Helper()
	leat()
	other() // both are warm now
	var ours, theirs []float64
	for i := range pairs {
		var o, t float64
		if i%2 == 0 {
			o, t = leat(), other()
		} else {
			t, o = other(), leat()
		}
		ours, theirs = append(ours, o), append(theirs, t)
	}
	r := paired(what, unit, g, ours, theirs)
	if g != (goal{}) {
		b.ReportMetric(r, "ratio")
	}
}

// compareCosts is compareN of processor time, and of the time on the clock in a row of its own.
func compareCosts(b *testing.B, pairs int, what, per string, leat, other func() cost) {
	b.Helper()
	var clocks [2][]float64
	side := func(i int, run func() cost) func() float64 {
		return func() float64 {
			c := run()
			clocks[i] = append(clocks[i], c.clock)
			return c.cpu
		}
	}
	compareN(b, pairs, what, "CPU "+per, goal{}, side(0, leat), side(1, other))
	paired(what+", on the clock", per, goal{}, clocks[0][1:], clocks[1][1:]) // but for the first, which was to warm up
}

// paired notes the pairs of a comparison and returns the median of their ratios.
func paired(what, unit string, g goal, ours, theirs []float64) float64 {
	var ratios []float64
	for i := range ours {
		ratios = append(ratios, ours[i]/theirs[i])
	}
	r := median(ratios)
	table.add(row{
		what: what, leat: fmt.Sprintf("%.3g %s", median(ours), unit), other: fmt.Sprintf("%.3g %s", median(theirs), unit),
		ratio: fmt.Sprintf("%.2f  (%.2f–%.2f)", r, slices.Min(ratios), slices.Max(ratios)), goal: g.String(), ok: g.reached(r),
	})
	return r
}

// single notes a figure that stands alone.
func single(b *testing.B, what, unit string, g goal, v float64) {
	b.Helper()
	r := row{what: what, leat: fmt.Sprintf("%.3g %s", v, unit), ok: g.reached(v)}
	if g != (goal{}) {
		r.goal = g.String() + " " + unit
	}
	table.add(r)
}

func median[T cmp.Ordered](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}
