package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// damagedRecords is how many records each partition of the tests of damage has, one a batch.
const damagedRecords = 60

// damages are what happens to a partition of a stopped server. Each gets the .log files of its directory, and the
// directory.
var damages = []struct {
	name string
	do   func(t *testing.T, logs []string, dir string)
}{
	{"a bit of a payload in a sealed segment", func(t *testing.T, logs []string, _ string) { flip(t, logs[1], 8*100) }},
	{"a bit of a base offset", func(t *testing.T, logs []string, _ string) { flip(t, logs[1], 8*7) }},
	{"a segment in the middle is gone", func(t *testing.T, logs []string, _ string) {
		names, err := filepath.Glob(strings.TrimSuffix(logs[2], ".log") + ".*")
		if err != nil || len(names) < 2 {
			t.Fatal(names, err)
		}
		for _, name := range names {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}},
	{"a sealed segment is short", func(t *testing.T, logs []string, _ string) { shorten(t, logs[1], 700) }},
	{"the directory is gone", func(t *testing.T, _ []string, dir string) {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}},
	{"a bit in the segment that grows", func(t *testing.T, logs []string, _ string) { flip(t, logs[len(logs)-1], 8*100) }},
	{"nothing", func(*testing.T, []string, string) {}},
}

func shorten(t *testing.T, name string, by int64) {
	t.Helper()
	info, err := os.Stat(name)
	if err == nil {
		err = os.Truncate(name, info.Size()-by)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func damagedValue(partition int, offset int64) string {
	return fmt.Sprintf("%d/%d %s", partition, offset, strings.Repeat("x", 300))
}

// hole is what cannot be read of a partition.
type hole struct{ from, to int64 }

// TestDamageAndRepair proves, for each kind of damage to a stopped server's partition, that a start serves all others;
// that every door tells a reader of the damage, in its place and with its bounds, and serves what is before and behind it;
// that the partition takes no records until it is repaired; and that after the repair, and a kill -9 right behind it, all
// other records have their offsets, a consumer from the start gets to the end, the check finds nothing, and what was
// damaged is in the quarantine.
func TestDamageAndRepair(t *testing.T) {
	s := start(t)
	s.createTopic("t", len(damages), "segment.bytes=4000", "index.interval.bytes=1000")
	w := s.wire()
	dirs := make([]string, len(damages))
	for p := range damages {
		known := s.logDirs()
		for offset := range int64(damagedRecords) {
			w.mustProduce("t", int32(p), encode(t, kgo.NoCompression(), values(1000+offset, damagedValue(p, offset))))
		}
		for _, dir := range s.logDirs() {
			if !slices.Contains(known, dir) {
				dirs[p] = dir
			}
		}
	}
	s.stop()
	for p, d := range damages {
		logs, err := filepath.Glob(filepath.Join(dirs[p], "*.log"))
		if err != nil || len(logs) < 5 {
			t.Fatalf("%s: %q, %v", dirs[p], logs, err)
		}
		d.do(t, logs, dirs[p])
	}
	found := strings.Join(findings(t, s.dir, 78), "\n")
	for p, d := range damages {
		if told := strings.Contains(found, filepath.Base(dirs[p])); told != (d.name != "nothing") {
			t.Errorf("%s: the check says:\n%s", d.name, found)
		}
	}
	s.restart()
	holes := make([]hole, len(damages))
	for p := range damages {
		holes[p] = s.readDamaged(p)
	}
	s.showDamaged(len(damages) - 1)
	for p, d := range damages {
		s.repairDamaged(p, d.name != "nothing", holes[p])
	}
	s.kill()
	s.restart()
	if n := s.metric("leat_broker_damaged_partitions"); n != 0 {
		t.Errorf("%v partitions are damaged after the repair", n)
	}
	for p, d := range damages {
		s.readRepaired(p, d.name, holes[p])
	}
	s.stop()
	if lines := findings(t, s.dir, 0); strings.Contains(strings.Join(lines, "\n"), "damage ") {
		t.Errorf("after the repair: %v", lines)
	}
	for p, d := range damages {
		aside, err := filepath.Glob(filepath.Join(s.dir, "quarantine", filepath.Base(dirs[p])+"*.log*"))
		if want := d.name != "nothing" && d.name != "the directory is gone"; err != nil || want != (len(aside) > 0) {
			t.Errorf("%s: the quarantine has %q, %v", d.name, aside, err)
		}
	}
}

// logDirs are the directories of partitions.
func (s *server) logDirs() []string {
	s.t.Helper()
	var dirs []string
	for _, name := range s.logFiles() {
		dirs = append(dirs, filepath.Dir(name))
	}
	return slices.Compact(slices.Sorted(slices.Values(dirs)))
}

// readDamaged reads each record of a partition by itself, at each door, and wants those that are missing to be one range.
func (s *server) readDamaged(p int) hole {
	s.t.Helper()
	what, w := damages[p].name, s.wire()
	if start, end := s.startOf(w, p), w.end("t", int32(p)); start != 0 || end != damagedRecords {
		s.t.Errorf("%s: the log has %d to %d", what, start, end)
	}
	h := hole{-1, -1}
	for offset := range int64(damagedRecords) {
		f := w.fetch("t", int32(p), offset, 1)
		a := s.do("GET", fmt.Sprintf("/v1/topics/t/partitions/%d/records?offset=%d&wait=0", p, offset), nil)
		switch f.ErrorCode {
		case codeNone:
			if got := mustSplit(s.t, f.RecordBatches)[0].values(s.t); got[0] != damagedValue(p, offset) || a.status != 200 {
				s.t.Errorf("%s: offset %d is %q, HTTP: %d", what, offset, clip(got[0]), a.status)
			}
		case codeCorruptMessage:
			if h.from < 0 {
				h.from = offset
			} else if offset != h.to {
				s.t.Errorf("%s: another hole at %d", what, offset)
			}
			h.to = offset + 1
			a.refused(500, "corrupt_record")
		default:
			s.t.Errorf("%s: fetch of %d: code %d", what, offset, f.ErrorCode)
		}
	}
	if (h.from >= 0) != (what != "nothing") || h.from == 0 && what != "the directory is gone" {
		s.t.Fatalf("%s: offsets %d to %d are missing", what, h.from, h.to)
	}
	if h.from < 0 {
		return h
	}
	var bounds struct {
		From int64 `json:"damaged_from_offset"`
		To   int64 `json:"damaged_to_offset"`
	}
	a := s.do("GET", fmt.Sprintf("/v1/topics/t/partitions/%d/records?offset=%d", p, h.from), nil)
	if err := json.Unmarshal(a.body, &bounds); err != nil || bounds.From != h.from || bounds.To != h.to {
		s.t.Errorf("%s: %+v, %v; missing are %+v", what, bounds, err, h)
	}
	s.followDamaged(p, h)
	return h
}

// followDamaged wants streams and consumers to be told where they get to the hole.
func (s *server) followDamaged(p int, h hole) {
	s.t.Helper()
	what, from := damages[p].name, max(h.from-1, 0)
	l := s.stream(fmt.Sprintf("/v1/topics/t/partitions/%d/records?offset=%d", p, from), "text/event-stream")
	k := s.socket()
	k.say(`{"type":"subscribe","id":1,"sub":"s","topic":"t","partitions":[%d],"from":{"%d":%d}}`, p, p, from)
	k.want("subscribed")
	if from < h.from {
		l.wantEvent("")
		k.wantData(int32(p), from, 1)
	}
	if e := l.wantEvent("error"); !strings.Contains(e.data, "corrupt_record") {
		s.t.Errorf("%s: SSE: %+v", what, e)
	}
	if m := k.want("error"); m.Problem.Code != "corrupt_record" {
		s.t.Errorf("%s: WebSocket: %s", what, m.text)
	}
	client := s.kgo(kgo.KeepRetryableFetchErrors(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {int32(p): kgo.NewOffset().At(from)}}))
	defer client.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	next := from
	for {
		fetches := client.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset != next || r.Offset >= h.from {
				s.t.Errorf("%s: kgo: offset %d, missing are %+v", what, r.Offset, h)
			}
			next++
		})
		if errs := fetches.Errors(); len(errs) > 0 {
			if !errors.Is(errs[0].Err, kerr.CorruptMessage) {
				s.t.Errorf("%s: kgo: %v", what, errs[0].Err)
			}
			return
		}
	}
}

