// Package disktest is what the proofs of storage and broker share: where the
// sources ask for durability (Sites), a test body that may fail without failing
// the test (Attempt), every file with its bytes (Tree), and the search for seeds
// that break something (Run, Soak). Only tests import it.
package disktest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"leat/storage/disk"
)

// Site is a place in the sources that makes something durable or renames it.
type Site struct {
	Package, File, Func, Call string
	from, to                  int // lines of the call
	nth                       int // of the same calls in the function, from 1
}

// String names the site without its line, so that it stays the same while
// other code moves: "keeper.go sealOne SyncData".
func (s Site) String() string {
	name := s.File + " " + s.Func + " " + s.Call
	if s.nth > 1 {
		name = fmt.Sprintf("%s %d", name, s.nth)
	}
	return name
}

// durable are the methods of disk.FS and disk.File that Sites looks for.
var durable = map[string]bool{"Sync": true, "SyncData": true, "SyncDir": true, "SyncAll": true, "Rename": true}

// Sites finds each call of, and each mention of, a sync or rename in the
// package at dir, tests left out.
func Sites(t testing.TB, pkg, dir string) []Site {
	t.Helper()
	files := token.NewFileSet()
	//nolint:staticcheck // the files' syntax is all that is wanted, not their types
	parsed, err := parser.ParseDir(files, dir, func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0)
	if err != nil {
		t.Fatal(err)
	}
	var sites []Site
	seen := map[string]int{}
	for _, p := range parsed {
		for name, file := range p.Files {
			for _, decl := range file.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok {
					continue
				}
				eachMention(fn, func(sel *ast.SelectorExpr, within ast.Node) {
					s := Site{Package: pkg, File: filepath.Base(name), Func: fn.Name.Name, Call: sel.Sel.Name}
					s.from, s.to = files.Position(within.Pos()).Line, files.Position(within.End()).Line
					seen[s.String()]++
					s.nth = seen[s.String()]
					sites = append(sites, s)
				})
			}
		}
	}
	return sites
}

// eachMention calls found for each sync or rename in fn, with the innermost
// call around it, which is where the program counter is.
func eachMention(fn *ast.FuncDecl, found func(sel *ast.SelectorExpr, within ast.Node)) {
	var stack []ast.Node
	ast.Inspect(fn, func(n ast.Node) bool {
		if n == nil {
			stack = stack[:len(stack)-1]
			return true
		}
		stack = append(stack, n)
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || !durable[sel.Sel.Name] || fn.Name.Name == sel.Sel.Name {
			return true // a method of the same name only passes the call on
		}
		if of, ok := sel.X.(*ast.Ident); ok && of.Name == "pebble" {
			return true // an option of a commit
		}
		var within ast.Node = sel
		for i := len(stack) - 2; i >= 0; i-- {
			if call, ok := stack[i].(*ast.CallExpr); ok {
				within = call
				break
			}
		}
		found(sel, within)
		return true
	})
}

// Caller is the index of the site that the running operation comes from, -1 if
// there is none. It is for a function given to Mem.SetFault.
func Caller(sites []Site) int {
	var pcs [48]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		for i, s := range sites {
			if s.from <= f.Line && f.Line <= s.to && strings.HasPrefix(f.Function, s.Package+".") && filepath.Base(f.File) == s.File {
				return i
			}
		}
		if !more {
			return -1
		}
	}
}

// Asks reports whether the operation is one that a Site stands for.
func Asks(k disk.OpKind) bool {
	switch k {
	case disk.OpSync, disk.OpSyncData, disk.OpSyncDir, disk.OpSyncAll, disk.OpRename:
		return true
	default:
		return false
	}
}
