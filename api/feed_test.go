package api

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"leat/auth"
	"leat/broker"
	"leat/storage/record"
)

var anyLimits = Limits{Records: 1 << 30, Bytes: 1 << 30}

// logged is what a partition holds, as the encoder writes it.
func logged(t testing.TB, b *broker.Broker, topic string, form Form) (texts []string) {
	t.Helper()
	tail := follow(t, b, topic, broker.TailStart{})
	for tail.Next() >= 0 {
		res := tail.Read(0, 8<<20)
		if res.Err != nil {
			t.Fatal(res.Err)
		}
		walk := NewWalk(res.Section, func(_ int64, err error) error { return err })
		next := res.Section.NextOffset()
		err := walk.Each(Plan{From: tail.Position(0).Offset, End: next}, func(rec *record.Record) {
			texts = append(texts, string(AppendRecord(nil, 0, rec, form)))
		})
		if err != nil {
			t.Fatal(err)
		}
		walk.Release()
		res.Section.Release()
		tail.Seek(0, next)
	}
	return texts
}

// fillMixed produces records of all sizes in batches of all lengths.
func fillMixed(t testing.TB, b *broker.Broker, topic string, r *rand.Rand, records int) {
	t.Helper()
	for n := 0; n < records; {
		var values []string
		for range min(1+r.IntN(60), records-n) {
			size := 1 + r.IntN(300)
			if r.IntN(50) == 0 {
				size = r.IntN(300_000)
			}
			values = append(values, fmt.Sprintf("%d %s", n, filled(size)))
			n++
		}
		produce(t, b, topic, 0, values...)
	}
}

// Whatever the positions, limits, forms and concurrency, the runs that a reader
// gets one after the other are the log, each within its limits.
func TestFeedIsTheLog(t *testing.T) {
	for _, codec := range []string{"uncompressed", "zstd"} {
		for _, size := range []int{1, 200_000, 0} {
			t.Run(codec+" "+strconv.Itoa(size), func(t *testing.T) {
				b := openBroker(t)
				makeTopic(t, b, "t", 1, "compression.type", codec)
				fillMixed(t, b, "t", rand.New(rand.NewPCG(1, 2)), 400)
				forms := []Form{{}, {Lines: true}, {As: AsBase64}}
				var want [3][]string
				for i, form := range forms {
					want[i] = logged(t, b, "t", form)
				}
				feed := NewFeed(FeedOptions{MaxBytes: size})
				var readers sync.WaitGroup
				for n := range 12 {
					readers.Go(func() {
						r := rand.New(rand.NewPCG(3, uint64(n)))
						from := r.Int64N(400)
						readAll(t, b, feed, r, from, forms[n%3], want[n%3])
					})
				}
				readers.Wait()
				if kept := feed.bytes(); kept > feed.max {
					t.Errorf("%d bytes are kept, %d are allowed", kept, feed.max)
				}
			})
		}
	}
}

// readAll reads from an offset to the end with limits that change, and compares.
func readAll(t *testing.T, b *broker.Broker, feed *Feed, r *rand.Rand, from int64, form Form, want []string) {
	tail, err := b.Tail(auth.Anonymous, broker.TopicRef{Name: "t"}, []broker.TailStart{{Offset: from}}, false, func() {})
	if err != nil {
		t.Error(err)
		return
	}
	defer tail.Close()
	at := from
	for tail.Next() >= 0 {
		most := Limits{Records: r.IntN(200), Bytes: r.IntN(1 << uint(r.IntN(20)))}
		run, err := feed.Read(t.Context(), tail, 0, form, nil, most)
		if err != nil || run.From != at || run.Next <= at || run.Count() == 0 {
			t.Errorf("at %d: %+v, %v", at, run, err)
			return
		}
		if run.Count() > 1 && (run.Count() > most.Records || len(run.Text()) > most.Bytes) {
			t.Errorf("%d records, %d bytes of %+v", run.Count(), len(run.Text()), most)
		}
		var texts []string
		for i := range run.Count() {
			offset, text := run.Record(i)
			if offset != at+int64(i) || string(text) != want[offset] {
				t.Errorf("at %d: offset %d, %.80s", at, offset, text)
				return
			}
			texts = append(texts, string(text))
		}
		if string(run.Text()) != strings.Join(texts, ",") || run.HighWatermark != int64(len(want)) {
			t.Errorf("at %d: the text is not its records joined: %.80s", at, run.Text())
			return
		}
		at = run.Next
		tail.Seek(0, at)
	}
	if at != int64(len(want)) {
		t.Errorf("ended at %d of %d", at, len(want))
	}
}

