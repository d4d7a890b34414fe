package e2e

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"
)

// flood is many requests at once.
type flood struct {
	name    string
	method  string
	path    string
	media   string
	coding  string
	body    []byte
	refused []int // statuses that may stand beside 200
}

// peak is the most resident memory that the process had, in bytes, since the last call of forget.
func (s *server) peak() int64 { return s.procField("status", "VmHWM") << 10 }

// forget begins a new peak.
func (s *server) forget() {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join("/proc", strconv.Itoa(s.pid()), "clear_refs"), []byte("5"), 0); err != nil {
		s.t.Logf("the peak goes on from before: %v", err)
	}
}

// run sends n of the requests at a time and counts their answers by status.
func (f *flood) run(t *testing.T, s *server, n int) map[int]int {
	t.Helper()
	var mu sync.Mutex
	statuses := map[int]int{}
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, MaxConnsPerHost: n, ExpectContinueTimeout: patience}, Timeout: 2 * patience}
	defer client.CloseIdleConnections()
	var work sync.WaitGroup
	begin := make(chan struct{})
	for range n {
		work.Go(func() {
			<-begin
			req, err := http.NewRequestWithContext(t.Context(), f.method, "http://"+s.HTTP+f.path, bytes.NewReader(f.body))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("Content-Type", f.media)
			req.Header.Set("Expect", "100-continue")
			if f.method == http.MethodGet {
				req.Header = http.Header{}
			}
			if f.coding != "" {
				req.Header.Set("Content-Encoding", f.coding)
			}
			status := 0 // the connection was closed before the answer could be read
			if resp, err := client.Do(req); err == nil {
				status = resp.StatusCode
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if status == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "" {
					t.Error("429 without Retry-After")
				}
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	close(begin)
	work.Wait()
	return statuses
}

// memoryBound is what the documentation of the limits states for one client.
const memoryBound = 512 << 20

// TestMemory proves that whatever a client sends or asks for at once is served or refused within the memory that the
// documentation states, and that the server works on. The short form has fewer and is as strict.
func TestMemory(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1, "max.message.bytes=20000000")
	s.createTopic("z", 1, "compression.type=zstd", "max.message.bytes=20000000")
	parallel, size := 40, 16<<20
	if long() {
		parallel = 100
	}
	rng := rand.New(rand.NewPCG(7, 7))
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = "0123456789abcdef"[rng.IntN(16)]
	}
	fill := func(one string) []byte { return bytes.Repeat([]byte(one), size/len(one)) }
	record := `{"value":"` + string(noise[:1000]) + `"}`
	array := append([]byte("["), fill(record+",")...)
	array[len(array)-1] = ']'
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	for range size >> 20 {
		if _, err := z.Write(noise); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		s.do("POST", "/v1/topics/z/records", bytes.Repeat([]byte{byte(i)}, size-1), "Content-Type: "+typeBytes).want(200)
	}
	s.get("/v1/topics/z/partitions/0/records?offset=0&max_bytes=33554432")
	const post, fetch = "/v1/topics/t/records?receipts=none", "/v1/topics/t/partitions/0/records?from=earliest&max_bytes=33554432"
	full := []int{429, 503}
	for _, f := range []flood{
		{"JSON", "POST", post, typeJSON, "", array, full},
		{"NDJSON", "POST", post, typeNDJSON, "", fill(record + "\n"), full},
		{"lines", "POST", post + "&value=line", typeNDJSON, "", fill(string(noise[:1023]) + "\n"), full},
		{"bytes", "POST", post, typeBytes, "", fill(string(noise)), full},
		{"gzip", "POST", post, typeBytes, "gzip", packed.Bytes(), full},
		{"100,000 records", "POST", post, typeJSON, "", []byte("[" + strings.Repeat(`{"value":1},`, 99_999) + `{"value":1}]`), full},
		{"a long path", "GET", "/v1/topics/" + strings.Repeat("x", 10_000), "", "", nil, []int{400}},
		{"fetches", "GET", fetch, "", "", nil, full},
		{"expanding fetches", "GET", strings.Replace(fetch, "/t/", "/z/", 1), "", "", nil, full},
		{"expanding looks", "GET", "/v1/topics/z/partitions/0/records/1", "", "", nil, full},
		{"filters", "GET", fetch + "&filter=" + `value.matches('(a*)*(b*)*(c*)*$')`, "", "", nil, []int{429, 503, 400, 422}},
	} {
		t.Run(f.name, func(t *testing.T) {
			s.forget()
			statuses := f.run(t, s, parallel)
			allowed := map[int]bool{0: f.method == "POST", 200: true}
			for _, status := range f.refused {
				allowed[status] = true
			}
			for status, n := range statuses {
				if !allowed[status] {
					t.Errorf("%d answers with status %d", n, status)
				}
			}
			if statuses[200] == 0 && f.refused[0] == 429 {
				t.Errorf("nobody was served: %v", statuses)
			}
			peak := s.peak()
			t.Logf("statuses %v, peak %d MiB", statuses, peak>>20)
			if peak > memoryBound {
				t.Errorf("the peak is %d MiB, the bound %d MiB", peak>>20, memoryBound>>20)
			}
		})
	}
	s.post("/v1/topics/t/records", typeJSON, `[{"value":"after"}]`)
	for _, name := range []string{"leat_http_in_flight_bytes", "leat_http_answer_bytes"} {
		if n := s.metric(name); n != 0 {
			t.Errorf("%s is %v after all", name, n)
		}
	}
}
