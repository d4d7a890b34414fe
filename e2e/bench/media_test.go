package bench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
)

// doorEvent is a CloudEvent with a value of 100 bytes as its data.
func doorEvent(i int) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":"1%05d","source":"/bench","type":"thing","datacontenttype":"application/json","data":%s}`, i, doorValue(i))
}

// eventBatch is a batch of doorRecords CloudEvents as the binding for Kafka stores them; each has the same size.
func eventBatch() []byte {
	batch := make([]byte, 61)
	for i := range doorRecords {
		e := event{"1.0", fmt.Sprintf("1%05d", i), "/bench", "thing", "application/json", json.RawMessage(doorValue(i))}
		batch = appendRecord(batch, i, e.Data, e.headers(nil))
	}
	return sealBatch(batch, doorRecords)
}

// streamAll sends a chunk of a body n times in one request without a pause, while it reads the receipts.
func streamAll(addr string, message []byte, n int) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		head, chunk, _ := bytes.Cut(message, []byte("\r\n\r\n"))
		_, err := fmt.Fprintf(nc, "%s\r\n\r\n", head)
		for i := 0; i < n && err == nil; i++ {
			_, err = nc.Write(chunk)
		}
		_, last := io.WriteString(nc, "0\r\n\r\n")
		sent <- errors.Join(err, last)
	}()
	err = readReceipts(nc, n*doorRecords)
	_ = nc.Close() // every answer has been read
	return errors.Join(err, <-sent)
}

// readReceipts reads the answer to a stream, which ends with the number of records.
func readReceipts(nc net.Conn, records int) error {
	resp, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it is read to its end
	end, err := lastBytes(resp.Body, 300)
	if err != nil {
		return err
	}
	if last := end[max(0, bytes.LastIndex(end, []byte(`{"$":"end"`))):]; field(last, `"count":`) != int64(records) {
		return fmt.Errorf("want %d records, status %d: %s", records, resp.StatusCode, end)
	}
	return nil
}

// readRecords reads single records from all over the log.
func readRecords(addr, path, accept string) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer nc.Close() //nolint:errcheck // every answer has been read
	r := bufio.NewReader(nc)
	for i := range doorSingles {
		offset := i * 61 % doorEnd
		if _, err := fmt.Fprintf(nc, "GET %s%d HTTP/1.1\r\nHost: x\r\nAccept: %s\r\n\r\n", path, offset, accept); err != nil {
			return err
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return err
		}
		value, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if want := doorValue(offset % doorRecords); err != nil || string(value) != want {
			return fmt.Errorf("offset %d: status %d: %.300s, want %s: %w", offset, resp.StatusCode, value, want, err)
		}
	}
	return nil
}

// event is a CloudEvent as the bare server takes it.
type event struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            string          `json:"type"`
	DataContentType string          `json:"datacontenttype"`
	Data            json.RawMessage `json:"data"`
}

// headers appends the attributes as headers of a record.
func (e *event) headers(dst []byte) []byte {
	dst = binary.AppendVarint(dst, 5)
	for _, h := range [...][2]string{
		{"ce_specversion", e.SpecVersion}, {"ce_id", e.ID}, {"ce_source", e.Source}, {"ce_type", e.Type}, {"content-type", e.DataContentType},
	} {
		for _, text := range h {
			dst = append(binary.AppendVarint(dst, int64(len(text))), text...)
		}
	}
	return dst
}

// appendEventObject appends the CloudEvent that a record is.
func appendEventObject(dst, value, headers []byte) []byte {
	count, n := binary.Varint(headers)
	headers = headers[n:]
	text := func() []byte {
		size, n := binary.Varint(headers)
		text := headers[n : n+int(size)]
		headers = headers[n+int(size):]
		return text
	}
	dst = append(dst, '{')
	for range count {
		name, is := bytes.CutPrefix(text(), []byte("ce_"))
		if !is {
			name = []byte("datacontenttype")
		}
		dst = append(append(append(dst, '"'), name...), `":`...)
		dst = append(strconv.AppendQuote(dst, string(text())), ',')
	}
	dst = append(dst, `"data":`...)
	if !json.Valid(value) {
		value = []byte("null")
	}
	return append(append(dst, value...), '}')
}

func parseBytes(body []byte) ([]byte, int, error) {
	return sealBatch(appendLine(make([]byte, 61, 61+len(body)+16), 0, body), 1), 1, nil
}

func parseEvent(body []byte) ([]byte, int, error) {
	all := make([]event, 1)
	if err := json.Unmarshal(body, &all[0]); err != nil {
		return nil, 0, err
	}
	return frameEvents(all)
}

func parseEvents(body []byte) ([]byte, int, error) {
	var all []event
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, 0, err
	}
	return frameEvents(all)
}

func frameEvents(all []event) ([]byte, int, error) {
	batch, headers := make([]byte, 61, 61+len(all)*256), []byte(nil)
	for i := range all {
		headers = all[i].headers(headers[:0])
		batch = appendRecord(batch, i, all[i].Data, headers)
	}
	return sealBatch(batch, len(all)), len(all), nil
}

// stream appends lines as they come, and answers each append with a line.
func (s *doorsServer) stream(w http.ResponseWriter, r *http.Request) {
	rc := http.NewResponseController(w)
	if err := rc.EnableFullDuplex(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	chunk, text, total := make([]byte, 64<<10), []byte(nil), 0
	for {
		n, err := r.Body.Read(chunk)
		text = append(text, chunk[:n]...)
		if end := bytes.LastIndexByte(text, '\n') + 1; end > 0 {
			batch, count, wrong := parseNDJSON(text[:end])
			if wrong != nil {
				return // the client misses the end
			}
			base, wrong := s.log.appendBatch(batch, count)
			if wrong != nil {
				return
			}
			text, total = append(text[:0], text[end:]...), total+count
			_, _ = fmt.Fprintf(w, "{\"base_offset\":%d,\"count\":%d}\n", base, count) // as the flush tells
			if rc.Flush() != nil {
				return
			}
		}
		if err != nil {
			_, _ = fmt.Fprintf(w, "{\"$\":\"end\",\"count\":%d}\n", total) // the client misses it if it is gone
			return
		}
	}
}

// record answers with the value of a record.
func (s *doorsServer) record(w http.ResponseWriter, r *http.Request) {
	at, err := strconv.ParseInt(r.PathValue("offset"), 10, 64)
	batch := make([]byte, s.size)
	if err == nil {
		_, err = s.file.ReadAt(batch, at/doorRecords*s.size)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	walk(batch, func(offset, timestamp int64, value, _ []byte) bool {
		if offset < at {
			return true
		}
		h := w.Header()
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Record-Offset", strconv.FormatInt(offset, 10))
		h.Set("Record-Timestamp", strconv.FormatInt(timestamp, 10))
		_, _ = w.Write(value) // a client that is gone misses it
		return false
	})
}
