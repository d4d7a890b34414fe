package broker

import (
	"errors"
	"io"
	"log/slog"
	"time"

	"leat/broker/group"
	"leat/storage"
	"leat/storage/record"
)

// work brings the core what is new and does what it asks for.
func (s *shard) work() {
	s.collect()
	now := s.now()
	epoch, leads := s.part.office()
	s.began.lead(epoch, leads)
	if !leads {
		s.core.Resign(now, epoch)
	} else if err := s.core.Lead(now, epoch, logOf{s.part.log}); err != nil {
		s.notServed(err)
	}
	s.core.Committed(s.part.hw.Load())
	if _, waits := s.core.Awaits(); waits && s.part.err() != nil {
		s.core.Stop(now, s.part.err())
	}
	s.drive()
	s.await()
	s.tellState()
	s.show()
}

// tellState tells callers whether the shard serves.
func (s *shard) tellState() {
	is := s.core.Serves()
	if is == *s.serves.Load() { //nolint:errorlint // the very same one
		return
	}
	s.say(is)
	if !errors.Is(is, ErrCoordinatorLoading) {
		select {
		case <-s.loaded:
		default:
			close(s.loaded)
		}
	}
}

// await has the shard woken when the watermark is where it waits for it.
func (s *shard) await() {
	target, ok := s.core.Awaits()
	if s.parked && (!ok || target < s.target) {
		if !s.part.unpark(&s.place) {
			return // it was told, and comes here again
		}
		s.parked = false
	}
	if !ok || s.parked || s.part.err() != nil { // a partition that is gone would tell at once, for ever
		return
	}
	s.parked, s.target = true, target
	s.part.park(&s.place, target)
}

// drive does all that the core asks for.
func (s *shard) drive() {
	for {
		t, ok := s.core.Next(s.now())
		if !ok {
			return
		}
		for _, err := range t.Troubles {
			s.log.Warn("groups have trouble", slog.Any("err", err))
		}
		if t.Wipe {
			s.wipe()
		}
		for _, id := range t.Unwatched {
			s.unwatch(id)
		}
		for i := range t.Watches {
			s.watch(&t.Watches[i])
		}
		if len(t.Watches) > 0 {
			s.collect() // what is there is told at once
		}
		for _, a := range t.Acked {
			if k := s.acking[a.Token]; k != nil {
				k.results = a.Results
				delete(s.acking, a.Token)
			}
		}
		for i := range t.Answers {
			s.answer(&t.Answers[i])
		}
		if t.Apply != nil {
			s.apply(t.Apply)
		}
		if t.Append != nil {
			s.append(t.Append)
		}
	}
}

func (s *shard) answer(a *group.Answer) {
	if fn := s.waiting[a.Token]; fn != nil {
		delete(s.waiting, a.Token)
		fn(*a)
	}
}

// wipe empties the store, which does not fit the log.
func (s *shard) wipe() {
	s.log.Warn("the store of groups does not fit its log and is made again")
	s.synced.Store(0)
	s.core.Wiped(s.now(), s.store.wipe())
}

// append puts a round into the log.
func (s *shard) append(in *group.Append) {
	base, err := s.write(in)
	if errors.Is(err, storage.ErrFailed) { // the write may have come to the disk
		base, err = s.part.log.Offsets().End, errors.Join(group.ErrUnknownOutcome, err)
	}
	if err == nil {
		s.began.append(base+int64(len(in.Changes)), time.Now())
	}
	s.core.Appended(s.now(), in, base, err)
}

func (s *shard) write(in *group.Append) (base int64, err error) {
	s.builder.Reset(record.Options{})
	now := s.now().UnixMilli()
	for i := range in.Changes {
		s.builder.Add(now, encodeKey(&in.Changes[i]), encodeValue(&in.Changes[i]), nil)
	}
	batch, err := s.builder.Finish()
	if err != nil {
		return 0, err
	}
	a, _, err := s.part.append(storage.Append{Batch: batch, Epoch: in.Epoch, Trusted: true, Essential: true}, AcksAll)
	return a.Base, err
}

// apply takes what is committed into the store. On a full disk it is tried again
// with the next tick: the log has it already, so it is not refused, and who waits
// for it waits.
func (s *shard) apply(a *group.Apply) {
	changes, to, err := a.Changes, group.Applied{Next: a.To, Epoch: a.Epoch}, error(nil)
	if a.Read {
		changes, to, err = s.read(a.From, a.To)
	}
	last := a.Read && to.Next == a.To
	if err == nil {
		err = s.store.apply(changes, to, last)
	}
	switch {
	case err == nil && last:
		s.synced.Store(to.Next)
	case err == nil:
		s.lazy = true
	case errors.Is(err, storage.ErrFull):
		if !s.full {
			s.log.Warn("groups wait for room on the disk", slog.Any("err", err))
		}
		err = group.ErrNoRoom
	}
	s.full = errors.Is(err, group.ErrNoRoom)
	if err == nil {
		if began, ok := s.began.applied(a.To); ok {
			s.broker.metrics.groups.applied(changes, began)
		}
	}
	s.core.Did(s.now(), a, to, err)
}

// replayChunk is how much of the log is read at a time.
const replayChunk = 1 << 20

// read finds the changes in the log from an offset on, as many as one read has.
func (s *shard) read(from, to int64) ([]group.Change, group.Applied, error) {
	section, err := s.part.log.Read(from, replayChunk, to)
	if err != nil {
		return nil, group.Applied{}, err
	}
	if section == nil { // compaction has left nothing there
		return nil, group.Applied{Next: to, Epoch: -1}, nil
	}
	buf := make([]byte, section.Len())
	_, err = section.ReadAt(buf, 0)
	end := section.NextOffset()
	section.Release()
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, group.Applied{}, err
	}
	changes, epoch, err := s.changesIn(buf, from)
	return changes, group.Applied{Next: end, Epoch: epoch}, err
}

// changesIn decodes batches, and says of which leader epoch the last is; records
// before the offset from are left out, and so are those that this version does not
// know.
func (s *shard) changesIn(p []byte, from int64) (changes []group.Change, epoch int32, err error) {
	var reader record.Reader
	defer reader.Close()
	epoch = -1
	for len(p) > 0 {
		b := record.Batch(p[:record.Batch(p).Size()])
		p, epoch = p[len(b):], b.LeaderEpoch()
		if err := reader.Reset(b, 0); err != nil {
			return nil, 0, err
		}
		for {
			var r record.Record
			if err := reader.Next(&r); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, 0, err
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
	return changes, epoch, nil
}

// show brings the metrics up to date.
func (s *shard) show() {
	if is := s.core.Stats(); is != s.shown {
		s.broker.metrics.groups.move(&s.shown, &is)
		s.broker.metrics.leases.move(&s.shown, &is)
		s.shown = is
	}
}
