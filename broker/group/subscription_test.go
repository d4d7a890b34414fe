package group

import (
	"testing"
	"time"
)

func subscriptionTo(topics ...string) []byte {
	b := []byte{0, 1, 0, 0, 0, byte(len(topics))}
	for _, t := range topics {
		b = append(b, 0, byte(len(t)))
		b = append(b, t...)
	}
	return append(b, 0xff, 0xff, 0xff, 0xff) // no user data
}

// A group reads the topics that its members' metadata name, and every topic if
// that cannot be told.
func TestSubscribes(t *testing.T) {
	for name, c := range map[string]struct {
		kind     string
		metadata [][]byte
		want     bool
	}{
		"one of two":         {"consumer", [][]byte{subscriptionTo("a"), subscriptionTo("b", "orders")}, true},
		"none":               {"consumer", [][]byte{subscriptionTo("a"), subscriptionTo()}, false},
		"prefix":             {"consumer", [][]byte{subscriptionTo("order", "orders2")}, false},
		"nobody":             {"consumer", nil, false},
		"connect":            {"connect", [][]byte{subscriptionTo("a")}, true},
		"empty":              {"consumer", [][]byte{nil}, true},
		"cut":                {"consumer", [][]byte{subscriptionTo("abc")[:9]}, true},
		"count beyond bytes": {"consumer", [][]byte{{0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 1, 'a'}}, true},
		"negative count":     {"consumer", [][]byte{{0, 0, 0xff, 0xff, 0xff, 0xff}}, true},
		"negative length":    {"consumer", [][]byte{{0, 0, 0, 0, 0, 1, 0xff, 0xff}}, true},
	} {
		cfg := Config{MaxSession: time.Minute, MaxSize: 9}
		r := &Record{ProtocolType: c.kind, Protocol: "range", Generation: 1}
		for i, m := range c.metadata {
			r.Members = append(r.Members, Member{ID: string(rune('a' + i)), Session: time.Minute, Metadata: m})
		}
		if got := Restore("g", &cfg, r, start).Subscribes("orders"); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Any bytes are metadata: parsing them neither panics nor allocates.
func FuzzSubscription(f *testing.F) {
	f.Add(subscriptionTo("a", "orders"))
	f.Add([]byte{0, 0, 0x7f, 0xff, 0xff, 0xff, 0, 1, 'a'})
	f.Fuzz(func(t *testing.T, p []byte) {
		if topics, ok := subscription(p); ok {
			topics.has("orders")
		}
		if n := testing.AllocsPerRun(1, func() { _, _ = subscription(p) }); n > 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// What was assigned ends with its generation.
func TestAssignmentsEnd(t *testing.T) {
	cfg := &Config{MaxSession: time.Hour, MaxSize: 1, NewMemberID: func(string) string { return "m" }}
	g := New("g", cfg, start)
	join := func(id string) {
		g.Join(start, 1, &JoinRequest{Member: Member{ID: id, Session: time.Minute, RebalanceTimeout: time.Minute}, ProtocolType: "consumer", Protocols: []Protocol{{Name: "range"}}})
	}
	has := func(want State, assigned string) {
		t.Helper()
		if m := g.Members(); g.state != want || len(m) != 1 || string(m[0].Assignment) != assigned {
			t.Fatalf("%v, %+v", g.state, m)
		}
	}
	join("")
	g.Sync(start, 2, &SyncRequest{MemberRef: MemberRef{ID: "m", Generation: 1}, Assignments: map[string][]byte{"m": []byte("all")}})
	has(Stable, "all")
	join("m")
	has(Completing, "")
}
