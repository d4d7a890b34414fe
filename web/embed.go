// Package web holds the pages that the server shows to a browser: an index that says what is here, and examples that
// tail a topic over a WebSocket and a partition by long poll. They are plain HTML, CSS and JavaScript, embedded as they
// are, with no build step, and they speak to the server's API like any other client.
//
// It is not a console, it keeps no session and it calls nothing of Leat: it imports no other package of ours, and main
// hands its Handler to the HTTP door.
package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed index.html examples
var files embed.FS

// policy lets a page load scripts, styles and data from its own origin and nothing else; inline scripts do not run, so a
// record that looks like HTML stays text even if a page should ever show it wrongly.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// page is one embedded file as it is served.
type page struct {
	body        []byte
	contentType string
	etag        string
}

// Handler serves the pages: "/" and everything below "/examples/", for GET and HEAD, with strong ETags, so that a browser
// asks again but loads only what a new version of the program changed. It is safe for concurrent use.
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
		pages["/"+strings.TrimSuffix(name, "index.html")] = page{
			body: body, contentType: contentType(name), etag: `"` + hex.EncodeToString(sum[:12]) + `"`,
		}
		return nil
	})
	if err != nil {
		panic("web: embedded files: " + err.Error()) // they are part of the program
	}
	return handler(pages)
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
	p, ok := h[r.URL.Path]
	if !ok {
		refuse(w, http.StatusNotFound, "not_found", "Not found")
		return
	}
	header.Set("Content-Type", p.contentType)
	header.Set("Content-Security-Policy", policy)
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-cache")
	header.Set("ETag", p.etag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p.body))
}

// refuse answers with a problem document (RFC 9457), as the rest of the HTTP door does; the door has put the request's id
// into the header.
func refuse(w http.ResponseWriter, status int, code, title string) {
	header := w.Header()
	header.Set("Content-Type", "application/problem+json")
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
