package rest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"
	"go.yaml.in/yaml/v3"
)

// The router serves exactly the paths and methods of openapi.yaml, in its
// order.
func TestRoutesEqualContract(t *testing.T) {
	var doc struct {
		Paths yaml.Node `yaml:"paths"`
	}
	if err := yaml.Unmarshal(contractText(), &doc); err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := 0; i < len(doc.Paths.Content); i += 2 {
		ops := doc.Paths.Content[i+1]
		for j := 0; j < len(ops.Content); j += 2 {
			if name := ops.Content[j].Value; name != "parameters" {
				want = append(want, strings.ToUpper(name)+" "+doc.Paths.Content[i].Value)
			}
		}
	}
	s := New(Options{})
	var listed, walked []string
	for _, rt := range s.routes() {
		listed = append(listed, rt.method+" "+rt.pattern)
	}
	err := chi.Walk(s.router, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		walked = append(walked, method+" "+route)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(listed, want) {
		t.Errorf("routes.go and openapi.yaml differ:\n%v\n%v", listed, want)
	}
	slices.Sort(walked)
	slices.Sort(want)
	if !slices.Equal(walked, want) {
		t.Errorf("router and openapi.yaml differ:\n%v\n%v", walked, want)
	}
}

// The request examples of the contract are taken.
func TestRequestExamples(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 3)
	d.topic("w", 1, "retention.ms", "-1") // an example makes retention look, and the work is of 1970
	d.work("w", 20)
	var doc map[string]any
	if err := yaml.Unmarshal(contractText(), &doc); err != nil {
		t.Fatal(err)
	}
	count := 0
	for path, item := range doc["paths"].(map[string]any) {
		for method, op := range item.(map[string]any) {
			o, ok := op.(map[string]any)
			if !ok {
				continue
			}
			body, ok := o["requestBody"].(map[string]any)
			if !ok {
				continue
			}
			for media, content := range body["content"].(map[string]any) {
				for _, example := range examples(content.(map[string]any)) {
					text, isText := example.(string)
					if !isText {
						raw, err := json.Marshal(example)
						if err != nil {
							t.Fatal(err)
						}
						text = string(raw)
					}
					at := d.example(path, count)
					a := d.do(strings.ToUpper(method), at, text, "Content-Type", media)
					if a.StatusCode >= 300 {
						t.Errorf("%s %s: the example %s gives %d: %s", method, path, text, a.StatusCode, a.body)
					}
					count++
				}
			}
		}
	}
	if count < 6 {
		t.Errorf("only %d request examples", count)
	}
}

// example is a path of the contract with names put in, of a topic t, and of a
// group and a lease that no other example has touched.
func (d *door) example(path string, number int) string {
	group, lease := "g"+strconv.Itoa(number), ""
	if strings.Contains(path, "{lease}") {
		lease = d.takeOne(group, `{"topics":["w"]}`).LeaseID
	}
	return strings.NewReplacer("{topic}", "t", "{partition}", "0", "{group}", group, "{lease}", lease).Replace(path)
}

func examples(content map[string]any) (out []any) {
	if e, ok := content["example"]; ok {
		out = append(out, e)
	}
	if es, ok := content["examples"].(map[string]any); ok {
		for _, e := range es {
			out = append(out, e.(map[string]any)["value"])
		}
	}
	return out
}

