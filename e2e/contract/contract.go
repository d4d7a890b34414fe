// Package contract holds exchanges with the HTTP door against openapi.yaml, for the tests of the door and of the binary:
// nothing but tests imports it, and it imports nothing of ours.
//
// libopenapi-validator reads the contract and checks parameters, headers and JSON bodies. It takes a body for one value, so
// what is a sequence of values (lines of JSON, server-sent events) is checked here, item by item, against the extensions of
// the media type: x-item-schema, for the data of an event without a name or for a line, and x-event-schemas, by the name of
// an event.
//
// # Rules
//
//   - Every answer of a path and method of the contract must be one that the contract has, in status, media type, headers and body.
//   - Every other answer must be a problem.
//   - A request that was answered by less than 400 must fit its schema too: the server takes what the contract allows, and
//     nothing else. One that was refused may be anything.
//   - Bodies in a coding (gzip, zstd) are decoded first. Lists of more than 64 items are thinned to the first and last 32, bodies of
//     more than 4 MiB are checked by status, media type and headers alone.
package contract

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	verrors "github.com/pb33f/libopenapi-validator/errors"
	"go.yaml.in/yaml/v3"
)

// Contract is an OpenAPI document that exchanges can be checked against. It is safe for concurrent use.
type Contract struct {
	doc       map[string]any
	paths     []path
	schemas   *schemas
	validator validator.Validator
}

// path is one of the contract's, cut into segments.
type path struct {
	template string
	segments []string
	item     map[string]any
}

// New reads a document. It does not say whether that is valid: Lint does.
func New(text []byte) (*Contract, error) {
	c := &Contract{}
	if err := yaml.Unmarshal(text, &c.doc); err != nil {
		return nil, err
	}
	var err error
	if c.schemas, err = newSchemas(c.doc); err != nil {
		return nil, err
	}
	items, ok := c.doc["paths"].(map[string]any)
	if !ok {
		return nil, errors.New("a document without paths")
	}
	for _, template := range slices.Sorted(maps.Keys(items)) {
		item, _ := items[template].(map[string]any)
		c.paths = append(c.paths, path{template, strings.Split(template, "/"), item})
	}
	document, err := libopenapi.NewDocument(text)
	if err != nil {
		return nil, err
	}
	var errs []error
	if c.validator, errs = validator.NewValidator(document, decoders()...); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return c, nil
}

// Exchange is a request and its answer.
type Exchange struct {
	Request *http.Request
	// Sent is the body of the request; nil if it is not known.
	Sent []byte
	// Response is the answer; its Body is not read.
	Response *http.Response
	// Body is what was read of the answer's body.
	Body []byte
	// Cut says that the body was not read to its end.
	Cut bool
}

// Check says how an exchange breaks the contract; nil if it does not.
func (c *Contract) Check(x *Exchange) error {
	err := c.check(x)
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %d %s breaks the contract: %w\n%s", x.Request.Method, clip(x.Request.URL.RequestURI()),
		x.Response.StatusCode, x.Response.Header.Get("Content-Type"), err, clip(string(x.Body)))
}

func (c *Contract) check(x *Exchange) error {
	method := x.Request.Method
	at, values, ok := c.find(x.Request.URL.EscapedPath())
	if !ok {
		return c.outside(x)
	}
	if _, own := at.item[strings.ToLower(method)]; !own {
		if method != http.MethodHead || at.item["get"] == nil {
			return c.outside(x)
		}
	}
	// The path as the contract has it, with values that fit any parameter: the validator takes escapes apart before it
	// looks for the path. The values themselves are checked here.
	request := x.Request.Clone(x.Request.Context())
	request.URL = &url.URL{Scheme: "http", Host: "x", Path: fill(at.template), RawQuery: x.Request.URL.RawQuery}
	request.Body = http.NoBody
	if method == http.MethodHead {
		return c.head(at, x)
	}
	body, err := decoded(x.Response.Header, x.Body)
	if err != nil {
		return err
	}
	errs := []error{c.answer(request, at, x, body)}
	if x.Response.StatusCode < http.StatusBadRequest {
		errs = append(errs, c.values(at, values), c.request(request, x))
	}
	return errors.Join(errs...)
}

