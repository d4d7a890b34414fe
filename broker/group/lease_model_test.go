package group

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Whatever workers do, and whenever the server crashes with what is not committed
// yet, or is restarted with a clock that has gone anywhere: a partition has one
// lease at a time, which begins where the group has committed; what is committed
// was leased to who acked it; what is persisted is what is in force; a partition
// with work is somebody's while anybody waits; and none is kept from all longer
// than its lease.
func TestLeaseModel(t *testing.T) {
	seeds := 300
	if n, err := strconv.Atoi(os.Getenv("LEAT_SEEDS")); err == nil {
		seeds = n
	}
	var did leaseDeeds
	for seed := range uint64(seeds) {
		m := newLeaseModel(t, seed, &did)
		for range 400 {
			m.step()
		}
		m.drain()
	}
	if did.taken == 0 || did.acked == 0 || did.together == 0 || did.again == 0 || did.lost == 0 || did.crashes == 0 || did.dead == 0 || did.unknown == 0 {
		t.Errorf("not all was tried: %+v", did)
	}
}

// leaseDeeds counts what the seeds did, so that none of it is left out unseen.
type leaseDeeds struct{ taken, acked, together, again, lost, crashes, dead, unknown int }

type leaseModel struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	did  *leaseDeeds
	cfg  LeaseConfig
	l    *Leases
	now  time.Time

	ends  map[Partition]int64 // of the logs
	watch map[Partition]int64
	// durable is what is committed, and pending what is on its way, with what is
	// told then.
	durable map[Partition]kept
	pending []pendingStep

	token   Token
	waiting map[Token]*TakeRequest
	reading map[Token][]Reservation
	nonces  uint64
	// leases are those of which a worker was told, by partition, the newest last.
	leases map[Partition][]*LeaseInfo
	// done is up to where a partition was acked by who had it, or is dead.
	done map[Partition]int64
}

type kept struct {
	offset int64
	acked  Nonce
	record *LeaseRecord
}

type pendingStep struct {
	changes []LeaseChange
	told    func()
}

var modelPartitions = []Partition{{[16]byte{'a'}, 0}, {[16]byte{'a'}, 1}, {[16]byte{'a'}, 2}, {[16]byte{'b'}, 0}}

func newLeaseModel(t *testing.T, seed uint64, did *leaseDeeds) *leaseModel {
	m := &leaseModel{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 2)), did: did, now: start,
		ends: map[Partition]int64{}, durable: map[Partition]kept{}, leases: map[Partition][]*LeaseInfo{}, done: map[Partition]int64{},
	}
	m.cfg = LeaseConfig{MaxWaiting: 4, Aside: 5 * time.Second, Linger: time.Minute}
	m.restore()
	return m
}

func (m *leaseModel) fail(format string, args ...any) {
	m.t.Helper()
	m.t.Fatalf("seed %d: %s", m.seed, fmt.Sprintf(format, args...))
}

// restore makes the leases of what is committed.
func (m *leaseModel) restore() {
	m.l = NewLeases(&m.cfg, m.now)
	m.watch, m.waiting, m.reading, m.pending = map[Partition]int64{}, map[Token]*TakeRequest{}, map[Token][]Reservation{}, nil
	for at, k := range m.durable {
		if k.offset >= 0 {
			m.l.RestoreOffset(at, k.offset, k.acked)
		}
	}
	for at, k := range m.durable {
		if k.record != nil {
			r := *k.record
			m.l.RestoreLease(m.now, at, &r)
		}
	}
	for at, all := range m.leases {
		for _, i := range all { // so much is left of what was told
			r := m.durable[at].record
			if r != nil && r.Nonce == i.Nonce {
				i.Until = m.now.Add(max(0, min(r.Until.Sub(m.now), r.Span)))
			}
		}
	}
}

// take does what a step asks for; told is called once that is committed.
func (m *leaseModel) take(e LeaseEffects, told func()) {
	m.pending = append(m.pending, pendingStep{e.Changes, told})
	for _, w := range e.Watches {
		if from, ok := m.watch[w.At]; ok && w.From >= from {
			m.fail("%v is watched from %d, and from %d already", w.At, w.From, from)
		}
		m.watch[w.At] = w.From
	}
	for _, h := range e.Handouts {
		if m.waiting[h.Token] == nil {
			m.fail("token %d was answered, which does not wait", h.Token)
		}
		delete(m.waiting, h.Token)
		if h.Err == nil {
			m.reading[h.Token] = h.Reservations
		}
	}
	m.arrive()
	if m.rng.IntN(2) == 0 {
		m.commit(len(m.pending))
	}
	m.check()
}

// arrive tells of what is watched and there.
func (m *leaseModel) arrive() {
	for _, at := range modelPartitions {
		if from, ok := m.watch[at]; ok && m.ends[at] > from {
			delete(m.watch, at)
			m.take(m.l.Arrived(m.now, at), nil)
		}
	}
}

