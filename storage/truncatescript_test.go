package storage

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"leat/storage/disk"
	"leat/storage/record"
)

// replicaScript runs testdata/truncate: logs by name, of which one follows
// another by the rule of KIP-101 and KIP-279.
type replicaScript struct {
	dirs map[string]*Dir
	logs map[string]*Log
}

// TestTruncateScripts proves for the histories of KIP-101 and KIP-279 that
// replicas agree after they have cut their logs by the leader epochs.
func TestTruncateScripts(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/truncate", func(t *testing.T, path string) {
		s := &replicaScript{dirs: make(map[string]*Dir), logs: make(map[string]*Log)}
		datadriven.RunTest(t, path, s.run)
		for _, d := range s.dirs {
			mustClose(t, d)
		}
	})
}

func (s *replicaScript) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	name := d.CmdArgs[0].Key
	if s.logs[name] == nil {
		s.dirs[name] = openDir(t, disk.NewMem())
		s.logs[name] = openLog(t, s.dirs[name], startConfig)
	}
	l := s.logs[name]
	switch d.Cmd {
	case "log": // epoch:value …, each a batch of one record
		for f := range strings.FieldsSeq(d.Input) {
			var epoch int32
			var value string
			if _, err := fmt.Sscanf(strings.ReplaceAll(f, ":", " "), "%d %s", &epoch, &value); err != nil {
				t.Fatalf("%q: %v", f, err)
			}
			if _, err := l.Append(Append{Batch: batchOf(t, record.None, nil, value), Epoch: epoch}); err != nil {
				t.Fatal(err)
			}
		}
	case "ask":
		var epoch int
		d.ScanArgs(t, "epoch", &epoch)
		found, end, err := l.EpochEnd(int32(epoch))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("epoch %d ends at %d", found, end)
	case "follow":
		var leader string
		d.ScanArgs(t, "leader", &leader)
		return s.follow(t, l, s.logs[leader])
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
	return epochsAndValues(t, l)
}

// follow does what a follower does when it has a new leader: it asks where its
// newest epoch ends there, cuts, and asks again until they have an epoch in
// common; then it fetches.
func (s *replicaScript) follow(t *testing.T, l, leader *Log) string {
	t.Helper()
	var out strings.Builder
	epoch, _, err := l.EpochEnd(math.MaxInt32)
	for err == nil && epoch >= 0 {
		theirs, end, errAsk := leader.EpochEnd(epoch)
		if errAsk != nil {
			t.Fatal(errAsk)
		}
		found, at, errCut := l.TruncateToEpoch(t.Context(), theirs, end)
		err = errCut
		fmt.Fprintf(&out, "asked for epoch %d: epoch %d ends at %d; cut to %d\n", epoch, theirs, end, at)
		if found == theirs {
			break
		}
		epoch = found
	}
	if err != nil {
		t.Fatal(err)
	}
	o := leader.Offsets()
	for _, b := range readAll(t, leader, l.Offsets().End, o.End, math.MaxInt32) {
		if _, err := l.Append(Append{Batch: b, Epoch: b.LeaderEpoch(), Trusted: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := sameBatches(readAll(t, l, 0, l.Offsets().End, math.MaxInt32), readAll(t, leader, 0, o.End, math.MaxInt32)); err != nil {
		fmt.Fprintf(&out, "they differ: %v\n", err)
	}
	return out.String() + epochsAndValues(t, l)
}

// epochsAndValues is a log's records with their epochs.
func epochsAndValues(t *testing.T, l *Log) string {
	t.Helper()
	var out []string
	for _, b := range readAll(t, l, 0, l.Offsets().End, math.MaxInt32) {
		payload := string(b.Payload())
		out = append(out, fmt.Sprintf("%d:%c", b.LeaderEpoch(), payload[len(payload)-2]))
	}
	return strings.Join(out, " ") + "\n"
}
