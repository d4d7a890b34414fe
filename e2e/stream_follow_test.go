package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// account is what a subscriber keeps across its connections: the next offset of each partition, and what came. It
// takes a record only if it is the very next one: none is missing, none comes twice, and they are in order.
type account struct {
	mu       sync.Mutex
	next     []int64
	values   [][]string // nil if only the numbers count
	received atomic.Int64
}

func newAccount(partitions int, keep bool) *account {
	a := &account{next: make([]int64, partitions)}
	if keep {
		a.values = make([][]string, partitions)
	}
	return a
}

// take accounts for one record.
func (a *account) take(partition int32, offset int64, value string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if int(partition) >= len(a.next) || partition < 0 {
		return violated("a record of partition %d", partition)
	}
	if want := a.next[partition]; offset != want {
		return violated("offset %d of partition %d, want %d: lost, twice or out of order", offset, partition, want)
	}
	a.next[partition]++
	if a.values != nil {
		a.values[partition] = append(a.values[partition], value)
	}
	a.received.Add(1)
	return nil
}

func (a *account) at(partition int32) int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.next[partition]
}

// positions is what has been taken, as the from of a subscribe message.
func (a *account) positions() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var text []string
	for p, next := range a.next {
		text = append(text, fmt.Sprintf(`"%d":%d`, p, next))
	}
	return "{" + strings.Join(text, ",") + "}"
}

// follower is a subscriber that comes back whenever its connection goes, from where it was.
type follower struct {
	*account
	name string
	dial func() (net.Conn, error)
	// session follows over one connection until that goes. It returns the error of the connection, or a violation.
	session func(*follower, net.Conn) error

	id      string // the Last-Event-ID or cursor to come back with
	resumed int    // connections but the first
	again   int64  // records that came again after a resume and were let go: NDJSON of a whole topic only

	conn struct {
		sync.Mutex
		nc     net.Conn
		closed bool
	}
	done chan struct{}
	err  error // the violation that ended it, once done is closed
}

// follow starts to follow; the server's test ends it by stop.
func (f *follower) follow() {
	f.done = make(chan struct{})
	go func() {
		defer close(f.done)
		for first := true; ; first = false {
			if !first {
				f.resumed++
				after(5 * time.Millisecond) // the server may be down
			}
			nc, err := f.dial()
			if err != nil {
				if f.stopped() {
					return
				}
				continue
			}
			if !f.use(nc) {
				_ = nc.Close()
				return
			}
			err = f.session(f, nc)
			_ = nc.Close()
			if isViolation(err) {
				f.err = fmt.Errorf("%s, after %d records and %d resumes: %w", f.name, f.received.Load(), f.resumed, err)
				return
			}
			if f.stopped() {
				return
			}
		}
	}()
}

// use makes nc the connection to cut, unless the follower is to end.
func (f *follower) use(nc net.Conn) bool {
	f.conn.Lock()
	defer f.conn.Unlock()
	f.conn.nc = nc
	return !f.conn.closed
}

func (f *follower) stopped() bool {
	f.conn.Lock()
	defer f.conn.Unlock()
	return f.conn.closed
}

// cut resets the connection as a network would.
func (f *follower) cut() {
	f.conn.Lock()
	defer f.conn.Unlock()
	if tcp, ok := f.conn.nc.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
	}
}

// stop ends the follower and returns the violation that it has seen.
func (f *follower) stop() error {
	f.conn.Lock()
	f.conn.closed = true
	if f.conn.nc != nil {
		_ = f.conn.nc.Close()
	}
	f.conn.Unlock()
	<-f.done
	return f.err
}

// failed reports a violation before the end.
func (f *follower) failed() error {
	select {
	case <-f.done:
		return f.err
	default:
		return nil
	}
}

// unlessRefused makes a violation of answers that a server must not give, whether it comes, goes or stays.
func unlessRefused(err error) error {
	if r, ok := errors.AsType[*refusedError](err); ok && r.status != http.StatusServiceUnavailable && r.status != http.StatusTooManyRequests {
		return violated("%v", r)
	}
	return err
}

// openEvents opens a stream of events where the follower was.
func (f *follower) openEvents(nc net.Conn, path string) (*stream, error) {
	headers := []string{"Accept: " + typeSSE}
	if f.id != "" {
		headers = append(headers, "Last-Event-ID: "+f.id)
	}
	st, err := openStream(nc, path, headers...)
	return st, unlessRefused(err)
}

// overSSE follows by server-sent events: a whole topic, or one partition.
func overSSE(path string) func(*follower, net.Conn) error {
	return func(f *follower, nc net.Conn) error {
		st, err := f.openEvents(nc, path)
		if err != nil {
			return err
		}
		for {
			e, err := st.readEvent()
			if err != nil {
				return err
			}
			switch {
			case e.name == "reconnect":
				continue // the stream ends next
			case e.name != "" && e.name != "message":
				return violated("event %q: %s", e.name, clip(e.data))
			case e.data == "":
				if e.hasID { // a place without records
					f.id = e.id
				}
				continue
			}
			records, err := e.records()
			if err != nil {
				return violated("event %q: %v", clip(e.data), err)
			}
			if e.id == "" {
				return violated("an event without id: %s", clip(e.data))
			}
			for i := range records {
				if err := f.take(records[i].Partition, records[i].Offset, records[i].content()); err != nil {
					return err
				}
			}
			f.id = e.id
		}
	}
}

