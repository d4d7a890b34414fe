package web

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestProblemLinks proves that the type of each problem that openapi.yaml lists leads to an anchor of the page of problems, and
// that nothing else leads anywhere.
func TestProblemLinks(t *testing.T) {
	text, err := os.ReadFile("../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas struct {
				ProblemCode struct{ Enum []string } `yaml:"ProblemCode"`
			}
		}
	}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	codes := doc.Components.Schemas.ProblemCode.Enum
	if len(codes) < 90 {
		t.Fatalf("%d codes", len(codes))
	}
	for _, code := range codes {
		got := get(http.MethodGet, "/problems/"+code, nil)
		if got.status != http.StatusFound || got.header.Get("Location") != "/docs/problems#"+code {
			t.Errorf("%s: %d %s", code, got.status, got.header.Get("Location"))
		}
	}
	for _, bad := range []string{"", "x", "unknown_topi", "..", "unknown_topic/", `"><`, "schemas"} {
		if got := get(http.MethodGet, "http://x/problems/"+strings.ReplaceAll(bad, `"><`, "%22%3E%3C"), nil); got.status != http.StatusNotFound {
			t.Errorf("%q: %d", bad, got.status)
		}
	}
}

// TestDocsAddress proves that the address that people type leads to the first page, and that no other path is mended.
func TestDocsAddress(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		if got := get(method, "/docs", nil); got.status != http.StatusPermanentRedirect || got.header.Get("Location") != "/docs/" || got.body != "" {
			t.Errorf("%s: %d %v", method, got.status, got.header)
		}
	}
	for _, path := range []string{"/docs//", "/docs/produce/", "/examples", "/problems", "/doc"} {
		if got := get(http.MethodGet, path, nil); got.status != http.StatusNotFound {
			t.Errorf("%s: %d", path, got.status)
		}
	}
}

// TestDocsHold proves that the pages of the documentation have every page and anchor that they lead to, load nothing from
// elsewhere, and have no script or style that their policy would stop.
func TestDocsHold(t *testing.T) {
	inline := regexp.MustCompile(`<script|<style|<img|\sstyle=|\son[a-z]+=|src=|url\(|@import`)
	link := regexp.MustCompile(`href="([^"]*)"`)
	served := regexp.MustCompile(`^/(openapi\.yaml|openapi\.json)$`)
	for target := range Handler().(handler) {
		if !strings.HasPrefix(target, "/docs/") {
			continue
		}
		body := get(http.MethodGet, target, nil).body
		if found := inline.FindString(body); found != "" {
			t.Errorf("%s has %q", target, found)
		}
		if strings.Contains(body, "\x00") {
			t.Errorf("%s has a zero byte", target)
		}
		if n := strings.Count(body, "<h1>"); strings.HasSuffix(target, ".css") != (n == 0) {
			t.Errorf("%s has %d headings of the first order", target, n)
		}
		for _, m := range link.FindAllStringSubmatch(body, -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if to == "" {
				to = target
			}
			if strings.HasPrefix(to, "https://") || strings.HasPrefix(to, "data:") || served.MatchString(to) {
				continue
			}
			page := get(http.MethodGet, to, nil)
			if page.status != http.StatusOK || anchor != "" && !strings.Contains(page.body, ` id="`+anchor+`"`) {
				t.Errorf("%s leads to %s: %d", target, m[1], page.status)
			}
		}
	}
}

// TestMarkdown proves what each mark becomes, and that nothing in code is taken for a mark or for HTML.
func TestMarkdown(t *testing.T) {
	for in, want := range map[string]string{
		"a `<b>**x**` and **y** & `z`": "<p>a <code>&lt;b&gt;**x**</code> and <strong>y</strong> &amp; <code>z</code></p>\n",
		"[a `b`](/c)":                  "<p><a href=\"/c\">a <code>b</code></a></p>\n",
		"* one\n  more\n* `two`":       "<ul>\n<li>one more</li>\n<li><code>two</code></li>\n</ul>\n",
		"## A `b`":                     "<h2 id=\"a-b\">A <code>b</code></h2>\n",
		"```\na & `b`\n```":            "<pre tabindex=\"0\"><code>a &amp; `b`</code></pre>\n",
	} {
		if got := markdown(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestGzip proves that a client that takes gzip gets the same page smaller and under a tag of its own, and another the page
// as it is.
func TestGzip(t *testing.T) {
	plain := get(http.MethodGet, "/docs/reference", nil)
	for accept, want := range map[string]bool{"gzip": true, "br, GZIP;q=0.5": true, "gzip;q=0": false, "br": false, "gzip;q=x": false} {
		got := get(http.MethodGet, "/docs/reference", http.Header{"Accept-Encoding": {accept}})
		if is := got.header.Get("Content-Encoding") == "gzip"; is != want || got.header.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s: %v", accept, got.header)
		}
		if !want {
			continue
		}
		z, err := gzip.NewReader(bytes.NewReader([]byte(got.body)))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(z); err != nil || string(text) != plain.body || len(got.body) > len(plain.body)/4 || got.header.Get("ETag") == plain.header.Get("ETag") {
			t.Errorf("%s: %d bytes of %d, %v, %v", accept, len(got.body), len(plain.body), got.header, err)
		}
		again := get(http.MethodGet, "/docs/reference", http.Header{"Accept-Encoding": {accept}, "If-None-Match": {got.header.Get("ETag")}})
		if again.status != http.StatusNotModified || again.body != "" {
			t.Errorf("%s again: %d", accept, again.status)
		}
	}
}
