package broker

import (
	"encoding/binary"
	"errors"
	"hash/maphash"
	"io"
	"math"

	"leat/storage"
	"leat/storage/record"
)

// likeness sums up the records of a batch of a keyed request, so that those of a
// retry are held against those in the log without any of them being kept. The
// sums are of this process: no client can look for two bodies that have the same.
type likeness struct {
	content, times maphash.Hash
	buf            []byte
}

var likenessSeed = maphash.MakeSeed()

func newLikeness() *likeness {
	l := &likeness{}
	l.content.SetSeed(likenessSeed)
	l.times.SetSeed(likenessSeed)
	return l
}

// add takes a record; since is its time after that of the first try, 0 also if
// the time is the server's.
func (l *likeness) add(since int64, key, value []byte, headers []record.Header) {
	_, _ = l.times.Write(binary.LittleEndian.AppendUint64(l.buf[:0], uint64(since)))
	l.bytes(key)
	l.bytes(value)
	l.number(uint64(len(headers)))
	for i := range headers {
		l.number(uint64(len(headers[i].Key)))
		_, _ = l.content.WriteString(headers[i].Key)
		l.bytes(headers[i].Value)
	}
}

// bytes takes a field; nil is another one than an empty one.
func (l *likeness) bytes(p []byte) {
	if p == nil {
		l.number(0)
		return
	}
	l.number(uint64(len(p)) + 1)
	_, _ = l.content.Write(p)
}

func (l *likeness) number(n uint64) {
	l.buf = binary.AppendUvarint(l.buf[:0], n)
	_, _ = l.content.Write(l.buf)
}

// alike says whether the records that came are those of a batch that an earlier
// try has written. One that is gone from the log, or of which compaction has left
// a part, cannot be asked: then what the epoch tells has to do.
func (s *RecordSet) alike(partition int32, w *earlier) (bool, error) {
	part, err := s.broker.partition(s.topic, partition)
	if err != nil {
		return false, err
	}
	batch, err := s.broker.batchAt(part, w.Base)
	o := s.origin
	switch {
	case isGone(err):
		return true, nil
	case err != nil:
		return false, err
	case batch.ProducerID() != o.producer || batch.ProducerEpoch() != o.epoch || batch.BaseSequence() != w.First || int(batch.Count()) != w.Count():
		return true, nil
	}
	stored, err := s.sumUp(batch)
	if err != nil {
		if err = s.broker.noteDamage(part, w.Base, err); isGone(err) {
			return true, nil
		}
		return false, err
	}
	timed := o.stamp >= 0 && batch.BaseTimestamp() == o.stamp && !batch.LogAppendTime()
	return stored.content.Sum64() == w.came.content.Sum64() && (!timed || stored.times.Sum64() == w.came.times.Sum64()), nil
}

// sumUp reads a stored batch.
func (s *RecordSet) sumUp(batch record.Batch) (*likeness, error) {
	var reader record.Reader
	defer reader.Close()
	sum := newLikeness()
	var r record.Record
	err := reader.Reset(batch, 0)
	for err == nil {
		if err = reader.Next(&r); err == nil {
			sum.add(r.Timestamp-s.origin.stamp, r.Key, r.Value, r.Headers)
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return sum, nil
}

// isGone says that a batch cannot be read and will not come back.
func isGone(err error) bool {
	_, damaged := errors.AsType[*CorruptError](err)
	return damaged || errors.Is(err, storage.ErrOffsetOutOfRange)
}

// batchAt reads the batch that has an offset.
func (b *Broker) batchAt(p *partition, offset int64) (record.Batch, error) {
	section, err := p.log.Read(offset, 1, math.MaxInt64)
	if err != nil {
		return nil, b.readError(p, err)
	}
	if section == nil {
		return nil, storage.ErrOffsetOutOfRange
	}
	defer section.Release()
	whole := make([]byte, section.Len())
	if _, err := section.ReadAt(whole, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	batch := record.Batch(whole[:record.Batch(whole).Size()])
	if err := batch.VerifyCRC(); err != nil {
		return nil, b.noteDamage(p, offset, err)
	}
	return batch, nil
}
