package ws

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"leat/api"
	"leat/broker"
)

// fakeLog is a partition of a fakeSource: offsets from start to hw, of which
// those in holes have no record. Each record's text is ten bytes.
type fakeLog struct {
	start, hw int64
	holes     map[int64]bool
	err       error
}

// fakeSource is a source without a broker. It parks and is woken as a
// broker.Tail is.
type fakeSource struct {
	logs   *[]fakeLog
	at     []int64
	parked []bool
	turn   int
	err    error
	reads  int
	closed bool
}

func (f *fakeSource) Len() int { return len(f.at) }

func (f *fakeSource) Position(i int) broker.TailStart {
	return broker.TailStart{Partition: int32(i), Offset: f.at[i]}
}

func (f *fakeSource) Next() int {
	for len(f.at) < len(*f.logs) {
		f.at, f.parked = append(f.at, 0), append(f.parked, false)
	}
	for range f.at {
		i := f.turn % len(f.at)
		f.turn++
		if l := (*f.logs)[i]; l.hw > f.at[i] || l.err != nil {
			f.parked[i] = false
			return i
		}
		f.parked[i] = true
	}
	return -1
}

func (f *fakeSource) Seek(i int, offset int64) { f.at[i] = offset }
func (f *fakeSource) Err() error               { return f.err }
func (f *fakeSource) Close()                   { f.closed = true }
func (f *fakeSource) Lag(i int) int64          { return (*f.logs)[i].hw - f.at[i] }

func (f *fakeSource) Read(i int, most api.Limits) (run, error) {
	f.reads++
	l := (*f.logs)[i]
	if l.err != nil {
		return run{}, l.err
	}
	if f.at[i] < l.start {
		return run{}, &broker.OffsetError{Offset: f.at[i], Start: l.start, End: l.hw}
	}
	r := run{next: f.at[i]}
	for ; r.next < l.hw; r.next++ {
		if l.holes[r.next] {
			continue
		}
		if r.count == most.Records || r.count > 0 && (r.count+1)*10 > most.Bytes {
			break
		}
		r.text = append(r.text, fmt.Sprintf(",%09d", r.next)...)
		r.count++
	}
	if len(r.text) > 0 {
		r.text = r.text[1:]
	}
	return r, nil
}

// coreScript drives a core by the commands of a script.
type coreScript struct {
	core    core
	pace    pace
	now     int64
	logs    []fakeLog
	sources map[string]*fakeSource
}

func (cs *coreScript) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "logs":
		cs.setLogs(t, d)
	case "append":
		var p, n int
		d.ScanArgs(t, "p", &p)
		d.ScanArgs(t, "n", &n)
		hole := d.HasArg("hole")
		for range n {
			if hole {
				cs.logs[p].holes[cs.logs[p].hw] = true
			}
			cs.logs[p].hw++
		}
		cs.wake(p)
	case "expire":
		var p, to int
		d.ScanArgs(t, "p", &p)
		d.ScanArgs(t, "to", &to)
		cs.logs[p].start = int64(to)
	case "break":
		cs.logs[0].err = fmt.Errorf("%w: t/0", broker.ErrDamaged)
		cs.wake(0)
	case "full":
		cs.logs[0].err = fmt.Errorf("%w: others have it", api.ErrNoRoom)
	case "room":
		cs.logs[0].err = nil
	case "delete":
		for _, s := range cs.core.subs {
			s.src.(*fakeSource).err = fmt.Errorf("%w: t was deleted", broker.ErrUnknownTopic)
			s.woken.Store(true)
		}
	case "grow":
		cs.logs = append(cs.logs, fakeLog{holes: map[int64]bool{}})
		for _, s := range cs.core.subs {
			s.woken.Store(true)
		}
	case "busy", "calm":
		for range 100 {
			for n := 0; d.Cmd == "busy" && n < int(busyRate*0.06); n++ {
				cs.pace.frames.Add(1)
			}
			cs.now += int64(60 * time.Millisecond)
			cs.pace.sent(cs.now)
		}
	case "wait":
		var ms int
		d.ScanArgs(t, "ms", &ms)
		cs.now += int64(ms) * int64(time.Millisecond)
	case "drain":
		cs.core.apply(&event{drain: true, away: 1500 * time.Millisecond})
	case "send":
		return cs.client(t, strings.ReplaceAll(d.Input, "'", `"`))
	case "next":
		times := 1
		d.MaybeScanArgs(t, "n", &times)
		return cs.next(times)
	case "frame":
		var ms int
		d.ScanArgs(t, "took", &ms)
		return cs.frame(time.Duration(ms) * time.Millisecond)
	case "reads":
		var out strings.Builder
		for _, name := range slices.Sorted(maps.Keys(cs.sources)) {
			s := cs.sources[name]
			fmt.Fprintf(&out, "%s reads=%d closed=%t\n", name, s.reads, s.closed)
		}
		return out.String()
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	return "ok\n"
}

