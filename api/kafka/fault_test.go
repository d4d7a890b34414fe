package kafka

import (
	"bytes"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"leat/api"
	"leat/broker"
)

// What the server's own files refuse stands in its log, a line a second for each
// kind however many requests meet it; what a client did wrong does not. A want of
// descriptors is a warning, anything else an error.
func TestFaultsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines bytes.Buffer
		s := New(Options{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		cl := &call{h: s.handlers.find(keyAPIVersions), srv: s}
		answer := func(err error, want int16) {
			if got := cl.code(t.Context(), err); got != want {
				t.Errorf("%v is answered with %d", err, got)
			}
		}
		files := &fs.PathError{Op: "open", Path: "/data/x.log", Err: syscall.EMFILE}
		for range 100 {
			answer(fmt.Errorf("append: %w", files), api.KafkaStorageError)
			answer(fmt.Errorf("pread: %w", syscall.EIO), api.KafkaStorageError)
			answer(fmt.Errorf("%w: %q", broker.ErrUnknownTopic, "x"), api.KafkaUnknownTopicOrPartition)
		}
		time.Sleep(api.FaultInterval)
		answer(files, api.KafkaStorageError)
		got := lines.String()
		if n := strings.Count(got, "\n"); n != 3 || strings.Count(got, "level=ERROR") != 1 || strings.Count(got, "level=WARN") != 2 {
			t.Errorf("%d lines:\n%s", n, got)
		}
		for _, want := range []string{"open /data/x.log: too many open files\" skipped=99", "pread: input/output error"} {
			if !strings.Contains(got, want) {
				t.Errorf("no line has %q:\n%s", want, got)
			}
		}
	})
}