// outside checks the answer to what the contract does not have.
func (c *Contract) outside(x *Exchange) error {
	if x.Response.StatusCode < http.StatusBadRequest {
		if x.Request.Method == http.MethodOptions && x.Response.StatusCode == http.StatusNoContent {
			return nil // a preflight
		}
		return errors.New("a path or method that it does not have is served")
	}
	if x.Request.Method == http.MethodHead || x.Cut {
		return nil
	}
	if media := mediaType(x.Response.Header); media != problemJSON {
		return fmt.Errorf("an error as %q", media)
	}
	return c.schemas.check(problemSchema, x.Body)
}

// head checks that the answer to HEAD has a status that GET may have, and no body.
func (c *Contract) head(at *path, x *Exchange) error {
	if len(x.Body) != 0 {
		return errors.New("HEAD with a body")
	}
	operation, ok := at.item["head"].(map[string]any)
	if !ok {
		operation, _ = at.item["get"].(map[string]any)
	}
	answers, _ := operation["responses"].(map[string]any)
	if _, ok := answers[fmt.Sprint(x.Response.StatusCode)]; !ok && answers["default"] == nil {
		return errors.New("a status that it does not have")
	}
	return nil
}

// answer checks status, headers and body.
func (c *Contract) answer(request *http.Request, at *path, x *Exchange, body []byte) error {
	response := *x.Response
	media := mediaType(x.Response.Header)
	content := c.content(at, request.Method, x.Response.StatusCode)[media]
	_, sequence := content["x-item-schema"]
	switch {
	case sequence:
		response.Body = io.NopCloser(strings.NewReader("text, as the schema says"))
		if err := c.items(media, content, body); err != nil {
			return err
		}
	case x.Cut || len(body) > maxBody:
		if c.content(at, request.Method, x.Response.StatusCode) != nil && content == nil && media != "" {
			return fmt.Errorf("the media type %q", media)
		}
		return nil
	default:
		response.Body = io.NopCloser(bytes.NewReader(thin(media, body)))
	}
	ok, errs := c.validator.ValidateHttpResponse(request, &response)
	return joined(ok, errs)
}

// request checks the parameters and the body of a request that the server took.
func (c *Contract) request(request *http.Request, x *Exchange) error {
	media := mediaType(x.Request.Header)
	sent := x.Sent
	if sent != nil {
		var err error
		if sent, err = decoded(x.Request.Header, sent); err != nil {
			return err
		}
	}
	parameters := c.validator.GetParameterValidator()
	for _, check := range []func(*http.Request) (bool, []*verrors.ValidationError){parameters.ValidateQueryParams, parameters.ValidateHeaderParams} {
		if err := joined(check(request)); err != nil {
			return fmt.Errorf("the request was taken: %w", err)
		}
	}
	if sent == nil || len(sent) > maxBody || opaque(x.Request) {
		return nil
	}
	at, _, _ := c.find(request.URL.EscapedPath())
	if content := c.requestContent(at, request.Method)[media]; content["x-item-schema"] != nil {
		if x.Request.URL.Query().Get("value") == "line" {
			return nil // a line is a value, whatever it is
		}
		return c.items(media, content, sent)
	}
	request.Body = io.NopCloser(bytes.NewReader(thin(media, sent)))
	if err := joined(c.validator.GetRequestBodyValidator().ValidateRequestBody(request)); err != nil {
		return fmt.Errorf("the request was taken: %w", err)
	}
	return nil
}

// opaque reports whether the body of a request is a value, whatever its media type: in CloudEvents' binary mode, and where the
// client says so.
func opaque(r *http.Request) bool {
	return r.Header.Get("Ce-Specversion") != "" || r.URL.Query().Get("raw") == "true"
}

