package rest

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"leat/api"
)

// params are the parameters of one request's query, checked to be known and
// given once. Names are few, so they stand in a slice.
type params []param

type param struct{ name, value string }

// parseParams reads the query. A name that is not in known, or comes twice, is
// an error: a typo must not pass for a default.
func parseParams(r *http.Request, known ...string) (params, error) {
	var ps params
	for query := r.URL.RawQuery; query != ""; {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		if pair == "" {
			continue
		}
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(rawName)
		if err != nil {
			return nil, api.InvalidParameter(api.Clip(rawName), "bad percent escape in the name")
		}
		value, err := url.QueryUnescape(rawValue)
		if err != nil {
			return nil, api.InvalidParameter(api.Clip(name), "bad percent escape in the value")
		}
		if !slices.Contains(known, name) {
			takes := "none"
			if len(known) > 0 {
				takes = strings.Join(known, ", ")
			}
			return nil, api.InvalidParameter(api.Clip(name), "unknown parameter; this route takes "+takes)
		}
		if _, dup := ps.get(name); dup {
			return nil, api.InvalidParameter(name, "given more than once")
		}
		ps = append(ps, param{name, value})
	}
	return ps, nil
}

func (ps params) get(name string) (string, bool) {
	for i := range ps {
		if ps[i].name == name {
			return ps[i].value, true
		}
	}
	return "", false
}

// integer is the parameter name in [least, most], or def where it is not given.
func (ps params) integer(name string, least, most, def int64) (int64, error) {
	text, ok := ps.get(name)
	if !ok {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least || n > most || text[0] == '+' {
		return 0, api.InvalidParameter(name, fmt.Sprintf("want a whole number from %d to %d", least, most))
	}
	return n, nil
}

// choice is the parameter name, one of values, or the first of them where it
// is not given.
func (ps params) choice(name string, values ...string) (string, error) {
	text, ok := ps.get(name)
	if !ok {
		return values[0], nil
	}
	if !slices.Contains(values, text) {
		return "", api.InvalidParameter(name, "want one of "+strings.Join(values, ", "))
	}
	return text, nil
}

func (ps params) boolean(name string) (bool, error) {
	text, err := ps.choice(name, "false", "true")
	return text == "true", err
}

// seconds reads a time span: a number of seconds, with decimals at will, or a
// number with the unit ms, s or m.
func seconds(name, text string, most time.Duration) (time.Duration, error) {
	number, unit := text, time.Second
	for _, u := range []struct {
		suffix string
		unit   time.Duration
	}{{"ms", time.Millisecond}, {"s", time.Second}, {"m", time.Minute}} {
		if n, ok := strings.CutSuffix(text, u.suffix); ok {
			number, unit = n, u.unit
			break
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	span := n * float64(unit)
	if err != nil || strings.Trim(number, "0123456789.") != "" || span > float64(most) {
		return 0, api.InvalidParameter(name, fmt.Sprintf("want seconds from 0 to %g, or a number with ms, s or m", most.Seconds()))
	}
	return time.Duration(math.Round(span)), nil
}

// timestamp reads milliseconds since 1970 or RFC 3339.
func timestamp(name, text string) (int64, error) {
	ms, ok := api.ParseTimestamp(text)
	if !ok {
		return 0, api.InvalidParameter(name, "want milliseconds since 1970, or a time as in RFC 3339")
	}
	return ms, nil
}

// prefer is the value of one preference of the Prefer header (RFC 7240), or
// "". Preferences that cannot be read are ignored, as the RFC says.
func prefer(r *http.Request, name string) string {
	for _, line := range r.Header["Prefer"] {
		for item := range strings.SplitSeq(line, ",") {
			item, _, _ = strings.Cut(item, ";")
			key, value, _ := strings.Cut(item, "=")
			if strings.EqualFold(strings.TrimSpace(key), name) {
				return strings.Trim(strings.TrimSpace(value), `"`)
			}
		}
	}
	return ""
}
