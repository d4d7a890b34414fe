package kafka

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
)

// handler is one API.
type handler struct {
	key  int16
	name string
	// min and max are the versions that ApiVersions advertises; accept is the
	// lowest that is served.
	min, max, accept int16
	// flexible is the first version with tagged fields (KIP-482).
	flexible int16
	// maxBody bounds a request in bytes, because what kmsg decodes may take
	// twenty times the memory of the bytes; 0 is the server's limit.
	maxBody int
	// ordered says that the call waits for all before it and is answered
	// before the next frame is read.
	ordered bool
	// polls says that answer waits for what others do: it ends when the client
	// goes away.
	polls bool
	// decode makes the call's request from the body. It may keep slices of
	// the body until start returns.
	decode func(c *conn, cl *call, body []byte) error
	// start, if there is one, runs in the reader, in the order of arrival.
	start func(ctx context.Context, c *conn, cl *call)
	// ready reports whether answer has nothing to wait for. It runs in the
	// reader when no earlier call is pending.
	ready func(ctx context.Context, c *conn, cl *call) bool
	// answer sends the response, in the order of arrival: in the reader if the
	// call is ready, else in the writer.
	answer func(ctx context.Context, c *conn, cl *call) error
	// end, if there is one, gives back what the call holds.
	end func(cl *call)

	metrics apiMetrics
}

// call is one request on its way from the reader to the writer.
type call struct {
	h       *handler
	version int16
	corr    int32
	client  string // what the client calls itself
	// state is the handler's own: a kmsg request, or more.
	state any
	// cost is what the call counts in the queue, in bytes.
	cost  int64
	began time.Time
	// failed says that some part of the answer is an error.
	failed bool
	// throttle is for how long the quotas hold the client back.
	throttle time.Duration
	srv      *Server
}

var calls = sync.Pool{New: func() any { return new(call) }}

// code is the Kafka code of err for the answer. An error that nobody named,
// or of the server's own files, is logged here, because the client is not told.
func (cl *call) code(ctx context.Context, err error) int16 {
	if err == nil {
		return api.KafkaNone
	}
	e := api.Describe(err)
	if e.Kafka == api.KafkaUnknownServerError {
		cl.srv.log.LogAttrs(ctx, slog.LevelError, "kafka request failed", slog.String("api", cl.h.name), slog.Any("err", err))
	} else if fault := api.Fault(err); fault != "" {
		if skipped, ok := cl.srv.limit.Allow(fault, api.FaultInterval, time.Now()); ok {
			cl.srv.log.LogAttrs(ctx, faultLevel(err), "kafka request failed", slog.String("api", cl.h.name), slog.Any("err", err), slog.Int("skipped", skipped))
		}
	}
	return cl.refuse(e.Kafka)
}

// faultLevel tells a want of descriptors, which passes by and is nothing that is
// broken, from the rest.
func faultLevel(err error) slog.Level {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return slog.LevelWarn
	}
	return slog.LevelError
}

// refuse is code for an error that has no sentinel of the domain.
func (cl *call) refuse(code int16) int16 {
	cl.failed = true
	cl.srv.m.refusedWith(code)
	return code
}

// message is the text for a client, or nil for no error.
func message(err error) *string {
	if err == nil {
		return nil
	}
	e := api.Describe(err)
	text := e.Detail
	if text == "" {
		text = e.Title
	}
	return &text
}

const (
	smallBody  = 1 << 20
	mediumBody = 4 << 20
)

//go:generate go test -count=1 -run ^TestSupportPage$ . -update