// values checks the parameters of the path.
func (c *Contract) values(at *path, values map[string]string) error {
	parameters, _ := at.item["parameters"].([]any)
	for _, p := range parameters {
		parameter := c.deref(p)
		name, _ := parameter["name"].(string)
		if parameter["in"] != "path" {
			continue
		}
		if err := c.schemas.checkText(parameter["schema"], values[name]); err != nil {
			return fmt.Errorf("the request was taken: %s: %w", name, err)
		}
	}
	return nil
}

// find is the path of the contract that a request is for, with its parameters.
func (c *Contract) find(escaped string) (at *path, values map[string]string, ok bool) {
	segments := strings.Split(escaped, "/")
	for i := range c.paths {
		p := &c.paths[i]
		if len(p.segments) != len(segments) {
			continue
		}
		found := map[string]string{}
		literals := 0
		for j, template := range p.segments {
			if !match(template, segments[j], found) {
				literals = -1
				break
			}
			if !strings.Contains(template, "{") {
				literals++
			}
		}
		// A literal segment stands above a parameter, as in the router.
		if literals >= 0 && (at == nil || literals > count(at)) {
			at, values = p, found
		}
	}
	return at, values, at != nil
}

func count(p *path) (literals int) {
	for _, s := range p.segments {
		if !strings.Contains(s, "{") {
			literals++
		}
	}
	return literals
}

// match compares one segment: text, {name}, or {name} with text around it.
func match(template, segment string, values map[string]string) bool {
	open, end := strings.IndexByte(template, '{'), strings.IndexByte(template, '}')
	if open < 0 {
		return template == segment
	}
	before, name, after := template[:open], template[open+1:end], template[end+1:]
	if len(segment) <= len(before)+len(after) || !strings.HasPrefix(segment, before) || !strings.HasSuffix(segment, after) {
		return false
	}
	value, err := url.PathUnescape(segment[len(before) : len(segment)-len(after)])
	if err != nil {
		return false
	}
	values[name] = value
	return true
}

// fill puts a value into each parameter of a path.
func fill(template string) string {
	segments := strings.Split(template, "/")
	for i, s := range segments {
		if open, end := strings.IndexByte(s, '{'), strings.IndexByte(s, '}'); open >= 0 {
			segments[i] = s[:open] + "0" + s[end+1:]
		}
	}
	return strings.Join(segments, "/")
}

// content is what an operation answers with a status, by media type.
func (c *Contract) content(at *path, method string, status int) map[string]map[string]any {
	operation := c.deref(at.item[strings.ToLower(method)])
	answers, _ := operation["responses"].(map[string]any)
	answer, ok := answers[fmt.Sprint(status)]
	if !ok {
		answer = answers["default"]
	}
	return mediaTypes(c.deref(answer))
}

// requestContent is what an operation takes, by media type.
func (c *Contract) requestContent(at *path, method string) map[string]map[string]any {
	operation := c.deref(at.item[strings.ToLower(method)])
	return mediaTypes(c.deref(operation["requestBody"]))
}

func mediaTypes(of map[string]any) map[string]map[string]any {
	content, _ := of["content"].(map[string]any)
	if content == nil {
		return nil
	}
	out := map[string]map[string]any{}
	for media, v := range content {
		out[media], _ = v.(map[string]any)
	}
	return out
}

// deref follows references within the document.
func (c *Contract) deref(v any) map[string]any {
	m, _ := v.(map[string]any)
	for {
		ref, ok := m["$ref"].(string)
		if !ok {
			return m
		}
		var at any = c.doc
		for name := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
			parent, _ := at.(map[string]any)
			at = parent[strings.NewReplacer("~1", "/", "~0", "~").Replace(name)]
		}
		m, _ = at.(map[string]any)
	}
}

func joined(ok bool, errs []*verrors.ValidationError) error {
	if ok {
		return nil
	}
	var out []error
	for _, e := range errs {
		text := []string{e.Message + ": " + e.Reason}
		for _, s := range e.SchemaValidationErrors {
			text = append(text, s.FieldPath+" "+s.Reason)
		}
		out = append(out, errors.New(strings.Join(text, "; ")))
	}
	return errors.Join(out...)
}

func clip(s string) string {
	const most = 400
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
