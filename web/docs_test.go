package web

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the pages of docs anew")

// guides are the pages that people read from the first to the last, in order: the name of the source in docs, and the title.
var guides = [][2]string{
	{"index", "Start here"},
	{"produce", "Produce"},
	{"consume", "Consume"},
	{"groups", "Groups by lease"},
	{"idempotency", "Idempotency"},
	{"filters", "Filters"},
	{"limits", "Limits and errors"},
	{"websocket", "WebSocket"},
	{"cloudevents", "CloudEvents"},
	{"operating", "Operating"},
}

// reference are the pages that are made of openapi.yaml.
var reference = [][2]string{{"reference", "API reference"}, {"problems", "Problems"}}

// TestDocs proves that the pages of docs are what their sources and openapi.yaml say; with -update it makes them so.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Info struct{ Description string }
		Tags []struct{ Name, Description string }
		// Order matters, so the paths stay nodes.
		Paths yaml.Node
	}
	if err := yaml.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	root := map[string]any{}
	if err := yaml.Unmarshal(text, &root); err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	for _, g := range guides {
		source, err := os.ReadFile(filepath.Join("docs", g[0]+".md"))
		if err != nil {
			t.Fatal(err)
		}
		pages[g[0]] = frame(g[0], g[1], markdown(string(source)))
	}
	ref := &renderer{root: root}
	for i := 0; i < len(spec.Paths.Content); i += 2 {
		ref.path(spec.Paths.Content[i].Value, spec.Paths.Content[i+1])
	}
	intro := markdown(spec.Info.Description)
	for _, tag := range spec.Tags {
		intro += fmt.Sprintf("<h2 id=\"%s\">%s</h2>\n<p>%s</p>\n%s", tag.Name, html.EscapeString(tag.Description), ref.contents[tag.Name].String(), ref.bodies[tag.Name].String())
	}
	pages["reference"] = frame("reference", "API reference", intro+ref.schemas())
	pages["problems"] = frame("problems", "Problems", ref.problems())
	for name, want := range pages {
		file := filepath.Join("docs", name+".html")
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o644); err != nil { //nolint:gosec // a page for everybody
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%s is not what its sources say (%v): go generate ./web", file, err)
		}
	}
}