// commit makes the first steps that are on their way durable and tells of them.
func (m *leaseModel) commit(n int) {
	steps := m.pending[:n]
	m.pending = m.pending[n:]
	for _, s := range steps {
		for _, c := range s.changes {
			k, ok := m.durable[c.At]
			if !ok {
				k.offset = -1
			}
			if c.Commit {
				k.offset, k.acked = c.Offset, c.Acked
			} else {
				k.record = c.Record
			}
			m.durable[c.At] = k
		}
		if s.told != nil {
			s.told()
		}
	}
}

func (m *leaseModel) check() {
	wanted := map[[16]byte]bool{}
	for _, r := range m.waiting {
		for _, t := range r.Topics {
			wanted[t.ID] = true
		}
	}
	deadline := m.l.Deadline()
	for _, at := range modelPartitions {
		s := m.l.slot(at, false)
		if s == nil {
			continue
		}
		if s.phase == free && wanted[at.Topic] {
			m.fail("%v is free and somebody waits", at)
		}
		if from, ok := m.watch[at]; s.phase == watched && (!ok || from > max(s.position(), s.start)) {
			m.fail("%v waits for nothing", at)
		}
		if s.phase >= reserved && (s.until.Before(deadline) || s.until.Sub(m.now) > MaxLease) {
			m.fail("%v is kept until %v, looked at at %v, now is %v", at, s.until, deadline, m.now)
		}
		if s.record != nil && s.committed >= 0 && s.record.First != s.committed {
			m.fail("%v: a record of %d, committed is %d", at, s.record.First, s.committed)
		}
		if len(m.pending) == 0 && s.pending == nil {
			k, ok := m.durable[at]
			if !ok {
				k.offset = -1
			}
			same := k.record == s.record || k.record != nil && s.record != nil && *k.record == *s.record
			if k.offset != s.committed || k.acked != s.acked || !same {
				m.fail("%v: %d, %v, %+v is persisted, not %d, %v, %+v", at, k.offset, k.acked, k.record, s.committed, s.acked, s.record)
			}
		}
	}
}

func (m *leaseModel) step() {
	switch n := m.rng.IntN(100); {
	case n < 15:
		at := modelPartitions[m.rng.IntN(len(modelPartitions))]
		m.ends[at] += int64(1 + m.rng.IntN(20))
		m.arrive()
	case n < 35:
		m.startTake()
	case n < 55:
		m.finishRead()
	case n < 75:
		m.useLease()
	case n < 78:
		m.cancel()
	case n < 81:
		m.crash()
	case n < 84:
		m.seek()
	default:
		m.wait(time.Duration(m.rng.IntN(3000)) * time.Millisecond)
	}
	if m.rng.IntN(4) == 0 {
		m.commit(m.rng.IntN(len(m.pending) + 1))
	}
}

func (m *leaseModel) startTake() {
	r := &TakeRequest{MaxPartitions: 1 + m.rng.IntN(4), LeaseTerms: LeaseTerms{
		Duration: time.Duration(1+m.rng.IntN(5)) * time.Second, MaxDeliveries: int32(m.rng.IntN(4)),
	}}
	if m.rng.IntN(2) == 0 {
		r.DeadLetter = "dead"
	}
	if m.rng.IntN(3) > 0 {
		r.Topics = append(r.Topics, TakeTopic{ID: [16]byte{'a'}, Partitions: 3})
	}
	if len(r.Topics) == 0 || m.rng.IntN(2) == 0 {
		r.Topics = append(r.Topics, TakeTopic{ID: [16]byte{'b'}, Partitions: 1})
	}
	m.token++
	m.waiting[m.token] = r
	m.take(m.ackAndTake(r), nil)
}

// ackAndTake is a take with the acks of some leases, which may be over.
func (m *leaseModel) ackAndTake(r *TakeRequest) LeaseEffects {
	var acks []Acked
	var of []*LeaseInfo
	for _, at := range modelPartitions {
		if all := m.leases[at]; len(all) > 0 && m.rng.IntN(3) == 0 {
			i := all[len(all)-1-m.rng.IntN(min(2, len(all)))]
			acks, of = append(acks, Acked{at, i.Nonce}), append(of, i)
		}
	}
	results, e := m.l.AckAndTake(m.now, m.token, r, acks)
	for k, got := range results {
		i := of[k]
		live := i.Live && m.now.Before(i.Until)
		switch {
		case got.Err == nil && got.Info.AlreadyCommitted:
			m.did.again++
		case live != (got.Err == nil):
			m.fail("ack with a take of %v of %v, live %v until %v at %v: %v", i.Nonce, i.At, i.Live, i.Until, m.now, got.Err)
		case live:
			m.did.together++
			m.acked(i, &got.Info, -1)
		}
	}
	return e
}

