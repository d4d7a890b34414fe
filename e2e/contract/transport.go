package contract

import (
	"io"
	"net/http"
	"sync"
)

// mostSent is the longest body of a request that is kept for the check.
const mostSent = maxBody + 1

// Transport checks every exchange that goes through it.
type Transport struct {
	// Contract is what they are held against.
	Contract *Contract
	// Base sends the requests.
	Base http.RoundTripper
	// Skip says which requests are not for the door that the contract is of; nil: none.
	Skip func(*http.Request) bool
	// Report is told of each exchange that breaks the contract. It may be called by several goroutines at a time.
	Report func(error)
}

// RoundTrip sends a request by Base. The exchange is checked when its answer has been read or closed.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.Skip != nil && t.Skip(r) {
		return t.Base.RoundTrip(r)
	}
	response, err := t.Base.RoundTrip(r)
	if err != nil || response.StatusCode == http.StatusSwitchingProtocols {
		return response, err
	}
	response.Body = &watched{ReadCloser: response.Body, t: t, request: r, response: response}
	return response, nil
}

// sent is the body of a request, read again where it can be.
func sent(r *http.Request) []byte {
	if r.GetBody == nil || r.ContentLength > mostSent {
		return nil
	}
	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	defer body.Close() //nolint:errcheck // it is only read
	text, err := io.ReadAll(io.LimitReader(body, mostSent))
	if err != nil {
		return nil
	}
	return text
}

// watched is the body of an answer that is kept while it is read.
type watched struct {
	io.ReadCloser
	t        *Transport
	request  *http.Request
	response *http.Response
	mu       sync.Mutex // a stream may be closed while it is read
	kept     []byte
	done     bool
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.mu.Lock()
	defer w.mu.Unlock()
	if room := mostSent - len(w.kept); room > 0 {
		w.kept = append(w.kept, p[:min(n, room)]...)
	}
	if err != nil {
		w.check(err != io.EOF)
	}
	return n, err
}

func (w *watched) Close() error {
	err := w.ReadCloser.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.check(true)
	return err
}

func (w *watched) check(cut bool) {
	if w.done {
		return
	}
	w.done = true
	err := w.t.Contract.Check(&Exchange{
		Request: w.request, Sent: sent(w.request), Response: w.response, Body: w.kept, Cut: cut && w.response.ContentLength != 0,
	})
	if err != nil {
		w.t.Report(err)
	}
}
