package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// edit breaks a rule: in a file of the module, a text that is there once becomes
// another.
type edit struct{ file, from, to string }

// breakage is a rule broken on purpose. The simulator must see it, or the
// explorer, or both as explored says.
type breakage struct {
	name  string
	edits []edit
	// explored: the explorer finds it. simulated: seeds find it.
	explored, simulated bool
	// short: it is tried with every make test.
	short bool
}

const (
	leaderFile   = "replication/leader.go"
	followerFile = "replication/follower.go"
	isrFile      = "replication/isr.go"
)

// breakages are ten rules that a cluster stands on, then those that the explorer is
// there for. Most of them were missing in some release of Kafka, which is named.
var breakages = []breakage{
	{"the epoch-start rule is skipped (KAFKA-7128)", []edit{{
		isrFile,
		"p.ack >= r.hw && p.ack >= r.leader.start && ", "p.ack >= r.hw && ",
	}}, true, true, false},
	{"a diverging fetch counts (KAFKA-13141)", []edit{{
		leaderFile,
		"\t\tresp.Diverging = &at\n", "\t\tresp.Diverging = &at\n\t\tr.observe(p, f, o.End, now)\n",
	}}, true, true, true},
	{"a shrink is assumed", []edit{{
		isrFile,
		"\treturn slices.Contains(r.part.ISR, id) || r.leader.asked != nil && r.leader.asked.names(id)\n",
		"\tif r.leader.asked != nil {\n\t\treturn id == r.o.Self || r.leader.asked.names(id)\n\t}\n\treturn slices.Contains(r.part.ISR, id)\n",
	}}, true, true, false},
	{"the high watermark moves below min.insync.replicas", []edit{{
		leaderFile,
		"if len(r.part.ISR) < min(r.minInSync(), r.part.Factor()) || len(r.part.ELR) > 0 {", "if false {",
	}}, true, true, false},
	{"a follower cuts to its high watermark (KIP-101)", []edit{{
		followerFile,
		"\treturn r.act(Action{Kind: Append, Offset: asked.Offset})\n",
		"\tif asked.LastEpoch < r.part.LeaderEpoch && r.hw < asked.Offset {\n\t\treturn r.act(Action{Kind: Truncate, Offset: r.hw})\n\t}\n" +
			"\treturn r.act(Action{Kind: Append, Offset: asked.Offset})\n",
	}}, true, true, false},
	{"acks before the flush in fsync mode", []edit{{
		leaderFile,
		"\t\tack = min(ack, f.Flushed)\n", "\t\tack = max(ack, f.Flushed)\n",
	}}, false, true, true},
	{"a broker epoch is used again", []edit{{
		"replication/controller/register.go",
		"\tif again {\n\t\tb.Epoch, ", "\tif old != nil {\n\t\tb.Epoch = old.Epoch\n\t}\n\tif again {\n\t\tb.Epoch, ",
	}}, false, true, false},
	{"group records are applied above the high watermark", []edit{
		{"broker/group/shard.go", "\t\t\tif r.end > s.hw {\n\t\t\t\treturn nil\n\t\t\t}\n", ""},
		{"broker/group/shard.go", "case len(s.rounds) > 0 && s.rounds[0].end > s.hw:", "case len(s.rounds) > 0 && s.rounds[0].end > s.hw && false:"},
	}, false, true, false},
	{"the lease is not looked at", []edit{{leaderFile, "case now >= r.lease:", "case now < 0:"}}, false, true, false},
	{"the clean marker goes late (KAFKA-10471)", []edit{{
		"broker/sim/node_test.go",
		"\tn.disk.run.clean = false // before anything else (KAFKA-10471)\n", "",
	}}, false, true, false},
	// Not a rule but what all leases rest on: their margin is a quarter of the session,
	// which two clocks use up that drift apart by a seventh each.
	{"clocks drift beyond the margin of the lease", []edit{{
		"broker/sim/swarm_test.go", "const maxDrift = 0.1\n", "const maxDrift = 0.6\n",
	}}, false, true, false},
	{"a topic of both modes has the other one", []edit{{
		"broker/sim/replica_test.go", "Durable: c.durable(l.id.Topic),", "Durable: c.fsync,",
	}}, false, true, false},
	{"a commit of an old generation is taken", []edit{{
		"broker/group/member.go",
		"\tm, err := g.current(ref)\n\tif err != nil {\n\t\treturn err\n\t}\n\tif g.state == Completing {",
		"\tm, err := g.find(ref)\n\tif err != nil {\n\t\treturn err\n\t}\n\tif g.state == Completing {",
	}}, false, true, false},
	{"the next coordinator has everybody join again", []edit{{
		"broker/group/group.go",
		"\tif len(g.members) > 0 {\n\t\tg.state = Stable\n", "\tif len(g.members) > 0 {\n\t\tg.state = Preparing\n",
	}}, false, true, false},

	{"one round of finding where logs part (KIP-279)", []edit{{
		followerFile,
		"\t_, end, err := r.log.EpochEnd(at.Epoch)\n\to := r.log.Offsets()\n", "\t_, _, err := r.log.EpochEnd(at.Epoch)\n\to := r.log.Offsets()\n\tend := o.End\n",
	}}, true, false, false},
	{"an epoch without records is answered with the end of the log (KAFKA-7415)", []edit{{
		leaderFile,
		"\tif found < 0 { // below", "\tif found != epoch {\n\t\treturn EpochEnd{Epoch: epoch, End: o.End}, nil\n\t}\n\tif found < 0 { // below",
	}}, true, false, false},
	{"a cut next to the end is skipped (KAFKA-10706)", []edit{{
		followerFile,
		"case err != nil, cut >= o.End:", "case err != nil, cut >= o.End-1:",
	}}, true, false, false},

	// What the ISR stands on, which takes a few steps in the right order.
	{"an expansion of the ISR is not assumed", []edit{{
		isrFile, " || r.leader.asked != nil && r.leader.asked.names(id)\n", "\n",
	}}, true, false, false},
	{"a change of the ISR is granted that an older state was the reason of", []edit{{
		"replication/controller/alter.go", "case a.PartitionEpoch < p.Epoch:", "case a.PartitionEpoch < p.Epoch && false:",
	}}, true, false, false},
	{"a new life of a broker has acknowledged what the one before had", []edit{{
		leaderFile, "if f.BrokerEpoch > p.epoch && p.epoch >= 0 {", "if f.BrokerEpoch > p.epoch && p.epoch >= 0 && false {",
	}}, true, false, false},
}

