package rest

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"

	"leat/api"
	"leat/broker"
)

// handler answers a request or returns the error that problem.go answers with.
// It returns an error only while nothing of the answer is written.
type handler func(w *responseWriter, r *http.Request) error

type route struct {
	method  string
	pattern string
	handle  handler
}

const topicsPath = "/v1/topics/"

// routes lists what the door serves, in the order of openapi.yaml. HEAD is
// served wherever GET is; it is listed where it does something else.
func (s *Server) routes() []route {
	return []route{
		{http.MethodGet, "/", s.getWeb},
		{http.MethodGet, "/docs", s.getWeb},
		{http.MethodGet, "/docs/", s.getWeb},
		{http.MethodGet, "/docs/{page}", s.getWeb},
		{http.MethodGet, "/problems/{code}", s.getWeb},
		{http.MethodGet, "/examples/{file}", s.getWeb},
		{http.MethodGet, "/healthz", s.getHealth},
		{http.MethodGet, "/readyz", s.getReady},
		{http.MethodGet, "/openapi.yaml", s.getOpenAPI},
		{http.MethodGet, "/openapi.json", s.getOpenAPIJSON},
		{http.MethodPost, "/v1/producers", s.createProducer},
		{http.MethodGet, "/v1/topics", s.listTopics},
		{http.MethodPost, "/v1/topics", s.createTopic},
		{http.MethodGet, "/v1/topics/{topic}", s.getTopic},
		{http.MethodPatch, "/v1/topics/{topic}", s.patchTopic},
		{http.MethodDelete, "/v1/topics/{topic}", s.deleteTopic},
		{http.MethodGet, "/v1/topics/{topic}/records", s.readTopic},
		{http.MethodHead, "/v1/topics/{topic}/records", s.readTopic},
		{http.MethodPost, "/v1/topics/{topic}/records", s.produceToTopic},
		{http.MethodGet, "/v1/topics/{topic}/partitions", s.listPartitions},
		{http.MethodGet, "/v1/topics/{topic}/partitions/{partition}", s.getPartition},
		{http.MethodGet, "/v1/topics/{topic}/partitions/{partition}/offsets", s.findOffset},
		{http.MethodGet, "/v1/topics/{topic}/partitions/{partition}/records", s.readPartition},
		{http.MethodHead, "/v1/topics/{topic}/partitions/{partition}/records", s.readPartition},
		{http.MethodPost, "/v1/topics/{topic}/partitions/{partition}/records", s.produceToPartition},
		{http.MethodGet, "/v1/topics/{topic}/partitions/{partition}/records/{offset}", s.readRecord},
		{http.MethodGet, "/v1/groups", s.listGroups},
		{http.MethodGet, "/v1/groups/{group}", s.getGroup},
		{http.MethodDelete, "/v1/groups/{group}", s.deleteGroup},
		{http.MethodPost, "/v1/groups/{group}/leases", s.takeLeases},
		{http.MethodPost, "/v1/groups/{group}/leases/{lease}:ack", s.ackLease},
		{http.MethodPost, "/v1/groups/{group}/leases/{lease}:extend", s.extendLease},
		{http.MethodPost, "/v1/groups/{group}/leases/{lease}:release", s.releaseLease},
		{http.MethodGet, "/v1/groups/{group}/lag", s.getGroupLag},
		{http.MethodGet, "/v1/groups/{group}/offsets", s.getGroupOffsets},
		{http.MethodPut, "/v1/groups/{group}/offsets", s.putGroupOffsets},
		{http.MethodGet, "/v1/ws", s.openWebSocket},
	}
}

func (s *Server) newRouter() *chi.Mux {
	mux := chi.NewMux()
	mux.Use(s.observe)
	mux.NotFound(s.serve(s.notFound))
	mux.MethodNotAllowed(s.serve(s.methodNotAllowed))
	for _, rt := range s.routes() {
		rt.handle = rt.acceptable()
		mux.Method(rt.method, rt.pattern, s.serve(s.meter(rt)))
	}
	return mux
}

