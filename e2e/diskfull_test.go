package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"
)

// smallDisk mounts a file system of so many bytes for the test.
func smallDisk(t *testing.T, bytes int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skipf("a small disk needs the right to mount one (%v); TestFileSizeLimit and the tests of storage and broker go on without", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// filler produces to partition 0 of topics through all doors, and knows what was acknowledged.
type filler struct {
	*server
	t     testing.TB
	w     *wire
	k     *talk
	acked map[string]int64 // records of each topic
}

func (f *filler) connect() { f.w, f.k = f.wire(), f.socket() }

const fillValue = 200 << 10

// each produces one record through every door; full says that it was refused there for lack of room, as it must be if
// it was refused.
func (f *filler) each(topic string) (full [3]bool) {
	f.t.Helper()
	value := func() string {
		return fmt.Sprintf("%d %s", f.acked[topic], strings.Repeat("v", fillValue))
	}
	p := f.w.produce(topic, 0, -1, encode(f.t, kgo.NoCompression(), values(time.Now().UnixMilli(), value())))
	if full[0] = p.ErrorCode == codeStorageError; !full[0] {
		if p.ErrorCode != codeNone || p.BaseOffset != f.acked[topic] {
			f.t.Fatalf("Kafka: code %d, offset %d of %d", p.ErrorCode, p.BaseOffset, f.acked[topic])
		}
		f.acked[topic]++
	}
	a := f.do("POST", "/v1/topics/"+topic+"/partitions/0/records?value=line", []byte(value()+"\n"), "Content-Type: "+typeNDJSON)
	if full[1] = a.status != 200; full[1] {
		if p := a.refused(507, "storage_full"); p.Retriable == nil || !*p.Retriable {
			f.t.Fatalf("HTTP: not to be tried again: %s", clip(string(a.body)))
		}
	} else {
		f.acked[topic]++
	}
	body, err := json.Marshal([]map[string]any{{"value_str": value()}})
	if err != nil {
		f.t.Fatal(err)
	}
	f.k.say(`{"type":"produce","id":1,"topic":%q,"records":%s}`, topic, body)
	for {
		m, err := f.k.next()
		switch {
		case err != nil:
			f.t.Fatal(err)
		case m.Type == "hb":
			continue
		case m.Type == "produced":
			f.acked[topic]++
		case m.Problem.Code == "storage_full" && m.Problem.Status == 507:
			full[2] = true
		default:
			f.t.Fatalf("WebSocket: %s", clip(m.text))
		}
		return full
	}
}

// fill produces until every door refuses.
func (f *filler) fill(topic string) {
	f.t.Helper()
	for range 10_000 {
		if f.each(topic) == [3]bool{true, true, true} {
			return
		}
	}
	f.t.Fatal("the disk does not fill")
}

// resumes waits until every door takes records again.
func (f *filler) resumes(topic string) {
	f.t.Helper()
	eventually(f.t, "records to be taken again", func() error {
		if full := f.each(topic); full != [3]bool{} {
			return fmt.Errorf("refused: %v", full)
		}
		return nil
	})
}

// whole checks that every acknowledged record from start on is there, in its place and no other.
func (f *filler) whole(topic string, start int64) {
	f.t.Helper()
	next := start
	for _, b := range mustSplit(f.t, f.wire().fetchAll(topic, 0, start)) {
		if v := b.values(f.t); b.base() != next || !strings.HasPrefix(v[0], fmt.Sprint(next, " ")) {
			f.t.Fatalf("at offset %d of %s: offset %d, %q", next, topic, b.base(), clip(v[0]))
		}
		next++
	}
	if next != f.acked[topic] {
		f.t.Fatalf("%s ends at %d, %d records were acknowledged", topic, next, f.acked[topic])
	}
}

func (f *filler) alter(topic, name, value string) error {
	rs, err := f.admin().AlterTopicConfigs(f.t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, topic)
	if err != nil {
		return err
	}
	return rs[0].Err
}

// TestDiskFull proves that a small disk that is filled through all three doors takes no more records before it is full,
// says so as each protocol does, and goes on with everything else: reading, changes of configs, deleting; that records
// are taken again, without a restart, once deleted records, retention or a deleted topic have made room; and that no
// acknowledged record is lost, also over kill -9 while it is full.
func TestDiskFull(t *testing.T) {
	s := startIn(t, filepath.Join(smallDisk(t, 200<<20), "data"), "--set", "log.retention.check.interval.ms=100")
	f := &filler{server: s, t: t, acked: map[string]int64{}}
	f.connect()
	for _, topic := range []string{"t", "kept"} {
		s.createTopic(topic, 1, "segment.bytes=8388608")
		f.each(topic)
	}
	f.fill("t")
	if n := s.metric("leat_storage_full"); n != 1 {
		t.Errorf("leat_storage_full is %v", n)
	}
	if free, low := s.metric("leat_storage_disk_free_bytes"), s.metric("leat_storage_disk_low_water_bytes"); free < low/2 || low != 25<<20 {
		t.Errorf("%v bytes are free, the mark is %v", free, low)
	}
	f.whole("t", 0)
	if err := f.alter("t", "retention.ms", "100000000"); err != nil {
		t.Errorf("a config on a full disk: %v", err)
	}
	s.kill()
	s.restart()
	f.connect()
	if full := f.each("kept"); full != [3]bool{true, true, true} {
		t.Errorf("after the restart the disk is full, refused: %v", full)
	}
	f.whole("t", 0)

	start := f.acked["t"] / 2
	s.deleteRecords("t", 0, start)
	f.resumes("t")
	f.whole("t", start)
	f.fill("t")
	if err := f.alter("t", "retention.bytes", "20000000"); err != nil {
		t.Fatal(err)
	}
	f.resumes("kept")
	f.whole("t", s.logStart("t"))
	if err := f.alter("t", "retention.bytes", "-1"); err != nil {
		t.Fatal(err)
	}
	f.fill("t")
	s.do("DELETE", "/v1/topics/t", nil).want(204)
	f.resumes("kept")
	f.whole("kept", 0)
	if n := strings.Count(s.stderr.String(), "the disk is nearly full"); n != 3 {
		t.Errorf("the log has %d lines of three times that the disk was full", n)
	}
	s.stop()
	if stdout, stderr, code := run(t, "", "check", s.dir); code != 0 || stdout != "" {
		t.Errorf("leat check: code %d\n%s%s", code, stdout, stderr)
	}
}

// TestDiskFilledByOthers proves that a disk of which another program takes the last byte ends nothing: records are
// read, what was set aside lets records be deleted, kill -9 loses nothing, and all works again when the room is back.
func TestDiskFilledByOthers(t *testing.T) {
	disk := smallDisk(t, 100<<20)
	s := startIn(t, filepath.Join(disk, "data"))
	f := &filler{server: s, t: t, acked: map[string]int64{}}
	f.connect()
	s.createTopic("t", 1, "segment.bytes=1048576")
	for range 30 {
		f.each("t")
	}
	ballast := filepath.Join(s.dir, "BALLAST")
	eventually(t, "the ballast", func() error { _, err := os.Stat(ballast); return err })
	other := filepath.Join(disk, "other")
	eat := func() {
		t.Helper()
		file, err := os.OpenFile(other, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for size := 1 << 20; size > 0; {
			if _, err := file.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
				size /= 2
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	eat()
	eventually(t, "records to be refused", func() error {
		if full := f.each("t"); full != [3]bool{true, true, true} {
			return fmt.Errorf("refused: %v", full)
		}
		return nil
	})
	f.whole("t", 0)
	s.deleteRecords("t", 0, 5)
	if _, err := os.Stat(ballast); !os.IsNotExist(err) {
		t.Errorf("the ballast is still there: %v", err)
	}
	f.whole("t", 5)
	s.kill()
	s.restart()
	f.connect()
	f.whole("t", 5)
	eat()
	f.whole("t", 5)
	if full := f.each("t"); full != [3]bool{true, true, true} {
		t.Errorf("refused: %v", full)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	f.resumes("t")
	eventually(t, "the ballast", func() error { _, err := os.Stat(ballast); return err })
	f.whole("t", 5)
	s.stop()
}

// TestFileSizeLimit proves that a limit on the size of files is like a full disk to who produces, that everything that
// was acknowledged is there, and that it ends without a restart when the limit does.
func TestFileSizeLimit(t *testing.T) {
	s := start(t)
	f := &filler{server: s, t: t, acked: map[string]int64{}}
	f.connect()
	s.createTopic("t", 1, "flush.messages=1000000")
	limit := func(bytes uint64) {
		t.Helper()
		if err := unix.Prlimit(s.pid(), unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}, nil); err != nil {
			t.Fatal(err)
		}
	}
	limit(12 << 20)
	f.fill("t")
	f.whole("t", 0)
	if n := f.acked["t"]; n < 55 || n > 61 {
		t.Errorf("%d records of 200 KiB in 12 MiB", n)
	}
	limit(unix.RLIM_INFINITY)
	f.resumes("t")
	f.whole("t", 0)
	s.kill()
	s.restart()
	f.connect()
	f.each("t")
	f.whole("t", 0)
}
