package cli

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// fake is a Kafka server in memory with just what the client asks of one: enough to see what the commands send, and to
// answer with errors that a real server gives only under stress. The real server is tested from outside, in e2e.
type fake struct {
	addr       string
	autoCreate int                     // partitions of a topic created on demand; 0 refuses
	refuse     func(n int) *kerr.Error // answer to the nth produce request, from 1; nil accepts
	fetched    chan struct{}           // has room for one, which is put there by a fetch
	restart    func(t *testing.T)      // starts to listen again, after leave
	mu         struct {
		sync.Mutex
		configs  map[string]map[string]string // by resource: "topic t", "node 1", "node "
		left     chan struct{}                // closed to end all connections
		silent   bool                         // requests get no answer
		topics   map[string][]*fakeLog
		groups   map[string]*fakeGroup
		produces int
		acks     []int16
		changed  chan struct{} // closed and replaced after each append and delete
	}
}

// fakeLog is one partition.
type fakeLog struct {
	batches [][]byte // with offsets
	first   int64
	next    int64
	damaged bool
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{addr: "127.0.0.1:0", fetched: make(chan struct{}, 1)}
	f.mu.topics = map[string][]*fakeLog{}
	f.mu.groups = map[string]*fakeGroup{}
	f.mu.configs = map[string]map[string]string{}
	f.mu.changed = make(chan struct{})
	var conns sync.WaitGroup
	f.restart = func(t *testing.T) {
		t.Helper()
		listener, err := net.Listen("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		f.addr = listener.Addr().String()
		left := make(chan struct{})
		f.mu.Lock()
		f.mu.left = left
		f.mu.Unlock()
		conns.Go(func() {
			<-left
			_ = listener.Close()
		})
		conns.Go(func() { f.accept(listener, left, &conns) })
	}
	f.restart(t)
	t.Cleanup(func() {
		f.leave()
		conns.Wait()
	})
	return f
}

// leave closes the port and every connection, as a server that is killed.
func (f *fake) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.mu.left:
	default:
		close(f.mu.left)
	}
}

// silence makes the server leave requests unanswered, or answer those to come.
func (f *fake) silence(silent bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.silent = silent
}

func (f *fake) accept(listener net.Listener, left <-chan struct{}, conns *sync.WaitGroup) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		conns.Go(func() {
			stop := make(chan struct{})
			go func() {
				select {
				case <-left:
				case <-stop:
				}
				_ = conn.Close()
			}()
			f.serve(conn, left)
			close(stop)
		})
	}
}

// create makes a topic.
func (f *fake) create(name string, partitions int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.createLocked(name, partitions)
}

func (f *fake) createLocked(name string, partitions int) {
	logs := make([]*fakeLog, partitions)
	for i := range logs {
		logs[i] = &fakeLog{}
	}
	f.mu.topics[name] = logs
}

// logLocked is one partition, nil when it is not there.
func (f *fake) logLocked(topic string, partition int32) *fakeLog {
	logs := f.mu.topics[topic]
	if partition < 0 || int(partition) >= len(logs) {
		return nil
	}
	return logs[partition]
}

