package broker

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"leat/storage"
	"leat/storage/disk"
	"leat/storage/record"
)

// produceKey produces one record.
func produceKey(t *testing.T, b *Broker, topic, key, value string) {
	t.Helper()
	var w record.Builder
	w.Reset(record.Options{})
	w.Add(b.opts.Now().UnixMilli(), []byte(key), []byte(value), nil)
	one, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := partitionOf(b, topic).append(storage.Append{Batch: one, Epoch: anyEpoch}, AcksAll); err != nil {
		t.Fatal(err)
	}
}

// TestCompactsByItself proves that a topic that is compacted is so without being
// asked: when enough of it is dirty, or because a record waits too long, the
// segment that grows then included; and that one that is not, and a server where
// it is switched off, is left alone.
func TestCompactsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := openWith(t, disk.NewMem())
		for topic, changes := range map[string][]ConfigChange{
			"ratio":  {set("cleanup.policy", "compact"), set("segment.bytes", "1024")},
			"lag":    {set("cleanup.policy", "compact,delete"), set("min.cleanable.dirty.ratio", "1"), set("max.compaction.lag.ms", "60000")},
			"delete": {set("segment.bytes", "1024")},
		} {
			configs := map[string]string{}
			for _, c := range changes {
				configs[c.Name] = *c.Value
			}
			create(t, b, topic, 1, configs)
			for i := range 20 {
				produceKey(t, b, topic, "key", fmt.Sprintf("%0200d", i))
			}
		}
		size := func(topic string) int64 { return partitionOf(b, topic).log.Size() }
		was := size("delete")
		time.Sleep(30 * time.Second)
		if got := size("ratio"); got > 3000 {
			t.Errorf("of the dirty topic %d bytes are left", got)
		}
		if got := size("lag"); got < 4000 {
			t.Errorf("the topic with a lag was compacted too soon, to %d bytes", got)
		}
		time.Sleep(75 * time.Second) // the age, and two looks: the first one has the mark of what is durable move on
		if got := size("lag"); got > 1000 {
			t.Errorf("of the topic with a lag %d bytes are left", got)
		}
		if got := size("delete"); got != was {
			t.Errorf("the topic that is not compacted has %d bytes, had %d", got, was)
		}
	})
}

// TestCompactionSkipsDamage proves that a damaged partition is left alone and
// counted, and that others are compacted all the same.
func TestCompactionSkipsDamage(t *testing.T) {
	b := openWith(t, disk.NewMem(), func(o *Options) { o.Configs = map[string]string{"log.cleaner.enable": "false"} })
	for _, topic := range []string{"bad", "good"} {
		create(t, b, topic, 1, map[string]string{"cleanup.policy": "compact", "segment.bytes": "1024"})
		for i := range 20 {
			produceKey(t, b, topic, "key", fmt.Sprintf("%0200d", i))
		}
	}
	partitionOf(b, "bad").uncleanable.Store(true)
	deadline := time.After(20 * time.Second)
	for b.dirtiest(time.Now(), nil) == nil {
		select {
		case <-deadline:
			t.Fatal("nothing is dirty")
		case <-time.After(time.Millisecond):
		}
	}
	if p := b.dirtiest(time.Now(), nil); p.topic.name != "good" {
		t.Errorf("%s is to be compacted", p.topic.name)
	}
	if b.uncleanable() != 1 {
		t.Errorf("%d partitions are uncleanable", b.uncleanable())
	}
	if b.compactNext(storage.NewCleaner(storage.CleanerOptions{}), nil) {
		t.Error("compacted though it is switched off")
	}
}

// TestCompactionPassesOver proves that the dirtiest partition does not keep the
// others from being compacted while its disk gives read errors.
func TestCompactionPassesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := disk.NewMem()
		b := openWith(t, m)
		fill := func(topic string) {
			for n := range 40 {
				produceKey(t, b, topic, "key", fmt.Sprintf("%0200d", n))
			}
		}
		for _, topic := range []string{"good", "bad"} {
			create(t, b, topic, 1, map[string]string{"cleanup.policy": "compact", "segment.bytes": "1024"})
		}
		fill("good")
		time.Sleep(30 * time.Second)
		fill("good") // and has something clean, so it is less dirty than the other
		fill("bad")
		bad := hex.EncodeToString(partitionOf(b, "bad").id.Topic[:])
		m.SetFault(func(op disk.Op) error {
			if op.Kind == disk.OpRead && strings.Contains(op.Path, bad) {
				return syscall.EIO
			}
			return nil
		})
		time.Sleep(30 * time.Second)
		size := func(topic string) int64 { return partitionOf(b, topic).log.Size() }
		if good, bad := size("good"), size("bad"); good > 3000 || bad < 8000 {
			t.Errorf("%d bytes of the partition that can be read, %d of the other", good, bad)
		}
		m.SetFault(nil)
		time.Sleep(30 * time.Second)
		if got := size("bad"); got > 3000 {
			t.Errorf("%d bytes when it can be read again", got)
		}
	})
}

// TestPace proves that bytes take their time, the first ones none, and that the
// wait ends with the context.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPace(func() float64 { return 1000 })
		began := time.Now()
		for range 5 {
			if err := p.wait(t.Context(), 500); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("2000 bytes took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := p.wait(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		fast := newPace(func() float64 { return math.MaxFloat64 })
		if fast.wait(t.Context(), 1<<40) != nil || fast.wait(t.Context(), 1) != nil || time.Since(began) > 3*time.Second {
			t.Error("without a limit it waited")
		}
	})
}
