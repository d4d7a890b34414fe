package broker

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"leat/auth"
	"leat/broker/group"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/meta"
)

// offsetsModel is a server whose offsets topic is compacted all the time, and
// what its groups have committed.
type offsetsModel struct {
	*testing.T
	rng       *rand.Rand
	fs        *disk.Mem
	clock     shiftedClock
	b         *Broker
	topic     TopicID // of a, which stays
	member    *groupClient
	next      int64
	want      map[place3]int64
	compacted bool
}

// place3 is where an offset is committed.
type place3 struct {
	group, topic string
	partition    int32
}

// TestOffsetsRebuild proves that whatever a restart finds in the store, each last
// committed offset is there, and none of those that were deleted, expired, or
// went with their topic: the store as it was, behind the log after a power cut,
// of another topic or leader, ahead of the log, or gone; while the log of the offsets topic
// is compacted, tombstones included. A member is in its generation all along.
func TestOffsetsRebuild(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := &offsetsModel{T: t, rng: rand.New(rand.NewPCG(seed, 0)), fs: disk.NewMem(), want: map[place3]int64{}}
			m.open()
			for _, topic := range modelTopics {
				create(t, m.b, topic, 3, nil)
			}
			m.topic = m.b.proposer.State().TopicNamed("a").ID
			m.member = &groupClient{b: m.b, group: "member", topic: modelTopics[0]}
			m.member.join(t)
			m.member.sync(t)
			for range 12 {
				for range 40 {
					m.step()
				}
				m.restart()
				m.check()
			}
			if err := m.b.Close(); err != nil {
				t.Error(err)
			}
			if !m.compacted {
				t.Error("nothing was compacted")
			}
		})
	}
}

var modelTopics = []string{"a", "b", "c"}

func (m *offsetsModel) open() {
	m.Helper()
	b, err := Open(m.Context(), Options{Path: "/data", FS: m.fs, Now: m.clock.now, Configs: map[string]string{
		"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1", "offsets.topic.segment.bytes": "1024",
		"log.cleaner.backoff.ms": "3600000", "log.cleaner.min.cleanable.ratio": "0", "log.cleaner.delete.retention.ms": "0",
	}})
	if err != nil {
		m.Fatal(err)
	}
	m.b = b
	if m.member != nil {
		m.member.b = b
	}
	awaitGroups(m.T, b)
}

// step does something that changes what is committed, or where it stands.
func (m *offsetsModel) step() {
	m.Helper()
	at := place3{fmt.Sprint("g", m.rng.IntN(5)), modelTopics[m.rng.IntN(3)], m.rng.Int32N(3)}
	switch n := m.rng.IntN(100); {
	case n < 70:
		m.commit(at, -1)
	case n < 76:
		m.next++
		if err := m.member.commit(m.T, "a", 0, m.next); err != nil {
			m.Fatal(err)
		}
		m.want[place3{"member", "a", 0}] = m.next
	case n < 80:
		if _, err := m.b.DeleteOffsets(m.Context(), auth.Anonymous, at.group, []TopicPartitions{{at.topic, []int32{at.partition}}}); err == nil {
			delete(m.want, at)
		}
	case n < 84:
		m.b.DeleteGroups(m.Context(), auth.Anonymous, []string{at.group})
		m.remove(func(p place3) bool { return p.group == at.group })
	case n < 86 && at.topic != "a": // the member reads that one
		if r := m.b.DeleteTopics(m.Context(), auth.Anonymous, []TopicRef{{Name: at.topic}}); r[0].Err != nil {
			m.Fatal(r[0].Err)
		}
		create(m.T, m.b, at.topic, 3, nil)
		m.remove(func(p place3) bool { return p.topic == at.topic })
	case n < 90:
		m.commit(at, 1000)
		m.clock.advance(2 * time.Second)
		if err := m.b.Heartbeat(m.Context(), auth.Anonymous, "member", m.member.ref()); err != nil {
			m.Fatal(err)
		}
		sweepAll(m.T, m.b)
		delete(m.want, at)
	case n < 95:
		m.inShard(func(s *shard) { s.syncStore() })
	default:
		m.compact()
	}
}

func (m *offsetsModel) remove(gone func(place3) bool) {
	maps.DeleteFunc(m.want, func(p place3, _ int64) bool { return gone(p) })
}

func (m *offsetsModel) commit(at place3, keep int64) {
	m.Helper()
	m.next++
	errs, err := m.b.CommitOffsets(m.Context(), auth.Anonymous, at.group, nobody, keep, []CommitOffset{
		{Topic: at.topic, Partition: at.partition, Offset: m.next, LeaderEpoch: -1, Metadata: "some text"},
	})
	if err != nil || errs[0] != nil {
		m.Fatal(err, errs)
	}
	m.want[at] = m.next
}

