package rest

import (
	"net/http"
	"net/url"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json/jsontext"

	"leat/api"
	"leat/broker"
)

// leaseInfo is what became of a lease, or in a group's description what is under
// way.
type leaseInfo struct {
	LeaseID          string `json:"lease_id,omitzero"`
	Topic            string `json:"topic"`
	Partition        int32  `json:"partition"`
	FirstOffset      int64  `json:"first_offset"`
	NextOffset       int64  `json:"next_offset"`
	CommittedOffset  *int64 `json:"committed_offset"`
	State            string `json:"state"`
	Deadline         *int64 `json:"deadline"`
	DeliveryCount    int    `json:"delivery_count"`
	AlreadyCommitted bool   `json:"already_committed,omitzero"`
}

// The states of a lease: it lives, it is over, or nobody gets its partition until
// the deadline.
const (
	leaseLive    = "live"
	leaseDelayed = "delayed"
	leaseEnded   = "ended"
)

func leaseInfoOf(st *broker.LeaseState) leaseInfo {
	info := leaseInfo{
		Topic: st.Topic, Partition: st.Partition, FirstOffset: st.First, NextOffset: st.Next,
		State: leaseEnded, DeliveryCount: st.Deliveries, AlreadyCommitted: st.AlreadyCommitted,
	}
	switch {
	case st.Live:
		info.State = leaseLive
	case st.Delayed:
		info.State = leaseDelayed
	}
	if st.Committed >= 0 {
		info.CommittedOffset = &st.Committed
	}
	if !st.Deadline.IsZero() {
		ms := st.Deadline.UnixMilli()
		info.Deadline = &ms
	}
	return info
}

// leaseCall serves a request about one lease, whose id the path has. Its body
// may be left out.
func leaseCall[T any](s *Server, w *responseWriter, r *http.Request, do func(group, id string, body *T) (broker.LeaseState, error)) error {
	group, err := groupParam(r)
	if err != nil {
		return err
	}
	id, err := url.PathUnescape(chi.URLParam(r, "lease"))
	if err != nil {
		return broker.ErrBadLease
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	var body T
	if err := s.readOptional(w, r, &body); err != nil {
		return err
	}
	st, err := do(group, id, &body)
	if err != nil {
		return err
	}
	info := leaseInfoOf(&st)
	info.LeaseID = id
	w.Header().Set("Cache-Control", "no-store")
	s.writeJSON(w, r, http.StatusOK, &info)
	return nil
}

// readOptional reads a body that is one JSON object, or nothing.
func (s *Server) readOptional(w *responseWriter, r *http.Request, into any) error {
	b, err := s.readBody(w, r, min(maxAdminBytes, s.opts.MaxRequestBytes))
	if err != nil {
		return err
	}
	defer b.release()
	if len(b.bytes) == 0 {
		return nil
	}
	if _, err := requestMedia(w, r, "Accept-Post", mediaJSON); err != nil {
		return err
	}
	return api.ParseObject(b.bytes, into)
}

// uptoOf is the offset to commit, -1 if none is given.
func uptoOf(raw jsontext.Value) (int64, error) {
	if raw == nil {
		return -1, nil
	}
	return offsetValue("upto", raw)
}

type ackBody struct {
	Upto jsontext.Value `json:"upto"`
}

// ackLease commits what was done of a lease: all, or up to an offset.
func (s *Server) ackLease(w *responseWriter, r *http.Request) error {
	return leaseCall(s, w, r, func(group, id string, body *ackBody) (broker.LeaseState, error) {
		upto, err := uptoOf(body.Upto)
		if err != nil {
			return broker.LeaseState{}, err
		}
		return s.broker.AckLease(r.Context(), principal(r), group, id, upto)
	})
}

type extendBody struct {
	LeaseMS *int64 `json:"lease_ms"`
}

// extendLease gives a lease more time, from now.
func (s *Server) extendLease(w *responseWriter, r *http.Request) error {
	return leaseCall(s, w, r, func(group, id string, body *extendBody) (broker.LeaseState, error) {
		d, err := span("lease_ms", body.LeaseMS, broker.MinLease, broker.MaxLease)
		if err != nil {
			return broker.LeaseState{}, err
		}
		return s.broker.ExtendLease(r.Context(), principal(r), group, id, d)
	})
}

type releaseBody struct {
	Upto       jsontext.Value `json:"upto"`
	DelayMS    *int64         `json:"delay_ms"`
	DeadLetter bool           `json:"dead_letter"`
}

// releaseLease gives a lease back.
func (s *Server) releaseLease(w *responseWriter, r *http.Request) error {
	return leaseCall(s, w, r, func(group, id string, body *releaseBody) (broker.LeaseState, error) {
		req := broker.ReleaseRequest{DeadLetter: body.DeadLetter}
		var err error
		if req.Upto, err = uptoOf(body.Upto); err != nil {
			return broker.LeaseState{}, err
		}
		if req.Delay, err = span("delay_ms", body.DelayMS, 0, broker.MaxLease); err != nil {
			return broker.LeaseState{}, err
		}
		return s.broker.ReleaseLease(r.Context(), principal(r), group, id, req)
	})
}
