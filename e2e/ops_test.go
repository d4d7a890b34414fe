package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.yaml.in/yaml/v3"
)

// deploy is a file of the folder deploy.
func deploy(name string) string { return filepath.Join("..", "deploy", name) }

// scrape is one reading of /metrics.
type scrape struct {
	text   []byte
	took   time.Duration
	kinds  map[string]string              // metric -> counter, gauge, histogram
	labels map[string]map[string]struct{} // name of a sample -> names of its labels
	values map[string]map[string]struct{} // name of a label -> its values
	series map[string]struct{}            // name and labels
}

var labelPair = regexp.MustCompile(`([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"`)

// scrape reads /metrics and takes it apart.
func (s *server) scrape() scrape {
	s.t.Helper()
	began := time.Now()
	resp, err := httpClient.Get("http://" + s.Ops + "/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	a, err := readAnswer(s.t, "/metrics", resp)
	if err != nil {
		s.t.Fatal(err)
	}
	sc := scrape{
		text: a.want(http.StatusOK).body, took: time.Since(began), kinds: map[string]string{},
		labels: map[string]map[string]struct{}{}, values: map[string]map[string]struct{}{}, series: map[string]struct{}{},
	}
	add := func(sets map[string]map[string]struct{}, set, member string) {
		if sets[set] == nil {
			sets[set] = map[string]struct{}{}
		}
		if member != "" {
			sets[set][member] = struct{}{}
		}
	}
	for line := range strings.Lines(string(sc.text)) {
		line = strings.TrimSpace(line)
		if kind, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(kind, " ")
			sc.kinds[name] = kind
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		series := line[:strings.LastIndexByte(line, ' ')]
		name, labels, _ := strings.Cut(series, "{")
		sc.series[series] = struct{}{}
		add(sc.labels, name, "")
		for _, pair := range labelPair.FindAllStringSubmatch(labels, -1) {
			add(sc.labels, name, pair[1])
			add(sc.values, pair[1], pair[2])
		}
	}
	return sc
}

// kind is the type of a sample: the buckets, sum and count of a histogram or summary are counters.
func (sc *scrape) kind(sample string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(sample, suffix); ok && (sc.kinds[base] == "histogram" || sc.kinds[base] == "summary") {
			return "counter"
		}
	}
	return sc.kinds[sample]
}

var (
	metricInExpr = regexp.MustCompile(`\b((?:leat|go|process|promhttp)_[a-z0-9_]+)\b(?:\{([^}]*)\})?`)
	overTime     = regexp.MustCompile(`\b(?:rate|irate|increase)\(\s*$`)
	grouping     = regexp.MustCompile(`\b(?:by|on|group_left|group_right|ignoring|without)\s*\(([^)]*)\)`)
	selector     = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	legendLabel  = regexp.MustCompile(`{{\s*(\w+)\s*}}`)
)

// ofPrometheus are the labels that a scrape adds to every series.
var ofPrometheus = []string{"job", "instance"}

