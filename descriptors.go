package main

import (
	"math"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
)

// A door's connections may take a part of the file descriptors that the process
// does not keep for itself, the most for WebSockets, of which there are many
// and which do little each.
const (
	socketShare = 2
	kafkaShare  = 6
	httpShare   = 8 // plain requests and streams
	opsConns    = 16
	// reservedFiles are for the metadata store (64 tables and some logs), the
	// operators' door, listeners, and files that are open for a moment; storage
	// keeps a sixth of all for segment files, which the shares above leave.
	reservedFiles = 128
)

// openFileLimit is RLIMIT_NOFILE, which Go has raised to the hard limit.
func openFileLimit() int {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return math.MaxUint16
	}
	return int(min(r.Cur, math.MaxInt32))
}

// sharedFiles is how many of so many descriptors the doors share.
func sharedFiles(limit int) int { return max(limit-reservedFiles, limit/2) }

// atMost is for a http.Server that is to have no more connections than most:
// those beyond are closed as they come.
func atMost(most int64) func(net.Conn, http.ConnState) {
	var open atomic.Int64
	return func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > most {
				_ = c.Close() // nothing was read or written
			}
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		case http.StateActive, http.StateIdle:
		}
	}
}
