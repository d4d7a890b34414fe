package kafka

import (
	"context"
	"math"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
)

// ApiVersions (key 18), versions 0 to 4.
//
// The answer is the table of handlers and nothing else: an API is not
// advertised before it works. A request of a newer version gets the body of
// version 0 with UNSUPPORTED_VERSION and the table, so that the client can go on
// with a version that both know (KIP-511); the connection stays open.
//
//	v3  flexible; the client says what software it is
//	v4  features with minimum level 0 may be named
//
// Left out: features, none of which are served. In version 5 a client says which
// node it takes this one for (KIP-1242); it goes down to 4.

const keyAPIVersions = 18

func apiVersions(_ context.Context, c *conn, cl *call, req *kmsg.ApiVersionsRequest) kmsg.Response {
	resp := kmsg.NewPtrApiVersionsResponse()
	if req.Version >= 3 && (!softwareName(req.ClientSoftwareName) || !softwareName(req.ClientSoftwareVersion)) {
		resp.ErrorCode = cl.refuse(api.KafkaInvalidRequest)
		return resp
	}
	resp.ApiKeys = advertised(c.srv.handlers)
	return resp
}

func advertised(hs *handlers) []kmsg.ApiVersionsResponseApiKey {
	keys := make([]kmsg.ApiVersionsResponseApiKey, len(hs.table))
	for i, h := range hs.table {
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = h.key, h.min, h.max
		keys[i] = k
	}
	return keys
}

// newestAPIVersions answers versions beyond the table's. Their requests are not
// decoded.
func newestAPIVersions(known *handler) *handler {
	h := *known
	h.flexible = math.MaxInt16
	h.decode = func(_ *conn, cl *call, _ []byte) error {
		cl.version = 0
		return nil
	}
	h.answer = func(_ context.Context, c *conn, cl *call) error {
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.ErrorCode = cl.refuse(api.KafkaUnsupportedVersion)
		resp.ApiKeys = advertised(c.srv.handlers)
		return c.respond(cl, resp)
	}
	return &h
}

// softwareName is the rule of KIP-511 for names and versions of clients:
// letters, digits, '-' and '.', and neither of the last two at an end.
func softwareName(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case (c == '-' || c == '.') && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return s != ""
}
