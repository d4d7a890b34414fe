package rest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"leat/api"
	"leat/broker"
)

const (
	maxListed = 1000
	// maxAdminBytes limits the body of a request about topics.
	maxAdminBytes = 1 << 20
)

// topicInfo is a topic in a list.
type topicInfo struct {
	Name              string `json:"name"`
	TopicID           string `json:"topic_id"`
	Partitions        int    `json:"partitions"`
	ReplicationFactor int    `json:"replication_factor"`
	Internal          bool   `json:"internal"`
}

// topicDetail is a topic with its configs. Configs holds what was set for the
// topic, which PATCH changes; EffectiveConfigs what is in force.
type topicDetail struct {
	topicInfo
	Configs          map[string]string `json:"configs"`
	EffectiveConfigs []configInfo      `json:"effective_configs"`
}

type configInfo struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Default bool   `json:"default"`
	Doc     string `json:"doc,omitzero"`
}

func infoOf(t *broker.Topic) topicInfo {
	info := topicInfo{Name: t.Name, TopicID: t.ID.String(), Partitions: len(t.Partitions), Internal: t.Internal}
	if len(t.Partitions) > 0 {
		info.ReplicationFactor = len(t.Partitions[0].Replicas)
	}
	return info
}

func detailOf(t *broker.Topic, entries []broker.ConfigEntry) topicDetail {
	d := topicDetail{topicInfo: infoOf(t), Configs: map[string]string{}, EffectiveConfigs: []configInfo{}}
	for _, e := range entries {
		d.EffectiveConfigs = append(d.EffectiveConfigs, configInfo{Name: e.Name, Value: e.Value, Default: e.Default(), Doc: e.Doc})
		if e.Source == broker.SourceTopic {
			d.Configs[e.Name] = e.Value
		}
	}
	return d
}

func (s *Server) listTopics(w *responseWriter, r *http.Request) error {
	ps, err := parseParams(r, "limit", "page_token")
	if err != nil {
		return err
	}
	limit, err := ps.integer("limit", 1, maxListed, maxListed)
	if err != nil {
		return err
	}
	after, err := pageToken(ps)
	if err != nil {
		return err
	}
	topics, err := s.broker.Topics(r.Context(), principal(r))
	if err != nil {
		return err
	}
	slices.SortFunc(topics, func(a, b broker.Topic) int { return strings.Compare(a.Name, b.Name) })
	page := struct {
		Items []topicInfo `json:"items"`
		Next  *string     `json:"next_page_token"`
	}{Items: []topicInfo{}}
	for i := range topics {
		if topics[i].Name <= after {
			continue
		}
		if int64(len(page.Items)) == limit {
			next := base64.RawURLEncoding.EncodeToString([]byte(page.Items[limit-1].Name))
			page.Next = &next
			break
		}
		page.Items = append(page.Items, infoOf(&topics[i]))
	}
	s.writeJSON(w, r, http.StatusOK, &page)
	return nil
}

// pageToken is the name that the page before ended with.
func pageToken(ps params) (string, error) {
	token, given := ps.get("page_token")
	if !given {
		return "", nil
	}
	name, err := api.AppendBase64(nil, base64.RawURLEncoding, []byte(token))
	if err != nil || broker.CheckTopicName(string(name)) != nil {
		return "", api.InvalidParameter("page_token", "want the next_page_token of an earlier answer")
	}
	return string(name), nil
}

// createRequest is the body that makes a topic. Partitions and replication
// factor may be left to the server.
type createRequest struct {
	Name              string                    `json:"name"`
	Partitions        *int32                    `json:"partitions"`
	ReplicationFactor *int16                    `json:"replication_factor"`
	Configs           map[string]jsontext.Value `json:"configs"`
}

