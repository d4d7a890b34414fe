package broker

import (
	"context"
	"errors"
	"fmt"

	"leat/replication"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/meta"
)

// Inspect reads the metadata store in dir, which no server has open, for a check
// of the data directory: what is wrong with its files, and which logs there are
// by what it says. It changes nothing.
func Inspect(ctx context.Context, fsys disk.FS, dir string) (*storage.Metadata, error) {
	out := &storage.Metadata{}
	found := func(severity storage.Severity, path string, pos int64, err error) {
		out.Findings = append(out.Findings, storage.Finding{Severity: severity, Path: path, Pos: pos, What: err.Error()})
	}
	if there, err := meta.Exists(fsys, dir); err == nil {
		out.Missing = !there
	}
	damages, err := meta.Check(ctx, meta.Options{FS: fsys, Dir: dir}, func(db *meta.DB) error {
		err := readMetadata(db, dir, out)
		if err != nil && ctx.Err() == nil {
			// The store holds, so it is what was written into it that does not.
			found(storage.Damage, dir, -1, err)
			return nil
		}
		out.Known = err == nil
		return err
	})
	if err != nil && ctx.Err() == nil {
		found(storage.Damage, dir, -1, err) // it cannot be read, which need not keep the logs from being looked at
		err = nil
	}
	for _, d := range damages {
		severity := storage.Damage
		if d.Harmless {
			severity = storage.Warning
		}
		found(severity, d.Path, d.Pos, fmt.Errorf("the metadata does not hold: %w", d.Err))
	}
	return out, err
}

func readMetadata(db *meta.DB, dir string, out *storage.Metadata) error {
	state, err := replication.ReadState(db)
	if err != nil {
		return err
	}
	if err := replication.CheckMetadata(db); err != nil {
		return err
	}
	if out.ClusterID, out.NodeUUID, err = readOwner(db, dir); err != nil {
		return err
	}
	starts, err := scanStarts(db, dir)
	if err != nil {
		return err
	}
	out.Logs, out.Dying = map[storage.ID]storage.LogMetadata{}, map[TopicID]bool{}
	for _, t := range state.Topics() {
		for i := range t.Partitions.Len() {
			id := storage.ID{Topic: t.ID, Partition: int32(i)}
			out.Logs[id] = storage.LogMetadata{Topic: t.Name, Start: starts[id], LeaderEpoch: t.Partitions.At(i).LeaderEpoch}
		}
	}
	for _, id := range state.DyingTopics() {
		out.Dying[id] = true
	}
	return nil
}

// scanStarts reads the starts of all logs that have one.
func scanStarts(db *meta.DB, dir string) (map[storage.ID]int64, error) {
	starts := map[storage.ID]int64{}
	err := db.Scan(startPrefix, func(key, value []byte) error {
		id, start, ok := parseStart(key, value)
		if !ok {
			return &meta.CorruptError{Path: dir, Err: errors.New("the start of a log is no offset of a partition")}
		}
		starts[id] = start
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the starts of logs: %w", err)
	}
	return starts, nil
}
