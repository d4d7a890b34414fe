package broker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"leat/auth"
	"leat/broker/group"
	"leat/storage/disk"
	"leat/storage/record"
)

// A group is one of leases or of members, whatever asks: members are refused by
// the one and takes by the other; offsets are for others to set and remove only
// while no lease lives; the group can be deleted then, and forgets its type.
func TestGroupTypes(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 2, nil)
	produce(t, b, AcksAll, "orders", 0, "a", "b")
	c := &groupClient{b: b, group: "members"}
	c.join(t)
	orders := LeaseRequest{Topics: []string{"orders"}}
	if _, err := b.TakeLeases(t.Context(), auth.Anonymous, "members", &orders); !errors.Is(err, ErrGroupTypeConflict) {
		t.Errorf("a take of a group that rebalances: %v", err)
	}
	c.sync(t)
	if _, err := b.TakeLeases(t.Context(), auth.Anonymous, "members", &orders); !errors.Is(err, ErrGroupTypeConflict) {
		t.Errorf("a take of a group with members: %v", err)
	}
	if err := c.commit(t, "orders", 0, 1); err != nil {
		t.Errorf("the member's commit: %v", err)
	}
	if _, err := b.LeaveGroup(t.Context(), auth.Anonymous, "members", []MemberRef{{ID: c.id}}); err != nil {
		t.Fatal(err)
	}
	// It is empty now: leases go on from its offsets.
	w := &worker{t, b, "members"}
	l := w.takeOne(orders)
	if l.First != 1 || l.Next != 2 {
		t.Errorf("%+v", l)
	}
	refused := func(when string) {
		t.Helper()
		for _, kind := range []string{"consumer", "lease"} {
			r := c.request()
			r.ProtocolType = kind
			if r := b.JoinGroup(t.Context(), auth.Anonymous, "members", r); !errors.Is(r.Err, ErrGroupTypeConflict) {
				t.Errorf("%s: a join as %s: %+v", when, kind, r)
			}
		}
	}
	refused("leased")
	if err := b.Heartbeat(t.Context(), auth.Anonymous, "members", c.ref()); !errors.Is(err, ErrUnknownMember) {
		t.Errorf("heartbeat: %v", err)
	}
	outside := func(want error) {
		t.Helper()
		if err := commitOne(t.Context(), b, "members", nobody, CommitOffset{Topic: "orders", Offset: 0}); !errors.Is(err, want) {
			t.Errorf("a commit from outside: %v, want %v", err, want)
		}
		if _, err := b.SeekGroup(t.Context(), auth.Anonymous, "members", &GroupSeek{Offsets: []CommitOffset{{Topic: "orders", Offset: 0}}}); !errors.Is(err, want) {
			t.Errorf("a seek: %v, want %v", err, want)
		}
		if _, err := b.DeleteOffsets(t.Context(), auth.Anonymous, "members", []TopicPartitions{{"orders", []int32{1}}}); !errors.Is(err, want) {
			t.Errorf("offsets are deleted: %v, want %v", err, want)
		}
	}
	outside(ErrGroupNotEmpty)
	if errs := b.DeleteGroups(t.Context(), auth.Anonymous, []string{"members"}); !errors.Is(errs[0], ErrGroupNotEmpty) {
		t.Errorf("a group with a lease is deleted: %v", errs[0])
	}
	describe := func(state string) {
		t.Helper()
		d := b.DescribeGroups(t.Context(), auth.Anonymous, []string{"members"})[0]
		list, err := b.ListGroups(t.Context(), auth.Anonymous, []string{state})
		if d.State != state || d.ProtocolType != "lease" || len(d.Members) > 0 || err != nil || fmt.Sprint(list) != "[{members "+state+" lease}]" {
			t.Errorf("%+v, %v, %v", d, list, err)
		}
	}
	describe("Stable")
	w.ack(&l, -1)
	describe("Empty")
	refused("acked")
	outside(nil)
	if l = w.takeOne(orders); l.First != 0 || l.Deliveries != 1 {
		t.Errorf("after the seek: %+v", l)
	}
	w.ack(&l, 1)
	if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "members", l.ID, ReleaseRequest{Upto: -1}); err != nil {
		t.Fatal(err)
	}
	if errs := b.DeleteGroups(t.Context(), auth.Anonymous, []string{"members"}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	if n := leaseRecords(t, b); n != 0 {
		t.Errorf("%d records of leases are left", n)
	}
	c.id = ""
	c.join(t)
	if _, err := b.TakeLeases(t.Context(), auth.Anonymous, "", &orders); !errors.Is(err, ErrInvalidGroupID) {
		t.Errorf("no group: %v", err)
	}
}