// inShard calls fn where the shard works.
func (m *offsetsModel) inShard(fn func(s *shard)) {
	m.Helper()
	s := m.b.groups.all()[0]
	whereItWorks(m.T, s, func() { fn(s) })
}

// whereItWorks calls fn in a shard's goroutine.
func whereItWorks(t *testing.T, s *shard, fn func()) {
	t.Helper()
	done := make(chan struct{})
	err := s.submit(t.Context(), func(time.Time) {
		defer close(done)
		fn()
	})
	if err != nil {
		t.Fatal(err)
	}
	<-done
}

// compact compacts the offsets topic as far as it may be.
func (m *offsetsModel) compact() {
	p := partitionOf(m.b, offsetsTopic)
	before := p.log.Size()
	cleaner := storage.NewCleaner(storage.CleanerOptions{})
	for passed := map[*partition]bool{}; m.b.compactNext(cleaner, passed); {
	}
	m.compacted = m.compacted || p.log.Size() < before
}

// restart ends the server, cleanly, by kill -9 or with a power cut, and perhaps
// spoils the store.
func (m *offsetsModel) restart() {
	m.Helper()
	switch how := m.rng.IntN(3); how {
	case 0:
		if err := m.b.Close(); err != nil {
			m.Fatal(err)
		}
	default:
		left := m.fs.CrashClone(float64(how-1), nil)
		_ = m.b.Close()
		m.fs = left
	}
	m.spoil()
	m.open()
}

// spoil leaves the store as it is half of the time.
func (m *offsetsModel) spoil() {
	m.Helper()
	how := m.rng.IntN(7)
	if how < 3 {
		return
	}
	db, err := meta.Open(meta.Options{FS: m.fs, Dir: "/data/db"})
	if err != nil {
		m.Fatal(err)
	}
	batch := db.NewBatch()
	s := newOffsetStore(db, TopicID{}, 0)
	applied, err := db.Get(s.key('A'))
	if err != nil {
		m.Fatal(err)
	}
	// What must not be taken for committed.
	wrong := &group.Offset{Topic: m.topic, At: m.clock.now().UnixMilli(), Expires: -1, Offset: 1 << 40}
	batch.Set(s.offsetKey("wrong", "a", 0), encodeOffset(wrong))
	batch.Set(s.key('N', "wrong"), nil)
	switch how {
	case 3: // gone
		batch.DeleteRange([]byte{meta.PrefixGroups}, []byte{meta.PrefixGroups + 1})
	case 4: // of another topic
		applied[1] ^= 1
		batch.Set(s.key('A'), applied)
	case 5: // ahead of the log
		binary.BigEndian.PutUint64(applied[17:], 1<<40)
		batch.Set(s.key('A'), applied)
	default: // of another leader
		batch.Set(s.key('A'), binary.BigEndian.AppendUint32(slices.Clone(applied[:25]), 1<<20))
	}
	if err := db.Commit(batch); err != nil {
		m.Fatal(err)
	}
	if err := db.Close(); err != nil {
		m.Fatal(err)
	}
}

// check compares what the server has with what it answered.
func (m *offsetsModel) check() {
	m.Helper()
	groups := map[string]bool{"member": true}
	for p := range m.want {
		groups[p.group] = true
	}
	names := append(slices.Collect(maps.Keys(groups)), "wrong", "g0", "g1", "g2", "g3", "g4")
	for _, id := range names {
		for _, topic := range modelTopics {
			for partition := range int32(3) {
				want, ok := m.want[place3{id, topic, partition}]
				if !ok {
					want = -1
				}
				if got := fetchOne(m.T, m.b, id, topic, partition); got != want {
					m.Fatalf("%s has committed %d for %s-%d, want %d", id, got, topic, partition, want)
				}
			}
		}
	}
	// A crash may have come before a deleted topic's offsets were gone.
	if err := m.b.groups.all()[0].sweep(m.Context(), false); err != nil {
		m.Fatal(err)
	}
	list, err := m.b.ListGroups(m.Context(), auth.Anonymous, nil)
	if err != nil {
		m.Fatal(err)
	}
	if len(list) != len(groups) || slices.ContainsFunc(list, func(g GroupListing) bool { return !groups[g.ID] }) {
		m.Fatalf("groups %v, want %v", list, groups)
	}
	if err := m.b.Heartbeat(m.Context(), auth.Anonymous, "member", m.member.ref()); err != nil {
		m.Fatalf("the member's heartbeat: %v", err)
	}
}
