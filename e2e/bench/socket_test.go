package bench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
)

const subprotocol = "leat.v1.json"

// socket is the least WebSocket client: the load beside a server must cost little.
type socket struct {
	nc net.Conn
	r  *bufio.Reader
}

// dialSocket opens a socket; size is that of its read buffer.
func dialSocket(addr string, size int) (*socket, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(nc, "GET /v1/ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: %s\r\n\r\n", addr, subprotocol)
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	s := &socket{nc: nc, r: bufio.NewReaderSize(nc, size)}
	resp, err := http.ReadResponse(s.r, nil) //nolint:bodyclose // the connection is closed or goes on as a socket
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, errors.Join(fmt.Errorf("status %d in place of a socket", resp.StatusCode), nc.Close())
	}
	return s, nil
}

// textFrame is a text message with a mask that changes nothing.
func textFrame(payload []byte) []byte { return clientFrame(1, payload) }

func clientFrame(opcode byte, payload []byte) []byte {
	head := []byte{0x80 | opcode, 0x80}
	switch n := len(payload); {
	case n < 126:
		head[1] |= byte(n)
	case n < 1<<16:
		head[1] |= 126
		head = binary.BigEndian.AppendUint16(head, uint16(n))
	default:
		head[1] |= 127
		head = binary.BigEndian.AppendUint64(head, uint64(n))
	}
	return append(append(head, 0, 0, 0, 0), payload...)
}

func (s *socket) send(format string, args ...any) error {
	_, err := s.nc.Write(textFrame(fmt.Appendf(nil, format, args...)))
	return err
}

// next reads the head of the next text frame, whose payload the caller reads or discards. Pings are answered.
func (s *socket) next() (size int, err error) {
	for {
		head, err := s.r.Peek(2)
		if err != nil {
			return 0, err
		}
		opcode, length := head[0]&15, int(head[1])
		_, _ = s.r.Discard(2) // it was peeked
		if length >= 126 {
			wide := 2 + length&1*6
			p, err := s.r.Peek(wide)
			if err != nil {
				return 0, err
			}
			length = 0
			for _, c := range p {
				length = length<<8 | int(c)
			}
			_, _ = s.r.Discard(wide)
		}
		if opcode == 1 {
			return length, nil
		}
		payload := make([]byte, length)
		if _, err := io.ReadFull(s.r, payload); err != nil {
			return 0, err
		}
		switch opcode {
		case 8:
			return 0, fmt.Errorf("closed: %q", payload)
		case 9:
			if _, err := s.nc.Write(clientFrame(10, payload)); err != nil {
				return 0, err
			}
		}
	}
}

// message reads the next text message whole, into buf if it fits.
func (s *socket) message(buf []byte) ([]byte, error) {
	size, err := s.next()
	if err != nil {
		return nil, err
	}
	if size > cap(buf) {
		buf = make([]byte, size)
	}
	buf = buf[:size]
	_, err = io.ReadFull(s.r, buf)
	return buf, err
}

// await reads messages until one of this type.
func (s *socket) await(kind string) ([]byte, error) {
	for {
		text, err := s.message(nil)
		if err != nil {
			return nil, err
		}
		if bytes.HasPrefix(text, []byte(`{"type":"`+kind+`"`)) {
			return text, nil
		}
		if bytes.HasPrefix(text, []byte(`{"type":"error"`)) {
			return nil, fmt.Errorf("%s", text)
		}
	}
}

// field reads the number that follows a key in JSON text, or -1.
func field(text []byte, key string) int64 {
	_, rest, ok := bytes.Cut(text, []byte(key))
	if !ok {
		return -1
	}
	n := 0
	for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
		n++
	}
	v, err := strconv.ParseInt(string(rest[:n]), 10, 64)
	if err != nil {
		return -1
	}
	return v
}