// leaseRecords counts what the store has of leases.
func leaseRecords(t *testing.T, b *Broker) (n int) {
	t.Helper()
	for _, s := range b.groups.all() {
		if err := s.store.leases("", true, func(string, group.Partition, []byte) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// A lease that nobody acks is somebody else's at its deadline and not before, and
// so is a partition that was given back with a delay; those who wait are woken.
func TestLeaseTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, disk.NewMem(), quickGroups)
		create(t, b, "orders", 1, nil)
		produce(t, b, AcksAll, "orders", 0, "a", "b", "c", "d")
		w := &worker{t, b, "g"}
		take := LeaseRequest{Topics: []string{"orders"}, Lease: 3 * time.Second, Wait: MaxLeaseWait}
		l := w.takeOne(take)
		for i, c := range []struct {
			do         func() error
			after      time.Duration
			deliveries int
			count      int64
		}{
			{func() error { return nil }, 3 * time.Second, 2, 2},
			{func() error {
				_, err := b.ExtendLease(t.Context(), auth.Anonymous, "g", l.ID, 7*time.Second)
				return err
			}, 7 * time.Second, 3, 1},
			{func() error {
				_, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", l.ID, ReleaseRequest{Upto: -1, Delay: 11 * time.Second})
				return err
			}, 11 * time.Second, 4, 1},
			{func() error {
				_, err := b.AckLease(t.Context(), auth.Anonymous, "g", l.ID, -1)
				return err
			}, 0, 1, 3},
		} {
			began := time.Now()
			if err := c.do(); err != nil {
				t.Fatal(i, err)
			}
			next := w.takeOne(take)
			if took := time.Since(began); took != c.after || next.Deliveries != c.deliveries || next.Next-next.First != c.count {
				t.Errorf("%d: after %v, want %v: %+v", i, took, c.after, next)
			}
			if _, err := b.AckLease(t.Context(), auth.Anonymous, "g", l.ID, 0); c.after > 0 && !errors.Is(err, ErrLeaseLost) {
				t.Errorf("%d: the lease before: %v", i, err)
			}
			l = next
		}
		// A take that gets nothing comes back when its wait is over.
		began := time.Now()
		take.Wait = 2 * time.Second
		if got := w.take(take); len(got) > 0 || time.Since(began) != take.Wait {
			t.Errorf("after %v: %+v", time.Since(began), got)
		}
	})
}

// A record that was handed out as often as it may be goes to the dead letter
// topic, whole and with where it is from, and the others are handed out; so does
// one that a worker gives up.
func TestDeadLetters(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	create(t, b, "dead", 3, nil)
	set, err := b.NewRecordSet(t.Context(), auth.Anonymous, "orders")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		if err := set.Add(0, -1, []byte("k"), []byte(strconv.Itoa(i)), []record.Header{{Key: "h", Value: nil}, {Key: "h", Value: []byte("2")}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := set.Produce(t.Context(), AcksAll, time.Minute); err != nil {
		t.Fatal(err)
	}
	set.Close()
	w := &worker{t, b, "g"}
	take := LeaseRequest{Topics: []string{"orders"}, MaxDeliveries: 3, DeadLetter: "dead"}
	var got []string
	give := func(r ReleaseRequest) Lease {
		l := w.takeOne(take)
		got = append(got, fmt.Sprintf("%d-%d/%d", l.First, l.Next, l.Deliveries))
		if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", l.ID, r); err != nil {
			t.Fatal(err)
		}
		return l
	}
	for range 4 {
		give(ReleaseRequest{Upto: -1})
	}
	give(ReleaseRequest{Upto: 3, DeadLetter: true})
	l := give(ReleaseRequest{Upto: -1})
	if want := "0-8/1 0-4/2 0-1/3 1-8/1 1-4/2 4-8/1"; strings.Join(got, " ") != want {
		t.Errorf("leases %v, want %s", got, want)
	}
	if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", l.ID, ReleaseRequest{Upto: -1, DeadLetter: true}); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("a dead letter of a lease that is lost: %v", err)
	}
	take.DeadLetter, take.MaxDeliveries = "", 0
	l = w.takeOne(take)
	if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", l.ID, ReleaseRequest{Upto: -1, DeadLetter: true}); !errors.Is(err, ErrNoDeadLetter) {
		t.Errorf("without a topic: %v", err)
	}
	if got, want := deadLetters(t, b), "k=0 h=<nil> h=2 topic=orders partition=0 offset=0 group=g deliveries=3 reason=max_deliveries;"+
		"k=3 h=<nil> h=2 topic=orders partition=0 offset=3 group=g deliveries=1 reason=released"; got != want {
		t.Errorf("dead letters:\n%s, want\n%s", got, want)
	}
	// A crash may have come between the dead letter and the offset behind it.
	for range 2 {
		d := deadLetter{group: "g", topic: "dead", part: partitionOf(b, "orders"), from: 3, to: 4, deliveries: 9, reason: "again"}
		if next, err := b.bury(t.Context(), auth.Anonymous, &d); next != 4 || err != nil {
			t.Fatal(next, err)
		}
	}
	if got := deadLetters(t, b); strings.Count(got, "offset=3") != 1 {
		t.Errorf("written again: %s", got)
	}
	take.DeadLetter = "orders"
	if _, err := b.TakeLeases(t.Context(), auth.Anonymous, "g", &take); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("dead letters into the topic itself: %v", err)
	}
}

