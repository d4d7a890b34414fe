package api

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"leat/broker"
	"leat/replication"
)

// Every exported Err… sentinel of package broker has exactly one row, found by
// reading the source, so a new sentinel cannot be forgotten here.
func TestEverySentinelHasARow(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "broker", "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no source of package broker: %v", err)
	}
	sentinels := map[string]int{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, name := range sentinelsOf(parse(t, file)) {
			sentinels[name] = 0
		}
	}
	ast.Inspect(parse(t, "errors.go"), func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "broker" && strings.HasPrefix(sel.Sel.Name, "Err") {
			sentinels[sel.Sel.Name]++
		}
		return true
	})
	if len(sentinels) < 20 {
		t.Fatalf("found only %d sentinels", len(sentinels))
	}
	for name, rows := range sentinels {
		if rows != 1 {
			t.Errorf("broker.%s has %d rows in the table, want 1", name, rows)
		}
	}
}

func parse(t *testing.T, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func sentinelsOf(f *ast.File) (names []string) {
	for _, decl := range f.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.VAR {
			continue
		}
		for _, spec := range gen.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if strings.HasPrefix(name.Name, "Err") {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

// Rows are well formed: a slug in snake_case, a title, a code, an error status,
// and no row hides behind an earlier one.
func TestTable(t *testing.T) {
	slug := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	for _, r := range table {
		if !slug.MatchString(r.code) || r.title == "" || r.kafka <= 0 || r.status < 400 || r.status > 599 {
			t.Errorf("bad row: %+v", r)
		}
		if http.StatusText(r.status) == "" {
			t.Errorf("%s: status %d has no name", r.code, r.status)
		}
		wrapped := fmt.Errorf("topic \"a\" partition 3: %w", r.sentinel)
		got := Describe(wrapped)
		if got.Code != r.code || got.Kafka != r.kafka || got.Status != r.status {
			t.Errorf("Describe(%v) = %+v, want row %+v", wrapped, got, r)
		}
		if got.Retriable && got.MaybeWritten {
			t.Errorf("%s: retriable although it may have been written", r.code)
		}
		if r.status == http.StatusInternalServerError && r.code != "corrupt_record" {
			t.Errorf("%s: 500 is for errors without a row and for lost records", r.code)
		}
		if want := ""; r.detail == hide && got.Detail != want {
			t.Errorf("%s: detail %q is shown", r.code, got.Detail)
		}
		if r.detail == show && got.Detail != wrapped.Error() {
			t.Errorf("%s: detail = %q, want the text of the error", r.code, got.Detail)
		}
	}
}

// The pairs that clients depend on, and the errors that have no row.
func TestDescribe(t *testing.T) {
	for _, tc := range []struct {
		err       error
		kafka     int16
		status    int
		code      string
		retriable bool
	}{
		{nil, 0, 200, "", false},
		{broker.ErrUnknownTopic, 3, 404, "unknown_topic", false},
		{broker.ErrUnknownTopicID, 100, 404, "unknown_topic_id", false},
		{broker.ErrInvalidTopic, 17, 400, "invalid_topic", false},
		{broker.ErrNotEnoughReplicas, 19, 503, "not_enough_replicas", true},
		{broker.ErrNotEnoughReplicasAfterAppend, 20, 503, "not_enough_replicas_after_append", false},
		{broker.ErrNotLeader, 6, 503, "not_leader", true},
		{replication.ErrLeaseExpired, 6, 503, "not_leader", true},
		{fmt.Errorf("%w of epoch 3", broker.ErrLeadershipLost), 6, 503, "leadership_lost", false},
		{broker.ErrOffsetNotAvailable, 78, 503, "offset_not_available", true},
		{broker.ErrInvalidReplicationFactor, 38, 422, "invalid_replication_factor", false},
		{&broker.OffsetError{Offset: 9, Start: 1, End: 3}, 1, 416, "offset_out_of_range", false},
		{broker.ErrTimedOut, 7, 504, "ack_timeout", false},
		{broker.ErrStorageFull, 56, 507, "storage_full", true},
		{broker.ErrStorageFailed, 56, 503, "storage_failed", false},
		{broker.ErrCorruptBatch, 2, 400, "corrupt_batch", false},
		{broker.ErrInvalidRecord, 87, 422, "invalid_record", false},
		{broker.ErrBatchTooLarge, 10, 413, "record_too_large", false},
		{broker.ErrExpandsTooLarge, 10, 413, "batch_expands_too_large", false},
		{context.Canceled, 7, 503, "canceled", false},
		{context.DeadlineExceeded, 7, 504, "timed_out", false},
		{&fs.PathError{Op: "write", Path: "/data/x", Err: syscall.ENOSPC}, 56, 507, "storage_full", true},
		{&fs.PathError{Op: "read", Path: "/data/x", Err: syscall.EIO}, 56, 503, "storage_error", true},
		{fmt.Errorf("pread: %w", syscall.EIO), 56, 503, "storage_error", true},
		{errors.New("secret: /data/x"), -1, 500, "internal", false},
	} {
		got := Describe(tc.err)
		if got.Kafka != tc.kafka || got.Status != tc.status || got.Code != tc.code || got.Retriable != tc.retriable {
			t.Errorf("Describe(%v) = %+v, want %d %d %s retriable=%v", tc.err, got, tc.kafka, tc.status, tc.code, tc.retriable)
		}
		if strings.Contains(got.Detail, "/data") {
			t.Errorf("Describe(%v) shows a path: %q", tc.err, got.Detail)
		}
	}
}
