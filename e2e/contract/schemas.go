package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/pb33f/jsonschema/v6"
)

const (
	// base is the address that the document has for the compiler of schemas.
	base = "contract:openapi.json"
	// problemJSON is the media type of errors.
	problemJSON = "application/problem+json"
)

// problemSchema is the schema of errors.
var problemSchema = map[string]any{"$ref": "#/components/schemas/Problem"}

// schemas compiles the schemas of a document, each once.
type schemas struct {
	mu       sync.Mutex
	compiler *jsonschema.Compiler
	cache    map[string]*jsonschema.Schema // by their text
}

func newSchemas(doc map[string]any) (*schemas, error) {
	value, err := asJSON(doc)
	if err != nil {
		return nil, err
	}
	s := &schemas{compiler: jsonschema.NewCompiler(), cache: map[string]*jsonschema.Schema{}}
	s.compiler.DefaultDraft(jsonschema.Draft2020)
	return s, s.compiler.AddResource(base, value)
}

// asJSON makes of what was read from YAML what the compiler takes.
func asJSON(v any) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(text))
}

// compile takes a schema of the document, with references as they stand there.
func (s *schemas) compile(schema any) (*jsonschema.Schema, error) {
	text, err := json.Marshal(absolute(schema))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if done, ok := s.cache[string(text)]; ok {
		return done, nil
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	at := fmt.Sprintf("contract:%d", len(s.cache))
	if err := s.compiler.AddResource(at, value); err != nil {
		return nil, err
	}
	done, err := s.compiler.Compile(at)
	if err == nil {
		s.cache[string(text)] = done
	}
	return done, err
}

// absolute is a schema whose references name the document.
func absolute(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, member := range v {
			if ref, ok := member.(string); ok && name == "$ref" {
				out[name] = base + strings.TrimPrefix(ref, base)
				continue
			}
			out[name] = absolute(member)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = absolute(v[i])
		}
		return out
	}
	return v
}

// check says how a JSON text does not fit a schema.
func (s *schemas) check(schema any, text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("no JSON: %w", err)
	}
	return s.checkValue(schema, value)
}

func (s *schemas) checkValue(schema, value any) error {
	compiled, err := s.compile(schema)
	if err != nil {
		return err
	}
	return compiled.Validate(value)
}

// checkText checks the text of a parameter: as the number that it is where the schema wants one.
func (s *schemas) checkText(schema any, text string) error {
	var value any = text
	if m, _ := schema.(map[string]any); m["type"] == "integer" {
		if _, err := strconv.ParseInt(text, 10, 64); err == nil {
			value = json.Number(text)
		}
	}
	return s.checkValue(schema, value)
}
