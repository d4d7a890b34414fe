package rest

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json/jsontext"

	"leat/api"
	"leat/broker"
)

// Whatever the query, reading it neither panics nor takes a value out of range.
func FuzzParams(f *testing.F) {
	for _, seed := range []string{
		"offset=0", "from=tail:5&wait=20", "from=ts:2026-01-02T03:04:05Z&max_bytes=1", "wait=1e9", "offset=0&offset=0", "%zz", "a=b;c", "&&=", "offset=%30&wait=.5s", "wait=NaN",
		"partitions=0,2&from=latest&stream=true", "last_event_id=5", "batch=false&on_gap=latest&topic_id=x", "cursor=AQ",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{RawQuery: query}, Header: http.Header{}}
		rctx := chi.NewRouteContext()
		rctx.URLParams.Add("topic", "t")
		rctx.URLParams.Add("partition", "3")
		r = r.WithContext(context.WithValue(t.Context(), chi.RouteCtxKey, rctx))
		for _, accept := range []string{mediaJSON, mediaNDJSON, mediaBatch, mediaEvents} {
			r.Header.Set("Accept", accept)
			for _, whole := range []bool{false, true} {
				o, err := readParams(r, whole)
				if err != nil {
					p, ok := errors.AsType[*api.Problem](err)
					if !ok || p.Status/100 != 4 || p.Code != "invalid_parameter" && p.Code != "bad_cursor" && p.Code != "not_acceptable" {
						t.Fatalf("%q: %#v", query, err)
					}
					continue
				}
				if o.wait < 0 || o.wait > maxFetchWait || o.minBytes < 0 || o.minBytes > o.maxBytes || o.maxBytes > maxFetchSize ||
					!o.stream && o.maxRecords < 1 || o.whole() != whole || o.offset < -1 || o.batch && !o.stream || o.onGap == "" {
					t.Fatalf("%q: %+v", query, o)
				}
			}
		}
	})
}

// Whatever the segment, it is a topic name as it stands or an error; it never
// becomes a path.
func FuzzTopicPath(f *testing.F) {
	for _, seed := range []string{"a", "a.b", "a%2Eb", "..", "%2e%2e", "a%2Fb", "%00", "%", "%zz", strings.Repeat("x", 250), "", "ü"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, segment string) {
		name, err := parseTopic(segment)
		if err != nil {
			if !errors.Is(err, broker.ErrInvalidTopic) {
				t.Fatalf("%q: %v", segment, err)
			}
			return
		}
		if name == "" || name == "." || name == ".." || len(name) > 249 || strings.ContainsAny(name, "/\\%\x00 ") {
			t.Fatalf("%q is taken as %q", segment, name)
		}
		if again, err := parseTopic(url.PathEscape(name)); err != nil || again != name {
			t.Fatalf("%q: %q, %v", name, again, err)
		}
	})
}

// Whatever the text, a wait is within its bounds or an error.
func FuzzSeconds(f *testing.F) {
	for _, seed := range []string{"20", "0.5", ".5s", "500ms", "1m", "NaN", "1e3", "0x1p-2", "1_0", "", "s", "99999999999999999999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := seconds("wait", text, time.Minute); err == nil && (d < 0 || d > time.Minute) {
			t.Fatalf("%q is %v", text, d)
		}
	})
}

// Whatever the header, its tags are entity tags that say the same when they are
// read again, or it is an error; a condition is never taken for none.
func FuzzTags(f *testing.F) {
	for _, seed := range []string{`"a"`, `*`, `W/"a", "b"`, `"a" "b"`, `"`, ``, `,`, `"a",`, `"a,b"`, `w/"a"`, "\"a\"\t,\"b\"", `*,"a"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		read := func(text string) (*tagList, error) {
			return readTags(&http.Request{Header: http.Header{"If-Match": {text}}}, "If-Match")
		}
		list, err := read(text)
		if err != nil {
			return
		}
		if list == nil || !list.any && len(list.tags) == 0 {
			t.Fatalf("%q is no condition", text)
		}
		for _, tag := range list.tags {
			if opaque := strings.TrimPrefix(tag, "W/"); len(opaque) < 2 || strings.Count(opaque, `"`) != 2 || opaque[0] != '"' || opaque[len(opaque)-1] != '"' {
				t.Fatalf("%q has the tag %q", text, tag)
			}
		}
		if again, err := read(strings.Join(list.tags, ", ")); !list.any && (err != nil || !slices.Equal(again.tags, list.tags)) {
			t.Fatalf("%q: %v, then %v, %v", text, list, again, err)
		}
	})
}

// Whatever the JSON value, it is an offset or an error, and an offset is what it
// says.
func FuzzOffsetValue(f *testing.F) {
	for _, seed := range []string{`7`, `"7"`, `-1`, `1.5`, `1e3`, `"tank"`, `null`, `9223372036854775808`, `"\u0037"`, `[]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !jsontext.Value(text).IsValid() {
			return
		}
		if n, err := offsetValue("offset", jsontext.Value(text)); err == nil && (n < 0 || plainText(jsontext.Value(text)) != strconv.FormatInt(n, 10)) {
			t.Fatalf("%q is %d", text, n)
		}
	})
}
