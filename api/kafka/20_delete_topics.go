package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/broker"
)

// DeleteTopics (key 20), versions 1 to 6.
//
// A topic is gone for everybody when the answer arrives; its files are removed
// in the background. A topic that stands twice in a request is refused each time
// and stays.
//
//	v4  flexible
//	v5  error text
//	v6  topics by name or id
//
// Left out: the timeout. The request is answered when the topics are gone.
func deleteTopics(ctx context.Context, c *conn, cl *call, req *kmsg.DeleteTopicsRequest) kmsg.Response {
	asked := make([]broker.TopicRef, 0, len(req.TopicNames)+len(req.Topics))
	for _, name := range req.TopicNames {
		asked = append(asked, broker.TopicRef{Name: name})
	}
	for i := range req.Topics {
		ref := broker.TopicRef{ID: req.Topics[i].TopicID}
		if req.Topics[i].Topic != nil {
			ref.Name = *req.Topics[i].Topic
		}
		asked = append(asked, ref)
	}
	count := map[broker.TopicRef]int{}
	for _, ref := range asked {
		count[ref]++
	}
	resp := kmsg.NewPtrDeleteTopicsResponse()
	resp.Topics = make([]kmsg.DeleteTopicsResponseTopic, len(asked))
	var refs []broker.TopicRef
	var places []int
	for i, ref := range asked {
		resp.Topics[i] = kmsg.NewDeleteTopicsResponseTopic()
		out := &resp.Topics[i]
		out.TopicID = ref.ID
		if ref.ID == (broker.TopicID{}) || ref.Name != "" {
			out.Topic = &ref.Name
		}
		var err error
		switch {
		case count[ref] > 1:
			err = fmt.Errorf("%w: the topic is in the request %d times", broker.ErrInvalidRequest, count[ref])
		case ref.ID != (broker.TopicID{}) && ref.Name != "":
			err = fmt.Errorf("%w: a topic is deleted by name or by id", broker.ErrInvalidRequest)
		default:
			refs, places = append(refs, ref), append(places, i)
			continue
		}
		out.ErrorCode, out.ErrorMessage = cl.code(ctx, err), message(err)
	}
	if len(refs) == 0 {
		return resp
	}
	for i, r := range c.srv.opts.Broker.DeleteTopics(ctx, c.principal, refs) {
		out := &resp.Topics[places[i]]
		out.ErrorCode, out.ErrorMessage = cl.code(ctx, r.Err), message(r.Err)
		if r.Err == nil {
			out.Topic, out.TopicID = &r.Topic.Name, r.Topic.ID
		}
	}
	return resp
}
