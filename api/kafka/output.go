package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"leat/storage/record"
)

const (
	// spliceFrom is the section size from which sendfile is cheaper than
	// reading into the skeleton (measured).
	spliceFrom = 32 << 10
	// holdUpTo is the section size up to which the skeleton before it is held
	// back to leave with it (MSG_MORE). That saves a packet, but shifts the
	// pages that follow across segments, which costs more for large sections
	// (measured: 0.8 times the CPU at 256 KiB, 1.2 times at 1 MiB).
	holdUpTo = 256 << 10
	// maxSkeleton bounds what many small sections add to a skeleton; beyond
	// it they are spliced too.
	maxSkeleton = 1 << 20
	// copyChunk is the buffer of the copy path.
	copyChunk = 256 << 10
	// maxSendfile is the most that Linux moves in one call.
	maxSendfile = 0x7ffff000
)

// splice is a section that goes out where the skeleton has reached `at`.
type splice struct {
	at      int
	section record.Section
}

// output sends the responses of one connection. A response is a skeleton, in
// buf, with sections spliced in that are not copied into the process where the
// connection and the section allow it. It is used by one goroutine; the
// counters are read by the janitor and by the metrics.
type output struct {
	nc      net.Conn
	raw     syscall.RawConn // nil where the connection is not plain TCP
	buf     *buffer
	splices []splice

	sent    atomic.Int64 // bytes sent
	spliced atomic.Int64 // of sections, by sendfile
	copied  atomic.Int64 // of sections, through the process
	inside  atomic.Bool  // a response has begun and not ended

	// The splice under way in raw, kept here so that it costs no closure: the
	// head that is left, then the bytes of the file that are.
	step func(fd uintptr) bool
	head []byte
	hold int // MSG_MORE or 0, for the head
	file int
	pos  int64
	left int64
	err  error
}

func newOutput(nc net.Conn) *output {
	o := &output{nc: nc, raw: rawTCP(nc)}
	o.step = o.spliceStep
	return o
}

// begin starts a response. The size is filled in by flush.
func (o *output) begin(corr int32, flexible bool) {
	o.buf = getBuffer(minClassBytes)
	o.buf.b = append(o.buf.b, 0, 0, 0, 0)
	o.buf.b = binary.BigEndian.AppendUint32(o.buf.b, uint32(corr))
	if flexible {
		o.buf.b = append(o.buf.b, 0)
	}
}

// put takes a section over and appends it: its bytes if it is small, a splice
// otherwise. An error means that the bytes could not be read; buf may have some
// of them then.
func (o *output) put(s record.Section) error {
	n := int(s.Len())
	if n >= spliceFrom || len(o.buf.b)+n > maxSkeleton {
		o.splices = append(o.splices, splice{at: len(o.buf.b), section: s})
		return nil
	}
	defer s.Release()
	at := len(o.buf.b)
	o.reserve(n)
	o.buf.b = o.buf.b[:at+n]
	if err := readFull(s, o.buf.b[at:], 0); err != nil {
		return err
	}
	o.copied.Add(int64(n))
	return nil
}

// reserve makes room for n bytes in buf.
func (o *output) reserve(n int) {
	if cap(o.buf.b)-len(o.buf.b) >= n {
		return
	}
	bigger := getBuffer(len(o.buf.b) + n + minClassBytes)
	bigger.b = append(bigger.b, o.buf.b...)
	o.buf.put()
	o.buf = bigger
}

const minClassBytes = 1 << minClass

// reset drops what was begun and releases its sections.
func (o *output) reset() {
	for i := range o.splices {
		o.splices[i].section.Release()
		o.splices[i] = splice{}
	}
	o.splices = o.splices[:0]
	o.buf.put()
	o.buf = nil
}

// flush sends the response. After an error the connection is of no use: part
// of the response may be out.
func (o *output) flush() error {
	defer o.reset()
	size := int64(len(o.buf.b)) - 4
	for i := range o.splices {
		size += o.splices[i].section.Len()
	}
	if size > math.MaxInt32 {
		return fmt.Errorf("response of %d bytes does not fit a frame", size)
	}
	binary.BigEndian.PutUint32(o.buf.b, uint32(size))
	o.inside.Store(true)
	defer o.inside.Store(false)
	from := 0
	for i := range o.splices {
		s := &o.splices[i]
		if err := o.splice(o.buf.b[from:s.at], s.section); err != nil {
			return err
		}
		// The bytes are the kernel's now; what comes after may take long.
		s.section.Release()
		from = s.at
	}
	return o.write(o.buf.b[from:])
}

// write sends p.
func (o *output) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	n, err := o.nc.Write(p)
	o.sent.Add(int64(n))
	return err
}

// splice sends head and then all bytes of s.
func (o *output) splice(head []byte, s record.Section) error {
	f, pos := s.File()
	if o.raw == nil || f == nil {
		if err := o.write(head); err != nil {
			return err
		}
		return o.copy(s, 0)
	}
	o.head, o.hold = head, 0
	if s.Len() <= holdUpTo {
		o.hold = unix.MSG_MORE
	}
	o.file, o.pos, o.left, o.err = int(f.Fd()), pos, s.Len(), nil
	if err := o.raw.Write(o.step); err != nil {
		return err
	}
	o.spliced.Add(s.Len() - o.left)
	if errors.Is(o.err, unix.EINVAL) || errors.Is(o.err, unix.ENOSYS) {
		// The file system cannot do it.
		return o.copy(s, s.Len()-o.left)
	}
	return o.err
}

// spliceStep is one step of splice in the poller's hands: false means that the
// socket is full. The offset is explicit, so the file's own position is neither
// used nor moved.
func (o *output) spliceStep(fd uintptr) bool {
	for len(o.head) > 0 {
		n, err := unix.SendmsgN(int(fd), o.head, nil, nil, o.hold|unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil:
			o.err = fmt.Errorf("sendmsg: %w", err)
			return true
		}
		o.head = o.head[n:]
		o.sent.Add(int64(n))
	}
	for o.left > 0 {
		n, err := unix.Sendfile(int(fd), o.file, &o.pos, int(min(o.left, maxSendfile)))
		if n > 0 {
			o.left -= int64(n)
			o.sent.Add(int64(n))
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil:
			o.err = fmt.Errorf("sendfile: %w", err)
			return true
		case n == 0:
			// The bytes are announced and the file is shorter.
			o.err = fmt.Errorf("sendfile: %d bytes are missing: %w", o.left, io.ErrUnexpectedEOF)
			return true
		}
	}
	return true
}

// copy sends s from byte `from` on through the process.
func (o *output) copy(s record.Section, from int64) error {
	chunk := getBuffer(int(min(s.Len()-from, copyChunk)))
	defer chunk.put()
	for from < s.Len() {
		p := chunk.b[:min(s.Len()-from, int64(cap(chunk.b)))]
		if err := readFull(s, p, from); err != nil {
			return err
		}
		n, err := o.nc.Write(p)
		o.sent.Add(int64(n))
		o.copied.Add(int64(n))
		if err != nil {
			return err
		}
		from += int64(n)
	}
	return nil
}

// readFull reads len(p) bytes at off, where io.EOF beside the last byte is no
// error.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