// overNDJSON follows a whole topic by lines. Between two position lines it knows records that the cursor does not, so
// after a cut it lets those go that come again.
func overNDJSON(path string) func(*follower, net.Conn) error {
	return func(f *follower, nc net.Conn) error {
		ask := path
		if f.id != "" {
			u, err := url.Parse(path)
			if err != nil {
				return violated("%v", err)
			}
			q := u.Query()
			q.Del("from")
			q.Set("cursor", f.id)
			u.RawQuery = q.Encode()
			ask = u.String()
		}
		st, err := openStream(nc, ask, "Accept: "+typeNDJSON)
		if err != nil {
			return unlessRefused(err)
		}
		came := map[int32]int64{} // the next offset of this connection
		for {
			l, err := st.readLine()
			if err != nil {
				return err
			}
			switch l.Control {
			case "":
				if next, seen := came[l.Partition]; seen && l.Offset != next {
					return violated("offset %d of partition %d, want %d", l.Offset, l.Partition, next)
				}
				came[l.Partition] = l.Offset + 1
				if l.Offset < f.at(l.Partition) {
					f.again++
					continue
				}
				if err := f.take(l.Partition, l.Offset, l.content()); err != nil {
					return err
				}
			case "position":
				if l.Cursor == "" {
					return violated("a position without cursor: %s", clip(l.text))
				}
				f.id = l.Cursor
			case "end":
				return errors.New("the stream has ended: " + l.Reason)
			default:
				return violated("line %s", clip(l.text))
			}
		}
	}
}

// overPartitionNDJSON follows one partition by lines; the record itself says where to go on.
func overPartitionNDJSON(topic string, partition int32) func(*follower, net.Conn) error {
	return func(f *follower, nc net.Conn) error {
		path := fmt.Sprintf("/v1/topics/%s/partitions/%d/records?stream=true&as=string&offset=%d", topic, partition, f.at(partition))
		st, err := openStream(nc, path, "Accept: "+typeNDJSON)
		if err != nil {
			return unlessRefused(err)
		}
		for {
			l, err := st.readLine()
			if err != nil {
				return err
			}
			switch l.Control {
			case "":
				if err := f.take(l.Partition, l.Offset, l.content()); err != nil {
					return err
				}
			case "position":
				if l.NextOffset == nil || *l.NextOffset != f.at(partition) {
					return violated("at offset %d: %s", f.at(partition), clip(l.text))
				}
			case "end":
				return errors.New("the stream has ended: " + l.Reason)
			default:
				return violated("line %s", clip(l.text))
			}
		}
	}
}

// overWebSocket follows a whole topic over a socket, with a form of values, from the positions that it has.
func overWebSocket(topic, as string) func(*follower, net.Conn) error {
	return func(f *follower, nc net.Conn) error {
		ws, err := openSocket(nc)
		if err != nil {
			return unlessRefused(err)
		}
		if err := ws.send(`{"type":"subscribe","id":1,"sub":"s","topic":%q,"from":%s,"as":%q}`, topic, f.positions(), as); err != nil {
			return err
		}
		subscribed := false
		for {
			text, err := ws.read()
			if closed, ok := errors.AsType[*closedError](err); ok && (closed.code < 1001 || closed.code >= 1002 && closed.code < 4000 || closed.code >= 4500) {
				return violated("%v", closed)
			}
			if err != nil {
				return err
			}
			var m message
			if err := json.Unmarshal(text, &m); err != nil {
				return violated("message %q: %v", clip(string(text)), err)
			}
			switch m.Type {
			case "ready", "hb", "goaway":
			case "subscribed":
				subscribed = true
				for p, next := range m.Positions {
					partition, err := strconv.ParseInt(p, 10, 32)
					if err != nil || f.at(int32(partition)) != next {
						return violated("subscribed at other places: %s", text)
					}
				}
			case "data":
				if !subscribed {
					return violated("data before subscribed")
				}
				if err := f.data(&m); err != nil {
					return err
				}
			default:
				return violated("message %s", clip(string(text)))
			}
		}
	}
}

// data takes the records of a data frame, which must follow the one before.
func (f *follower) data(m *message) error {
	if at := f.at(m.Partition); m.Prev != at {
		return violated("a frame of partition %d with prev %d, want %d", m.Partition, m.Prev, at)
	}
	for i := range m.Records {
		r := &m.Records[i]
		if r.Partition != m.Partition {
			return violated("a record of partition %d in a frame of %d", r.Partition, m.Partition)
		}
		if err := f.take(r.Partition, r.Offset, r.content()); err != nil {
			return err
		}
	}
	if at := f.at(m.Partition); m.Next != at {
		return violated("a frame of partition %d with next %d, want %d", m.Partition, m.Next, at)
	}
	return nil
}
