package broker

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"

	"leat/storage"
	"leat/storage/disk"
	"leat/storage/disk/disktest"
	"leat/storage/record"
)

var orderProof = disktest.Proof{Name: "TestOrder", Short: 2, Body: proveOrder}

// TestOrder proves of what is between the logs and the metadata that it happens
// in its order, by what is durable at each of these moments: a partition is in
// the metadata before it gets records; that a topic is deleted is there before a
// directory goes into the trash, so that a crash brings neither the topic nor its
// records back; and so is a start before the segments below it go.
func TestOrder(t *testing.T) { disktest.Run(t, orderProof) }

// moment is what a strict power cut would leave before something happens to a
// partition's directory.
type moment struct {
	what string
	id   TopicID
	part int32
	end  int64 // of the segment that goes
	left *disk.Mem
}

// What happens.
const (
	getsRecords  = "its first records are written"
	losesSegment = "a segment goes"
	goes         = "its directory goes"
)

// moments gathers them from the operations on a file system.
type moments struct {
	fs      *disk.Mem
	mu      sync.Mutex
	written map[string]bool
	all     []moment
}

func (m *moments) see(op disk.Op) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, trashed := path.Dir(op.Path), strings.HasPrefix(op.To, "/data/trash/")
	switch {
	case op.Kind == disk.OpRename && trashed && dir == "/data/logs":
		m.add(moment{what: goes}, op.Path)
	case op.Kind == disk.OpRename && trashed && path.Ext(op.Path) == ".log":
		m.add(moment{what: losesSegment, end: m.endOf(op.Path)}, dir)
	case op.Kind == disk.OpWrite && path.Ext(op.Path) == ".log" && path.Dir(dir) == "/data/logs" && !m.written[dir]:
		m.written[dir] = true
		m.add(moment{what: getsRecords}, dir)
	}
	return nil
}

func (m *moments) add(at moment, dir string) {
	topic, part, _ := strings.Cut(path.Base(dir), "-")
	id, err := hex.DecodeString(topic)
	n, failed := strconv.Atoi(part)
	if err != nil || failed != nil || len(id) != len(at.id) {
		return // not a partition's
	}
	at.id, at.part, at.left = TopicID(id), int32(n), m.fs.CrashClone(0, nil)
	if _, err := at.left.Stat(dir + "/COMPACT"); err == nil && at.what == losesSegment {
		return // another has taken its place
	}
	m.all = append(m.all, at)
}

// endOf is the offset behind the batches in a .log.
func (m *moments) endOf(name string) (end int64) {
	f, err := m.fs.CrashClone(1, nil).OpenFile(name, 0)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	p := make([]byte, info.Size())
	_, _ = f.ReadAt(p, 0) // what is missing is no batch
	for {
		b, rest, err := record.Next(p)
		if err != nil {
			return end
		}
		end, p = b.NextOffset(), rest
	}
}

func proveOrder(t testing.TB, seed uint64, c *disktest.Counts) {
	m := &moments{fs: disk.NewMem(), written: map[string]bool{}}
	m.fs.SetFault(m.see)
	r := &modelRun{t: t, counts: c, rng: rand.New(rand.NewPCG(seed, 7)), fs: m.fs, state: state{}, after: state{}}
	r.open()
	defer func() { _ = r.b.Close() }()
	for range 60 {
		if r.rng.IntN(15) == 0 {
			r.restart()
		}
		r.step()
	}
	for _, name := range []string{"t1", "t2", "t3"} {
		if _, there := r.state[name]; there {
			r.remove(name)
		}
	}
	m.fs.SetFault(nil)
	seen := map[string]int{}
	for _, at := range m.all {
		seen[at.what]++
		if wrong := at.judge(t); wrong != "" {
			t.Fatalf("partition %d of %s: %s, and after a power cut before that %s", at.part, at.id, at.what, wrong)
		}
	}
	c.Operations.Add(int64(len(m.all)))
	if seen[getsRecords] == 0 || seen[goes] == 0 {
		t.Fatalf("it came to %v", seen)
	}
}

// judge opens what is left and says what is wrong with it.
func (at *moment) judge(t testing.TB) string {
	b, err := Open(t.Context(), Options{FS: at.left, Path: "/data", Configs: map[string]string{"auto.create.topics.enable": "false"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	topic := b.topic(at.id)
	switch {
	case at.what == goes && topic != nil:
		return "the topic is back"
	case at.what == goes:
		names, err := at.left.List("/data/quarantine")
		if err != nil || len(names) > 0 {
			return fmt.Sprintf("its records are somebody's to look at: %v, %v", names, err)
		}
		return ""
	case topic == nil && at.what == getsRecords:
		return "the topic is unknown"
	case topic == nil:
		return "" // it was deleted
	}
	if at.what == losesSegment {
		// The logs' checkpoint knows the start, too, and may be lost.
		key := startKey(storage.ID{Topic: at.id, Partition: at.part})
		value, err := b.db.Get(key)
		_, start, ok := parseStart(key, value)
		if err != nil || !ok || start < at.end {
			return fmt.Sprintf("the log begins at %d, the segment ends at %d: %v", start, at.end, err)
		}
	}
	return ""
}
