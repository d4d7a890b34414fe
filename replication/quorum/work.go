package quorum

import (
	"encoding/binary"
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"leat/storage/meta"
)

// Work is what must be saved next; ok says that there is something, if only
// something to say, for which the Write is empty. The owner saves it and calls Done
// or Failed. There is nothing after a failure, nor between Work and Done.
func (c *Core) Work() (w Write, ok bool) {
	if c.err != nil || c.saving || c.idle() {
		return Write{}, false
	}
	var st raft.BasicStatus
	err := c.raft(func() error {
		for c.rn.HasReady() && c.bytes < maxWorkBytes {
			if err := c.ready(c.rn.Ready()); err != nil {
				return c.fail(err)
			}
		}
		if !c.rn.HasReady() {
			c.assembled = nil // installed, or passed over by Raft
		}
		st = c.observe()
		if in := c.incoming; in != nil && (in.term < st.GetTerm() || in.index <= st.GetCommit()) {
			c.incoming = nil // the rest of it is not taken any more
		}
		c.sendChunks()
		c.compact()
		return nil
	})
	if err != nil {
		return Write{}, false
	}
	w = c.write(st)
	said := c.out
	c.out.Term, c.out.Leader, c.out.Active, c.out.Applied = st.GetTerm(), st.Lead, c.active(), c.applied
	if c.yielding {
		c.out.Leader = 0
	}
	c.saving = w.Sync || len(w.Changes) > 0 || len(c.out.Messages) > 0 || len(c.out.Ended) > 0 || c.out.Members ||
		c.out.Term != said.Term || c.out.Leader != said.Leader || c.out.Active != said.Active
	return w, c.saving
}

// Done says that the Write is saved, which took so many ticks, and returns what
// may leave now.
func (c *Core) Done(took int) Output {
	if c.err != nil || !c.saving {
		return Output{Ended: c.takeEnded()}
	}
	c.saving = false
	c.slow(took)
	if c.yielding {
		c.out.Messages = slices.DeleteFunc(c.out.Messages, c.silenced)
		c.out.Leader = 0
	}
	// What came in since Work may have ended this leadership already.
	c.out.Active = c.out.Active && c.active() && c.out.Term == c.term
	for i := range c.out.Messages {
		c.out.Messages[i].Applied = c.out.Applied
	}
	out := c.out
	c.out = Output{Term: out.Term, Leader: out.Leader, Active: out.Active, Applied: out.Applied}
	return out
}

func (c *Core) takeEnded() []Ended {
	ended := c.out.Ended
	c.out.Ended = nil
	return ended
}

// active says that this node may act as leader: everything that was committed
// before its term is applied when an entry of its term is.
func (c *Core) active() bool {
	if c.term == 0 || c.yielding || c.err != nil {
		return false
	}
	term, err := c.log.Term(c.applied)
	return err == nil && term == c.term
}

// observe notices that leadership was gained or lost. What was proposed in a term
// that has ended has no known outcome.
func (c *Core) observe() raft.BasicStatus {
	st := c.rn.BasicStatus()
	term := uint64(0)
	if st.RaftState == raft.StateLeader {
		term = st.GetTerm()
	}
	if term != c.term {
		c.resign()
		c.term, c.leaving = term, term != 0 && c.removesSelf()
	}
	return st
}

// idle says that Work would find nothing. Most ticks leave nothing to do.
func (c *Core) idle() bool {
	return len(c.out.Messages) == 0 && len(c.out.Ended) == 0 && !c.out.Members && len(c.streams) == 0 && c.assembled == nil &&
		!c.sync && !c.hardDirty && !c.membersDirty && !c.appliedDirty && !c.rn.HasReady()
}

// resign ends everything that belongs to the term of this leader.
func (c *Core) resign() {
	c.term, c.changing, c.leaving, c.yielding, c.yieldTo = 0, false, false, false, 0
	clear(c.others)
	c.abandon()
	clear(c.streams)
	c.views = nil
}

// abandon ends what was proposed, without knowing how.
func (c *Core) abandon() {
	for _, id := range c.pending {
		c.out.Ended = append(c.out.Ended, Ended{ID: id, Outcome: Unknown})
	}
	for _, r := range c.reads {
		c.out.Ended = append(c.out.Ended, Ended{ID: r.id, Outcome: Unknown})
	}
	c.pending, c.reads, c.settling = nil, nil, nil
}

