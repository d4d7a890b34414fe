package sim

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"time"
)

// fewSeeds is how many new seeds a plain `go test` runs.
const fewSeeds = 25

// TestSim runs whole clusters, each from one seed: first those of testdata/seeds,
// which have shown a fault once, then the seeds from 1 on. LEAT_SEEDS=N runs N of
// them, in a process for each core, and says what they have covered; LEAT_SEED=N
// runs that one and tells what happens in it.
func TestSim(t *testing.T) {
	if s := os.Getenv("LEAT_SEED"); s != "" {
		runSeed(t, mustNumber(t, s), os.Stdout)
		return
	}
	if part := os.Getenv("LEAT_PART"); part != "" {
		runPart(t, part)
		return
	}
	known := knownSeeds(t)
	if s := os.Getenv("LEAT_SEEDS"); s != "" {
		runAll(t, known, mustNumber(t, s))
		return
	}
	for _, seed := range append(known, upTo(fewSeeds)...) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runSeed(t, seed, nil) })
	}
}

func mustNumber(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func upTo(n uint64) []uint64 {
	var out []uint64
	for seed := uint64(1); seed <= n; seed++ {
		out = append(out, seed)
	}
	return out
}

// runSeed runs one seed.
func runSeed(t *testing.T, seed uint64, log io.Writer) *world {
	t.Helper()
	w := newRun(t, seed, log)
	if w.simulate(); w.over() {
		t.Errorf("seed %d: %s\nagain: LEAT_SEED=%d go test -run '^TestSim$' ./broker/sim", seed, w.broken, seed)
	}
	return w
}

// newRun makes the world of a seed. Raft's own chance comes from it, too.
func newRun(t *testing.T, seed uint64, log io.Writer) *world {
	t.Helper()
	cryptotest.SetGlobalRandom(t, seed)
	return newWorld(seed, log)
}

const seedsFile = "testdata/seeds"

// knownSeeds are the seeds that have shown a fault once: one a line, followed by
// what it was.
func knownSeeds(t *testing.T) []uint64 {
	t.Helper()
	text, err := os.ReadFile(seedsFile)
	if err != nil {
		t.Fatal(err)
	}
	var out []uint64
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 0 {
			out = append(out, mustNumber(t, fields[0]))
		}
	}
	return out
}

// result is what a process of runAll tells about a seed, a line of JSON.
type result struct {
	Seed   uint64
	Broken string `json:",omitempty"`
	Counts []int
	Held   []int
}

// resultMark begins the lines that are results.
const resultMark = "sim: "

// runPart runs the seeds that are given on the standard input, and tells how each
// was.
func runPart(t *testing.T, part string) {
	t.Helper()
	debug.SetGCPercent(800)
	out := bufio.NewWriter(os.Stdout)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		seed := mustNumber(t, in.Text())
		t.Run(part, func(t *testing.T) {
			w := newRun(t, seed, nil)
			w.simulate()
			r := result{Seed: seed, Broken: w.broken, Held: w.checks.held[:]}
			for _, c := range w.counts.all() {
				r.Counts = append(r.Counts, *c.n)
			}
			line, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = fmt.Fprintf(out, "%s%s\n", resultMark, line)
			_ = out.Flush()
		})
	}
}

// runner shares seeds among processes.
type runner struct {
	mu     sync.Mutex
	seeds  []uint64
	begun  time.Time
	total  int
	done   int
	shown  time.Time
	counts counts
	held   []int
	broken map[uint64]string
}

