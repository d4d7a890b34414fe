package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// quiet turns "the reader went away" into success: whoever runs `leat … | head` got what they wanted.
func quiet(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

// ignoreSIGPIPE makes a write to a closed stdout an error that can be seen; by default the Go runtime ends the process
// with the signal, which a shell with pipefail counts as a failure.
func ignoreSIGPIPE() { signal.Ignore(syscall.SIGPIPE) }

// watchReader calls gone when the reader of a pipe or socket goes away while nothing is being written to it, so that
// `leat consume t | head -1` ends then and not at the next record, which may never come.
// It returns at once for anything that is no pipe, and otherwise when ctx ends.
func watchReader(ctx context.Context, out io.Writer, gone func()) {
	file, ok := out.(*os.File)
	if !ok {
		return
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return
	}
	const waitMillis = 250 // how late the end of ctx is seen
	fds := []unix.PollFd{{Fd: int32(file.Fd())}}
	for ctx.Err() == nil {
		n, err := unix.Poll(fds, waitMillis)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0 {
			gone()
			return
		}
	}
}
