package storage

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// maxPartitionText bounds the read of a partition's text.
const maxPartitionText = 64 << 10

// partitionText is what the text in a partition's directory says, by its keys.
func partitionText(b []byte) map[string]string {
	said := make(map[string]string)
	for line := range strings.SplitSeq(string(b), "\n") {
		if key, value, ok := strings.Cut(line, ": "); ok {
			said[key] = value
		}
	}
	return said
}

// ownerOf is whose directory it is by the text in it.
func ownerOf(b []byte) (ID, error) {
	if _, holds, _ := partitionSum.verify(b); !holds {
		return ID{}, errors.New("it does not match its checksum")
	}
	said := partitionText(b)
	topic, err := ParseTopicID(said[topicIDKey])
	if err != nil {
		return ID{}, err
	}
	n, err := strconv.ParseInt(said[partitionKey], 10, 32)
	return ID{Topic: topic, Partition: int32(n)}, err
}

// checkOwner tells the directory of another partition, in which nothing is the
// log's and nothing is touched, so that the log is whole when its own is back.
// A text that is damaged says nothing.
func (r *recovery) checkOwner() error {
	if len(r.found) == 0 {
		return nil
	}
	path := filepath.Join(r.log.path, partitionFile)
	b, err := readFile(r.dir.opts.FS, path, maxPartitionText)
	owner := ID{}
	if err == nil {
		owner, err = ownerOf(b)
	}
	if err == nil {
		r.log.created, _ = time.Parse(createdLayout, partitionText(b)[createdKey])
	}
	switch {
	case err != nil:
		r.dir.opts.Logger.Warn("nothing says that a directory is that of its partition", slog.String("path", path), slog.Any("err", err))
	case owner != r.log.id:
		r.found, r.orphans, r.snapshots = nil, nil, nil
		return &CorruptError{Path: path, Err: fmt.Errorf("the directory is that of partition %s", owner)}
	}
	return nil
}
