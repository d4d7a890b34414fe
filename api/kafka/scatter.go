package kafka

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// scatter reads from a plain TCP connection into two buffers with one system
// call (readv). It is used by one goroutine.
type scatter struct {
	raw syscall.RawConn
	// The read under way in raw, kept here so that it costs no closure.
	step func(fd uintptr) bool
	bufs [2][]byte
	n    int
	err  error
}

// newScatter is nil where the connection is not plain TCP.
func newScatter(nc net.Conn) *scatter {
	raw := rawTCP(nc)
	if raw == nil {
		return nil
	}
	s := &scatter{raw: raw}
	s.step = s.try
	return s
}

// rawTCP is the connection in the poller's hands, nil where it is not plain TCP.
func rawTCP(nc net.Conn) syscall.RawConn {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// read fills first, then second, as far as bytes have come, and waits for one at
// least. Both must have room. It fails as the connection's Read does.
func (s *scatter) read(first, second []byte) (int, error) {
	s.bufs = [2][]byte{first, second}
	err := s.raw.Read(s.step)
	s.bufs = [2][]byte{}
	if err != nil {
		return 0, err
	}
	return s.n, s.err
}

// try is one step of read: false means that nothing has come.
func (s *scatter) try(fd uintptr) bool {
	for {
		n, err := unix.Readv(int(fd), s.bufs[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil:
			s.n, s.err = 0, fmt.Errorf("readv: %w", err)
		case n == 0:
			s.n, s.err = 0, io.EOF
		default:
			s.n, s.err = n, nil
		}
		return true
	}
}