func (f *fake) serve(conn net.Conn, done <-chan struct{}) {
	in := bufio.NewReader(conn)
	for {
		var size [4]byte
		if _, err := io.ReadFull(in, size[:]); err != nil {
			return
		}
		frame := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(in, frame); err != nil {
			return
		}
		r := kbin.Reader{Src: frame}
		req := kmsg.RequestForKey(r.Int16())
		req.SetVersion(r.Int16())
		correlation := r.Int32()
		_ = r.NullableString()
		if req.IsFlexible() {
			kmsg.SkipTags(&r)
		}
		if err := errors.Join(r.Complete(), req.ReadFrom(r.Src)); err != nil {
			return
		}
		resp := f.answer(req, done)
		f.mu.Lock()
		silent := f.mu.silent
		f.mu.Unlock()
		if resp == nil || silent { // nil: acks=0
			continue
		}
		out := binary.BigEndian.AppendUint32(make([]byte, 4), uint32(correlation))
		if resp.IsFlexible() && resp.Key() != 18 {
			out = append(out, 0)
		}
		out = resp.AppendTo(out)
		binary.BigEndian.PutUint32(out, uint32(len(out)-4))
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

// answer handles one request.
func (f *fake) answer(req kmsg.Request, done <-chan struct{}) kmsg.Response {
	if fetch, ok := req.(*kmsg.FetchRequest); ok {
		return f.fetch(fetch, done)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	resp := req.ResponseKind()
	switch req := req.(type) {
	case *kmsg.ApiVersionsRequest:
		resp.SetVersion(0) // every client reads version 0, even after asking for more
		versions := resp.(*kmsg.ApiVersionsResponse)
		if req.Version > 0 {
			versions.ErrorCode = kerr.UnsupportedVersion.Code
		}
		for key, highest := range map[int16]int16{
			0: 9, 1: 11, 2: 7, 3: 12, 8: 7, 9: 7, 10: 3, 11: 3, 12: 3, 13: 3, 14: 3, 15: 4, 16: 4, 42: 1, 18: 0, 19: 5, 20: 4, 21: 2, 22: 4, 32: 4, 35: 4, 37: 3, 43: 2, 44: 1,
		} {
			versions.ApiKeys = append(versions.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key, MaxVersion: highest})
		}
	case *kmsg.MetadataRequest:
		f.metadataLocked(req, resp.(*kmsg.MetadataResponse))
	case *kmsg.InitProducerIDRequest:
		resp.(*kmsg.InitProducerIDResponse).ProducerID = 7
	case *kmsg.ProduceRequest:
		f.produceLocked(req, resp.(*kmsg.ProduceResponse))
		if req.Acks == 0 {
			return nil
		}
	case *kmsg.ListOffsetsRequest:
		f.offsetsLocked(req, resp.(*kmsg.ListOffsetsResponse))
	case *kmsg.CreateTopicsRequest:
		f.createTopicsLocked(req, resp.(*kmsg.CreateTopicsResponse))
	case *kmsg.DeleteTopicsRequest:
		for _, name := range req.TopicNames {
			deleted := kmsg.NewDeleteTopicsResponseTopic()
			deleted.Topic = &name
			if f.mu.topics[name] == nil {
				deleted.ErrorCode = kerr.UnknownTopicOrPartition.Code
			}
			delete(f.mu.topics, name)
			f.wakeLocked()
			resp.(*kmsg.DeleteTopicsResponse).Topics = append(resp.(*kmsg.DeleteTopicsResponse).Topics, deleted)
		}
	default:
		f.administerLocked(req, resp)
	}
	return resp
}

func (f *fake) metadataLocked(req *kmsg.MetadataRequest, resp *kmsg.MetadataResponse) {
	host, port, _ := net.SplitHostPort(f.addr)
	number, _ := strconv.Atoi(port)
	resp.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: host, Port: int32(number)}}
	resp.ControllerID = 1
	cluster := "fake"
	resp.ClusterID = &cluster
	var names []string
	if req.Topics == nil {
		for name := range f.mu.topics {
			names = append(names, name)
		}
	}
	for _, asked := range req.Topics {
		names = append(names, *asked.Topic)
	}
	for _, name := range names {
		topic := kmsg.NewMetadataResponseTopic()
		topic.Topic = &name
		if f.mu.topics[name] == nil && req.AllowAutoTopicCreation && f.autoCreate > 0 {
			f.createLocked(name, f.autoCreate)
		}
		logs, ok := f.mu.topics[name]
		if !ok {
			topic.ErrorCode = kerr.UnknownTopicOrPartition.Code
		}
		topic.TopicID = [16]byte{15: 1}
		for i := range logs {
			p := kmsg.NewMetadataResponseTopicPartition()
			p.Partition, p.Leader, p.LeaderEpoch, p.Replicas, p.ISR = int32(i), 1, 0, []int32{1}, []int32{1}
			if logs[i].damaged {
				p.OfflineReplicas = []int32{1}
			}
			topic.Partitions = append(topic.Partitions, p)
		}
		resp.Topics = append(resp.Topics, topic)
	}
}