// Readers that follow a partition while it is written to get every record once,
// although the text that they share grows under them.
func TestFeedAtTheTail(t *testing.T) {
	b := openBroker(t)
	makeTopic(t, b, "t", 1)
	feed := NewFeed(FeedOptions{MaxBytes: 300_000})
	const records = 1500
	var readers sync.WaitGroup
	for n := range 8 {
		readers.Go(func() {
			woken := make(chan struct{}, 1)
			tail, err := b.Tail(auth.Anonymous, broker.TopicRef{Name: "t"}, nil, true, func() {
				select {
				case woken <- struct{}{}:
				default:
				}
			})
			if err != nil {
				t.Error(err)
				return
			}
			defer tail.Close()
			r := rand.New(rand.NewPCG(5, uint64(n)))
			for at := int64(0); at < records; {
				if tail.Next() < 0 {
					<-woken
					continue
				}
				run, err := feed.Read(t.Context(), tail, 0, Form{}, nil, Limits{Records: 1 + r.IntN(50), Bytes: 1 << 20})
				if err != nil {
					t.Error(err)
					return
				}
				for i := range run.Count() {
					want := fmt.Sprintf(`,"value":%d,`, at)
					if offset, text := run.Record(i); offset != at || !bytes.Contains(text, []byte(want)) {
						t.Errorf("at %d: %d %s", at, offset, text)
						return
					}
					at++
				}
				tail.Seek(0, run.Next)
			}
		})
	}
	r := rand.New(rand.NewPCG(6, 6))
	for n := 0; n < records; {
		var values []string
		for range min(1+r.IntN(20), records-n) {
			values = append(values, strconv.Itoa(n))
			n++
		}
		produce(t, b, "t", 0, values...)
	}
	readers.Wait()
}

// Readers at one place share one text, and those that read on at the tail of a
// topic find records joined that came one by one.
func TestFeedShares(t *testing.T) {
	b := openBroker(t)
	makeTopic(t, b, "t", 1)
	feed := NewFeed(FeedOptions{})
	first := follow(t, b, "t", broker.TailStart{})
	for i := range 20 {
		produce(t, b, "t", 0, strconv.Itoa(i))
		run, err := feed.Read(t.Context(), first, 0, Form{}, nil, anyLimits)
		if err != nil || run.Count() != 1 {
			t.Fatalf("%+v, %v", run, err)
		}
		first.Seek(0, run.Next)
	}
	var runs [2]Run
	for i := range runs {
		second := follow(t, b, "t", broker.TailStart{Offset: 5})
		var err error
		if runs[i], err = feed.Read(t.Context(), second, 0, Form{}, nil, anyLimits); err != nil {
			t.Fatal(err)
		}
	}
	if runs[0].Count() != 15 || &runs[0].Text()[0] != &runs[1].Text()[0] {
		t.Errorf("%d records, and not the same memory", runs[0].Count())
	}
	var objects []struct {
		Offset int64 `json:"offset"`
	}
	if err := json.Unmarshal(append(append([]byte{'['}, runs[0].Text()...), ']'), &objects); err != nil || len(objects) != 15 || objects[0].Offset != 5 {
		t.Errorf("%v: %s", err, runs[0].Text())
	}
	text := bytes.Clone(runs[0].Text())
	produce(t, b, "t", 0, "more")
	run, err := feed.Read(t.Context(), first, 0, Form{}, nil, anyLimits)
	if err != nil || run.Count() != 1 || !bytes.Equal(runs[0].Text(), text) {
		t.Errorf("a run changed: %v", err)
	}
}

