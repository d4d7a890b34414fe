package cli

import (
	"bytes"
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// withMember makes a group of one member, which reads partitions of topic t.
func withMember(f *fake, group string, partitions ...int32) {
	g := f.commit(group, "t", 0, 2)
	assignment := kmsg.ConsumerMemberAssignment{Topics: []kmsg.ConsumerMemberAssignmentTopic{{Topic: "t", Partitions: partitions}}}
	metadata := kmsg.ConsumerMemberMetadata{Topics: []string{"t"}}
	f.mu.Lock()
	defer f.mu.Unlock()
	g.member, g.protocol, g.assignment, g.metadata = "shop-1", "range", assignment.AppendTo(nil), metadata.AppendTo(nil)
}

// filled is a fake whose topic t has three records in partition 1 and none in the other.
func filled(t *testing.T) *fake {
	t.Helper()
	f := newFake(t)
	f.create("t", 2)
	if _, words, code := leat(t.Context(), t, strings.NewReader("x\ny\nz\n"), "produce", "t", "--partition", "1", "--timestamp", "1769860800123", "--server", f.addr); code != 0 {
		t.Fatal(words)
	}
	return f
}

// TestGroupShow proves what the commands print that show groups, for people and for programs.
func TestGroupShow(t *testing.T) {
	f := filled(t)
	withMember(f, "busy", 0, 1)
	f.commit("idle", "t", 1, 1)
	f.commit("idle", "gone", 0, 5)
	for args, file := range map[string]string{
		"group list":          "group_list",
		"group describe busy": "group_describe",
		"group describe idle": "group_describe_idle",
		"group reset-offsets idle t --to latest --dry-run":            "group_reset",
		"group reset-offsets idle t/1 --to earliest --dry-run":        "group_reset_one",
		"group reset-offsets fresh t --to ts:1769860800124 --dry-run": "group_reset_new",
	} {
		both(t, f, args, file)
	}
	if got := f.committed("idle", "t"); !maps.Equal(got, map[int32]int64{1: 1}) {
		t.Errorf("a dry run left %v", got)
	}
}

// TestGroupReset proves what is committed, and that nothing is for a group with members or an offset that is not there.
func TestGroupReset(t *testing.T) {
	f := filled(t)
	withMember(f, "busy", 0)
	for _, c := range []struct {
		args  string
		code  int
		words string
		want  map[int32]int64 // of the group of the command
	}{
		{"g t --to latest", 0, "leat: group g is new\nleat: offsets of 2 partitions in t for group g reset", map[int32]int64{0: 0, 1: 3}},
		{"g t/1 --to 2", 0, "leat: offsets of 1 partition in t for group g reset", map[int32]int64{0: 0, 1: 2}},
		{"g t --to tail:2", 0, "reset", map[int32]int64{0: 0, 1: 1}},
		{"g t --to earliest", 0, "reset", map[int32]int64{0: 0, 1: 0}},
		{"g t/1 --to ts:2100-01-01T00:00:00Z", 0, "reset", map[int32]int64{0: 0, 1: 3}},
		{"g t/1 --to 4", 1, "offset 4 is outside partition 1, which holds 0 to 2 (next 3)", map[int32]int64{0: 0, 1: 3}},
		{"g t --to 1", 2, "--to 1 needs one partition, as in t/0: the topic has 2", map[int32]int64{0: 0, 1: 3}},
		{"g t/2 --to latest", 1, "topic t has partitions 0 to 1, not 2", map[int32]int64{0: 0, 1: 3}},
		{"g t/x --to latest", 2, `"t/x" is not TOPIC or TOPIC/PARTITION`, map[int32]int64{0: 0, 1: 3}},
		{"g /1 --to latest", 2, `"/1" is not TOPIC or TOPIC/PARTITION`, map[int32]int64{0: 0, 1: 3}},
		{"g t --to then", 2, `--to "then"`, map[int32]int64{0: 0, 1: 3}},
		{"g t", 2, "--to", map[int32]int64{0: 0, 1: 3}},
		{"g none --to latest", 1, "topic none: no such topic at ", map[int32]int64{0: 0, 1: 3}},
		{"busy t --to latest", 1, "group busy has 1 member (Stable); stop them first", map[int32]int64{0: 2}},
		{"busy t --to latest --dry-run", 1, "group busy has 1 member (Stable); stop them first", map[int32]int64{0: 2}},
	} {
		_, words, code := leat(t.Context(), t, nil, append([]string{"group", "reset-offsets", "--server", f.addr}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(words, c.words) {
			t.Errorf("%q: exit %d, %s; want %d, %s", c.args, code, words, c.code, c.words)
		}
		group, _, _ := strings.Cut(c.args, " ")
		if got := f.committed(group, "t"); !maps.Equal(got, c.want) {
			t.Errorf("%q: %v is committed, want %v", c.args, got, c.want)
		}
	}
}

// TestGroupDelete proves that all that can be deleted are, and what is said of the others.
func TestGroupDelete(t *testing.T) {
	f := filled(t)
	withMember(f, "busy", 0)
	for _, c := range []struct {
		args  string
		code  int
		words []string
	}{
		{"delete none", 1, []string{"group none: no such group at "}},
		{"delete none --if-exists", 0, []string{"leat: group none is not there"}},
		{"delete busy", 1, []string{"delete group busy: it has members, or leases that live; stop them first"}},
		{"delete g busy h h", 1, []string{"leat: group g deleted\nleat: group h deleted\n", "leat: delete group busy", "1 of 3 groups not deleted"}},
		{"delete", 2, []string{"group"}},
		{"describe g", 1, []string{"group g: no such group at "}},
	} {
		f.commit("h", "t", 0, 1)
		if strings.HasPrefix(c.args, "delete g") {
			f.commit("g", "t", 0, 1)
		}
		_, words, code := leat(t.Context(), t, nil, append([]string{"group"}, append(strings.Fields(c.args), "--server", f.addr)...)...)
		for _, want := range c.words {
			if code != c.code || !strings.Contains(words, want) {
				t.Errorf("%q: exit %d, %s; want %d, %s", c.args, code, words, c.code, want)
			}
		}
	}
	if f.committed("busy", "t") == nil {
		t.Error("the group with a member is gone")
	}
}

// TestConsumeGroup proves that a group goes on where it was, that --from counts only where nothing is committed, and
// that no more is committed than was printed.
func TestConsumeGroup(t *testing.T) {
	f := filled(t)
	leat(t.Context(), t, strings.NewReader("a\nb\n"), "produce", "t", "--partition", "0", "--server", f.addr)
	f.commit("half", "t", 1, 1)
	f.commit("full", "t", 1, 1).refuse = kerr.GroupMaxSizeReached
	for _, c := range []struct {
		args  string
		code  int
		lines string // sorted
		words string
		want  map[int32]int64
	}{
		{"--group g --exit-at-end", 0, "a b x y z", "", map[int32]int64{0: 2, 1: 3}},
		{"--group g --exit-at-end", 0, "", "", map[int32]int64{0: 2, 1: 3}},
		{"--group half --exit-at-end --from latest", 0, "y z", "", map[int32]int64{1: 3}},
		{"--group one --from tail:1 --max 2", 0, "b z", "", map[int32]int64{0: 2, 1: 3}},
		{"--group g --partition 1", 2, "", "leave --partition out", map[int32]int64{0: 2, 1: 3}},
		{"--group new --from 1", 2, "", "--from 1 is an offset of one partition, and the topic has 2", nil},
		{"--group new --from then", 2, "", `--from "then"`, nil},
		{"--group full", 1, "", "join the group: GROUP_MAX_SIZE_REACHED", map[int32]int64{1: 1}},
	} {
		out, words, code := leat(t.Context(), t, nil, append([]string{"consume", "t", "--server", f.addr}, strings.Fields(c.args)...)...)
		lines := strings.Fields(out)
		slices.Sort(lines)
		if code != c.code || strings.Join(lines, " ") != c.lines || !strings.Contains(words, c.words) {
			t.Errorf("%q: exit %d, %q, %s; want %d, %q, %s", c.args, code, lines, words, c.code, c.lines, c.words)
		}
		group := strings.Fields(c.args)[1]
		if got := f.committed(group, "t"); !maps.Equal(got, c.want) {
			t.Errorf("%q: %v is committed, want %v", c.args, got, c.want)
		}
		f.mu.Lock()
		if g := f.mu.groups[group]; g != nil && g.member != "" {
			t.Errorf("%q: %s is still a member", c.args, g.member)
		}
		f.mu.Unlock()
	}
}

// TestConsumeGroupInterrupted proves that Ctrl-C is success, and that what was printed until then is committed and no
// more; and that it is no success for one that was told where to stop.
func TestConsumeGroupInterrupted(t *testing.T) {
	f := filled(t)
	for _, limit := range []string{"--max=0", "--max=9"} {
		ctx, interrupt := context.WithCancel(t.Context())
		r, w := io.Pipe()
		result := make(chan error, 1)
		var words bytes.Buffer
		go func() {
			result <- run(ctx, t, IO{Out: w, Err: &words}, "consume", "t", "--server", f.addr, "--group", "g"+limit[6:], limit)
			_ = w.Close()
		}()
		if _, err := io.ReadFull(r, make([]byte, len("x\ny\nz\n"))); err != nil {
			t.Fatal(err)
		}
		interrupt()
		if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
			t.Errorf("%s: %q, %v after Ctrl-C", limit, rest, err)
		}
		if err := <-result; ExitCode(err) != map[string]int{"--max=9": 1}[limit] {
			t.Errorf("%s: after Ctrl-C: %v, %s", limit, err, words.String())
		}
		if got := f.committed("g"+limit[6:], "t"); !maps.Equal(got, map[int32]int64{1: 3}) {
			t.Errorf("%s: %v is committed", limit, got)
		}
	}
}

// TestConsumeGroupLost proves that a committed offset whose record is gone is an error that says what to do, not a jump.
func TestConsumeGroupLost(t *testing.T) {
	f := filled(t)
	f.commit("g", "t", 1, 1)
	if _, words, code := leat(t.Context(), t, nil, "partition", "delete-records", "t", "--partition", "1", "--before", "2", "--server", f.addr); code != 0 {
		t.Fatal(words)
	}
	out, words, code := leat(t.Context(), t, nil, "consume", "t", "--server", f.addr, "--group", "g")
	if code != 1 || out != "" || !strings.Contains(words, "what group g committed is not there any more; leat group reset-offsets moves it") {
		t.Errorf("exit %d, %q, %s", code, out, words)
	}
	if got := f.committed("g", "t"); !maps.Equal(got, map[int32]int64{1: 1}) {
		t.Errorf("%v is committed", got)
	}
}

// TestConsumeGroupUnprinted proves that what could not be printed is not committed.
func TestConsumeGroupUnprinted(t *testing.T) {
	f := filled(t)
	err := run(t.Context(), t, IO{Out: brokenWriter{}, Err: io.Discard}, "consume", "t", "--server", f.addr, "--group", "g", "--exit-at-end")
	if err == nil || f.committed("g", "t") != nil {
		t.Errorf("%v, and %v is committed", err, f.committed("g", "t"))
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
