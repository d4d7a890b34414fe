package group

import (
	"testing"
	"time"
)

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
		for _, at := range []Partition{idle, busy} {
			if n := len(l.topics[at.Topic].waiting); n > 1 {
				t.Fatalf("take %d: %d takes are kept with topic %d", i, n, at.Topic[0])
			}
		}
	}
}
