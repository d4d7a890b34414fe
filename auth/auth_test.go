package auth

import (
	"errors"
	"testing"
)

// The bind rule lets loopback through and refuses the rest unless told.
func TestCheckBind(t *testing.T) {
	for _, tc := range []struct {
		addr     string
		insecure bool
		exposed  bool
		bad      bool
	}{
		{addr: "127.0.0.1:9092"},
		{addr: "127.8.8.8:0"},
		{addr: "[::1]:9092"},
		{addr: "[::ffff:127.0.0.1]:9092"},
		{addr: "localhost:9092"},
		{addr: "0.0.0.0:9092", exposed: true},
		{addr: "[::]:9092", exposed: true},
		{addr: ":9092", exposed: true},
		{addr: "10.0.0.1:9092", exposed: true},
		{addr: "example.com:9092", exposed: true},
		{addr: "localhost.example.com:9092", exposed: true},
		{addr: "0.0.0.0:9092", insecure: true},
		{addr: "127.0.0.1", bad: true},
		{addr: "", bad: true},
	} {
		err := CheckBind("--kafka-addr", tc.addr, tc.insecure)
		if got := errors.Is(err, ErrExposed); got != tc.exposed {
			t.Errorf("CheckBind(%q, %v) = %v, want exposed %v", tc.addr, tc.insecure, err, tc.exposed)
		}
		if (err != nil) != (tc.exposed || tc.bad) {
			t.Errorf("CheckBind(%q, %v) = %v", tc.addr, tc.insecure, err)
		}
	}
}

// Principals print as Kafka's do.
func TestPrincipalString(t *testing.T) {
	if got := Anonymous.String(); got != "User:ANONYMOUS" {
		t.Errorf("Anonymous = %q", got)
	}
	if got := (Principal{Type: "Node", Name: "n"}).String(); got != "Node:n" {
		t.Errorf("principal = %q", got)
	}
}

// Without authentication everyone may do everything.
func TestAllowAll(t *testing.T) {
	if !(AllowAll{}).Allowed(Anonymous, Delete, Resource{Type: Topic, Name: "t"}) {
		t.Error("AllowAll refused")
	}
}
