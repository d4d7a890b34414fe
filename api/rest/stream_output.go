package rest

import (
	"context"
	"strconv"
	"time"

	"leat/api"
)

// position appends where the stream stands: an offset in a partition, a cursor
// in a topic.
func (st *stream) position() { st.positionAt(api.AnyPartition, 0) }

// positionAt is position if one partition stood at the offset.
func (st *stream) positionAt(partition int32, offset int64) {
	st.at = st.at[:0]
	for i := range min(st.tail.Len(), st.most()) {
		at := st.tail.Position(i)
		if at.Partition == partition {
			at.Offset = offset
		}
		st.at = append(st.at, at)
	}
	if !st.o.whole() {
		st.integer(st.at[0].Offset)
		return
	}
	st.at = append(st.at, st.others...)
	st.out = api.Cursor{Topic: st.id, At: st.at}.AppendText(st.out)
}

// most is how many partitions the stream may follow.
func (st *stream) most() int { return api.MaxCursorPartitions - len(st.others) }

// take gets a buffer to append to; flush gives it back.
func (st *stream) take() {
	if st.out == nil {
		st.out = *chunkPool.Get().(*[]byte)
	}
}

func (st *stream) text(s string) { st.out = append(st.out, s...) }

func (st *stream) integer(n int64) { st.out = strconv.AppendInt(st.out, n, 10) }

// raw appends p; what is large goes to the client without a copy.
func (st *stream) raw(p []byte) {
	if len(p) < chunkSize {
		if len(st.out)+len(p) > chunkSize {
			st.send()
		}
		st.out = append(st.out, p...)
		return
	}
	st.send()
	st.write(p)
}

// send writes what there is.
func (st *stream) send() {
	if len(st.out) > 0 {
		st.write(st.out)
		st.out = st.out[:0]
	}
}

func (st *stream) write(p []byte) {
	if st.err == nil {
		_, st.err = st.w.Write(p)
	}
}

// flush sends what there is to the client and gives the buffer back.
func (st *stream) flush() {
	if len(st.out) > 0 {
		st.frame.pause()
		st.send()
		if st.err == nil {
			st.err = st.w.flush()
		}
		st.last = time.Now()
		st.s.pacer.sent(st.last)
		st.s.metrics.sent.Add(float64(st.w.sent - st.w.counted))
		st.w.counted = st.w.sent
	}
	if st.out != nil && cap(st.out) <= 4*chunkSize {
		p := st.out[:0]
		chunkPool.Put(&p)
	}
	st.out = nil
	if st.r.ProtoMajor > 1 {
		// There a deadline ends the stream also while nothing is written.
		st.w.relax()
	}
}

// lag lets some time pass while others have the memory that the next records
// need. What was read before them does not wait, and the stream shows that it
// lives.
func (st *stream) lag(ctx context.Context) {
	if time.Since(st.last) >= st.silence {
		st.frame.beat()
	}
	if st.flush(); st.err != nil {
		return
	}
	timer := time.NewTimer(api.NoRoomWait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (st *stream) count(records int) {
	st.s.metrics.recordsOut.Add(float64(records))
	st.s.metrics.streams[st.kind].records.Add(float64(records))
}
