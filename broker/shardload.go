package broker

import (
	"errors"
	"io"
	"log/slog"

	"leat/broker/group"
	"leat/storage/record"
)

// load brings the store up to the log's watermark and the groups with members
// into memory.
func (s *shard) load() error {
	t := s.broker.proposer.State().Topic(s.id.Topic)
	if t == nil {
		return ErrUnknownTopicID
	}
	part, err := s.broker.partition(t, s.id.Partition)
	if err != nil {
		return err
	}
	s.part = part
	next, err := s.store.applied()
	if err != nil {
		return err
	}
	o, hw := s.part.log.Offsets(), s.part.hw.Load()
	if next < o.Start || next > hw {
		if err := s.store.wipe(); err != nil {
			return err
		}
		next = o.Start
	}
	if err := s.replay(next, hw); err != nil {
		return err
	}
	s.synced.Store(hw)
	s.settled = hw
	now := s.now()
	return s.store.eachMembers(func(id string, v []byte) error {
		r, err := decodeMembers(v)
		if err != nil || len(r.Members) == 0 {
			return err
		}
		s.keep(&held{Group: group.Restore(id, s.config, r, now), index: -1})
		return nil
	})
}

// replayChunk is how much of the log is read at a time.
const replayChunk = 1 << 20

// replay takes the log in [next, hw) into the store.
func (s *shard) replay(next, hw int64) error {
	var buf []byte
	var reader record.Reader
	defer reader.Close()
	for next < hw {
		section, err := s.part.log.Read(next, replayChunk, hw)
		if err != nil {
			return err
		}
		if section == nil { // compaction has left nothing there
			return s.store.apply(nil, hw, true)
		}
		buf = append(buf[:0], make([]byte, section.Len())...)
		_, err = section.ReadAt(buf, 0)
		end := section.NextOffset()
		section.Release()
		if err != nil {
			return err
		}
		changes, err := s.changesIn(buf, next, &reader)
		if err == nil {
			err = s.store.apply(changes, end, end >= hw)
		}
		if err != nil {
			return err
		}
		next = end
	}
	return nil
}

// changesIn decodes batches; records before the offset from are left out, and so
// are those that this version does not know.
func (s *shard) changesIn(p []byte, from int64, reader *record.Reader) ([]change, error) {
	var changes []change
	for len(p) > 0 {
		b := record.Batch(p[:record.Batch(p).Size()])
		p = p[len(b):]
		if err := reader.Reset(b, 0); err != nil {
			return nil, err
		}
		for {
			var r record.Record
			if err := reader.Next(&r); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, err
			}
			if r.Offset < from {
				continue
			}
			c, err := decodeChange(r.Key, r.Value)
			if errors.Is(err, errForeignRecord) {
				continue
			}
			if err != nil {
				s.log.Error("a record of the offsets topic cannot be read and is skipped", slog.Int64("offset", r.Offset), slog.Any("err", err))
				continue
			}
			changes = append(changes, c)
		}
	}
	return changes, nil
}