// anyOf picks a key, the same for the same seed.
func anyOf[V any](rng *rand.Rand, of map[Token]V) (Token, bool) {
	if len(of) == 0 {
		return 0, false
	}
	var keys []Token
	for t := range of {
		keys = append(keys, t)
	}
	slices.Sort(keys)
	return keys[rng.IntN(len(keys))], true
}

// finishRead has leased what was read for a take.
func (m *leaseModel) finishRead() {
	t, ok := anyOf(m.rng, m.reading)
	if !ok {
		return
	}
	reservations := m.reading[t]
	delete(m.reading, t)
	var reads []Read
	dead := map[Partition]bool{}
	for _, r := range reservations {
		if m.rng.IntN(5) == 0 {
			continue // nothing was left for it
		}
		from := max(r.From, 0)
		in := Read{At: r.At, First: from, End: m.ends[r.At]}
		if r.Dead && m.rng.IntN(20) > 0 {
			in.First, in.Dead = from+1, true
			dead[r.At] = true
		}
		in.Next = min(m.ends[r.At], in.First+int64(min(r.Limit, 1+m.rng.IntN(10))))
		in.Count = int32(in.Next - in.First)
		if in.Next > in.First {
			m.nonces++
			in.Nonce = Nonce{1, byte(m.nonces), byte(m.nonces >> 8), byte(m.nonces >> 16)}
		}
		if m.rng.IntN(30) == 0 {
			in, dead[r.At] = Read{At: r.At, Err: errors.New("damaged")}, false
		}
		reads = append(reads, in)
	}
	infos, e := m.l.Grant(m.now, t, reads)
	for _, i := range infos {
		m.granted(&i, reads, dead[i.At])
	}
	for _, r := range reads { // dead, and nothing behind it
		if s := m.l.slot(r.At, false); dead[r.At] && r.First == r.Next && s.committed == r.First {
			m.done[r.At] = max(m.done[r.At], r.First)
		}
	}
	m.take(e, func() {
		for _, i := range infos {
			m.leases[i.At] = append(m.leases[i.At], &i)
		}
	})
}

// granted checks a lease at the moment at which it is granted.
func (m *leaseModel) granted(i *LeaseInfo, reads []Read, dead bool) {
	m.did.taken++
	if dead {
		m.did.dead++
		m.done[i.At] = max(m.done[i.At], i.First)
	}
	if i.First != max(i.Committed, 0) && i.Committed >= 0 {
		m.fail("a lease of %v from %d, committed is %d", i.At, i.First, i.Committed)
	}
	if i.Next > m.ends[i.At] || i.Next <= i.First {
		m.fail("a lease of %v from %d to %d of %d", i.At, i.First, i.Next, m.ends[i.At])
	}
	for _, old := range m.leases[i.At] {
		if old.Live && m.now.Before(old.Until) {
			m.fail("%v is leased to %v until %v and at %v to %v", i.At, old.Nonce, old.Until, m.now, i.Nonce)
		}
		old.Live = false
	}
	if !slices.ContainsFunc(reads, func(r Read) bool { return r.At == i.At && r.Nonce == i.Nonce }) {
		m.fail("a lease of %v that was not read", i.At)
	}
}

// useLease acks, extends or releases one of the newest leases of a partition.
func (m *leaseModel) useLease() {
	at := modelPartitions[m.rng.IntN(len(modelPartitions))]
	all := m.leases[at]
	if len(all) == 0 {
		return
	}
	i := all[len(all)-1-m.rng.IntN(min(2, len(all)))]
	live := i.Live && m.now.Before(i.Until)
	upto := int64(-1)
	if m.rng.IntN(2) == 0 {
		upto = i.First + int64(m.rng.IntN(int(i.Next-i.First)+1))
	}
	judge := func(err error) bool {
		if errors.Is(err, ErrLeaseRange) {
			m.fail("%d was refused of [%d, %d)", upto, i.First, i.Next)
		}
		if live != (err == nil) {
			m.fail("lease %v of %v, live %v until %v at %v: %v", i.Nonce, at, i.Live, i.Until, m.now, err)
		}
		if err != nil {
			m.did.lost++
		}
		return err == nil
	}
	switch n := m.rng.IntN(10); {
	case n < 6:
		got, e, err := m.l.Ack(m.now, at, i.Nonce, upto)
		switch {
		case err == nil && got.AlreadyCommitted:
			m.did.again++
		case judge(err):
			m.acked(i, &got, upto)
		}
		m.take(e, nil)
	case n < 8:
		d := time.Duration(m.rng.IntN(3)) * time.Second
		got, e, err := m.l.Extend(m.now, at, i.Nonce, d)
		if judge(err) {
			i.Until = got.Until
		}
		m.take(e, nil)
	default:
		got, e, err := m.l.Release(m.now, at, i.Nonce, upto, time.Duration(m.rng.IntN(2)*m.rng.IntN(9))*time.Second)
		if judge(err) {
			i.Live = false
			m.done[at] = max(m.done[at], got.Committed)
		}
		m.take(e, nil)
	}
}

