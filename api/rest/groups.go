package rest

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"

	"leat/api"
	"leat/broker"
)

const (
	groupsPath = "/v1/groups/"
	// maxGroupID is the longest id of a group that the Kafka protocol can name,
	// in bytes.
	maxGroupID = 1<<15 - 1
)

// The kinds of groups: one whose workers take leases, and one of members as the
// Kafka protocol has them, which a group also is that has offsets alone.
const (
	groupLease   = "lease"
	groupClassic = "classic"
)

// groupInfo is a group in a list.
type groupInfo struct {
	Group        string `json:"group"`
	Type         string `json:"type"`
	State        string `json:"state"`
	ProtocolType string `json:"protocol_type"`
}

// groupDetail is a group with its members and leases.
type groupDetail struct {
	groupInfo
	Protocol   string       `json:"protocol"`
	Generation int32        `json:"generation"`
	Members    []memberInfo `json:"members"`
	Leases     []leaseInfo  `json:"leases"`
}

type memberInfo struct {
	MemberID   string  `json:"member_id"`
	InstanceID *string `json:"instance_id"`
	ClientID   string  `json:"client_id"`
	ClientHost string  `json:"client_host"`
}

func groupInfoOf(id, state, protocolType string) groupInfo {
	info := groupInfo{Group: id, Type: groupClassic, State: state, ProtocolType: protocolType}
	if protocolType == groupLease {
		info.Type = groupLease
	}
	return info
}

// groupParam is the group that the path names.
func groupParam(r *http.Request) (string, error) { return parseGroup(chi.URLParam(r, "group")) }

// parseGroup unescapes a path segment. Any text that the Kafka protocol could
// name is a group's id, slashes too.
func parseGroup(segment string) (string, error) {
	id, err := url.PathUnescape(segment)
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: bad percent escape", broker.ErrInvalidGroupID)
	case id == "":
		return "", fmt.Errorf("%w: it is empty", broker.ErrInvalidGroupID)
	case !utf8.ValidString(id):
		return "", fmt.Errorf("%w: it is not UTF-8", broker.ErrInvalidGroupID)
	case len(id) > maxGroupID:
		return "", fmt.Errorf("%w: it has %d bytes, at most %d are allowed", broker.ErrInvalidGroupID, len(id), maxGroupID)
	}
	return id, nil
}

func (s *Server) listGroups(w *responseWriter, r *http.Request) error {
	ps, err := parseParams(r, "limit", "page_token", "state", "type")
	if err != nil {
		return err
	}
	pg, err := pageParams(ps, func(key string) bool { return key != "" && utf8.ValidString(key) })
	if err != nil {
		return err
	}
	states, err := groupStates(ps)
	if err != nil {
		return err
	}
	kind := ""
	if _, given := ps.get("type"); given {
		if kind, err = ps.choice("type", groupLease, groupClassic); err != nil {
			return err
		}
	}
	groups, err := s.broker.ListGroups(r.Context(), principal(r), states)
	if err != nil {
		return err
	}
	infos := make([]groupInfo, 0, len(groups))
	for _, g := range groups {
		if info := groupInfoOf(g.ID, g.State, g.ProtocolType); kind == "" || info.Type == kind {
			infos = append(infos, info)
		}
	}
	infos, next := cut(pg, infos, func(g *groupInfo) string { return g.Group }, func(g *groupInfo) bool { return g.Group <= pg.after })
	list := struct {
		Items []groupInfo `json:"items"`
		Next  *string     `json:"next_page_token"`
	}{infos, next}
	s.writeJSON(w, r, http.StatusOK, &list)
	return nil
}

// groupStates reads the names of states, with commas between them.
func groupStates(ps params) ([]string, error) {
	text, given := ps.get("state")
	if !given {
		return nil, nil
	}
	known := []string{"Empty", "PreparingRebalance", "CompletingRebalance", "Stable"}
	states := strings.Split(text, ",")
	for _, state := range states {
		if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, state) }) {
			return nil, api.InvalidParameter("state", "want "+strings.Join(known, ", ")+", or several with commas between them")
		}
	}
	return states, nil
}

func (s *Server) getGroup(w *responseWriter, r *http.Request) error {
	id, err := groupParam(r)
	if err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	g := s.broker.DescribeGroups(r.Context(), principal(r), []string{id})[0]
	if g.Err != nil {
		return g.Err
	}
	d := groupDetail{
		groupInfo: groupInfoOf(id, g.State, g.ProtocolType), Protocol: g.Protocol, Generation: g.Generation,
		Members: []memberInfo{}, Leases: []leaseInfo{},
	}
	for i := range g.Members {
		m := &g.Members[i]
		info := memberInfo{MemberID: m.ID, ClientID: m.ClientID, ClientHost: m.Host}
		if m.InstanceID != "" {
			info.InstanceID = &m.InstanceID
		}
		d.Members = append(d.Members, info)
	}
	if d.Type == groupLease {
		leases, err := s.broker.GroupLeases(r.Context(), principal(r), id)
		if err != nil {
			return err
		}
		for i := range leases {
			d.Leases = append(d.Leases, leaseInfoOf(&leases[i]))
		}
	}
	s.writeJSON(w, r, http.StatusOK, &d)
	return nil
}

// deleteGroup forgets a group that nobody works in, with its offsets.
func (s *Server) deleteGroup(w *responseWriter, r *http.Request) error {
	id, err := groupParam(r)
	if err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	c, err := readConditions(r)
	if err == nil {
		err = c.check("", true) // a group has no tag that could be given
	}
	if err != nil {
		return err
	}
	if err := s.broker.DeleteGroups(r.Context(), principal(r), []string{id})[0]; err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