// newHandlers is the table of what is served, and all that is advertised.
// SUPPORT.md is made from it.
// Produce is advertised from 0 and served from 3: librdkafka before 2.11 sends
// nothing compressed unless 0 is in the range (KAFKA-18659).
func newHandlers(m *metrics) *handlers {
	table := []*handler{
		{key: 0, name: "Produce", min: 0, max: 11, accept: 3, flexible: 9, decode: decodeProduce, start: startProduce, ready: produceReady, answer: answerProduce, end: endProduce},
		{key: 1, name: "Fetch", min: 4, max: 17, flexible: 12, maxBody: mediumBody, polls: true, decode: decodeFetch, ready: fetchReady, answer: answerFetch, end: endFetch},
		unary(handler{key: 2, name: "ListOffsets", min: 1, max: 10, flexible: 6, maxBody: mediumBody}, kmsg.NewPtrListOffsetsRequest, listOffsets),
		unary(handler{key: 3, name: "Metadata", min: 0, max: 13, flexible: 9, maxBody: 2 * smallBody}, kmsg.NewPtrMetadataRequest, metadata),
		unary(handler{key: 8, name: "OffsetCommit", min: 1, max: 9, flexible: 8, maxBody: mediumBody}, kmsg.NewPtrOffsetCommitRequest, offsetCommit),
		unary(handler{key: 9, name: "OffsetFetch", min: 1, max: 9, flexible: 6, maxBody: smallBody}, kmsg.NewPtrOffsetFetchRequest, offsetFetch),
		unary(handler{key: 10, name: "FindCoordinator", min: 0, max: 4, flexible: 3, maxBody: smallBody}, kmsg.NewPtrFindCoordinatorRequest, findCoordinator),
		waiting(handler{key: 11, name: "JoinGroup", min: 0, max: 9, flexible: 6, maxBody: smallBody}, kmsg.NewPtrJoinGroupRequest, joinGroup),
		unary(handler{key: 12, name: "Heartbeat", min: 0, max: 4, flexible: 4, maxBody: smallBody}, kmsg.NewPtrHeartbeatRequest, heartbeat),
		unary(handler{key: 13, name: "LeaveGroup", min: 0, max: 5, flexible: 4, maxBody: smallBody}, kmsg.NewPtrLeaveGroupRequest, leaveGroup),
		waiting(handler{key: 14, name: "SyncGroup", min: 0, max: 5, flexible: 4, maxBody: mediumBody}, kmsg.NewPtrSyncGroupRequest, syncGroup),
		unary(handler{key: 15, name: "DescribeGroups", min: 0, max: 6, flexible: 5, maxBody: smallBody}, kmsg.NewPtrDescribeGroupsRequest, describeGroups),
		unary(handler{key: 16, name: "ListGroups", min: 0, max: 5, flexible: 3, maxBody: smallBody}, kmsg.NewPtrListGroupsRequest, listGroups),
		unary(handler{key: keyAPIVersions, name: "ApiVersions", min: 0, max: 4, flexible: 3, maxBody: smallBody}, kmsg.NewPtrApiVersionsRequest, apiVersions),
		unary(handler{key: 19, name: "CreateTopics", min: 2, max: 7, flexible: 5, maxBody: mediumBody}, kmsg.NewPtrCreateTopicsRequest, createTopics),
		unary(handler{key: 20, name: "DeleteTopics", min: 1, max: 6, flexible: 4, maxBody: smallBody}, kmsg.NewPtrDeleteTopicsRequest, deleteTopics),
		unary(handler{key: 21, name: "DeleteRecords", min: 0, max: 2, flexible: 2, maxBody: mediumBody}, kmsg.NewPtrDeleteRecordsRequest, deleteRecords),
		unary(handler{key: 22, name: "InitProducerId", min: 0, max: 4, flexible: 2, maxBody: smallBody}, kmsg.NewPtrInitProducerIDRequest, initProducerID),
		unary(handler{key: 23, name: "OffsetForLeaderEpoch", min: 2, max: 4, flexible: 4, maxBody: mediumBody}, kmsg.NewPtrOffsetForLeaderEpochRequest, offsetForLeaderEpoch),
		unary(handler{key: 32, name: "DescribeConfigs", min: 1, max: 4, flexible: 4, maxBody: smallBody}, kmsg.NewPtrDescribeConfigsRequest, describeConfigs),
		unary(handler{key: 33, name: "AlterConfigs", min: 0, max: 2, flexible: 2, maxBody: smallBody}, kmsg.NewPtrAlterConfigsRequest, alterConfigs),
		unary(handler{key: 35, name: "DescribeLogDirs", min: 1, max: 4, flexible: 2, maxBody: smallBody}, kmsg.NewPtrDescribeLogDirsRequest, describeLogDirs),
		unary(handler{key: 37, name: "CreatePartitions", min: 0, max: 3, flexible: 2, maxBody: mediumBody}, kmsg.NewPtrCreatePartitionsRequest, createPartitions),
		unary(handler{key: 42, name: "DeleteGroups", min: 0, max: 2, flexible: 2, maxBody: smallBody}, kmsg.NewPtrDeleteGroupsRequest, deleteGroups),
		unary(handler{key: 43, name: "ElectLeaders", min: 0, max: 2, flexible: 2, maxBody: smallBody}, kmsg.NewPtrElectLeadersRequest, electLeaders),
		unary(handler{key: 44, name: "IncrementalAlterConfigs", min: 0, max: 1, flexible: 1, maxBody: smallBody}, kmsg.NewPtrIncrementalAlterConfigsRequest, incrementalAlterConfigs),
		unary(handler{key: 46, name: "ListPartitionReassignments", min: 0, max: 0, flexible: 0, maxBody: smallBody}, kmsg.NewPtrListPartitionReassignmentsRequest, listPartitionReassignments),
		unary(handler{key: 47, name: "OffsetDelete", min: 0, max: 0, flexible: 1, maxBody: smallBody}, kmsg.NewPtrOffsetDeleteRequest, offsetDelete),
		unary(handler{key: 60, name: "DescribeCluster", min: 0, max: 2, flexible: 0, maxBody: smallBody}, kmsg.NewPtrDescribeClusterRequest, describeCluster),
		unary(handler{key: 61, name: "DescribeProducers", min: 0, max: 0, flexible: 0, maxBody: smallBody}, kmsg.NewPtrDescribeProducersRequest, describeProducers),
		unary(handler{key: 74, name: "ListConfigResources", min: 0, max: 1, flexible: 0, maxBody: smallBody}, kmsg.NewPtrListConfigResourcesRequest, listConfigResources),
		unary(handler{key: 75, name: "DescribeTopicPartitions", min: 0, max: 0, flexible: 0, maxBody: smallBody}, kmsg.NewPtrDescribeTopicPartitionsRequest, describeTopicPartitions),
	}
	hs := &handlers{table: table}
	for _, h := range table {
		h.accept = max(h.accept, h.min)
		h.metrics = m.api(h.name)
		hs.byKey[h.key] = h
	}
	return hs
}

