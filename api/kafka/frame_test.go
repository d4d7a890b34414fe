package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

// The first four bytes decide: HTTP, TLS and impossible sizes are told apart
// from frames.
func TestCheckSize(t *testing.T) {
	const limit = 100 << 20
	for _, tc := range []struct {
		name   string
		head   string
		size   int
		reason string
	}{
		{"smallest", "\x00\x00\x00\x0a", 10, ""},
		{"largest", "\x06\x40\x00\x00", limit, ""},
		{"too small", "\x00\x00\x00\x09", 0, reasonSize},
		{"zero", "\x00\x00\x00\x00", 0, reasonSize},
		{"minus one", "\xff\xff\xff\xff", 0, reasonSize},
		{"over the limit", "\x06\x40\x00\x01", 0, reasonSize},
		{"2^31-1", "\x7f\xff\xff\xff", 0, reasonSize},
		{"TLS 1.0 hello", "\x16\x03\x01\x02", 0, reasonTLS},
		{"TLS 1.2 hello", "\x16\x03\x03\x00", 0, reasonTLS},
		{"GET", "GET ", 0, reasonHTTP},
		{"POST", "POST", 0, reasonHTTP},
		{"HEAD", "HEAD", 0, reasonHTTP},
		{"PUT", "PUT ", 0, reasonHTTP},
		{"DELETE", "DELE", 0, reasonHTTP},
		{"OPTIONS", "OPTI", 0, reasonHTTP},
		{"PATCH", "PATC", 0, reasonHTTP},
		{"CONNECT", "CONN", 0, reasonHTTP},
		{"HTTP/2", "PRI ", 0, reasonHTTP},
	} {
		size, err := checkSize([]byte(tc.head), limit)
		reason := ""
		if r, ok := errors.AsType[*refusal](err); ok {
			reason = r.reason
		}
		if size != tc.size || reason != tc.reason {
			t.Errorf("%s: size %d reason %q, want %d %q", tc.name, size, reason, tc.size, tc.reason)
		}
	}
	// HTTP is named as such even where its bytes would be a size in range.
	if _, err := checkSize([]byte("GET "), 1<<31-1); err == nil {
		t.Error("GET passes under a large limit")
	}
}

// readerConn is a connection that only reads.
type readerConn struct {
	net.Conn
	r io.Reader
}

func (c *readerConn) Read(p []byte) (int, error) { return c.r.Read(p) }

func frameOf(n int, fill byte) []byte {
	p := binary.BigEndian.AppendUint32(nil, uint32(n))
	p = append(p, 0, 18, 0, 0, 0, 0, 0, 7)
	return append(p, bytes.Repeat([]byte{fill}, n-8)...)
}

// Frames of all sizes come out whole, however the bytes are cut on the way.
func TestFrameReader(t *testing.T) {
	sizes := []int{10, 11, readAhead - 5, readAhead - 4, readAhead, readAhead + 1, firstBody, firstBody + 9, 1 << 20, 3<<20 + 1, 12}
	var wire []byte
	for i, n := range sizes {
		wire = append(wire, frameOf(n, byte(i+1))...)
	}
	for name, r := range map[string]io.Reader{
		"whole":    bytes.NewReader(wire),
		"halves":   iotest.HalfReader(bytes.NewReader(wire)),
		"data+err": iotest.DataErrReader(bytes.NewReader(wire)),
		"bytes":    iotest.OneByteReader(bytes.NewReader(wire)),
	} {
		t.Run(name, func(t *testing.T) { takeFrames(t, &readerConn{r: r}, sizes) })
	}
	for name, piece := range map[string]int{"TCP": len(wire), "TCP in pieces": 4095} {
		t.Run(name, func(t *testing.T) {
			server, client := tcpPair(t)
			var sender sync.WaitGroup
			defer sender.Wait()
			defer func() { _ = server.Close() }() // ends the sender of a test that has failed
			sender.Go(func() {
				for part := range slices.Chunk(wire, piece) {
					if _, err := client.Write(part); err != nil {
						t.Error(err)
					}
				}
				if err := client.Close(); err != nil {
					t.Error(err)
				}
			})
			if got := takeFrames(t, server, sizes); got != int64(len(wire)) {
				t.Errorf("%d bytes count as read, want %d", got, len(wire))
			}
		})
	}
}

