package storage

import (
	"context"
	"log/slog"
	"time"
)

// watchRoom measures the disk each second until ctx ends. It has a goroutine of its
// own, because a disk that hangs holds up those that write.
func (d *Dir) watchRoom(ctx context.Context) {
	eachTick(ctx, d.room.measure)
}

// watchStalls tells of a disk that hangs until ctx ends. It waits for nothing: even
// a measurement may, where it removes the ballast.
func (d *Dir) watchStalls(ctx context.Context) {
	stalled := false
	eachTick(ctx, func() { stalled = d.tellStall(stalled, d.Stalled()) })
}

// eachTick calls fn each second until ctx ends.
func eachTick(ctx context.Context, fn func()) {
	tick := time.NewTicker(keeperTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			fn()
		}
	}
}

// StallAfter is how long the disk may take before it counts as stalled.
const StallAfter = 5 * time.Second

// tellStall writes a line when the disk stalls and when it answers again.
func (d *Dir) tellStall(was bool, stalled time.Duration) bool {
	is := stalled >= StallAfter
	switch {
	case is && !was:
		d.opts.Logger.Error("the disk does not answer; what is written waits for it",
			slog.String("path", d.opts.Path), slog.Duration("since", stalled))
	case was && !is:
		d.opts.Logger.Info("the disk answers again", slog.String("path", d.opts.Path))
	}
	return is
}
