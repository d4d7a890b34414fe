package broker

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"leat/auth"
)

// LogDir is a data directory and the logs in it. Sizes are in bytes.
type LogDir struct {
	Path string
	// Total and Usable are of its file system.
	Total, Usable int64
	// Logs are sorted by topic and partition.
	Logs []LogDirLog
}

// LogDirLog is one log of a LogDir.
type LogDirLog struct {
	Topic     string
	Partition int32
	Size      int64
	// Lag is how many records its end is behind the high watermark.
	Lag int64
}

// LogDirs describes this node's data directory, with those of its logs that are
// wanted; nil wants all. It needs auth.Describe of the cluster.
func (b *Broker) LogDirs(_ context.Context, p auth.Principal, wanted func(topic string, partition int32) bool) (LogDir, error) {
	if err := b.allowedCluster(p, auth.Describe); err != nil {
		return LogDir{}, err
	}
	total, free, err := b.dir.Usage()
	if err != nil {
		return LogDir{}, err
	}
	out := LogDir{Path: b.opts.Path, Total: total, Usable: free}
	for _, part := range b.partitions() {
		if wanted != nil && !wanted(part.topic.name, part.id.Partition) {
			continue
		}
		out.Logs = append(out.Logs, LogDirLog{
			Topic: part.topic.name, Partition: part.id.Partition, Size: part.log.Size(),
			Lag: max(0, part.hw.Load()-part.log.Offsets().End),
		})
	}
	slices.SortFunc(out.Logs, func(a, b LogDirLog) int {
		return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return out, nil
}
