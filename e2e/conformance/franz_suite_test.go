package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// franzTests are the tests of kgo that talk to a server, but for those of KIP-848 and of share groups, which skip
// themselves, and for those of SASL.
var franzTests = []string{
	"TestPing", "TestClient_Produce", "TestClient_ProduceLargeMessages", "TestGroupSimple", "TestGroupETL",
	"TestAddRemovePartitions", "TestConsumeMaxDecompressBatchBytes", "TestConsumeRegex", "TestConsumeTopicRetrieval",
	"TestConsumeTopicRetrieval_Many", "TestDirectPartitionPurge", "TestHookPollStart", "TestIssue325", "TestIssue337",
	"TestIssue434", "TestIssue523", "TestIssue648", "TestIssue769", "TestIssue810", "TestIssue831", "TestIssue865",
	"TestIssue1034", "TestIssueFetchLargerThanBrokerMaxReadBytes", "TestIssueProduceSyncManualPartitionNegativeDoesNotPanic",
	"TestPauseIssue489", "TestPauseIssueOct2023", "TestPooling", "TestUnknownGroupOffsetFetchPinned",
}

// franzTransactions are the tests of transactions.
var franzTransactions = []string{"TestTxnEtl"}

// franzSuite is franz-go's own integration suite, out of the module cache.
var franzSuite = suite{name: "franz-go's tests", long: true, run: runFranzSuite}

func runFranzSuite(t *testing.T, addr string, report func(test string, err error)) (version string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	if version, err = moduleVersion(ctx, "github.com/twmb/franz-go"); err != nil {
		return "", err
	}
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/twmb/franz-go").Output()
	if err != nil {
		return "", err
	}
	for _, part := range []struct {
		tests []string
		limit time.Duration
	}{{franzTests, 5 * time.Minute}, {franzTransactions, 20 * time.Second}} {
		results, err := runGoTests(ctx, strings.TrimSpace(string(dir)), addr, part.tests, part.limit)
		if err != nil {
			return "", err
		}
		for _, name := range part.tests {
			report(name, results[name])
		}
	}
	return version, nil
}

// runGoTests runs tests of kgo and returns what came of each; one that did not pass is an error.
func runGoTests(ctx context.Context, dir, addr string, tests []string, limit time.Duration) (map[string]error, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-timeout", limit.String(), "-run", "^("+strings.Join(tests, "|")+")$", "./pkg/kgo")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KGO_SEEDS="+addr, "KGO_TEST_RF=1", "KGO_TEST_RECORDS=10000", "KGO_LOG_LEVEL=none", "GOFLAGS=-mod=readonly")
	words := &lockedBuffer{}
	cmd.Stderr = words
	out, err := cmd.Output()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		return nil, err
	}
	results, output := map[string]error{}, map[string][]byte{}
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct{ Action, Test, Output string }
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue
		}
		name, _, sub := strings.Cut(event.Test, "/")
		switch {
		case event.Action == "output":
			output[name] = append(output[name], event.Output...)
		case sub || name == "":
		case event.Action == "pass":
			results[name] = nil
		case event.Action == "fail" || event.Action == "skip":
			results[name] = fmt.Errorf("%s: %s", event.Action, output[name][max(0, len(output[name])-4<<10):])
		}
	}
	for _, name := range tests {
		if _, ok := results[name]; !ok {
			results[name] = errors.Join(errors.New("it did not end"), err, errors.New(words.last()))
		}
	}
	return results, lines.Err()
}
