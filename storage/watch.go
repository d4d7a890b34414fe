package storage

import (
	"context"
	"time"
)

// watch looks at the disk each second until ctx ends. It has a goroutine of its
// own, because a disk that hangs holds up those that write.
func (d *Dir) watch(ctx context.Context) {
	tick := time.NewTicker(keeperTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.room.measure()
		}
	}
}
