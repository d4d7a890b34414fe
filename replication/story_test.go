package replication

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"leat/replication/controller"
	"leat/storage"
)

// story is the world of a script: some nodes with a replica of one partition
// each, the controller, and what is on its way between them. Nothing happens by
// itself.
type story struct {
	t     *testing.T
	o     Options
	now   Instant
	nodes map[int32]*storyNode
	state *controller.State // as decided last; nobody needs to know of it yet
	// flights are fetches on their way, by name, asks ISR changes.
	flights map[string]*flight
	asks    map[string]*altering
}

type storyNode struct {
	id      int32
	epoch   int64
	log     *toyLog
	replica *Replica // nil while the node is down
	// hw is what the node noted last: all that it knows of it when it starts again.
	hw int64
}

// flight is a fetch: asked, then answered.
type flight struct {
	from    int32
	ask     FetchRequest
	got     FetchResponse
	batches []toyBatch
	err     error
}

// Each script tells how something went wrong once, in Kafka or elsewhere, and
// how it goes here.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := &story{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			out := s.run(d)
			if out != "" && !strings.HasSuffix(out, "\n") {
				out += "\n"
			}
			return out
		})
	})
}

// run does one command. With apply=(1,2) those nodes hear of what is decided by
// then.
func (s *story) run(d *datadriven.TestData) string {
	a := &args{s.t, d}
	run, ok := storyCommands[d.Cmd]
	if !ok {
		s.t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
	out := run(s, a)
	for _, id := range a.ids("apply", nil) {
		out = strings.TrimSuffix(out, "\n") + "\n" + s.applyTo(id)
	}
	return strings.TrimPrefix(out, "\n")
}

var storyCommands = map[string]func(s *story, a *args) string{
	"new":      (*story).begin,
	"decide":   (*story).decide,
	"fence":    (*story).fence,
	"unfence":  (*story).unfence,
	"shutdown": (*story).shutdown,
	"elect":    (*story).elect,
	"config":   (*story).config,
	"apply":    (*story).apply,
	"append":   (*story).append,
	"flush":    (*story).flush,
	"fetch":    (*story).fetch,
	"alter":    (*story).alter,
	"ask":      (*story).ask,
	"serve":    (*story).serve,
	"receive":  (*story).receive,
	"lose":     (*story).lose,
	"crash":    (*story).crash,
	"start":    (*story).start,
	"raise":    (*story).raise,
	"time":     (*story).time,
	"latest":   (*story).latest,
	"ready":    (*story).ready,
	"show":     (*story).show,
}

// args are the arguments of a command.
type args struct {
	t *testing.T
	d *datadriven.TestData
}

// node is the first argument, a number.
func (a *args) node() int32 {
	a.t.Helper()
	if len(a.d.CmdArgs) == 0 {
		a.t.Fatalf("%s: which node?", a.d.Pos)
	}
	n, err := strconv.Atoi(a.d.CmdArgs[0].Key)
	if err != nil {
		a.t.Fatalf("%s: %v", a.d.Pos, err)
	}
	return int32(n)
}

func (a *args) has(key string) bool { return a.d.HasArg(key) }

func (a *args) text(key, other string) string {
	if a.has(key) {
		a.d.ScanArgs(a.t, key, &other)
	}
	return other
}

func (a *args) num(key string, other int64) int64 {
	if a.has(key) {
		a.d.ScanArgs(a.t, key, &other)
	}
	return other
}

func (a *args) ids(key string, other []int32) []int32 {
	for _, arg := range a.d.CmdArgs {
		if arg.Key != key {
			continue
		}
		other = nil
		for _, v := range arg.Vals {
			n, err := strconv.Atoi(v)
			if err != nil {
				a.t.Fatalf("%s: %v", a.d.Pos, err)
			}
			other = append(other, int32(n))
		}
	}
	return other
}

// begin makes a cluster with a topic of one partition, which every node knows:
// new replicas=(1,2) [min=N] [unclean] [durable] [lag=MS] [messages=N].
func (s *story) begin(a *args) string {
	replicas := a.ids("replicas", nil)
	s.o = Options{
		ID: storyID, MinInSync: int(a.num("min", 0)), Durable: a.has("durable"),
		Lag: time.Duration(a.num("lag", 10_000)) * ms, LagMessages: a.num("messages", 0),
	}
	s.now, s.nodes, s.flights, s.asks = 0, map[int32]*storyNode{}, map[string]*flight{}, map[string]*altering{}
	s.state = controller.NewState()
	for _, id := range slices.Sorted(slices.Values(replicas)) {
		s.nodes[id] = &storyNode{id: id, log: &toyLog{}}
		s.up(s.nodes[id], -1)
	}
	configs := map[string]string{"unclean.leader.election.enable": strconv.FormatBool(a.has("unclean"))}
	if s.o.MinInSync > 0 {
		configs["min.insync.replicas"] = strconv.Itoa(s.o.MinInSync)
	}
	s.step(&controller.CreateTopics{Topics: []controller.NewTopic{{ID: storyID.Topic, Name: "t", Assignments: map[int32][]int32{0: replicas}, Configs: configs}}})
	for _, id := range replicas {
		s.applyTo(id)
	}
	return s.decided()
}

var storyID = storage.ID{Topic: storage.TopicID{1}}

// step is the real controller.
func (s *story) step(ev controller.Event) controller.Reply {
	s.t.Helper()
	reply, records := controller.Step(s.state, ev)
	next, err := s.state.With(records)
	if err != nil {
		s.t.Fatal(err)
	}
	s.state = next
	return reply
}

// must is a step that nothing may be wrong with.
func (s *story) must(ev controller.Event) string {
	s.t.Helper()
	if err := errors.Join(s.step(ev).Errs...); err != nil {
		return err.Error()
	}
	return s.decided()
}

func (s *story) part() controller.Partition { return *s.state.Topic(storyID.Topic).Partitions.At(0) }

func (s *story) decided() string {
	p := s.part()
	out := fmt.Sprintf("epoch %d/%d: leader %d, isr %v", p.LeaderEpoch, p.Epoch, p.Leader, p.ISR)
	if len(p.ELR) > 0 {
		out += fmt.Sprintf(", eligible %v", p.ELR)
	}
	if p.Recovering {
		out += ", recovering"
	}
	return out
}

// up starts a node, which registers; before is the epoch that it says it had.
func (s *story) up(n *storyNode, before int64) {
	reply := s.step(&controller.Register{ID: n.id, UUID: fmt.Sprint("disk", n.id), Incarnation: fmt.Sprint(n.epoch), PreviousEpoch: before, Known: s.state.BrokerEpoch(n.id), MinLevel: 1, MaxLevel: controller.Level})
	n.epoch = reply.Epoch
	s.step(&controller.Unfence{ID: n.id, Epoch: n.epoch})
	o := s.o
	o.Self = n.id
	n.replica = NewReplica(o, n.log, n.hw)
	n.replica.Lease(Forever)
}

// decide is by hand what another controller would decide. What is not named
// stays: decide leader=1 isr=(1,2).
func (s *story) decide(a *args) string {
	p := s.part()
	leader := int32(a.num("leader", int64(p.Leader)))
	if leader != p.Leader || a.has("anew") {
		p.LeaderEpoch++
	}
	p.Leader, p.ISR, p.ELR, p.Recovering = leader, a.ids("isr", p.ISR), nil, false
	p.Epoch++
	next, err := s.state.With([]controller.Record{&controller.PartitionChanged{Topic: storyID.Topic, Partition: p}})
	if err != nil {
		a.t.Fatal(err)
	}
	s.state = next
	return s.decided()
}

// fence says that a node's session is over: fence 1.
func (s *story) fence(a *args) string {
	return s.must(&controller.Fence{ID: a.node(), Epoch: s.nodes[a.node()].epoch})
}

// unfence says that it is back.
func (s *story) unfence(a *args) string {
	return s.must(&controller.Unfence{ID: a.node(), Epoch: s.nodes[a.node()].epoch})
}

// shutdown says that a node wants to stop: shutdown 1.
func (s *story) shutdown(a *args) string {
	return s.must(&controller.ShutDown{ID: a.node(), Epoch: s.nodes[a.node()].epoch})
}

// elect elects a leader: elect [unclean], else the preferred one.
func (s *story) elect(a *args) string {
	kind := controller.Preferred
	if a.has("unclean") {
		kind = controller.Unclean
	}
	return s.must(&controller.Elect{IDs: []storage.ID{storyID}, Kind: kind})
}

// config sets min.insync.replicas, which the replicas named hear of at once:
// config min=2 [known=(1)].
func (s *story) config(a *args) string {
	value := a.text("min", "1")
	out := s.must(&controller.SetTopicConfigs{ID: storyID.Topic, Values: map[string]*string{"min.insync.replicas": &value}})
	s.o.MinInSync = int(a.num("min", 1))
	for _, id := range a.ids("known", nil) {
		o := s.o
		o.Self = id
		s.nodes[id].replica.Configure(o, s.now)
	}
	return out
}

// apply tells nodes what is decided: apply 1 2 3.
func (s *story) apply(a *args) string {
	var out []string
	for i := range a.d.CmdArgs {
		id, err := strconv.Atoi(a.d.CmdArgs[i].Key)
		if err != nil {
			a.t.Fatal(err)
		}
		out = append(out, s.applyTo(int32(id)))
	}
	return strings.Join(out, "\n")
}

func (s *story) applyTo(id int32) string {
	n := s.nodes[id]
	c, err := n.replica.Decide(s.part(), s.state, s.now)
	if err != nil {
		return fmt.Sprintf("%d: %v", id, err)
	}
	out := fmt.Sprintf("%d: %v", id, c.Role)
	for _, w := range []struct {
		is   bool
		what string
	}{{c.NewEpoch, " of a new epoch"}, {c.Resigned, ", resigned"}, {c.Rose, ", hw rose to " + strconv.FormatInt(n.replica.HighWatermark(), 10)}} {
		if w.is {
			out += w.what
		}
	}
	return out
}

// append gives the leader a batch: append 1 value=a [count=N] [acks=all] [lazy].
func (s *story) append(a *args) string {
	n := s.nodes[a.node()]
	if err := n.replica.CheckAppend(a.text("acks", "1") == "all", s.now); err != nil {
		return err.Error()
	}
	n.log.append(n.replica.LeaderEpoch(), a.num("count", 1), a.text("value", "?"), a.has("lazy"))
	rose := n.replica.Advance(s.now)
	return fmt.Sprintf("ends at %d%s", n.log.end, s.risen(n, rose))
}

// flush makes a node's log durable: flush 1.
func (s *story) flush(a *args) string {
	n := s.nodes[a.node()]
	n.log.durable = n.log.end
	return fmt.Sprintf("durable to %d%s", n.log.end, s.risen(n, n.replica.Advance(s.now)))
}

func (s *story) risen(n *storyNode, rose bool) string {
	if !rose {
		return ""
	}
	return fmt.Sprintf(", hw rose to %d", n.replica.HighWatermark())
}

// crash ends a node, which may have noted its high watermark before; it loses the
// last records of its log: crash 1 [noted] [lose=N].
func (s *story) crash(a *args) string {
	n := s.nodes[a.node()]
	if a.has("noted") {
		n.hw = n.replica.HighWatermark()
	}
	n.replica = nil
	n.log.truncate(n.log.end - a.num("lose", 0))
	n.log.durable = n.log.end
	return ""
}

// start begins a new life of a node that ended. It registers with the epoch
// before, or with unclean as one that may have lost records: start 1 [unclean].
func (s *story) start(a *args) string {
	n := s.nodes[a.node()]
	before := n.epoch
	if a.has("unclean") {
		before = -1
	}
	s.up(n, before)
	return fmt.Sprintf("log ends at %d, hw %d\n%s", n.log.end, n.replica.HighWatermark(), s.decided())
}

// raise drops records at the begin of a log: raise 1 to=5.
func (s *story) raise(a *args) string {
	n := s.nodes[a.node()]
	n.log.raise(a.num("to", 0))
	n.replica.Advance(s.now)
	return ""
}

// time lets it pass: time 500 (ms).
func (s *story) time(a *args) string {
	s.now += time.Duration(a.node()) * ms
	return ""
}

// latest asks a node for its latest offset, as a consumer does: latest 1.
func (s *story) latest(a *args) string {
	hw, err := s.nodes[a.node()].replica.Latest(s.now)
	if err != nil {
		return err.Error()
	}
	return strconv.FormatInt(hw, 10)
}

// ready says whether an append may be answered: ready 1 epoch=E end=N.
func (s *story) ready(a *args) string {
	err := s.nodes[a.node()].replica.Committed(int32(a.num("epoch", 0)), a.num("end", 0))
	if err != nil {
		return err.Error()
	}
	return "committed"
}

// show shows nodes and their logs: state [1 2].
func (s *story) show(a *args) string {
	var out strings.Builder
	for id := range int32(10) {
		n := s.nodes[id]
		if n == nil || len(a.d.CmdArgs) > 0 && !a.has(strconv.Itoa(int(id))) {
			continue
		}
		if n.replica == nil {
			fmt.Fprintf(&out, "%d: down", id)
		} else {
			fmt.Fprintf(&out, "%d: %v", id, n.replica)
		}
		out.WriteString("\n  log")
		if n.log.start > 0 {
			fmt.Fprintf(&out, " from %d", n.log.start)
		}
		for _, b := range n.log.batches {
			fmt.Fprintf(&out, " %d:%s/e%d", b.base, b.value, b.epoch)
		}
		fmt.Fprintf(&out, " end %d", n.log.end)
		if n.log.durable < n.log.end {
			fmt.Fprintf(&out, " durable %d", n.log.durable)
		}
		out.WriteString("\n")
	}
	return out.String()
}
