package group

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// shardScript runs replicas of one partition by hand. What a command makes a
// shard ask for is done at once, unless the script holds it.
type shardScript struct {
	*testing.T
	nodes  map[string]*node
	n      *node // that the command is of
	cfg    Config
	topics everyTopic
	now    time.Time
	token  Token
	names  map[Token]string
	ids    int
	out    strings.Builder
}

// Each rule of a shard has a script in testdata/shard that says what it asks for
// and whom it answers, and when.
func TestShardScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/shard", func(t *testing.T, path string) {
		s := &shardScript{T: t, nodes: map[string]*node{}, now: start, names: map[Token]string{}, topics: everyTopic{map[[16]byte]bool{}}}
		s.cfg = Config{
			MinSession: time.Second, MaxSession: 30 * time.Minute, MaxSize: 5,
			NewMemberID: func(name string) string { s.ids++; return fmt.Sprintf("%s-%d", name, s.ids) },
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.T = t
			return s.run(d)
		})
	})
}

func (s *shardScript) arg(d *datadriven.TestData, name string) string {
	if !d.HasArg(name) {
		return ""
	}
	var v string
	d.ScanArgs(s.T, name, &v)
	return v
}

func (s *shardScript) number(d *datadriven.TestData, name string, otherwise int64) int64 {
	if !d.HasArg(name) {
		return otherwise
	}
	var v int64
	d.ScanArgs(s.T, name, &v)
	return v
}

