package group

import (
	"testing"
	"time"
)

// A lease that covered what was committed since is none any more, and is handed out
// from where the group is.
func TestRestoreLeftLease(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLeases(&LeaseConfig{MaxWaiting: 10, Aside: time.Second, Linger: time.Minute}, now)
	at := Partition{Topic: [16]byte{1}}
	l.RestoreOffset(at, 7, Nonce{})
	l.RestoreLease(now, at, &LeaseRecord{Nonce: Nonce{1}, Begin: 3, First: 3, Next: 9, Until: now.Add(time.Minute), Span: time.Minute, Deliveries: 2, Count: 6})
	if l.Live() != 0 {
		t.Error("the lease lives")
	}
	l.Arrived(now, at)
	e := l.Take(now, 1, &TakeRequest{Topics: []TakeTopic{{ID: at.Topic, Partitions: 1}}, MaxPartitions: 1, LeaseTerms: LeaseTerms{Duration: time.Second}})
	if len(e.Watches) != 1 || e.Watches[0].From != 7 {
		t.Errorf("%+v", e)
	}
}

// Takes that were served leave nothing behind with the topics that had nothing
// for them.
func TestServedTakesLeave(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLeases(&LeaseConfig{MaxWaiting: 10, Aside: time.Second, Linger: time.Minute}, now)
	idle, busy := Partition{Topic: [16]byte{1}}, Partition{Topic: [16]byte{2}}
	for i := range int64(1000) {
		token := Token(i + 1)
		l.Take(now, token, &TakeRequest{
			Topics:        []TakeTopic{{ID: idle.Topic, Partitions: 1}, {ID: busy.Topic, Partitions: 1}},
			MaxPartitions: 1, LeaseTerms: LeaseTerms{Duration: time.Second},
		})
		l.Arrived(now, busy)
		n := Nonce{1, byte(i), byte(i >> 8)}
		leases, _ := l.Grant(now, token, []Read{{At: busy, First: i, Next: i + 1, Count: 1, End: i + 1, Nonce: n}})
		if len(leases) != 1 {
			t.Fatalf("take %d: %d leases", i, len(leases))
		}
		if _, _, err := l.Ack(now, busy, n, -1); err != nil {
			t.Fatal(err)
		}
		if n := len(l.ready); n > 0 {
			t.Fatalf("take %d: %d topics are kept that were offered", i, n)
		}
		for _, at := range []Partition{idle, busy} {
			if n := len(l.topics[at.Topic].waiting); n > 1 {
				t.Fatalf("take %d: %d takes are kept with topic %d", i, n, at.Topic[0])
			}
		}
	}
}

// Leases are not idle while one lives, however long ago somebody has used it and
// whenever Tick comes.
func TestLiveLeaseIsNotIdle(t *testing.T) {
	now := time.Unix(1000, 0)
	l := NewLeases(&LeaseConfig{MaxWaiting: 10, Aside: time.Second, Linger: time.Minute}, now)
	at := Partition{Topic: [16]byte{1}}
	l.Take(now, 1, &TakeRequest{Topics: []TakeTopic{{ID: at.Topic, Partitions: 1}}, MaxPartitions: 1, LeaseTerms: LeaseTerms{Duration: time.Hour}})
	l.Arrived(now, at)
	l.Grant(now, 1, []Read{{At: at, First: 0, Next: 1, Count: 1, End: 1, Nonce: Nonce{1}}})
	if l.Live() != 1 || l.Idle(now.Add(time.Minute)) {
		t.Errorf("%d live, idle %t", l.Live(), l.Idle(now.Add(time.Minute)))
	}
	if _, _, err := l.Ack(now, at, Nonce{1}, -1); err != nil || !l.Idle(now.Add(time.Minute)) {
		t.Errorf("%v, idle %t", err, l.Idle(now.Add(time.Minute)))
	}
}