// takeFrames reads frames of the sizes, filled with 1, 2 and so on, and the end,
// and returns how many bytes count as read.
func takeFrames(t *testing.T, nc net.Conn, sizes []int) int64 {
	t.Helper()
	b := &budget{max: 16 << 20}
	f := newFrameReader(nc, 8<<20, b)
	for i, n := range sizes {
		h, err := f.head()
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if h != (head{size: n, key: 18, corr: 7}) {
			t.Fatalf("frame %d: head %+v", i, h)
		}
		body, err := f.body(t.Context(), h)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if want := bytes.Repeat([]byte{byte(i + 1)}, n-8); !bytes.Equal(body, want) {
			t.Fatalf("frame %d has other bytes", i)
		}
		if used := b.inFlight(); used > 0 && used < int64(n-8) || used == 0 && n > readAhead {
			t.Fatalf("frame %d counts as %d bytes", i, used)
		}
		if f.inside.Load() {
			t.Fatalf("frame %d: still inside", i)
		}
		f.release()
		if used := b.inFlight(); used != 0 {
			t.Fatalf("frame %d: %d bytes after its end", i, used)
		}
	}
	if _, err := f.head(); !errors.Is(err, io.EOF) {
		t.Fatalf("at the end: %v", err)
	}
	return f.got.Load()
}

// The end of a large frame brings the head of the next, if that has come.
func TestFrameReaderReadsOn(t *testing.T) {
	server, client := tcpPair(t)
	large, next := frameOf(2*readAhead, 1), frameOf(firstBody, 2)
	wire := append(large, next[:headSize]...)
	if _, err := client.Write(wire); err != nil {
		t.Fatal(err)
	}
	awaitBytes(t, server, len(wire))
	f := newFrameReader(server, 1<<20, &budget{max: 1 << 20})
	h, err := f.head()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.body(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if got := f.got.Load(); got != int64(len(wire)) {
		t.Errorf("%d bytes were read, want %d", got, len(wire))
	}
	if h, err = f.head(); err != nil || h.size != firstBody {
		t.Errorf("the next head: %+v, %v", h, err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.body(t.Context(), h); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a body that does not come: %v", err)
	}
}

// awaitBytes waits until so many bytes have come in, and reads none of them.
func awaitBytes(t *testing.T, nc net.Conn, n int) {
	t.Helper()
	var failed error
	err := rawTCP(nc).Read(func(fd uintptr) bool {
		var have int
		have, failed = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
		return failed != nil || have >= n
	})
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
}

// A frame that is cut is told from a connection that was closed between two.
func TestFrameReaderCut(t *testing.T) {
	whole := frameOf(100, 1)
	for cut := 1; cut < len(whole); cut++ {
		f := newFrameReader(&readerConn{r: bytes.NewReader(whole[:cut])}, 1<<20, &budget{max: 1 << 20})
		h, err := f.head()
		if err == nil {
			_, err = f.body(t.Context(), h)
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
}

// An announced size costs memory only as its bytes arrive.
func TestFrameReaderGrows(t *testing.T) {
	wire := binary.BigEndian.AppendUint32(nil, 100<<20)
	wire = append(wire, make([]byte, 8+firstBody/2)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f := newFrameReader(&readerConn{r: bytes.NewReader(wire)}, 100<<20, &budget{max: 100 << 20})
	h, err := f.head()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.body(t.Context(), h); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	allocated := after.TotalAlloc - before.TotalAlloc
	if allocated > 2*firstBody {
		t.Errorf("%d bytes allocated for 32 KiB that arrived", allocated)
	}
}

// A buffer has the room that was asked for, and comes back only to a class
// that it fills.
func TestBuffers(t *testing.T) {
	for _, n := range []int{0, 1, 4095, 4096, 4097, 65536, 1 << 22, 1<<22 + 1, 10 << 20} {
		buf := getBuffer(n)
		if len(buf.b) != 0 || cap(buf.b) < n {
			t.Errorf("buffer for %d: len %d cap %d", n, len(buf.b), cap(buf.b))
		}
		buf.put()
	}
	odd := &buffer{b: make([]byte, 5000)}
	odd.put()
	for range 100 {
		if buf := getBuffer(8000); cap(buf.b) < 8000 {
			t.Fatalf("buffer for 8000 has %d", cap(buf.b))
		}
	}
	var none *buffer
	none.put()
}
