// Package group is consumer groups as pure state: who is a member, which
// generation it is, who owns what. Every step takes the time as an argument and
// returns what to answer and what to persist; nothing here reads a clock, waits,
// or does I/O. broker owns the groups, one goroutine each at a time; nobody else
// may import this package.
//
// # The classic protocol
//
//	          join                    all joined, or time is up
//	Empty ───────────▶ Preparing ──────────────────────▶ Completing
//	  ▲                 ▲  ▲                                 │
//	  │ nobody is left  │  │ join, leave, expiry             │ the leader's assignment
//	  └─────────────────┘  └────────── Stable ◀──────────────┘
//
// A rebalance begins when a member comes, goes, expires, changes what it can do,
// or is the leader and joins again. While it prepares, every member must join
// again; whoever does not within the longest rebalance timeout of all is out,
// static members excepted. Then the generation grows by one, a protocol that
// all members know is voted for, and the leader is told the others and assigns.
// Kafka's GroupCoordinator does the same; KIP-62, KIP-134 (the delay of a group
// that was empty), KIP-345 (static members), KIP-394 (the id comes first),
// KIP-814 (a static leader that skips the assignment).
//
// # Leases
//
// The partitions of a group of leases (Leases) are handed out for a time to
// whoever takes them; it has no members, and refuses them.
//
//	          arrived          take             grant
//	watched ─────────▶ free ─────────▶ reserved ──────▶ leased
//	   ▲  ▲              ▲                │ nothing      │ │
//	   │  └──────────────┼────────────────┘ there        │ │ ack of all
//	   │                 │ expiry, release               │ │
//	   │                 ├───────────────────────────────┘ │
//	   │                 │          delayed ◀── release    │
//	   │                 └───────────────┘      after a delay
//	   └───────────────────────────────────────────────────┘
//
// A take waits until a partition of its topics is free, the oldest take first,
// and gets those that were not served for longest. The caller reads them, and
// leases what it has found, or gives them back. A lease is lost at its deadline to
// the moment, and the partition is free again at the offset that is committed: at
// least once, in order, and never by two. How often the record there was handed
// out is counted; each time half as many are, and one by one at last, so that the
// record that workers fail at is found and can be set aside.
//
// # What callers must do
//
// Answers that come in the same Effects as a Record, and later answers of the
// same group, go out when the record is committed; if that fails the owner
// drops the group, answers with an error, and restores it from what is
// committed. Deadline says when to call Tick at the latest.
package group