func (s *Server) createTopic(w *responseWriter, r *http.Request) error {
	if _, err := requestMedia(w, r, "Accept-Post", mediaJSON); err != nil {
		return err
	}
	validate, err := validateOnly(r)
	if err != nil {
		return err
	}
	var req createRequest
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	if err := broker.CheckTopicName(req.Name); err != nil {
		return err
	}
	spec := broker.TopicSpec{Name: req.Name, Partitions: -1, ReplicationFactor: -1, Configs: map[string]string{}}
	if req.Partitions != nil {
		// -1 asks for the default inside only; here leaving it out does.
		if spec.Partitions = *req.Partitions; spec.Partitions < 1 {
			return fmt.Errorf("%w: %d, want at least 1", broker.ErrInvalidPartitions, spec.Partitions)
		}
	}
	if req.ReplicationFactor != nil {
		if spec.ReplicationFactor = *req.ReplicationFactor; spec.ReplicationFactor < 1 {
			return fmt.Errorf("%w: %d, want at least 1", broker.ErrInvalidReplicationFactor, spec.ReplicationFactor)
		}
	}
	for name, raw := range req.Configs {
		value, err := configValue(name, raw)
		if err != nil {
			return err
		}
		if value != nil {
			spec.Configs[name] = *value
		}
	}
	res := s.broker.CreateTopics(r.Context(), principal(r), []broker.TopicSpec{spec}, validate)[0]
	if res.Err != nil {
		return api.ProblemOf(res.Err).At(req.Name, api.AnyPartition)
	}
	status := http.StatusOK
	if !validate {
		status = http.StatusCreated
		w.Header().Set("Location", topicsPath+req.Name)
	}
	s.writeJSON(w, r, status, detailOf(&res.Topic, res.Configs))
	return nil
}

func (s *Server) getTopic(w *responseWriter, r *http.Request) error {
	name, err := topicParam(r)
	if err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	return s.writeTopic(w, r, name)
}

func (s *Server) writeTopic(w *responseWriter, r *http.Request, name string) error {
	t, err := s.broker.Topic(r.Context(), principal(r), broker.TopicRef{Name: name})
	if err != nil {
		return api.ProblemOf(err).At(name, api.AnyPartition)
	}
	entries, err := s.broker.TopicConfigs(r.Context(), principal(r), name)
	if err != nil {
		return api.ProblemOf(err).At(name, api.AnyPartition)
	}
	s.writeJSON(w, r, http.StatusOK, detailOf(&t, entries))
	return nil
}

// patchTopic changes configs by a merge patch (RFC 7396): a value sets one,
// null puts it back to the default, and what is not named stays.
func (s *Server) patchTopic(w *responseWriter, r *http.Request) error {
	name, err := topicParam(r)
	if err != nil {
		return err
	}
	if _, err := requestMedia(w, r, "Accept-Patch", mediaMerge, mediaJSON); err != nil {
		return err
	}
	validate, err := validateOnly(r)
	if err != nil {
		return err
	}
	var req struct {
		Configs map[string]jsontext.Value `json:"configs"`
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	var changes []broker.ConfigChange
	for key, raw := range req.Configs {
		value, err := configValue(key, raw)
		if err != nil {
			return err
		}
		changes = append(changes, broker.ConfigChange{Name: key, Value: value})
	}
	slices.SortFunc(changes, func(a, b broker.ConfigChange) int { return strings.Compare(a.Name, b.Name) })
	if err := s.broker.AlterTopicConfigs(r.Context(), principal(r), name, changes, validate); err != nil {
		return api.ProblemOf(err).At(name, api.AnyPartition)
	}
	return s.writeTopic(w, r, name)
}

func (s *Server) deleteTopic(w *responseWriter, r *http.Request) error {
	name, err := topicParam(r)
	if err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	if err := s.broker.DeleteTopics(r.Context(), principal(r), []broker.TopicRef{{Name: name}})[0].Err; err != nil {
		return api.ProblemOf(err).At(name, api.AnyPartition)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// validateOnly is the only parameter of a request that changes topics: whether
// to check it and change nothing.
func validateOnly(r *http.Request) (bool, error) {
	ps, err := parseParams(r, "validate_only")
	if err != nil {
		return false, err
	}
	return ps.boolean("validate_only")
}

// configValue is a config's value as text: a string, or a number or truth value
// as written; nil for null.
func configValue(name string, raw jsontext.Value) (*string, error) {
	var text string
	switch raw.Kind() {
	case 'n':
		return nil, nil
	case '"':
		// The decoder has checked the string.
		decoded, _ := jsontext.AppendUnquote(nil, raw)
		text = string(decoded)
	case '0', 't', 'f':
		text = string(raw)
	default:
		return nil, api.Malformed("config " + strconv.Quote(api.Clip(name)) + " must be a string, a number, true, false or null")
	}
	return &text, nil
}

// readJSON reads a body that is one JSON object without unknown members.
func (s *Server) readJSON(w *responseWriter, r *http.Request, into any) error {
	b, err := s.readBody(w, r, min(maxAdminBytes, s.opts.MaxRequestBytes))
	if err != nil {
		return err
	}
	defer b.release()
	if len(b.bytes) == 0 {
		return api.EmptyBody("the body is empty")
	}
	return api.ParseObject(b.bytes, into)
}
