package rest

import (
	"net/http"

	"leat/api"
)

// getWeb serves the pages for people.
func (s *Server) getWeb(w *responseWriter, r *http.Request) error {
	if s.opts.Web == nil {
		return s.notFound(w, r)
	}
	s.opts.Web.ServeHTTP(w, r)
	return nil
}

type state struct {
	Status string `json:"status"`
}

// getHealth answers as long as the process can answer.
func (s *Server) getHealth(w *responseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	s.writeJSON(w, r, http.StatusOK, state{"ok"})
	return nil
}

// getReady says whether requests should be sent here.
func (s *Server) getReady(w *responseWriter, r *http.Request) error {
	s.drain.Lock()
	draining := s.drain.started
	s.drain.Unlock()
	p := &api.Problem{Status: http.StatusServiceUnavailable, Code: "not_ready", Title: "Not ready", Retriable: true}
	if draining {
		p.Detail = "the server is shutting down"
		return p
	}
	if s.opts.Ready != nil {
		if err := s.opts.Ready(); err != nil {
			p.Detail, p.Cause = err.Error(), err
			return p
		}
	}
	w.Header().Set("Cache-Control", "no-store")
	s.writeJSON(w, r, http.StatusOK, state{"ready"})
	return nil
}

// openWebSocket hands the request over to the WebSocket door.
func (s *Server) openWebSocket(w *responseWriter, r *http.Request) error {
	if s.opts.WebSocket == nil {
		return s.notFound(w, r)
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Connection", "Upgrade")
		return &api.Problem{
			Status: http.StatusUpgradeRequired, Code: "upgrade_required", Title: "Upgrade required",
			Detail: "a WebSocket begins with GET and its headers",
		}
	}
	s.opts.WebSocket.ServeHTTP(w, r)
	return nil
}