// acceptable stands around the handler of a route of the API whose answer has no
// choice of types: what its client does not accept is refused before anything is
// done. Receipts are lines where the body is a stream.
func (rt *route) acceptable() handler {
	do := rt.handle
	offers := []string{mediaJSON}
	switch records := strings.Contains(rt.pattern, "/records"); {
	case !strings.HasPrefix(rt.pattern, "/v1/"), rt.pattern == "/v1/ws", rt.method == http.MethodDelete, records && rt.method != http.MethodPost:
		return do
	case records:
		offers = append(offers, mediaNDJSON)
	}
	return func(w *responseWriter, r *http.Request) error {
		if _, err := negotiate(r, offers...); err != nil {
			return err
		}
		return do(w, r)
	}
}

// serve makes a handler chi's.
func (s *Server) serve(h handler) http.HandlerFunc {
	return func(hw http.ResponseWriter, r *http.Request) {
		w, ok := hw.(*responseWriter)
		if !ok {
			panic("rest: handler outside of observe")
		}
		if err := h(w, r); err != nil {
			s.fail(w, r, err)
		}
	}
}

// notFound answers paths without a route. A path that has none because its
// topic is no topic name, or its group no id, says so.
func (s *Server) notFound(_ *responseWriter, r *http.Request) error {
	if rest, ok := strings.CutPrefix(r.URL.EscapedPath(), topicsPath); ok {
		if segment, _, more := strings.Cut(rest, "/"); segment != "" || more {
			if _, err := parseTopic(segment); err != nil {
				return err
			}
		}
	}
	if rest, ok := strings.CutPrefix(r.URL.EscapedPath(), groupsPath); ok {
		if segment, _, more := strings.Cut(rest, "/"); segment != "" || more {
			if _, err := parseGroup(segment); err != nil {
				return err
			}
		}
	}
	return &api.Problem{
		Status: http.StatusNotFound, Code: "not_found", Title: "Not found",
		Detail: "there is nothing at this path; paths are matched exactly, without a trailing slash",
	}
}

// methodNotAllowed answers methods that a path does not have. chi sends methods
// that it does not know here for any path.
func (s *Server) methodNotAllowed(w *responseWriter, r *http.Request) error {
	path := r.URL.EscapedPath()
	if path == "" {
		path = "/" // CONNECT names a host and no path
	}
	var allow []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if s.router.Match(chi.NewRouteContext(), m, path) {
			allow = append(allow, m)
			if m == http.MethodGet {
				allow = append(allow, http.MethodHead)
			}
		}
	}
	if len(allow) == 0 {
		return s.notFound(w, r)
	}
	w.Header().Set("Allow", strings.Join(allow, ", "))
	return &api.Problem{
		Status: http.StatusMethodNotAllowed, Code: "method_not_allowed", Title: "Method not allowed",
		Detail: "this path answers " + strings.Join(allow, ", "),
	}
}

// topicParam is the topic that the path names.
func topicParam(r *http.Request) (string, error) {
	return parseTopic(chi.URLParam(r, "topic"))
}

// parseTopic unescapes a path segment and checks that it is a topic name. It
// keeps what is no name away from the broker, where it is no topic either.
func parseTopic(segment string) (string, error) {
	name, err := url.PathUnescape(segment)
	if err != nil {
		return "", fmt.Errorf("%w: bad percent escape", broker.ErrInvalidTopic)
	}
	return name, broker.CheckTopicName(name)
}

// partitionParam is the partition that the path names.
func partitionParam(r *http.Request) (int32, error) {
	n, err := strconv.ParseUint(chi.URLParam(r, "partition"), 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%w: want a number from 0 to 2147483647", broker.ErrInvalidPartition)
	}
	return int32(n), nil
}
