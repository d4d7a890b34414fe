package rest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"

	"leat/api"
	"leat/broker"
	"leat/storage/record"
)

// eventsBinary shows a record as a CloudEvent in HTTP's binary mode.
const eventsBinary = "binary"

// oneRecord is a request for the record at an offset.
type oneRecord struct {
	s          *Server
	w          *responseWriter
	r          *http.Request
	topic      broker.Topic
	partition  int32
	offset     int64
	media      string
	form       api.Form
	conditions conditions
	memory     holding
}

// readRecord answers with one record, which never changes. In JSON it is as in
// the other routes; as bytes it is the value, what belongs to it in headers.
func (s *Server) readRecord(w *responseWriter, r *http.Request) error {
	o, name, err := s.recordParams(w, r)
	if err != nil {
		return err
	}
	if o.topic, err = s.broker.Topic(r.Context(), principal(r), broker.TopicRef{Name: name}); err == nil {
		err = o.answer()
	}
	if err != nil {
		return api.ProblemOf(err).At(name, o.partition)
	}
	return nil
}

func (s *Server) recordParams(w *responseWriter, r *http.Request) (o *oneRecord, topic string, err error) {
	o = &oneRecord{s: s, w: w, r: r, memory: s.holding(r)}
	if topic, err = topicParam(r); err != nil {
		return nil, "", err
	}
	if o.partition, err = partitionParam(r); err != nil {
		return nil, "", err
	}
	text := chi.URLParam(r, "offset")
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return nil, "", api.InvalidParameter("offset", "want a whole number from 0 to 9223372036854775807")
	}
	o.offset = int64(n)
	ps, err := parseParams(r, "as", "ce")
	if err != nil {
		return nil, "", err
	}
	w.Header().Add("Vary", "Accept")
	if o.media, err = negotiate(r, mediaJSON, mediaBytes, api.MediaEvent); err != nil {
		return nil, "", err
	}
	if o.conditions, err = readConditions(r); err != nil {
		return nil, "", err
	}
	return o, topic, o.readForm(ps, topic)
}

func (o *oneRecord) readForm(ps params, topic string) (err error) {
	ce, given := ps.get("ce")
	if o.media == api.MediaEvent || given {
		if o.form.Events, err = ps.choice("ce", api.EventsOnly, api.EventsWrap, eventsBinary); err != nil {
			return err
		}
		if ce == eventsBinary {
			// The event's own type is that of the answer.
			o.media = ""
		} else if o.media != api.MediaEvent {
			return api.InvalidParameter("ce", "want Accept: "+api.MediaEvent+", or ce=binary")
		}
		o.form.Topic = topic
	}
	if _, given := ps.get("as"); given {
		if o.media != mediaJSON {
			return api.InvalidParameter("as", "is for "+mediaJSON)
		}
		o.form.As, err = ps.choice("as", api.AsJSON, api.AsString, api.AsBase64)
	}
	return err
}

// answer finds the record and writes it.
func (o *oneRecord) answer() error {
	res := o.s.broker.Fetch(o.r.Context(), principal(o.r), &broker.FetchRequest{MaxBytes: 1, Partitions: []broker.FetchPartition{{
		Topic: o.topic.Name, TopicID: o.topic.ID, Partition: o.partition, Offset: o.offset, Epoch: -1, MaxBytes: 1,
	}}})[0]
	if res.Err != nil {
		return res.Err
	}
	if res.Section == nil {
		return &broker.OffsetError{Offset: o.offset, Start: res.LogStart, End: res.HighWatermark}
	}
	defer res.Section.Release()
	walk := api.NewWalk(res.Section, func(offset int64, err error) error {
		return o.s.broker.NoteDamage(o.topic.Name, o.partition, offset, err)
	})
	defer walk.Release()
	defer o.memory.release()
	if err := o.memory.hold(0); err != nil {
		return err
	}
	walk.Bound(o.memory.hold)
	plan, err := api.PlanSection(walk, o.partition, o.offset, api.Limits{Records: 1}, nil)
	if err != nil {
		return err
	}
	found := false
	var failed error
	err = walk.Each(plan, func(rec *record.Record) {
		if rec.Offset == o.offset && !found {
			found = true
			failed = o.write(rec)
		}
	})
	switch {
	case found:
		return failed
	case err != nil:
		return err
	}
	return &api.Problem{
		Status: http.StatusNotFound, Code: "unknown_record", Title: "Unknown record",
		Detail: fmt.Sprintf("there is no record at offset %d, although there are later ones: compaction has removed it, or the offset never had one", o.offset),
	}
}

