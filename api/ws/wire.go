package ws

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// readBuffer and writeBuffer are the buffers of a connection. What does not
	// fit into them does not pass through them; a control frame, of up to 127
	// bytes, fits.
	readBuffer  = 512
	writeBuffer = 128
	// maxUnsent is about how many bytes wait in the kernel that the client has no
	// room for.
	maxUnsent = 128 << 10
	// lingerTime is how long a closed connection still takes what the client
	// sends: a close with unread input would reset it, and the client might not
	// see the close frame.
	lingerTime = 250 * time.Millisecond
)

// hijacker is a ResponseWriter whose Hijack puts the connection under wire, with
// small buffers in place of those of net/http.
type hijacker struct {
	http.ResponseWriter
	wire *wire
	in   *bufio.Reader
}

// Hijack is http.Hijacker's.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.wire.Conn = nc
	// What the client sent behind its handshake is in the old buffer.
	if n := rw.Reader.Buffered(); n > 0 {
		head, err := rw.Peek(n)
		if err != nil {
			return nil, nil, errors.Join(err, nc.Close())
		}
		h.wire.head = append([]byte(nil), head...)
	}
	if sc, ok := nc.(syscall.Conn); ok {
		if h.wire.raw, err = sc.SyscallConn(); err == nil {
			err = h.wire.raw.Control(limitUnsent)
		}
		if err != nil {
			return nil, nil, errors.Join(err, nc.Close())
		}
		h.wire.try = h.wire.tryWrite
	}
	h.in = bufio.NewReaderSize(h.wire, readBuffer)
	return h.wire, bufio.NewReadWriter(h.in, bufio.NewWriterSize(h.wire, writeBuffer)), nil
}

// limitUnsent keeps what the client does not take out of the kernel, where it
// could be megabytes, and all that is sent later would be behind it.
func limitUnsent(fd uintptr) {
	// Only a socket that is no TCP refuses, and that has no such queue.
	_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, maxUnsent)
}

// wire is the connection under a WebSocket. It puts the head of a message's
// frame before the message, which has the room, so that both leave by one
// write; it bounds the time of writes, and tells the pool of those that block.
type wire struct {
	net.Conn
	srv *Server
	raw syscall.RawConn
	try func(fd uintptr) bool
	// head was read before the connection was taken over.
	head []byte

	// owner is asked to have flush called when owes says that tail waits for it.
	owner *session
	owes  atomic.Bool

	// turn is held while a frame is written.
	turn sync.Mutex

	// message is the one that the WebSocket is about to write. Only one
	// goroutine at a time writes messages.
	message *buffer
	// joined is how much of a frame left ahead of the WebSocket's writes.
	joined int
	// pending and wrote are the arguments and results of try.
	pending []byte
	wrote   int
	tryErr  error

	// late says that a write failed because the client did not read.
	late   atomic.Bool
	linger atomic.Bool

	mu struct {
		sync.Mutex
		// tail is what did not leave of control frames, of up to maxTail bytes
		// and two frames; it goes before all else.
		tail []byte
	}
}

// maxTail is how many bytes of control frames wait for a client that does not
// read; more are dropped.
const maxTail = 512

// Read is net.Conn's.
func (w *wire) Read(p []byte) (int, error) {
	if len(w.head) > 0 {
		n := copy(p, w.head)
		if w.head = w.head[n:]; len(w.head) == 0 {
			w.head = nil
		}
		return n, nil
	}
	return w.Conn.Read(p)
}

