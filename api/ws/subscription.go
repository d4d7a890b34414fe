package ws

import (
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"leat/api"
	"leat/broker"
)

const (
	// A subscription that may skip does so in a partition in which it lags more
	// than skipLag records, skipAfter after it last had everything; skipKeep
	// records before the end are sent all the same.
	skipLag   = 1000
	skipKeep  = 100
	skipAfter = int64(time.Second)
	// maxFrameRecords bounds a data frame beside its bytes.
	maxFrameRecords = 10_000
	// maxEmptyReads is how many reads without records there are in one turn.
	maxEmptyReads = 16
	// positionEvery is how often, in ns, a subscription whose filter leaves out
	// all that it finds is told how far it came.
	positionEvery = int64(time.Second)
	// maxProbe is up to how many partitions are looked at to find out whether a
	// subscription has everything without parking it.
	maxProbe = 16
)

// source is what a subscription reads from: a *feedSource, or a test's.
type source interface {
	// Len, Position, Next, Seek, Err and Close are those of broker.Tail.
	Len() int
	Position(i int) broker.TailStart
	Next() int
	Seek(i int, offset int64)
	Err() error
	Close()
	// Read is api.Feed's. It does not move the position.
	Read(i int, most api.Limits) (run, error)
	// Lag is the number of offsets between the position and the high
	// watermark, 0 where that is not known.
	Lag(i int) int64
}

// run is the records of one read, from the position on.
type run struct {
	next  int64 // where to read on
	count int
	// failed is for how many records the filter had no answer.
	failed int
	// text is the records' JSON, joined by commas. It is shared.
	text []byte
}

// subscription is one subscription of a session: what it may be sent and when.
// It holds positions and no records. Only woken is for other goroutines than
// the session's own turn.
type subscription struct {
	id       ident
	conn     string
	topic    string
	src      source
	credit   credit
	maxBytes int
	maxDelay time.Duration
	skip     bool
	onGap    gapRule
	paused   bool
	filtered bool
	// unanswered is for how many records since the last frame the filter had no
	// answer.
	unanswered int
	// tell is when the client is told of positions without a record, 0 if there
	// is nothing to tell.
	tell int64
	// chain holds, for each partition of the source, the next of the last frame,
	// which is the prev of the one to come.
	chain []int64
	// hot says that the source may have something.
	hot bool
	// began is when the last frame was begun, and due when the next may be; sent
	// says that one went since the source was last found empty.
	began, due int64
	sent       bool
	// live says that the subscription has once had everything, and behind since
	// when it has not; 0 while it has.
	live   bool
	behind int64
	// woken is set by the source's wake.
	woken atomic.Bool
}

// begin readies a subscription whose source is set. What the source has at the
// beginning is looked at.
func (s *subscription) begin(m *message) {
	s.id, s.topic = m.sub, m.topic
	s.credit = newCredit(m.credit)
	s.maxBytes, s.maxDelay, s.skip, s.onGap = m.maxBytes, m.maxDelay, m.skip, m.onGap
	s.filtered = m.filter != ""
	s.hot = true
	s.grow()
}

// grow extends the chain to partitions that were added.
func (s *subscription) grow() {
	for i := len(s.chain); i < s.src.Len(); i++ {
		s.chain = append(s.chain, s.src.Position(i).Offset)
	}
}

// ready reports whether there may be something that may be sent.
func (s *subscription) ready() bool { return s.hot && !s.paused && s.credit.open() }

// outcome is what came of a turn of a subscription.
type outcome uint8

const (
	nothing outcome = iota // there is nothing to send now
	told                   // a control message was added
	framed                 // there is a data frame
	ended                  // a control message was added, and it is over
)

// turn is one turn of a subscription that may send: a data frame, or a control
// message in reply, or nothing.
func (s *subscription) turn(now int64, p *pace, f *frame) (outcome, text) {
	for range maxEmptyReads {
		if s.holds(now, p) {
			return nothing, text{}
		}
		i := s.next(now, p)
		if i < 0 {
			return s.position(now, f), text{}
		}
		if s.behind == 0 {
			s.behind = now
		}
		if lag := s.src.Lag(i); s.skips(now, lag) {
			at := s.src.Position(i)
			return told, s.jump(i, at.Offset+lag-skipKeep, "skipped")
		}
		r, err := s.src.Read(i, api.Limits{
			Records: int(min(s.credit.records, maxFrameRecords)), Bytes: int(min(s.credit.bytes, int64(s.maxBytes))),
		})
		if errors.Is(err, api.ErrNoRoom) {
			s.due = now + int64(api.NoRoomWait)
			return nothing, text{}
		}
		if err != nil {
			return s.failed(i, err)
		}
		s.src.Seek(i, r.next)
		s.unanswered += r.failed
		if r.count > 0 || s.filtered && r.next > s.chain[i] && now-s.began >= positionEvery {
			s.fill(now, i, &r, f)
			return framed, text{}
		}
		if s.filtered {
			break // it may have taken the filter's time
		}
	}
	// A long stretch without records: let others have a turn.
	return nothing, text{}
}

