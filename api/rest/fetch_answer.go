package rest

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"leat/api"
	"leat/broker"
	"leat/storage/record"
)

// headers says with what is known before the first record where the answer
// ends. next is of a single partition.
func (f *fetching) headers(next int64) {
	h := f.w.Header()
	f.scan.headers(h)
	if f.o.whole() {
		h.Set("Cursor", f.cursor().String())
	} else {
		h.Set("Next-Offset", strconv.FormatInt(next, 10))
		h.Set("High-Watermark", strconv.FormatInt(f.parts[0].HighWatermark, 10))
		h.Set("Log-Start-Offset", strconv.FormatInt(f.parts[0].LogStart, 10))
	}
	if len(f.gaps) > 0 {
		var text []string
		for _, g := range f.gaps {
			text = append(text, strconv.Itoa(int(g.partition))+":"+strconv.FormatInt(g.from, 10)+"-"+strconv.FormatInt(g.to, 10))
		}
		h.Set("Gap", strings.Join(text, ", "))
	}
}

// unsay takes back what headers said, for an answer that fails after all: the
// client must not read on behind records that it did not get.
func (f *fetching) unsay() {
	for _, name := range []string{"Cursor", "Next-Offset", "High-Watermark", "Log-Start-Offset", "Gap", filterScanned, filterFailed} {
		f.w.Header().Del(name)
	}
}

// cursor is where to read on in the topic.
func (f *fetching) cursor() api.Cursor {
	return api.Cursor{Topic: f.topic.ID, At: slices.Concat(f.at, unread(f.o.cursor.At, f.at))}
}

// unread is what a cursor said of partitions that are not read now: the next
// one says the same.
func unread(before, now []broker.TailStart) (out []broker.TailStart) {
	for _, b := range before {
		// Both are in the order of the partitions.
		for len(now) > 0 && now[0].Partition < b.Partition {
			now = now[1:]
		}
		if len(now) == 0 || now[0].Partition != b.Partition {
			out = append(out, b)
		}
	}
	return out
}

// answer writes the records of the plans.
func (f *fetching) answer(records int) error {
	f.headers(f.at[0].Offset)
	if f.r.Method == http.MethodHead {
		f.w.Header().Set("Content-Type", f.o.media)
		f.w.WriteHeader(http.StatusOK)
		return nil
	}
	out := newChunks(f.w, http.StatusOK, f.o.media)
	defer out.release()
	lines := f.o.media == mediaNDJSON
	switch f.o.media {
	case mediaJSON:
		out.text(`{"records":[`)
	case api.MediaEventBatch:
		out.text("[")
	}
	count := 0
	for i := range f.parts {
		p := &f.parts[i]
		if p.plan.Records == 0 {
			continue
		}
		f.beginWalk(p)
		err := p.walk.Each(p.plan, func(rec *record.Record) {
			if count++; count > 1 && !lines {
				out.text(",")
			}
			out.buf = api.AppendRecord(out.buf, f.at[p.index].Partition, rec, f.o.form)
			if lines {
				out.text("\n")
			}
			out.flushFull()
		})
		p.endWalk()
		if err != nil {
			if !out.sent {
				f.unsay()
				return err
			}
			// What is out cannot be taken back, only broken off.
			panic(http.ErrAbortHandler)
		}
	}
	switch f.o.media {
	case mediaJSON:
		out.text("]")
		f.tail(out)
		f.scan.tail(out)
		out.text("}\n")
	case api.MediaEventBatch:
		out.text("]\n")
	}
	f.s.metrics.recordsOut.Add(float64(records))
	out.finish()
	return nil
}

// tail writes what follows the records.
func (f *fetching) tail(out *chunks) {
	if !f.o.whole() {
		out.text(`,"next_offset":`)
		out.integer(f.at[0].Offset)
		out.text(`,"high_watermark":`)
		out.integer(f.parts[0].HighWatermark)
		out.text(`,"log_start_offset":`)
		out.integer(f.parts[0].LogStart)
		if len(f.gaps) > 0 {
			out.text(`,"gap":`)
			out.buf = appendGap(out.buf, f.gaps...)
		}
		return
	}
	out.text(`,"cursor":"`)
	out.buf = f.cursor().AppendText(out.buf)
	out.text(`","partitions":[`)
	slices.SortFunc(f.parts, func(a, b part) int { return cmp.Compare(a.index, b.index) })
	for i := range f.parts {
		if i > 0 {
			out.text(",")
		}
		out.text(`{"partition":`)
		out.integer(int64(f.at[i].Partition))
		out.text(`,"next_offset":`)
		out.integer(f.at[i].Offset)
		out.text(`,"high_watermark":`)
		out.integer(f.parts[i].HighWatermark)
		out.text(`,"log_start_offset":`)
		out.integer(f.parts[i].LogStart)
		out.text("}")
		out.flushFull()
	}
	out.text("]")
	if len(f.gaps) > 0 {
		out.text(`,"gaps":[`)
		for i, g := range f.gaps {
			if i > 0 {
				out.text(",")
			}
			out.buf = appendGap(out.buf, g)
		}
		out.text("]")
	}
}

// appendGap writes gaps of one partition, that follow one another, as one.
func appendGap(dst []byte, gaps ...gap) []byte {
	dst = append(dst, `{"partition":`...)
	dst = strconv.AppendInt(dst, int64(gaps[0].partition), 10)
	dst = append(dst, `,"from":`...)
	dst = strconv.AppendInt(dst, gaps[0].from, 10)
	dst = append(dst, `,"to":`...)
	dst = strconv.AppendInt(dst, gaps[len(gaps)-1].to, 10)
	return append(dst, '}')
}
