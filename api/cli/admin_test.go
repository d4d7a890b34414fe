package cli

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// golden compares output with a file in testdata; the port of the fake is 00000 there.
func golden(t *testing.T, f *fake, name, got string) {
	t.Helper()
	want, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if got = strings.ReplaceAll(got, f.port(), "00000"); got != string(want) {
		t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
	}
}

// both compares what a command prints for people and for programs with the
// files of that name.
func both(t *testing.T, f *fake, args, file string) {
	t.Helper()
	for form, flags := range map[string][]string{"txt": nil, "json": {"--json"}} {
		line := slices.Concat(strings.Fields(args), flags, []string{"--server", f.addr})
		out, words, code := leat(t.Context(), t, nil, line...)
		if code != 0 {
			t.Errorf("%q: exit %d, %s", line, code, words)
		}
		golden(t, f, file+"."+form, out)
	}
}

// TestShow proves what each command that shows something prints, for people and for programs.
func TestShow(t *testing.T) {
	f := newFake(t)
	f.create("logs", 2)
	f.create("other", 1)
	f.mu.topics["other"][0].damaged = true
	f.mu.configs["topic logs"] = map[string]string{"retention.ms": "1000", "empty": ""}
	f.mu.configs["node "] = map[string]string{"log.retention.ms": "5"}
	if _, words, code := leat(t.Context(), t, strings.NewReader("x\ny\nz\n"), "produce", "logs", "--partition", "1", "--timestamp", "1769860800123", "--server", f.addr); code != 0 {
		t.Fatal(words)
	}
	for args, file := range map[string]string{
		"topic offsets logs":                    "topic_offsets",
		"topic offsets logs --partition 1":      "topic_offsets_partition",
		"topic offsets logs --at 1700000000000": "topic_offsets_at",
		"topic offsets logs --at 1769860800124": "topic_offsets_late",
		"topic config logs":                     "topic_config",
		"topic config logs --all":               "topic_config_all",
		"partition list":                        "partition_list",
		"partition list logs logs":              "partition_list_logs",
		"cluster describe":                      "cluster_describe",
		"cluster config":                        "cluster_config",
		"cluster config --node 1":               "cluster_config_node",
		"cluster config --node 1 --all":         "cluster_config_node_all",
	} {
		both(t, f, args, file)
	}
}

// TestTopicAlter proves that each flag does its part, that a command does all that it was asked or nothing, and what it says.
func TestTopicAlter(t *testing.T) {
	f := newFake(t)
	f.create("t", 2)
	for _, c := range []struct {
		args       []string
		code       int
		words      string
		partitions int
		configs    map[string]string // afterwards
	}{
		{[]string{"--config", "a=1", "--config", "l=x"}, 0, "leat: topic t altered: a=1, l=x", 2, map[string]string{"a": "1", "l": "x"}},
		{
			[]string{"--append", "l=y", "--delete-config", "a", "--partitions", "3"},
			0,
			"leat: topic t altered: a back to default, l gained y\nleat: topic t has 3 partitions now", 3,
			map[string]string{"l": "x,y"},
		},
		{[]string{"--subtract", "l=x"}, 0, "leat: topic t altered: l lost x", 3, map[string]string{"l": "y"}},
		{[]string{"--config", "e="}, 0, "leat: topic t altered: e=", 3, map[string]string{"l": "y", "e": ""}},
		{[]string{"--partitions", "3"}, 1, "add partitions to topic t: INVALID_PARTITIONS: the topic has 3 partitions", 3, map[string]string{"l": "y", "e": ""}},
		{[]string{"--partitions", "2", "--config", "a=2"}, 1, "INVALID_PARTITIONS", 3, map[string]string{"l": "y", "e": ""}},
		{[]string{"--partitions", "9", "--config", "unknown=2"}, 1, "alter topic t: INVALID_CONFIG: there is no config unknown", 3, map[string]string{"l": "y", "e": ""}},
		{nil, 2, "nothing to alter", 3, map[string]string{"l": "y", "e": ""}},
		{[]string{"--partitions=-1"}, 2, "--partitions -1", 3, map[string]string{"l": "y", "e": ""}},
		{[]string{"--config", "a"}, 2, `--config "a" is not K=V`, 3, map[string]string{"l": "y", "e": ""}},
		{[]string{"--append", "=1"}, 2, `--append "=1" has no name`, 3, map[string]string{"l": "y", "e": ""}},
		{[]string{"--delete-config", "a=1"}, 2, `--delete-config "a=1" has no name`, 3, map[string]string{"l": "y", "e": ""}},
		{[]string{"--config", "a=1", "--delete-config", "a"}, 2, "--delete-config a: this config is given twice", 3, map[string]string{"l": "y", "e": ""}},
	} {
		out, words, code := leat(t.Context(), t, nil, append([]string{"topic", "alter", "t", "--server", f.addr}, c.args...)...)
		if code != c.code || out != "" || !strings.Contains(words, c.words) {
			t.Errorf("%q: exit %d, %q, %s; want %d, %s", c.args, code, out, words, c.code, c.words)
		}
		f.mu.Lock()
		if partitions := len(f.mu.topics["t"]); partitions != c.partitions || !maps.Equal(f.mu.configs["topic t"], c.configs) {
			t.Errorf("%q: %d partitions, %v; want %d, %v", c.args, partitions, f.mu.configs["topic t"], c.partitions, c.configs)
		}
		f.mu.Unlock()
	}
}

