package replication

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"leat/replication/controller"
	"leat/replication/quorum"
	"leat/storage"
	"leat/storage/meta"
)

// keys is a store in memory.
type keys map[string]string

func (k keys) Get(key []byte) ([]byte, error) {
	v, ok := k[string(key)]
	if !ok {
		return nil, meta.ErrNotFound
	}
	return []byte(v), nil
}

func (k keys) Scan(prefix []byte, fn func(key, value []byte) error) error {
	for _, key := range slices.Sorted(maps.Keys(k)) {
		if strings.HasPrefix(key, string(prefix)) {
			if err := fn([]byte(key), []byte(k[key])); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k keys) Set(key, value []byte) { k[string(key)] = string(value) }
func (k keys) Delete(key []byte)     { delete(k, string(key)) }

func (k keys) DeleteRange(from, to []byte) {
	maps.DeleteFunc(k, func(key, _ string) bool { return key >= string(from) && key < string(to) })
}

func openMachine(t testing.TB, r Reader) *Machine {
	t.Helper()
	m, err := OpenMachine(r)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// topicID makes an id of a topic's name, so that scripts read well.
func topicID(name string) (id storage.TopicID) {
	copy(id[:], name)
	return id
}

func creation(name string) *controller.CreateTopics {
	return &controller.CreateTopics{Topics: []controller.NewTopic{{
		ID: topicID(name), Name: name, Partitions: 2, Replication: 1, Configs: map[string]string{"retention.ms": "5"},
	}}}
}

// register introduces broker 1, the only one.
func register(incarnation string) *controller.Register {
	return &controller.Register{ID: 1, UUID: "u", Incarnation: incarnation, PreviousEpoch: -1, Known: -1, MinLevel: 1, MaxLevel: controller.Level, ReadyNow: true}
}

// restart introduces it again, which has applied the whole state.
func restart(s *controller.State, incarnation string) *controller.Register {
	r := register(incarnation)
	r.Known = s.BrokerEpoch(1)
	return r
}

// history makes n entries of all kinds of events; some indexes have nothing.
func history(t testing.TB, n int) []quorum.Entry {
	t.Helper()
	s := controller.NewState()
	var out []quorum.Entry
	for i := range n {
		var ev controller.Event
		switch name := fmt.Sprint("t", i%40); {
		case i == 0:
			ev = register("first")
		case i%7 == 3:
			ev = nil
		case i%7 == 5:
			ev = &controller.AllocateProducerIDs{Count: 5}
		case s.TopicNamed(name) == nil:
			made := creation(name)
			made.Topics[0].ID = topicID(fmt.Sprint(name, "-", i))
			ev = made
		case i%3 == 0:
			ev = &controller.DeleteTopics{IDs: []storage.TopicID{s.TopicNamed(name).ID}}
		case i%3 == 1:
			v := fmt.Sprint(i)
			ev = &controller.SetTopicConfigs{ID: s.TopicNamed(name).ID, Values: map[string]*string{"retention.ms": nil, "segment.ms": &v}}
		default:
			ev = &controller.ForgetTopics{IDs: s.DyingTopics()}
		}
		e := quorum.Entry{Index: uint64(i + 2), Term: 1}
		if ev != nil {
			_, records := controller.Step(s, ev)
			next, err := s.With(records)
			if err != nil {
				t.Fatal(err)
			}
			s, e.Data = next, encodeRecords(records)
		}
		out = append(out, e)
	}
	return out
}

// A machine that applies entries one by one, one that applies them in lots, and
// one that is opened anew in between, have the same state, records and hash.
func TestMachineApplies(t *testing.T) {
	entries := history(t, 2500)
	one, lots, again := keys{}, keys{}, keys{}
	a, b := openMachine(t, one), openMachine(t, lots)
	for i := range entries {
		if err := a.Apply(one, entries[i:i+1]); err != nil {
			t.Fatal(err)
		}
		if err := openMachine(t, again).Apply(again, entries[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	for lot := range slices.Chunk(entries, 300) {
		if err := b.Apply(lots, lot); err != nil {
			t.Fatal(err)
		}
	}
	c := openMachine(t, again)
	if a.Hash().Index != 2000 || a.Hash() != b.Hash() || a.Hash() != c.Hash() {
		t.Errorf("hashes %v, %v, %v", a.Hash(), b.Hash(), c.Hash())
	}
	if h := a.State().Hash(); h != b.State().Hash() || h != c.State().Hash() {
		t.Errorf("states %x, %x, %x", h, b.State().Hash(), c.State().Hash())
	}
	if !maps.Equal(one, lots) || !maps.Equal(one, again) {
		t.Error("the stores differ")
	}
	if n := len(a.State().Topics()); n == 0 || len(a.State().DyingTopics()) == 0 {
		t.Errorf("%d topics, %d dying: a history of nothing", n, len(a.State().DyingTopics()))
	}
}

func chunksOf(t testing.TB, s quorum.Snapshot) [][]byte {
	t.Helper()
	var out [][]byte
	for {
		chunk, err := s.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil || len(chunk) == 0 || len(chunk) > chunkBytes {
			t.Fatalf("a chunk of %d bytes, %v", len(chunk), err)
		}
		out = append(out, chunk)
	}
}

// A snapshot is of the moment when it was taken, and replaces whatever was there;
// what goes on from it equals what went on without.
func TestMachineSnapshot(t *testing.T) {
	entries := history(t, 1800)
	full, part, to := keys{}, keys{}, keys{}
	a, b := openMachine(t, full), openMachine(t, to)
	if err := errors.Join(a.Apply(full, entries[:1500]), b.Apply(to, entries[:300])); err != nil {
		t.Fatal(err)
	}
	taken := a.Snapshot()
	if err := a.Apply(full, entries[1500:]); err != nil {
		t.Fatal(err)
	}
	chunks := chunksOf(t, taken)
	// Cut anyhow, the bytes mean the same.
	var cut [][]byte
	for c := range slices.Chunk(bytes.Join(chunks, nil), 7) {
		cut = append(cut, c)
	}
	c := openMachine(t, part)
	if err := errors.Join(b.Restore(to, slices.Values(chunks)), c.Restore(part, slices.Values(cut))); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(to, part) {
		t.Error("the chunks matter")
	}
	if err := b.Apply(to, entries[1500:]); err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(full, to) || a.Hash() != b.Hash() || a.State().Hash() != b.State().Hash() {
		t.Error("the machine with the snapshot is another")
	}
	if openMachine(t, to).State().Hash() != a.State().Hash() {
		t.Error("what it keeps is another state")
	}
	whole := bytes.Join(chunks, nil)
	for _, p := range [][]byte{nil, whole[:5], whole[:snapshotHeader+1], whole[:len(whole)-1], append([]byte{9}, whole[1:]...)} {
		if err := openMachine(t, keys{}).Restore(keys{}, slices.Values([][]byte{p})); err == nil {
			t.Errorf("%d of %d bytes were restored", len(p), len(whole))
		}
	}
}

// A large state takes more than one chunk.
func TestMachineChunks(t *testing.T) {
	_, records := controller.Step(controller.NewState(), register("a"))
	store := keys{}
	m := openMachine(t, store)
	if err := m.Apply(store, []quorum.Entry{{Index: 2, Data: encodeRecords(records)}}); err != nil {
		t.Fatal(err)
	}
	wide := creation("wide")
	wide.Topics[0].Partitions = 20_000
	_, records = controller.Step(m.State(), wide)
	if err := m.Apply(store, []quorum.Entry{{Index: 3, Data: encodeRecords(records)}}); err != nil {
		t.Fatal(err)
	}
	chunks := chunksOf(t, m.Snapshot())
	to := openMachine(t, keys{})
	if err := to.Restore(keys{}, slices.Values(chunks)); err != nil || len(chunks) < 2 || to.State().Hash() != m.State().Hash() {
		t.Errorf("%d chunks: %v", len(chunks), err)
	}
}

// What makes no sense is refused, and changes neither the state nor the store.
func TestMachineRefuses(t *testing.T) {
	entries := history(t, 50)
	for _, c := range []struct {
		name string
		data []byte
		want error
	}{
		{"nothing", []byte{}, controller.ErrDamagedRecord},
		{"a newer list", []byte{1}, controller.ErrUnknownRecord},
		{"a newer record", []byte{0, 2, 250, 0}, controller.ErrUnknownRecord},
		{"a record cut short", []byte{0, 9, 1}, controller.ErrDamagedRecord},
		{"an endless length", append([]byte{0}, bytes.Repeat([]byte{0xff}, 11)...), controller.ErrDamagedRecord},
		{"a topic that is there", entries[1].Data, controller.ErrInconsistent},
	} {
		store := keys{}
		m := openMachine(t, store)
		if err := m.Apply(store, entries[:2]); err != nil {
			t.Fatal(err)
		}
		before, state := maps.Clone(store), m.State()
		if err := m.Apply(store, []quorum.Entry{{Index: 4, Data: c.data}}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		if m.State() != state || !maps.Equal(before, store) {
			t.Errorf("%s: it was applied", c.name)
		}
	}
	for name, value := range map[string]string{"S\xfa": "\xfa\x00", "Sf": "\x01", "H": "short"} {
		if _, err := OpenMachine(keys{name: value}); err == nil {
			t.Errorf("%q opens", name)
		}
	}
}

// fixture reads the keys of a store that the Proposer of earlier versions, which
// had no quorum, has written.
func fixture(t testing.TB, name string) keys {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "local", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	out := keys{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		k, v, _ := strings.Cut(lines.Text(), " ")
		key, err1 := hex.DecodeString(k)
		value, err2 := hex.DecodeString(v)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		out.Set(key, value)
	}
	return out
}

// The state that earlier versions have written, at the feature levels 1 and 2, is
// read as it was meant.
func TestMachineReadsOldState(t *testing.T) {
	for level, topics := range map[uint32]string{1: "orders/3 plain/1", 2: "__consumer_offsets/16 orders/3 plain/1"} {
		s, err := ReadState(fixture(t, fmt.Sprint("level", level)))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, topic := range s.Topics() {
			got = append(got, fmt.Sprint(topic.Name, "/", topic.Partitions.Len()))
			for i := range topic.Partitions.Len() {
				if p := topic.Partitions.At(i); p.Leader != 1 || !slices.Equal(p.ISR, []int32{1}) || !slices.Equal(p.Replicas, []int32{1}) {
					t.Errorf("level %d: %s/%d is %+v", level, topic.Name, i, p)
				}
			}
		}
		if s.Level() != level || strings.Join(got, " ") != topics || !slices.Equal(s.Brokers(), []int32{1}) || len(s.DyingTopics()) != 0 {
			t.Errorf("level %d, topics %v, brokers %v, dying %v", s.Level(), got, s.Brokers(), s.DyingTopics())
		}
		if c := s.TopicNamed("orders").Configs; len(c) != 1 || c["retention.ms"] != "-1" {
			t.Errorf("level %d: configs %v", level, c)
		}
		if level == 2 && (s.BrokerConfigs(1)["leat.scrub.bytes.per.second"] != "100" || s.BrokerConfigs(controller.AllBrokers)["num.partitions"] != "7") {
			t.Errorf("configs %v, %v", s.BrokerConfigs(1), s.BrokerConfigs(controller.AllBrokers))
		}
	}
}

// No bytes make the decoders of entries and snapshots panic, and what they take
// they write again.
func FuzzMachineRecords(f *testing.F) {
	for _, e := range history(f, 30) {
		f.Add(e.Data)
	}
	m := openMachine(f, keys{})
	if err := m.Apply(keys{}, history(f, 200)); err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Join(chunksOf(f, m.Snapshot()), nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		if records, err := decodeRecords(p); err == nil {
			again, err := decodeRecords(encodeRecords(records))
			if err != nil || len(again) != len(records) {
				t.Fatalf("%d records, %d again: %v", len(records), len(again), err)
			}
		}
		to := &Machine{state: controller.NewState()}
		if err := to.Restore(keys{}, chunked(p)); err == nil {
			again := &Machine{state: controller.NewState()}
			if err := again.Restore(keys{}, slices.Values(chunksOf(t, to.Snapshot()))); err != nil || again.State().Hash() != to.State().Hash() {
				t.Fatalf("the snapshot of a restored state: %v", err)
			}
		}
	})
}

// chunked is p in two parts.
func chunked(p []byte) iter.Seq[[]byte] {
	return slices.Values([][]byte{p[:len(p)/2], p[len(p)/2:]})
}
