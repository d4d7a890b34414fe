package rest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// Connections beyond the bound are closed as they come, and one that ends
// makes room.
func TestMaxConnections(t *testing.T) {
	d := openDoor(t, func(s *setup) { s.MaxConnections = 2 })
	ask := func(c net.Conn) error {
		t.Helper()
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return err
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		return errors.Join(resp.Body.Close())
	}
	dial := func() net.Conn {
		t.Helper()
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", d.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	first, second := dial(), dial()
	if err := errors.Join(ask(first), ask(second)); err != nil {
		t.Fatal(err)
	}
	if err := ask(dial()); err == nil {
		t.Error("a third connection was served")
	}
	if err := errors.Join(first.Close(), ask(second)); err != nil {
		t.Fatal(err)
	}
	// The server learns in its own time that the first is gone.
	deadline := time.Now().Add(30 * time.Second)
	for ask(dial()) != nil {
		if time.Now().After(deadline) {
			t.Fatal("no room after a connection ended")
		}
	}
}