func (f *fake) produceLocked(req *kmsg.ProduceRequest, resp *kmsg.ProduceResponse) {
	f.mu.produces++
	f.mu.acks = append(f.mu.acks, req.Acks)
	var refused *kerr.Error
	if f.refuse != nil {
		refused = f.refuse(f.mu.produces)
	}
	for _, t := range req.Topics {
		topic := kmsg.NewProduceResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			answer := kmsg.NewProduceResponseTopicPartition()
			answer.Partition = p.Partition
			log := f.logLocked(t.Topic, p.Partition)
			switch {
			case refused != nil:
				answer.ErrorCode = refused.Code
			case log == nil:
				answer.ErrorCode = kerr.UnknownTopicOrPartition.Code
			default:
				answer.BaseOffset = log.append(p.Records)
			}
			topic.Partitions = append(topic.Partitions, answer)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	f.wakeLocked()
}

// wakeLocked makes waiting fetches look again.
func (f *fake) wakeLocked() {
	close(f.mu.changed)
	f.mu.changed = make(chan struct{})
}

// waitAcks waits for the nth produce request (nobody else waits for one with acks=0) and returns the acks of all.
func (f *fake) waitAcks(t *testing.T, n int) []int16 {
	t.Helper()
	for {
		f.mu.Lock()
		acks, changed := slices.Clone(f.mu.acks), f.mu.changed
		f.mu.Unlock()
		if len(acks) >= n {
			return acks
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatalf("%d produce requests arrived, want %d", len(acks), n)
		}
	}
}

// append keeps one batch, with its offset.
func (l *fakeLog) append(batch []byte) int64 {
	base := l.next
	batch = append([]byte(nil), batch...)
	binary.BigEndian.PutUint64(batch, uint64(base))
	l.batches = append(l.batches, batch)
	l.next += int64(binary.BigEndian.Uint32(batch[57:]))
	return base
}

// at is the first batch with a record as late as that, -1 if there is none.
func (l *fakeLog) at(ms int64) (offset, timestamp int64) {
	for _, batch := range l.batches {
		if latest := int64(binary.BigEndian.Uint64(batch[35:])); latest >= ms {
			return int64(binary.BigEndian.Uint64(batch)), latest
		}
	}
	return -1, -1
}

func (f *fake) offsetsLocked(req *kmsg.ListOffsetsRequest, resp *kmsg.ListOffsetsResponse) {
	for _, t := range req.Topics {
		topic := kmsg.NewListOffsetsResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			answer := kmsg.NewListOffsetsResponseTopicPartition()
			answer.Partition = p.Partition
			log := f.logLocked(t.Topic, p.Partition)
			switch {
			case log == nil:
				answer.ErrorCode = kerr.UnknownTopicOrPartition.Code
			case p.Timestamp == -2:
				answer.Offset = log.first
			case p.Timestamp == -1:
				answer.Offset = log.next
			default:
				answer.Offset, answer.Timestamp = log.at(p.Timestamp)
			}
			topic.Partitions = append(topic.Partitions, answer)
		}
		resp.Topics = append(resp.Topics, topic)
	}
}

func (f *fake) createTopicsLocked(req *kmsg.CreateTopicsRequest, resp *kmsg.CreateTopicsResponse) {
	for _, t := range req.Topics {
		answer := kmsg.NewCreateTopicsResponseTopic()
		answer.Topic = t.Topic
		switch {
		case f.mu.topics[t.Topic] != nil:
			answer.ErrorCode = kerr.TopicAlreadyExists.Code
		case t.ReplicationFactor > 1:
			message := "one node cannot hold 3 copies"
			answer.ErrorCode, answer.ErrorMessage = kerr.InvalidReplicationFactor.Code, &message
		default:
			f.createLocked(t.Topic, int(max(t.NumPartitions, 1)))
			answer.NumPartitions, answer.ReplicationFactor = max(t.NumPartitions, 1), 1
		}
		resp.Topics = append(resp.Topics, answer)
	}
}

// fetch answers when there is anything, or after the wait that was asked for.
func (f *fake) fetch(req *kmsg.FetchRequest, done <-chan struct{}) kmsg.Response {
	wait := time.NewTimer(time.Duration(req.MaxWaitMillis) * time.Millisecond)
	defer wait.Stop()
	select {
	case f.fetched <- struct{}{}:
	default:
	}
	for last := false; ; {
		resp, found, changed := f.fetchOnce(req)
		if found || last {
			return resp
		}
		select {
		case <-changed:
		case <-wait.C:
			last = true
		case <-done:
			last = true
		}
	}
}

func (f *fake) fetchOnce(req *kmsg.FetchRequest) (resp *kmsg.FetchResponse, found bool, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	resp = req.ResponseKind().(*kmsg.FetchResponse)
	for _, t := range req.Topics {
		topic := kmsg.NewFetchResponseTopic()
		topic.Topic = t.Topic
		for _, p := range t.Partitions {
			answer := kmsg.NewFetchResponseTopicPartition()
			answer.Partition = p.Partition
			log := f.logLocked(t.Topic, p.Partition)
			switch {
			case log != nil && p.FetchOffset < log.first:
				answer.ErrorCode = kerr.OffsetOutOfRange.Code
				found = true
			case log != nil:
				answer.HighWatermark, answer.LastStableOffset = log.next, log.next
				for _, batch := range log.batches {
					base := int64(binary.BigEndian.Uint64(batch))
					if base+int64(binary.BigEndian.Uint32(batch[57:])) > p.FetchOffset {
						answer.RecordBatches = append(answer.RecordBatches, batch...)
						found = true
					}
				}
			default:
				answer.ErrorCode = kerr.UnknownTopicOrPartition.Code
				found = true
			}
			topic.Partitions = append(topic.Partitions, answer)
		}
		resp.Topics = append(resp.Topics, topic)
	}
	return resp, found, f.mu.changed
}
