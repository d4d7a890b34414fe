package bench

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

const (
	commitMembers = 200
	commitGroups  = 20
	commitParts   = 16 // of each member, and of each request
	groupSpan     = time.Second
	groupPairs    = 7
)

// quickJoins have a group begin with who is there.
var quickJoins = []string{"--set", "group.initial.rebalance.delay.ms=0"}

// groupMembers makes groups of equal size of n members and returns when all have their assignments.
func (l *leat) groupMembers(n, groups int) []*member {
	l.b.Helper()
	members := make([]*member, n)
	for i := range members {
		members[i] = &member{caller: l.caller(), group: fmt.Sprint("group-", i%groups)}
	}
	var in atomic.Int64
	err := parallel(n, func(i int) error {
		m := members[i]
		err := m.join()
		in.Add(1)
		// Who comes late begins another rebalance, for which all must join again.
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for all := false; err == nil && !all; <-tick.C {
			all = in.Load() == int64(n)
			if err = m.heartbeat(); errors.Is(err, kerr.RebalanceInProgress) {
				all, err = false, m.join()
			}
		}
		return err
	})
	if err != nil {
		l.b.Fatal(err)
	}
	return members
}

// BenchmarkGroupCommits measures the committed offsets a second on one partition of __consumer_offsets, on disk when they
// are answered, from 200 members that commit 16 partitions a request, one request at a time each; against produces with
// acks=all of as many records and bytes on as many connections.
//
//	LEAT_BIN=$PWD/bin/leat go test -run '^$' -bench GroupCommits ./e2e/bench
func BenchmarkGroupCommits(b *testing.B) {
	for b.Loop() {
		l := startLeat(b, "--set", "offsets.topic.num.partitions=1", "--set", "group.initial.rebalance.delay.ms=1000")
		l.createPartitions("read", commitMembers/commitGroups*commitParts)
		l.createTopic("plain", nil)
		members := l.groupMembers(commitMembers, commitGroups)
		const oneOffset = 105 // bytes of one in the log
		frame := produceFrame("plain", -1, noise(61+commitParts*oneOffset, commitParts))
		next := make([]int64, len(members))
		var all []float64
		commits := func() float64 {
			all = append(all, commitParts*rate(b, len(members), groupSpan, func(i int) error {
				next[i]++
				return members[i].commit(i/commitGroups*commitParts, commitParts, next[i])
			}))
			return all[len(all)-1]
		}
		produces := func() float64 {
			return commitParts * rate(b, len(members), groupSpan, func(i int) error {
				body, err := members[i].exchange(frame)
				if err != nil {
					return err
				}
				return produceAnswer(append(make([]byte, 4), body...))
			})
		}
		compareN(b, groupPairs, "committed offsets, 200 members × 16 a request, one partition, against records of produces with acks=all", "offsets/s", goal{}, commits, produces)
		single(b, "committed offsets a second, median", "offsets/s", goal{least: 50_000}, median(all))
		b.ReportMetric(median(all), "offsets/s")
		l.stop()
	}
}

// BenchmarkGroupHeartbeats measures heartbeats a second of 200 members, and fetches of 16 committed offsets each, one
// request at a time on each connection; against requests for the versions of the APIs, and for the ends of 16 partitions,
// on the same connections.
//
//	LEAT_BIN=$PWD/bin/leat go test -run '^$' -bench GroupHeartbeats ./e2e/bench
func BenchmarkGroupHeartbeats(b *testing.B) {
	for b.Loop() {
		l := startLeat(b, "--set", "group.initial.rebalance.delay.ms=1000")
		l.createPartitions("read", commitMembers/commitGroups*commitParts)
		members := l.groupMembers(commitMembers, commitGroups)
		first := func(i int) int { return i / commitGroups * commitParts }
		err := parallel(len(members), func(i int) error { return members[i].commit(first(i), commitParts, 7) })
		if err != nil {
			b.Fatal(err)
		}
		of := func(call func(i int) error) func() float64 {
			return func() float64 { return rate(b, len(members), groupSpan, call) }
		}
		compareN(b, groupPairs, "heartbeats of 200 members, against ApiVersions", "requests/s", goal{},
			of(func(i int) error { return members[i].heartbeat() }), of(func(i int) error { return members[i].ping() }))
		compareN(b, groupPairs, "fetches of 16 committed offsets, against ListOffsets of 16 partitions", "requests/s", goal{},
			of(func(i int) error { return members[i].committed(first(i), commitParts) }),
			of(func(i int) error { return members[i].ends(first(i), commitParts) }))
		l.stop()
	}
}

// BenchmarkGroupJoins measures how many members a second join a group that is empty, are told their id, get an assignment
// and leave, on 64 connections with a group each; against two requests for the versions of the APIs and two produces of a
// record with acks=all, for a member's coming and going are on disk when they are answered.
//
//	LEAT_BIN=$PWD/bin/leat go test -run '^$' -bench GroupJoins ./e2e/bench
func BenchmarkGroupJoins(b *testing.B) {
	for b.Loop() {
		l := startLeat(b, quickJoins...)
		l.createPartitions("read", commitParts)
		l.createTopic("plain", nil)
		const conns = 64
		members := make([]*member, conns)
		for i := range members {
			members[i] = &member{caller: l.caller(), group: fmt.Sprint("group-", i)}
		}
		frame := produceFrame("plain", -1, noise(300, 1))
		joins := func() float64 {
			return rate(b, conns, groupSpan, func(i int) error { return errors.Join(members[i].join(), members[i].leave()) })
		}
		others := func() float64 {
			return rate(b, conns, groupSpan, func(i int) error {
				for range 2 {
					if err := members[i].ping(); err != nil {
						return err
					}
					if _, err := members[i].exchange(frame); err != nil {
						return err
					}
				}
				return nil
			})
		}
		compareN(b, groupPairs, "members that join and leave, against two ApiVersions and two produces with acks=all", "members/s", goal{}, joins, others)
		l.stop()
	}
}

