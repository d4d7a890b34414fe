package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fuzzChecks are what an answer must hold. That data which does not fit its schema is refused is no part of it: some schemas say
// less than the server does, for a filter or a position is a language of its own.
const fuzzChecks = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance"

// TestSchemathesis proves that requests made up from openapi.yaml are never answered by a 5xx nor by anything that it does not
// have: 2 minutes of them, or as long as LEAT_HTTP_FUZZ says, with a new seed each time (LEAT_SEED repeats one). Nothing is
// excepted: the server does not drain, so it has no reason for a 503, and its disk is not full. The WebSocket has its own tests.
func TestSchemathesis(t *testing.T) {
	tool, err := filepath.Abs("../../bin/conformance/schemathesis/bin/st")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(tool); err != nil {
		t.Fatal("schemathesis is missing; make conformance-tools installs it")
	}
	span := 2 * time.Minute
	if text := os.Getenv("LEAT_HTTP_FUZZ"); text != "" {
		if span, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := os.Getenv("LEAT_SEED")
	if seed == "" {
		seed = fmt.Sprint(rand.Uint32())
	}
	t.Logf("seed %s for %v", seed, span)
	site := "http://" + serveHTTP(t)
	for _, topic := range []string{"fuzz", "fuzz-compact"} {
		send(t, site+"/v1/topics", `{"name":"`+topic+`","partitions":2}`, http.StatusCreated)
		for partition := range 2 {
			send(t, fmt.Sprintf("%s/v1/topics/%s/partitions/%d/records", site, topic, partition), `[{"key":"a","value":1},{"key":"b","value":{"n":2}}]`, http.StatusOK)
		}
	}
	for _, group := range []string{"fuzz-group", "fuzz%2Fgroup%20%C3%A9"} {
		send(t, site+"/v1/groups/"+group+"/leases", `{"topics":["fuzz"],"lease_ms":1000}`, http.StatusOK)
	}
	hooks, err := filepath.Abs("schemathesis/hooks.py")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), span+5*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, tool, "run", site+"/openapi.json", "--checks", fuzzChecks, "--exclude-operation-id", "openWebSocket",
		"--phases", "examples,coverage,fuzzing", "--max-time", fmt.Sprint(int(span.Seconds())), "--seed", seed, "--request-timeout", "20",
		"--generation-database", "none", "--continue-on-failure", "--no-color")
	run.Dir = t.TempDir() // it keeps files where it runs
	run.Env = append(os.Environ(), "SCHEMATHESIS_HOOKS="+hooks)
	run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("%v, seed %s\n%s", err, seed, out)
	}
	_, summary, _ := strings.Cut(string(out), "= SUMMARY =")
	t.Log(summary)
}

// send posts JSON that must be answered with this status.
func send(t *testing.T, url, body string, status int) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only its status counts
	if resp.StatusCode != status {
		var p struct{ Code, Detail string }
		_ = json.NewDecoder(resp.Body).Decode(&p)
		t.Fatalf("%s: %d %+v", url, resp.StatusCode, p)
	}
}
