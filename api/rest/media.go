package rest

import (
	"mime"
	"net/http"
	"strconv"
	"strings"

	"leat/api"
)

// The media types of the door.
const (
	mediaJSON   = "application/json"
	mediaNDJSON = "application/x-ndjson"
	mediaJSONL  = "application/jsonl"
	mediaBytes  = "application/octet-stream"
	mediaBatch  = "application/vnd.leat.recordbatch"
	mediaEvents = "text/event-stream"
	mediaMerge  = "application/merge-patch+json"
)

// requestMedia is the request's Content-Type if it is one of offers, without
// its parameters, of which charset may only be utf-8. header is what tells the
// client which there are.
func requestMedia(w *responseWriter, r *http.Request, header string, offers ...string) (string, error) {
	if len(r.Header["Content-Type"]) > 1 {
		return "", contentTypeTwice()
	}
	given := r.Header.Get("Content-Type")
	media, args, err := mime.ParseMediaType(given)
	if media == mediaJSONL {
		media = mediaNDJSON
	}
	for _, offer := range offers {
		if err == nil && media == offer && utf8Only(args) {
			return media, nil
		}
	}
	list := strings.Join(offers, ", ")
	if header != "" {
		w.Header().Set(header, list)
	}
	detail := "Content-Type is missing; this route takes " + list
	if !utf8Only(args) {
		detail = "Content-Type " + strconv.Quote(api.Clip(given)) + " is not taken here: the only charset is utf-8"
	} else if given != "" {
		detail = "Content-Type " + strconv.Quote(api.Clip(given)) + " is not taken here; this route takes " + list
	}
	return "", &api.Problem{
		Status: http.StatusUnsupportedMediaType, Code: "unsupported_media_type", Title: "Unsupported media type",
		Detail: detail,
	}
}

func contentTypeTwice() *api.Problem {
	return &api.Problem{
		Status: http.StatusBadRequest, Code: "invalid_request", Title: "Invalid request",
		Detail: "Content-Type is given more than once",
	}
}

// utf8Only reports whether the parameters of a media type name no charset but
// UTF-8.
func utf8Only(args map[string]string) bool {
	charset, given := args["charset"]
	return !given || strings.EqualFold(charset, "utf-8")
}

// negotiate picks the offer that the Accept header likes best, the first of
// equals (RFC 9110 section 12.5.1). Without a header, or with an empty one, it
// is the first.
func negotiate(r *http.Request, offers ...string) (string, error) {
	accept := strings.Join(r.Header["Accept"], ",")
	if strings.Trim(accept, ", \t") == "" {
		return offers[0], nil
	}
	best, bestQ := "", 0.0
	for _, offer := range offers {
		if q := quality(accept, offer); q > bestQ {
			best, bestQ = offer, q
		}
	}
	if best == "" {
		return "", &api.Problem{
			Status: http.StatusNotAcceptable, Code: "not_acceptable", Title: "Not acceptable",
			Detail: "this route answers with " + strings.Join(offers, ", "),
		}
	}
	return best, nil
}

// quality is how much accept likes media: the q of the most specific range
// that covers it, 0 if none does.
func quality(accept, media string) float64 {
	q, specific := 0.0, -1
	for item := range strings.SplitSeq(accept, ",") {
		span, args, err := mime.ParseMediaType(item)
		if err != nil {
			continue
		}
		level := -1
		switch {
		case span == media, span == mediaJSONL && media == mediaNDJSON:
			level = 2
		case strings.HasSuffix(span, "/*") && strings.HasPrefix(media, span[:len(span)-1]):
			level = 1
		case span == "*/*":
			level = 0
		}
		if level <= specific {
			continue
		}
		specific, q = level, 1
		if text, ok := args["q"]; ok {
			q = qvalue("q=" + text)
		}
	}
	return q
}
