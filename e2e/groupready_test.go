package e2e

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// manyGroups are groups with a member and many offsets each.
type manyGroups struct {
	*testing.T
	s       *server
	offsets int // of each group
	ids     []string
	// generations are of the members.
	generations []int32
	round       int64
}

// TestManyGroupsAfterRestart proves that many groups with many offsets are served within a second of the server's being
// ready, after a clean stop and after kill -9 right behind a commit: each has the offsets that it committed last, its
// member goes on in its generation and may join again. The long form has 1,000 groups and a million offsets.
func TestManyGroupsAfterRestart(t *testing.T) {
	groups, offsets := 200, 100
	if long() {
		groups, offsets = 1000, 1000
	}
	s := start(t, "--set", "group.initial.rebalance.delay.ms=0")
	s.createTopic("t", offsets)
	m := &manyGroups{T: t, s: s, offsets: offsets, ids: make([]string, groups), generations: make([]int32, groups)}
	m.each(func(w *wire, i int) error { return errors.Join(m.join(w, i), m.commit(w, i)) })
	for round, end := range []func(){s.stop, s.kill, s.kill} {
		end()
		s.restart()
		began := time.Now()
		m.each(m.serve)
		took := time.Since(began)
		t.Logf("start %d: %d groups with %d offsets each were served after %v", round, groups, offsets, took)
		if took > time.Second {
			t.Errorf("start %d: it took %v, more than a second", round, took)
		}
		m.each(m.check)
		m.round++
		m.each(m.commit)
	}
}

// each does something for every group, over some connections.
func (m *manyGroups) each(do func(w *wire, i int) error) {
	m.Helper()
	const conns = 16
	var work sync.WaitGroup
	for c := range conns {
		w := m.s.wire()
		work.Go(func() {
			for i := c; i < len(m.ids); i += conns {
				if err := do(w, i); err != nil {
					m.Errorf("group %d: %v", i, err)
					return
				}
			}
		})
	}
	work.Wait()
	if m.Failed() {
		m.FailNow()
	}
}

func (m *manyGroups) name(i int) string { return fmt.Sprint("group-", i) }

// offset is what a group has committed for a partition in the latest round.
func (m *manyGroups) offset(i, partition int) int64 {
	return m.round*1_000_000 + int64(i*m.offsets+partition)%1_000_000
}

func (m *manyGroups) join(w *wire, i int) error {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.ProtocolType = 3, m.name(i), m.ids[i], "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 300_000, 300_000
	p := kmsg.NewJoinGroupRequestProtocol()
	p.Name, p.Metadata = "range", []byte{0, 1, 0, 0, 0, 1, 0, 1, 't', 0, 0, 0, 0}
	req.Protocols = append(req.Protocols, p)
	resp, err := w.try(req)
	if err != nil {
		return err
	}
	joined := resp.(*kmsg.JoinGroupResponse)
	if joined.ErrorCode != codeNone {
		return kerr.ErrorForCode(joined.ErrorCode)
	}
	if m.ids[i] != "" && m.ids[i] != joined.MemberID {
		return fmt.Errorf("member %s is %s now", m.ids[i], joined.MemberID)
	}
	m.ids[i], m.generations[i] = joined.MemberID, joined.Generation
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Version, sync.Group, sync.MemberID, sync.Generation = 3, req.Group, joined.MemberID, joined.Generation
	resp, err = w.try(sync)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.(*kmsg.SyncGroupResponse).ErrorCode)
}

func (m *manyGroups) commit(w *wire, i int) error {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 8, m.name(i), m.ids[i], m.generations[i]
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic = "t"
	for partition := range m.offsets {
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset = int32(partition), m.offset(i, partition)
		topic.Partitions = append(topic.Partitions, p)
	}
	req.Topics = append(req.Topics, topic)
	resp, err := w.try(req)
	if err != nil {
		return err
	}
	for _, p := range resp.(*kmsg.OffsetCommitResponse).Topics[0].Partitions {
		if p.ErrorCode != codeNone {
			return kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return nil
}

// fetch asks for the offsets of the first n partitions, again while the groups are loaded.
func (m *manyGroups) fetch(w *wire, i, n int) error {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group = 7, m.name(i)
	topic := kmsg.NewOffsetFetchRequestTopic()
	topic.Topic = "t"
	for p := range n {
		topic.Partitions = append(topic.Partitions, int32(p))
	}
	req.Topics = append(req.Topics, topic)
	for {
		resp, err := w.try(req)
		if err != nil {
			return err
		}
		fetched := resp.(*kmsg.OffsetFetchResponse)
		if fetched.ErrorCode == kerr.CoordinatorLoadInProgress.Code {
			continue
		}
		if fetched.ErrorCode != codeNone {
			return kerr.ErrorForCode(fetched.ErrorCode)
		}
		for _, p := range fetched.Topics[0].Partitions {
			if want := m.offset(i, int(p.Partition)); p.ErrorCode != codeNone || p.Offset != want {
				return fmt.Errorf("partition %d: offset %d, code %d, want offset %d", p.Partition, p.Offset, p.ErrorCode, want)
			}
		}
		return nil
	}
}

// serve is what a member asks first: some offsets, whether it is still a member, and to join again.
func (m *manyGroups) serve(w *wire, i int) error {
	if err := m.fetch(w, i, 16); err != nil {
		return err
	}
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 3, m.name(i), m.ids[i], m.generations[i]
	resp, err := w.try(req)
	if err == nil {
		err = kerr.ErrorForCode(resp.(*kmsg.HeartbeatResponse).ErrorCode)
	}
	if err != nil {
		return fmt.Errorf("heartbeat in generation %d: %w", req.Generation, err)
	}
	return m.join(w, i)
}

func (m *manyGroups) check(w *wire, i int) error { return m.fetch(w, i, m.offsets) }