// Every breakage still fits the code: its texts are there once, and what comes of
// them is Go.
func TestBreakagesFit(t *testing.T) {
	if len(breakages) < 10 {
		t.Fatal("the ten are not ten")
	}
	for _, b := range breakages {
		for path, text := range mutate(t, &b) {
			if _, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution); err != nil {
				t.Errorf("%s: %v", b.name, err)
			}
		}
	}
}

// mutate gives the text of each file that a breakage changes, by path.
func mutate(t *testing.T, b *breakage) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for _, e := range b.edits {
		path, err := filepath.Abs(filepath.Join("..", "..", e.file))
		if err != nil {
			t.Fatal(err)
		}
		text := out[path]
		if text == nil {
			if text, err = os.ReadFile(path); err != nil {
				t.Fatal(err)
			}
		}
		if n := bytes.Count(text, []byte(e.from)); n != 1 {
			t.Errorf("%s: %d times in %s, want once: %q", b.name, n, e.file, e.from)
		}
		out[path] = bytes.Replace(text, []byte(e.from), []byte(e.to), 1)
	}
	return out
}

// TestBreakages proves that each breakage is caught: it builds these tests with
// the rule broken, and runs the explorer and seeds until one fails. Each takes a
// build, so it is some of them, and all with LEAT_BREAKAGES=all.
func TestBreakages(t *testing.T) {
	all := os.Getenv("LEAT_BREAKAGES") == "all"
	for _, b := range breakages {
		if !all && !b.short {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			binary := broken(t, &b)
			if b.explored {
				out := runBroken(t, binary, "^TestExplore$")
				fault := regexp.MustCompile(`explore_test\.go:\d+: (I\d+|node|the)[^\n]*`).Find(out)
				if fault == nil {
					t.Errorf("the explorer does not see it:\n%s", tail(out))
				}
				t.Logf("explorer: %s", fault)
			}
			if b.simulated {
				seeds, fault := caught(runBroken(t, binary, "^TestBreakageSeeds$"))
				if seeds == 0 {
					t.Errorf("%d seeds do not see it", breakageSeeds)
				}
				t.Logf("seeds: %d, %s", seeds, fault)
			}
		})
	}
}

// breakageSeeds is how many seeds a breakage has to show itself.
const breakageSeeds = 1000

// TestBreakageSeeds runs seeds up to the first that fails, in a binary with a rule
// broken; where nothing is broken a few show that nothing is found.
func TestBreakageSeeds(t *testing.T) {
	seeds := uint64(10)
	if os.Getenv("LEAT_BREAKAGES") == "seeds" {
		seeds = breakageSeeds
	}
	for _, seed := range upTo(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runSeed(t, seed, nil) })
	}
}

// broken builds the tests of this package with a rule broken.
func broken(t *testing.T, b *breakage) (binary string) {
	dir := t.TempDir()
	replace := map[string]string{}
	for path, text := range mutate(t, b) {
		to := filepath.Join(dir, strconv.Itoa(len(replace))+"_"+filepath.Base(path))
		if err := os.WriteFile(to, text, 0o600); err != nil {
			t.Fatal(err)
		}
		replace[path] = to
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(dir, "sim.test")
	if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", file, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

// runBroken runs tests that must fail, up to the first failure. Their end by a
// panic or by the time limit is a failure too.
func runBroken(t *testing.T, binary, run string) []byte {
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", run, "-test.v", "-test.failfast", "-test.timeout", "5m")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LEAT_") }), "LEAT_BREAKAGES=seeds")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil // all passed
	}
	return out
}

var seedFailed = regexp.MustCompile(`seed (\d+): ([\w-]+: [^\n]*)`)

// caught is how many seeds a run took and what the last of them saw; 0 if it saw
// nothing.
func caught(out []byte) (seeds int, fault string) {
	m := seedFailed.FindSubmatch(out)
	if m == nil {
		return 0, ""
	}
	return max(1, bytes.Count(out, []byte("=== RUN   TestBreakageSeeds/"))), fmt.Sprintf("%.300s", m[2])
}

func tail(out []byte) []byte { return out[max(0, len(out)-2000):] }
