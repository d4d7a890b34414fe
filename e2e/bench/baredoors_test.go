package bench

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/coder/websocket"
)

// sealBatch fills in the header, of 61 bytes, of a batch whose records follow it.
func sealBatch(batch []byte, count int) []byte {
	be := binary.BigEndian
	be.PutUint32(batch[8:], uint32(len(batch)-12))
	batch[16] = 2
	be.PutUint32(batch[23:], uint32(count-1))
	now := uint64(time.Now().UnixMilli())
	be.PutUint64(batch[27:], now)
	be.PutUint64(batch[35:], now)
	for i := 43; i < 57; i++ { // no producer
		batch[i] = 0xff
	}
	be.PutUint32(batch[57:], uint32(count))
	be.PutUint32(batch[17:], crc32.Checksum(batch[21:], castagnoli))
	return batch
}

// doorBatch is a batch of doorRecords values; each has the same size.
func doorBatch() []byte {
	batch := make([]byte, 61)
	for i := range doorRecords {
		batch = appendLine(batch, i, []byte(doorValue(i)))
	}
	return sealBatch(batch, doorRecords)
}

// doorsServer does with the standard library what the HTTP and WebSocket doors do.
type doorsServer struct {
	log  *logFile
	file *os.File // to read
	size int64    // of a batch in it
}

// serveDoors is the bare server of the doors. It appends to the file of the first argument and reads that of the second.
func serveDoors(args []string) error {
	log, err := createLog(args[0], false)
	if err != nil {
		return err
	}
	s := &doorsServer{log: log}
	if len(args) > 1 {
		if s.file, err = os.Open(args[1]); err != nil {
			return err
		}
		var head [12]byte
		if _, err := s.file.ReadAt(head[:], 0); err != nil {
			return err
		}
		s.size = 12 + int64(binary.BigEndian.Uint32(head[8:]))
	}
	ln, err := listen()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /reset", func(w http.ResponseWriter, _ *http.Request) {
		if err := log.reset(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	for path, parse := range map[string]func([]byte) ([]byte, int, error){
		"/json": parseJSON, "/ndjson": parseNDJSON, "/lines": parseLines, "/batch": parseBatch,
		"/bytes": parseBytes, "/event": parseEvent, "/events": parseEvents,
	} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) { s.produce(w, r, parse) })
	}
	mux.HandleFunc("POST /stream", s.stream)
	mux.HandleFunc("GET /read", s.read)
	mux.HandleFunc("GET /record/{offset}", s.record)
	mux.HandleFunc("GET /v1/ws", s.socket)
	return (&http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}).Serve(ln)
}