// Case 61: what cannot be a topic name is a 4xx that says so, for every method;
// nothing is redirected, cleaned or decoded into another path.
func TestTopicPaths(t *testing.T) {
	d := openDoor(t)
	d.topic("a.b", 1)
	long := strings.Repeat("x", 250)
	for _, tc := range []struct {
		path   string
		status int
		code   string
	}{
		{"/v1/topics/a.b", 200, ""},
		{"/v1/topics/a%2Eb", 200, ""},
		{"/v1/topics/%61%2eb", 200, ""},
		{"/v1/topics/" + long[:249], 404, "unknown_topic"},
		{"/v1/topics/" + long, 400, "invalid_topic"},
		{"/v1/topics/.", 400, "invalid_topic"},
		{"/v1/topics/..", 400, "invalid_topic"},
		{"/v1/topics/%2e%2e", 400, "invalid_topic"},
		{"/v1/topics/%2E", 400, "invalid_topic"},
		{"/v1/topics/a%2Fb", 400, "invalid_topic"},
		{"/v1/topics/a%2fb", 400, "invalid_topic"},
		{"/v1/topics/%2F", 400, "invalid_topic"},
		{"/v1/topics/a%5Cb", 400, "invalid_topic"},
		{"/v1/topics/a%00", 400, "invalid_topic"},
		{"/v1/topics/a%20b", 400, "invalid_topic"},
		{"/v1/topics/a%25b", 400, "invalid_topic"},
		{"/v1/topics/%FF", 400, "invalid_topic"},
		{"/v1/topics/a+b", 400, "invalid_topic"},
		{"/v1/topics//", 400, "invalid_topic"},
		{"/v1/topics/../a.b", 400, "invalid_topic"},
		{"/v1/topics/../../../etc/passwd", 400, "invalid_topic"},
		{"/v1/topics/a.b/", 404, "not_found"},
		{"/v1/topics/a.b/x", 404, "not_found"},
		{"/v1/topics/a.b//partitions", 404, "not_found"},
		{"/v1/topics/a.b%2Fpartitions", 400, "invalid_topic"},
		{"/v1/topics/", 404, "not_found"},
		{"/v1//topics", 404, "not_found"},
		{"//v1/topics", 404, "not_found"},
		{"/v1/./topics", 404, "not_found"},
		{"/v1", 404, "not_found"},
		{"/", 404, "not_found"},
	} {
		d.do(http.MethodGet, tc.path, nil).want(t, tc.status, tc.code)
	}
	for _, name := range []string{".", "..", "%2e%2e", "a%2Fb", "%00", "", long, long + long} {
		d.do(http.MethodPost, "/v1/topics/"+name+"/records", "[]", "Content-Type", mediaJSON).want(t, 400, "invalid_topic")
		d.do(http.MethodGet, "/v1/topics/"+name+"/partitions/0/records?from=earliest", nil).want(t, 400, "invalid_topic")
	}
	d.do(http.MethodPost, "/v1/topics/a%2Eb/records", `[{"value":1}]`, "Content-Type", mediaJSON).want(t, 200, "")
	if got := d.end("a.b"); got != 1 {
		t.Errorf("a%%2Eb is another topic: a.b ends at %d", got)
	}
	topics, err := d.broker.Topics(t.Context(), principal(nil))
	if err != nil || len(topics) != 1 {
		t.Errorf("topics: %v, %v", topics, err)
	}
}

// Partitions that cannot be are 400, those that are not there 404.
func TestPartitionPaths(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 2)
	for _, tc := range []struct {
		partition string
		status    int
		code      string
	}{
		{"1", 200, ""},
		{"2", 404, "unknown_partition"},
		{"99", 404, "unknown_partition"},
		{"2147483647", 404, "unknown_partition"},
		{"2147483648", 400, "invalid_partition"},
		{"99999999999999999999", 400, "invalid_partition"},
		{"-1", 400, "invalid_partition"},
		{"+1", 400, "invalid_partition"},
		{"abc", 400, "invalid_partition"},
		{"1.0", 400, "invalid_partition"},
		{"%30x", 400, "invalid_partition"},
	} {
		base := "/v1/topics/t/partitions/" + tc.partition
		d.do(http.MethodGet, base, nil).want(t, tc.status, tc.code)
		d.do(http.MethodGet, base+"/offsets?from=latest", nil).want(t, tc.status, tc.code)
		d.do(http.MethodGet, base+"/records?from=earliest", nil).want(t, tc.status, tc.code)
		d.do(http.MethodPost, base+"/records", `[{"value":1}]`, "Content-Type", mediaJSON).want(t, tc.status, tc.code)
	}
}

// A wrong method is 405 with the methods there are; HEAD is served by GET.
func TestMethods(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for _, tc := range []struct{ method, path, allow string }{
		{"PUT", "/v1/topics", "GET, HEAD, POST"},
		{"DELETE", "/v1/topics", "GET, HEAD, POST"},
		{"POST", "/v1/topics/t", "GET, HEAD, PATCH, DELETE"},
		{"PATCH", produceT, "GET, HEAD, POST"},
		{"POST", "/v1/ws", "GET, HEAD"},
		{"DELETE", produceT0, "GET, HEAD, POST"},
		{"OPTIONS", produceT0, "GET, HEAD, POST"},
		{"BREW", produceT0, "GET, HEAD, POST"},
		{"POST", "/healthz", "GET, HEAD"},
	} {
		a := d.do(tc.method, tc.path, nil)
		if a.StatusCode != http.StatusMethodNotAllowed || a.Header.Get("Allow") != tc.allow {
			t.Errorf("%s %s: %d, Allow %q, want %q", tc.method, tc.path, a.StatusCode, a.Header.Get("Allow"), tc.allow)
		}
	}
	d.do("BREW", "/nowhere", nil).want(t, 404, "not_found")
	for target, allow := range map[string]string{"example.com:443": "GET, HEAD", "/v1/topics": "GET, HEAD, POST"} {
		a := d.raw("CONNECT "+target+" HTTP/1.1\r\nHost: example.com:443\r\n\r\n").want(t, 405, "method_not_allowed")
		if got := a.Header.Get("Allow"); got != allow {
			t.Errorf("CONNECT %s: Allow %q, want %q", target, got, allow)
		}
	}
	for _, path := range []string{"/healthz", "/readyz", "/openapi.yaml", "/v1/topics", "/v1/topics/t", "/v1/topics/t/partitions/0"} {
		get, head := d.do("GET", path, nil), d.do("HEAD", path, nil)
		if head.StatusCode != get.StatusCode || len(head.body) != 0 || head.Header.Get("Content-Length") != get.Header.Get("Content-Length") {
			t.Errorf("HEAD %s: %d, %v", path, head.StatusCode, head.Header)
		}
	}
}

