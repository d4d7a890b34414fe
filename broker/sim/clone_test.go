package sim

import (
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"leat/replication"
)

// cloneReplica copies a replica with all that it changes in place, so that the
// copy goes on where it is and the two do not meet again. The copy has the log
// given.
func cloneReplica(r *replication.Replica, log replication.Log) *replication.Replica {
	c := *r
	logField.of(&c).Set(reflect.ValueOf(log))
	peers := peersField.of(&c)
	own := reflect.MakeSlice(peers.Type(), peers.Len(), peers.Len())
	reflect.Copy(own, peers)
	peers.Set(own)
	if asked := askedField.of(&c); !asked.IsNil() {
		own := reflect.New(asked.Type().Elem())
		own.Elem().Set(asked.Elem())
		asked.Set(own)
	}
	return &c
}

// replicaField is a field of a replica that is not exported.
type replicaField struct {
	offset uintptr
	t      reflect.Type
}

var (
	logField     = fieldOf("log")
	partField    = fieldOf("part")
	peersField   = fieldOf("leader", "peers")
	askedField   = fieldOf("leader", "asked")
	refusedField = fieldOf("leader", "refused")
	backoffField = fieldOf("follow", "backoff")
)

func fieldOf(path ...string) (f replicaField) {
	f.t = reflect.TypeFor[replication.Replica]()
	for _, name := range path {
		field, ok := f.t.FieldByName(name)
		if !ok {
			panic(name)
		}
		f.offset, f.t = f.offset+field.Offset, field.Type
	}
	return f
}

// of gives write access to the field.
func (f replicaField) of(r *replication.Replica) reflect.Value {
	return reflect.NewAt(f.t, unsafe.Add(unsafe.Pointer(r), f.offset)).Elem()
}

// opened gives write access to a field that is not exported.
func opened(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
}

// references lists what a type reaches by reference.
func references(t reflect.Type, path string) (out []string) {
	switch t.Kind() {
	case reflect.Struct:
		for f := range t.Fields() {
			out = append(out, references(f.Type, path+"."+f.Name)...)
		}
	case reflect.Slice, reflect.Pointer:
		out = append([]string{path}, references(t.Elem(), path)...)
	case reflect.Map, reflect.Interface, reflect.Func, reflect.Chan:
		out = []string{path}
	default:
	}
	return out
}

// A replica has nothing by reference that cloneReplica does not know: the log and
// the brokers are the owner's, the partition is only read.
func TestCloneComplete(t *testing.T) {
	known := []string{
		".log", ".brokers", ".part.Replicas", ".part.ISR", ".part.ELR", ".part.Adding", ".part.Removing",
		".leader.peers", ".leader.asked", ".leader.asked.ask.ISR", ".follow.failed",
	}
	for _, path := range references(reflect.TypeFor[replication.Replica](), "") {
		if !slices.Contains(known, path) {
			t.Errorf("cloneReplica knows nothing of %s", path)
		}
	}
}

// A copy of a replica that goes on leaves the first one as it was.
func TestCloneReplica(t *testing.T) {
	x := newExploration(exploreLimits{})
	w := x.begin()
	x.learn(w, 0)
	first := w.nodes[0].clone()
	first.log.append(xrec{0, 1})
	first.r.Advance(0)
	fetch := replication.FetchRequest{Replica: 2, BrokerEpoch: w.nodes[1].epoch, LastEpoch: -1, Flushed: -1}
	before := first.r.String()
	c := first.clone()
	for range 2 {
		if _, _, err := c.r.Fetch(&fetch, longer); err != nil {
			t.Fatal(err)
		}
		fetch.Offset, fetch.LastEpoch = 1, 0
	}
	if ask, ok := c.r.Alter(longer); !ok || len(ask.ISR) != 2 {
		t.Fatalf("%+v, %v", ask, ok)
	}
	between := c.r.String()
	d := c.clone()
	d.log.append(xrec{0, 2})
	d.r.Advance(longer)
	fetch.Replica, fetch.BrokerEpoch = 3, w.nodes[2].epoch
	if _, _, err := d.r.Fetch(&fetch, longer); err != nil {
		t.Fatal(err)
	}
	if first.r.String() != before || first.log.end() != 1 {
		t.Errorf("the first became %v, it was %s", first.r, before)
	}
	if c.r.String() != between || c.log.end() != 1 {
		t.Errorf("the second became %v, it was %s", c.r, between)
	}
	if d.r.String() == between || between == before {
		t.Error("a copy did nothing")
	}
}
