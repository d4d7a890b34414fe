package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"

	"leat/storage/disk"
)

func TestTopicID(t *testing.T) {
	// Proves that ids are random version 4 UUIDs in Kafka's text form, that
	// the text reads back, and that nothing else is read.
	seen := map[TopicID]bool{}
	for range 1000 {
		id := NewTopicID()
		s := id.String()
		if seen[id] || id.IsZero() || id[6]>>4 != 4 || id[8]>>6 != 2 || len(s) != 22 || s[0] == '-' {
			t.Fatalf("id %s (%x)", s, id[:])
		}
		seen[id] = true
		if back, err := ParseTopicID(s); err != nil || back != id {
			t.Fatalf("ParseTopicID(%s) = %s, %v", s, back, err)
		}
	}
	if got := (TopicID{}).String(); got != "AAAAAAAAAAAAAAAAAAAAAA" || !(TopicID{}).IsZero() {
		t.Errorf("zero id %s", got)
	}
	for _, s := range []string{
		"", "AAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAA==",
		"AAAAAAAAAAAAAAAAAAAAAB", "AAAAAAAAAAAAAAAAAAAA+/", "AAAAAAAAAA\nAAAAAAAAAAAA", "0000000000000000000000000000000000",
	} {
		if id, err := ParseTopicID(s); err == nil {
			t.Errorf("ParseTopicID(%q) = %x", s, id[:])
		}
	}
}

func TestDirName(t *testing.T) {
	// Proves that directory names read back and that nothing else is taken
	// for one.
	topic := TopicID{0: 0xab, 15: 0x01}
	for _, id := range []ID{{topic, 0}, {topic, 7}, {NewTopicID(), 1<<31 - 1}} {
		if got, ok := parseDirName(id.dirName()); !ok || got != id {
			t.Errorf("parseDirName(%s) = %s, %t", id.dirName(), got, ok)
		}
	}
	const hex = "ab000000000000000000000000000001"
	if got := (ID{topic, 7}).dirName(); got != hex+"-7" {
		t.Errorf("dirName = %s", got)
	}
	for _, name := range []string{
		"", hex, hex + "-", hex + "--1", hex + "-+1", hex + "-01", hex + "-2147483648", hex + "-1x",
		hex[1:] + "-1", hex + "0-1", strings.ToUpper(hex) + "-1", "zz" + hex[2:] + "-1", "topic-1",
	} {
		if id, ok := parseDirName(name); ok {
			t.Errorf("parseDirName(%q) = %s", name, id)
		}
	}
}

func TestIdentityCreatedOnce(t *testing.T) {
	// Proves that a fresh directory gets an identity that survives a power
	// cut, and keeps it.
	m := disk.NewMem()
	if err := errors.Join(m.MkdirAll("/data"), m.SyncAll("/")); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2030, 1, 2, 3, 4, 5, 678_912_345, time.FixedZone("", 3600))
	id, err := openIdentity(m, "/data", 0, now)
	if err != nil {
		t.Fatal(err)
	}
	if len(id.ClusterID) != 22 || id.NodeID != 1 || id.NodeUUID == "" || id.NodeUUID == id.ClusterID || !id.CreatedAt.Equal(now.Truncate(time.Millisecond)) {
		t.Errorf("identity %+v", id)
	}
	again, err := openIdentity(m.CrashClone(0, nil), "/data", 9, now.Add(time.Hour))
	if err != nil || again != id {
		t.Errorf("reopened: %+v, %v; was %+v", again, err, id)
	}
	if _, err := openIdentity(disk.NewMem(), "/", -1, now); err == nil {
		t.Error("node id -1 was taken")
	}
	if id, err := openIdentity(disk.NewMem(), "/", 42, now); err != nil || id.NodeID != 42 {
		t.Errorf("node id 42: %+v, %v", id, err)
	}
}

