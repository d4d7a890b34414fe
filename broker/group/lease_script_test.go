package group

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// leaseScript runs the leases of one group by hand. Topics are single letters and
// leases are named by number.
type leaseScript struct {
	l      *Leases
	cfg    LeaseConfig
	now    time.Time
	token  Token
	names  map[Token]string
	tokens map[string]Token
	terms  map[Token]LeaseTerms
	nonces byte
}

// Every rule of leases has a script in testdata/lease that says what the state
// machine hands out, persists and asks for, and when.
func TestLeaseScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/lease", func(t *testing.T, path string) {
		s := &leaseScript{now: start, names: map[Token]string{}, tokens: map[string]Token{}, terms: map[Token]LeaseTerms{}}
		s.cfg = LeaseConfig{MaxWaiting: 3, Aside: 5 * time.Second, Linger: time.Minute}
		s.l = NewLeases(&s.cfg, s.now)
		datadriven.RunTest(t, path, s.run)
	})
}

func leaseTopic(name string) [16]byte { return [16]byte{name[0]} }

func (s *leaseScript) at(v string) Partition {
	p := Partition{Topic: leaseTopic(v)}
	_, _ = fmt.Sscan(v[1:], &p.Number)
	return p
}

func (s *leaseScript) run(t *testing.T, d *datadriven.TestData) string {
	text := func(name, def string) string {
		if d.HasArg(name) {
			d.ScanArgs(t, name, &def)
		}
		return def
	}
	number := func(name string, def int64) int64 {
		if d.HasArg(name) {
			d.ScanArgs(t, name, &def)
		}
		return def
	}
	span := func(name string) time.Duration {
		v, err := time.ParseDuration(text(name, "0s"))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	at, nonce := s.at(text("at", "a0")), Nonce{byte(number("lease", 0))}
	switch d.Cmd {
	case "take":
		return s.take(text("as", "w"), text("topics", "a"), int32(number("partitions", 2)), number("latest", -1), int(number("max", 64)), LeaseTerms{
			Duration: 10 * time.Second, MaxDeliveries: int32(number("deliveries", 0)), DeadLetter: text("dead", ""),
		})
	case "ack-and-take":
		return s.ackAndTake(text("as", "w"), int32(number("partitions", 2)), int(number("max", 64)), d.Input)
	case "arrived":
		return s.show(s.l.Arrived(s.now, at))
	case "grant":
		return s.grant(text("as", "w"), d.Input)
	case "cancel":
		return s.show(s.l.Cancel(s.now, s.tokens[text("as", "w")]))
	case "ack":
		i, e, err := s.l.Ack(s.now, at, nonce, number("upto", -1))
		return s.verdict(&i, e, err)
	case "extend":
		i, e, err := s.l.Extend(s.now, at, nonce, span("for"))
		return s.verdict(&i, e, err)
	case "release":
		i, e, err := s.l.Release(s.now, at, nonce, number("upto", -1), span("delay"))
		return s.verdict(&i, e, err)
	case "return":
		return s.show(s.l.Return(s.now, at, nonce))
	case "commit":
		return s.show(s.l.Commit(s.now, at, number("offset", -1)))
	case "drop":
		return s.show(s.l.DropTopic(s.now, leaseTopic(text("topic", "a"))))
	case "restart":
		return s.restart(span("after"))
	case "wait":
		return s.wait(span("for"))
	case "late": // time passes, and nobody looks
		s.now = s.now.Add(span("for"))
		return ""
	case "list":
		return s.list()
	default:
		t.Fatalf("unknown command %q", d.Cmd)
		return ""
	}
}

func (s *leaseScript) take(as, topics string, partitions int32, latest int64, most int, terms LeaseTerms) string {
	s.token++
	s.names[s.token], s.tokens[as], s.terms[s.token] = as, s.token, terms
	r := &TakeRequest{MaxPartitions: most, LeaseTerms: terms}
	for c := range strings.SplitSeq(topics, "") {
		in := TakeTopic{ID: leaseTopic(c), Partitions: partitions}
		if latest >= 0 {
			in.Ends = []int64{latest, latest}
		}
		r.Topics = append(r.Topics, in)
	}
	return s.show(s.l.Take(s.now, s.token, r))
}

// ackAndTake reads a line for each ack: the partition and the lease.
func (s *leaseScript) ackAndTake(as string, partitions int32, most int, input string) string {
	s.token++
	terms := LeaseTerms{Duration: 10 * time.Second}
	s.names[s.token], s.tokens[as], s.terms[s.token] = as, s.token, terms
	var acks []Acked
	for line := range strings.Lines(input) {
		f := strings.Fields(line)
		a := Acked{At: s.at(f[0])}
		_, _ = fmt.Sscan(f[1], &a.Nonce[0])
		acks = append(acks, a)
	}
	results, e := s.l.AckAndTake(s.now, s.token, &TakeRequest{Topics: []TakeTopic{{ID: leaseTopic("a"), Partitions: partitions}}, MaxPartitions: most, LeaseTerms: terms}, acks)
	out := ""
	for _, r := range results {
		out += s.verdict(&r.Info, LeaseEffects{}, r.Err)
	}
	return out + s.show(e)
}

// grant reads a line for each partition: its name, first, next, end and what else.
func (s *leaseScript) grant(as, input string) string {
	var reads []Read
	for line := range strings.Lines(input) {
		f := strings.Fields(line)
		r := Read{At: s.at(f[0])}
		if f[1] == "error" {
			r.Err = errors.New("cannot be read")
		} else {
			_, _ = fmt.Sscan(strings.Join(f[1:4], " "), &r.First, &r.Next, &r.End)
			r.Count, r.Dead = int32(r.Next-r.First), len(f) > 4
		}
		if r.Next > r.First {
			s.nonces++
			r.Nonce = Nonce{s.nonces}
		}
		reads = append(reads, r)
	}
	infos, e := s.l.Grant(s.now, s.tokens[as], reads)
	out := ""
	for i := range infos {
		out += s.info(&infos[i])
	}
	return out + s.show(e)
}

func (s *leaseScript) name(at Partition) string { return fmt.Sprintf("%c%d", at.Topic[0], at.Number) }

func (s *leaseScript) info(i *LeaseInfo) string {
	out := fmt.Sprintf("%s: [%d, %d), committed %d", s.name(i.At), i.First, i.Next, i.Committed)
	if i.Live {
		out += fmt.Sprintf(", lease %d until %v, delivery %d", i.Nonce[0], i.Until.Sub(start), i.Deliveries)
	}
	if i.Delayed {
		out += fmt.Sprintf(", delayed until %v, %d deliveries", i.Until.Sub(start), i.Deliveries)
	}
	if i.AlreadyCommitted {
		out += ", already committed"
	}
	return out + "\n"
}

func (s *leaseScript) verdict(i *LeaseInfo, e LeaseEffects, err error) string {
	if err != nil {
		return err.Error() + "\n" + s.show(e)
	}
	return s.info(i) + s.show(e)
}

func (s *leaseScript) show(e LeaseEffects) string {
	var out strings.Builder
	for _, c := range e.Changes {
		switch r := c.Record; {
		case c.Commit:
			fmt.Fprintf(&out, "commit %s: %d, acked %d\n", s.name(c.At), c.Offset, c.Acked[0])
		case r == nil:
			fmt.Fprintf(&out, "persist %s: nothing\n", s.name(c.At))
		default:
			fmt.Fprintf(&out, "persist %s: lease %d [%d, %d) of %d, %d deliveries", s.name(c.At), r.Nonce[0], r.First, r.Next, r.Count, r.Deliveries)
			if !r.Until.IsZero() {
				fmt.Fprintf(&out, ", until %v", r.Until.Sub(start))
			}
			if r.Delayed {
				out.WriteString(", delayed")
			}
			out.WriteByte('\n')
		}
	}
	for _, w := range e.Watches {
		fmt.Fprintf(&out, "watch %s from %d\n", s.name(w.At), w.From)
	}
	for _, h := range e.Handouts {
		fmt.Fprintf(&out, "to %s:", s.names[h.Token])
		if h.Err != nil {
			fmt.Fprintf(&out, " %v", h.Err)
		}
		for _, r := range h.Reservations {
			fmt.Fprintf(&out, " %s from %d", s.name(r.At), r.From)
			if r.Limit < 1<<30 {
				fmt.Fprintf(&out, " at most %d", r.Limit)
			}
			if r.Dead {
				fmt.Fprintf(&out, " dead after %d", r.Deliveries)
			}
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// wait lets time pass, with a tick at each deadline.
func (s *leaseScript) wait(d time.Duration) string {
	var out strings.Builder
	end := s.now.Add(d)
	for at := s.l.Deadline(); !at.After(end); at = s.l.Deadline() {
		s.now = at
		if text := s.show(s.l.Tick(at)); text != "" {
			fmt.Fprintf(&out, "after %v:\n%s", at.Sub(start), text)
		}
		if s.l.Idle(at) {
			fmt.Fprintf(&out, "after %v: idle\n", at.Sub(start))
			s.l.Use(at)
		}
	}
	s.now = end
	return out.String()
}

// restart makes the leases anew of what they would have persisted.
func (s *leaseScript) restart(after time.Duration) string {
	s.now = s.now.Add(after)
	old := s.l
	s.l = NewLeases(&s.cfg, s.now)
	for _, t := range old.topics {
		for _, sl := range t.slots {
			if sl.committed >= 0 {
				s.l.RestoreOffset(sl.at, sl.committed, sl.acked)
			}
		}
	}
	for _, t := range old.topics {
		for _, sl := range t.slots {
			if sl.record != nil {
				s.l.RestoreLease(s.now, sl.at, sl.record)
			}
		}
	}
	return s.list()
}

func (s *leaseScript) list() string {
	out := fmt.Sprintf("%d live, %d waiting\n", s.l.Live(), s.l.Waiting())
	for _, i := range s.l.List() {
		out += s.info(&i)
	}
	return out
}
