package meta

import (
	"errors"
	"log/slog"
	"syscall"
	"time"
)

// fullPolicy is what a write of Pebble's does when the disk is full: what is
// refused to Pebble ends the store, so first the owner makes room, and then the
// write waits for others to make some.
type fullPolicy struct {
	onFull   func() bool
	patience time.Duration
	logger   *slog.Logger
}

// The pauses between two tries.
const (
	minPause = 10 * time.Millisecond
	maxPause = 500 * time.Millisecond
)

// try runs fn, again and again while it fails for lack of room, as long as the
// policy allows. A sync must not be run like this: what failed once is lost.
func (p *fullPolicy) try(fn func() error) error {
	err := fn()
	if !noSpace(err) {
		return err
	}
	if p.onFull != nil && p.onFull() {
		if err = fn(); !noSpace(err) {
			return err
		}
	}
	if p.patience > 0 {
		p.logger.Warn("the metadata store waits for room on the disk", slog.Duration("at_most", p.patience), slog.Any("err", err))
	}
	end := time.Now().Add(p.patience)
	for pause := minPause; noSpace(err) && time.Now().Before(end); pause = min(2*pause, maxPause) {
		timer := time.NewTimer(min(pause, time.Until(end)))
		<-timer.C
		err = fn()
	}
	return err
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