func (s *shardScript) printf(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

// node finds the replica that a command is of: "a" unless it says on=.
func (s *shardScript) node(d *datadriven.TestData) *node {
	name := s.arg(d, "on")
	if name == "" {
		name = "a"
	}
	n := s.nodes[name]
	if n == nil {
		n = &node{log: &memLog{}, view: newMemView(), applied: Applied{Epoch: -1}, batches: 100, tell: s.tell, trace: s.printf}
		s.nodes[name] = n
		s.open(n)
	}
	return n
}

// open makes the shard of a process that has begun.
func (s *shardScript) open(n *node) {
	n.shard = NewShard(n.options(&s.cfg, s.topics))
	if err := n.shard.Check(s.now, n.log); err != nil {
		s.printf("%v", err)
	}
}

func (s *shardScript) run(d *datadriven.TestData) string {
	s.out.Reset()
	s.n = s.node(d)
	if !s.runLog(d) && !s.runGroup(d) {
		s.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
	s.n.drive(s.now)
	if s.out.Len() == 0 {
		return "nothing\n"
	}
	return s.out.String()
}

// runLog is the commands about replicas, logs and disks.
func (s *shardScript) runLog(d *datadriven.TestData) bool {
	n, epoch := s.n, int32(s.number(d, "epoch", 0))
	switch d.Cmd {
	case "lead":
		if err := n.shard.Lead(s.now, epoch, n.log); err != nil {
			s.printf("%v", err)
		}
	case "resign":
		n.shard.Resign(s.now, epoch)
	case "hw": // the log is committed
		n.shard.Committed(s.number(d, "to", n.log.end()))
	case "log": // batches that are there, one a line: epoch, then group=offset …
		for line := range strings.Lines(d.Input) {
			n.log.batches = append(n.log.batches, s.batch(strings.Fields(line)))
		}
	case "many": // a batch of a group's offsets, each of another partition
		b := memBatch{epoch: epoch}
		for p := range int32(s.number(d, "n", 0)) {
			o := Offset{Topic: topicNamed("t"), Epoch: -1, At: s.now.UnixMilli(), Expires: -1}
			b.changes = append(b.changes, Change{Group: s.arg(d, "group"), Topic: "t", Partition: p, Offset: &o})
		}
		n.log.batches = append(n.log.batches, b)
	case "copy": // the log of another replica
		n.log.batches = append([]memBatch(nil), s.nodes[s.arg(d, "of")].log.batches...)
	case "cut":
		n.log.cut(s.number(d, "to", 0))
		if err := n.shard.Check(s.now, n.log); err != nil {
			s.printf("%v", err)
		}
	case "restart": // the process ends; the view has what it had, or nothing
		if d.HasArg("empty") {
			n.view, n.applied = newMemView(), Applied{Epoch: -1}
		}
		if d.HasArg("next") {
			n.applied = Applied{Next: s.number(d, "next", 0), Epoch: epoch}
		}
		n.asked, n.due = nil, nil
		s.open(n)
	case "disk":
		n.holdAppend, n.holdApply, n.noRoom = d.HasArg("hold-append"), d.HasArg("hold-apply"), d.HasArg("full")
		n.batches = int(s.number(d, "batches", 100))
		switch {
		case d.HasArg("refuse"):
			n.refuse, n.lands = errors.New("disk is full"), false
		case d.HasArg("unknown"):
			n.refuse, n.lands = fmt.Errorf("%w: disk is broken", ErrUnknownOutcome), d.HasArg("lands")
		}
		if n.asked != nil && !n.holdAppend {
			n.append(s.now)
		}
		if n.due != nil && !n.holdApply {
			n.apply(s.now)
		}
		n.shard.Retry()
	case "state":
		target, ok := n.shard.Awaits()
		if !ok {
			target = -1
		}
		s.printf("serves: %v, applied %+v, awaits %d, busy %v", n.shard.Serves(), n.shard.Applied(), target, n.shard.Busy())
	case "late": // an append ends that the shard has given up
		n.endLate(s.now)
	case "view-fails":
		n.view.err = errors.New("store is broken")
	default:
		return false
	}
	return true
}

// batch makes a batch of "epoch group=offset …".
func (s *shardScript) batch(words []string) memBatch {
	b := memBatch{}
	_, _ = fmt.Sscan(words[0], &b.epoch)
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		o := Offset{Topic: topicNamed("t"), Epoch: -1, At: s.now.UnixMilli(), Expires: -1}
		_, _ = fmt.Sscan(value, &o.Offset)
		b.changes = append(b.changes, Change{Group: name, Topic: "t", Offset: &o})
	}
	return b
}

// runGroup is the commands of clients.
func (s *shardScript) runGroup(d *datadriven.TestData) bool {
	sh, id := s.n.shard, s.arg(d, "group")
	if id == "" {
		id = "g"
	}
	ref := MemberRef{ID: s.arg(d, "id"), Generation: int32(s.number(d, "generation", -1))}
	switch d.Cmd {
	case "join":
		session := time.Duration(s.number(d, "session", 10)) * time.Second
		sh.Join(s.now, s.ask(d), id, &JoinRequest{
			Member:       Member{ID: ref.ID, ClientID: "c", Session: session, RebalanceTimeout: 2 * time.Minute},
			ProtocolType: "consumer", IDFirst: d.HasArg("id-first"), Protocols: []Protocol{{Name: "range", Metadata: []byte{0, 1, 0, 0, 0, 1, 0, 1, 't', 0, 0, 0, 0}}},
		})
	case "sync":
		sh.Sync(s.now, s.ask(d), id, &SyncRequest{MemberRef: ref, Assignments: map[string][]byte{ref.ID: []byte("all")}})
	case "heartbeat":
		sh.Heartbeat(s.now, s.ask(d), id, ref)
	case "leave":
		sh.Leave(s.now, s.ask(d), id, []MemberRef{ref})
	case "commit":
		sh.Commit(s.now, s.ask(d), id, ref, s.offsets(d, id))
	case "seek":
		sh.Seek(s.now, s.ask(d), id, func() error { return nil }, s.offsets(d, id))
	case "fetch":
		sh.Fetch(s.now, s.ask(d), id, "t", []int32{0})
	case "describe":
		sh.Describe(s.now, s.ask(d), id, errors.New("no such group"))
	case "list":
		sh.List(s.now, s.ask(d))
	case "delete":
		sh.Delete(s.now, s.ask(d), id, errors.New("no such group"))
	case "delete-offsets":
		sh.DeleteOffsets(s.now, s.ask(d), id, errors.New("no such group"), []TopicOffsets{{ID: topicNamed("t"), Name: "t", Partitions: []int32{0}}})
	case "expire":
		if d.HasArg("gone") {
			s.topics.gone[topicNamed("t")] = true
		}
		sh.Expire(s.now, s.ask(d), []string{id}, time.Minute, !d.HasArg("gone"))
	case "take":
		sh.Take(s.now, s.ask(d), id, &LeaseTake{
			Request: &TakeRequest{Topics: []TakeTopic{{ID: topicNamed("t"), Partitions: 1}}, MaxPartitions: 1, LeaseTerms: LeaseTerms{Duration: time.Minute}},
			NoWait:  d.HasArg("no-wait"), Touch: time.Hour,
		})
	case "arrived":
		sh.Arrived(s.now, id, Partition{Topic: topicNamed("t")})
	case "grant":
		sh.Grant(s.now, s.ask(d), id, s.named(s.arg(d, "of")), fiveRead())
	case "give-back":
		sh.GiveBack(s.now, id, s.named(s.arg(d, "of")), fiveRead())
	case "ack":
		sh.Lease(s.now, s.ask(d), id, func(l *Leases, now time.Time) (LeaseInfo, LeaseEffects, error) {
			return l.Ack(now, Partition{Topic: topicNamed("t")}, Nonce{1}, -1)
		})
	case "release":
		sh.Lease(s.now, s.ask(d), id, func(l *Leases, now time.Time) (LeaseInfo, LeaseEffects, error) {
			return l.Release(now, Partition{Topic: topicNamed("t")}, Nonce{1}, -1, time.Minute)
		})
	case "cancel":
		sh.Cancel(s.now, id, s.named(s.arg(d, "of")))
	case "wait":
		return s.wait(d)
	default:
		return false
	}
	return true
}

// fiveRead is what every take finds.
func fiveRead() []Read {
	return []Read{{At: Partition{Topic: topicNamed("t")}, First: 0, Next: 5, Count: 5, End: 5, Nonce: Nonce{1}}}
}

func (s *shardScript) offsets(d *datadriven.TestData, id string) []Change {
	o := Offset{Topic: topicNamed("t"), Offset: s.number(d, "offset", 0), Epoch: int32(s.number(d, "leader", -1)), At: s.now.UnixMilli(), Expires: -1}
	if after := s.number(d, "expires", 0); after > 0 { // seconds
		o.Expires = s.now.Add(time.Duration(after) * time.Second).UnixMilli()
	}
	return []Change{{Group: id, Topic: "t", Offset: &o}}
}

// wait lets time pass, with a tick of the replica at each deadline.
func (s *shardScript) wait(d *datadriven.TestData) bool {
	v, err := time.ParseDuration(s.arg(d, "for"))
	if err != nil {
		s.Fatal(err)
	}
	end := s.now.Add(v)
	for {
		at, ok := s.n.shard.Deadline()
		if !ok || at.After(end) {
			break
		}
		s.now = at
		s.n.shard.Tick(at)
		s.n.drive(at)
	}
	s.now = end
	return true
}

func (s *shardScript) ask(d *datadriven.TestData) Token {
	s.token++
	s.names[s.token] = d.Cmd
	if as := s.arg(d, "as"); as != "" {
		s.names[s.token] = as
	}
	return s.token
}

func (s *shardScript) named(name string) Token {
	for t, n := range s.names {
		if n == name {
			return t
		}
	}
	s.Fatalf("no request is called %q", name)
	return 0
}

func (s *shardScript) tell(a Answer) {
	name := s.names[a.Token]
	if name == "" {
		s.printf("token %d is answered again", a.Token)
		return
	}
	if _, ok := a.Value.([]Reservation); !ok { // whose grant names it
		delete(s.names, a.Token)
	}
	s.printf("%s: %s", name, showAnswer(a))
}

func showAnswer(a Answer) string {
	if a.Err != nil {
		return a.Err.Error()
	}
	switch v := a.Value.(type) {
	case nil:
		return "ok"
	case JoinReply:
		return fmt.Sprintf("%s in generation %d, leader %s", v.MemberID, v.Generation, v.Leader)
	case SyncReply:
		return fmt.Sprintf("%q", v.Assignment)
	case []error:
		return fmt.Sprint(v)
	case []*Offset:
		if v[0] == nil {
			return "nothing"
		}
		return fmt.Sprintf("offset %d of epoch %d", v[0].Offset, v[0].Epoch)
	case Description:
		return fmt.Sprintf("%s, generation %d, %d members", v.State, v.Generation, len(v.Members))
	case []Reservation:
		return fmt.Sprintf("%d partitions", len(v))
	case []LeaseInfo:
		return fmt.Sprintf("%d leases", len(v))
	case LeaseInfo:
		return fmt.Sprintf("committed %d", v.Committed)
	default:
		return fmt.Sprint(v)
	}
}
