package rest

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"leat/api"
	"leat/broker"
)

// groupOffset is an offset that a group has committed.
type groupOffset struct {
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	Offset      int64  `json:"offset"`
	LeaderEpoch *int32 `json:"leader_epoch"`
	Metadata    string `json:"metadata"`
}

func groupOffsetOf(o *broker.CommittedOffset) groupOffset {
	out := groupOffset{Topic: o.Topic, Partition: o.Partition, Offset: o.Offset, Metadata: o.Metadata}
	if o.LeaderEpoch >= 0 {
		out.LeaderEpoch = &o.LeaderEpoch
	}
	return out
}

// partitionKey is how a page of partitions of several topics ends.
func partitionKey(topic string, partition int32) string {
	return topic + "/" + strconv.Itoa(int(partition))
}

// parsePartitionKey reads it back.
func parsePartitionKey(key string) (topic string, partition int32, ok bool) {
	topic, number, found := strings.Cut(key, "/")
	partition, ok = numberKey(number)
	return topic, partition, found && ok && broker.CheckTopicName(topic) == nil
}

// partitionPage reads the parameters of a list of partitions of several topics:
// its page, and the one topic that is asked for, if any. before says which
// partitions earlier pages had.
func partitionPage(r *http.Request) (pg page, only string, before func(topic string, partition int32) bool, err error) {
	ps, err := parseParams(r, "limit", "page_token", "topic")
	if err != nil {
		return pg, "", nil, err
	}
	var lastTopic string
	var lastPartition int32
	pg, err = pageParams(ps, func(key string) (ok bool) {
		lastTopic, lastPartition, ok = parsePartitionKey(key)
		return ok
	})
	if err != nil {
		return pg, "", nil, err
	}
	only, given := ps.get("topic")
	if given {
		if err := broker.CheckTopicName(only); err != nil {
			return pg, "", nil, err
		}
	}
	return pg, only, func(topic string, partition int32) bool {
		return topic < lastTopic || topic == lastTopic && partition <= lastPartition
	}, nil
}

// offsetsTag is the tag of all that a group has committed: it changes with each
// offset, also with those that an answer does not have.
func offsetsTag(all []broker.CommittedOffset) string {
	var text []byte
	for i := range all {
		o := &all[i]
		text = append(text, o.Topic...)
		text = fmt.Appendf(text, "/%d %d %d %q\n", o.Partition, o.Offset, o.LeaderEpoch, o.Metadata)
	}
	return entityTag(text)
}

// getGroupOffsets lists what a group has committed, by topic and partition.
func (s *Server) getGroupOffsets(w *responseWriter, r *http.Request) error {
	id, err := groupParam(r)
	if err != nil {
		return err
	}
	pg, only, before, err := partitionPage(r)
	if err != nil {
		return err
	}
	c, err := readConditions(r)
	if err != nil {
		return err
	}
	if err := s.broker.DescribeGroups(r.Context(), principal(r), []string{id})[0].Err; err != nil {
		return err
	}
	all, err := s.broker.FetchOffsets(r.Context(), principal(r), id, nil)
	if err != nil {
		return err
	}
	tag := offsetsTag(all)
	items := make([]groupOffset, 0, len(all))
	for i := range all {
		if only == "" || all[i].Topic == only {
			items = append(items, groupOffsetOf(&all[i]))
		}
	}
	items, next := cut(pg, items,
		func(o *groupOffset) string { return partitionKey(o.Topic, o.Partition) },
		func(o *groupOffset) bool { return before(o.Topic, o.Partition) })
	list := struct {
		Items []groupOffset `json:"items"`
		Next  *string       `json:"next_page_token"`
	}{items, next}
	return s.writeTagged(w, r, c, tag, &list)
}

// seekItem is a place to set: one offset of one partition, or a place in a
// partition or in all of a topic.
type seekItem struct {
	Topic       string         `json:"topic"`
	Partition   *int32         `json:"partition"`
	Offset      jsontext.Value `json:"offset"`
	TS          jsontext.Value `json:"ts"`
	From        *string        `json:"from"`
	LeaderEpoch *int32         `json:"leader_epoch"`
	Metadata    string         `json:"metadata"`
}

// putGroupOffsets sets offsets of a group that nobody works in. What is not named
// stays.
func (s *Server) putGroupOffsets(w *responseWriter, r *http.Request) error {
	id, err := groupParam(r)
	if err != nil {
		return err
	}
	if _, err := parseParams(r); err != nil {
		return err
	}
	if _, err := requestMedia(w, r, "", mediaJSON); err != nil {
		return err
	}
	c, err := readConditions(r)
	if err != nil {
		return err
	}
	var req struct {
		Offsets []seekItem `json:"offsets"`
	}
	if err := s.readJSON(w, r, &req); err != nil {
		return err
	}
	if req.Offsets == nil {
		return api.Malformed("offsets is required")
	}
	set, owners, err := s.resolveSeek(r, req.Offsets)
	if err != nil {
		return err
	}
	seek := &broker.GroupSeek{Offsets: set, If: func(all []broker.CommittedOffset) error { return c.check(offsetsTag(all), len(all) > 0) }}
	all, err := s.broker.SeekGroup(r.Context(), principal(r), id, seek)
	if se, ok := errors.AsType[*broker.SeekError](err); ok {
		o := &set[se.Index]
		return itemProblem(owners[se.Index], "", api.ProblemOf(se.Err)).At(o.Topic, o.Partition)
	}
	if err != nil {
		return err
	}
	list := struct {
		Items []groupOffset `json:"items"`
	}{Items: make([]groupOffset, 0, len(set))}
	for i := range set {
		o := &set[i]
		list.Items = append(list.Items, groupOffsetOf(&broker.CommittedOffset{
			Topic: o.Topic, Partition: o.Partition, Offset: o.Offset, LeaderEpoch: o.LeaderEpoch, Metadata: o.Metadata,
		}))
	}
	w.Header().Set("ETag", offsetsTag(all))
	s.writeJSON(w, r, http.StatusOK, &list)
	return nil
}