// deadLetters is the records of the topic dead.
func deadLetters(t *testing.T, b *Broker) string {
	t.Helper()
	var out []string
	for p := range int32(3) {
		part := b.served(partitionOf(b, "dead").id)
		id := part.id
		id.Partition = p
		part = b.served(id)
		for from := int64(0); from < part.hw.Load(); {
			r, found, err := b.recordAt(part, from, part.hw.Load())
			if err != nil || !found {
				t.Fatal(found, err)
			}
			text := string(r.Key) + "=" + string(r.Value)
			for _, h := range r.Headers {
				value := string(h.Value)
				if h.Value == nil {
					value = "<nil>"
				}
				text += " " + strings.TrimPrefix(h.Key, "leat.dead_letter.") + "=" + value
			}
			out = append(out, text)
			from = r.Offset + 1
		}
	}
	return strings.Join(out, ";")
}

// A group that was overtaken by retention is told what it has lost, once, and
// goes on where the log begins; one that had committed nothing has lost nothing.
func TestLeaseGaps(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 1, nil)
	produce(t, b, AcksAll, "orders", 0, "a", "b", "c", "d", "e", "f")
	w, late := &worker{t, b, "g"}, &worker{t, b, "late"}
	take := LeaseRequest{Topics: []string{"orders"}}
	first := w.takeOne(take)
	w.ack(&first, 1)
	if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", first.ID, ReleaseRequest{Upto: -1}); err != nil {
		t.Fatal(err)
	}
	if r := b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "orders", Offset: 3}}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	l := w.takeOne(take)
	if l.First != 3 || l.Gap != (Gap{1, 3}) || l.Deliveries != 1 {
		t.Errorf("%+v", l)
	}
	if got := fetchOne(t, b, "g", "orders", 0); got != 3 {
		t.Errorf("committed %d", got)
	}
	if l := late.takeOne(take); l.First != 3 || l.Gap != (Gap{}) {
		t.Errorf("of the late group: %+v", l)
	}
	if _, err := b.ReleaseLease(t.Context(), auth.Anonymous, "g", l.ID, ReleaseRequest{Upto: -1}); err != nil {
		t.Fatal(err)
	}
	// All of it is gone: the next record is handed out, with the gap before it.
	if r := b.DeleteRecords(t.Context(), auth.Anonymous, []DeleteRecordsSpec{{Topic: "orders", Offset: 6}}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if got := w.take(take); len(got) > 0 {
		t.Errorf("leases of nothing: %+v", got)
	}
	produce(t, b, AcksAll, "orders", 0, "g")
	take.Wait = MaxLeaseWait // the group hears of new records after their producer
	if l := w.takeOne(take); l.First != 6 || l.Next != 7 || l.Gap != (Gap{3, 6}) || l.Deliveries != 1 {
		t.Errorf("%+v", l)
	}
}