// TestClusterConfig proves where changes go: to one node, or to the cluster.
func TestClusterConfig(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		args  string
		code  int
		words string
	}{
		{"", 0, "nothing is set for the cluster; --node N shows"},
		{"--set a=1 --set b=2", 0, "the cluster altered: a=1, b=2"},
		{"--node 1", 0, "leat: --all shows 1 default, too"},
		{"--node 1 --set a=3 --append l=x", 0, "node 1 altered: a=3, l gained x"},
		{"--delete a", 0, "the cluster altered: a back to default"},
		{"--set unknown=1", 1, "alter the cluster: INVALID_CONFIG: there is no config unknown"},
		{"--set a=1 --json", 2, "--json"},
		{"--node 7", 1, "node 7: no such node at "},
		{"--node 7 --set a=1", 1, "node 7: no such node at "},
		{"--node=-2", 2, "--node -2"},
		{"--all", 2, "--all shows what a node works with"},
		{"--node 1 --all --set a=1", 2, "--all"},
		{"--set a", 2, `--set "a" is not K=V`},
	} {
		_, words, code := leat(t.Context(), t, nil, append([]string{"cluster", "config", "--server", f.addr}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(words, c.words) {
			t.Errorf("%q: exit %d, %s; want %d, %s", c.args, code, words, c.code, c.words)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if cluster, node := f.mu.configs["node "], f.mu.configs["node 1"]; !maps.Equal(cluster, map[string]string{"b": "2"}) ||
		!maps.Equal(node, map[string]string{"a": "3", "l": "x"}) {
		t.Errorf("cluster %v, node 1 %v", cluster, node)
	}
}

// TestDeleteRecords proves that records go up to the offset and no further, and what is said.
func TestDeleteRecords(t *testing.T) {
	f := newFake(t)
	f.create("t", 2)
	leat(t.Context(), t, strings.NewReader("x\ny\nz\n"), "produce", "t", "--partition", "1", "--server", f.addr)
	for _, c := range []struct {
		args       string
		code       int
		out, words string
	}{
		{"--partition 1 --before 2", 0, "", "leat: partition 1 of t begins at offset 2 now"},
		{"--partition 1 --before 1", 0, "", "leat: partition 1 of t begins at offset 2 now"},
		{"--partition 1 --before 9", 1, "", "partition 1 of t has no offset 9: OFFSET_OUT_OF_RANGE"},
		{"--partition 1 --before latest --json", 0, "{\n  \"topic\": \"t\",\n  \"partition\": 1,\n  \"start_offset\": 3\n}\n", "offset 3"},
		{"--partition 2 --before 0", 1, "", "topic t has partitions 0 to 1, not 2"},
		{"--partition 1 --before yesterday", 2, "", `--before "yesterday"`},
		{"--partition=-1 --before 1", 2, "", "--partition -1"},
		{"--partition 1", 2, "", "--before"},
		{"--before 1", 2, "", "--partition"},
	} {
		out, words, code := leat(t.Context(), t, nil, append([]string{"partition", "delete-records", "t", "--server", f.addr}, strings.Fields(c.args)...)...)
		if code != c.code || out != c.out || !strings.Contains(words, c.words) {
			t.Errorf("%q: exit %d, %q, %s; want %d, %q, %s", c.args, code, out, words, c.code, c.out, c.words)
		}
	}
}

// TestPartitionRepair proves that a repair must be meant, and what is said of it.
func TestPartitionRepair(t *testing.T) {
	f := newFake(t)
	f.create("t", 2)
	for _, c := range []struct {
		args       string
		code       int
		out, words string
	}{
		{"t 1", 2, "", "--yes"},
		{"t 1 --yes", 0, "", "leat: partition 1 of t is repaired; lost offsets: 4 to 7"},
		{"t 1 --yes --json", 0, "{\n  \"topic\": \"t\",\n  \"partition\": 1,\n  \"repaired\": true,\n  \"lost\": \"lost offsets: 4 to 7\"\n}\n", "repaired"},
		{"t 0 --yes", 0, "", "leat: partition 0 of t is not damaged"},
		{"t 2 --yes", 1, "", "topic t has partitions 0 to 1, not 2"},
		{"none 0 --yes", 1, "", "none"},
		{"t x --yes", 2, "", "x"},
		{"t", 2, "", "partition"},
	} {
		out, words, code := leat(t.Context(), t, nil, append([]string{"partition", "repair", "--server", f.addr}, strings.Fields(c.args)...)...)
		if code != c.code || out != c.out || !strings.Contains(words, c.words) {
			t.Errorf("%q: exit %d, %q, %s; want %d, %q, %s", c.args, code, out, words, c.code, c.out, c.words)
		}
	}
}

// TestTopicDeleteMany proves that all that can be deleted are, that each failure is named, and that --progress sums up.
func TestTopicDeleteMany(t *testing.T) {
	f := newFake(t)
	args := []string{"topic", "delete", "--progress", "--server", f.addr}
	for i := range 2*deleteAtOnce + 3 {
		name := "t" + strconv.Itoa(i)
		if i != deleteAtOnce {
			f.create(name, 1)
		}
		args = append(args, name)
	}
	_, words, code := leat(t.Context(), t, nil, args...)
	if code != 1 || strings.Count(words, " deleted\n") != 2*deleteAtOnce+2 || !strings.Contains(words, "leat: topic t20: no such topic at ") ||
		!strings.Contains(words, "1 of 43 topics not deleted") || !strings.Contains(words, "leat: deleted 42 topics in ") {
		t.Errorf("exit %d, %s", code, words)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.mu.topics) != 0 {
		t.Errorf("left: %v", f.mu.topics)
	}
}

// TestTopicThere proves that --if-not-exists and --if-exists make a second run a success that changes nothing.
func TestTopicThere(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct{ args, words string }{
		{"topic create t --partitions 2 --if-not-exists", "created with 2 partitions"},
		{"topic create t --partitions 5 --if-not-exists", "topic t is there already"},
		{"topic delete t --if-exists", "topic t deleted"},
		{"topic delete t --if-exists", "topic t is not there"},
	} {
		if _, words, code := leat(t.Context(), t, nil, append(strings.Fields(c.args), "--server", f.addr)...); code != 0 || !strings.Contains(words, c.words) {
			t.Errorf("%s: exit %d, %s", c.args, code, words)
		}
	}
}

// TestHumanBytes proves the form of sizes, at the edges of the units.
func TestHumanBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0B", 999: "999B", 1000: "1.0kB", 999_949: "999.9kB", 999_950: "1.0MB", 1_234_567: "1.2MB",
		5_000_000_000: "5.0GB", 9_223_372_036_854_775_807: "9223.4PB",
	} {
		if got := humanBytes(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
