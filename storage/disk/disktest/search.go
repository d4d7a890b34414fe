package disktest

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// What drives the search from outside.
const (
	soakEnv = "LEAT_SOAK" // how long Soak searches, as "10m"
	seedEnv = "LEAT_SEED" // the one seed that Run runs
	// regressions is the list of seeds that once broke something, a line
	// "proof seed" each, in the folder of the test. Run runs them every time.
	regressions = "testdata/seeds"
)

// Counts says how much a search did.
type Counts struct {
	Crashes, Operations atomic.Int64
	seeds, violations   atomic.Int64
}

// Proof is a test that a seed makes.
type Proof struct {
	Name string
	// Short is how many seeds Run runs beside the list, from 1 on.
	Short int
	// Body runs one seed. It may run beside others.
	Body func(t testing.TB, seed uint64, c *Counts)
}

// Run runs a proof with the seeds of the list and some that are always the
// same; or with the one that LEAT_SEED names.
func Run(t *testing.T, p Proof) {
	t.Helper()
	seeds := listed(t, p.Name)
	for i := range p.Short {
		seeds = append(seeds, uint64(i)+1)
	}
	if only := os.Getenv(seedEnv); only != "" {
		seed, err := strconv.ParseUint(only, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
		seeds = []uint64{seed}
	}
	var c Counts
	for _, seed := range seeds {
		t.Run("seed="+strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			p.Body(t, seed, &c)
		})
	}
	t.Cleanup(func() {
		t.Logf("%d seeds, %d crashes, %d operations", len(seeds), c.Crashes.Load(), c.Operations.Load())
	})
}

// listed are the seeds of the list for a proof.
func listed(t testing.TB, name string) (seeds []uint64) {
	t.Helper()
	f, err := os.Open(regressions)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != name {
			continue
		}
		seed, err := strconv.ParseUint(words[len(words)-1], 10, 64)
		if len(words) != 2 || err != nil {
			t.Fatalf("%s: %q is no proof and seed", regressions, lines.Text())
		}
		seeds = append(seeds, seed)
	}
	if err := errors.Join(lines.Err(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return seeds
}

// Soak runs the proofs with new seeds until the time in LEAT_SOAK is over,
// several beside one another, and says once a minute how far it is. A seed that
// breaks something is written to the list. Without LEAT_SOAK it does nothing.
func Soak(t *testing.T, proofs ...Proof) {
	t.Helper()
	text := os.Getenv(soakEnv)
	if text == "" {
		t.Skip("only for make soak: " + soakEnv + " is not set")
	}
	span, err := time.ParseDuration(text)
	if err != nil || span <= 0 {
		t.Fatalf("%s=%q: want a time as 10m", soakEnv, text)
	}
	s := &soak{t: t, proofs: proofs, began: time.Now()}
	if dir, err := os.Getwd(); err == nil {
		s.where = filepath.Base(dir)
	}
	over := make(chan struct{})
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() { s.work(over) })
	}
	end, tick := time.After(span), time.NewTicker(time.Minute)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-end:
			running = false
		case <-tick.C:
			s.tell()
		}
	}
	close(over)
	workers.Wait()
	s.tell()
	if n := s.counts.violations.Load(); n > 0 {
		t.Errorf("%d violations", n)
	}
}

type soak struct {
	t      *testing.T
	proofs []Proof
	where  string // the package's name
	began  time.Time
	counts Counts
	next   atomic.Int64
	mu     sync.Mutex // over what is written
}

// work runs one seed after the other of each proof in turn.
func (s *soak) work(over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		default:
		}
		p := s.proofs[int(s.next.Add(1)-1)%len(s.proofs)]
		seed := rand.Uint64()
		failure := Attempt(s.t, func(t testing.TB) { p.Body(t, seed, &s.counts) })
		s.counts.seeds.Add(1)
		if failure != "" {
			s.counts.violations.Add(1)
			s.report(p.Name, seed, failure)
		}
	}
}

func (s *soak) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.t.Logf("soak: %s, %s: %d seeds, %d crashes, %d operations, %d violations", s.where, time.Since(s.began).Round(time.Second),
		s.counts.seeds.Load(), s.counts.Crashes.Load(), s.counts.Operations.Load(), s.counts.violations.Load())
}

// report says how to repeat a failure and keeps its seed.
func (s *soak) report(proof string, seed uint64, failure string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.t.Logf("soak: %s: %s broke with seed %d:\n%s\nsoak: again with: %s=%d go test -count=1 -run '^%s$' ./%s",
		s.where, proof, seed, failure, seedEnv, seed, proof, s.where)
	first, _, _ := strings.Cut(failure, "\n")
	err := os.MkdirAll(filepath.Dir(regressions), 0o755)
	if err == nil {
		err = appendLine(regressions, fmt.Sprintf("%s %d # %s\n", proof, seed, first))
	}
	if err != nil {
		s.t.Logf("soak: the seed was not kept: %v", err)
	}
}

func appendLine(name, line string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}