func TestIdentityPowerCut(t *testing.T) {
	// Proves that a power cut at any operation of the creation leaves no
	// identity or a whole one.
	m := disk.NewMem()
	rng := rand.New(rand.NewPCG(1, 1))
	var cuts []*disk.Mem
	m.SetFault(func(disk.Op) error {
		for range 8 {
			cuts = append(cuts, m.CrashClone(0.5, rng))
		}
		return nil
	})
	id, err := openIdentity(m, "/", 0, time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	kept := 0
	for i, c := range append(cuts, m.CrashClone(0, nil)) {
		got, err := openIdentity(c, "/", 0, time.Unix(2, 0))
		if err != nil {
			t.Fatalf("cut %d: %v", i, err)
		}
		if got == id {
			kept++
		} else if got.CreatedAt.Unix() != 2 {
			t.Fatalf("cut %d: %+v", i, got)
		}
	}
	if kept == 0 || kept == len(cuts)+1 {
		t.Errorf("%d of %d cuts kept the identity", kept, len(cuts)+1)
	}
}

func TestIdentityDamaged(t *testing.T) {
	// Proves that a directory whose identity is damaged, missing beside data
	// or from a newer Leat is refused with the path, and left as it is.
	good := map[string]any{
		"format": 1, "min_reader": 1, "cluster_id": "AAAAAAAAAAAAAAAAAAAAAQ", "node_id": 3,
		"node_uuid": "u", "created_at": "2030-01-02T03:04:05Z",
	}
	with := func(key string, value any) string {
		b := maps.Clone(good)
		b[key] = value
		if value == nil {
			delete(b, key)
		}
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, tc := range map[string]struct {
		text string // "" = no file
		data string // a file below the directory
		ok   bool
	}{
		"good":               {text: with("format", 1), ok: true},
		"newer, readable":    {text: with("format", 9), ok: true},
		"unknown field":      {text: with("rack", "r1"), ok: true},
		"newer, unreadable":  {text: with("min_reader", 2)},
		"no reader":          {text: with("min_reader", nil)},
		"no format":          {text: with("format", nil)},
		"node id 0":          {text: with("node_id", 0)},
		"node id too large":  {text: with("node_id", 1<<31)},
		"no cluster id":      {text: with("cluster_id", nil)},
		"short cluster id":   {text: with("cluster_id", "abc")},
		"no node uuid":       {text: with("node_uuid", nil)},
		"bad time":           {text: with("created_at", "yesterday")},
		"cut short":          {text: with("format", 1)[:40]},
		"zeros":              {text: strings.Repeat("\x00", 100)},
		"trailing":           {text: with("format", 1) + "x"},
		"huge":               {text: strings.Repeat(" ", maxIdentityBytes+1)},
		"missing, no data":   {ok: true},
		"missing, logs":      {data: "logs/x/y"},
		"missing, metadata":  {data: "db/CURRENT"},
		"missing, other":     {data: "LOCK", ok: true},
		"there, beside logs": {text: with("format", 1), data: "logs/x/y", ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := disk.NewMem()
			if err := m.MkdirAll("/data"); err != nil {
				t.Fatal(err)
			}
			if tc.data != "" {
				p := path.Join("/data", tc.data)
				if err := m.MkdirAll(path.Dir(p)); err != nil {
					t.Fatal(err)
				}
				putFile(t, m, p, []byte("x"))
			}
			if tc.text != "" {
				putFile(t, m, "/data/meta.json", []byte(tc.text))
			}
			id, err := openIdentity(m, "/data", 0, time.Unix(1, 0))
			if tc.ok {
				if err != nil || id.NodeID < 1 {
					t.Errorf("openIdentity = %+v, %v", id, err)
				}
				return
			}
			if damaged, is := errors.AsType[*DamagedError](err); !is || damaged.Path != "/data/meta.json" {
				t.Errorf("openIdentity = %+v, %v; want damage", id, err)
			}
			if tc.text != "" && !bytes.Equal(getFile(t, m, "/data/meta.json"), []byte(tc.text)) {
				t.Error("the file was changed")
			}
			if _, err := m.Stat("/data/meta.json"); tc.text == "" && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the file was made: %v", err)
			}
		})
	}
}

