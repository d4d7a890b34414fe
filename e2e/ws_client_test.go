package e2e

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// Opcodes of WebSocket frames (RFC 6455, section 5.2).
const (
	opContinue byte = 0
	opText     byte = 1
	opBinary   byte = 2
	opClose    byte = 8
	opPing     byte = 9
	opPong     byte = 10
)

const subprotocol = "leat.v1.json"

// maxFrame is more than any frame that the server may send.
const maxFrame = 1 << 20

// socket is a WebSocket client made of frames alone, so that a test can send what no library would. One goroutine
// reads; any may send.
type socket struct {
	nc      net.Conn
	r       *bufio.Reader
	buf     []byte // of the message that read returned last
	writing sync.Mutex
}

// closedError is the close frame that the server sent.
type closedError struct {
	code   int
	reason string
}

func (e *closedError) Error() string { return fmt.Sprintf("closed with %d %q", e.code, e.reason) }

// refusedError is an HTTP answer in place of a socket or a stream.
type refusedError struct {
	status int
	header http.Header
	body   []byte
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("status %d: %s", e.status, tail(string(e.body), 600))
}

// refuse reads an answer that is no stream.
func refuse(resp *http.Response) error {
	defer resp.Body.Close() //nolint:errcheck // what could be read is there
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return &refusedError{resp.StatusCode, resp.Header, body}
}

// openSocket shakes hands over a connection. Without an upgrade the error is a *refusedError.
func openSocket(nc net.Conn, headers ...string) (*socket, error) {
	var request strings.Builder
	request.WriteString("GET /v1/ws HTTP/1.1\r\n")
	for _, h := range append([]string{
		"Host: " + nc.RemoteAddr().String(), "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol: " + subprotocol,
	}, headers...) {
		request.WriteString(h + "\r\n")
	}
	if _, err := io.WriteString(nc, request.String()+"\r\n"); err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(nc, 4<<10)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodGet})
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		peek("GET /v1/ws", resp)
		return nil, refuse(resp)
	}
	// The answer to the key above stands in RFC 6455, section 1.3.
	if got := resp.Header.Get("Sec-WebSocket-Accept"); got != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		return nil, fmt.Errorf("Sec-WebSocket-Accept %q", got)
	}
	if got := resp.Header.Get("Sec-WebSocket-Protocol"); got != subprotocol {
		return nil, fmt.Errorf("Sec-WebSocket-Protocol %q", got)
	}
	return &socket{nc: nc, r: r}, nil
}

// frame sends one frame with a mask: final or not, with this opcode.
func (s *socket) frame(final bool, opcode byte, payload []byte) error {
	head := make([]byte, 2, 14)
	if head[0] = opcode; final {
		head[0] |= 0x80
	}
	switch n := len(payload); {
	case n < 126:
		head[1] = byte(n)
	case n < 1<<16:
		head[1] = 126
		head = binary.BigEndian.AppendUint16(head, uint16(n))
	default:
		head[1] = 127
		head = binary.BigEndian.AppendUint64(head, uint64(n))
	}
	head[1] |= 0x80
	var mask [4]byte
	binary.LittleEndian.PutUint32(mask[:], rand.Uint32())
	message := append(append(head, mask[:]...), payload...)
	for i := range payload {
		message[len(head)+4+i] ^= mask[i&3]
	}
	return s.write(message)
}

// write sends bytes as they are.
func (s *socket) write(p []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err := s.nc.Write(p)
	return err
}

// send sends a text message; it is formatted as fmt does.
func (s *socket) send(format string, args ...any) error {
	return s.frame(true, opText, fmt.Appendf(nil, format, args...))
}

// readFrame reads one frame as it is; payload is good until the next read.
func (s *socket) readFrame() (opcode byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return 0, nil, err
	}
	if head[0]&0xf0 != 0x80 || head[1]&0x80 != 0 {
		return 0, nil, fmt.Errorf("a frame begins with %x: want it whole, without extensions and mask", head)
	}
	size := uint64(head[1])
	switch size {
	case 126:
		var p [2]byte
		_, err = io.ReadFull(s.r, p[:])
		size = uint64(binary.BigEndian.Uint16(p[:]))
	case 127:
		var p [8]byte
		_, err = io.ReadFull(s.r, p[:])
		size = binary.BigEndian.Uint64(p[:])
	}
	if err != nil {
		return 0, nil, err
	}
	if size > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes", size)
	}
	if uint64(cap(s.buf)) < size {
		s.buf = make([]byte, size)
	}
	payload = s.buf[:size]
	_, err = io.ReadFull(s.r, payload)
	return head[0] & 0x0f, payload, err
}

