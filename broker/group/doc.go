// Package group is consumer groups as pure state: who is a member, which
// generation it is, who owns what. Every step takes the time as an argument and
// returns what to answer and what to persist; nothing here reads a clock, waits,
// or does I/O. broker owns the groups, one goroutine each at a time; nobody else
// but the tests of the simulation may import this package.
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
// # Shards
//
// A Shard is the groups of one partition of the log that has them: it decides who
// answers for them, and when what they have done may be told. What operations
// change is in memory at once, and what comes after is decided on that; it is told
// when its record is committed in the log and in the View, which is the fold of the
// committed log. A round of changes is one batch.
//
//	operation ──▶ filling ──▶ Append ──▶ rounds ──▶ Committed ──▶ Apply ──▶ Answers
//	                            │          │
//	                  refused ──┤          └── Resign: ErrNotCoordinator; the next
//	    groups go back to what  │              leader knows what became of it
//	    was appended before     └── not known: Loading, until it is
//
// All is keyed by the leader epoch of the partition. Every replica applies what is
// committed, so that who takes office has little to load; it serves when the
// watermark and the View have passed the end that its log had then. A View that is
// ahead of its log, or has its last record of another leader than the log has it, is
// wiped and made again.
//
// # What callers must do
//
// The owner of a Group does what Shard does for its own: answers that come in the
// same Effects as a Record, and later answers of the same group, go out when the
// record is committed; if that fails the owner drops the group, answers with an
// error, and restores it from what is committed. Deadline says when to call Tick at
// the latest. The owner of a Shard does what Next says, and nothing else to the View.
package group