// showDamaged wants n partitions, the first ones, to be shown as damaged and to take nothing, and the others to take records.
func (s *server) showDamaged(n int) {
	s.t.Helper()
	if got := s.metric("leat_broker_damaged_partitions"); got != float64(n) {
		s.t.Errorf("%v damaged partitions, want %d", got, n)
	}
	var rows []struct {
		Partition int
		Offline   []int32
	}
	out, words, code := run(s.t, "", "partition", "list", "t", "--json", "--server", s.Kafka)
	if err := json.Unmarshal([]byte(out), &rows); err != nil || code != 0 || len(rows) != len(damages) {
		s.t.Fatalf("partition list: exit code %d, %d rows, %v: %s", code, len(rows), err, words)
	}
	w := s.wire()
	for p, row := range rows {
		damaged := p < n
		f := w.produce("t", int32(p), -1, encode(s.t, kgo.NoCompression(), values(time.Now().UnixMilli(), damagedValue(p, damagedRecords))))
		a := s.do("POST", fmt.Sprintf("/v1/topics/t/partitions/%d/records?value=line", p), []byte(damagedValue(p, damagedRecords+1)), "Content-Type: "+typeNDJSON)
		switch {
		case damaged && (f.ErrorCode != codeStorageError || len(row.Offline) != 1):
			s.t.Errorf("%s: produce: code %d; offline %v", damages[p].name, f.ErrorCode, row.Offline)
		case damaged:
			a.refused(503, "partition_damaged")
		case f.ErrorCode != codeNone || f.BaseOffset != damagedRecords || a.status != 200 || len(row.Offline) != 0:
			s.t.Errorf("%s: produce: code %d, HTTP: %d; offline %v", damages[p].name, f.ErrorCode, a.status, row.Offline)
		}
	}
}

