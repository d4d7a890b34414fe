package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

func load(t *testing.T) *Contract {
	t.Helper()
	text, err := os.ReadFile("../../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// operation is one method of one path.
type operation struct {
	name string // for messages
	path string
	item map[string]any
	spec map[string]any
	get  bool
}

func operations(c *Contract) (out []operation) {
	for _, p := range c.paths {
		for _, method := range slices.Sorted(maps.Keys(p.item)) {
			if slices.Contains([]string{"get", "head", "post", "put", "patch", "delete", "options"}, method) {
				out = append(out, operation{strings.ToUpper(method) + " " + p.template, p.template, p.item, c.deref(p.item[method]), method == "get"})
			}
		}
	}
	return out
}

// TestDocument proves that openapi.yaml is valid OpenAPI 3.1.
func TestDocument(t *testing.T) {
	if err := joined(load(t).validator.ValidateDocument()); err != nil {
		t.Error(err)
	}
}

// TestReferences proves that every reference leads somewhere, and that every component is used.
func TestReferences(t *testing.T) {
	c := load(t)
	used := map[string]bool{}
	walk(c.doc, "", func(at string, v map[string]any) {
		ref, ok := v["$ref"].(string)
		if !ok {
			return
		}
		used[ref] = true
		if !strings.HasPrefix(ref, "#/") || c.deref(map[string]any{"$ref": ref}) == nil {
			t.Errorf("%s: %s leads nowhere", at, ref)
		}
	})
	components, _ := c.doc["components"].(map[string]any)
	for kind, members := range components {
		for name := range members.(map[string]any) {
			if ref := "#/components/" + kind + "/" + name; !used[ref] && kind != "securitySchemes" {
				t.Errorf("%s is not used", ref)
			}
		}
	}
}

func walk(v any, at string, visit func(string, map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		visit(at, v)
		for name, member := range v {
			walk(member, at+"/"+name, visit)
		}
	case []any:
		for i, member := range v {
			walk(member, fmt.Sprint(at, "/", i), visit)
		}
	}
}

// TestOperations proves that each operation has what a reader and a program need: an id of its own, one tag of the list,
// words, every parameter of its path, words for each parameter, and the answer to errors.
func TestOperations(t *testing.T) {
	c := load(t)
	tags := map[string]bool{}
	for _, tag := range c.doc["tags"].([]any) {
		tags[tag.(map[string]any)["name"].(string)] = true
	}
	ids := map[string]string{}
	for _, o := range operations(c) {
		id, _ := o.spec["operationId"].(string)
		if other, twice := ids[id]; id == "" || twice {
			t.Errorf("%s: operationId %q, which %s has", o.name, id, other)
		}
		ids[id] = o.name
		if names, _ := o.spec["tags"].([]any); len(names) != 1 || !tags[names[0].(string)] {
			t.Errorf("%s: tags %v", o.name, names)
		}
		for _, words := range []string{"summary", "description"} {
			if text, _ := o.spec[words].(string); text == "" {
				t.Errorf("%s: no %s", o.name, words)
			}
		}
		if answers, _ := o.spec["responses"].(map[string]any); answers["default"] == nil {
			t.Errorf("%s: no default answer", o.name)
		}
		checkParameters(t, c, o)
	}
}

func checkParameters(t *testing.T, c *Contract, o operation) {
	var all []any
	for _, from := range []any{o.item["parameters"], o.spec["parameters"]} {
		list, _ := from.([]any)
		all = append(all, list...)
	}
	seen := map[string]bool{}
	for _, p := range all {
		parameter := c.deref(p)
		name := fmt.Sprint(parameter["in"], " ", parameter["name"])
		if text, _ := parameter["description"].(string); text == "" {
			t.Errorf("%s: %s: no description", o.name, name)
		}
		if seen[name] {
			t.Errorf("%s: %s twice", o.name, name)
		}
		seen[name] = true
		if example, ok := parameter["example"]; ok {
			value, err := asJSON(example)
			if err == nil {
				err = c.schemas.checkValue(parameter["schema"], value)
			}
			if err != nil {
				t.Errorf("%s: the example of %s: %v", o.name, name, err)
			}
		}
	}
	for _, segment := range strings.Split(o.path, "{")[1:] {
		name, _, _ := strings.Cut(segment, "}")
		if !seen["path "+name] {
			t.Errorf("%s: no parameter for {%s}", o.name, name)
		}
		delete(seen, "path "+name)
	}
	for name := range seen {
		if strings.HasPrefix(name, "path ") {
			t.Errorf("%s: %s is not in the path", o.name, name)
		}
	}
}

// TestExamples proves that each media type of each request and answer has an example, but for raw batches, whose bytes
// YAML cannot hold; and that every example fits its schema, item by item where it is a sequence.
func TestExamples(t *testing.T) {
	c := load(t)
	count := 0
	check := func(at string, content map[string]map[string]any) {
		for media, spec := range content {
			found := examples(spec)
			if len(found) == 0 && media != "application/vnd.leat.recordbatch" {
				t.Errorf("%s, %s: no example", at, media)
			}
			for _, example := range found {
				count++
				if err := c.checkExample(media, spec, example); err != nil {
					t.Errorf("%s, %s: %v", at, media, err)
				}
			}
		}
	}
	for _, o := range operations(c) {
		check(o.name+" request", mediaTypes(c.deref(o.spec["requestBody"])))
		answers, _ := o.spec["responses"].(map[string]any)
		for status, answer := range answers {
			check(o.name+" "+status, mediaTypes(c.deref(answer)))
		}
	}
	if count < 100 {
		t.Errorf("only %d examples", count)
	}
}

func examples(spec map[string]any) (out []any) {
	if e, ok := spec["example"]; ok {
		out = append(out, e)
	}
	named, _ := spec["examples"].(map[string]any)
	for _, e := range named {
		out = append(out, e.(map[string]any)["value"])
	}
	return out
}

func (c *Contract) checkExample(media string, spec map[string]any, example any) error {
	value, err := asJSON(example)
	if err != nil {
		return err
	}
	if err := c.schemas.checkValue(spec["schema"], value); err != nil {
		return err
	}
	if spec["x-item-schema"] == nil {
		return nil
	}
	text, ok := example.(string)
	if !ok {
		return fmt.Errorf("the example of a sequence is %T", example)
	}
	return c.items(media, spec, []byte(text))
}

// TestProblemExamples proves that the example of each error is one that the server could give: its title, status and
// retriable are those of its code, and its answer is one that has this code.
func TestProblemExamples(t *testing.T) {
	c := load(t)
	codes := c.Problems()
	responses := c.doc["components"].(map[string]any)["responses"].(map[string]any)
	for name, response := range responses {
		words, _ := response.(map[string]any)["description"].(string)
		for _, spec := range mediaTypes(c.deref(response)) {
			for _, example := range examples(spec) {
				var p struct {
					Type, Title, Code string
					Status            int
					Retriable         bool
				}
				text, err := json.Marshal(example)
				if err == nil {
					err = json.Unmarshal(text, &p)
				}
				want := codes[p.Code]
				if err != nil || p.Type != "/problems/"+p.Code || p.Title != want.Title || !slices.Contains(want.Status, p.Status) || p.Retriable != (want.Retriable == "true") {
					t.Errorf("%s: %s, but its code is %+v (%v)", name, text, want, err)
				}
				if name != "Problem" && !strings.Contains(words, "`"+p.Code+"`") {
					t.Errorf("%s: its example is %s, which its description does not have", name, p.Code)
				}
			}
		}
	}
}
