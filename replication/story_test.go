package replication

import (
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
// each, and what is on its way between them. Nothing happens by itself.
type story struct {
	t     *testing.T
	o     Options
	now   Instant
	nodes map[int32]*storyNode
	part  controller.Partition // as decided last
	gone  everyone
	// flights are fetches on their way, by name.
	flights map[string]*flight
	// asks are ISR changes on their way to the controller.
	asks map[string]*altering
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

type altering struct {
	from int32
	ask  controller.AlterPartition
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

func (s *story) run(d *datadriven.TestData) string {
	if run, ok := storyCommands[d.Cmd]; ok {
		return run(s, &args{s.t, d})
	}
	s.t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	return ""
}

var storyCommands = map[string]func(s *story, a *args) string{
	"new":     (*story).begin,
	"decide":  (*story).decide,
	"apply":   (*story).apply,
	"append":  (*story).append,
	"flush":   (*story).flush,
	"fetch":   (*story).fetch,
	"ask":     (*story).ask,
	"serve":   (*story).serve,
	"receive": (*story).receive,
	"lose":    (*story).lose,
	"crash":   (*story).crash,
	"start":   (*story).start,
	"raise":   (*story).raise,
	"time":    (*story).time,
	"latest":  (*story).latest,
	"ready":   (*story).ready,
	"state":   (*story).state,
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

// begin makes the nodes: new replicas=(1,2) [min=N] [durable] [lag=MS].
func (s *story) begin(a *args) string {
	replicas := a.ids("replicas", nil)
	s.o = Options{
		ID: storage.ID{Partition: 0}, MinInSync: int(a.num("min", 0)), Durable: a.has("durable"),
		Lag: time.Duration(a.num("lag", 10_000)) * ms, LagMessages: a.num("messages", 0),
	}
	s.now, s.nodes, s.flights, s.asks = 0, map[int32]*storyNode{}, map[string]*flight{}, map[string]*altering{}
	s.part = controller.Partition{Leader: -1, LeaderEpoch: -1, Epoch: -1, Replicas: replicas}
	for _, id := range replicas {
		s.nodes[id] = &storyNode{id: id, log: &toyLog{}}
		s.up(s.nodes[id])
	}
	return ""
}

// up starts a node.
func (s *story) up(n *storyNode) {
	n.epoch++
	o := s.o
	o.Self = n.id
	n.replica = NewReplica(o, n.log, n.hw)
	n.replica.Lease(Forever)
}

// decide is what the controller decides; nobody knows of it yet. What is not
// named stays: decide leader=1 isr=(1,2) [gone=(3)] [apply].
func (s *story) decide(a *args) string {
	was := s.part
	s.part.Leader = int32(a.num("leader", int64(was.Leader)))
	s.part.ISR, s.part.Replicas = a.ids("isr", was.ISR), a.ids("replicas", was.Replicas)
	s.part.Recovering = a.has("recovering")
	s.gone = everyone{gone: a.ids("gone", nil)}
	s.part.Epoch++
	if s.part.Leader != was.Leader || a.has("anew") {
		s.part.LeaderEpoch++
	}
	out := fmt.Sprintf("epoch %d/%d: leader %d, isr %v", s.part.LeaderEpoch, s.part.Epoch, s.part.Leader, s.part.ISR)
	for _, id := range a.ids("apply", nil) {
		out += "\n" + s.applyTo(id)
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
	c, err := n.replica.Decide(s.part, lives{s}, s.now)
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

// lives are the brokers as the controller knows them.
type lives struct{ s *story }

func (l lives) Broker(id int32) (controller.Broker, bool) {
	n := l.s.nodes[id]
	return controller.Broker{ID: id, Epoch: n.epoch}, true
}

func (l lives) Eligible(id int32, epoch int64) bool {
	n := l.s.nodes[id]
	return n != nil && n.replica != nil && !slices.Contains(l.s.gone.gone, id) && (epoch == -1 || epoch == n.epoch)
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

// fetch is a whole round of a follower: fetch 2 [from=1] [times=N] [lazy].
func (s *story) fetch(a *args) string {
	id := a.node()
	var out []string
	for range a.num("times", 1) {
		f := s.asked(id)
		if f == nil {
			return strings.Join(append(out, "fetches nothing"), "\n")
		}
		s.answer(f, int32(a.num("from", int64(s.nodes[id].replica.Leader()))))
		out = append(out, s.received(f, a.has("lazy")))
	}
	return strings.Join(out, "\n")
}

func (s *story) asked(id int32) *flight {
	n := s.nodes[id]
	ask, ok := n.replica.NextFetch(s.now)
	if !ok {
		return nil
	}
	ask.BrokerEpoch = n.epoch
	return &flight{from: id, ask: ask}
}

func (s *story) answer(f *flight, to int32) string {
	n := s.nodes[to]
	if n == nil || n.replica == nil {
		f.err = errNoAnswer
		return "nobody answers"
	}
	var rose bool
	f.got, rose, f.err = n.replica.Fetch(&f.ask, s.now)
	f.batches = nil
	if f.err == nil && f.got.Diverging == nil {
		for _, b := range n.log.batches {
			if b.base+b.count > f.ask.Offset {
				f.batches = append(f.batches, b)
			}
		}
	}
	return f.answered() + s.risen(n, rose)
}

func (f *flight) answered() string {
	switch {
	case f.err != nil:
		return f.err.Error()
	case f.got.Diverging != nil:
		return fmt.Sprintf("at %d of epoch %d diverges: epoch %d ends at %d", f.ask.Offset, f.ask.LastEpoch, f.got.Diverging.Epoch, f.got.Diverging.End)
	default:
		return fmt.Sprintf("at %d: %d batches, hw %d", f.ask.Offset, len(f.batches), f.got.HW)
	}
}

// received gives the follower its answer and does what it says.
func (s *story) received(f *flight, lazy bool) string {
	n := s.nodes[f.from]
	got := &f.got
	out := f.answered()
	a := n.replica.Fetched(&f.ask, got, f.err, s.now)
	switch a.Kind {
	case Append:
		for _, b := range f.batches {
			n.log.append(b.epoch, b.count, b.value, lazy)
		}
	case Truncate:
		n.log.truncate(a.Offset)
	case Restart:
		n.log.restart(a.Offset)
	case Ignore, Fail:
		return out + "; " + a.Kind.String()
	}
	if a.Kind != Append {
		out += "; " + a.String()
	}
	start, rose := n.replica.Did(a, got, s.now)
	if start >= 0 {
		n.log.raise(start)
		rose = n.replica.Advance(s.now) || rose
		out += fmt.Sprintf("; starts at %d", start)
	}
	return out + s.risen(n, rose)
}

// crash ends a node, whose log loses its last records: crash 1 [lose=N].
func (s *story) crash(a *args) string {
	n := s.nodes[a.node()]
	n.hw, n.replica = min(n.hw, n.replica.HighWatermark()), nil
	n.log.truncate(n.log.end - a.num("lose", 0))
	return ""
}

// start begins a new life of a node that ended, which knows nothing of the
// metadata yet: start 1.
func (s *story) start(a *args) string {
	n := s.nodes[a.node()]
	s.up(n)
	return fmt.Sprintf("broker epoch %d, log ends at %d, hw %d", n.epoch, n.log.end, n.replica.HighWatermark())
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

// state shows nodes and their logs: state [1 2].
func (s *story) state(a *args) string {
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
