package rest

import (
	"mime"
	"net/http"
	"strings"

	"leat/api"
)

// The forms of a produce's body that are no media type: the headers or the query
// say that it is one value, whatever its type.
const (
	formRaw   = "raw"
	formEvent = "a CloudEvent in binary mode"
)

// produceMedia finds out what the body of a produce is: a media type of this
// route, or one of the forms above.
func (s *Server) produceMedia(w *responseWriter, r *http.Request, partition int32, raw bool) (string, error) {
	media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	event := hasEventHeaders(r.Header) && !strings.HasPrefix(media, "application/cloudevents")
	if (raw || event) && len(r.Header["Content-Type"]) > 1 {
		return "", contentTypeTwice()
	}
	switch {
	case raw && event:
		return "", api.InvalidParameter("raw", "does not apply to a CloudEvent, which the ce- headers say that this is")
	case raw:
		return formRaw, nil
	case event:
		return formEvent, nil
	}
	offers := []string{mediaJSON, mediaNDJSON, mediaBytes, api.MediaEvent, api.MediaEventBatch}
	if partition >= 0 {
		offers = append(offers, mediaBatch)
	}
	return requestMedia(w, r, "Accept-Post", offers...)
}

// parse reads the whole body into rs and says what is wrong with it.
func (p *production) parse(rs *api.Records) error {
	var err error
	switch {
	case p.lines:
		rs.Key = p.key
		err = api.ParseLines(rs, p.text)
	case p.media == mediaJSON:
		err = api.ParseJSON(rs, p.text)
	case p.media == mediaNDJSON:
		err = api.ParseNDJSON(rs, p.text)
	case p.media == api.MediaEvent:
		err = api.ParseEvent(rs, p.text)
	case p.media == api.MediaEventBatch:
		err = api.ParseEvents(rs, p.text)
	case p.media == formEvent:
		parseEventHeaders(rs, p.r.Header, p.text)
	default:
		err = parseBytes(rs, p.r, p.text, p.media == formRaw)
	}
	if err != nil {
		return err
	}
	return rs.Finish()
}