// Write takes what the WebSocket's buffer gives: a whole frame, or the beginning
// of one and then its rest. The beginning has the frame's head, and so says
// how long the frame is.
func (w *wire) Write(p []byte) (int, error) {
	w.turn.Lock()
	defer w.turn.Unlock()
	if w.joined > 0 {
		w.joined -= len(p)
		return len(p), nil
	}
	control, head, length := frameHead(p)
	var err error
	switch {
	case control:
		err = w.control(p)
	case head+length <= len(p):
		err = w.put(p)
	default:
		whole := w.message.b[headRoom-head:]
		copy(whole, p[:head])
		w.joined = len(whole) - len(p)
		err = w.put(whole)
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// frameHead reads the head of a frame that is not masked (RFC 6455 section 5.2).
func frameHead(p []byte) (control bool, head, length int) {
	control = p[0]&0x08 != 0
	switch n := p[1] & 0x7f; n {
	case 126:
		return control, 4, int(binary.BigEndian.Uint16(p[2:]))
	case 127:
		return control, 10, int(binary.BigEndian.Uint64(p[2:]))
	default:
		return control, 2, int(n)
	}
}

// put writes a message's frame for a worker of the pool, which it leaves if the
// client does not take it all at once.
func (w *wire) put(p []byte) error {
	if tail := w.takeTail(); len(tail) > 0 {
		p = append(tail, p...)
	}
	if len(p) == 0 {
		return nil
	}
	n, err := w.attempt(p)
	if err != nil || n == len(p) {
		return err
	}
	if w.raw != nil {
		w.srv.pool.leave()
		defer w.srv.pool.back()
	}
	w.srv.blocked.Add(1)
	defer w.srv.blocked.Add(-1)
	return w.block(p[n:])
}

// control writes a control frame. It never blocks: while the WebSocket writes,
// a worker of the pool might wait for its turn.
func (w *wire) control(p []byte) error {
	if w.raw == nil {
		return w.block(p)
	}
	tail := w.takeTail()
	frame := len(p)
	if len(tail) > maxTail {
		frame = 0
	}
	p = append(tail, p[:frame]...)
	n, err := w.attempt(p)
	if err != nil || n == len(p) {
		return err
	}
	w.mu.Lock()
	w.mu.tail = append(append([]byte(nil), p[n:]...), w.mu.tail...)
	w.mu.Unlock()
	w.owe()
	return nil
}

// ping is told of a ping by the WebSocket, which it keeps from answering: while
// a write blocks, the WebSocket would wait for it, read nothing meanwhile, and
// after 5 s give up the connection. A worker of the pool writes the pong.
func (w *wire) ping(_ context.Context, payload []byte) bool {
	w.mu.Lock()
	if len(w.mu.tail) <= maxTail {
		w.mu.tail = append(append(w.mu.tail, 0x80|0x0a, byte(len(payload))), payload...)
	}
	w.mu.Unlock()
	w.owe()
	return false
}

// owe has flush called soon.
func (w *wire) owe() {
	w.owes.Store(true)
	w.owner.kick()
}

// flush writes the tail, as put writes a message.
func (w *wire) flush() error {
	w.turn.Lock()
	defer w.turn.Unlock()
	return w.put(nil)
}

func (w *wire) takeTail() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	tail := w.mu.tail
	w.mu.tail = nil
	return tail
}

// attempt writes as much as the kernel takes at once; nothing if there is no way
// to find out.
func (w *wire) attempt(p []byte) (int, error) {
	if w.raw == nil {
		return 0, nil
	}
	w.pending, w.wrote, w.tryErr = p, 0, nil
	err := w.raw.Write(w.try)
	w.pending = nil
	w.sent(w.wrote)
	return w.wrote, errors.Join(err, w.tryErr)
}

// tryWrite writes as much as the kernel takes at once.
func (w *wire) tryWrite(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), w.pending)
		switch {
		case err == nil:
			w.wrote = n
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
		default:
			w.tryErr = os.NewSyscallError("write", err)
		}
		return true
	}
}

// block writes everything or fails by the deadline, which is taken back then:
// an idle connection has no timer, and the next write no time that is over.
func (w *wire) block(p []byte) error {
	if err := w.SetWriteDeadline(time.Now().Add(w.srv.opts.writeTimeout)); err != nil {
		return err
	}
	n, err := w.Conn.Write(p)
	w.sent(n)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.late.Store(true)
	}
	return errors.Join(err, w.SetWriteDeadline(time.Time{}))
}

func (w *wire) sent(n int) { w.srv.metrics.sentBytes.Add(float64(n)) }

// Close is net.Conn's. A connection that the server ends is first given what is
// left of the close frame, and takes what is under way to it.
func (w *wire) Close() error {
	half, ok := w.Conn.(interface{ CloseWrite() error })
	if !w.linger.Load() || !ok || w.SetDeadline(time.Now().Add(lingerTime)) != nil {
		return w.Conn.Close()
	}
	if tail := w.takeTail(); len(tail) > 0 {
		_, _ = w.Conn.Write(tail) // the client may take it or not
	}
	if half.CloseWrite() == nil {
		scrap := newBuffer(classes[0] - headRoom)
		for {
			if _, err := w.Conn.Read(scrap.b[:cap(scrap.b)]); err != nil {
				break
			}
		}
		scrap.release()
	}
	return w.Conn.Close()
}
