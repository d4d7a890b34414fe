package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/auth"
	"leat/broker"
)

// Requests sent back to back are answered in order, whatever each waits for,
// and start in order: a fetch sees the produce before it, offsets follow the
// order of sending, and a topic can be used by the request after the one that
// makes it.
func TestPipelining(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	create := kmsg.NewPtrCreateTopicsRequest()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "t", 1, 1
	create.Topics = append(create.Topics, topic)
	create.SetVersion(5)
	wire := c.frame(create)
	var kinds []kmsg.Response
	kinds = append(kinds, create.ResponseKind())
	add := func(req kmsg.Request, version int16) {
		req.SetVersion(version)
		wire = append(wire, c.frame(req)...)
		kinds = append(kinds, req.ResponseKind())
	}
	const rounds = 50
	for i := range rounds {
		add(produceRequest("t", 0, []int16{-1, 1}[i%2], batch(t, 0, "a", "b")), 9)
		fetch := fetchRequest("t", [16]byte{}, 0, int64(2*i))
		fetch.MaxWaitMillis = int32(limit / time.Millisecond)
		add(fetch, 12)
		add(kmsg.NewPtrApiVersionsRequest(), 0)
	}
	go func() { _, _ = c.Write(wire) }()
	produced := int64(0)
	for i, kind := range kinds {
		corr, body := c.recv()
		if corr != int32(i+1) {
			t.Fatalf("answer %d has correlation id %d", i+1, corr)
		}
		switch resp := decode(t, kind, body).(type) {
		case *kmsg.ProduceResponse:
			p := resp.Topics[0].Partitions[0]
			if p.ErrorCode != 0 || p.BaseOffset != produced {
				t.Fatalf("answer %d: produce %+v, want base offset %d", i+1, p, produced)
			}
			produced += 2
		case *kmsg.FetchResponse:
			if p := resp.Topics[0].Partitions[0]; p.ErrorCode != 0 || len(p.RecordBatches) == 0 {
				t.Fatalf("answer %d: fetch %+v", i+1, p)
			}
		}
	}
	if produced != 2*rounds {
		t.Errorf("%d records produced", produced)
	}
}

// The reader stops at a full queue and goes on when there is room: more
// requests than the queue holds, behind one that waits, are all answered.
func TestQueueIsBounded(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	id := c.create("t", 1)
	fetch := fetchRequest("t", id, 0, 0)
	fetch.MaxWaitMillis = int32(limit / time.Millisecond)
	fetch.SetVersion(13)
	const n = 3 * maxCalls
	var wire []byte
	for range n {
		wire = append(wire, c.frame(fetch)...)
	}
	go func() { _, _ = c.Write(wire) }()
	eventually(t, "the queue is full", func() bool {
		for conn := range connsOf(d.Server) {
			return conn.pending.Load() == maxCalls
		}
		return false
	})
	for conn := range connsOf(d.Server) {
		if frames := conn.in.frames.Load(); frames > maxCalls+4 {
			t.Errorf("%d frames read", frames)
		}
	}
	d.dial(t).produce(9, "t", 0, batch(t, 0, "a"))
	first := c.corr - n
	for i := range int32(n) {
		if corr, _ := c.recv(); corr != first+i+1 {
			t.Fatalf("correlation id %d, want %d", corr, first+i+1)
		}
	}
}

// The queue takes one call of any cost, and further ones only within the
// bound.
func TestQueueCost(t *testing.T) {
	c := newConn(New(Options{}), new(writerConn))
	h := &handler{}
	c.admit(&call{h: h, cost: 2 * maxCost})
	admitted := make(chan struct{})
	go func() {
		c.admit(&call{h: h, cost: 1})
		close(admitted)
	}()
	cl := <-c.calls
	select {
	case <-admitted:
		t.Fatal("admitted beyond the bound")
	default:
	}
	c.cost.Add(-cl.cost)
	c.pending.Add(-1)
	signal(c.ended)
	<-admitted
}

// A client that goes away takes its waiting fetch with it.
func TestDisconnectEndsFetch(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	id := c.create("t", 1)
	fetch := fetchRequest("t", id, 0, 0)
	fetch.MaxWaitMillis = int32(10 * limit / time.Millisecond)
	fetch.SetVersion(13)
	c.send(c.frame(fetch))
	_ = c.Close()
	eventually(t, "the connection is given up", func() bool { return d.counter(t, "leat_kafka_connections") == 0 })
}

// Requests are counted by API and outcome, errors by code, bytes by direction.
func TestMetrics(t *testing.T) {
	d := startDoor(t, setup{})
	c := d.dial(t)
	c.create("t", 1)
	c.produce(9, "t", 0, batch(t, 0, "a"))
	c.produce(9, "t", 5, batch(t, 0, "a"))
	const requests = "leat_kafka_requests_total"
	eventually(t, "three requests", func() bool {
		return d.counter(t, requests, "Produce", "ok") == 1 && d.counter(t, requests, "Produce", "error") == 1 &&
			d.counter(t, requests, "CreateTopics", "ok") == 1
	})
	if n := d.counter(t, "leat_kafka_errors_total", "3"); n != 1 {
		t.Errorf("%v errors of code 3", n)
	}
	if d.counter(t, "leat_kafka_received_bytes_total") == 0 || d.counter(t, "leat_kafka_sent_bytes_total") == 0 {
		t.Error("no bytes counted")
	}
}

