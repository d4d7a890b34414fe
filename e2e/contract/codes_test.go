package contract

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// statuses are the names of net/http that the source uses for the status of an error.
var statuses = map[string]int{
	"StatusBadRequest":                   http.StatusBadRequest,
	"StatusForbidden":                    http.StatusForbidden,
	"StatusNotFound":                     http.StatusNotFound,
	"StatusMethodNotAllowed":             http.StatusMethodNotAllowed,
	"StatusNotAcceptable":                http.StatusNotAcceptable,
	"StatusRequestTimeout":               http.StatusRequestTimeout,
	"StatusConflict":                     http.StatusConflict,
	"StatusGone":                         http.StatusGone,
	"StatusPreconditionFailed":           http.StatusPreconditionFailed,
	"StatusPreconditionRequired":         http.StatusPreconditionRequired,
	"StatusRequestEntityTooLarge":        http.StatusRequestEntityTooLarge,
	"StatusUnsupportedMediaType":         http.StatusUnsupportedMediaType,
	"StatusRequestedRangeNotSatisfiable": http.StatusRequestedRangeNotSatisfiable,
	"StatusUnprocessableEntity":          http.StatusUnprocessableEntity,
	"StatusUpgradeRequired":              http.StatusUpgradeRequired,
	"StatusTooManyRequests":              http.StatusTooManyRequests,
	"StatusRequestHeaderFieldsTooLarge":  http.StatusRequestHeaderFieldsTooLarge,
	"StatusRequestURITooLong":            http.StatusRequestURITooLong,
	"StatusInternalServerError":          http.StatusInternalServerError,
	"StatusServiceUnavailable":           http.StatusServiceUnavailable,
	"StatusGatewayTimeout":               http.StatusGatewayTimeout,
	"StatusInsufficientStorage":          http.StatusInsufficientStorage,
}

// made is one place of the source that makes an error with a code. What the place does not say is zero.
type made struct {
	at, code, title, retriable string
	statusName                 string
	status                     int
}

// source reads the packages whose errors a client of HTTP or WebSocket sees.
type source struct {
	t      *testing.T
	files  *token.FileSet
	consts map[string]string // of the package being read
	made   []made
}

func readSource(t *testing.T) []made {
	s := &source{t: t, files: token.NewFileSet()}
	for _, dir := range []string{"api", "api/rest", "api/ws"} {
		names, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		var parsed []*ast.File
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(s.files, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			parsed = append(parsed, f)
		}
		s.consts = map[string]string{}
		for _, f := range parsed {
			ast.Inspect(f, s.constant)
		}
		for _, f := range parsed {
			ast.Inspect(f, s.place)
		}
	}
	return s.made
}

func (s *source) constant(n ast.Node) bool {
	v, ok := n.(*ast.ValueSpec)
	if !ok {
		return true
	}
	for i, name := range v.Names {
		if i < len(v.Values) {
			if lit, ok := v.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				s.consts[name.Name], _ = strconv.Unquote(lit.Value)
			}
		}
	}
	return true
}

// place notes literals of Problem, ItemError and row, and assignments to a field Code.
func (s *source) place(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CompositeLit:
		s.literal(n)
	case *ast.AssignStmt:
		m := made{at: s.files.Position(n.Pos()).String()}
		for i, left := range n.Lhs {
			if field, ok := left.(*ast.SelectorExpr); ok && len(n.Rhs) == len(n.Lhs) {
				s.field(&m, field.Sel.Name, n.Rhs[i])
			}
		}
		s.note(m)
	}
	return true
}

func (s *source) literal(n *ast.CompositeLit) {
	if name, ok := n.Type.(*ast.Ident); ok && name.Name == "row" {
		s.row(n)
		return
	}
	if array, ok := n.Type.(*ast.ArrayType); ok {
		if name, ok := array.Elt.(*ast.Ident); ok && name.Name == "row" {
			for _, e := range n.Elts {
				s.row(e.(*ast.CompositeLit))
			}
		}
		return
	}
	switch name := n.Type.(type) {
	case *ast.Ident:
		if name.Name != "Problem" && name.Name != "ItemError" {
			return
		}
	case *ast.SelectorExpr:
		if name.Sel.Name != "Problem" && name.Sel.Name != "ItemError" {
			return
		}
	default:
		return
	}
	m := made{at: s.files.Position(n.Pos()).String()}
	for _, e := range n.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok {
				s.field(&m, key.Name, kv.Value)
			}
		}
	}
	s.note(m)
}

