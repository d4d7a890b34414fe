package rest

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"leat/broker"
)

const (
	maxFetchWait     = 60 * time.Second
	defaultFetchSize = 1 << 20
	maxFetchSize     = 32 << 20
)

// The forms of keys and values in an answer.
const (
	formAuto   = ""
	formJSON   = "json"
	formString = "string"
	formBase64 = "base64"
)

// fetchOptions are what a fetch asks for.
type fetchOptions struct {
	topic      string
	partition  int32
	media      string
	offset     int64  // -1 if from says it
	from       string // "" if offset says it
	wait       time.Duration
	minBytes   int
	maxBytes   int
	maxRecords int64
	form       string
	// clamped says that the client asked for more than maxBytes.
	clamped bool
}

func fetchParams(r *http.Request) (*fetchOptions, error) {
	o := &fetchOptions{offset: -1}
	var err error
	if o.topic, err = topicParam(r); err != nil {
		return nil, err
	}
	if o.partition, err = partitionParam(r); err != nil {
		return nil, err
	}
	ps, err := parseParams(r, "offset", "from", "wait", "min_bytes", "max_bytes", "max_records", "as")
	if err != nil {
		return nil, err
	}
	if err := o.place(ps); err != nil {
		return nil, err
	}
	if err := o.sizes(ps); err != nil {
		return nil, err
	}
	if o.wait, err = waitParam(r, ps); err != nil {
		return nil, err
	}
	if o.media, err = negotiate(r, mediaJSON, mediaNDJSON, mediaBatch); err != nil {
		return nil, err
	}
	if text, given := ps.get("as"); given {
		if o.form, err = ps.choice("as", formJSON, formString, formBase64); err != nil {
			return nil, err
		}
		if o.media == mediaBatch {
			return nil, invalidParameter("as", "does not apply to "+mediaBatch+": "+clip(text))
		}
	}
	if _, given := ps.get("max_records"); given && o.media == mediaBatch {
		return nil, invalidParameter("max_records", "does not apply to "+mediaBatch)
	}
	return o, nil
}

func (o *fetchOptions) place(ps params) (err error) {
	from, hasFrom := ps.get("from")
	_, hasOffset := ps.get("offset")
	switch {
	case hasFrom && hasOffset:
		return invalidParameter("from", "give offset or from, not both")
	case hasOffset:
		o.offset, err = ps.integer("offset", 0, math.MaxInt64, 0)
		return err
	case !hasFrom:
		return invalidParameter("offset", "offset or from is required")
	}
	o.from = from
	return checkFrom(from)
}

func (o *fetchOptions) sizes(ps params) error {
	least, err := ps.integer("min_bytes", 0, maxFetchSize, 1)
	if err != nil {
		return err
	}
	most, err := ps.integer("max_bytes", 0, math.MaxInt32, defaultFetchSize)
	if err != nil {
		return err
	}
	if most > maxFetchSize {
		most, o.clamped = maxFetchSize, true
	}
	o.minBytes, o.maxBytes = int(min(least, most)), int(most)
	o.maxRecords, err = ps.integer("max_records", 1, math.MaxInt32, math.MaxInt32)
	return err
}

// waitParam is how long to wait for records: by the parameter, or else by
// Prefer: wait=seconds (RFC 7240), cut to what is allowed.
func waitParam(r *http.Request, ps params) (time.Duration, error) {
	if text, given := ps.get("wait"); given {
		return seconds("wait", text, maxFetchWait)
	}
	if n, err := strconv.ParseUint(prefer(r, "wait"), 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, maxFetchWait), nil
	}
	return 0, nil
}

const (
	fromEarliest = "earliest"
	fromLatest   = "latest"
	fromTime     = "ts:"
	fromTail     = "tail:"
)

func checkFrom(from string) error {
	if text, ok := strings.CutPrefix(from, fromTime); ok {
		_, err := timestamp("from", text)
		return err
	}
	if text, ok := strings.CutPrefix(from, fromTail); ok {
		if _, err := strconv.ParseUint(text, 10, 63); err != nil {
			return invalidParameter("from", "want tail:N with a whole number N of records")
		}
		return nil
	}
	if from != fromEarliest && from != fromLatest {
		return invalidParameter("from", "want earliest, latest, ts:TIME or tail:N")
	}
	return nil
}

// start is the offset that the fetch begins at.
func (s *Server) start(ctx context.Context, r *http.Request, o *fetchOptions) (int64, error) {
	if o.from == "" {
		return o.offset, nil
	}
	list := func(times ...int64) ([]broker.OffsetResult, error) {
		queries := make([]broker.OffsetQuery, len(times))
		for i, t := range times {
			queries[i] = broker.OffsetQuery{Topic: o.topic, Partition: o.partition, Timestamp: t, Epoch: -1}
		}
		results := s.broker.ListOffsets(ctx, principal(r), queries)
		for i := range results {
			if err := results[i].Err; err != nil {
				return nil, err
			}
		}
		return results, nil
	}
	want := []int64{broker.OffsetEarliest, broker.OffsetLatest}
	if text, ok := strings.CutPrefix(o.from, fromTime); ok {
		ts, err := timestamp("from", text)
		if err != nil {
			return 0, err
		}
		want = append(want, ts)
	}
	found, err := list(want...)
	if err != nil {
		return 0, err
	}
	first, end := found[0].Offset, found[1].Offset
	switch {
	case o.from == fromEarliest:
		return first, nil
	case len(found) == 3 && found[2].Offset >= 0:
		return found[2].Offset, nil
	}
	if text, ok := strings.CutPrefix(o.from, fromTail); ok {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n < end-first {
			return end - n, nil
		}
		return first, nil
	}
	// latest, or a time that no record has reached: what comes next.
	return end, nil
}
