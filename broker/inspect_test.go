package broker

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"

	"leat/auth"
	"leat/replication"
	"leat/replication/controller"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/meta"
)

// TestInspect is the table of what a check says about a data directory whose
// logs and metadata do not fit together, or whose metadata is damaged; of one
// that is whole it says nothing.
func TestInspect(t *testing.T) {
	t.Parallel()
	mem := disk.NewMem()
	b, err := Open(t.Context(), Options{FS: mem, Path: "/data"})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]TopicID{}
	for _, name := range []string{"cut", "kept", "empty"} {
		ids[name] = create(t, b, name, 2, nil).ID
		if name == "empty" {
			continue
		}
		for range 5 {
			produce(t, b, AcksAll, name, 0, "v")
		}
	}
	if r := b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "cut", Offset: 3}})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	who := b.dir.Identity()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	logDir := func(name string, partition int) string {
		return fmt.Sprintf("/data/logs/%x-%d", [16]byte(ids[name]), partition)
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// change rewrites the metadata.
	change := func(t *testing.T, m disk.FS, events ...controller.Event) *meta.DB {
		db, err := meta.Open(meta.Options{FS: m, Dir: "/data/db"})
		must(t, err)
		metadata, err := replication.OpenMetadata(t.Context(), db, replication.MetadataOptions{NodeID: who.NodeID, NodeUUID: who.NodeUUID})
		must(t, err)
		defer metadata.Close()
		for _, ev := range events {
			_, err := metadata.Propose(t.Context(), ev)
			must(t, err)
		}
		return db
	}
	for _, c := range []struct {
		what    string
		change  func(t *testing.T, m *disk.Mem)
		want    []string // of each there is one line
		damages int
	}{
		{"nothing", func(*testing.T, *disk.Mem) {}, nil, 0},
		{
			"a directory with records is missing", func(t *testing.T, m *disk.Mem) { must(t, m.RemoveAll(logDir("cut", 0))) },
			[]string{logDir("cut", 0) + `: the directory of partition 0 of topic "cut" is missing; it had the records from offset 3 to 4`},
			1,
		},
		{
			"a directory without records is missing", func(t *testing.T, m *disk.Mem) { must(t, m.RemoveAll(logDir("empty", 1))) },
			[]string{logDir("empty", 1) + `: the directory of partition 1 of topic "empty" is missing; it is not known`},
			1,
		},
		{"directories that nobody knows", func(t *testing.T, m *disk.Mem) {
			must(t, change(t, m, &controller.DeleteTopics{IDs: []TopicID{ids["kept"], ids["empty"]}},
				&controller.ForgetTopics{IDs: []TopicID{ids["kept"], ids["empty"]}}).Close())
		}, []string{
			logDir("kept", 0) + ": the metadata does not know it, but it has records", logDir("kept", 1) + ": the metadata does not know it, and it is empty",
			logDir("empty", 0) + ": the metadata does not know it", logDir("empty", 1) + ": the metadata does not know it",
		}, 1},
		{"a topic that is being deleted", func(t *testing.T, m *disk.Mem) {
			must(t, change(t, m, &controller.DeleteTopics{IDs: []TopicID{ids["kept"]}}).Close())
			must(t, m.RemoveAll(logDir("kept", 1)))
		}, []string{logDir("kept", 0) + ": its topic was deleted", logDir("kept", 1) + ": the checkpoint has a partition that does not exist"}, 0},
		{"a start beyond the end", func(t *testing.T, m *disk.Mem) {
			db := change(t, m)
			batch := db.NewBatch()
			batch.Set(startKey(storage.ID{Topic: ids["kept"]}), []byte{0, 0, 0, 0, 0, 0, 0, 9})
			must(t, db.Commit(batch))
			must(t, db.Close())
		}, []string{logDir("kept", 0) + "/00000000000000000000-000000.log at byte 345: the log ends at offset 5, below its start 9"}, 1},
		{"a start that is none", func(t *testing.T, m *disk.Mem) {
			db := change(t, m)
			batch := db.NewBatch()
			batch.Set(startKey(storage.ID{Topic: ids["kept"]}), []byte("x"))
			must(t, db.Commit(batch))
			must(t, db.Close())
		}, []string{"/data/db: read the starts of logs"}, 1},
		{"a damaged table", func(t *testing.T, m *disk.Mem) {
			names, err := m.List("/data/db")
			must(t, err)
			name := path.Join("/data/db", names[slices.IndexFunc(names, func(n string) bool { return strings.HasSuffix(n, ".sst") })])
			f, err := m.OpenFile(name, 2)
			must(t, err)
			_, err = f.WriteAt([]byte("x"), 20)
			must(t, err)
			must(t, f.Close())
		}, []string{".sst: the metadata does not hold"}, 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			m := mem.CrashClone(1, nil)
			c.change(t, m)
			r, err := storage.Check(t.Context(), storage.CheckOptions{FS: m, Path: "/data", Meta: func(ctx context.Context, dir string) (*storage.Metadata, error) {
				return Inspect(ctx, m, dir)
			}})
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, f := range r.Findings {
				lines = append(lines, f.String())
			}
			for _, want := range c.want {
				if n := strings.Count(strings.Join(lines, "\n"), want); n != 1 {
					t.Errorf("%d lines say %q", n, want)
				}
			}
			if r.Damages != c.damages || len(lines) != len(c.want) || t.Failed() {
				t.Errorf("%d damages:\n%s", r.Damages, strings.Join(lines, "\n"))
			}
		})
	}
}
