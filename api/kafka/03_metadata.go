package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
	"leat/broker"
)

// Metadata (key 3), versions 0 to 13.
//
// A topic that is named and does not exist is made, if the client allows it and
// auto.create.topics.enable does; it can be used when the answer arrives. Null
// asks for all topics and an empty list for none, in version 0 an empty list for
// all. A name or id that is given twice is answered once.
//
//	v1  controller, racks, internal topics
//	v2  cluster id
//	v4  the client says whether topics may be made; before, they may
//	v7  leader epochs
//	v8  authorized operations (KIP-430), of the cluster until v10
//	v9  flexible
//	v10 topic ids in the answer
//	v12 topics by id
//	v13 top-level error, never set
//
// Left out: racks.
func metadata(ctx context.Context, c *conn, cl *call, req *kmsg.MetadataRequest) kmsg.Response {
	b := c.srv.opts.Broker
	resp := kmsg.NewPtrMetadataResponse()
	known := map[int32]bool{}
	for _, n := range b.Nodes() {
		node := kmsg.NewMetadataResponseBroker()
		node.NodeID, node.Host, node.Port = n.ID, n.Host, n.Port
		resp.Brokers = append(resp.Brokers, node)
		known[n.ID] = true
	}
	cluster := b.ClusterID()
	resp.ClusterID, resp.ControllerID = &cluster, b.Controller()
	if req.IncludeClusterAuthorizedOperations {
		resp.AuthorizedOperations = c.clusterOperations()
	}
	if req.Topics == nil || req.Version == 0 && len(req.Topics) == 0 {
		topics, err := b.Topics(ctx, c.principal)
		resp.ErrorCode = cl.code(ctx, err)
		for i := range topics {
			resp.Topics = append(resp.Topics, c.metadataTopic(req, &topics[i], known))
		}
		return resp
	}
	seen := map[broker.TopicRef]bool{}
	for i := range req.Topics {
		ref := broker.TopicRef{ID: req.Topics[i].TopicID}
		if req.Topics[i].Topic != nil {
			ref.Name = *req.Topics[i].Topic
		}
		if seen[ref] {
			continue
		}
		seen[ref] = true
		topic, err := findTopic(ctx, c, req, ref)
		if err != nil {
			resp.Topics = append(resp.Topics, missingTopic(ref, req.Version, cl.code(ctx, err)))
			continue
		}
		resp.Topics = append(resp.Topics, c.metadataTopic(req, &topic, known))
	}
	return resp
}

// findTopic finds or makes one topic of a request.
func findTopic(ctx context.Context, c *conn, req *kmsg.MetadataRequest, ref broker.TopicRef) (broker.Topic, error) {
	b := c.srv.opts.Broker
	switch {
	case ref.ID != (broker.TopicID{}) && (req.Version < 12 || ref.Name != ""):
		return broker.Topic{}, fmt.Errorf("%w: a topic is asked for by name or, from version 12, by id", broker.ErrInvalidRequest)
	case ref.ID == (broker.TopicID{}) && (req.Version < 4 || req.AllowAutoTopicCreation):
		return b.EnsureTopic(ctx, c.principal, ref.Name)
	default:
		return b.Topic(ctx, c.principal, ref)
	}
}

func missingTopic(ref broker.TopicRef, version, code int16) kmsg.MetadataResponseTopic {
	t := kmsg.NewMetadataResponseTopic()
	t.ErrorCode, t.TopicID = code, ref.ID
	// The name is nullable from version 12 on, and null for an id that has none.
	if ref.ID == (broker.TopicID{}) || ref.Name != "" || version < 12 {
		t.Topic = &ref.Name
	}
	return t
}

// metadataTopic describes a topic. A leader is named only if the answer tells
// its address.
func (c *conn) metadataTopic(req *kmsg.MetadataRequest, in *broker.Topic, known map[int32]bool) kmsg.MetadataResponseTopic {
	t := kmsg.NewMetadataResponseTopic()
	t.Topic, t.TopicID, t.IsInternal = &in.Name, in.ID, in.Internal
	if req.IncludeTopicAuthorizedOperations {
		t.AuthorizedOperations = c.topicOperations(in.Name)
	}
	t.Partitions = make([]kmsg.MetadataResponseTopicPartition, len(in.Partitions))
	for i := range in.Partitions {
		from := &in.Partitions[i]
		p := kmsg.NewMetadataResponseTopicPartition()
		p.Partition, p.Leader, p.LeaderEpoch = from.Index, from.Leader, from.LeaderEpoch
		p.Replicas, p.ISR, p.OfflineReplicas = from.Replicas, from.ISR, from.Offline
		if !known[from.Leader] {
			p.ErrorCode, p.Leader = api.KafkaLeaderNotAvailable, -1
		}
		t.Partitions[i] = p
	}
	return t
}