// BenchmarkGroupRebalance measures the rebalance of one group of 1,000 members: from the leader's wish to join again until
// every member has heard of it, joined and got its assignment; against three requests for the versions of the APIs by each.
//
//	LEAT_BIN=$PWD/bin/leat go test -run '^$' -bench GroupRebalance ./e2e/bench
func BenchmarkGroupRebalance(b *testing.B) {
	for b.Loop() {
		l := startLeat(b, "--set", "group.initial.rebalance.delay.ms=1000")
		l.createPartitions("read", 100)
		members := l.groupMembers(1_000, 1)
		leader := slices.IndexFunc(members, func(m *member) bool { return m.leads != nil })
		rebalance := func() float64 {
			begun := time.Now()
			err := parallel(len(members), func(i int) error {
				m := members[i]
				for i != leader {
					if err := m.heartbeat(); errors.Is(err, kerr.RebalanceInProgress) {
						break
					} else if err != nil {
						return err
					}
				}
				return m.join()
			})
			if err != nil {
				b.Fatal(err)
			}
			return ms(time.Since(begun))
		}
		pings := func() float64 {
			begun := time.Now()
			err := parallel(len(members), func(i int) error {
				return errors.Join(members[i].ping(), members[i].ping(), members[i].ping())
			})
			if err != nil {
				b.Fatal(err)
			}
			return ms(time.Since(begun))
		}
		compareN(b, groupPairs, "rebalance of a group of 1,000 members, against three ApiVersions by each", "ms", goal{}, rebalance, pings)
		l.stop()
	}
}

// What the server of BenchmarkGroupsReady holds.
const (
	readyGroups  = 1_000
	readyOffsets = 1_000 // of each group
	readyConns   = 50
)

// BenchmarkGroupsReady measures how long after the ready file a server with 1,000 groups and 1 million committed offsets
// has answered the first OffsetFetch (16 partitions, as a member asks) and then JoinGroup and SyncGroup of every group:
// after SIGTERM, and after kill -9 right behind commits of every group. Each group has a member from before, which joins.
// Beside it, how long it takes to fetch all the million.
//
//	LEAT_BIN=$PWD/bin/leat go test -run '^$' -bench GroupsReady ./e2e/bench
func BenchmarkGroupsReady(b *testing.B) {
	for b.Loop() {
		l := startLeat(b, quickJoins...)
		l.createPartitions("read", readyOffsets)
		members := make([]*member, readyGroups)
		for i := range members {
			members[i] = &member{group: fmt.Sprint("group-", i)}
		}
		l.everyGroup(members, func(m *member) error { return errors.Join(m.join(), m.commit(0, readyOffsets, 1)) })
		var stopped, killed, everything []time.Duration
		for n := range int64(5) {
			l.terminate()
			l.again()
			stopped = append(stopped, l.serveGroups(members))
			everything = append(everything, l.everyGroup(members, func(m *member) error { return m.committed(0, readyOffsets) }))
			l.everyGroup(members, func(m *member) error { return m.commit(0, commitParts, n+2) })
			l.kill()
			l.again()
			killed = append(killed, l.serveGroups(members))
		}
		b.ReportMetric(ms(median(stopped)), "stopped-ms")
		b.ReportMetric(ms(median(killed)), "killed-ms")
		const what = "1,000 groups, 1 million offsets: every group served after ready, "
		single(b, what+"clean stop, worst of 5", "ms", goal{most: 1_000}, ms(slices.Max(stopped)))
		single(b, what+"kill -9, worst of 5", "ms", goal{most: 1_000}, ms(slices.Max(killed)))
		single(b, "1,000 groups, 1 million offsets: all offsets fetched, median of 5", "ms", goal{}, ms(median(everything)))
		l.stop()
	}
}

// serveGroups has every group's member ask for its offsets and join.
func (l *leat) serveGroups(members []*member) time.Duration {
	l.b.Helper()
	return l.everyGroup(members, func(m *member) error {
		err := m.committed(0, commitParts)
		for errors.Is(err, kerr.CoordinatorLoadInProgress) {
			err = m.committed(0, commitParts)
		}
		return errors.Join(err, m.join())
	})
}

// everyGroup does something with every member, over some connections, and returns how long it took.
func (l *leat) everyGroup(members []*member, do func(*member) error) time.Duration {
	l.b.Helper()
	begun := time.Now()
	err := parallel(readyConns, func(worker int) error {
		c := l.caller()
		for i := worker; i < len(members); i += readyConns {
			members[i].caller = c
			if err := do(members[i]); err != nil {
				return err
			}
		}
		return c.nc.Close()
	})
	if err != nil {
		l.b.Fatal(err)
	}
	return time.Since(begun)
}
