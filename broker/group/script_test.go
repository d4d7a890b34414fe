package group

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// start is when the scripts begin.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// script runs one group by hand.
type script struct {
	g       *Group
	cfg     Config
	now     time.Time
	token   Token
	names   map[Token]string
	ids     int
	records []*Record
}

func newScript() *script {
	s := &script{now: start, names: make(map[Token]string)}
	s.cfg = Config{
		MinSession: 6 * time.Second, MaxSession: 30 * time.Minute, InitialDelay: 3 * time.Second, MaxSize: 5,
		NewMemberID: func(name string) string { s.ids++; return fmt.Sprintf("%s-%d", name, s.ids) },
	}
	s.g = New("g", &s.cfg, s.now)
	return s
}

// Every rule of the classic protocol has a script in testdata/classic that says what the
// group answers, and when.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/classic", func(t *testing.T, path string) {
		s := newScript()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.run(t, d)
		})
	})
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	arg := func(name string) string {
		if !d.HasArg(name) {
			return ""
		}
		var v string
		d.ScanArgs(t, name, &v)
		return v
	}
	ref := MemberRef{ID: arg("id"), InstanceID: arg("instance"), Generation: s.g.Generation()}
	if v := arg("generation"); v != "" {
		_, _ = fmt.Sscan(v, &ref.Generation)
	}
	switch d.Cmd {
	case "config":
		if v := arg("delay"); v != "" {
			s.cfg.InitialDelay = s.duration(v)
		}
		return ""
	case "join":
		r := &JoinRequest{
			Member:       Member{ID: arg("id"), InstanceID: arg("instance"), ClientID: arg("client"), Session: 10 * time.Second, RebalanceTimeout: time.Minute},
			ProtocolType: "consumer", IDFirst: d.HasArg("id-first"), MaySkip: d.HasArg("may-skip"),
		}
		if v := arg("type"); v != "" {
			r.ProtocolType = v
		}
		if v := arg("session"); v != "" {
			r.Session = s.duration(v)
		}
		if v := arg("rebalance"); v != "" {
			r.RebalanceTimeout = s.duration(v)
		}
		protocols := "range"
		if d.HasArg("protocols") {
			protocols = arg("protocols")
		}
		for p := range strings.SplitSeq(protocols, "+") {
			if name, meta, _ := strings.Cut(p, ":"); name != "" {
				r.Protocols = append(r.Protocols, Protocol{Name: name, Metadata: []byte(meta)})
			}
		}
		return s.show(s.g.Join(s.now, s.next(arg("as")), r))
	case "sync":
		r := &SyncRequest{MemberRef: ref, ProtocolType: arg("type"), Protocol: arg("protocol"), Assignments: map[string][]byte{}}
		for line := range strings.Lines(d.Input) {
			id, to, _ := strings.Cut(strings.TrimSpace(line), "=")
			r.Assignments[id] = []byte(to)
		}
		return s.show(s.g.Sync(s.now, s.next(arg("as")), r))
	case "heartbeat":
		return s.verdict(s.g.Heartbeat(s.now, ref))
	case "may-commit":
		return s.verdict(s.g.MayCommit(s.now, ref))
	case "leave":
		e, err := s.g.Leave(s.now, ref)
		return s.verdict(err) + s.show(e)
	case "cancel":
		for t := s.token; t > 0; t-- {
			if s.names[t] == arg("as") {
				return s.show(s.g.Cancel(s.now, t))
			}
		}
		return "no such request\n"
	case "wait":
		return s.wait(s.duration(arg("for")))
	case "kill":
		return s.show(s.g.Kill(s.now, ErrGone))
	case "restart":
		s.g = Restore("g", &s.cfg, s.records[len(s.records)-1], s.now)
		return s.state()
	case "state":
		return s.state()
	default:
		t.Fatalf("unknown command %q", d.Cmd)
		return ""
	}
}

func (s *script) duration(v string) time.Duration {
	d, err := time.ParseDuration(v)
	if err != nil {
		panic(err)
	}
	return d
}

func (s *script) next(name string) Token {
	s.token++
	s.names[s.token] = name
	return s.token
}

// wait lets time pass, with a tick at each deadline.
func (s *script) wait(d time.Duration) string {
	var out strings.Builder
	end := s.now.Add(d)
	for {
		at, ok := s.g.Deadline()
		if !ok || at.After(end) {
			break
		}
		s.now = at
		if text := s.show(s.g.Tick(at)); text != "nothing\n" {
			fmt.Fprintf(&out, "after %v:\n%s", at.Sub(start), text)
		}
	}
	s.now = end
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

func (s *script) verdict(err error) string {
	if err == nil {
		return "ok\n"
	}
	return err.Error() + "\n"
}

func (s *script) show(e Effects) string {
	var out strings.Builder
	if r := e.Record; r != nil {
		s.records = append(s.records, r)
		fmt.Fprintf(&out, "persist: generation %d, protocol %q, leader %q", r.Generation, r.Protocol, r.Leader)
		for _, m := range r.Members {
			fmt.Fprintf(&out, ", %s=%s", m.ID, m.Assignment)
		}
		out.WriteByte('\n')
	}
	for _, r := range e.Joins {
		fmt.Fprintf(&out, "join %s: ", s.names[r.Token])
		switch {
		case r.Err != nil && r.MemberID != "":
			fmt.Fprintf(&out, "%v (id %s)\n", r.Err, r.MemberID)
		case r.Err != nil:
			fmt.Fprintf(&out, "%v\n", r.Err)
		default:
			fmt.Fprintf(&out, "%s in generation %d, %s %s, leader %s", r.MemberID, r.Generation, r.ProtocolType, r.Protocol, r.Leader)
			if r.SkipAssignment {
				out.WriteString(", skip")
			}
			for _, m := range r.Members {
				fmt.Fprintf(&out, ", %s=%s", m.ID, m.Metadata)
			}
			out.WriteByte('\n')
		}
	}
	for _, r := range e.Syncs {
		if r.Err != nil {
			fmt.Fprintf(&out, "sync %s: %v\n", s.names[r.Token], r.Err)
			continue
		}
		fmt.Fprintf(&out, "sync %s: %q by %s %s\n", s.names[r.Token], r.Assignment, r.ProtocolType, r.Protocol)
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

func (s *script) state() string {
	var ids []string
	for _, m := range s.g.Members() {
		ids = append(ids, m.ID)
	}
	state, since := s.g.State()
	return fmt.Sprintf("%s since %v, generation %d, leader %q, members %v\n", state, since.Sub(start), s.g.Generation(), s.g.Leader(), slices.Clone(ids))
}
