package main

import (
	"cmp"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layer is one row of the table of floors: where a package stands and what of ours its product code imports.
type layer struct {
	floor int
	// may lists the packages that the row may import: lower floors, its own parent, its own children.
	may []string
	// sealed means that the tests of the package keep to the list too. Other tests may import every lower floor
	// (a door's test opens a real broker on a memory disk).
	sealed bool
}

// layers is the architecture of Leat. A folder that is not here fails the test, so a new package is a decision.
var layers = map[string]layer{
	"storage/disk":   {floor: 0},
	"storage/record": {floor: 0},
	// What the proofs of storage and broker share; nothing but tests imports it.
	"storage/disk/disktest": {floor: 0, may: []string{"storage/disk"}},
	// Exchanges against openapi.yaml; nothing but tests imports it.
	"e2e/contract": {floor: 0},
	"web":          {floor: 0},

	"storage":      {floor: 1, may: []string{"storage/disk", "storage/record"}},
	"storage/meta": {floor: 1, may: []string{"storage/disk"}},

	"replication":        {floor: 2, may: []string{"replication/controller", "replication/quorum", "storage", "storage/meta", "storage/record"}},
	"replication/quorum": {floor: 2, may: []string{"storage/meta"}},
	// A store in memory that can crash; nothing but tests imports it, those of its parent too.
	"replication/quorum/quorumtest": {floor: 1, may: []string{"replication/quorum"}},
	"replication/controller":        {floor: 2, may: []string{"storage", "storage/meta", "storage/record"}},
	"auth":                          {floor: 2, may: []string{"storage/meta"}},

	"broker/group": {floor: 3},
	// Tests only: the cores of a cluster in one simulated world.
	"broker/sim": {floor: 4, may: []string{
		"broker/group", "replication", "replication/controller", "replication/quorum", "storage", "storage/meta", "storage/record",
	}, sealed: true},
	"broker": {floor: 3, may: []string{
		"auth", "broker/group", "replication", "replication/controller", "storage", "storage/disk", "storage/meta", "storage/record",
	}},

	"api":       {floor: 4, may: []string{"auth", "broker", "storage/record"}},
	"api/kafka": {floor: 4, may: []string{"api", "auth", "broker", "storage/record"}},
	"api/rest":  {floor: 4, may: []string{"api", "auth", "broker", "storage/record"}},
	"api/ws":    {floor: 4, may: []string{"api", "auth", "broker", "storage/record"}},
	"api/cli":   {floor: 4, sealed: true},
	"e2e":       {floor: 4, may: []string{"e2e/contract"}, sealed: true},
	"e2e/bench": {floor: 4, sealed: true},
	// The clients of others, against the binary. librdkafka is a module of its own.
	"e2e/conformance":            {floor: 4, sealed: true},
	"e2e/conformance/librdkafka": {floor: 4, sealed: true},

	".": {floor: 5, may: []string{
		"api", "api/cli", "api/kafka", "api/rest", "api/ws", "auth", "broker", "replication", "replication/controller",
		"storage", "storage/disk", "storage/meta", "storage/record", "web",
	}},
}

// owners names, for an import of others, the only packages that may have it. A key stands for itself and everything
// below it. anyTest lets the tests of other packages have it too.
var owners = map[string]struct {
	in      []string
	anyTest bool
}{
	"github.com/cockroachdb/pebble":     {in: []string{"storage/meta"}},
	"go.etcd.io/raft":                   {in: []string{"replication/quorum"}},
	"net/http":                          {in: []string{".", "api", "api/kafka", "api/rest", "api/ws", "web", "e2e", "e2e/bench", "e2e/conformance", "e2e/contract"}},
	"cel.dev/cel-go":                    {in: []string{"broker"}},
	"github.com/coder/websocket":        {in: []string{"api/ws", "e2e", "e2e/bench"}},
	"github.com/go-chi/chi":             {in: []string{"api/rest"}},
	"github.com/alecthomas/kong":        {in: []string{".", "api/cli"}},
	"github.com/twmb/franz-go/pkg/kgo":  {in: []string{"api/cli", "e2e", "e2e/bench"}, anyTest: true},
	"github.com/twmb/franz-go/pkg/kadm": {in: []string{"api/cli", "e2e", "e2e/bench"}, anyTest: true},
}

// TestLayers proves that every package imports only what its floor allows, that the table and the tree name the
// same packages, and that each package has exactly one package comment.
//
// It reads the source with go/parser: over `go list` the test cache would answer "ok" after a forbidden import was
// added, because it watches only the files that the test itself opens.
func TestLayers(t *testing.T) {
	checkTable(t)
	packages := readTree(t)
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		row, ok := layers[dir]
		if !ok {
			t.Errorf("%s is a package that the table of floors does not name", dir)
			continue
		}
		checkComment(t, dir, packages[dir])
		for _, f := range packages[dir] {
			for _, imported := range f.imports {
				if reason := forbidden(dir, row, f.test, imported); reason != "" {
					t.Errorf("%s imports %s: %s", f.path, imported, reason)
				}
			}
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(layers)) {
		if _, ok := packages[dir]; !ok {
			t.Errorf("%s is in the table of floors, but there is no such package", dir)
		}
	}
}

// TestForbidden proves that the rules refuse what they are there to refuse.
func TestForbidden(t *testing.T) {
	for _, c := range []struct {
		dir, imported string
		test, want    bool // want: refused
	}{
		{dir: "storage", imported: "leat/storage/record"},
		{dir: "storage", imported: "leat/storage/meta", want: true},
		{dir: "storage", imported: "leat/broker", want: true},
		{dir: "storage", imported: "leat/broker", test: true, want: true},
		{dir: "storage/meta", imported: "github.com/cockroachdb/pebble/v2/vfs"},
		{dir: "broker", imported: "github.com/cockroachdb/pebble/v2", want: true},
		{dir: "replication/quorum", imported: "go.etcd.io/raft/v3/raftpb"},
		{dir: "replication", imported: "go.etcd.io/raft/v3/raftpb", test: true, want: true},
		{dir: "replication/quorum", imported: "leat/replication/controller", want: true},
		{dir: "broker", imported: "net/http", want: true},
		{dir: "broker", imported: "cel.dev/cel-go/cel"},
		{dir: "api/rest", imported: "cel.dev/cel-go/cel", want: true},
		{dir: "broker", imported: "net/http/httptest", test: true, want: true},
		{dir: "broker", imported: "leat/storage"},
		{dir: "api/kafka", imported: "github.com/twmb/franz-go/pkg/kgo", want: true},
		{dir: "api/kafka", imported: "github.com/twmb/franz-go/pkg/kgo", test: true},
		{dir: "api/kafka", imported: "github.com/twmb/franz-go/pkg/kmsg"},
		{dir: "api/kafka", imported: "leat/storage/record"},
		{dir: "api/kafka", imported: "leat/storage", want: true},
		{dir: "api/kafka", imported: "leat/storage", test: true},
		{dir: "api/kafka", imported: "leat/replication", want: true},
		{dir: "api/kafka", imported: "leat/api/rest", want: true},
		{dir: "api/rest", imported: "leat/api/kafka", test: true, want: true},
		{dir: "api/ws", imported: "leat/api/rest", want: true},
		{dir: "api/rest", imported: "github.com/coder/websocket", want: true},
		{dir: "api/cli", imported: "leat/broker", want: true},
		{dir: "api/cli", imported: "leat/storage/record", test: true, want: true},
		{dir: "e2e", imported: "leat/storage/record", test: true, want: true},
		{dir: "web", imported: "leat/api", want: true},
		{dir: "replication", imported: "leat/broker", want: true},
		{dir: "api", imported: "leat", want: true},
		{dir: ".", imported: "leat/api/rest"},
		{dir: "storage", imported: "leatherback/turtle"},
	} {
		got := forbidden(c.dir, layers[c.dir], c.test, c.imported)
		if (got != "") != c.want {
			t.Errorf("%s importing %s (test %v): %q, want refused: %v", c.dir, c.imported, c.test, got, c.want)
		}
	}
}

// checkTable holds the table to its own rule: floors below, the parent, the children.
func checkTable(t *testing.T) {
	t.Helper()
	for dir, row := range layers {
		for _, other := range row.may {
			target, ok := layers[other]
			family := path.Dir(dir) == other || path.Dir(other) == dir
			switch {
			case !ok:
				t.Errorf("row %s allows %s, which has no row", dir, other)
			case target.floor >= row.floor && !family:
				t.Errorf("row %s on floor %d allows %s on floor %d", dir, row.floor, other, target.floor)
			}
		}
	}
}

// forbidden says why a file of package dir must not import a path, "" when it may.
func forbidden(dir string, row layer, test bool, imported string) string {
	for prefix, owner := range owners {
		if imported != prefix && !strings.HasPrefix(imported, prefix+"/") {
			continue
		}
		if !slices.Contains(owner.in, dir) && (!test || !owner.anyTest) {
			return "only " + strings.Join(owner.in, ", ") + " may"
		}
	}
	if imported == "leat" {
		return "nothing imports main"
	}
	ours, ok := strings.CutPrefix(imported, "leat/")
	if !ok || slices.Contains(row.may, ours) {
		return ""
	}
	target, known := layers[ours]
	switch {
	case !known:
		return "the table of floors does not name it"
	case test && !row.sealed && (target.floor < row.floor || ours == dir):
		return ""
	case test && ours == dir:
		return ""
	}
	return "floor " + strconv.Itoa(row.floor) + " may import " + cmp.Or(strings.Join(row.may, ", "), "nothing of ours")
}

// source is what the test reads of a file.
type source struct {
	path    string
	name    string // of the package
	test    bool
	comment bool // has a package comment
	imports []string
}

// readTree parses every Go file of the module, by folder relative to its root.
func readTree(t *testing.T) map[string][]source {
	t.Helper()
	packages := map[string][]source{}
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() {
			hidden := strings.HasPrefix(base, ".") && name != "."
			if hidden || base == "testdata" || base == "node_modules" || base == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(base, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		s := source{
			path: name, name: file.Name.Name, test: strings.HasSuffix(base, "_test.go"), comment: file.Doc != nil,
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, imported)
		}
		dir := filepath.ToSlash(filepath.Dir(name))
		packages[dir] = append(packages[dir], s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return packages
}

// checkComment wants exactly one package comment: in a product file, or in a test file where there are only tests.
func checkComment(t *testing.T, dir string, files []source) {
	t.Helper()
	onlyTests := !slices.ContainsFunc(files, func(f source) bool { return !f.test })
	var with []string
	for _, f := range files {
		if f.comment && f.test == onlyTests && !strings.HasSuffix(f.name, "_test") {
			with = append(with, f.path)
		}
	}
	if len(with) != 1 {
		t.Errorf("%s has %d package comments %v, want one", dir, len(with), with)
	}
}