// read returns the next text message, good until the next read, and answers what comes between. A close frame is an
// error of type *closedError.
func (s *socket) read() ([]byte, error) {
	for {
		opcode, payload, err := s.readFrame()
		if err != nil {
			return nil, err
		}
		switch opcode {
		case opText:
			return payload, nil
		case opPing:
			if err := s.frame(true, opPong, payload); err != nil {
				return nil, err
			}
		case opPong:
		case opClose:
			closed := &closedError{code: 1005}
			if len(payload) >= 2 {
				closed.code, closed.reason = int(binary.BigEndian.Uint16(payload)), string(payload[2:])
			}
			_ = s.frame(true, opClose, payload[:min(len(payload), 2)]) // the server may be gone
			return nil, closed
		default:
			return nil, fmt.Errorf("a frame with opcode %d", opcode)
		}
	}
}

// message is any message of the server, read whole.
type message struct {
	Type      string           `json:"type"`
	ID        json.RawMessage  `json:"id"`
	Sub       json.RawMessage  `json:"sub"`
	Topic     string           `json:"topic"`
	TopicID   string           `json:"topic_id"`
	Positions map[string]int64 `json:"positions"`
	Partition int32            `json:"p"`
	Prev      int64            `json:"prev"`
	Next      int64            `json:"next"`
	Records   []streamRecord   `json:"records"`
	From      int64            `json:"from"`
	To        int64            `json:"to"`
	Reason    string           `json:"reason"`
	Problem   problem          `json:"problem"`
	Conn      string           `json:"conn"`
	Heartbeat int              `json:"hb_ms"`
	text      string
}

// next decodes the next message.
func (s *socket) next() (message, error) {
	text, err := s.read()
	if err != nil {
		return message{}, err
	}
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%w: %s", err, clip(string(text)))
	}
	m.text = string(text)
	if !strings.HasPrefix(m.text, `{"type":"`) {
		return m, fmt.Errorf("type is not the first member: %s", clip(m.text))
	}
	return m, nil
}

// talk is a socket of a test, whose every failure fails the test.
type talk struct {
	*socket
	t testing.TB
}

// socket opens a socket that has been told that it is ready.
func (s *server) socket(headers ...string) *talk {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.HTTP)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		s.t.Fatal(err)
	}
	ws, err := openSocket(nc, headers...)
	if err != nil {
		s.t.Fatal(err)
	}
	k := &talk{ws, s.t}
	if m := k.want("ready"); m.Heartbeat <= 0 || m.Conn == "" || !strings.Contains(m.text, `"limits":{`) {
		s.t.Errorf("ready: %s", m.text)
	}
	return k
}

// say sends a message.
func (k *talk) say(format string, args ...any) {
	k.t.Helper()
	if err := k.send(format, args...); err != nil {
		k.t.Fatal(err)
	}
}

// want returns the next message but heartbeats, which must be of this type.
func (k *talk) want(kind string) message {
	k.t.Helper()
	for {
		m, err := k.next()
		if err != nil {
			k.t.Fatalf("want %s: %v", kind, err)
		}
		if m.Type == "hb" && kind != "hb" {
			continue
		}
		if m.Type != kind {
			k.t.Fatalf("want %s, got %s", kind, clip(m.text))
		}
		return m
	}
}

// wantData reads data of one partition until n records have come, whose offsets follow from on, in frames that chain.
func (k *talk) wantData(partition int32, from int64, n int) []streamRecord {
	k.t.Helper()
	var all []streamRecord
	for next := from; len(all) < n; {
		m := k.want("data")
		if m.Partition != partition || m.Prev != next {
			k.t.Fatalf("want partition %d from %d on, got %s", partition, next, clip(m.text))
		}
		for _, r := range m.Records {
			if r.Partition != partition || r.Offset != next {
				k.t.Fatalf("record %+v, want offset %d", r, next)
			}
			next++
			all = append(all, r)
		}
		if m.Next != next {
			k.t.Fatalf("next %d after offset %d", m.Next, next-1)
		}
	}
	if len(all) != n {
		k.t.Fatalf("%d records, want %d", len(all), n)
	}
	return all
}

// wantClose reads to the close frame, which must have this code, and returns its reason.
func (k *talk) wantClose(code int) (reason string) {
	k.t.Helper()
	for {
		_, err := k.read()
		if closed, ok := errors.AsType[*closedError](err); ok {
			if closed.code != code {
				k.t.Errorf("%v, want %d", closed, code)
			}
			return closed.reason
		}
		if err != nil {
			k.t.Errorf("want close %d: %v", code, err)
			return ""
		}
	}
}

// refusal asks for a socket that must not open, and returns the answer.
func (s *server) refusal(headers ...string) answer {
	s.t.Helper()
	nc, err := net.Dial("tcp", s.HTTP)
	if err != nil {
		s.t.Fatal(err)
	}
	defer nc.Close() //nolint:errcheck // the answer has been read
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	_, err = openSocket(nc, headers...)
	refused, ok := errors.AsType[*refusedError](err)
	if !ok {
		s.t.Fatalf("%q: want a refusal, got %v", headers, err)
	}
	return answer{t: s.t, asked: "GET /v1/ws", status: refused.status, header: refused.header, body: refused.body}
}
