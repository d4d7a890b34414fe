package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"leat/e2e/contract"
)

// openapi is openapi.yaml, which every exchange with the HTTP door is held against: those of httpClient by its transport, those
// over raw connections where their answer is read. No test has to ask for it; runTests fails for what was found.
var openapi = sync.OnceValue(func() *contract.Contract {
	text, err := os.ReadFile("../openapi.yaml")
	if err == nil {
		var c *contract.Contract
		if c, err = contract.New(text); err == nil {
			return c
		}
	}
	panic(err)
})

// breaches is what was found; of many, the first ones.
var breaches struct {
	sync.Mutex
	found int
	first []string
}

const mostBreaches = 20

func breach(err error) {
	breaches.Lock()
	defer breaches.Unlock()
	if breaches.found++; len(breaches.first) < mostBreaches {
		breaches.first = append(breaches.first, err.Error())
	}
}

// contractKept fails for the exchanges that broke the contract.
func contractKept() error {
	breaches.Lock()
	defer breaches.Unlock()
	if breaches.found == 0 {
		return nil
	}
	return fmt.Errorf("%d exchanges break openapi.yaml:\n%s", breaches.found, strings.Join(breaches.first, "\n"))
}

// mostOfAKind is how many exchanges of one method, path without its query, and media type are all checked; beyond it one in
// oneOfAKind is, so that a loop of very many requests stays what it measures.
const (
	mostOfAKind = 200
	oneOfAKind  = 50
)

// operators has the addresses of the operators' ports, which are not the contract's.
var operators sync.Map

// kinds counts exchanges.
var kinds struct {
	sync.Mutex
	seen map[string]int
}

// unchecked reports whether a request is for an operators' port, or one of very many of its kind.
func unchecked(r *http.Request) bool {
	if _, ops := operators.Load(r.URL.Host); ops || r.URL.Path == "/metrics" { // which no other port has
		return true
	}
	kind := r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + r.Header.Get("Accept")
	kinds.Lock()
	defer kinds.Unlock()
	if kinds.seen == nil {
		kinds.seen = map[string]int{}
	}
	kinds.seen[kind]++
	n := kinds.seen[kind]
	return n > mostOfAKind && n%oneOfAKind != 0
}

// checked is a transport whose exchanges are held against the contract.
func checked(base http.RoundTripper) http.RoundTripper {
	return &checkedTransport{base: base}
}

// checkedTransport reads the contract when there is a first request.
type checkedTransport struct {
	base http.RoundTripper
	once sync.Once
	over *contract.Transport
}

// RoundTrip sends a request.
func (c *checkedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c.once.Do(func() {
		c.over = &contract.Transport{Contract: openapi(), Base: c.base, Skip: unchecked, Report: breach}
	})
	return c.over.RoundTrip(r)
}

// checkRaw holds the answer to the text of a request against the contract. One that net/http itself gives, to what is no
// request for it, is nobody's: it has no id.
func checkRaw(line string, resp *http.Response, body []byte) {
	method, rest, _ := strings.Cut(line, " ")
	target, _, _ := strings.Cut(rest, " ")
	if resp.Header.Get("Request-Id") == "" || !strings.HasPrefix(target, "/") || resp.StatusCode < http.StatusBadRequest {
		return
	}
	r, err := http.NewRequest(method, "http://raw"+target, nil)
	if err != nil {
		return // refused as it should be, and by no path of the contract
	}
	if err := openapi().Check(&contract.Exchange{Request: r, Response: resp, Body: body}); err != nil {
		breach(err)
	}
}

// peek reads the answer to a raw request for the check, and gives its body back.
func peek(line string, resp *http.Response) {
	if resp.StatusCode < http.StatusBadRequest {
		return
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil {
		checkRaw(line, resp, body)
	}
	resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body), resp.Body))
}
