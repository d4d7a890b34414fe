package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// counted reads the records of a message without decoding it all: the storm's load must not outweigh the server's.
// Each record's value is a number: its own offset.
func (f *follower) counted(text []byte) error {
	const head, offsetKey, valueKey = `{"partition":`, `"offset":`, `"value":`
	for {
		at := bytes.Index(text, []byte(head))
		if at < 0 {
			return nil
		}
		text = text[at+len(head):]
		partition, _ := number(text)
		var offset, value int64
		for _, field := range []struct {
			key  string
			into *int64
		}{{offsetKey, &offset}, {valueKey, &value}} {
			at := bytes.Index(text, []byte(field.key))
			if at < 0 {
				return violated("a record without %s: %s", field.key, clip(string(text)))
			}
			text = text[at+len(field.key):]
			*field.into, text = number(text)
		}
		if value != offset {
			return violated("value %d at offset %d", value, offset)
		}
		if err := f.take(int32(partition), offset, ""); err != nil {
			return err
		}
	}
}

// number reads the digits that text begins with.
func number(text []byte) (int64, []byte) {
	n := 0
	for n < len(text) && text[n] >= '0' && text[n] <= '9' {
		n++
	}
	v, _ := strconv.ParseInt(string(text[:n]), 10, 64)
	return v, text[n:]
}

// countWebSocket follows numbers over a socket.
func countWebSocket(topic string) func(*follower, net.Conn) error {
	return func(f *follower, nc net.Conn) error {
		ws, err := openSocket(nc)
		if err != nil {
			return unlessRefused(err)
		}
		if err := ws.send(`{"type":"subscribe","id":1,"sub":1,"topic":%q,"from":%s}`, topic, f.positions()); err != nil {
			return err
		}
		for {
			text, err := ws.read()
			if err != nil {
				return err
			}
			switch {
			case bytes.HasPrefix(text, []byte(`{"type":"data"`)):
				head, _, _ := bytes.Cut(text, []byte(`"records":[`))
				if err := f.chained(head); err != nil {
					return err
				}
				if err := f.counted(text[len(head):]); err != nil {
					return err
				}
			case bytes.HasPrefix(text, []byte(`{"type":"error"`)), bytes.HasPrefix(text, []byte(`{"type":"gap"`)):
				return violated("message %s", text)
			}
		}
	}
}

// chained checks that a frame begins where the one before ended.
func (f *follower) chained(head []byte) error {
	_, p, ok := bytes.Cut(head, []byte(`"p":`))
	_, prev, ok2 := bytes.Cut(head, []byte(`"prev":`))
	if !ok || !ok2 {
		return violated("a frame without p and prev before its records: %s", head)
	}
	partition, _ := number(p)
	if from, _ := number(prev); from != f.at(int32(partition)) {
		return violated("a frame of partition %d with prev %d, want %d", partition, from, f.at(int32(partition)))
	}
	return nil
}

// countSSE follows numbers by events.
func countSSE(path string) func(*follower, net.Conn) error {
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
			if e.name != "" && e.name != "message" && e.name != "reconnect" {
				return violated("event %s %s", e.name, e.data)
			}
			if err := f.counted([]byte(e.data)); err != nil {
				return err
			}
			if e.hasID {
				f.id = e.id
			}
		}
	}
}

// numberProducer writes each partition's offsets as values, some records a time at an even pace.
func numberProducer(s *server, topic string, partitions, each int, pace time.Duration, stop <-chan struct{}) (total int64, err error) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	next := make([]int64, partitions)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return total, nil
		case <-tick.C:
		}
		p := i % partitions
		var body strings.Builder
		for range each {
			fmt.Fprintln(&body, next[p])
			next[p]++
		}
		a, err := s.try("POST", fmt.Sprintf("/v1/topics/%s/partitions/%d/records?value=line", topic, p), []byte(body.String()), "Content-Type: "+typeNDJSON)
		if err == nil && a.status != 200 {
			err = fmt.Errorf("status %d: %s", a.status, a.body)
		}
		if err != nil {
			return total, err
		}
		total += int64(each)
	}
}

