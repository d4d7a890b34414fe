package rest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"leat/api"
	"leat/broker"
)

// maxAdminBytes limits the body of a request about topics and groups.
const maxAdminBytes = 1 << 20

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
	pg, err := pageParams(ps, func(key string) bool { return broker.CheckTopicName(key) == nil })
	if err != nil {
		return err
	}
	topics, err := s.broker.Topics(r.Context(), principal(r))
	if err != nil {
		return err
	}
	slices.SortFunc(topics, func(a, b broker.Topic) int { return strings.Compare(a.Name, b.Name) })
	topics, next := cut(pg, topics, func(t *broker.Topic) string { return t.Name }, func(t *broker.Topic) bool { return t.Name <= pg.after })
	list := struct {
		Items []topicInfo `json:"items"`
		Next  *string     `json:"next_page_token"`
	}{Items: []topicInfo{}, Next: next}
	for i := range topics {
		list.Items = append(list.Items, infoOf(&topics[i]))
	}
	s.writeJSON(w, r, http.StatusOK, &list)
	return nil
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
	d := detailOf(&res.Topic, res.Configs)
	if !validate {
		w.Header().Set("ETag", tagOf(&d))
	}
	s.writeJSON(w, r, status, &d)
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
	c, err := readConditions(r)
	if err != nil {
		return err
	}
	t, err := s.broker.Topic(r.Context(), principal(r), broker.TopicRef{Name: name})
	if err != nil {
		return api.ProblemOf(err).At(name, api.AnyPartition)
	}
	entries, err := s.broker.TopicConfigs(r.Context(), principal(r), name)
	if err != nil {
		return api.ProblemOf(err).At(name, api.AnyPartition)
	}
	d := detailOf(&t, entries)
	return s.writeTagged(w, r, c, tagOf(&d), &d)
}

// tagOf is the tag of a topic: it changes with its partitions, with its configs,
// and with those of the server that are in force for it.
func tagOf(d *topicDetail) string {
	text, err := json.Marshal(d, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		panic(err) // it can be encoded: writeJSON does
	}
	return entityTag(text)
}

// ofTopic checks the conditions of a change of a topic.
func (c conditions) ofTopic(t *broker.Topic, entries []broker.ConfigEntry) error {
	d := detailOf(t, entries)
	return c.check(tagOf(&d), true)
}

// patchTopic changes a topic by a merge patch (RFC 7396): a config's value sets
// it, null puts it back to its default, and what is not named stays; null for
// all configs puts all of them back. Partitions can grow.
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
	c, err := readConditions(r)
	if err != nil {
		return err
	}
	change, err := s.readPatch(w, r)
	if err != nil {
		return err
	}
	change.If = c.ofTopic
	t, entries, err := s.broker.AlterTopic(r.Context(), principal(r), name, change, validate)
	if err != nil {
		return api.ProblemOf(err).At(name, api.AnyPartition)
	}
	d := detailOf(&t, entries)
	return s.writeTagged(w, r, conditions{}, tagOf(&d), &d)
}

// readPatch reads the body of a patch.
func (s *Server) readPatch(w *responseWriter, r *http.Request) (*broker.TopicChange, error) {
	var req struct {
		Partitions jsontext.Value `json:"partitions"`
		Configs    jsontext.Value `json:"configs"`
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return nil, err
	}
	change := &broker.TopicChange{}
	if req.Partitions != nil {
		n, err := strconv.ParseInt(string(req.Partitions), 10, 32)
		switch {
		case req.Partitions.Kind() == 'n':
			return nil, fmt.Errorf("%w: null, a topic cannot be without", broker.ErrInvalidPartitions)
		case err != nil:
			return nil, api.Malformed("partitions must be a whole number below 2147483648")
		case n < 1:
			return nil, fmt.Errorf("%w: %d, want at least 1", broker.ErrInvalidPartitions, n)
		}
		change.Partitions = int32(n)
	}
	if req.Configs.Kind() == 'n' {
		change.Reset = true
		return change, nil
	}
	configs := map[string]jsontext.Value{}
	if req.Configs != nil {
		if err := json.Unmarshal(req.Configs, &configs); err != nil {
			return nil, api.Malformed("configs must be an object of names and values, or null")
		}
	}
	for key, raw := range configs {
		value, err := configValue(key, raw)
		if err != nil {
			return nil, err
		}
		change.Configs = append(change.Configs, broker.ConfigChange{Name: key, Value: value})
	}
	slices.SortFunc(change.Configs, func(a, b broker.ConfigChange) int { return strings.Compare(a.Name, b.Name) })
	return change, nil
}

func (s *Server) deleteTopic(w *responseWriter, r *http.Request) error {
	name, err := topicParam(r)
	if err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	c, err := readConditions(r)
	if err != nil {
		return err
	}
	if err := s.broker.DeleteTopic(r.Context(), principal(r), name, c.ofTopic); err != nil {
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