// ready takes one of Raft's Readys: to the next Write what must be saved, to the
// Output what leaves after it, to the machine what is committed. Raft may go on at
// once, as if all were saved already: nobody hears of it before it is.
func (c *Core) ready(rd raft.Ready) error {
	if !raft.IsEmptyHardState(rd.HardState) {
		c.hardDirty = true
	}
	if !raft.IsEmptySnap(rd.Snapshot) {
		if err := c.install(rd.Snapshot); err != nil {
			return err
		}
	}
	if len(rd.Entries) > 0 {
		c.stage(rd.Entries)
	}
	// An only member has told nobody of its term, and nobody else can have voted in
	// it: it is made durable by the sync of the first proposal, or before anything
	// is said.
	c.owed = c.owed || rd.MustSync
	c.sync = c.sync || rd.MustSync && (!c.alone() || slices.ContainsFunc(rd.Entries, hasData))
	for _, m := range rd.Messages {
		if err := c.send(m); err != nil {
			return err
		}
	}
	for _, r := range rd.ReadStates {
		if i := slices.IndexFunc(c.reads, func(p pendingRead) bool { return string(p.id[:]) == string(r.RequestCtx) && p.index == 0 }); i >= 0 {
			c.reads[i].index = max(r.Index, 1)
		}
	}
	if err := c.apply(rd.CommittedEntries); err != nil {
		return err
	}
	c.rn.Advance(rd)
	c.endReads()
	return nil
}

func hasData(e *raftpb.Entry) bool {
	return len(e.GetData()) > 0 || e.GetType() != raftpb.EntryNormal
}

func (c *Core) stage(entries []*raftpb.Entry) {
	c.log.append(entries)
	first := entries[0].GetIndex()
	if c.dirty == 0 || first < c.dirty {
		c.dirty = first
	}
	for _, e := range entries {
		c.bytes += entryBytes(e)
	}
}

func (c *Core) send(m *raftpb.Message) error {
	if m.GetType() == raftpb.MsgSnap {
		return c.startStream(m)
	}
	c.out.Messages = append(c.out.Messages, Message{From: m.GetFrom(), To: m.GetTo(), Raft: m})
	return nil
}

// apply gives committed entries to the machine.
func (c *Core) apply(committed []*raftpb.Entry) error {
	if len(committed) == 0 {
		return nil
	}
	es := make([]Entry, 0, len(committed))
	for _, e := range committed {
		change, id, err := decodeChange(e)
		if err != nil {
			return err
		}
		entry := Entry{Index: e.GetIndex(), Term: e.GetTerm(), ID: id}
		if e.GetType() == raftpb.EntryNormal && len(e.GetData()) > 0 {
			entry.Data = e.Data[len(id):]
		}
		at := entry.Index
		if first, again := c.remember(entry.Index, id); again {
			entry.Data, change, at = nil, nil, first
		}
		c.bytes += entryBytes(e)
		es = append(es, entry)
		if e.GetType() == raftpb.EntryNormal {
			c.end(id, at)
			continue
		}
		if slices.Contains(c.pending, id) {
			c.settling = append(c.settling, Ended{ID: id, Index: at})
		}
		// Who is a member depends on what was applied before.
		if err := c.flush(es); err != nil {
			return err
		}
		es = es[len(es):]
		c.applyChange(entry.Index, change)
	}
	err := c.flush(es)
	c.endChanges()
	return err
}

// flush applies entries.
func (c *Core) flush(es []Entry) error {
	if len(es) == 0 {
		return nil
	}
	if first := es[0].Index; first != c.applied+1 {
		return fmt.Errorf("entry %d is to be applied after %d", first, c.applied)
	}
	if err := c.machine.Apply(&c.staged, es); err != nil {
		return fmt.Errorf("apply entries %d to %d: %w", es[0].Index, es[len(es)-1].Index, err)
	}
	c.applied = es[len(es)-1].Index
	c.appliedDirty = true
	return nil
}