// A batch that expands to much is not expanded for each frame of its records.
func TestFeedExpandsAhead(t *testing.T) {
	b := openBroker(t)
	makeTopic(t, b, "t", 1, "compression.type", "zstd")
	values := make([]string, 40_000)
	for i := range values {
		values[i] = filled(150)
	}
	produce(t, b, "t", 0, values...)
	feed := NewFeed(FeedOptions{})
	tail := follow(t, b, "t", broker.TailStart{})
	for tail.Next() >= 0 {
		run, err := feed.Read(t.Context(), tail, 0, Form{}, nil, Limits{Records: 100, Bytes: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		tail.Seek(0, run.Next)
	}
	if frames, made := value(t, feed.shared)+value(t, feed.encoded), value(t, feed.encoded); made > 20 || frames < 100 {
		t.Errorf("text was made %v times for %v frames", made, frames)
	}
}

// What is read and expanded for streams counts in the budget of answers: a batch
// that has no room there is read once it has, and nothing stays reserved.
func TestFeedNoRoom(t *testing.T) {
	b := openBroker(t)
	makeTopic(t, b, "t", 1, "compression.type", "zstd", "max.message.bytes", "4000000")
	produce(t, b, "t", 0, "first")
	values := make([]string, 20_000) // more than a pooled buffer has room for
	for i := range values {
		values[i] = filled(150)
	}
	produce(t, b, "t", 0, values...)
	answers := NewBudget(4<<20, 0)
	feed := NewFeed(FeedOptions{Answers: answers})
	tail := follow(t, b, "t", broker.TailStart{})
	other := auth.Principal{Name: "other"}
	if err := answers.Take(other, 4<<20); err != nil {
		t.Fatal(err)
	}
	run, err := feed.Read(t.Context(), tail, 0, Form{}, nil, anyLimits)
	if err != nil || run.Count() != 1 {
		t.Fatalf("what is before the large batch: %d records, %v", run.Count(), err)
	}
	tail.Seek(0, run.Next)
	for range 3 {
		if run, err := feed.Read(t.Context(), tail, 0, Form{}, nil, anyLimits); !errors.Is(err, ErrNoRoom) || run.Next != 1 {
			t.Fatalf("%+v, %v", run, err)
		}
		if used := answers.Used(); used != 4<<20 {
			t.Fatalf("%d bytes are reserved", used)
		}
	}
	answers.Give(other, 4<<20)
	if run, err := feed.Read(t.Context(), tail, 0, Form{}, nil, anyLimits); err != nil || run.Count() == 0 {
		t.Errorf("%d records, %v", run.Count(), err)
	}
	if answers.Used() != 0 {
		t.Errorf("%d bytes stay reserved", answers.Used())
	}
}

// Records that were deleted are not given out, although their text is still
// there; the error says where the log begins.
func TestFeedForgetsDeleted(t *testing.T) {
	b := openBroker(t)
	makeTopic(t, b, "t", 1)
	produce(t, b, "t", 0, "0", "1", "2")
	produce(t, b, "t", 0, "3", "4")
	feed := NewFeed(FeedOptions{})
	tail := follow(t, b, "t", broker.TailStart{})
	if run, err := feed.Read(t.Context(), tail, 0, Form{}, nil, anyLimits); err != nil || run.Count() != 5 {
		t.Fatalf("%+v, %v", run, err)
	}
	res := b.DeleteRecords(t.Context(), auth.Anonymous, []broker.DeleteRecordsSpec{{Topic: "t", Offset: 4}})[0]
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	_, err := feed.Read(t.Context(), tail, 0, Form{}, nil, anyLimits)
	if oe, ok := errors.AsType[*broker.OffsetError](err); !ok || oe.Start != 4 {
		t.Fatalf("%v", err)
	}
	tail.Seek(0, 4)
	if run, err := feed.Read(t.Context(), tail, 0, Form{}, nil, anyLimits); err != nil || run.Count() != 1 || run.LogStart != 4 {
		t.Errorf("%+v, %v", run, err)
	}
	if err := b.DeleteTopics(t.Context(), auth.Anonymous, []broker.TopicRef{{Name: "t"}})[0].Err; err != nil {
		t.Fatal(err)
	}
	if _, err := feed.Read(t.Context(), tail, 0, Form{}, nil, anyLimits); !errors.Is(err, broker.ErrUnknownTopic) {
		t.Errorf("after the topic is gone: %v", err)
	}
}

// What nobody reads leaves by itself, and a feed without text has no timer.
func TestFeedAges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := NewFeed(FeedOptions{})
		f.mu.Lock()
		s := f.strand(strandKey{partition: 1})
		f.keep(s, &block{next: 1, text: make([]byte, 100)}, time.Now())
		f.mu.Unlock()
		time.Sleep(feedAge / 2)
		if f.bytes() == 0 {
			t.Error("gone too early")
		}
		time.Sleep(2 * feedAge)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.mu.bytes != 0 || len(f.mu.strands) != 0 || f.mu.recent.Len() != 0 || f.mu.sweep != nil {
			t.Errorf("%d bytes, %d strands are left", f.mu.bytes, len(f.mu.strands))
		}
	})
}

// A read that panics leaves no flight to wait for, no slot taken, and nothing
// behind.
func TestFeedSurvivesPanic(t *testing.T) {
	f := NewFeed(FeedOptions{})
	flight := make(chan struct{})
	f.mu.Lock()
	s := f.strand(strandKey{partition: 1})
	s.flights[0] = flight
	f.mu.making++
	f.mu.Unlock()
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_ = f.make(t.Context(), nil, 0, s, flight, &Run{Partition: 1}, anyLimits, 1) // there is no tail to read
	}()
	select {
	case <-flight:
	default:
		t.Error("others wait for the flight")
	}
	if f.mu.making != 0 || len(f.mu.strands) != 0 || len(f.slots) != 0 {
		t.Errorf("%d make text, %d strands, %d slots", f.mu.making, len(f.mu.strands), len(f.slots))
	}
}

// value is the value of a counter.
func value(t testing.TB, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue()
}
