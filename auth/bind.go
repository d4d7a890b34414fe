package auth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// ErrExposed says that an address would offer a server without
// authentication to other machines.
var ErrExposed = errors.New("address outside loopback without authentication")

// CheckBind enforces the bind rule for one listener: with authentication off
// only loopback may be bound, unless insecure says so. flag names the option
// in the error. addr is host:port; an empty host means every interface. A host
// name counts as loopback only if it is "localhost".
func CheckBind(flag, addr string, insecure bool) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%s %q: %w", flag, addr, err)
	}
	if insecure || host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s %q: %w: bind 127.0.0.1 or say --insecure", flag, addr, ErrExposed)
}