// A take from the latest begins where the logs ended at the group's first take,
// also for what was produced before the second.
func TestLeaseFromLatest(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	create(t, b, "orders", 2, nil)
	produce(t, b, AcksAll, "orders", 0, "a", "b")
	w := &worker{t, b, "g"}
	take := LeaseRequest{Topics: []string{"orders"}, From: FromLatest}
	if got := w.take(take); len(got) > 0 {
		t.Fatalf("%+v", got)
	}
	produce(t, b, AcksAll, "orders", 0, "c")
	produce(t, b, AcksAll, "orders", 1, "d")
	got := w.take(take)
	if len(got) != 2 || got[0].First != 2 || got[1].First != 0 {
		t.Fatalf("%+v", got)
	}
	// Partitions that come later are read from their start.
	if r := b.CreatePartitions(t.Context(), auth.Anonymous, []PartitionsSpec{{Topic: "orders", Count: 3}}, false); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	produce(t, b, AcksAll, "orders", 2, "e")
	if l := w.takeOne(take); l.Partition != 2 || l.First != 0 {
		t.Fatalf("%+v", l)
	}
}

// A topic that is made again under its name is another: leases of the old one are
// lost, its offsets are not taken for the new one's, and nothing of it is kept.
func TestLeasesOfDeletedTopics(t *testing.T) {
	b := open(t, disk.NewMem(), quickGroups)
	take := LeaseRequest{Topics: []string{"orders"}}
	w := &worker{t, b, "g"}
	create(t, b, "orders", 1, nil)
	produce(t, b, AcksAll, "orders", 0, "a", "b", "c")
	old := w.takeOne(take)
	w.ack(&old, 2)
	if r := b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: "orders"}}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if _, err := b.TakeLeases(t.Context(), auth.Anonymous, "g", &take); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("a take of a topic that is gone: %v", err)
	}
	create(t, b, "orders", 1, nil)
	produce(t, b, AcksAll, "orders", 0, "d", "e")
	for range 2 {
		if _, err := b.AckLease(t.Context(), auth.Anonymous, "g", old.ID, -1); !errors.Is(err, ErrLeaseLost) {
			t.Errorf("ack of the old lease: %v", err)
		}
		for _, s := range b.groups.all() {
			if err := s.sweep(t.Context(), false); err != nil {
				t.Fatal(err)
			}
		}
		if n := leaseRecords(t, b); n != 0 {
			t.Errorf("%d records of leases are left", n)
		}
	}
	if l := w.takeOne(take); l.First != 0 || l.Next != 2 || l.Deliveries != 1 {
		t.Errorf("%+v", l)
	}
	// One who waits for a topic that goes is told.
	waits := make(chan error)
	create(t, b, "empty", 1, nil)
	go func() {
		_, err := b.TakeLeases(t.Context(), auth.Anonymous, "other", &LeaseRequest{Topics: []string{"empty"}, Wait: MaxLeaseWait})
		waits <- err
	}()
	awaitParked(t, b, "other", 1)
	if r := b.DeleteTopics(t.Context(), auth.Anonymous, []TopicRef{{Name: "empty"}}); r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	if err := <-waits; !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("one who waited: %v", err)
	}
}

// A partition that is damaged is passed over while others have work, and told of
// if none has; nothing behind the damage is committed by who has what is before.
func TestLeasesPassOverDamage(t *testing.T) {
	fs := disk.NewMem()
	b := open(t, fs, quickGroups)
	create(t, b, "orders", 1, nil)
	create(t, b, "other", 1, nil)
	produce(t, b, AcksAll, "orders", 0, "aaaa", "bbbb")
	produce(t, b, AcksAll, "orders", 0, "cccc")
	produce(t, b, AcksAll, "orders", 0, "dddd")
	produce(t, b, AcksAll, "other", 0, "e")
	part := partitionOf(b, "orders")
	overwrite(t, fs, part, int64(len(batch(t, "aaaa", "bbbb")))+record.HeaderSize+6, 0xff)
	w := &worker{t, b, "g"}
	l := w.takeOne(LeaseRequest{Topics: []string{"orders"}})
	if l.First != 0 || l.Next != 2 {
		t.Fatalf("before the damage: %+v", l)
	}
	w.ack(&l, -1)
	both := LeaseRequest{Topics: []string{"orders", "other"}}
	if l := w.takeOne(both); l.Topic != "other" {
		t.Fatalf("%+v", l)
	}
	for range 2 {
		if got, err := b.TakeLeases(t.Context(), auth.Anonymous, "g", &both); !errors.Is(err, ErrCorruptRecord) {
			t.Fatalf("nothing but damage: %+v, %v", got, err)
		}
	}
}
