package rest

import (
	"mime"
	"net/http"
	"net/url"
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
		return formRaw, s.checkSimple(r, media)
	case event:
		return formEvent, nil
	}
	offers := []string{mediaJSON, mediaNDJSON, mediaBytes, api.MediaEvent, api.MediaEventBatch}
	if partition >= 0 {
		offers = append(offers, mediaBatch)
	}
	return requestMedia(w, r, "Accept-Post", offers...)
}

// checkSimple refuses a body that a page of another origin may send without
// having asked, by the type that a form or a plain fetch gives it.
func (s *Server) checkSimple(r *http.Request, media string) error {
	switch media {
	case "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data":
	default:
		return nil
	}
	origins := r.Header["Origin"]
	if len(origins) == 0 || len(origins) == 1 && s.origins.Allows(origins[0]) {
		return nil
	}
	if u, err := url.Parse(origins[0]); len(origins) == 1 && err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) {
		return nil
	}
	return &api.Problem{
		Status: http.StatusForbidden, Code: "origin_not_allowed", Title: "Origin not allowed",
		Detail: "a page of another origin may send this Content-Type only if the origin is among the allowed ones",
	}
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
