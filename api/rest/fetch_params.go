package rest

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"leat/api"
	"leat/broker"
)

const (
	maxFetchWait = 60 * time.Second
	// maxAskedWait is the longest wait that is cut to maxFetchWait; what is
	// longer is taken for a mistake.
	maxAskedWait     = time.Hour
	defaultFetchSize = 1 << 20
	maxFetchSize     = 32 << 20
)

// What to do where retention has overtaken the position asked for.
const (
	gapFail     = "fail"
	gapEarliest = "earliest"
	gapLatest   = "latest"
)

// stopID is the event id that a stream ends with when it has no more to give. A
// browser comes back with it by itself, and 204 makes it stop.
const stopID = "stop"

// readOptions are what a fetch or a stream asks for.
type readOptions struct {
	topic string
	// partition is the one to read, or api.AnyPartition for a whole topic, of
	// which partitions are those to read; nil means all.
	partition  int32
	partitions []int32

	place api.Place
	// offset is the place in a partition if it is given as such, else -1.
	offset int64
	// cursor is the place in a topic if it is given as such.
	cursor api.Cursor
	// topicID is the incarnation that the place is of; "" is any.
	topicID string
	onGap   string

	media string
	form  api.Form
	// filter is nil without one; filterText is what it is made of.
	filter     *broker.Filter
	filterText string
	wait       time.Duration
	minBytes   int
	maxBytes   int
	maxRecords int
	// clamped and waitCut say that the client asked for more than maxBytes, and
	// for a longer wait.
	clamped, waitCut bool

	// stream says that the answer goes on; batch, that an event is an array.
	stream, batch bool
	// stop says that the stream was told to have ended.
	stop bool
}