// frame puts the frame of the site around a page.
func frame(name, title, body string) string {
	var nav strings.Builder
	for _, p := range append(slices.Clone(guides), reference...) {
		href, current := "/docs/"+p[0], ""
		if p[0] == "index" {
			href = "/docs/"
		}
		if p[0] == name {
			current = ` aria-current="page"`
		}
		fmt.Fprintf(&nav, "<li><a href=\"%s\"%s>%s</a></li>\n", href, current, p[1])
	}
	return fmt.Sprintf(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>%[1]s · Leat</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/docs/docs.css">
</head>
<body>
<a class="skip" href="#content">To the text</a>
<nav aria-label="Documentation">
<p class="name"><a href="/">Leat</a></p>
<ul>
%[2]s</ul>
</nav>
<main id="content">
<h1>%[1]s</h1>
%[3]s</main>
</body>
</html>
`, title, nav.String(), body)
}

// renderer makes the reference of openapi.yaml.
type renderer struct {
	root             map[string]any
	contents, bodies map[string]*strings.Builder // by tag
}

func (r *renderer) of(m *map[string]*strings.Builder, tag string) *strings.Builder {
	if *m == nil {
		*m = map[string]*strings.Builder{}
	}
	if (*m)[tag] == nil {
		(*m)[tag] = &strings.Builder{}
	}
	return (*m)[tag]
}

// deref follows a reference, and says what it is called.
func (r *renderer) deref(v any) (map[string]any, string) {
	m, _ := v.(map[string]any)
	ref, ok := m["$ref"].(string)
	if !ok {
		return m, ""
	}
	var at any = r.root
	for name := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		parent, _ := at.(map[string]any)
		at = parent[name]
	}
	m, _ = at.(map[string]any)
	return m, ref[strings.LastIndexByte(ref, '/')+1:]
}

func (r *renderer) path(path string, node *yaml.Node) {
	var item map[string]any
	if err := node.Decode(&item); err != nil {
		panic(err)
	}
	for i := 0; i < len(node.Content); i += 2 {
		method := node.Content[i].Value
		op, ok := item[method].(map[string]any)
		if !ok || method == "parameters" {
			continue
		}
		tag := op["tags"].([]any)[0].(string)
		id := op["operationId"].(string)
		name := strings.ToUpper(method) + " " + path
		fmt.Fprintf(r.of(&r.contents, tag), "<a class=\"toc\" href=\"#%s\"><code>%s</code></a>\n", id, html.EscapeString(name))
		out := r.of(&r.bodies, tag)
		fmt.Fprintf(out, "<section class=\"op\">\n<h3 id=\"%s\"><a class=\"self\" href=\"#%s\"><code>%s</code></a></h3>\n<p class=\"lead\">%s</p>\n", id, id, html.EscapeString(name), inline(op["summary"].(string)))
		out.WriteString(markdown(fmt.Sprint(op["description"])))
		shared, _ := item["parameters"].([]any)
		own, _ := op["parameters"].([]any)
		r.parameters(out, append(slices.Clone(shared), own...))
		if body, _ := r.deref(op["requestBody"]); body != nil {
			out.WriteString("<h4>Body</h4>\n" + markdown(fmt.Sprint(orEmpty(body["description"]))))
			r.content(out, body, name+" body")
		}
		r.answers(out, name, op)
		out.WriteString("</section>\n")
	}
}

func orEmpty(v any) any {
	if v == nil {
		return ""
	}
	return v
}

func (r *renderer) parameters(out *strings.Builder, list []any) {
	if len(list) == 0 {
		return
	}
	out.WriteString("<h4>Parameters</h4>\n<dl>\n")
	for _, p := range list {
		m, _ := r.deref(p)
		must := ""
		if m["required"] == true {
			must = ", required"
		}
		fmt.Fprintf(out, "<dt><code>%s</code> <span class=\"quiet\">%s%s · %s</span></dt>\n<dd>%s</dd>\n",
			html.EscapeString(fmt.Sprint(m["name"])), m["in"], must, r.kind(m["schema"]), markdown(fmt.Sprint(m["description"])))
	}
	out.WriteString("</dl>\n")
}

// kind is a schema in a few words.
func (r *renderer) kind(v any) string {
	m, name := r.deref(v)
	if name != "" {
		return fmt.Sprintf("<a href=\"#schema-%s\">%s</a>", name, name)
	}
	if values, ok := m["enum"].([]any); ok {
		var out []string
		for _, e := range values {
			out = append(out, "<code>"+html.EscapeString(fmt.Sprint(e))+"</code>")
		}
		return strings.Join(out, ", ")
	}
	for _, of := range []string{"oneOf", "anyOf", "allOf"} {
		if list, ok := m[of].([]any); ok {
			var out []string
			for _, e := range list {
				out = append(out, r.kind(e))
			}
			return strings.Join(out, map[string]string{"allOf": " and "}[of]+map[bool]string{true: "", false: " or "}[of == "allOf"])
		}
	}
	text := "anything"
	switch kind := m["type"].(type) {
	case string:
		text = kind
	case []any:
		var out []string
		for _, e := range kind {
			out = append(out, fmt.Sprint(e))
		}
		text = strings.Join(out, " or ")
	}
	if items, ok := m["items"]; ok {
		text += " of " + r.kind(items)
	}
	for _, bound := range []string{"minimum", "maximum", "default"} {
		if n, ok := m[bound]; ok {
			text += fmt.Sprintf(", %s %v", bound, html.EscapeString(fmt.Sprint(n)))
		}
	}
	return text
}

func (r *renderer) content(out *strings.Builder, of map[string]any, name string) {
	content, _ := of["content"].(map[string]any)
	for _, media := range slices.Sorted(keys(content)) {
		spec := content[media].(map[string]any)
		fmt.Fprintf(out, "<p class=\"media\"><code>%s</code> <span class=\"quiet\">%s</span></p>\n", html.EscapeString(media), r.kind(spec["schema"]))
		if schema, ref := r.deref(spec["schema"]); ref == "" && schema["description"] != nil {
			out.WriteString(markdown(schema["description"].(string)))
		}
		if e, ok := spec["example"]; ok {
			r.example(out, name+" "+media, e)
		}
		named, _ := spec["examples"].(map[string]any)
		for _, n := range slices.Sorted(keys(named)) {
			r.example(out, name+" "+media+" "+n, named[n].(map[string]any)["value"])
		}
	}
}

func (r *renderer) example(out *strings.Builder, label string, v any) {
	text, ok := v.(string)
	if !ok {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(v); err != nil {
			panic(err)
		}
		text = b.String()
	}
	fmt.Fprintf(out, "<pre tabindex=\"0\" role=\"region\" aria-label=\"Example: %s\"><code>%s</code></pre>\n", html.EscapeString(label), html.EscapeString(strings.TrimSpace(text)))
}

func (r *renderer) answers(out *strings.Builder, name string, op map[string]any) {
	out.WriteString("<h4>Answers</h4>\n")
	answers := op["responses"].(map[string]any)
	for _, status := range slices.Sorted(keys(answers)) {
		m, ref := r.deref(answers[status])
		if status == "default" {
			continue // every error is a problem, as the introduction says
		}
		fmt.Fprintf(out, "<div class=\"answer\"><p><strong>%s</strong> %s</p>\n", status, inline(strings.ReplaceAll(strings.TrimSpace(fmt.Sprint(m["description"])), "\n", " ")))
		if headers, ok := m["headers"].(map[string]any); ok {
			out.WriteString("<ul>\n")
			for _, h := range slices.Sorted(keys(headers)) {
				header, _ := r.deref(headers[h])
				fmt.Fprintf(out, "<li><code>%s</code>: %s</li>\n", h, inline(strings.ReplaceAll(strings.TrimSpace(fmt.Sprint(header["description"])), "\n", " ")))
			}
			out.WriteString("</ul>\n")
		}
		if ref == "" {
			r.content(out, m, name+" "+status)
		}
		out.WriteString("</div>\n")
	}
}

// schemas are the shapes that operations have in common.
func (r *renderer) schemas() string {
	var out strings.Builder
	out.WriteString("<h2 id=\"schemas\">Schemas</h2>\n")
	all := r.root["components"].(map[string]any)["schemas"].(map[string]any)
	for _, name := range slices.Sorted(keys(all)) {
		m := all[name].(map[string]any)
		fmt.Fprintf(&out, "<section>\n<h3 id=\"schema-%s\">%s</h3>\n%s", name, name, markdown(fmt.Sprint(orEmpty(m["description"]))))
		if name == "ProblemCode" {
			out.WriteString("<p>Each code has its words on the page of <a href=\"/docs/problems\">problems</a>.</p>\n</section>\n")
			continue
		}
		parts := []any{m}
		if list, ok := m["allOf"].([]any); ok {
			parts = list
		} else if _, ok := m["properties"]; !ok {
			fmt.Fprintf(&out, "<p>%s</p>\n", r.kind(m))
		}
		for _, part := range parts {
			p, ref := r.deref(part)
			if ref != "" {
				fmt.Fprintf(&out, "<p>All of %s, and:</p>\n", r.kind(part))
				continue
			}
			r.properties(&out, p)
		}
		out.WriteString("</section>\n")
	}
	return out.String()
}

func (r *renderer) properties(out *strings.Builder, m map[string]any) {
	properties, _ := m["properties"].(map[string]any)
	if len(properties) == 0 {
		return
	}
	required, _ := m["required"].([]any)
	out.WriteString("<dl>\n")
	for _, name := range slices.Sorted(keys(properties)) {
		p := properties[name].(map[string]any)
		must := ""
		if slices.Contains(required, any(name)) {
			must = "always there · "
		}
		fmt.Fprintf(out, "<dt><code>%s</code> <span class=\"quiet\">%s%s</span></dt>\n<dd>%s</dd>\n",
			html.EscapeString(name), must, r.kind(p), markdown(fmt.Sprint(orEmpty(p["description"]))))
	}
	out.WriteString("</dl>\n")
}

// problems is an entry for each code, at which the type of a problem leads.
func (r *renderer) problems() string {
	var out strings.Builder
	out.WriteString(markdown("Every error is a problem of RFC 9457. Its `type` leads here, its `code` is for programs and stays as it is. " +
		"`retriable` says that the same request may succeed later and cannot write twice. Where it is **unclear**, records may have been written " +
		"(`maybe_written`): repeat only what carries an `Idempotency-Key` or a producer's sequence."))
	code, _ := r.deref(map[string]any{"$ref": "#/components/schemas/ProblemCode"})
	entries := code["x-problems"].(map[string]any)
	for _, name := range slices.Sorted(keys(entries)) {
		e := entries[name].(map[string]any)
		var statuses []string
		for _, s := range e["status"].([]any) {
			statuses = append(statuses, fmt.Sprint(s))
		}
		retry := map[string]string{"true": "retriable", "false": "final", "unclear": "unclear: may have been written"}[fmt.Sprint(e["retriable"])]
		fmt.Fprintf(&out, "<section>\n<h2 id=\"%s\"><a class=\"self\" href=\"#%s\"><code>%s</code></a></h2>\n<p class=\"quiet\">%s · %s · %s</p>\n%s</section>\n",
			name, name, name, strings.Join(statuses, ", "), html.EscapeString(fmt.Sprint(e["title"])), retry, markdown(fmt.Sprint(e["text"])))
	}
	return out.String()
}

// keys are the names of the members of an object.
func keys(m map[string]any) func(func(string) bool) {
	return func(yield func(string) bool) {
		for name := range m {
			if !yield(name) {
				return
			}
		}
	}
}