// maxKey is the highest key that Kafka has.
const maxKey = 94

// handlers is the table, sorted by key.
type handlers struct {
	table []*handler
	byKey [maxKey + 1]*handler
}

// find is the handler of a key, or nil.
func (hs *handlers) find(key int16) *handler {
	if key < 0 || int(key) >= len(hs.byKey) {
		return nil
	}
	return hs.byKey[key]
}

// unary completes h for an API that kmsg encodes whole and that is answered in
// one step.
func unary[Q kmsg.Request](h handler, request func() Q, answer func(context.Context, *conn, *call, Q) kmsg.Response) *handler {
	h.ordered = true
	h.ready = func(context.Context, *conn, *call) bool { return true }
	h.decode = func(_ *conn, cl *call, body []byte) error {
		req := request()
		req.SetVersion(cl.version)
		cl.state = req
		return req.ReadFrom(body)
	}
	h.answer = func(ctx context.Context, c *conn, cl *call) error {
		return c.respond(cl, answer(ctx, c, cl, cl.state.(Q)))
	}
	return &h
}

// waiting is unary for an answer that waits for what others do. It is given by
// the writer, so that the reader sees the client go. The request outlives the
// frame.
func waiting[Q kmsg.Request](h handler, request func() Q, answer func(context.Context, *conn, *call, Q) kmsg.Response) *handler {
	out := unary(h, request, answer)
	out.ordered, out.polls = false, true
	out.ready = func(context.Context, *conn, *call) bool { return false }
	decode := out.decode
	out.decode = func(c *conn, cl *call, body []byte) error { return decode(c, cl, bytes.Clone(body)) }
	return out
}