// readParams reads what both the partition's and the topic's route take.
func readParams(r *http.Request, whole bool) (*readOptions, error) {
	o := &readOptions{offset: -1, partition: api.AnyPartition}
	var err error
	if o.topic, err = topicParam(r); err != nil {
		return nil, err
	}
	offers := []string{mediaJSON, mediaNDJSON, mediaEvents, api.MediaEventBatch}
	known := []string{
		"cursor", "from", "partitions", "topic_id", "on_gap", "wait", "min_bytes", "max_bytes", "max_records", "as", "ce", "filter",
		"stream", "batch", "last_event_id",
	}
	if !whole {
		if o.partition, err = partitionParam(r); err != nil {
			return nil, err
		}
		offers = append(offers, mediaBatch)
		known[0] = "offset"
		known = slices.Delete(known, 2, 3)
	}
	ps, err := parseParams(r, known...)
	if err != nil {
		return nil, err
	}
	if o.media, err = negotiate(r, offers...); err != nil {
		return nil, err
	}
	for _, read := range []func(*http.Request, params) error{o.readStream, o.readPlace, o.readGap, o.readSizes, o.readForm, o.readFilter} {
		if err := read(r, ps); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// whole reports whether a topic is read.
func (o *readOptions) whole() bool { return o.partition < 0 }

// readStream finds out whether the answer is a stream, and of what kind.
func (o *readOptions) readStream(_ *http.Request, ps params) error {
	stream, err := ps.boolean("stream")
	if err != nil {
		return err
	}
	_, given := ps.get("stream")
	switch {
	case o.media == mediaEvents:
		if given && !stream {
			return api.InvalidParameter("stream", mediaEvents+" is always a stream")
		}
		o.stream, o.batch = true, o.whole()
		if _, given := ps.get("batch"); given {
			o.batch, err = ps.boolean("batch")
		}
		return err
	case stream && o.media != mediaNDJSON:
		return api.InvalidParameter("stream", "want Accept: "+mediaNDJSON+" or "+mediaEvents)
	}
	o.stream = stream
	for _, name := range []string{"batch", "last_event_id"} {
		if _, given := ps.get(name); given {
			return api.InvalidParameter(name, "is for "+mediaEvents)
		}
	}
	return nil
}

// readPlace finds out where to begin. The id of the last event stands above all
// else; a browser sends it when it comes back by itself.
func (o *readOptions) readPlace(r *http.Request, ps params) error {
	if text, given := ps.get("partitions"); given {
		var err error
		if o.partitions, err = parsePartitions(text); err != nil {
			return err
		}
	}
	o.topicID, _ = ps.get("topic_id")
	exact := "offset"
	if o.whole() {
		exact = "cursor"
	}
	from, hasFrom := ps.get("from")
	at, hasExact := ps.get(exact)
	var err error
	switch {
	case hasFrom && hasExact:
		return api.InvalidParameter("from", "give "+exact+" or from, not both")
	case hasExact:
		err = o.readExact(exact, at)
	case hasFrom:
		o.place, err = api.ParsePlace(from)
	case !o.stream:
		return api.InvalidParameter(exact, exact+" or from is required")
	}
	if err != nil || o.media != mediaEvents {
		return err
	}
	name, last := "Last-Event-ID", r.Header.Get("Last-Event-ID")
	if last == "" {
		name = "last_event_id"
		last, _ = ps.get(name)
	}
	switch last {
	case "":
		return nil
	case stopID:
		o.stop = true
		return nil
	}
	return o.readExact(name, last)
}

// readExact reads an offset or a cursor.
func (o *readOptions) readExact(name, text string) error {
	if o.whole() {
		c, err := api.ParseCursor(text)
		if err != nil {
			p := api.ProblemOf(err)
			p.Parameter = name
			return p
		}
		o.cursor, o.place = c, api.PlaceCursor(c)
		return nil
	}
	offset, err := params{{name, text}}.integer(name, 0, math.MaxInt64, 0)
	o.offset, o.place = offset, api.PlaceOffsets(map[int32]int64{o.partition: offset})
	return err
}

// parsePartitions reads numbers with commas between them, each once.
func parsePartitions(text string) ([]int32, error) {
	var out []int32
	for item := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(item, 10, 31)
		if err != nil {
			return nil, api.InvalidParameter("partitions", "want numbers of partitions, as in 0,2")
		}
		if len(out) == api.MaxCursorPartitions {
			return nil, tooMany("the list has more")
		}
		out = append(out, int32(n))
	}
	slices.Sort(out)
	if len(slices.Compact(slices.Clone(out))) < len(out) {
		return nil, api.InvalidParameter("partitions", "names a partition twice")
	}
	return out, nil
}

// tooMany is the error of a read that would have to give out a cursor too long
// to be taken back.
func tooMany(what string) error {
	return api.InvalidParameter("partitions", fmt.Sprintf("want at most %d partitions with one cursor, %s: read them in parts, each with a cursor of its own", api.MaxCursorPartitions, what))
}

// readGap finds out what to do where records are gone. A stream goes on and
// tells; a single answer would have to be looked at closely to see it, so it
// is asked for.
func (o *readOptions) readGap(_ *http.Request, ps params) (err error) {
	if o.onGap = gapFail; o.stream {
		o.onGap = gapEarliest
	}
	if _, given := ps.get("on_gap"); given {
		o.onGap, err = ps.choice("on_gap", gapFail, gapEarliest, gapLatest)
	}
	return err
}

func (o *readOptions) readSizes(r *http.Request, ps params) error {
	if o.stream {
		for _, name := range []string{"wait", "min_bytes", "max_bytes", "max_records"} {
			if _, given := ps.get(name); given {
				return api.InvalidParameter(name, "does not apply to a stream")
			}
		}
		return nil
	}
	least, err := ps.integer("min_bytes", 0, maxFetchSize, 1)
	if err != nil {
		return err
	}
	most, err := ps.integer("max_bytes", 0, math.MaxInt64, defaultFetchSize)
	if err != nil {
		return err
	}
	if most > maxFetchSize {
		most, o.clamped = maxFetchSize, true
	}
	o.minBytes, o.maxBytes = int(min(least, most)), int(most)
	records, err := ps.integer("max_records", 1, math.MaxInt64, math.MaxInt64)
	if err != nil {
		return err
	}
	if _, given := ps.get("max_records"); given && o.media == mediaBatch {
		return api.InvalidParameter("max_records", "does not apply to "+mediaBatch)
	}
	o.maxRecords = int(min(records, math.MaxInt32))
	wait, err := waitParam(r, ps)
	o.wait, o.waitCut = min(wait, maxFetchWait), wait > maxFetchWait
	return err
}

func (o *readOptions) readFilter(_ *http.Request, ps params) error {
	text, given := ps.get("filter")
	switch {
	case given && o.media == mediaBatch:
		return api.InvalidParameter("filter", "does not apply to "+mediaBatch+", whose batches leave as they are stored")
	case given && text == "":
		return api.EmptyFilter()
	}
	o.filterText = text
	return nil
}

// readForm finds out how records are written: as such, or as CloudEvents, which
// is asked for by the media type, or for lines and events by the parameter.
func (o *readOptions) readForm(_ *http.Request, ps params) (err error) {
	o.form.Lines = o.media == mediaNDJSON || o.media == mediaEvents
	text, asGiven := ps.get("as")
	_, given := ps.get("ce")
	switch {
	case given && (o.media == mediaJSON || o.media == mediaBatch):
		return api.InvalidParameter("ce", "want Accept: "+api.MediaEventBatch+", "+mediaNDJSON+" or "+mediaEvents)
	case given || o.media == api.MediaEventBatch:
		if asGiven {
			return api.InvalidParameter("as", "does not apply to CloudEvents")
		}
		o.form.Topic = o.topic
		o.form.Events, err = ps.choice("ce", api.EventsOnly, api.EventsWrap)
		return err
	case asGiven && o.media == mediaBatch:
		return api.InvalidParameter("as", "does not apply to "+mediaBatch+": "+api.Clip(text))
	case asGiven:
		o.form.As, err = ps.choice("as", api.AsJSON, api.AsString, api.AsBase64)
	}
	return err
}

// waitParam is how long the client would have the server wait for records: by
// the parameter, or else by Prefer: wait=seconds (RFC 7240).
func waitParam(r *http.Request, ps params) (time.Duration, error) {
	if text, given := ps.get("wait"); given {
		return seconds("wait", text, maxAskedWait)
	}
	if n, err := strconv.ParseUint(prefer(r, "wait"), 10, 31); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	return 0, nil
}
