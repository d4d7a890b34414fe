package rest

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// document is the contract in one of its forms.
type document struct {
	media string
	text  []byte
	tag   string
	err   error
}

// documents makes the forms of the contract, each when it is first asked for.
func documents(text []byte) (asYAML, asJSON func() document) {
	asYAML = sync.OnceValue(func() document {
		return document{media: "application/yaml", text: text, tag: entityTag(text)}
	})
	asJSON = sync.OnceValue(func() document {
		out, err := yamlToJSON(text)
		return document{media: mediaJSON, text: out, tag: entityTag(out), err: err}
	})
	return asYAML, asJSON
}

func (s *Server) getOpenAPI(w *responseWriter, r *http.Request) error {
	return s.getDocument(w, r, s.asYAML)
}

func (s *Server) getOpenAPIJSON(w *responseWriter, r *http.Request) error {
	return s.getDocument(w, r, s.asJSON)
}

func (s *Server) getDocument(w *responseWriter, r *http.Request, form func() document) error {
	if s.opts.OpenAPI == nil {
		return s.notFound(w, r)
	}
	c, err := readConditions(r)
	if err != nil {
		return err
	}
	d := form()
	if d.err != nil {
		return d.err
	}
	none := c.noneMatch
	c.noneMatch = nil
	if err := c.check(d.tag, true); err != nil {
		return err
	}
	h := w.Header()
	h.Set("ETag", d.tag)
	h.Set("Cache-Control", "no-cache")
	if none != nil && none.has(d.tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	h.Set("Content-Type", d.media)
	h.Set("Content-Length", strconv.Itoa(len(d.text)))
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		// A client that is gone cannot be told.
		_, _ = w.Write(d.text)
	}
	return nil
}

// yamlToJSON writes a YAML document as JSON, its members in the same order.
// Names of members are text there, and merge keys are not known.
func yamlToJSON(text []byte) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	return appendJSON(nil, &doc)
}

func appendJSON(out []byte, n *yaml.Node) (_ []byte, err error) {
	switch n.Kind {
	case yaml.DocumentNode:
		return appendJSON(out, n.Content[0])
	case yaml.AliasNode:
		return appendJSON(out, n.Alias)
	case yaml.MappingNode:
		out = append(out, '{')
		for i := 0; i < len(n.Content) && err == nil; i += 2 {
			if i > 0 {
				out = append(out, ',')
			}
			if out, err = jsontext.AppendQuote(out, n.Content[i].Value); err == nil {
				out, err = appendJSON(append(out, ':'), n.Content[i+1])
			}
		}
		return append(out, '}'), err
	case yaml.SequenceNode:
		out = append(out, '[')
		for i := 0; i < len(n.Content) && err == nil; i++ {
			if i > 0 {
				out = append(out, ',')
			}
			out, err = appendJSON(out, n.Content[i])
		}
		return append(out, ']'), err
	case yaml.ScalarNode:
		return appendScalar(out, n)
	default:
		return nil, fmt.Errorf("rest: YAML node of kind %d in line %d", n.Kind, n.Line)
	}
}

func appendScalar(out []byte, n *yaml.Node) ([]byte, error) {
	switch n.ShortTag() {
	case "!!null":
		return append(out, "null"...), nil
	case "!!bool":
		var b bool
		err := n.Decode(&b)
		return strconv.AppendBool(out, b), err
	case "!!int":
		var i int64
		err := n.Decode(&i)
		return strconv.AppendInt(out, i, 10), err
	case "!!float":
		var f float64
		err := n.Decode(&f)
		return strconv.AppendFloat(out, f, 'g', -1, 64), err
	default:
		return jsontext.AppendQuote(out, n.Value)
	}
}