func (cs *coreScript) setLogs(t *testing.T, d *datadriven.TestData) {
	var n, hw int
	d.ScanArgs(t, "n", &n)
	d.ScanArgs(t, "hw", &hw)
	cs.core, cs.now = core{conn: "c", pace: &cs.pace}, int64(time.Hour)
	cs.sources = map[string]*fakeSource{}
	cs.logs = nil
	for range n {
		cs.logs = append(cs.logs, fakeLog{hw: int64(hw), holes: map[int64]bool{}})
	}
}

func (cs *coreScript) wake(p int) {
	for _, s := range cs.core.subs {
		if f := s.src.(*fakeSource); p < len(f.parked) && f.parked[p] {
			f.parked[p] = false
			s.woken.Store(true)
		}
	}
}

// client applies messages, one a line.
func (cs *coreScript) client(t *testing.T, lines string) string {
	for line := range strings.Lines(lines) {
		m, err := parseMessage([]byte(line))
		if err != nil {
			return err.Error() + "\n"
		}
		if m.kind != kindSubscribe {
			cs.core.apply(&event{client: m})
			continue
		}
		src := &fakeSource{logs: &cs.logs}
		for i := range cs.logs {
			at := int64(0)
			if m.from.text == api.FromLatest {
				at = cs.logs[i].hw
			}
			src.at, src.parked = append(src.at, at), append(src.parked, false)
		}
		sub := &subscription{src: src}
		sub.begin(&m)
		if _, taken := cs.sources[string(m.sub)]; !taken {
			cs.sources[string(m.sub)] = src
		}
		cs.core.apply(&event{subscribe: sub, client: m, reply: plain(kindSubscribed, m.id, m.sub)})
	}
	return cs.next(0)
}

// next shows what is sent, up to n data frames or until there is nothing; n is
// 0 for control messages only.
func (cs *coreScript) next(n int) string {
	var out strings.Builder
	for n > 0 || len(cs.core.out) > 0 {
		var f frame
		text, wait := cs.core.next(cs.now, &f)
		switch {
		case f.buf != nil:
			n--
			out.WriteString(show(string(f.buf.message())) + "\n")
			f.buf.release()
			cs.core.written(cs.now, &f)
			continue
		case text.kind != kindInvalid:
			out.WriteString(show(string(text.b)) + "\n")
			continue
		case wait > 0:
			fmt.Fprintf(&out, "wait %s\n", wait.Round(time.Millisecond))
		default:
			out.WriteString("idle\n")
		}
		break
	}
	return out.String()
}

// frame sends a data frame, which takes a while, and shows what rest says of
// what is left.
func (cs *coreScript) frame(took time.Duration) string {
	var f frame
	if cs.core.next(cs.now, &f); f.buf == nil {
		return "no frame\n"
	}
	out := show(string(f.buf.message()))
	f.buf.release()
	cs.now += int64(took)
	cs.core.written(cs.now, &f)
	switch wait, ok := cs.core.rest(cs.now); {
	case !ok:
		return out + "\nmore\n"
	case wait > 0:
		return fmt.Sprintf("%s\nwait %s\n", out, wait.Round(time.Millisecond))
	}
	return out + "\nidle\n"
}

// show shortens a message: of the records their number, of a problem its code.
func show(text string) string {
	if head, records, ok := strings.Cut(text, `,"records":[`); ok {
		records = strings.TrimSuffix(records, "]}")
		return head + ` records ` + strconv.Itoa(strings.Count(records, ",")+1) + "}"
	}
	if head, problem, ok := strings.Cut(text, `,"problem":`); ok {
		_, code, _ := strings.Cut(problem, `"code":"`)
		code, _, _ = strings.Cut(code, `"`)
		return head + ` problem ` + code + "}"
	}
	return text
}

// A session does what the scripts in testdata say.
func TestCore(t *testing.T) {
	datadriven.Walk(t, "testdata/core", func(t *testing.T, path string) {
		cs := &coreScript{}
		datadriven.RunTest(t, path, cs.run)
	})
}

// A read that fails for any other reason ends the subscription with the problem
// and nothing else.
func TestReadFails(t *testing.T) {
	cs := &coreScript{}
	cs.core = core{conn: "c", pace: &cs.pace}
	cs.logs = []fakeLog{{hw: 3, err: errors.New("lightning"), holes: map[int64]bool{}}}
	src := &fakeSource{logs: &cs.logs, at: []int64{0}, parked: []bool{false}}
	sub := &subscription{src: src}
	m := message{kind: kindSubscribe, sub: `"s"`, topic: "t", credit: grant{true, 1000, 1000}, maxBytes: 1000}
	sub.begin(&m)
	cs.core.apply(&event{subscribe: sub, client: m, reply: plain(kindSubscribed, "", m.sub)})
	if got, want := cs.next(5), `{"type":"subscribed","sub":"s"}
{"type":"error","sub":"s" problem internal}
idle
`; got != want || !src.closed || len(cs.core.subs) != 0 {
		t.Fatalf("got\n%swant\n%s", got, want)
	}
}