// remember notes the id of what is applied at index; again says that it was applied
// before, at first. It depends on the log alone, so it is the same on every node.
func (c *Core) remember(index uint64, id ProposalID) (first uint64, again bool) {
	if old := &c.window[index%dedupeWindow]; old.index != 0 {
		delete(c.seen, old.id)
		c.staged.Delete(indexKey(keyID, old.index))
		*old = seenID{}
	}
	if id == (ProposalID{}) {
		return 0, false
	}
	if first, again = c.seen[id]; again {
		return first, true
	}
	c.window[index%dedupeWindow] = seenID{index, id}
	c.seen[id] = index
	c.staged.Set(indexKey(keyID, index), id[:])
	return 0, false
}

// end tells the proposer, if that is this node in this term.
func (c *Core) end(id ProposalID, index uint64) {
	if i := slices.Index(c.pending, id); i >= 0 {
		c.pending = slices.Delete(c.pending, i, i+1)
		c.out.Ended = append(c.out.Ended, Ended{ID: id, Index: index, Outcome: Committed})
	}
}

// endReads ends the reads whose index is applied.
func (c *Core) endReads() {
	c.reads = slices.DeleteFunc(c.reads, func(r pendingRead) bool {
		if r.index == 0 || r.index > c.applied {
			return false
		}
		c.out.Ended = append(c.out.Ended, Ended{ID: r.id, Index: r.index, Outcome: Committed})
		return true
	})
}

// compact forgets the oldest entries. Those that a snapshot on its way needs to be
// followed by stay a while longer.
func (c *Core) compact() {
	keep, bytes := uint64(c.o.KeepEntries), c.o.KeepBytes
	to := uint64(0)
	if c.applied > keep {
		to = c.applied - keep
	}
	for size, i := 0, c.applied; i > max(to, c.log.before) && c.log.bytes > bytes; i-- {
		if size += entryBytes(c.log.at(i)); size > bytes {
			to = i
			break
		}
	}
	low := to
	for _, s := range c.streams {
		low = min(low, s.index)
	}
	if to > c.log.before && to-low < 4*keep && c.log.bytes < 4*bytes {
		to = low
	}
	if to > c.log.before {
		c.log.compact(to)
		c.membersDirty = true
	}
}

// write makes the Write of what was staged.
func (c *Core) write(st raft.BasicStatus) Write {
	first, last := c.log.first(), c.log.last()
	if c.dirty > 0 {
		for i := max(c.dirty, first); i <= last; i++ {
			c.staged.own(indexKey(keyLog, i), encodeEntry(c.log.at(i)))
		}
	}
	c.unstore(max(last+1, c.storedFirst), c.storedLast)
	c.unstore(c.storedFirst, min(first-1, c.storedLast))
	c.storedFirst, c.storedLast = first, last
	if c.hardDirty {
		c.staged.own(quorumKey(keyHard), encodeHard(c.o.ID, st.GetTerm(), st.GetVote(), st.GetCommit()))
	}
	if c.membersDirty {
		c.staged.own(quorumKey(keyMembers), encodeMembers(c.log.before, c.log.beforeTerm, c.log.members))
	}
	if c.appliedDirty && c.applied > 0 {
		c.staged.own(meta.AppliedKey(), binary.BigEndian.AppendUint64(nil, c.applied))
	}
	c.sync = c.sync || c.owed && len(c.out.Messages) > 0
	c.owed = c.owed && !c.sync
	w := Write{Changes: c.staged, Sync: c.sync, Term: st.GetTerm(), Vote: st.GetVote(), Last: last}
	c.staged, c.sync, c.dirty, c.bytes = nil, false, 0, 0
	c.hardDirty, c.membersDirty, c.appliedDirty = false, false, false
	return w
}

// unstore removes the entries in [from, to] from the store. Many go as a range;
// of ranges there must not be many, for they cost the store memory by the square
// of their number.
func (c *Core) unstore(from, to uint64) {
	if to >= from && to-from > 4096 {
		c.staged.DeleteRange(indexKey(keyLog, from), indexKey(keyLog, to+1))
		return
	}
	for i := from; i <= to; i++ {
		c.staged.Delete(indexKey(keyLog, i))
	}
}
