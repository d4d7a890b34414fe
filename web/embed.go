// Package web holds the pages that the server shows to a browser: an index that says what is here, its documentation, and
// examples that tail a topic over a WebSocket and a partition by long poll. They are plain HTML, CSS and JavaScript,
// embedded as they are, with no build step, and they speak to the server's API like any other client.
//
// The documentation is written as docs/*.md and, for the reference, as openapi.yaml. `go generate` makes the pages
// docs/*.html of them, which are committed; a test fails where they are not what their sources say.
//
// It is not a console, it keeps no session and it calls nothing of Leat: it imports no other package of ours, and main
// hands its Handler to the HTTP door.
package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

//go:generate go test -run ^TestDocs$ -update .

//go:embed index.html examples docs/*.html docs/*.css
var files embed.FS

// policy lets a page load scripts, styles and data from its own origin and nothing else; inline scripts do not run, so a
// record that looks like HTML stays text even if a page should ever show it wrongly.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// page is one embedded file as it is served. Each form has a tag of its own.
type page struct {
	body        []byte
	contentType string
	etag        string
	// zipped is the body as gzip, made when it is first asked for.
	zipped func() []byte
}

// zip compresses an embedded file.
func zip(body []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(body)
	if err = errors.Join(err, z.Close()); err != nil {
		panic("web: gzip into memory: " + err.Error())
	}
	return b.Bytes()
}

// Handler serves the pages: "/", and everything below "/docs/" and "/examples/", for GET and HEAD, with strong ETags, so that
// a browser asks again but loads only what a new version of the program changed; "/docs", which leads to "/docs/", and
// "/problems/CODE", which leads to the words about a code. It is safe for concurrent use.
func Handler() http.Handler {
	pages := map[string]page{}
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		pages[address(name)] = page{
			body: body, contentType: contentType(name), etag: `"` + hex.EncodeToString(sum[:12]) + `"`,
			zipped: sync.OnceValue(func() []byte { return zip(body) }),
		}
		return nil
	})
	if err != nil {
		panic("web: embedded files: " + err.Error()) // they are part of the program
	}
	return handler(pages)
}

// address is where a file is served: the documentation without the end of its names.
func address(name string) string {
	name = strings.TrimSuffix(name, "index.html")
	if strings.HasPrefix(name, "docs/") {
		name = strings.TrimSuffix(name, ".html")
	}
	return "/" + name
}

// contentType is fixed for the kinds of file we have: the system's MIME table would make it depend on the machine.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	}
	return "application/octet-stream"
}

// handler serves pages by their exact path.
type handler map[string]page

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "method_not_allowed", "Method not allowed")
		return
	}
	if code, ok := strings.CutPrefix(r.URL.Path, "/problems/"); ok {
		h.problem(w, code)
		return
	}
	if r.URL.Path == "/docs" { // as people type it
		redirect(w, http.StatusPermanentRedirect, "/docs/")
		return
	}
	p, ok := h[r.URL.Path]
	if !ok {
		refuse(w, http.StatusNotFound, "not_found", "Not found")
		return
	}
	p.serve(w, r)
}

// serve answers with the page, all of it whatever Range asks for: http.ServeContent would refuse a bad one, or a condition
// that does not hold, in plain text.
func (p *page) serve(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Vary", "Accept-Encoding")
	body, etag, zipped := p.body, p.etag, takesGzip(r.Header)
	if zipped {
		body, etag = p.zipped(), strings.TrimSuffix(p.etag, `"`)+`-gzip"`
	}
	if given := r.Header.Values("If-Match"); given != nil && !names(given, etag) {
		refuse(w, http.StatusPreconditionFailed, "precondition_failed", "Precondition failed")
		return
	}
	header.Set("Content-Security-Policy", policy)
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-cache")
	header.Set("ETag", etag)
	if given := r.Header.Values("If-None-Match"); names(given, etag) || names(given, "W/"+etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if zipped {
		header.Set("Content-Encoding", "gzip")
	}
	header.Set("Content-Type", p.contentType)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		// A client that is gone is not our trouble.
		_, _ = w.Write(body)
	}
}

// names reports whether the values of a condition have a tag, or "*", which is any.
func names(values []string, etag string) bool {
	for tag := range strings.SplitSeq(strings.Join(values, ","), ",") {
		if tag = strings.TrimSpace(tag); tag == etag || tag == "*" {
			return true
		}
	}
	return false
}

// problem leads to the words about a code.
func (h handler) problem(w http.ResponseWriter, code string) {
	if code == "" || strings.Trim(code, "abcdefghijklmnopqrstuvwxyz_") != "" || !bytes.Contains(h["/docs/problems"].body, []byte(`<h2 id="`+code+`">`)) {
		refuse(w, http.StatusNotFound, "not_found", "Not found")
		return
	}
	redirect(w, http.StatusFound, "/docs/problems#"+code)
}

// redirect leads to another place of this server. It is asked again each time, as another version may have other pages.
func redirect(w http.ResponseWriter, status int, to string) {
	w.Header().Set("Location", to)
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(status)
}

// takesGzip reports whether a client names gzip and does not rule it out.
func takesGzip(h http.Header) bool {
	for coding := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, parameter, _ := strings.Cut(coding, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			_, weight, given := strings.Cut(parameter, "=")
			q, err := strconv.ParseFloat(strings.TrimSpace(weight), 64)
			return !given || err == nil && q > 0
		}
	}
	return false
}

// refuse answers with a problem document (RFC 9457), as the rest of the HTTP door does; the door has put the request's id
// into the header.
func refuse(w http.ResponseWriter, status int, code, title string) {
	header := w.Header()
	header.Set("Content-Type", "application/problem+json")
	header.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// A client that is gone is not our trouble.
	_ = json.NewEncoder(w).Encode(problem{
		Type: "/problems/" + code, Title: title, Status: status, Instance: header.Get("Request-Id"), Code: code,
	})
}

// problem is the part of a problem document that a refusal here has.
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Instance  string `json:"instance"`
	Code      string `json:"code"`
	Retriable bool   `json:"retriable"`
}
