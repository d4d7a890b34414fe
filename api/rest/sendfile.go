package rest

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"

	"leat/storage/record"
)

// sendSlice is how much goes to a client under one write deadline.
const sendSlice = 1 << 20

// sendBatches answers with a section's bytes as they are in the file; nil has
// none. The first batch may begin before the offset asked.
func (s *Server) sendBatches(w *responseWriter, r *http.Request, sec record.Section) {
	h := w.Header()
	h.Set("Content-Type", mediaBatch)
	if sec == nil {
		h.Set("Content-Length", "0")
		w.WriteHeader(http.StatusOK)
		return
	}
	h.Set("Content-Length", strconv.FormatInt(sec.Len(), 10))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	if err := s.sendSection(w, r, sec); err != nil {
		// Less than Content-Length went out: the connection is of no more use.
		panic(http.ErrAbortHandler)
	}
}

func (s *Server) sendSection(w *responseWriter, r *http.Request, sec record.Section) error {
	f, pos := sec.File()
	if f != nil && r.ProtoMajor == 1 && r.TLS == nil {
		own, err := reopen(f)
		if err == nil {
			// It was opened for reading, so nothing is lost if closing fails.
			defer func() { _ = own.Close() }()
			if _, err = own.Seek(pos, io.SeekStart); err == nil {
				return s.sendFile(w, own, sec.Len())
			}
		}
	}
	return copySection(w, sec)
}

// sendFile sends n bytes of f from its position on. net/http uses sendfile if
// the header is out, the length is known, and the source is a LimitedReader
// over a file.
func (s *Server) sendFile(w *responseWriter, f *os.File, n int64) error {
	if err := w.flush(); err != nil {
		return err
	}
	for n > 0 {
		sent, err := io.Copy(w, io.LimitReader(f, min(n, sendSlice)))
		s.metrics.sendfile.Add(float64(sent))
		n -= sent
		if err != nil {
			return err
		}
		if sent == 0 {
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}

// reopen opens the file again, for a position of its own: sendfile by net/http
// moves the file's, which others share. It works for files that are deleted.
func reopen(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var own *os.File
	var openErr error
	err = raw.Control(func(fd uintptr) {
		own, openErr = os.Open("/proc/self/fd/" + strconv.Itoa(int(fd)))
	})
	return own, errors.Join(err, openErr)
}

// copySection sends a section through memory: over TLS, HTTP/2, or where there
// is no file.
func copySection(w *responseWriter, sec record.Section) error {
	buf := *chunkPool.Get().(*[]byte)
	defer chunkPool.Put(&buf)
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, io.NewSectionReader(sec, 0, sec.Len()), buf[:cap(buf)])
	return err
}