// What the client does not accept is refused before anything is done, by every
// route of the API; what it does accept, in whatever words, is not.
func TestAcceptEverywhere(t *testing.T) {
	d := openDoor(t)
	d.topic("t", 1)
	for _, c := range []struct{ method, path, media, body string }{
		{"GET", "/v1/topics", "", ""},
		{"POST", "/v1/topics", mediaJSON, `{"name":"new"}`},
		{"GET", "/v1/topics/t", "", ""},
		{"PATCH", "/v1/topics/t", mediaMerge, `{"partitions":2}`},
		{"GET", "/v1/topics/t/partitions", "", ""},
		{"GET", "/v1/topics/t/partitions/0", "", ""},
		{"GET", "/v1/topics/t/partitions/0/offsets?from=latest", "", ""},
		{"POST", "/v1/topics/t/records", mediaJSON, `[{"value":1}]`},
		{"POST", "/v1/topics/t/partitions/0/records", mediaJSON, `[{"value":1}]`},
		{"POST", "/v1/producers", "", ""},
		{"GET", "/v1/groups", "", ""},
		{"PUT", "/v1/groups/g/offsets", mediaJSON, `{"offsets":[{"topic":"t","from":"earliest"}]}`},
		{"GET", "/v1/groups/g", "", ""},
		{"GET", "/v1/groups/g/offsets", "", ""},
		{"GET", "/v1/groups/g/lag", "", ""},
		{"POST", "/v1/groups/h/leases", mediaJSON, `{"topics":["t"]}`},
	} {
		var body any
		headers := []string{"Accept", "text/csv, application/json;q=0"}
		if c.media != "" {
			body, headers = c.body, append(headers, "Content-Type", c.media)
		}
		d.do(c.method, c.path, body, headers...).want(t, 406, "not_acceptable")
		for _, accept := range []string{"application/json", "text/csv, application/*;q=0.1", "*/*"} {
			if c.path == "/v1/topics" && c.method == "POST" && accept != "*/*" {
				continue // it is made once
			}
			headers[1] = accept
			if a := d.do(c.method, c.path, body, headers...); a.StatusCode/100 != 2 {
				t.Errorf("%s %s as %s: %d %s", c.method, c.path, accept, a.StatusCode, a.body)
			}
		}
	}
	if n := d.end("t"); n != 6 {
		t.Errorf("%d records, want 6", n)
	}
	d.do("DELETE", "/v1/topics/t", nil, "Accept", "text/csv").want(t, 204, "")
}

// A request id of visible ASCII is echoed; any other gives way to a new one.
func TestRequestID(t *testing.T) {
	d := openDoor(t)
	if got := d.do("GET", "/healthz", nil, "Request-Id", "abc-1").Header.Get("Request-Id"); got != "abc-1" {
		t.Errorf("echoed %q", got)
	}
	for _, bad := range []string{"", "a b", strings.Repeat("x", 129), "ü"} {
		if got := d.do("GET", "/healthz", nil, "Request-Id", bad).Header.Get("Request-Id"); got == bad || len(got) != 32 {
			t.Errorf("for %q: %q", bad, got)
		}
	}
}

// A panic is a 500 without the inside, and the server lives on.
func TestPanic(t *testing.T) {
	d := openDoor(t, func(s *setup) {
		s.Web = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("secret") })
	})
	if a := d.do("GET", "/", nil).want(t, 500, "internal"); strings.Contains(string(a.body), "secret") {
		t.Errorf("answer shows the panic: %s", a.body)
	}
	d.do("GET", "/healthz", nil).want(t, 200, "")
}
