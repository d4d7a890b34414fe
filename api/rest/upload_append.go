package rest

import (
	"bytes"
	"errors"
	"slices"

	"leat/api"
	"leat/broker"
)

// append appends the first n bytes of the buffer, which are whole lines, and
// queues them for their receipt. If a line is bad, those before it are appended
// and its error is returned.
func (u *upload) append(n int) error {
	if n == 0 {
		return nil
	}
	for text := u.buf.bytes[:n]; len(text) > 0; {
		lines := text[:len(text)-len(api.FromLine(text, uploadLines+1))]
		part, err := u.parse(lines)
		if part != nil {
			u.queue <- *part
			u.at.Records += part.count
		}
		if err != nil {
			return err
		}
		u.at.Lines += bytes.Count(lines, []byte{'\n'})
		u.at.Bytes += int64(len(lines))
		text = text[len(lines):]
	}
	u.whole = 0
	if rest := len(u.buf.bytes) - n; rest > 0 {
		copy(u.buf.bytes, u.buf.bytes[n:])
		u.buf.bytes = u.buf.bytes[:rest]
	} else {
		// An upload that waits for lines has no buffer for them.
		u.buf.release()
	}
	return nil
}

// parse appends the records of text up to the first that is bad. part is nil if
// there is none.
func (u *upload) parse(text []byte) (part *uploaded, err error) {
	if u.unmade {
		found, err := u.rehearse(text)
		if err != nil || !found {
			return nil, err
		}
		u.unmade = false
	}
	set, err := u.s.broker.NewRecordSet(u.r.Context(), principal(u.r), u.topic)
	if err != nil {
		return nil, err
	}
	rs := &api.Records{Sink: set, Route: u.partition, Now: set.Now(), Key: u.key}
	var bad error
	if u.lines && u.partition < 0 && u.key == nil && u.receipts != receiptsFull {
		set, bad, err = u.addLines(set, rs, text)
	} else if err = api.ParsePart(rs, text, u.lines); err == nil && rs.Bad() {
		rs.Shift(u.at, text)
		bad = rs.Finish()
	}
	if set == nil {
		return nil, errors.Join(bad, err)
	}
	defer set.Close()
	if err == nil && set.Len() > 0 {
		part, err = u.send(set, rs)
	}
	return part, errors.Join(bad, err)
}

// rehearse reports whether there is a record in text to make the topic for, before
// the first line that is bad. It fails if that comes first.
func (u *upload) rehearse(text []byte) (found bool, err error) {
	err = u.try(func(rs *api.Records) error {
		rs.Key = u.key
		if err := api.ParsePart(rs, text, u.lines); err != nil {
			return err
		}
		if found = len(rs.Times) > 0; found || !rs.Bad() {
			return nil
		}
		rs.Shift(u.at, text)
		return rs.Finish()
	})
	return found, err
}

// addLines is the fast lane. A set that refused a line is good for nothing more,
// so another takes the lines before it.
func (u *upload) addLines(set *broker.RecordSet, rs *api.Records, text []byte) (_ *broker.RecordSet, bad, err error) {
	err = set.AddLines(text)
	le, ok := errors.AsType[*broker.LineError](err)
	if !ok {
		return set, nil, err
	}
	rs.Count = le.Line + 1
	rs.Refuse(&api.ItemError{Index: &le.Line, Line: le.Line + 1}, le.Err)
	good := text[:len(text)-len(api.FromLine(text, le.Line+1))]
	rs.Shift(u.at, text)
	bad = rs.Finish()
	set.Close()
	if set, err = u.s.broker.NewRecordSet(u.r.Context(), principal(u.r), u.topic); err == nil {
		err = set.AddLines(good)
	}
	return set, bad, err
}

// send appends a set without waiting for any sync.
func (u *upload) send(set *broker.RecordSet, rs *api.Records) (*uploaded, error) {
	pending, err := set.Append(u.r.Context(), u.acks)
	if err != nil {
		return nil, err
	}
	part := &uploaded{first: u.at.Records, count: set.Len(), pending: pending}
	if u.receipts == receiptsFull {
		part.placement, part.times = slices.Clone(set.Placement()), rs.Times
	}
	return part, nil
}