// TestReconnectStorm proves that many clients on one topic, all cut at once again and again while 200 records a second
// come, each get every record exactly once and in order, and that the server's memory stays small.
func TestReconnectStorm(t *testing.T) {
	const partitions, mostMemory = 4, 300 << 20
	sockets, events, span, cuts := 100, 20, 8*time.Second, 2
	if long() {
		sockets, events, span, cuts = 1000, 200, 2*time.Minute, 5
	}
	s := start(t)
	s.createTopic("storm", partitions)
	var all []*follower
	add := func(name string, session func(*follower, net.Conn) error) {
		f := &follower{name: name, account: newAccount(partitions, false), session: session}
		f.dial = func() (net.Conn, error) { return net.Dial("tcp", s.HTTP) }
		all = append(all, f)
	}
	for i := range sockets {
		add(fmt.Sprint("WebSocket ", i), countWebSocket("storm"))
	}
	for i := range events {
		add(fmt.Sprint("SSE ", i), countSSE("/v1/topics/storm/records?from=earliest"))
	}
	memory := s.watchMemory()
	for _, f := range all {
		f.follow()
		t.Cleanup(func() { _ = f.stop() })
	}
	stop := make(chan struct{})
	var produced int64
	var failed error
	var work sync.WaitGroup
	work.Go(func() { produced, failed = numberProducer(s, "storm", partitions, 10, 50*time.Millisecond, stop) })
	for i := range cuts {
		after(span / time.Duration(cuts+1))
		progress(t, "storm: cut %d of %d", i+1, cuts)
		for _, f := range all {
			f.cut()
		}
	}
	after(span / time.Duration(cuts+1))
	close(stop)
	work.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
	eventually(t, "every record at every client", func() error {
		for _, f := range all {
			if err := f.failed(); err != nil {
				t.Fatal(err)
			}
			if n := f.received.Load(); n != produced {
				return fmt.Errorf("%s has %d of %d", f.name, n, produced)
			}
		}
		return nil
	})
	most := memory()
	t.Logf("%d records to each of %d clients, cut %d times; at most %d MiB of memory", produced, len(all), cuts, most>>20)
	for _, f := range all {
		if err := f.stop(); err != nil {
			t.Error(err)
		}
		if f.resumed < cuts {
			t.Errorf("%s was cut %d times, want %d", f.name, f.resumed, cuts)
		}
	}
	if most > mostMemory {
		t.Errorf("%d MiB of memory, want at most %d", most>>20, mostMemory>>20)
	}
}

// progress tells how far a long test is.
func progress(t *testing.T, format string, args ...any) {
	t.Helper()
	if long() {
		t.Logf(format, args...)
	}
}

// TestSingleFollower proves that one client gets everything, once and in order, while 50,000 records a second come. It
// prints the rate and how far behind the client was when the last record was written.
func TestSingleFollower(t *testing.T) {
	const rate = 50_000
	span := 3 * time.Second
	if long() {
		span = 20 * time.Second
	}
	for name, session := range map[string]func(*follower, net.Conn) error{
		"WebSocket": countWebSocket("fast"),
		"SSE":       countSSE("/v1/topics/fast/records?from=earliest"),
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.createTopic("fast", 1)
			f := &follower{name: name, account: newAccount(1, false), session: session}
			f.dial = func() (net.Conn, error) { return net.Dial("tcp", s.HTTP) }
			f.follow()
			t.Cleanup(func() { _ = f.stop() })
			begun := time.Now()
			produced := produceNumbers(t, s, rate, span)
			took, behind := time.Since(begun), produced-f.received.Load()
			eventually(t, "every record", func() error {
				if err := f.failed(); err != nil {
					t.Fatal(err)
				}
				if n := f.received.Load(); n != produced {
					return fmt.Errorf("%d of %d", n, produced)
				}
				return nil
			})
			t.Logf("%d records in %v: %.0f a second; %d behind when the last was written, all there %v later",
				produced, took.Round(time.Millisecond), float64(produced)/took.Seconds(), behind, time.Since(begun)-took)
			if f.resumed > 0 {
				t.Errorf("the connection went %d times", f.resumed)
			}
		})
	}
}

// produceNumbers writes numbers by franz-go at an even rate and returns how many.
func produceNumbers(t *testing.T, s *server, rate int, span time.Duration) int64 {
	t.Helper()
	client := s.kgo(kgo.DefaultProduceTopic("fast"), kgo.ProducerLinger(2*time.Millisecond))
	const steps = 100 // a second
	var failed atomic.Pointer[error]
	tick := time.NewTicker(time.Second / steps)
	defer tick.Stop()
	next := int64(0)
	for begun := time.Now(); time.Since(begun) < span; {
		<-tick.C
		// What is due by now, so that a late tick is made up for.
		for due := int64(time.Since(begun).Seconds() * float64(rate)); next < due; next++ {
			client.Produce(t.Context(), &kgo.Record{Value: strconv.AppendInt(nil, next, 10)}, func(_ *kgo.Record, err error) {
				if err != nil {
					failed.Store(&err)
				}
			})
		}
	}
	if err := client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := failed.Load(); err != nil {
		t.Fatal(errors.Join(*err))
	}
	return next
}