// resolveSeek makes the offsets to set of places. owners has for each the item it
// is of.
func (s *Server) resolveSeek(r *http.Request, items []seekItem) (set []broker.CommitOffset, owners []int, err error) {
	seen, topics := map[string]bool{}, map[string]broker.Topic{}
	for i := range items {
		offsets, err := s.resolveItem(r, &items[i], topics)
		if err != nil {
			at := api.AnyPartition
			if items[i].Partition != nil {
				at = *items[i].Partition
			}
			return nil, nil, itemProblem(i, memberOf(err), api.ProblemOf(err)).At(items[i].Topic, at)
		}
		for _, o := range offsets {
			key := partitionKey(o.Topic, o.Partition)
			if seen[key] {
				return nil, nil, itemProblem(i, "", api.ProblemOf(fmt.Errorf("%w: the partition is named twice", broker.ErrInvalidRequest))).At(o.Topic, o.Partition)
			}
			seen[key] = true
			set = append(set, o)
			owners = append(owners, i)
		}
	}
	return set, owners, nil
}

// memberOf is the member of an item that the error is about, if it says so.
func memberOf(err error) string {
	if p, ok := errors.AsType[*api.Problem](err); ok {
		return p.Parameter
	}
	return ""
}

// itemProblem adds to a problem which item of the body it is about.
func itemProblem(index int, member string, p *api.Problem) *api.Problem {
	pointer := "/offsets/" + strconv.Itoa(index)
	if member != "" {
		pointer += "/" + member
	}
	p.Errors = []api.ItemError{{Index: &index, Pointer: pointer, Code: p.Code, Detail: p.Detail}}
	return p
}

// resolveItem finds the offsets that an item means. topics are those of the items
// before, to which it adds its own: each is looked up once.
func (s *Server) resolveItem(r *http.Request, item *seekItem, topics map[string]broker.Topic) ([]broker.CommitOffset, error) {
	if err := broker.CheckTopicName(item.Topic); err != nil {
		return nil, err
	}
	if item.Partition != nil && *item.Partition < 0 {
		return nil, fmt.Errorf("%w: %d, want a number from 0 to 2147483647", broker.ErrInvalidPartition, *item.Partition)
	}
	epoch := int32(-1)
	if item.LeaderEpoch != nil {
		if epoch = *item.LeaderEpoch; epoch < -1 {
			return nil, api.InvalidParameter("leader_epoch", "want a whole number from 0 to 2147483647")
		}
	}
	place, offset, err := item.place()
	if err != nil {
		return nil, err
	}
	t, found := topics[item.Topic]
	if !found {
		if t, err = s.broker.Topic(r.Context(), principal(r), broker.TopicRef{Name: item.Topic}); err != nil {
			return nil, err
		}
		topics[item.Topic] = t
	}
	if offset >= 0 {
		return []broker.CommitOffset{{Topic: t.Name, Partition: *item.Partition, Offset: offset, LeaderEpoch: epoch, Metadata: item.Metadata}}, nil
	}
	var partitions []int32
	if item.Partition != nil {
		partitions = []int32{*item.Partition}
	}
	starts, err := place.Starts(r.Context(), s.broker, principal(r), t, partitions)
	if err != nil {
		return nil, err
	}
	out := make([]broker.CommitOffset, len(starts))
	for i, at := range starts {
		out[i] = broker.CommitOffset{Topic: t.Name, Partition: at.Partition, Offset: at.Offset, LeaderEpoch: -1, Metadata: item.Metadata}
	}
	return out, nil
}

// place is where the item says to go: an offset, or if that is negative a place.
func (item *seekItem) place() (place api.Place, offset int64, err error) {
	given := 0
	for _, is := range []bool{item.Offset != nil, item.TS != nil, item.From != nil} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return place, -1, api.InvalidParameter("offset", "want one of offset, ts and from in each item")
	case item.Offset != nil && item.Partition == nil:
		return place, -1, api.InvalidParameter("partition", "is required with offset")
	case item.LeaderEpoch != nil && item.Offset == nil:
		return place, -1, api.InvalidParameter("leader_epoch", "is of an offset; this item has none")
	case item.Offset != nil:
		offset, err = offsetValue("offset", item.Offset)
		return place, offset, err
	case item.From != nil:
		place, err = api.ParsePlace(*item.From)
		return place, -1, err
	}
	ms, err := timestamp("ts", plainText(item.TS))
	return api.PlaceTime(ms), -1, err
}

// offsetValue reads an offset that is a JSON number or a string, because not every
// client's numbers go up to 2^63.
func offsetValue(name string, raw jsontext.Value) (int64, error) {
	text := plainText(raw)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != text {
		return 0, api.InvalidParameter(name, "want a whole number from 0 to 9223372036854775807, as a number or a string")
	}
	return n, nil
}

// plainText is a number as it is written, or what is in a string; other values
// give what is neither.
func plainText(raw jsontext.Value) string {
	if raw.Kind() != '"' {
		return string(raw)
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return ""
	}
	return text
}
