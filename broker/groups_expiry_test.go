package broker

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/auth"
	"leat/storage/disk"
)

// sweepAll looks for what may go, in all groups.
func sweepAll(t *testing.T, b *Broker) {
	t.Helper()
	for _, s := range b.groups.all() {
		if err := s.sweep(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
}

// Offsets of a group with members are kept however old; once it is empty they
// are kept for offsets.retention.minutes from that moment (case 29).
func TestCase29Expiry(t *testing.T) {
	clock := &shiftedClock{}
	b := openWith(t, disk.NewMem(), clock.in, func(o *Options) {
		o.Configs = map[string]string{"group.initial.rebalance.delay.ms": "0", "offsets.retention.minutes": "1", "offsets.topic.num.partitions": "2"}
	})
	create(t, b, "orders", 1, nil)
	c := &groupClient{b: b, group: "g", topic: "orders"}
	c.join(t)
	c.sync(t)
	if err := c.commit(t, "orders", 0, 7); err != nil {
		t.Fatal(err)
	}
	if err := commitOne(t.Context(), b, "alone", nobody, CommitOffset{Topic: "orders", Offset: 5}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		clock.advance(9 * time.Second)
		if err := b.Heartbeat(t.Context(), auth.Anonymous, "g", c.ref()); err != nil {
			t.Fatal(err)
		}
	}
	sweepAll(t, b)
	if got := fetchOne(t, b, "g", "orders", 0); got != 7 {
		t.Errorf("offset %d of a group with a member, want 7", got)
	}
	if got := fetchOne(t, b, "alone", "orders", 0); got != -1 {
		t.Errorf("offset %d of a group that never had members, long after the commit", got)
	}
	if _, err := b.LeaveGroup(t.Context(), auth.Anonymous, "g", []MemberRef{{ID: c.id}}); err != nil {
		t.Fatal(err)
	}
	clock.advance(59 * time.Second)
	sweepAll(t, b)
	if got := fetchOne(t, b, "g", "orders", 0); got != 7 {
		t.Errorf("offset %d just before the time is over, want 7", got)
	}
	clock.advance(2 * time.Second)
	sweepAll(t, b)
	if got := fetchOne(t, b, "g", "orders", 0); got != -1 {
		t.Errorf("offset %d after the time is over", got)
	}
	if list, err := b.ListGroups(t.Context(), auth.Anonymous, nil); err != nil || len(list) != 0 {
		t.Errorf("groups %v, %v", list, err)
	}
}

// A client that says how long its offsets are kept finds them for so long, also
// after a restart, and a group that has nothing committed goes when it is empty.
func TestExpiryOfTheClients(t *testing.T) {
	clock, fs := &shiftedClock{}, disk.NewMem()
	b := openWith(t, fs, clock.in)
	create(t, b, "orders", 1, nil)
	if _, err := b.CommitOffsets(t.Context(), auth.Anonymous, "g", nobody, 60_000, []CommitOffset{{Topic: "orders", Offset: 5, LeaderEpoch: 2}}); err != nil {
		t.Fatal(err)
	}
	for _, s := range b.groups.all() { // the end of a topic is no reason
		if err := s.sweep(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	b = openWith(t, fs.CrashClone(0, nil), clock.in)
	awaitGroups(t, b)
	if got := fetchOne(t, b, "g", "orders", 0); got != 5 {
		t.Fatalf("offset %d, want 5", got)
	}
	clock.advance(61 * time.Second)
	sweepAll(t, b)
	if got := fetchOne(t, b, "g", "orders", 0); got != -1 {
		t.Errorf("offset %d after its time", got)
	}
}

// A group whose members came and went and committed nothing does not stay.
func TestExpiryOfNothing(t *testing.T) {
	b := groupBroker(t, disk.NewMem())
	defer func() { _ = b.Close() }()
	c := &groupClient{b: b, group: "g"}
	c.join(t)
	c.sync(t)
	sweepAll(t, b)
	if err := b.Heartbeat(t.Context(), auth.Anonymous, "g", c.ref()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.LeaveGroup(t.Context(), auth.Anonymous, "g", []MemberRef{{ID: c.id}}); err != nil {
		t.Fatal(err)
	}
	sweepAll(t, b)
	if list, err := b.ListGroups(t.Context(), auth.Anonymous, nil); err != nil || len(list) != 0 {
		t.Errorf("groups %v, %v", list, err)
	}
}

// A damaged partition of the offsets topic does not keep the server from
// starting, nor the other groups from being served.
func TestDamagedOffsets(t *testing.T) {
	fs := disk.NewMem()
	b := groupBroker(t, fs)
	create(t, b, "orders", 1, nil)
	var bad, good string
	for i := 0; bad == "" || good == ""; i++ {
		if id := fmt.Sprint("g", i); offsetsPartition(id, 3) == 0 {
			bad = id
		} else {
			good = id
		}
	}
	for _, id := range []string{bad, good} {
		if err := commitOne(t.Context(), b, id, nobody, CommitOffset{Topic: "orders", Offset: 3}); err != nil {
			t.Fatal(err)
		}
	}
	p := partitionOf(b, offsetsTopic)
	file, _, err := p.log.Locate(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fs.Remove(file); err != nil {
		t.Fatal(err)
	}
	b = groupBroker(t, fs)
	defer func() { _ = b.Close() }()
	for _, s := range b.groups.all() {
		<-s.loaded
	}
	if err := commitOne(t.Context(), b, bad, nobody, CommitOffset{Topic: "orders", Offset: 4}); !errors.Is(err, ErrCoordinatorNotAvailable) {
		t.Errorf("in the damaged partition: %v", err)
	}
	if err := commitOne(t.Context(), b, good, nobody, CommitOffset{Topic: "orders", Offset: 4}); err != nil {
		t.Errorf("in another: %v", err)
	}
}

// Groups are counted by state, with their members, rebalances and commits, and
// the counts go down with them.
func TestGroupMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	b := openWith(t, disk.NewMem(), func(o *Options) {
		o.Registerer, o.Configs = reg, map[string]string{"group.initial.rebalance.delay.ms": "0"}
	})
	create(t, b, "orders", 1, nil)
	check := func(when string, want string) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if v := m.GetGauge().GetValue() + m.GetCounter().GetValue(); v != 0 && strings.HasPrefix(f.GetName(), "leat_group") {
					for _, l := range m.GetLabel() {
						got = append(got, l.GetValue())
					}
					got = append(got, fmt.Sprint(strings.TrimPrefix(f.GetName(), "leat_"), " ", v))
				}
			}
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s: %s, want %s", when, text, want)
		}
	}
	check("at first", "")
	n := series(t, reg)
	c := &groupClient{b: b, group: "g", topic: "orders"}
	c.join(t)
	c.sync(t)
	if err := c.commit(t, "orders", 0, 7); err != nil {
		t.Fatal(err)
	}
	check("with a member", "group_commits_total 1, group_members 1, group_rebalances_total 1, Stable, groups 1")
	if _, err := b.LeaveGroup(t.Context(), auth.Anonymous, "g", []MemberRef{{ID: c.id}}); err != nil {
		t.Fatal(err)
	}
	check("without", "group_commits_total 1, group_rebalances_total 1")
	topics := 14 // the series of the offsets topic and of orders
	if got := series(t, reg); got > n+topics {
		t.Errorf("%d series, %d before the group", got, n)
	}
}

// Compaction of the offsets topic goes as far as the store is durable, and nowhere
// as long as there is no store.
func TestOffsetsCompaction(t *testing.T) {
	fs := disk.NewMem()
	b := openWith(t, fs, func(o *Options) {
		o.Configs = map[string]string{"offsets.topic.num.partitions": "1", "log.cleaner.enable": "false"}
	})
	create(t, b, "orders", 1, nil)
	for i := range int64(50) {
		if err := commitOne(t.Context(), b, "g", nobody, CommitOffset{Topic: "orders", Offset: i}); err != nil {
			t.Fatal(err)
		}
	}
	p, s := partitionOf(b, offsetsTopic), b.groups.all()[0]
	if got := b.compactTo(p); got > s.synced.Load() {
		t.Fatalf("compaction goes to %d, the store is durable to %d", got, s.synced.Load())
	}
	deadline := time.After(20 * time.Second)
	for b.compactTo(p) != p.hw.Load() {
		select {
		case <-deadline:
			t.Fatalf("compaction stays at %d of %d", b.compactTo(p), p.hw.Load())
		case <-time.After(time.Millisecond):
		}
	}
	b.groups.mu.Lock()
	b.groups.mu.shards = nil
	b.groups.mu.Unlock()
	if got := b.compactTo(p); got != 0 {
		t.Errorf("without a shard compaction goes to %d", got)
	}
}

// A commit that does not fit one batch is refused whole.
func TestOperationsAreBounded(t *testing.T) {
	b := groupBroker(t, disk.NewMem())
	defer func() { _ = b.Close() }()
	create(t, b, "orders", 1, nil)
	long := strings.Repeat("g", 32_000)
	errs, err := b.CommitOffsets(t.Context(), auth.Anonymous, long, nobody, -1, make([]CommitOffset, 1))
	if err != nil || !errors.Is(errs[0], ErrInvalidTopic) {
		t.Fatal(errs, err)
	}
	many := make([]CommitOffset, maxOperation/len(long)+1)
	for i := range many {
		many[i].Topic = "orders"
	}
	if _, err := b.CommitOffsets(t.Context(), auth.Anonymous, long, nobody, -1, many); !errors.Is(err, ErrCommitTooLarge) {
		t.Errorf("%v", err)
	}
}
