package bench

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// caller is a connection to the Kafka door: one request after the other.
type caller struct {
	nc    net.Conn
	r     *bufio.Reader
	frame []byte
}

func (l *leat) caller() *caller {
	l.b.Helper()
	nc := dial(l.b, l.Kafka)
	l.b.Cleanup(func() { _ = nc.Close() })
	return &caller{nc: nc, r: bufio.NewReader(nc)}
}

// call sends a request and reads its answer.
func (c *caller) call(req kmsg.Request) (kmsg.Response, error) {
	c.frame = kmsg.NewRequestFormatter(kmsg.FormatterClientID("bench")).AppendRequest(c.frame[:0], req, 1)
	body, err := c.exchange(c.frame)
	if err != nil {
		return nil, err
	}
	resp := req.ResponseKind()
	if resp.IsFlexible() && resp.Key() != int16(kmsg.ApiVersions) {
		body = body[1:] // no tags
	}
	return resp, resp.ReadFrom(body)
}

// exchange sends a frame and reads what follows the correlation id of the answer, which is valid until the next call.
func (c *caller) exchange(frame []byte) ([]byte, error) {
	if _, err := c.nc.Write(frame); err != nil {
		return nil, err
	}
	head, err := c.r.Peek(4)
	if err != nil {
		return nil, err
	}
	body := make([]byte, 4+binary.BigEndian.Uint32(head))
	_, err = io.ReadFull(c.r, body)
	return body[8:], err
}

// ping asks for the versions of the APIs.
func (c *caller) ping() error {
	_, err := c.call(kmsg.NewPtrApiVersionsRequest())
	return err
}

// member is a member of a group of consumers that reads the topic "read".
type member struct {
	*caller
	group, id  string
	generation int32
	leads      []string // the ids of all members, if this one assigns
}

// join returns when the rebalance is over that it begins, and the member has its assignment.
func (m *member) join() error {
	for {
		err := m.joinOnce()
		if err == nil {
			err = m.sync()
		}
		if !errors.Is(err, kerr.MemberIDRequired) && !errors.Is(err, kerr.RebalanceInProgress) {
			return err
		}
	}
}

func (m *member) joinOnce() error {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.ProtocolType = 9, m.group, m.id, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 1_800_000, 60_000
	protocol, subscription := kmsg.NewJoinGroupRequestProtocol(), kmsg.NewConsumerMemberMetadata()
	subscription.Topics = []string{"read"}
	protocol.Name, protocol.Metadata = "range", subscription.AppendTo(nil)
	req.Protocols = append(req.Protocols, protocol)
	answer, err := m.call(req)
	if err != nil {
		return err
	}
	resp := answer.(*kmsg.JoinGroupResponse)
	m.id, m.generation, m.leads = resp.MemberID, resp.Generation, nil
	if resp.LeaderID == resp.MemberID {
		for i := range resp.Members {
			m.leads = append(m.leads, resp.Members[i].MemberID)
		}
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

func (m *member) sync() error {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 5, m.group, m.id, m.generation
	req.ProtocolType, req.Protocol = new("consumer"), new("range")
	for i, id := range m.leads {
		one, share := kmsg.NewSyncGroupRequestGroupAssignment(), kmsg.NewConsumerMemberAssignment()
		topic := kmsg.NewConsumerMemberAssignmentTopic()
		topic.Topic = "read"
		for p := range commitParts {
			topic.Partitions = append(topic.Partitions, int32(i*commitParts+p))
		}
		share.Topics = append(share.Topics, topic)
		one.MemberID, one.MemberAssignment = id, share.AppendTo(nil)
		req.GroupAssignment = append(req.GroupAssignment, one)
	}
	answer, err := m.call(req)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(answer.(*kmsg.SyncGroupResponse).ErrorCode)
}

func (m *member) heartbeat() error {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 4, m.group, m.id, m.generation
	answer, err := m.call(req)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(answer.(*kmsg.HeartbeatResponse).ErrorCode)
}

func (m *member) leave() error {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Version, req.Group = 5, m.group
	one := kmsg.NewLeaveGroupRequestMember()
	one.MemberID = m.id
	req.Members = append(req.Members, one)
	answer, err := m.call(req)
	m.id = ""
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(answer.(*kmsg.LeaveGroupResponse).ErrorCode)
}

// commit commits an offset for n partitions from the first on.
func (m *member) commit(first, n int, offset int64) error {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 9, m.group, m.id, m.generation
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic = "read"
	topic.Partitions = make([]kmsg.OffsetCommitRequestTopicPartition, n)
	for i := range topic.Partitions {
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch = int32(first+i), offset, 1
		topic.Partitions[i] = p
	}
	req.Topics = append(req.Topics, topic)
	answer, err := m.call(req)
	if err != nil {
		return err
	}
	for _, p := range answer.(*kmsg.OffsetCommitResponse).Topics[0].Partitions {
		if p.ErrorCode != 0 {
			return fmt.Errorf("commit of partition %d: %w", p.Partition, kerr.ErrorForCode(p.ErrorCode))
		}
	}
	return nil
}

// committed asks for the offsets of n partitions from the first on; each must be there.
func (m *member) committed(first, n int) error {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group = 7, m.group
	topic := kmsg.NewOffsetFetchRequestTopic()
	topic.Topic = "read"
	for p := range n {
		topic.Partitions = append(topic.Partitions, int32(first+p))
	}
	req.Topics = append(req.Topics, topic)
	answer, err := m.call(req)
	if err != nil {
		return err
	}
	resp := answer.(*kmsg.OffsetFetchResponse)
	if resp.ErrorCode != 0 {
		return kerr.ErrorForCode(resp.ErrorCode)
	}
	for _, p := range resp.Topics[0].Partitions {
		if p.ErrorCode != 0 || p.Offset < 0 {
			return fmt.Errorf("partition %d: offset %d, code %d", p.Partition, p.Offset, p.ErrorCode)
		}
	}
	return nil
}

// ends asks for the ends of n partitions from the first on.
func (c *caller) ends(first, n int) error {
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version, req.ReplicaID = 7, -1
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = "read"
	for i := range n {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp, p.CurrentLeaderEpoch = int32(first+i), -1, -1
		topic.Partitions = append(topic.Partitions, p)
	}
	req.Topics = append(req.Topics, topic)
	_, err := c.call(req)
	return err
}

// rate runs work over and over, for each of n workers one at a time, and returns how often a second.
func rate(b *testing.B, n int, span time.Duration, work func(worker int) error) float64 {
	b.Helper()
	var done atomic.Int64
	begun := time.Now()
	err := parallel(n, func(worker int) error {
		for time.Since(begun) < span {
			if err := work(worker); err != nil {
				return err
			}
			done.Add(1)
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return float64(done.Load()) / time.Since(begun).Seconds()
}
