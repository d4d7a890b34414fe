package rest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"leat/api"
	"leat/broker"
	"leat/storage/record"
)

// damage changes the second batch of the only .log there is, given the file and
// the place of the batch.
func (d *door) damage(change func(f *os.File, at int64) error) {
	d.t.Helper()
	var logs []string
	err := filepath.WalkDir(filepath.Join(d.dir, "logs"), func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".log" {
			logs = append(logs, path)
		}
		return err
	})
	if err != nil || len(logs) != 1 {
		d.t.Fatalf("%v, %v", logs, err)
	}
	text, err := os.ReadFile(logs[0])
	if err != nil {
		d.t.Fatal(err)
	}
	first, _, err := record.Next(text)
	if err != nil {
		d.t.Fatal(err)
	}
	f, err := os.OpenFile(logs[0], os.O_RDWR, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := change(f, int64(len(first))); err != nil {
		d.t.Fatal(err)
	}
}

// overwrite puts bytes into the batch, counted from its start.
func overwrite(off int64, p ...byte) func(*os.File, int64) error {
	return func(f *os.File, at int64) error {
		_, err := f.WriteAt(p, at+off)
		return err
	}
}

// The records before a damaged batch can be read; only the fetch that begins
// there fails, and says where.
func TestFetchUpToDamage(t *testing.T) {
	for name, change := range map[string]func(*os.File, int64) error{
		"payload":  overwrite(record.HeaderSize+5, 0xff, 0xfe, 0xfd),
		"length":   overwrite(8, 0x7f, 0xff, 0xff, 0xff),
		"cut":      func(f *os.File, at int64) error { return f.Truncate(at + 70) },
		"cut head": func(f *os.File, at int64) error { return f.Truncate(at + 7) },
	} {
		for _, codec := range []string{"uncompressed", "zstd"} {
			t.Run(name+" "+codec, func(t *testing.T) {
				d := openDoor(t)
				d.fill(codec)
				d.damage(change)
				for _, from := range []int64{0, 2} {
					if got, f := d.offsets(fmt.Sprintf("offset=%d", from)); !slices.Equal(got, []int64{0, 1, 2, 3}[from:]) || f.Next != 4 || f.HW != 10 {
						t.Errorf("from %d: %v %+v", from, got, f)
					}
				}
				a := d.do("GET", recordsOfT0+"offset=0", nil, "Accept", mediaNDJSON).want(t, 200, "")
				if n := bytes.Count(a.body, []byte("\n")); n != 4 || a.Header.Get("Next-Offset") != "4" {
					t.Errorf("%d lines, %v", n, a.Header)
				}
				p := d.do("GET", recordsOfT0+"offset=4", nil).want(t, 500, "corrupt_record").problem(t)
				if p.Retriable || p.DamagedFrom == nil || *p.DamagedFrom != 4 || *p.DamagedTo <= 4 || strings.Contains(p.Detail, ".log") {
					t.Errorf("%+v", p)
				}
				if n := d.damagedPartitions(); n != 1 {
					t.Errorf("%v damaged partitions", n)
				}
				d.do("POST", "/v1/topics/t/partitions/0/records", `{"records":[{"value":1}]}`, "Content-Type", "application/json").want(t, 503, "partition_damaged")
				if !strings.HasPrefix(name, "cut") {
					if got, f := d.offsets("offset=8"); !slices.Equal(got, []int64{8, 9}) || f.Next != 10 {
						t.Errorf("behind: %v %+v", got, f)
					}
				}
			})
		}
	}
}

// A batch that a topic without full validation took, and that cannot be shown as
// records, fails the fetch, and the answer does not say to read on behind it.
func TestFetchOfNonsense(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1, "leat.validate", "header")
	var b record.Builder
	b.Add(0, nil, []byte("value"), nil)
	batch, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	batch[record.HeaderSize] = 0xff // the length of the record
	// The checksum covers what follows it.
	binary.BigEndian.PutUint32(batch[17:], crc32.Checksum(batch[21:], crc32.MakeTable(crc32.Castagnoli)))
	d.do("POST", "/v1/topics/t/partitions/0/records", string(batch), "Content-Type", mediaBatch).want(t, 200, "")
	for _, path := range []string{recordsOfT0 + "offset=0", "/v1/topics/t/records?from=earliest"} {
		a := d.do("GET", path, nil).want(t, 500, "corrupt_record")
		for _, name := range []string{"Next-Offset", "High-Watermark", "Log-Start-Offset", "Cursor"} {
			if v := a.Header.Get(name); v != "" {
				t.Errorf("%s: %s: %s", path, name, v)
			}
		}
	}
	if n := counted(t, d.server.metrics.recordsOut); n != 0 {
		t.Errorf("%v records are counted", n)
	}
}

// What the answer to a failure of the server hides stands in the log.
func TestCauseIsLogged(t *testing.T) {
	lost := &fs.PathError{Op: "read", Path: "/data/x.log", Err: syscall.EIO}
	for code, err := range map[string]error{
		"storage_error":     fmt.Errorf("read 61 bytes of a section: %w", lost),
		"storage_full":      fmt.Errorf("%w: %w", broker.ErrStorageFull, lost),
		"storage_failed":    api.ProblemOf(fmt.Errorf("%w: %w", broker.ErrStorageFailed, lost)).At("t", 0),
		"partition_damaged": fmt.Errorf("%w: %w", broker.ErrDamaged, lost),
		"internal":          fmt.Errorf("what nobody foresaw: %s", lost.Error()),
	} {
		var lines bytes.Buffer
		s := New(Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		rec := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), "GET", recordsOfT0+"offset=0", nil)
		s.fail(newResponseWriter(rec, "id"), r, api.ProblemOf(err).At("t", 0))
		if got := lines.String(); !strings.Contains(got, "code="+code) || !strings.Contains(got, "read /data/x.log: input/output error") {
			t.Errorf("%s: log lacks the cause: %s", code, got)
		}
		if got := rec.Body.String(); !strings.Contains(got, code) || strings.Contains(got, "/data") || strings.Contains(got, "detail") {
			t.Errorf("%s: the answer: %s", code, got)
		}
	}
}

// A fault of the files that every request meets is one line a second.
func TestFaultsAreHeldBack(t *testing.T) {
	var lines bytes.Buffer
	s := New(Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	for range 50 {
		r := httptest.NewRequestWithContext(t.Context(), "GET", recordsOfT0+"offset=0", nil)
		s.fail(newResponseWriter(httptest.NewRecorder(), "id"), r, api.ProblemOf(fmt.Errorf("read: %w", syscall.EMFILE)).At("t", 0))
	}
	// The machine may be so slow that it takes more than a second.
	if n := strings.Count(lines.String(), "too many open files"); n < 1 || n > 25 {
		t.Errorf("%d lines", n)
	}
}

// damagedPartitions is the broker's gauge.
func (d *door) damagedPartitions() float64 {
	d.t.Helper()
	families, err := d.reg.Gather()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "leat_broker_damaged_partitions" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}
