package broker

import (
	"errors"
	"testing"

	"leat/auth"
	"leat/replication/controller"
	"leat/storage/disk"
)

// TestMinInSyncSettings proves that what one server is told about
// min.insync.replicas is kept apart from what all go by: the topic's value rules
// over both.
func TestMinInSyncSettings(t *testing.T) {
	const name = "min.insync.replicas"
	for _, c := range []struct {
		name                        string
		topic, node, cluster, start string
		minISR, ownISR              int
	}{
		{name: "nobody set it"},
		{name: "the topic's", topic: "2", node: "1", cluster: "3", start: "4", minISR: 2},
		{name: "of all servers", cluster: "3", start: "4", minISR: 3},
		{name: "of one server", node: "1", cluster: "3", start: "4", minISR: 3, ownISR: 1},
		{name: "of one server alone", node: "1", ownISR: 1},
		{name: "at the start", start: "4", ownISR: 4},
	} {
		set := func(v string) map[string]string {
			if v == "" {
				return nil
			}
			return map[string]string{name: v}
		}
		got := serverConfigs{node: set(c.node), cluster: set(c.cluster), static: set(c.start)}.settings(set(c.topic))
		if got.minISR != c.minISR || got.ownISR != c.ownISR {
			t.Errorf("%s: all go by %d, this one is told %d; want %d and %d", c.name, got.minISR, got.ownISR, c.minISR, c.ownISR)
		}
	}
}

// TestMinInSyncOfOneNode proves what a node that stands alone does with
// min.insync.replicas, wherever it is set: one that is told less than all servers
// takes records, since there are no more replicas than it has.
func TestMinInSyncOfOneNode(t *testing.T) {
	t.Parallel()
	const name = "min.insync.replicas"
	b := open(t, disk.NewMem(), map[string]string{name: "2"})
	create(t, b, "t", 1, nil)
	check := func(what string, want error) {
		t.Helper()
		if r := produce(t, b, AcksAll, "t", 0, "v"); !errors.Is(r.Err, want) {
			t.Errorf("%s: %v, want %v", what, r.Err, want)
		}
	}
	alter := func(node int32, value string) {
		t.Helper()
		if err := b.AlterBrokerConfigs(t.Context(), auth.Anonymous, node, []ConfigChange{{Name: name, Value: &value}}, false); err != nil {
			t.Fatal(err)
		}
	}
	check("2 at the start", ErrNotEnoughReplicas)
	alter(controller.AllBrokers, "1")
	check("1 for all servers", nil)
	alter(controller.AllBrokers, "2")
	check("2 for all servers", ErrNotEnoughReplicas)
	alter(b.NodeID(), "1")
	check("2 for all servers and 1 for this one", nil)
	alter(b.NodeID(), "2")
	check("2 for both", ErrNotEnoughReplicas)
}
