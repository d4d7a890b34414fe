package e2e

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// proxy is a TCP proxy in front of a Kafka door. It keeps what clients send, and its address stays when the server
// behind it moves.
type proxy struct {
	t    testing.TB
	addr string
	work sync.WaitGroup
	mu   struct {
		sync.Mutex
		target string
		deaf   bool // nothing of what clients send is kept
		taps   []*lockedBuffer
		conns  map[net.Conn]struct{}
	}
}

// forgetful has the proxy keep nothing of what clients send.
func (p *proxy) forgetful() *proxy {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.deaf = true
	return p
}

// newProxy listens until the test ends. Give its address to --kafka-advertise, and the server's to point.
func newProxy(t testing.TB) *proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, addr: ln.Addr().String()}
	p.mu.conns = map[net.Conn]struct{}{}
	p.work.Go(func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.serve(nc) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		p.mu.Lock()
		for nc := range p.mu.conns {
			_ = nc.Close()
		}
		p.mu.Unlock()
		p.work.Wait()
	})
	return p
}

// point sends new connections to target.
func (p *proxy) point(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.target = target
}

func (p *proxy) serve(client net.Conn) {
	defer p.forget(client)
	tap := &lockedBuffer{}
	sink := io.Writer(tap)
	p.mu.Lock()
	target := p.mu.target
	if p.mu.deaf {
		sink = io.Discard
	} else {
		p.mu.taps = append(p.mu.taps, tap)
	}
	p.mu.conns[client] = struct{}{}
	p.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.mu.conns[server] = struct{}{}
	p.mu.Unlock()
	defer p.forget(server)
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(client, server) // it ends when either side goes
		_ = client.Close()
	})
	_, _ = io.Copy(io.MultiWriter(server, sink), client)
	_ = server.Close()
	back.Wait()
}

func (p *proxy) forget(nc net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.conns, nc)
	_ = nc.Close()
}

// batches are the record bytes of every produce that clients sent, in order for each connection.
func (p *proxy) batches() [][]byte {
	p.t.Helper()
	p.mu.Lock()
	taps := p.mu.taps
	p.mu.Unlock()
	var all [][]byte
	for _, tap := range taps {
		stream := []byte(tap.String())
		for len(stream) >= 4 {
			size := int(binary.BigEndian.Uint32(stream))
			if len(stream) < 4+size {
				break
			}
			all = append(all, producedIn(p.t, stream[4:4+size])...)
			stream = stream[4+size:]
		}
	}
	return all
}

// producedIn decodes the records of a request, none if it is no produce.
func producedIn(t testing.TB, frame []byte) [][]byte {
	t.Helper()
	if int16(binary.BigEndian.Uint16(frame)) != int16(kmsg.Produce) {
		return nil
	}
	req := kmsg.NewPtrProduceRequest()
	req.SetVersion(int16(binary.BigEndian.Uint16(frame[2:])))
	body := frame[8:]
	if id := int16(binary.BigEndian.Uint16(body)); id > 0 {
		body = body[id:]
	}
	body = body[2:]
	if req.IsFlexible() {
		body = body[1:] // no tags
	}
	if err := req.ReadFrom(body); err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for _, topic := range req.Topics {
		for _, p := range topic.Partitions {
			all = append(all, p.Records)
		}
	}
	return all
}