func runAll(t *testing.T, known []uint64, n uint64) {
	t.Helper()
	seeds := append(slices.Clone(known), upTo(n)...)
	r := &runner{seeds: seeds, total: len(seeds), begun: time.Now(), shown: time.Now(), held: make([]int, len(checker{}.held)), broken: map[uint64]string{}}
	var wg sync.WaitGroup
	for i := range runtime.NumCPU() {
		wg.Go(func() {
			if err := r.process(i); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r.report(t, known)
	if n >= enoughSeeds {
		r.demand(t)
	}
}

// enoughSeeds is how many seeds must do all that a simulation can do: fewer may
// miss what is rare.
const enoughSeeds = 500

// demand asks that nothing was left out: neither a fault that never came nor an
// invariant that nobody asked proves anything.
func (r *runner) demand(t *testing.T) {
	t.Helper()
	for _, c := range r.counts.all() {
		if *c.n == 0 && c.n != &r.counts.cutsUndone {
			t.Errorf("in all seeds never happened: %s", c.name)
		}
	}
	for number, n := range r.held {
		if n == 0 && number > 0 {
			t.Errorf("in all seeds never asked: I%d", number)
		}
	}
}

// next takes a seed.
func (r *runner) next() (seed uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seeds) == 0 {
		return 0, false
	}
	seed, r.seeds = r.seeds[0], r.seeds[1:]
	return seed, true
}

// process gives seeds to a process of its own, one after the other.
func (r *runner) process(i int) (err error) {
	cmd := exec.Command(os.Args[0], "-test.run", "^TestSim$", "-test.timeout", "0")
	cmd.Env = append(os.Environ(), fmt.Sprintf("LEAT_PART=%d", i), "GOMAXPROCS=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	seed, more := r.next()
	for more {
		if _, err := fmt.Fprintln(in, seed); err != nil {
			break
		}
		answered := false
		var said strings.Builder
		for !answered && lines.Scan() {
			text, ok := strings.CutPrefix(lines.Text(), resultMark)
			if !ok {
				fmt.Fprintln(&said, lines.Text())
				continue
			}
			answered = true
			var got result
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				return err
			}
			r.take(&got)
		}
		if !answered {
			r.take(&result{Seed: seed, Broken: "the process ended: " + said.String()})
			break
		}
		seed, more = r.next()
	}
	_ = in.Close()
	_, _ = io.Copy(io.Discard, out)
	return cmd.Wait()
}

// take adds what a seed has shown, and tells of a failure at once, and how far it
// is every few seconds.
func (r *runner) take(got *result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.done++
	for i, c := range r.counts.all() {
		if i < len(got.Counts) {
			*c.n += got.Counts[i]
		}
	}
	for i, n := range got.Held {
		r.held[i] += n
	}
	if got.Broken != "" {
		r.broken[got.Seed] = got.Broken
		fmt.Printf("sim: seed %d failed: %s\n", got.Seed, got.Broken)
	}
	if time.Since(r.shown) > 5*time.Second || r.done == r.total {
		r.shown = time.Now()
		fmt.Printf("sim: %d of %d seeds, %d failed, %v\n", r.done, r.total, len(r.broken), time.Since(r.begun).Round(time.Second))
	}
}

// report says what was covered, and which seeds have failed; those are added to
// the known ones.
func (r *runner) report(t *testing.T, known []uint64) {
	t.Helper()
	fmt.Print(r.counts.String())
	for number, n := range r.held {
		if n > 0 {
			fmt.Printf("%12d I%d asked\n", n, number)
		}
	}
	file, err := os.OpenFile(seedsFile, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, seed := range slices.Sorted(maps.Keys(r.broken)) {
		broken := r.broken[seed]
		t.Errorf("seed %d: %s\nagain: LEAT_SEED=%d go test -run '^TestSim$' ./broker/sim", seed, broken, seed)
		if !slices.Contains(known, seed) {
			what, _, _ := strings.Cut(broken, "\n")
			_, err = fmt.Fprintf(file, "%d %.100s\n", seed, what)
		}
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Error(err)
	}
}

// The same seed is the same run to the last event.
func TestSame(t *testing.T) {
	for _, seed := range []uint64{3, 11, 29} {
		sums := map[uint64]bool{}
		for range 2 {
			t.Run(fmt.Sprint(seed), func(t *testing.T) { sums[runSeed(t, seed, nil).sum] = true })
		}
		if len(sums) != 1 {
			t.Errorf("seed %d has run in %d ways", seed, len(sums))
		}
	}
}
