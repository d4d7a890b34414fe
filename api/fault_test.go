package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"
	"time"

	"leat/broker"
)

// Fault finds the errors that are the server's own and that nothing else logs,
// each errno for itself.
func TestFault(t *testing.T) {
	full := &fs.PathError{Op: "open", Path: "/data/x.log", Err: syscall.EMFILE}
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{full, "too many open files"},
		{ProblemOf(fmt.Errorf("read: %w", full)).At("t", 0), "too many open files"},
		{fmt.Errorf("pread: %w", os.NewSyscallError("pread64", syscall.EIO)), "input/output error"},
		{&fs.PathError{Op: "read", Path: "/data/x.log", Err: errors.New("odd")}, "storage_error"},
		{fmt.Errorf("%w: %w", broker.ErrStorageFull, syscall.ENOSPC), ""},
		{fmt.Errorf("%w: %w", broker.ErrDamaged, full), ""},
		{broker.ErrUnknownTopic, ""},
		{context.Canceled, ""},
		{errors.New("internal"), ""},
	} {
		if got := Fault(c.err); got != c.want {
			t.Errorf("Fault(%v) = %q, want %q", c.err, got, c.want)
		}
	}
}

// The log limit lets one line of a kind through in its time and counts the
// others.
func TestLogLimit(t *testing.T) {
	var l LogLimit
	at := time.Unix(0, 0)
	var got bytes.Buffer
	for _, s := range []int{0, 1, 2, 9, 10, 11, 30} {
		skipped, ok := l.Allow("a", 10*time.Second, at.Add(time.Duration(s)*time.Second))
		fmt.Fprintf(&got, "%d:%v/%d ", s, ok, skipped)
	}
	if _, ok := l.Allow("b", 10*time.Second, at); !ok {
		t.Error("another kind is held back")
	}
	if want := "0:true/0 1:false/0 2:false/0 9:false/0 10:true/3 11:false/0 30:true/1 "; got.String() != want {
		t.Errorf("%s, want %s", got.String(), want)
	}
}