// write answers with the record, or says that the client has it already.
func (o *oneRecord) write(rec *record.Record) error {
	var e api.Event
	if o.form.Events == eventsBinary {
		rec = api.Unfold(rec)
	}
	switch {
	case o.form.Events == eventsBinary && !e.Load(rec), o.form.Events == api.EventsOnly && !api.IsEvent(rec):
		return api.NotEvent(o.offset)
	}
	// A record at an offset of a topic of this identity is always the same; its
	// forms are not.
	tag := entityTag(fmt.Appendf(nil, "%s %d %d %s %s %s", o.topic.ID, o.partition, o.offset, o.media, o.form.As, o.form.Events))
	none := o.conditions.noneMatch
	o.conditions.noneMatch = nil
	if err := o.conditions.check(tag, true); err != nil {
		return err
	}
	h := o.w.Header()
	h.Set("ETag", tag)
	h.Set("Cache-Control", "private, immutable")
	if none != nil && none.has(tag) {
		o.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	o.s.metrics.recordsOut.Inc()
	switch {
	case o.form.Events == eventsBinary:
		if !eventHeaders(h, &e) {
			h.Del("ETag")
			return &api.Problem{
				Status: http.StatusNotAcceptable, Code: "not_acceptable", Title: "Not acceptable",
				Detail: "the attributes of this event are too long for headers; want Accept: " + api.MediaEvent,
			}
		}
		return o.body(tag, rec.Value)
	case o.media == mediaBytes:
		h.Set("Content-Type", mediaBytes)
		recordHeadersOf(h, o.partition, rec)
		return o.body(tag, rec.Value)
	}
	out := newChunks(o.w, http.StatusOK, o.media)
	defer out.release()
	out.buf = append(api.AppendRecord(out.buf, o.partition, rec, o.form), '\n')
	if o.r.Method == http.MethodHead {
		h.Set("Content-Length", strconv.Itoa(len(out.buf)))
		o.w.WriteHeader(http.StatusOK)
		return nil
	}
	out.finish()
	return nil
}

// body writes bytes, or the range of them that is asked for.
func (o *oneRecord) body(tag string, value []byte) error {
	h := o.w.Header()
	h.Set("Accept-Ranges", "bytes")
	// The bytes are a stranger's: a browser must neither guess what they are nor
	// run them as a page of this origin.
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	status := http.StatusOK
	from, to, err := byteRange(o.r, tag, int64(len(value)))
	if err != nil {
		for _, name := range []string{"ETag", "Accept-Ranges"} {
			h.Del(name)
		}
		h.Set("Content-Range", "bytes */"+strconv.Itoa(len(value)))
		return err
	}
	if to >= 0 {
		status = http.StatusPartialContent
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to-1, len(value)))
		value = value[from:to]
	}
	h.Set("Content-Length", strconv.Itoa(len(value)))
	o.w.WriteHeader(status)
	if o.r.Method == http.MethodHead {
		return nil
	}
	if _, err := o.w.Write(value); err != nil {
		panic(http.ErrAbortHandler) // the client must not take what it has for the whole
	}
	return nil
}

// byteRange is the part [from, to) that a request asks for; to is -1 if it is all
// of it. A server may pass over a range, and this one does so for what is
// malformed and for several at a time (RFC 9110 section 14.2).
func byteRange(r *http.Request, tag string, size int64) (from, to int64, err error) {
	text, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	if only := r.Header.Get("If-Range"); !ok || r.Method != http.MethodGet || only != "" && only != tag {
		return 0, -1, nil
	}
	first, last, ok := strings.Cut(strings.TrimSpace(text), "-")
	if !ok || first == "" && last == "" {
		return 0, -1, nil
	}
	a, okA := rangeNumber(first)
	b, okB := rangeNumber(last)
	switch {
	case !okA || !okB || a >= 0 && b >= 0 && b < a:
		return 0, -1, nil
	case a < 0: // the last b bytes
		from, to = max(size-b, 0), size
	case b < 0:
		from, to = a, size
	default:
		from, to = a, min(b, size-1)+1
	}
	if from >= to {
		return 0, -1, &api.Problem{
			Status: http.StatusRequestedRangeNotSatisfiable, Code: "range_not_satisfiable", Title: "Range not satisfiable",
			Detail: fmt.Sprintf("the value has %d bytes", size),
		}
	}
	return from, to, nil
}

// rangeNumber is a number of digits alone, or -1 for none.
func rangeNumber(text string) (n int64, ok bool) {
	if text == "" {
		return -1, true
	}
	if strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	u, err := strconv.ParseUint(text, 10, 62)
	if err != nil {
		u = 1 << 62 // more than any value has
	}
	return int64(u), true
}