// repairDamaged repairs a partition, and puts two records behind the others.
func (s *server) repairDamaged(p int, damaged bool, h hole) {
	s.t.Helper()
	args := []string{"partition", "repair", "t", strconv.Itoa(p), "--server", s.Kafka}
	if _, words, code := run(s.t, "", args...); code != 2 || !strings.Contains(words, "--yes") {
		s.t.Errorf("without --yes: exit code %d: %s", code, words)
	}
	_, words, code := run(s.t, "", append(args, "--yes")...)
	want := fmt.Sprintf("partition %d of t is not damaged", p)
	if damaged {
		want = fmt.Sprintf("partition %d of t is repaired; lost offsets: %d to %d\n", p, h.from, h.to-1)
	}
	if code != 0 || !strings.Contains(words, want) {
		s.t.Errorf("%s: repair: exit code %d: %s; want %s", damages[p].name, code, words, want)
	}
	if !damaged {
		return
	}
	w := s.wire()
	for offset := int64(damagedRecords); offset < damagedRecords+2; offset++ {
		if base := w.mustProduce("t", int32(p), encode(s.t, kgo.NoCompression(), values(1000+offset, damagedValue(p, offset)))); base != offset {
			s.t.Errorf("%s: the next record got offset %d, want %d", damages[p].name, base, offset)
		}
	}
}

// readRepaired wants all records but those of the hole, by two doors.
func (s *server) readRepaired(p int, what string, h hole) {
	s.t.Helper()
	const end = damagedRecords + 2
	client := s.kgo(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {int32(p): kgo.NewOffset().AtStart()}}))
	defer client.Close()
	check := func(door string, next, offset int64, value string) int64 {
		if next == h.from {
			next = h.to
		}
		if offset != next || value != damagedValue(p, offset) {
			s.t.Fatalf("%s: %s: offset %d is %q, want offset %d", what, door, offset, clip(value), next)
		}
		return next + 1
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for next := int64(0); next < end; {
		fetches := client.PollFetches(ctx)
		if errs := fetches.Errors(); len(errs) > 0 {
			s.t.Fatalf("%s: kgo at %d: %v", what, next, errs[0].Err)
		}
		fetches.EachRecord(func(r *kgo.Record) { next = check("kgo", next, r.Offset, string(r.Value)) })
	}
	at := s.startOf(s.wire(), p)
	for next := at; at < end; {
		f := s.records("t", p, fmt.Sprintf("offset=%d&wait=0", at))
		for _, r := range f.Records {
			next = check("HTTP", next, r.Offset, *r.ValueStr)
		}
		if at = f.Next; len(f.Records) == 0 && at < end {
			s.t.Fatalf("%s: HTTP: nothing before %d", what, at)
		}
	}
}

// startOf is the earliest offset of a partition.
func (s *server) startOf(w *wire, p int) int64 {
	s.t.Helper()
	offset, _ := w.listOffset("t", int32(p), earliest)
	return offset
}

// TestRepairRefused proves that a repair of what is not there is an error that says so.
func TestRepairRefused(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	for args, want := range map[string]string{
		"none 0 --yes": "none", "t 1 --yes": "not 1",
	} {
		out, words, code := run(t, "", append([]string{"partition", "repair", "--server", s.Kafka}, strings.Fields(args)...)...)
		if code != 1 || out != "" || !strings.Contains(words, want) {
			t.Errorf("%s: exit code %d: %s%s", args, code, out, words)
		}
	}
	if s.metric("leat_broker_damaged_partitions") != 0 {
		t.Error("damage was made")
	}
}
