package contract

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/pb33f/jsonschema/v6"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi-validator/content"
)

const (
	// maxBody is the largest body whose content is checked.
	maxBody = 4 << 20
	// kept is how many items of a long list are checked at either end.
	kept = 32
)

// decoders read bodies for the validator: JSON with its numbers as they are, so that one beyond a float64 is none too many, and
// sequences, whose items are checked here, as the text that their schema says.
func decoders() []config.Option {
	asJSON := content.DecoderFunc(func(in *content.DecodeInput) (any, error) { return jsonschema.UnmarshalJSON(in.Body) })
	asText := content.DecoderFunc(func(in *content.DecodeInput) (any, error) {
		text, err := io.ReadAll(in.Body)
		return string(text), err
	})
	return []config.Option{
		config.WithBodyDecoder("application/json", asJSON), config.WithBodyDecoder(problemJSON, asJSON),
		config.WithBodyDecoder("application/merge-patch+json", asJSON), config.WithBodyDecoder("application/x-ndjson", asText),
		config.WithBodyDecoder("application/jsonl", asText),
	}
}

// mediaType is a media type without its parameters.
func mediaType(h http.Header) string {
	media, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return h.Get("Content-Type")
	}
	return media
}

// decoded is a body without its coding, at most a byte more than is checked.
func decoded(h http.Header, body []byte) ([]byte, error) {
	var r io.Reader
	switch coding := strings.ToLower(h.Get("Content-Encoding")); coding {
	case "", "identity":
		return body, nil
	case "gzip":
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, fmt.Errorf("a body that is no gzip: %w", err)
		}
		r = z
	case "zstd":
		z, err := zstd.NewReader(bytes.NewReader(body), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, fmt.Errorf("a body that is no zstd: %w", err)
		}
		defer z.Close()
		r = z
	default:
		return nil, fmt.Errorf("a body in the coding %q", coding)
	}
	text, err := io.ReadAll(io.LimitReader(r, maxBody+1))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) { // what was cut is as far as it goes
		return nil, err
	}
	return text, nil
}

// thin makes a JSON body shorter by its long lists, and takes numbers out of it that the validator cannot read, for what
// is beyond a float64 is a number all the same.
func thin(media string, body []byte) []byte {
	if !strings.HasSuffix(media, "json") {
		return body
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var value any
	if d.Decode(&value) != nil || d.More() {
		return body
	}
	text, err := json.Marshal(thinned(value))
	if err != nil {
		return body
	}
	return text
}

func thinned(v any) any {
	switch v := v.(type) {
	case []any:
		if len(v) > 2*kept {
			v = append(v[:kept:kept], v[len(v)-kept:]...)
		}
		for i := range v {
			v[i] = thinned(v[i])
		}
		return v
	case map[string]any:
		for name := range v {
			v[name] = thinned(v[name])
		}
	case json.Number:
		if _, err := v.Float64(); err != nil {
			return json.Number("0.5")
		}
	}
	return v
}

// items checks a sequence: lines of JSON, or server-sent events. What a cut left half at the end is none.
func (c *Contract) items(media string, spec map[string]any, body []byte) error {
	if media == "text/event-stream" {
		return c.events(spec, body)
	}
	whole := bytes.LastIndexByte(body, '\n') + 1
	lines := bytes.Split(body[:whole], []byte{'\n'})
	lines = lines[:len(lines)-1]
	for i, line := range lines {
		if i >= kept && i < len(lines)-kept {
			continue
		}
		if err := c.schemas.check(spec["x-item-schema"], line); err != nil {
			return fmt.Errorf("line %d: %w: %s", i+1, err, clip(string(line)))
		}
	}
	return nil
}

// events checks the data of each event whole by the schema for its name.
func (c *Contract) events(spec map[string]any, body []byte) error {
	named, _ := spec["x-event-schemas"].(map[string]any)
	whole := bytes.LastIndex(body, []byte("\n\n"))
	if whole < 0 {
		return nil
	}
	events := strings.Split(string(body[:whole]), "\n\n")
	for i, event := range events {
		if i >= kept && i < len(events)-kept {
			continue
		}
		schema := spec["x-item-schema"]
		var data []string
		for line := range strings.SplitSeq(event, "\n") {
			name, value, _ := strings.Cut(line, ":")
			value = strings.TrimPrefix(value, " ")
			switch name {
			case "event":
				var ok bool
				if schema, ok = named[value]; !ok {
					return fmt.Errorf("an event %q", value)
				}
			case "data":
				data = append(data, value)
			case "id", "retry", "":
			default:
				return fmt.Errorf("a field %q in an event", name)
			}
		}
		if data == nil {
			continue // an id or a comment alone
		}
		text := strings.Join(data, "\n")
		if err := c.schemas.check(schema, []byte(text)); err != nil {
			return fmt.Errorf("event %d: %w: %s", i, err, clip(text))
		}
	}
	return nil
}