// checkExpr finds what is wrong with the metrics of an expression: a name that the server does not have, a counter whose
// rate is not taken or a gauge whose rate is, a label that its metric does not have.
func (sc *scrape) checkExpr(expr string) []string {
	var wrong []string
	known := slices.Clone(ofPrometheus)
	found := metricInExpr.FindAllStringSubmatchIndex(expr, -1)
	for _, at := range found {
		name := expr[at[2]:at[3]]
		kind := sc.kind(name)
		if kind == "" {
			wrong = append(wrong, name+" does not exist")
			continue
		}
		if rate := overTime.MatchString(expr[:at[0]]); rate != (kind == "counter") {
			wrong = append(wrong, fmt.Sprintf("%s is a %s; inside rate(): %v", name, kind, rate))
		}
		own := slices.Clone(ofPrometheus)
		for label := range sc.labels[name] {
			own = append(own, label)
		}
		known = append(known, own...)
		if at[4] < 0 {
			continue
		}
		for _, m := range selector.FindAllStringSubmatch(expr[at[4]:at[5]], -1) {
			if !slices.Contains(own, m[1]) {
				wrong = append(wrong, fmt.Sprintf("%s has no label %s", name, m[1]))
			}
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(m[1], ",") {
			if label = strings.TrimSpace(label); label != "" && !slices.Contains(known, label) {
				wrong = append(wrong, "nothing in it has a label "+label)
			}
		}
	}
	if len(found) == 0 && !strings.Contains(expr, "up{") {
		wrong = append(wrong, "it names no metric")
	}
	return wrong
}

// TestCheckExpr proves that the check of expressions finds each kind of mistake.
func TestCheckExpr(t *testing.T) {
	sc := scrape{
		kinds: map[string]string{"leat_a_total": "counter", "leat_b": "gauge", "leat_c_seconds": "histogram"},
		labels: map[string]map[string]struct{}{
			"leat_a_total": {"reason": {}}, "leat_b": {}, "leat_c_seconds_bucket": {"le": {}, "api": {}},
		},
	}
	for expr, want := range map[string]int{
		`sum by (reason) (rate(leat_a_total{reason="x"}[5m]))`:                         0,
		`leat_b{instance=~"$instance"} / leat_b > 0.5`:                                 0,
		`histogram_quantile(0.99, sum by (le, api) (rate(leat_c_seconds_bucket[5m])))`: 0,
		`up{job="leat"} == 0`:                     0,
		`rate(leat_nothing_total[5m])`:            1,
		`leat_a_total > 1`:                        1,
		`rate(leat_b[5m])`:                        1,
		`leat_b{topic="x"}`:                       1,
		`sum by (topic) (rate(leat_a_total[5m]))`: 1,
		`vector(1)`:                               1,
	} {
		if wrong := sc.checkExpr(expr); len(wrong) != want {
			t.Errorf("%s: %q, want %d mistakes", expr, wrong, want)
		}
	}
}

// useEveryDoor makes every series appear that appears only when something happens: good and bad requests, records and
// streams through each door.
func useEveryDoor(t *testing.T, s *server) {
	t.Helper()
	s.createTopic("ops", 2)
	s.post("/v1/topics/ops/partitions/0/records?value=line", typeNDJSON, "one\ntwo\n")
	s.get("/v1/topics/ops/partitions/0/records?from=earliest")
	s.do("GET", "/v1/topics/none", nil).want(404)
	w := s.wire()
	w.mustProduce("ops", 1, encode(t, kgo.NoCompression(), values(1, "three")))
	damaged := encode(t, kgo.NoCompression(), values(1, "four"))
	damaged[len(damaged)-1]++
	if got := w.produce("ops", 1, -1, damaged); got.ErrorCode != codeCorruptMessage {
		t.Errorf("a damaged batch: code %d", got.ErrorCode)
	}
	w.fetch("ops", 1, 0, 1<<20)
	refuseConnection(t, s)

	for path, accept := range map[string]string{
		"/v1/topics/ops/records?from=earliest":             typeSSE,
		"/v1/topics/ops/records?from=earliest&stream=true": typeNDJSON,
	} {
		if _, err := s.stream(path, accept).body.ReadByte(); err != nil {
			t.Error(err)
		}
	}
	ws := s.socket()
	ws.say(`{"type":"subscribe","id":1,"sub":1,"topic":"ops","from":{"0":0}}`)
	ws.want("subscribed")
	ws.wantData(0, 0, 2)
	ws.say(`{"type":"produce","id":2,"topic":"ops","records":[{"partition":1,"value":5}]}`)
	ws.want("produced")
	ws.say(`{"type":"nothing"}`)
	ws.want("error")
	s.refusal("Origin: http://elsewhere.example")
}

// refuseConnection sends the Kafka door a request of a negative size, which it answers by closing.
func refuseConnection(t *testing.T, s *server) {
	t.Helper()
	w := s.wire()
	if _, err := w.nc.Write([]byte{0xff, 0xff, 0xff, 0xff}); err != nil {
		t.Fatal(err)
	}
	if err := w.nc.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if b, err := w.r.ReadByte(); err == nil {
		t.Errorf("a request of a negative size was answered: %x", b)
	}
}

// panel is what the test reads of a Grafana panel.
type panel struct {
	ID          int               `json:"id"`
	Type        string            `json:"type"`
	Title       string            `json:"title"`
	Description string            `json:"description"`
	Source      map[string]string `json:"datasource"`
	Targets     []struct {
		Expr   string            `json:"expr"`
		Legend string            `json:"legendFormat"`
		Source map[string]string `json:"datasource"`
	} `json:"targets"`
}

// alert is a rule of alerts.yaml.
type alert struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// TestOpsFiles proves that every metric and label that the dashboard and the alert rules name exists in a running
// server with the type that they take it for, that every panel and alert says what it is, and that the README of the
// folder says what to do about each alert.
func TestOpsFiles(t *testing.T) {
	s := start(t)
	useEveryDoor(t, s)
	sc := s.scrape()
	t.Run("dashboard", func(t *testing.T) { sc.checkDashboard(t) })
	t.Run("alerts", func(t *testing.T) { sc.checkAlerts(t) })
}

func (sc *scrape) checkDashboard(t *testing.T) {
	var dashboard struct {
		Panels      []panel `json:"panels"`
		Annotations struct {
			List []struct{ Expr string } `json:"list"`
		} `json:"annotations"`
		Templating struct {
			List []struct{ Name, Type, Definition string } `json:"list"`
		} `json:"templating"`
	}
	text, err := os.ReadFile(deploy("leat.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	ids, variables := map[int]struct{}{}, 0
	for _, p := range dashboard.Panels {
		if _, double := ids[p.ID]; double || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %d %q: want a title and an id of its own", p.ID, p.Title)
		}
		ids[p.ID] = struct{}{}
		if p.Type != "row" {
			sc.checkPanel(t, p)
		}
	}
	for _, a := range dashboard.Annotations.List {
		for _, wrong := range sc.checkExpr(a.Expr) {
			t.Errorf("annotation %s: %s", a.Expr, wrong)
		}
	}
	for _, v := range dashboard.Templating.List {
		if v.Type != "query" {
			continue
		}
		for _, m := range regexp.MustCompile(`label_values\((\w+)`).FindAllStringSubmatch(v.Definition, -1) {
			if variables++; sc.kind(m[1]) == "" {
				t.Errorf("variable %s: %s does not exist", v.Name, m[1])
			}
		}
	}
	if len(ids) == 0 || variables == 0 {
		t.Errorf("%d panels, %d queries of variables", len(ids), variables)
	}
}

func (sc *scrape) checkPanel(t *testing.T, p panel) {
	source := func(s map[string]string) bool { return s["type"] == "prometheus" && s["uid"] == "${datasource}" }
	if p.Description == "" || len(p.Targets) == 0 || !source(p.Source) {
		t.Errorf("panel %q: want a description, queries, and the data source by variable", p.Title)
	}
	for _, q := range p.Targets {
		for _, wrong := range sc.checkExpr(q.Expr) {
			t.Errorf("panel %q: %s: %s", p.Title, q.Expr, wrong)
		}
		for _, label := range legendLabel.FindAllStringSubmatch(q.Legend, -1) {
			if !regexp.MustCompile(`by \([^)]*\b` + label[1] + `\b`).MatchString(q.Expr) {
				t.Errorf("panel %q: the legend has %s, which %s does not keep", p.Title, label[1], q.Expr)
			}
		}
		if !source(q.Source) {
			t.Errorf("panel %q: data source %v", p.Title, q.Source)
		}
	}
}

func (sc *scrape) checkAlerts(t *testing.T) {
	readme, err := os.ReadFile(deploy("README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		for _, wrong := range sc.checkExpr(a.Expr) {
			t.Errorf("alert %s: %s: %s", a.Alert, a.Expr, wrong)
		}
		severity := a.Labels["severity"]
		if severity != "page" && severity != "ticket" || a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("alert %s: want severity page or ticket, a summary and a description: %+v", a.Alert, a)
		}
		if !bytes.Contains(readme, []byte("| `"+a.Alert+"` |")) {
			t.Errorf("deploy/README.md does not say what to do about %s", a.Alert)
		}
	}
}

// alerts reads the rules.
func alerts(t *testing.T) []alert {
	t.Helper()
	text, err := os.ReadFile(deploy("alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var all []alert
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) == 0 {
		t.Fatal("alerts.yaml has no rules")
	}
	return all
}

// promtool finds Prometheus's checker on the PATH or where make put it. It fails in CI, and skips elsewhere, where
// there is none.
func promtool(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"promtool", filepath.Join("..", "bin", "promtool")} {
		if found, err := exec.LookPath(name); err == nil {
			return found
		}
	}
	if os.Getenv("CI") == "true" {
		t.Fatal("promtool is missing; make test installs it")
	}
	t.Skip("promtool is missing; make test installs it")
	return ""
}

// TestPromtool proves that Prometheus takes the rules and the example configuration, that each alert fires when it
// should and not before (alerts_test.yaml has a case for every one), and that the server's metrics follow Prometheus's
// conventions.
func TestPromtool(t *testing.T) {
	tool := promtool(t)
	s := start(t)
	useEveryDoor(t, s)
	for _, c := range []struct {
		args  []string
		stdin []byte
	}{
		{[]string{"check", "rules", deploy("alerts.yaml")}, nil},
		{[]string{"check", "config", deploy("prometheus.yaml")}, nil},
		{[]string{"test", "rules", deploy("alerts_test.yaml")}, nil},
		{[]string{"check", "metrics"}, s.scrape().text},
	} {
		cmd := exec.Command(tool, c.args...)
		cmd.Stdin = bytes.NewReader(c.stdin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(c.args, " "), err, tail(string(out), 4<<10))
		}
	}
	cases, err := os.ReadFile(deploy("alerts_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range alerts(t) {
		if !bytes.Contains(cases, []byte(`{alertname="`+a.Alert+`"}`)) {
			t.Errorf("alerts_test.yaml has no case for %s", a.Alert)
		}
	}
}

// boundedLabels are the labels that a metric may have: each takes its values from a list in the program, but topic, whose
// values are the topics that exist now, and at most 1,000 of them.
var boundedLabels = []string{
	"acks", "api", "cause", "code", "direction", "kind", "le", "method", "outcome", "quantile", "quota", "reason", "result", "route", "source", "state",
	"status", "topic", "type", "verdict", "version", "via",
}

// TestSeriesAreBounded is case 66: the number of series does not grow with topics that are gone, nor with clients; no
// label tells of a client; and a scrape is quick.
func TestSeriesAreBounded(t *testing.T) {
	s := start(t)
	round := func(i int) {
		name := fmt.Sprintf("gone-%d", i)
		s.createTopic(name, 2)
		s.post("/v1/topics/"+name+"/records?value=line", typeNDJSON, "a\n")
		visit(t, s, name, i)
		s.do("DELETE", "/v1/topics/"+name, nil).want(204)
	}
	useEveryDoor(t, s)
	round(0)
	before := s.scrape()
	const rounds = 200
	for i := range rounds {
		round(1 + i)
	}
	var sc scrape
	eventually(t, "the series of deleted topics to go", func() error {
		sc = s.scrape()
		if n, most := len(sc.series), len(before.series)*105/100; n > most {
			var extra []string
			for series := range sc.series {
				if _, old := before.series[series]; !old {
					extra = append(extra, series)
				}
			}
			slices.Sort(extra)
			return fmt.Errorf("%d series after %d before; new ones are %s", n, len(before.series), clip(strings.Join(extra, " ")))
		}
		return nil
	})
	if len(sc.series) < len(before.series)*95/100 {
		t.Errorf("%d series after %d before", len(sc.series), len(before.series))
	}
	quickest := sc.took
	for range 5 {
		quickest = min(quickest, s.scrape().took)
	}
	if quickest > 200*time.Millisecond {
		t.Errorf("a scrape took %v", quickest)
	}

	address := regexp.MustCompile(`\d+\.\d+\.\d+\.\d+|\[?::1\]?|:\d{4,5}$`)
	for label, values := range sc.values {
		if !slices.Contains(boundedLabels, label) {
			t.Errorf("label %s is not among those known to be bounded", label)
		}
		if len(values) > 64 && label != "le" {
			t.Errorf("label %s has %d values", label, len(values))
		}
		for value := range values {
			if address.MatchString(value) || strings.Contains(value, clientName) || strings.Contains(value, "gone-") {
				t.Errorf("label %s tells of a client or a topic that is gone: %q", label, value)
			}
		}
	}
}

// clientName is in every name that a client of TestSeriesAreBounded gives itself.
const clientName = "visitor"

// visit connects to each door from an address of its own and with a name of its own, reads the topic, and leaves.
func visit(t *testing.T, s *server, topic string, i int) {
	t.Helper()
	dial := func(addr string) net.Conn {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i))}}
		nc, err := from.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		return nc
	}
	name := fmt.Sprintf("%s-%d", clientName, i)
	for range 4 {
		nc := dial(s.Kafka)
		req := kmsg.NewPtrApiVersionsRequest()
		req.ClientSoftwareName, req.ClientSoftwareVersion = name, "1"
		req.SetVersion(3)
		if _, err := nc.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID(name)).AppendRequest(nil, req, int32(i))); err != nil {
			t.Fatal(err)
		}
		if _, err := readFrame(nc); err != nil {
			t.Fatal(err)
		}
		_ = nc.Close() // nothing more is read
	}
	for _, path := range []string{
		fmt.Sprintf("/v1/topics/%s/partitions/0/records?offset=%d&wait=0", topic, i), "/" + name, "/v1/topics/" + name,
	} {
		nc := dial(s.HTTP)
		if _, err := fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: x\r\nUser-Agent: %s\r\nConnection: close\r\n\r\n", path, name); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, nc); err != nil {
			t.Fatal(err)
		}
		_ = nc.Close() // the server has closed it
	}
	nc := dial(s.HTTP)
	st, err := openStream(nc, "/v1/topics/"+topic+"/records?from=earliest", "Accept: "+typeSSE, "User-Agent: "+name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.body.ReadByte(); err != nil {
		t.Error(err)
	}
	_ = nc.Close() // a stream ends so
	nc = dial(s.HTTP)
	ws, err := openSocket(nc, "User-Agent: "+name)
	if err != nil {
		t.Fatal(err)
	}
	if err := ws.send(`{"type":"subscribe","id":"%s","sub":"%s","topic":"%s","from":"earliest"}`, name, name, topic); err != nil {
		t.Fatal(err)
	}
	for kind := ""; kind != "data"; {
		m, err := ws.next()
		if err != nil {
			t.Fatal(err)
		}
		kind = m.Type
	}
	_ = nc.Close() // without a close frame, as a browser that crashed
}
