package cli

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// silences knows which servers owe an answer, by address. Pure: now is an argument.
type silences struct {
	limit time.Duration        // silence that is worth a word
	since map[string]time.Time // the first request or connection since the last answer
	told  map[string]bool      // the user knows
}

// asked notes that an answer is due.
func (s *silences) asked(addr string, now time.Time) {
	if _, waiting := s.since[addr]; !waiting {
		s.since[addr] = now
	}
}

// answered notes an answer and tells whether the user believes that there is none.
func (s *silences) answered(addr string) (back bool) {
	back = s.told[addr]
	delete(s.since, addr)
	delete(s.told, addr)
	return back
}

// overdue returns who has been silent for too long, each once.
func (s *silences) overdue(now time.Time) []string {
	var late []string
	for _, addr := range slices.Sorted(maps.Keys(s.since)) {
		if !s.told[addr] && now.Sub(s.since[addr]) >= s.limit {
			s.told[addr] = true
			late = append(late, addr)
		}
	}
	return late
}

// watch tells the user that a server does not answer, and that it does again. The client retries by itself and says
// nothing of it. watch is a hook of the client: its On methods are called by any goroutine.
type watch struct {
	std      IO
	patience string // what the command does meanwhile
	oneWay   bool   // produce requests have no answer
	end      chan struct{}
	ended    chan struct{}
	mu       struct {
		sync.Mutex
		silences
	}
}

// newWatch starts to watch; stop ends it.
func newWatch(std IO, limit time.Duration, patience string) *watch {
	w := &watch{std: std, patience: patience, end: make(chan struct{}), ended: make(chan struct{})}
	w.mu.silences = silences{limit: limit, since: map[string]time.Time{}, told: map[string]bool{}}
	go w.run(max(limit/6, time.Millisecond))
	return w
}

func (w *watch) run(every time.Duration) {
	defer close(w.ended)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-w.end:
			return
		case now := <-tick.C:
			w.mu.Lock()
			late := w.mu.overdue(now)
			w.mu.Unlock()
			for _, addr := range late {
				w.std.sayf("%s does not answer; %s", addr, w.patience)
			}
		}
	}
}

// stop ends the watch; nothing is said after it returns.
func (w *watch) stop() {
	close(w.end)
	<-w.ended
}

func (w *watch) asked(addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.asked(addr, time.Now())
}

// OnNewClient learns whether produce requests are answered.
func (w *watch) OnNewClient(client *kgo.Client) {
	w.oneWay = client.OptValue(kgo.RequiredAcks) == kgo.NoAck()
}

// OnBrokerConnect notes a connection that failed.
func (w *watch) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		w.asked(address(meta))
	}
}

// OnBrokerWrite notes a request.
func (w *watch) OnBrokerWrite(meta kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	members := key == kmsg.JoinGroup.Int16() || key == kmsg.SyncGroup.Int16() // are answered when the others have come
	if err == nil && !members && (key != kmsg.Produce.Int16() || !w.oneWay) {
		w.asked(address(meta))
	}
}

// OnBrokerRead notes an answer.
func (w *watch) OnBrokerRead(meta kgo.BrokerMetadata, _ int16, _ int, _, _ time.Duration, err error) {
	if err != nil {
		return
	}
	w.answered(address(meta))
}

func (w *watch) answered(addr string) {
	w.mu.Lock()
	back := w.mu.answered(addr)
	w.mu.Unlock()
	select {
	case <-w.end:
	default:
		if back {
			w.std.sayf("%s answers again", addr)
		}
	}
}

func address(meta kgo.BrokerMetadata) string {
	return net.JoinHostPort(meta.Host, strconv.Itoa(int(meta.Port)))
}