func TestIdentityErrors(t *testing.T) {
	// Proves that an error of the disk is told as such and not as damage.
	for _, kind := range []disk.OpKind{disk.OpOpen, disk.OpList, disk.OpWrite, disk.OpSync, disk.OpRename, disk.OpSyncDir} {
		m := disk.NewMem()
		m.SetFault(func(op disk.Op) error {
			if op.Kind == kind {
				return syscall.EIO
			}
			return nil
		})
		_, err := openIdentity(m, "/", 0, time.Unix(1, 0))
		if _, damaged := errors.AsType[*DamagedError](err); damaged || !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func FuzzParseDirName(f *testing.F) {
	// Proves that whatever is taken for a partition's directory is named just
	// as that partition's directory is.
	f.Add("ab000000000000000000000000000001-7")
	f.Add("ab000000000000000000000000000001-007")
	f.Add("-")
	f.Fuzz(func(t *testing.T, name string) {
		if id, ok := parseDirName(name); ok && id.dirName() != name {
			t.Errorf("%q was read as %s", name, id)
		}
	})
}

func FuzzParseIdentity(f *testing.F) {
	// Proves that no content panics and that what is accepted is usable.
	f.Add([]byte(`{"format":1,"min_reader":1,"cluster_id":"AAAAAAAAAAAAAAAAAAAAAQ","node_id":3,"node_uuid":"u","created_at":"2030-01-02T03:04:05Z"}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, err := parseIdentity(b); err == nil && (id.NodeID < 1 || len(id.ClusterID) != 22) {
			t.Errorf("%q was read as %+v", b, id)
		}
	})
}

// putFile writes a whole file, making it.
func putFile(t *testing.T, m *disk.Mem, name string, data []byte) {
	t.Helper()
	f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err == nil {
		_, err = f.WriteAt(data, 0)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// getFile reads a whole file.
func getFile(t *testing.T, m *disk.Mem, name string) []byte {
	t.Helper()
	b, err := readFile(m, name, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestTextsWithoutChecksum proves that a directory opens, and has nothing wrong
// with it but warnings, of which meta.json and the partition files are as
// versions wrote them that had no checksum there; and that a start leaves them
// as they are.
func TestTextsWithoutChecksum(t *testing.T) {
	t.Parallel()
	m := checkFixture(t)
	identity := "/data/" + identityName
	texts := map[string]string{
		identity: `{
  "format": 1,
  "min_reader": 1,
  "cluster_id": "q83vASNFZ4mrze8BI0VniQ",
  "node_id": 1,
  "node_uuid": "7s7vASNFZ4mrze8BI0VniQ",
  "created_at": "2026-01-31T12:00:00.123Z"
}
`,
		path.Join("/data", logsDir, testID.dirName(), partitionFile): "topic_id: " + testID.Topic.String() +
			"\ntopic: \"orders\"\npartition: 7\ncreated: 2026-01-31T12:00:00.123Z\n",
	}
	for name, text := range texts {
		if err := m.Remove(name); err != nil {
			t.Fatal(err)
		}
		setFile(t, m, name, []byte(text))
	}
	sound := func() {
		r := check(t, m)
		if r.Damages > 0 || len(r.Findings) != len(texts) || r.Identity.ClusterID != "q83vASNFZ4mrze8BI0VniQ" {
			t.Errorf("%+v:\n%s", r.Identity, r.lines())
		}
		for _, f := range r.Findings {
			if f.Severity != Warning || texts[f.Path] == "" {
				t.Errorf("%v", f)
			}
		}
	}
	sound()
	d := openDir(t, m)
	if id := d.Identity(); id.NodeID != 1 || id.NodeUUID != "7s7vASNFZ4mrze8BI0VniQ" || id.CreatedAt.UnixMilli()%1000 != 123 {
		t.Errorf("%+v", id)
	}
	l := openLogAt(t, d, checkConfig, fixtureStart)
	if n := len(readAll(t, l, fixtureStart, fixtureEnd, 1<<20)); l.Fenced() || n == 0 {
		t.Errorf("fenced %t, %d batches", l.Fenced(), n)
	}
	mustClose(t, d)
	for name, text := range texts {
		if now := string(fileBytes(t, m, name)); now != text {
			t.Errorf("%s became %q", name, now)
		}
	}
	sound()
}