func (s *doorsServer) produce(w http.ResponseWriter, r *http.Request, parse func([]byte) ([]byte, int, error)) {
	body := make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, body)
	if err == nil {
		var batch []byte
		var count int
		if batch, count, err = parse(body); err == nil {
			var base int64
			if base, err = s.log.appendBatch(batch, count); err == nil {
				_, err = fmt.Fprintf(w, `{"base_offset":%d,"count":%d}`, base, count)
			}
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// object is a record as the JSON forms have it.
type object struct {
	Value json.RawMessage `json:"value"`
}

func frameObjects(all []object) ([]byte, int, error) {
	if len(all) == 0 {
		return nil, 0, errors.New("no records")
	}
	batch := make([]byte, 61, 61+len(all)*128)
	for i, o := range all {
		batch = appendLine(batch, i, o.Value)
	}
	return sealBatch(batch, len(all)), len(all), nil
}

func parseJSON(body []byte) ([]byte, int, error) {
	var all struct {
		Records []object `json:"records"`
	}
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, 0, err
	}
	return frameObjects(all.Records)
}

func parseNDJSON(body []byte) ([]byte, int, error) {
	var all []object
	for line := range bytes.Lines(body) {
		var o object
		if err := json.Unmarshal(line, &o); err != nil {
			return nil, 0, err
		}
		all = append(all, o)
	}
	return frameObjects(all)
}

func parseLines(body []byte) ([]byte, int, error) {
	batch, count := make([]byte, 61, 61+len(body)+16*bytes.Count(body, []byte{'\n'})), 0
	for line := range bytes.Lines(body) {
		batch = appendLine(batch, count, bytes.TrimSuffix(line, []byte{'\n'}))
		count++
	}
	return sealBatch(batch, count), count, nil
}

func parseBatch(body []byte) ([]byte, int, error) {
	if crc32.Checksum(body[21:], castagnoli) != binary.BigEndian.Uint32(body[17:]) {
		return nil, 0, errors.New("wrong checksum")
	}
	return body, int(binary.BigEndian.Uint32(body[57:])), nil
}

// read answers with the records from an offset on: a page of 1 MiB of the log, or as events all of it.
func (s *doorsServer) read(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	form := query.Get("form")
	first := int64(0)
	if text := query.Get("offset"); text != "" {
		first, _ = strconv.ParseInt(text, 10, 64)
	}
	first /= doorRecords
	var err error
	switch form {
	case "sse":
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		err = s.frames(func(records []byte, next int64) error {
			if _, err := fmt.Fprintf(w, "id: %d\ndata: [%s]\n\n", next, records); err != nil {
				return err
			}
			return rc.Flush()
		})
	case "batch":
		n := s.page(first)
		w.Header().Set("Next-Offset", strconv.FormatInt((first+n)*doorRecords, 10))
		w.Header().Set("Content-Length", strconv.FormatInt(n*s.size, 10))
		var own *os.File // with a place of its own, for sendfile
		if own, err = os.Open("/proc/self/fd/" + strconv.Itoa(int(s.file.Fd()))); err == nil {
			defer own.Close() //nolint:errcheck // it was only read
			if _, err = own.Seek(first*s.size, io.SeekStart); err == nil {
				_, err = io.Copy(w, io.LimitReader(own, n*s.size))
			}
		}
	default:
		n := s.page(first)
		w.Header().Set("Next-Offset", strconv.FormatInt((first+n)*doorRecords, 10))
		err = s.objects(w, first, n, form)
	}
	if err != nil && form != "sse" { // a stream ends when the client goes
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// page is how many batches from one on fit in 1 MiB.
func (s *doorsServer) page(first int64) int64 { return min((1<<20)/s.size, doorBatches-first) }

func (s *doorsServer) objects(w io.Writer, first, n int64, form string) error {
	section := make([]byte, n*s.size)
	if _, err := s.file.ReadAt(section, first*s.size); err != nil {
		return err
	}
	out := bufio.NewWriterSize(w, 64<<10)
	var object []byte
	around := map[string][2]string{"json": {`{"records":[`, `]}`}, "events": {"[", "]"}}[form]
	_, _ = out.WriteString(around[0]) // the writer keeps its error
	for i := range n {
		walk(section[i*s.size:(i+1)*s.size], func(offset, timestamp int64, value, headers []byte) bool {
			if form == "events" {
				object = appendEventObject(object[:0], value, headers)
			} else {
				object = appendObject(object[:0], offset, timestamp, value)
			}
			if form == "ndjson" {
				object = append(object, '\n')
			} else if i > 0 || offset%doorRecords > 0 {
				_ = out.WriteByte(',')
			}
			_, _ = out.Write(object)
			return true
		})
	}
	_, _ = out.WriteString(around[1])
	return out.Flush()
}

// frames gives the whole log as runs of objects of about 64 KiB.
func (s *doorsServer) frames(write func(records []byte, next int64) error) error {
	batch := make([]byte, s.size)
	var run []byte
	for i := range int64(doorBatches) {
		if _, err := s.file.ReadAt(batch, i*s.size); err != nil {
			return err
		}
		walk(batch, func(offset, timestamp int64, value, _ []byte) bool {
			if len(run) > 0 {
				run = append(run, ',')
			}
			run = appendObject(run, offset, timestamp, value)
			return true
		})
		if err := write(run, (i+1)*doorRecords); err != nil {
			return err
		}
		run = run[:0]
	}
	return nil
}

// walk gives the records of a batch, which have no keys, for as long as it is told to go on; headers as they are encoded.
// The base offset is in it.
func walk(batch []byte, give func(offset, timestamp int64, value, headers []byte) bool) {
	base, first := int64(binary.BigEndian.Uint64(batch)), int64(binary.BigEndian.Uint64(batch[27:]))
	for p := batch[61:]; len(p) > 0; {
		size, n := binary.Varint(p)
		p = p[n:]
		r := p[1:size]
		p = p[size:]
		ts, n := binary.Varint(r)
		r = r[n:]
		delta, n := binary.Varint(r)
		r = r[n+1:] // no key
		length, n := binary.Varint(r)
		if !give(base+delta, first+ts, r[n:n+int(length)], r[n+int(length):]) {
			return
		}
	}
}

func appendObject(dst []byte, offset, timestamp int64, value []byte) []byte {
	dst = strconv.AppendInt(append(dst, `{"partition":0,"offset":`...), offset, 10)
	dst = strconv.AppendInt(append(dst, `,"timestamp":`...), timestamp, 10)
	if json.Valid(value) {
		return append(append(append(dst, `,"value":`...), value...), '}')
	}
	dst = append(dst, `,"value_b64":"`...)
	return append(base64.StdEncoding.AppendEncode(dst, value), `"}`...)
}

// socket takes produces, and answers a subscription with the whole log.
func (s *doorsServer) socket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}})
	if err != nil {
		return
	}
	defer c.CloseNow() //nolint:errcheck // the client has gone
	c.SetReadLimit(16 << 20)
	for {
		_, text, err := c.Read(r.Context())
		if err != nil {
			return
		}
		if bytes.HasPrefix(text, []byte(`{"type":"subscribe"`)) {
			var message []byte
			err = s.frames(func(records []byte, next int64) error {
				message = fmt.Appendf(message[:0], `{"type":"data","sub":1,"p":0,"prev":%d,"next":%d,"records":[%s]}`, next-doorRecords, next, records)
				return c.Write(r.Context(), websocket.MessageText, message)
			})
			if err != nil {
				return
			}
			continue
		}
		batch, count, err := parseJSON(text)
		if err != nil {
			return
		}
		base, err := s.log.appendBatch(batch, count)
		if err != nil {
			return
		}
		answer := fmt.Appendf(nil, `{"type":"produced","id":1,"base_offset":%d,"count":%d}`, base, count)
		if err := c.Write(r.Context(), websocket.MessageText, answer); err != nil {
			return
		}
	}
}
