package disktest

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Attempt runs a test's body and returns how it failed, "" if it did not. A
// panic is a failure, too. Cleanups of the body run before Attempt returns.
func Attempt(t testing.TB, body func(testing.TB)) string {
	ctx, cancel := context.WithCancel(t.Context())
	a := &attempt{TB: t, ctx: ctx}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer a.cleanUp()
		defer cancel()
		a.guard(func() { body(a) })
	}()
	<-done
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.failures, "\n")
}

// attempt is the testing.TB of a body that may fail.
type attempt struct {
	testing.TB
	ctx context.Context //nolint:containedctx // Context gives it out

	mu       sync.Mutex
	failures []string
	cleanups []func()
}

// guard runs fn and takes a panic for a failure.
func (a *attempt) guard(fn func()) {
	defer func() {
		if r := recover(); r != nil {
			a.fail(fmt.Sprintf("panic: %v\n%s", r, debug.Stack()))
		}
	}()
	fn()
}

func (a *attempt) cleanUp() {
	for _, fn := range slices.Backward(a.cleanups) {
		a.guard(fn)
	}
}

func (a *attempt) fail(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failures = append(a.failures, strings.TrimSpace(text))
}

func (a *attempt) Helper()                  {}
func (a *attempt) Context() context.Context { return a.ctx }
func (a *attempt) Cleanup(fn func())        { a.cleanups = append(a.cleanups, fn) }
func (a *attempt) Log(...any)               {}
func (a *attempt) Logf(string, ...any)      {}
func (a *attempt) Fail()                    { a.fail("failed") }
func (a *attempt) Error(args ...any)        { a.fail(fmt.Sprintln(args...)) }
func (a *attempt) Errorf(format string, args ...any) {
	a.fail(fmt.Sprintf(format, args...))
}

func (a *attempt) Failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.failures) > 0
}

func (a *attempt) FailNow() {
	a.Fail()
	runtime.Goexit()
}

func (a *attempt) Fatal(args ...any) {
	a.Error(args...)
	runtime.Goexit()
}

func (a *attempt) Fatalf(format string, args ...any) {
	a.Errorf(format, args...)
	runtime.Goexit()
}
