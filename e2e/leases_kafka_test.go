package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// takeLeases asks a server for work.
func (s *server) takeLeases(group, body string) answer {
	s.t.Helper()
	return s.do(http.MethodPost, "/v1/groups/"+group+"/leases", []byte(body), "Content-Type: "+typeJSON)
}

// leases are those of an answer that must be good.
func (a answer) leases() []lease {
	a.t.Helper()
	var out struct{ Leases []lease }
	if a.status != http.StatusOK {
		a.t.Fatalf("%s: %d %s", a.asked, a.status, a.body)
	}
	if err := json.Unmarshal(a.body, &out); err != nil {
		a.t.Fatal(err)
	}
	return out.Leases
}

// managing is told why a client of the Kafka protocol is no member.
type managing chan error

func (m managing) OnGroupManageError(err error) {
	select {
	case m <- err:
	default:
	}
}

// TestLeasesAndMembers proves that a group is either of leases or of members: franz-go and kcat are refused in the one, for
// as long as it exists, and a take in the other, for as long as it has members; a group that its members have left goes on
// by leases where they were, and its offsets are Kafka's as before.
func TestLeasesAndMembers(t *testing.T) {
	needTool(t, "kcat")
	s := start(t, groupArgs...)
	s.createTopic("t", 2)
	s.fill(2, 20)

	member := s.join()
	eventually(t, "a member", func() error {
		if member.parts() != 2 {
			return fmt.Errorf("%d partitions", member.parts())
		}
		return nil
	})
	if a := s.takeLeases("g", `{"topics":["t"]}`); a.status != http.StatusConflict || !strings.Contains(string(a.body), "group_type_conflict") {
		t.Errorf("a take in a group with members: %d %s", a.status, a.body)
	}
	eventually(t, "the commits", func() error {
		if a, b := s.committed(0), s.committed(1); a != 20 || b != 20 {
			return fmt.Errorf("%d and %d are committed", a, b)
		}
		return nil
	})
	member.stop()
	member.Close()
	s.fill(2, 5)
	var held []lease
	eventually(t, "the end of the member", func() error {
		a := s.takeLeases("g", `{"topics":["t"],"max_records":10,"lease_ms":60000}`)
		if a.status == http.StatusConflict {
			return errors.New("the group has a member still")
		}
		held = a.leases()
		return nil
	})
	if len(held) == 0 || held[0].First != 20 {
		t.Fatalf("the first lease after the member: %+v", held)
	}

	// A member of the Kafka protocol is refused while leases live, and afterwards.
	refused := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		failed := make(managing, 1)
		client := s.kgo(kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"), kgo.WithHooks(failed))
		select {
		case err := <-failed:
			if !errors.Is(err, kerr.InconsistentGroupProtocol) {
				t.Errorf("franz-go: %v", err)
			}
		case <-ctx.Done():
			t.Error("franz-go was not refused")
		}
		client.CloseAllowingRebalance()
		cmd := exec.CommandContext(ctx, "kcat", "-b", s.Kafka, "-G", "g", "t")
		words, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		told := false
		for lines := bufio.NewScanner(words); !told && lines.Scan(); {
			line := strings.ToLower(lines.Text())
			told = strings.Contains(line, "inconsistent") || strings.Contains(line, "protocol") && strings.Contains(line, "join")
		}
		if !told {
			t.Error("kcat was not refused")
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	refused()

	// The command line shows who has what, and how far behind the group is.
	out, words, code := run(t, "", "group", "describe", "g", "--server", s.Kafka)
	if code != 0 || !strings.Contains(out, "lease") || !strings.Contains(out, "DELIVERIES") || !strings.Contains(out, "live") {
		t.Errorf("group describe: exit %d\n%s%s", code, out, words)
	}
	out, _, code = run(t, "", "group", "describe", "g", "--json", "--server", s.Kafka)
	var detail struct {
		Type   string `json:"protocol_type"`
		State  string
		Leases []struct {
			Topic     string
			Partition int
			First     int64 `json:"first_offset"`
			Next      int64 `json:"next_offset"`
			Deadline  int64
		}
		Partitions []struct {
			Partition int
			Lag       int64
			Member    string `json:"member_id"`
		}
	}
	if err := json.Unmarshal([]byte(out), &detail); err != nil || code != 0 {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	if detail.Type != "lease" || detail.State != "Stable" || len(detail.Leases) != len(held) || len(detail.Partitions) != 2 || detail.Partitions[0].Lag != 5 {
		t.Errorf("group describe: %s", out)
	}
	for i, l := range detail.Leases {
		if h := held[i]; l.Partition == h.Partition && (l.First != h.First || l.Next != h.Next || l.Deadline != h.Deadline) {
			t.Errorf("group describe: lease %+v, was given %+v", l, h)
		}
	}
	if strings.Contains(out, held[0].ID) {
		t.Error("the description has the id of a lease")
	}
	if out, _, _ = run(t, "", "group", "list", "--server", s.Kafka); !strings.Contains(out, "lease") || !strings.Contains(out, "Stable") {
		t.Errorf("group list:\n%s", out)
	}

	for _, l := range held {
		s.post("/v1/groups/g/leases/"+l.ID+":ack", typeJSON, "{}")
		if got := s.committed(int32(l.Partition)); got != l.Next {
			t.Errorf("partition %d: Kafka says %d is committed, the lease ended at %d", l.Partition, got, l.Next)
		}
	}
	refused()
	if a := s.do(http.MethodDelete, "/v1/groups/g", nil); a.status != http.StatusNoContent {
		t.Errorf("delete: %d %s", a.status, a.body)
	}
	again := s.join()
	eventually(t, "a member after the group was deleted", func() error {
		if again.parts() != 2 {
			return fmt.Errorf("%d partitions", again.parts())
		}
		return nil
	})
}

// TestLeasesDrain proves that a server that is told to stop answers those who wait for work at once, with nothing and
// without an error, and that a lease that it gave out lives on in the next process.
func TestLeasesDrain(t *testing.T) {
	s := start(t)
	s.createTopic("t", 1)
	s.createTopic("idle", 1)
	s.fill(1, 3)
	held := s.takeLeases("g", `{"topics":["t"],"lease_ms":60000}`).leases()
	if len(held) != 1 {
		t.Fatalf("%+v", held)
	}
	const waiters = 20
	began := time.Now()
	answers := make(chan answer, waiters)
	for range waiters {
		go func() {
			a, err := s.try(http.MethodPost, "/v1/groups/g/leases", []byte(`{"topics":["idle"],"wait_ms":20000}`), "Content-Type: "+typeJSON)
			if err != nil {
				t.Errorf("a take that waits: %v", err)
			}
			answers <- a
		}()
	}
	eventually(t, "the requests", func() error {
		text := string(s.scrape().text)
		if !strings.Contains(text, fmt.Sprintf("\nleat_lease_takes_waiting %d\n", waiters)) {
			return errors.New("not all of them wait")
		}
		return nil
	})
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range waiters {
		a := <-answers
		if a.status != http.StatusOK || !strings.Contains(string(a.body), `{"leases":[]}`) || !a.closes {
			t.Errorf("%d %s, close %v", a.status, a.body, a.closes)
		}
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("they were told after %v", took)
	}
	s.wait()
	s.restart()
	if got := s.takeLeases("g", `{"topics":["t"]}`).leases(); len(got) != 0 {
		t.Errorf("a lease was handed out twice: %+v", got)
	}
	s.post("/v1/groups/g/leases/"+held[0].ID+":ack", typeJSON, "{}")
}
