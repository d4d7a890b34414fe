package rest

import (
	"net/http"
	"reflect"
	"testing"

	"github.com/go-json-experiment/json"
	"go.yaml.in/yaml/v3"
)

// The contract is served in both forms, which say the same, with a tag each.
func TestOpenAPIForms(t *testing.T) {
	d := openDoor(t)
	asYAML := d.do(http.MethodGet, "/openapi.yaml", nil).want(t, 200, "")
	asJSON := d.do(http.MethodGet, "/openapi.json", nil).want(t, 200, "")
	if string(asYAML.body) != string(contractText()) {
		t.Error("openapi.yaml is served otherwise than it is")
	}
	var read, fromYAML, fromJSON any
	if err := yaml.Unmarshal(asYAML.body, &read); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(read)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &fromYAML); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(asJSON.body, &fromJSON); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(fromYAML, fromJSON) {
		t.Error("openapi.json says something else than openapi.yaml")
	}
	for _, a := range []*answer{asYAML, asJSON} {
		path, tag := a.Request.URL.Path, a.Header.Get("ETag")
		again := d.do(http.MethodGet, path, nil, "If-None-Match", tag)
		if again.StatusCode != http.StatusNotModified || len(again.body) != 0 || again.Header.Get("ETag") != tag {
			t.Errorf("%s again: %d, %v", path, again.StatusCode, again.Header)
		}
		d.do(http.MethodGet, path, nil, "If-None-Match", `"other"`).want(t, 200, "")
		d.do(http.MethodGet, path, nil, "If-Match", tag).want(t, 200, "")
		d.do(http.MethodGet, path, nil, "If-Match", `"other"`).want(t, 412, "precondition_failed")
		d.do(http.MethodGet, path, nil, "If-None-Match", `no tag`).want(t, 400, "invalid_parameter")
	}
}

// What YAML has and JSON has not becomes what it stands for, in the order of the
// document.
func TestYAMLToJSON(t *testing.T) {
	for in, want := range map[string]string{
		"b: &x {n: 1}\na: *x\n":                       `{"b":{"n":1},"a":{"n":1}}`,
		"[yes, 'yes', true, null, ~, '', 007, 0x10]":  `["yes","yes",true,null,null,"",7,16]`,
		"[1.5, -0.25, 1e3, 9223372036854775807]":      `[1.5,-0.25,1000,9223372036854775807]`,
		"'200': |\n  a\n  b\n":                        `{"200":"a\nb\n"}`,
		"{t: 2026-01-02T03:04:05Z, q: 'é\"\\', 1: x}": `{"t":"2026-01-02T03:04:05Z","q":"é\"\\","1":"x"}`,
	} {
		got, err := yamlToJSON([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%q: %s, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"[", "a: *none"} {
		if got, err := yamlToJSON([]byte(in)); err == nil {
			t.Errorf("%q: %s", in, got)
		}
	}
}
