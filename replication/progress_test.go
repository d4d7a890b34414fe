package replication

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// The script shows how the high watermark follows the replicas in sync.
func TestProgressScript(t *testing.T) {
	var p *Progress
	datadriven.RunTest(t, "testdata/progress", func(t *testing.T, d *datadriven.TestData) string {
		var replica int32
		var end int64
		rose := false
		switch d.Cmd {
		case "new":
			d.ScanArgs(t, "hw", &end)
			p = NewProgress(replicas(t, d), end)
		case "ack":
			d.ScanArgs(t, "replica", &replica)
			d.ScanArgs(t, "end", &end)
			rose = p.Ack(replica, end)
		case "isr":
			rose = p.SetISR(replicas(t, d))
		default:
			t.Fatalf("unknown command %q", d.Cmd)
		}
		return fmt.Sprintf("%s rose=%v\n", p, rose)
	})
}

func replicas(t *testing.T, d *datadriven.TestData) []int32 {
	t.Helper()
	var out []int32
	for _, arg := range d.CmdArgs {
		if arg.Key == "set" {
			for _, v := range arg.Vals {
				r, err := strconv.ParseInt(v, 10, 32)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, int32(r))
			}
		}
	}
	return out
}

// Whatever happens, the watermark never goes back, and when it rises every
// replica in sync holds what is below it.
func TestProgressInvariant(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		ends := map[int32]int64{1: 0}
		isr := []int32{1}
		p := NewProgress(isr, 0)
		for range 200 {
			before := p.HighWatermark()
			var rose bool
			if rng.IntN(4) == 0 {
				isr = []int32{1}
				for r := int32(2); r <= 4; r++ {
					// A replica may join only when it holds all that is committed.
					if rng.IntN(2) == 0 && ends[r] >= before {
						isr = append(isr, r)
					}
				}
				rose = p.SetISR(isr)
			} else {
				r, end := rng.Int32N(4)+1, rng.Int64N(1000)
				ends[r] = max(ends[r], end)
				rose = p.Ack(r, end)
			}
			hw := p.HighWatermark()
			if hw < before || rose != (hw > before) {
				t.Fatalf("seed %d: watermark %d -> %d, rose %v", seed, before, hw, rose)
			}
			for _, r := range isr {
				if ends[r] < hw {
					t.Fatalf("seed %d: replica %d holds %d, watermark %d; %s", seed, r, ends[r], hw, p)
				}
			}
		}
		if p.InSync() != len(isr) || !slices.Contains(isr, 1) || !strings.Contains(p.String(), "isr=") {
			t.Fatalf("seed %d: %s", seed, p)
		}
	}
}
