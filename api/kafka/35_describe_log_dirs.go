package kafka

import (
	"context"

	"github.com/twmb/franz-go/pkg/kmsg"

	"leat/api"
)

// DescribeLogDirs (key 35), versions 1 to 4.
//
// There is one directory, with the size of each partition that is asked for; a
// null list of topics asks for all and an empty one for none. Topics and
// partitions that do not exist are left out, as Kafka does.
//
//	v2  flexible
//	v3  top-level error; before, an error is an answer without a directory
//	v4  size and free space of the disk
//
// Left out: logs on their way from one directory to another, and version 5, which
// tells directories that take no more (KIP-1066). There is one directory.
func describeLogDirs(ctx context.Context, c *conn, cl *call, req *kmsg.DescribeLogDirsRequest) kmsg.Response {
	resp := kmsg.NewPtrDescribeLogDirsResponse()
	named := map[topicPartition]bool{}
	for i := range req.Topics {
		for _, p := range req.Topics[i].Partitions {
			named[topicPartition{req.Topics[i].Topic, p}] = true
		}
	}
	in, err := c.srv.opts.Broker.LogDirs(ctx, c.principal, func(topic string, partition int32) bool {
		return req.Topics == nil || named[topicPartition{topic, partition}]
	})
	if resp.ErrorCode = cl.code(ctx, err); resp.ErrorCode != api.KafkaNone {
		return resp
	}
	dir := kmsg.NewDescribeLogDirsResponseDir()
	dir.Dir, dir.TotalBytes, dir.UsableBytes = in.Path, in.Total, in.Usable
	places := map[string]int{}
	for i := range in.Logs {
		l := &in.Logs[i]
		place, ok := places[l.Topic]
		if !ok {
			place = len(dir.Topics)
			places[l.Topic] = place
			t := kmsg.NewDescribeLogDirsResponseDirTopic()
			t.Topic = l.Topic
			dir.Topics = append(dir.Topics, t)
		}
		p := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
		p.Partition, p.Size, p.OffsetLag = l.Partition, l.Size, l.Lag
		dir.Topics[place].Partitions = append(dir.Topics[place].Partitions, p)
	}
	resp.Dirs = append(resp.Dirs, dir)
	return resp
}