// position tells how far a filter came in one partition without a record, if
// that is due; the others follow.
func (s *subscription) position(now int64, f *frame) outcome {
	i := s.untold()
	if i < 0 {
		return nothing
	}
	if s.tell = s.began + positionEvery; now < s.tell {
		return nothing
	}
	s.fill(now, i, &run{next: s.src.Position(i).Offset}, f)
	if s.tell = 0; s.untold() >= 0 {
		s.tell = now + positionEvery
	}
	return framed
}

// untold is the index of a partition whose position is beyond what the client
// was told, or -1.
func (s *subscription) untold() int {
	if !s.filtered {
		return -1
	}
	for i, next := range s.chain {
		if s.src.Position(i).Offset > next {
			return i
		}
	}
	return -1
}

// tells reports whether a position is to be told now, and else how long that
// takes, 0 if there is none.
func (s *subscription) tells(now int64) (bool, time.Duration) {
	if s.tell == 0 || s.paused || !s.credit.open() {
		return false, 0
	}
	return s.tell <= now, time.Duration(max(s.tell-now, 1))
}

// rest reports whether nothing is left to send now, and then has the
// subscription wait for more.
func (s *subscription) rest(now int64, p *pace) bool {
	return s.holds(now, p) || s.empty() && s.next(now, p) < 0
}

// holds reports whether the next frame waits for company. The source will most
// likely have something by then, so it need not be parked and woken in between.
func (s *subscription) holds(now int64, p *pace) bool {
	due := s.began + int64(p.delay(now, s.maxDelay))
	if !s.sent || due <= now || !s.empty() {
		return false
	}
	s.drained()
	s.due = due
	return true
}

// next is the source's, and notes when that has nothing: then it will wake the
// subscription.
func (s *subscription) next(now int64, p *pace) int {
	i := s.src.Next()
	s.grow()
	if i < 0 {
		if s.sent {
			s.due = s.began + int64(p.delay(now, s.maxDelay))
		}
		s.hot = false
		s.drained()
	}
	return i
}

// drained notes that there is nothing more for now.
func (s *subscription) drained() { s.sent, s.live, s.behind = false, true, 0 }

// empty reports whether the source certainly has nothing.
func (s *subscription) empty() bool {
	n := s.src.Len()
	if n > maxProbe {
		return false
	}
	for i := range n {
		if s.src.Lag(i) > 0 {
			return false
		}
	}
	return true
}

// skips reports whether a subscription that lags gives up what it lags by.
func (s *subscription) skips(now, lag int64) bool {
	return s.skip && s.live && lag > skipLag && now-s.behind >= skipAfter
}

// fill makes the data frame of a run.
func (s *subscription) fill(now int64, i int, r *run, f *frame) {
	prev := s.chain[i]
	s.chain[i] = r.next
	s.credit.spend(len(r.text), r.count)
	s.began, s.sent = now, true
	f.sub, f.records = s, r.count
	f.buf = newBuffer(dataHead + len(s.id) + len(r.text))
	f.buf.b = appendData(f.buf.b, s.id, s.src.Position(i).Partition, prev, r.next, s.unanswered, r.text)
	s.unanswered = 0
}

// jump moves on past records and makes the message that says so.
func (s *subscription) jump(i int, to int64, reason string) text {
	from := s.chain[i]
	s.chain[i] = to
	s.src.Seek(i, to)
	return gapText(s.id, s.src.Position(i).Partition, from, to, reason)
}

// failed is a read that failed.
func (s *subscription) failed(i int, err error) (outcome, text) {
	oe, ok := errors.AsType[*broker.OffsetError](err)
	if ok && oe.Offset < oe.Start && s.onGap != gapFail {
		to := oe.Start
		if s.onGap == gapLatest {
			// The watermark is not past the end, and the position is where
			// the lag is counted from.
			to = max(oe.Start, oe.Offset+s.src.Lag(i))
		}
		return told, s.jump(i, to, "expired")
	}
	if errors.Is(err, broker.ErrUnknownTopic) {
		return ended, streamResetText("", s.id, s.topic)
	}
	return ended, failure("", s.id, s.conn, api.ProblemOf(err).At(s.topic, s.src.Position(i).Partition))
}

// gone is the end of a subscription whose topic is.
func (s *subscription) gone(err error) text {
	if errors.Is(err, broker.ErrUnknownTopic) {
		return streamResetText("", s.id, s.topic)
	}
	return failure("", s.id, s.conn, api.ProblemOf(err).At(s.topic, api.AnyPartition))
}

// positions are where the next frames begin.
func (s *subscription) positions() []broker.TailStart {
	out := make([]broker.TailStart, s.src.Len())
	for i := range out {
		out[i] = s.src.Position(i)
	}
	slices.SortFunc(out, func(a, b broker.TailStart) int { return int(a.Partition) - int(b.Partition) })
	return out
}
