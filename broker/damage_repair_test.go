package broker

import (
	"fmt"
	"path"
	"testing"
	"time"

	"leat/auth"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/record"
)

// opened opens a broker that the test closes.
func opened(t *testing.T, fs disk.FS, configs map[string]string) *Broker {
	t.Helper()
	b, err := Open(t.Context(), Options{FS: fs, Path: "/data", Configs: configs})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func closed(t *testing.T, b *Broker) {
	t.Helper()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// repaired repairs partition 0 of a topic.
func repaired(t *testing.T, b *Broker, topic string) {
	t.Helper()
	got, err := b.ElectLeaders(t.Context(), auth.Anonymous, true, []Election{{Topic: topic}})
	if err != nil || len(got) != 1 || got[0].Err != nil {
		t.Fatalf("%+v, %v", got, err)
	}
}

// TestRepairOfLostDirectory proves that a partition whose directory is gone
// takes nothing until it is repaired, and then begins empty behind all that was
// acknowledged, also after a restart, and that a second loss is told as well.
func TestRepairOfLostDirectory(t *testing.T) {
	fs := disk.NewMem()
	end := int64(3)
	b := opened(t, fs, nil)
	create(t, b, "t", 1, nil)
	create(t, b, "other", 1, nil)
	if r := produce(t, b, AcksAll, "t", 0, "a", "b", "c"); r.Err != nil {
		t.Fatal(r.Err)
	}
	for range 2 {
		dir := path.Dir(located(t, partitionOf(b, "t"), end-1))
		closed(t, b)
		names, err := fs.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if err := fs.Remove(path.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := fs.Remove(dir); err != nil {
			t.Fatal(err)
		}
		b = opened(t, fs, nil)
		if r := produce(t, b, AcksAll, "t", 0, "x"); r.Err == nil {
			t.Fatal("a lost partition takes records")
		}
		repaired(t, b, "t")
		if o := partitionOf(b, "t").log.Offsets(); o.Start != end || o.End != end {
			t.Errorf("the repaired log has %d to %d, want nothing from %d on", o.Start, o.End, end)
		}
		closed(t, b)
		b = opened(t, fs, nil)
		if partitionOf(b, "t").log.Fenced() || startOf(b, "t") != end {
			t.Errorf("after a restart it begins at %d", startOf(b, "t"))
		}
		if r := produce(t, b, AcksAll, "t", 0, "next"); r.Err != nil || r.Base != end {
			t.Errorf("the next record: %+v", r)
		}
		end++
		if r := produce(t, b, AcksAll, "other", 0, "x"); r.Err != nil {
			t.Error(r.Err)
		}
	}
	closed(t, b)
}

// located is the .log file with an offset.
func located(t *testing.T, p *partition, offset int64) string {
	t.Helper()
	file, _, err := p.log.Locate(offset)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// TestCompactionMeetsDamage proves that a bit that changes in what is to be
// compacted has its partition passed over, counted and kept as it is, while the
// others are compacted, and that a repair has it compacted again.
func TestCompactionMeetsDamage(t *testing.T) {
	fs := disk.NewMem()
	set := map[string]string{"log.cleaner.enable": "false"}
	b := opened(t, fs, set)
	for _, topic := range []string{"bad", "good"} {
		create(t, b, topic, 1, map[string]string{"cleanup.policy": "compact", "segment.bytes": "1024"})
		for i := range 20 {
			produceKey(t, b, topic, "key", fmt.Sprintf("%0200d", i))
		}
	}
	overwrite(t, fs, partitionOf(b, "bad"), record.HeaderSize+1, 0xff)
	closed(t, b)
	set["log.cleaner.enable"] = "true"
	b = opened(t, fs, set)
	sizes := func() (bad, good int64) { return partitionOf(b, "bad").log.Size(), partitionOf(b, "good").log.Size() }
	was, _ := sizes()
	cleaner := storage.NewCleaner(storage.CleanerOptions{})
	compacted := func(what string, ok func(bad, good int64) bool) {
		t.Helper()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(20 * time.Second); !ok(sizes()); <-tick.C {
			b.compactNext(cleaner, map[*partition]bool{})
			if time.Now().After(deadline) {
				bad, good := sizes()
				t.Fatalf("%s: %d and %d bytes of %d are left", what, bad, good, was)
			}
		}
	}
	compacted("one is damaged", func(_, good int64) bool { return good < 1500 && b.uncleanable() == 1 })
	if bad, _ := sizes(); bad != was {
		t.Errorf("the damaged log has %d bytes, had %d", bad, was)
	}
	repaired(t, b, "bad")
	compacted("repaired", func(bad, _ int64) bool { return bad < 1500 && b.uncleanable() == 0 })
	closed(t, b)
}