// readOnly lets nobody make, change or delete anything.
type readOnly struct{}

func (readOnly) Allowed(_ auth.Principal, op auth.Operation, _ auth.Resource) bool {
	switch op {
	case auth.Create, auth.Delete, auth.Alter, auth.AlterConfigs:
		return false
	default:
		return true
	}
}

// FuzzRequest sends any bytes after a size. No input makes the server panic,
// hang, or take memory out of proportion to the bytes.
func FuzzRequest(f *testing.F) {
	b, err := broker.Open(context.Background(), broker.Options{
		Path: f.TempDir(), Host: "127.0.0.1", Port: 1, Authorizer: readOnly{},
		Configs: map[string]string{"auto.create.topics.enable": "false"},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = b.Close() })
	// The first join makes the topic of the groups, whoever it is refused.
	if r := b.JoinGroup(f.Context(), auth.Anonymous, "g", &broker.JoinRequest{}); !errors.Is(r.Err, broker.ErrInvalidSession) {
		f.Fatal(r.Err)
	}
	s := New(Options{Broker: b, MaxRequestBytes: 1 << 20})
	for _, req := range samples(f) {
		for v := s.handlers.find(req.Key()).accept; v <= s.handlers.find(req.Key()).max; v++ {
			req.SetVersion(v)
			f.Add((&client{}).frame(req)[4:])
		}
	}
	f.Add([]byte("\x00\x12\x00\x63\x00\x00\x00\x01"))
	f.Add([]byte("\x00\x00\x00\x09\x00\x00\x00\x01\xff\xff\x00\x00\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\x0f"))
	f.Fuzz(func(t *testing.T, p []byte) {
		wire := append(binary.BigEndian.AppendUint32(nil, uint32(len(p))), p...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		ctx, cancel := context.WithCancel(t.Context())
		polls, endPolls := context.WithCancel(ctx)
		endPolls()
		c := newConn(s, &readerAndWriter{readerConn: readerConn{r: bytes.NewReader(wire)}})
		c.cancel, c.endPolls = cancel, endPolls
		c.run(ctx, polls)
		cancel()
		runtime.ReadMemStats(&after)
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(512<<10+256*len(p)); got > most {
			t.Errorf("%d bytes allocated for a frame of %d", got, len(p))
		}
	})
}

// readerAndWriter reads from a reader and discards what is written.
type readerAndWriter struct{ readerConn }

func (*readerAndWriter) Write(p []byte) (int, error)     { return len(p), nil }
func (*readerAndWriter) Close() error                    { return nil }
func (*readerAndWriter) SetReadDeadline(time.Time) error { return nil }
func (*readerAndWriter) RemoteAddr() net.Addr            { return &net.TCPAddr{} }

// samples is one request of each API.
func samples(t testing.TB) []kmsg.Request {
	name := "t"
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Topics = []kmsg.MetadataRequestTopic{{Topic: &name}}
	list := kmsg.NewPtrListOffsetsRequest()
	list.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: name, Partitions: []kmsg.ListOffsetsRequestTopicPartition{{Timestamp: -1}}}}
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.CoordinatorKey, find.CoordinatorKeys = "g", []string{"g"}
	versions := kmsg.NewPtrApiVersionsRequest()
	versions.ClientSoftwareName, versions.ClientSoftwareVersion = "test", "1.0"
	create := kmsg.NewPtrCreateTopicsRequest()
	create.Topics = []kmsg.CreateTopicsRequestTopic{{Topic: name, NumPartitions: -1, ReplicationFactor: -1}}
	remove := kmsg.NewPtrDeleteTopicsRequest()
	remove.TopicNames, remove.Topics = []string{name}, []kmsg.DeleteTopicsRequestTopic{{Topic: &name}}
	value := "1000"
	records := kmsg.NewPtrDeleteRecordsRequest()
	records.Topics = []kmsg.DeleteRecordsRequestTopic{{Topic: name, Partitions: []kmsg.DeleteRecordsRequestTopicPartition{{Offset: -1}}}}
	epoch := kmsg.NewPtrOffsetForLeaderEpochRequest()
	epoch.Topics = []kmsg.OffsetForLeaderEpochRequestTopic{{Topic: name, Partitions: []kmsg.OffsetForLeaderEpochRequestTopicPartition{{CurrentLeaderEpoch: -1}}}}
	describe := kmsg.NewPtrDescribeConfigsRequest()
	describe.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: topicResource, ResourceName: name}, {ResourceType: brokerResource, ResourceName: "1"}}
	describe.IncludeSynonyms, describe.IncludeDocumentation = true, true
	alter := kmsg.NewPtrAlterConfigsRequest()
	alter.Resources = []kmsg.AlterConfigsRequestResource{{
		ResourceType: topicResource, ResourceName: name, Configs: []kmsg.AlterConfigsRequestResourceConfig{{Name: "retention.ms", Value: &value}},
	}}
	dirs := kmsg.NewPtrDescribeLogDirsRequest()
	dirs.Topics = []kmsg.DescribeLogDirsRequestTopic{{Topic: name, Partitions: []int32{0}}}
	more := kmsg.NewPtrCreatePartitionsRequest()
	more.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: name, Count: 3, Assignment: []kmsg.CreatePartitionsRequestTopicAssignment{{Replicas: []int32{1}}}}}
	increment := kmsg.NewPtrIncrementalAlterConfigsRequest()
	increment.Resources = []kmsg.IncrementalAlterConfigsRequestResource{{
		ResourceType: topicResource, ResourceName: name, Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "retention.ms", Value: &value}},
	}}
	elect := kmsg.NewPtrElectLeadersRequest()
	elect.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: name, Partitions: []int32{0}}}
	commit := kmsg.NewPtrOffsetCommitRequest()
	commit.Group, commit.Generation = "g", -1
	commit.Topics = []kmsg.OffsetCommitRequestTopic{{Topic: name, Partitions: []kmsg.OffsetCommitRequestTopicPartition{{Offset: 1, Metadata: &value}}}}
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Group, fetch.Topics = "g", []kmsg.OffsetFetchRequestTopic{{Topic: name, Partitions: []int32{0}}}
	fetch.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "g", Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: name, Partitions: []int32{0}}}}}
	join := kmsg.NewPtrJoinGroupRequest()
	join.Group, join.ProtocolType, join.Protocols = "g", "consumer", []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: []byte("m")}}
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Group, beat.MemberID = "g", "m"
	leave := kmsg.NewPtrLeaveGroupRequest()
	leave.Group, leave.MemberID, leave.Members = "g", "m", []kmsg.LeaveGroupRequestMember{{MemberID: "m"}}
	sync := kmsg.NewPtrSyncGroupRequest()
	sync.Group, sync.MemberID, sync.GroupAssignment = "g", "m", []kmsg.SyncGroupRequestGroupAssignment{{MemberID: "m", MemberAssignment: []byte("a")}}
	groups := kmsg.NewPtrDescribeGroupsRequest()
	groups.Groups = []string{"g"}
	drop := kmsg.NewPtrDeleteGroupsRequest()
	drop.Groups = []string{"g"}
	forget := kmsg.NewPtrOffsetDeleteRequest()
	forget.Group = "g"
	forget.Topics = []kmsg.OffsetDeleteRequestTopic{{Topic: name, Partitions: []kmsg.OffsetDeleteRequestTopicPartition{{Partition: 0}}}}
	producers := kmsg.NewPtrDescribeProducersRequest()
	producers.Topics = []kmsg.DescribeProducersRequestTopic{{Topic: name, Partitions: []int32{0}}}
	pages := kmsg.NewPtrDescribeTopicPartitionsRequest()
	pages.Topics = []kmsg.DescribeTopicPartitionsRequestTopic{{Topic: name}}
	pages.Cursor = &kmsg.DescribeTopicPartitionsRequestCursor{Topic: name}
	moves := kmsg.NewPtrListPartitionReassignmentsRequest()
	moves.Topics = []kmsg.ListPartitionReassignmentsRequestTopic{{Topic: name, Partitions: []int32{0}}}
	resources := kmsg.NewPtrListConfigResourcesRequest()
	resources.ResourceTypes = []int8{int8(topicResource), int8(brokerResource)}
	return []kmsg.Request{
		producers, pages, moves, resources, commit, fetch, join, beat, leave, sync, groups, kmsg.NewPtrListGroupsRequest(), drop, forget,
		elect, records, epoch, describe, alter, dirs, more, increment, kmsg.NewPtrDescribeClusterRequest(),
		produceRequest(name, 0, 1, batch(t, 0, "a")), fetchRequest(name, [16]byte{1}, 0, 0),
		list, metadata, find, versions, create, remove, kmsg.NewPtrInitProducerIDRequest(),
	}
}

// A produce is refused if it would decode into far more than it has bytes.
func TestGuardProduce(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for version := int16(3); version <= 11; version++ {
		req := produceRequest("t", 0, -1, randomBytes(rng, 1000))
		tx := "tx"
		req.TransactionID = &tx
		req.Version = version
		body := req.AppendTo(nil)
		if err := guardProduce(body, version >= 9); err != nil {
			t.Errorf("version %d: %v", version, err)
		}
		for cut := range body {
			if err := guardProduce(body[:cut], version >= 9); err == nil {
				t.Fatalf("version %d: cut at %d passes", version, cut)
			}
		}
		req.Topics[0].Partitions = make([]kmsg.ProduceRequestTopicPartition, maxParts)
		if err := guardProduce(req.AppendTo(nil), version >= 9); err == nil {
			t.Errorf("version %d: %d partitions pass", version, maxParts)
		}
	}
	req := produceRequest("t", 0, -1, nil)
	req.Version = 9
	for i := range uint32(maxTags + 1) {
		req.UnknownTags.Set(i+100, nil)
	}
	if err := guardProduce(req.AppendTo(nil), true); err == nil {
		t.Error("too many tags pass")
	}
}
