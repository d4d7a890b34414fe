package kafka

import (
	"context"
	"errors"
	"net"

	"leat/api"
	"leat/broker"
)

// groupCode is the Kafka code of an error of a group's coordinator. A client
// that is told that the server stops, or waited in vain, looks for the
// coordinator again.
func (cl *call) groupCode(ctx context.Context, err error) int16 {
	if errors.Is(err, broker.ErrShuttingDown) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return cl.refuse(api.KafkaCoordinatorNotAvailable)
	}
	return cl.code(ctx, err)
}

// once is a list of names without those that it has already: an answer must not
// be as many times as large as what it tells as the client cares to ask.
func once(names []string) []string {
	seen := make(map[string]bool, min(len(names), 1024))
	out := make([]string, 0, min(len(names), 1024))
	for _, name := range names {
		if !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	return out
}

// text is a nullable string with null as the empty one.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// nullable is a string with the empty one as null.
func nullable(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// host is the client's address as Kafka shows it for members.
func (c *conn) host() string {
	addr := c.nc.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(addr); err == nil {
		addr = host
	}
	return "/" + addr
}