func (m *leaseModel) acked(i, got *LeaseInfo, upto int64) {
	m.did.acked++
	if upto < 0 {
		upto = i.Next
	}
	s := m.l.slot(i.At, false)
	if s.committed != max(upto, m.done[i.At]) && s.committed >= 0 {
		m.fail("%v: %d is committed after an ack up to %d, done is %d", i.At, s.committed, upto, m.done[i.At])
	}
	m.done[i.At] = max(m.done[i.At], upto)
	i.Live = got.Live
}

func (m *leaseModel) cancel() {
	if t, ok := anyOf(m.rng, m.waiting); ok {
		delete(m.waiting, t)
		m.take(m.l.Cancel(m.now, t), nil)
	}
	if t, ok := anyOf(m.rng, m.reading); ok {
		delete(m.reading, t)
		m.take(m.l.Cancel(m.now, t), nil)
	}
}

// crash loses what is not committed, or a part of it; the clock may have moved.
func (m *leaseModel) crash() {
	m.did.crashes++
	before := len(m.pending)
	n := m.rng.IntN(before + 1)
	for i := range m.pending {
		m.pending[i].told = nil // the answers are lost in any case
	}
	m.commit(n)
	if n < before {
		m.did.unknown++
	}
	if m.rng.IntN(3) == 0 {
		m.now = m.now.Add(time.Duration(m.rng.IntN(20)-10) * time.Second)
	}
	m.restore()
	// Workers do not know what became of what they asked for last.
	for _, at := range modelPartitions {
		k := m.durable[at]
		m.done[at] = max(k.offset, 0)
		for _, i := range m.leases[at] {
			i.Live = k.record != nil && k.record.Nonce == i.Nonce
			if i.Live {
				i.First = k.record.First
			}
		}
	}
	m.check()
}

// seek has others set an offset, if no lease lives.
func (m *leaseModel) seek() {
	at := modelPartitions[m.rng.IntN(len(modelPartitions))]
	if m.l.LiveAt(m.now) {
		return
	}
	offset := int64(m.rng.IntN(int(m.ends[at]) + 1))
	e := m.l.Commit(m.now, at, offset)
	e.Changes = append(e.Changes, LeaseChange{At: at, Commit: true, Offset: offset})
	m.done[at] = offset
	for _, i := range m.leases[at] {
		i.Live = false
	}
	m.take(e, nil)
}

func (m *leaseModel) wait(d time.Duration) {
	end := m.now.Add(d)
	for at := m.l.Deadline(); !at.After(end); at = m.l.Deadline() {
		if at.Before(m.now) {
			m.fail("a deadline lies %v back", m.now.Sub(at))
		}
		m.now = at
		m.take(m.l.Tick(at), nil)
		if m.l.Idle(at) {
			m.l.Use(at)
		}
	}
	m.now = end
}

// drain has one worker do all the work that there is.
func (m *leaseModel) drain() {
	m.wait(time.Minute)
	for t := range m.waiting {
		delete(m.waiting, t)
		m.take(m.l.Cancel(m.now, t), nil)
	}
	for t := range m.reading {
		delete(m.reading, t)
		m.take(m.l.Cancel(m.now, t), nil)
	}
	m.wait(time.Minute)
	for round := 0; ; round++ {
		if round > 10_000 {
			m.fail("the work has no end")
		}
		m.token++
		r := &TakeRequest{MaxPartitions: 9, LeaseTerms: LeaseTerms{Duration: time.Second}, Topics: []TakeTopic{
			{ID: [16]byte{'a'}, Partitions: 3}, {ID: [16]byte{'b'}, Partitions: 1},
		}}
		m.waiting[m.token] = r
		m.take(m.l.Take(m.now, m.token, r), nil)
		if m.waiting[m.token] != nil {
			break
		}
		m.finishRead()
		for at, all := range m.leases {
			if n := len(all); n > 0 && all[n-1].Live {
				_, e, err := m.l.Ack(m.now, at, all[n-1].Nonce, -1)
				if err == nil {
					all[n-1].Live = false
				}
				m.take(e, nil)
			}
		}
		m.wait(10 * time.Second)
		m.commit(len(m.pending))
	}
	for at, end := range m.ends {
		if s := m.l.slot(at, false); s.committed != end {
			m.fail("%v is done up to %d of %d, phase %d", at, s.committed, end, s.phase)
		}
	}
}