// row is one of the error table: sentinel, Kafka's code, status, code, title, outcome, visibility.
func (s *source) row(n *ast.CompositeLit) {
	if len(n.Elts) != 7 {
		s.t.Errorf("%s: not the row that is known here", s.files.Position(n.Pos()))
		return
	}
	m := made{at: s.files.Position(n.Pos()).String()}
	s.field(&m, "Status", n.Elts[2])
	s.field(&m, "Code", n.Elts[3])
	s.field(&m, "Title", n.Elts[4])
	m.retriable = map[string]string{"final": "false", "retry": "true", "unclear": "unclear"}[n.Elts[5].(*ast.Ident).Name]
	s.note(m)
}

func (s *source) field(m *made, name string, value ast.Expr) {
	switch name {
	case "Code":
		if _, copied := value.(*ast.SelectorExpr); !copied {
			if m.code = s.text(value); m.code == "" {
				s.t.Errorf("%s: a code that is neither a literal nor a constant of the package", m.at)
			}
		}
	case "Title", "title":
		m.title = s.text(value)
	case "Status", "status":
		if sel, ok := value.(*ast.SelectorExpr); ok && strings.HasPrefix(sel.Sel.Name, "Status") && len(sel.Sel.Name) > len("Status") {
			m.statusName = sel.Sel.Name
		}
	case "Retriable":
		if id, ok := value.(*ast.Ident); ok {
			m.retriable = id.Name
		}
	}
}

func (s *source) text(value ast.Expr) string {
	switch v := value.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(v.Value)
		return text
	case *ast.Ident:
		return s.consts[v.Name]
	}
	return ""
}

func (s *source) note(m made) {
	if m.code == "" {
		return
	}
	var ok bool
	if m.status, ok = statuses[m.statusName]; !ok && m.statusName != "" {
		s.t.Errorf("%s: %s is not in the table of this test", m.at, m.statusName)
	}
	s.made = append(s.made, m)
}

// TestCodesEqualSource proves that the contract lists exactly the codes that the source makes, with their status and
// title, and that each has words for its page.
func TestCodesEqualSource(t *testing.T) {
	c := load(t)
	codes := c.Problems()
	used := map[string]bool{}
	for _, m := range readSource(t) {
		used[m.code] = true
		p, ok := codes[m.code]
		switch {
		case !ok:
			t.Errorf("%s makes %s, which openapi.yaml does not list under ProblemCode", m.at, m.code)
		case m.status != 0 && !slices.Contains(p.Status, m.status):
			t.Errorf("%s makes %s with status %d, openapi.yaml says %v", m.at, m.code, m.status, p.Status)
		case m.title != "" && m.title != p.Title:
			t.Errorf("%s makes %s with title %q, openapi.yaml says %q", m.at, m.code, m.title, p.Title)
		case m.retriable != "" && m.retriable != p.Retriable:
			t.Errorf("%s makes %s retriable %s, openapi.yaml says %s", m.at, m.code, m.retriable, p.Retriable)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		p := codes[code]
		if !used[code] {
			t.Errorf("openapi.yaml lists %s, which nothing makes", code)
		}
		if p.Title == "" || p.Text == "" || len(p.Status) == 0 || !slices.Contains([]string{"true", "false", "unclear"}, p.Retriable) {
			t.Errorf("openapi.yaml, %s: an entry without status, title, retriable or text: %+v", code, p)
		}
	}
	enum := c.codeEnum()
	if listed := slices.Sorted(maps.Keys(codes)); !slices.Equal(enum, listed) {
		t.Errorf("ProblemCode: enum and x-problems differ, or enum is not sorted:\n%v\n%v", enum, listed)
	}
}
