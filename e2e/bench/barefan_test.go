package bench

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// fanServer is the bare server of streams: it keeps subscribers and writes prebuilt bytes to each.
type fanServer struct {
	mu    sync.Mutex
	write []func([]byte) error
}

func (f *fanServer) add(write func([]byte) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.write = append(f.write, write)
}

// serveFan is the bare server of streams: sockets at /v1/ws by coder/websocket's own accept loop, events at /events by
// net/http. POST /play has frames written to all subscribers at an even pace and answers with the time of each.
func serveFan([]string) error {
	ln, err := listen()
	if err != nil {
		return err
	}
	f := &fanServer{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ws", f.socket)
	mux.HandleFunc("GET /events", f.events)
	mux.HandleFunc("POST /play", f.play)
	return (&http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}).Serve(ln)
}

// socket is the loop of the library's documentation: the handler reads until the client goes.
func (f *fanServer) socket(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}})
	if err != nil {
		return
	}
	defer c.CloseNow() //nolint:errcheck // the client has gone
	ctx := r.Context()
	f.add(func(p []byte) error { return c.Write(ctx, websocket.MessageText, p) })
	for {
		if _, _, err := c.Read(ctx); err != nil {
			return
		}
	}
}

func (f *fanServer) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	if err := rc.Flush(); err != nil {
		return
	}
	f.add(func(p []byte) error {
		if _, err := w.Write(p); err != nil {
			return err
		}
		return rc.Flush()
	})
	<-r.Context().Done()
}

// play writes frames, each after its length in four bytes, to all subscribers at ?pace= nanoseconds.
func (f *fanServer) play(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	pace, err2 := strconv.ParseInt(r.URL.Query().Get("pace"), 10, 64)
	var at []int64
	if err = errors.Join(err, err2); err == nil {
		at, err = f.playAll(body, time.Duration(pace))
	}
	if err == nil {
		err = json.NewEncoder(w).Encode(at)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (f *fanServer) playAll(body []byte, pace time.Duration) (at []int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	tick := time.NewTicker(max(pace, time.Microsecond))
	defer tick.Stop()
	for len(body) >= 4 {
		n := int(binary.BigEndian.Uint32(body))
		if n > len(body)-4 {
			return nil, fmt.Errorf("a frame of %d bytes in %d", n, len(body))
		}
		frame := body[4 : 4+n]
		body = body[4+n:]
		<-tick.C
		at = append(at, time.Now().UnixNano())
		for _, write := range f.write {
			if err := write(frame); err != nil {
				return nil, err
			}
		}
	}
	return at, nil
}
