package broker

import (
	"errors"
	"fmt"
	"log/slog"

	"leat/storage"
)

// CorruptError says that the records with offsets in [From, To) of a partition
// are lost or cannot be given out; both are -1 if it is not known which. It is
// of kind ErrCorruptRecord.
type CorruptError struct {
	Topic     string
	Partition int32
	From, To  int64
}

// Error names the offsets, and nothing of the files.
func (e *CorruptError) Error() string {
	switch {
	case e.From < 0:
		return fmt.Sprintf("%v: some of %s/%d", ErrCorruptRecord, e.Topic, e.Partition)
	case e.To == e.From+1:
		return fmt.Sprintf("%v: offset %d of %s/%d", ErrCorruptRecord, e.From, e.Topic, e.Partition)
	default:
		return fmt.Sprintf("%v: offsets %d to %d of %s/%d", ErrCorruptRecord, e.From, e.To-1, e.Topic, e.Partition)
	}
}

// Unwrap returns ErrCorruptRecord.
func (e *CorruptError) Unwrap() error { return ErrCorruptRecord }

// readError is the error of a read as clients get it: a log that was closed
// says why, and damage of what is stored is not taken for damage of what a
// client sent.
func (b *Broker) readError(p *partition, err error) error {
	if errors.Is(err, storage.ErrClosed) {
		if gone := p.err(); gone != nil {
			return gone
		}
	}
	met, ok := errors.AsType[*storage.CorruptError](err)
	if !ok {
		return err
	}
	out := &CorruptError{Topic: p.topic.name, Partition: p.id.Partition, From: met.From, To: met.To}
	if met.From == met.To {
		out.From, out.To = -1, -1
	}
	return out
}

// holeFound is told by storage of each hole that it finds in an open log.
func (b *Broker) holeFound(l *storage.Log, h storage.Hole) {
	b.mu.RLock()
	p := b.mu.parts[l.ID()]
	b.mu.RUnlock()
	if p != nil { // else it is being opened, and its holes are told then
		b.tellHole(p.topic.name, p.id.Partition, h)
	}
}

// tellHoles tells the operator of the holes that a log had when it opened.
func (b *Broker) tellHoles(topic string, l *storage.Log) {
	holes := l.Holes()
	for _, h := range holes {
		b.tellHole(topic, l.ID().Partition, h)
	}
	if len(holes) == 0 && l.Fenced() {
		b.log.Error("partition was found to be damaged before the restart, and takes no records until it is repaired",
			slog.String("topic", topic), slog.Int("partition", int(l.ID().Partition)))
	}
}

func (b *Broker) tellHole(topic string, partition int32, h storage.Hole) {
	b.log.Error("partition is damaged", slog.String("topic", topic), slog.Int("partition", int(partition)),
		slog.Int64("from_offset", h.From), slog.Int64("to_offset", h.To),
		slog.String("file", h.Path), slog.Int64("position", h.Pos), slog.Any("err", h.Err))
}

// NoteDamage says that the batch with an offset, which a fetch gave out, does
// not hold or cannot be read as records, because of err. A fetch looks at a
// batch at most once; who looks again tells here, so that damage is known and the
// operator hears of it. It returns the error that a client gets.
func (b *Broker) NoteDamage(topic string, partition int32, offset int64, err error) error {
	t := b.proposer.State().TopicNamed(topic)
	if t == nil {
		return deleted(topic)
	}
	p, gone := b.partition(t, partition)
	if gone != nil {
		return gone
	}
	return b.noteDamage(p, offset, err)
}

func (b *Broker) noteDamage(p *partition, offset int64, err error) error {
	if found := p.log.Suspect(offset); found != nil {
		return b.readError(p, found)
	}
	// It is what a producer sent: the topic does not have all of a batch checked.
	if p.unreadable.note(offset) {
		more := []any{slog.String("topic", p.topic.name), slog.Int("partition", int(p.id.Partition)), slog.Int64("offset", offset), slog.Any("err", err)}
		if file, pos, lost := p.log.Locate(offset); lost == nil {
			more = append(more, slog.String("file", file), slog.Int64("position", pos))
		}
		b.log.Error("a stored batch cannot be read as records", more...)
	}
	return &CorruptError{Topic: p.topic.name, Partition: p.id.Partition, From: offset, To: offset + 1}
}

// damaged says that a part of what is stored cannot be read.
func (p *partition) damaged() bool {
	return p.log.Fenced() || p.unreadable.in(p.log.Offsets().Start)
}

// damages counts the partitions of which a part cannot be read.
func (b *Broker) damages() (n int) {
	for _, p := range b.partitions() {
		if p.damaged() {
			n++
		}
	}
	return n
}
