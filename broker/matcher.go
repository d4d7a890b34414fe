package broker

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"

	"leat/storage/record"
)

const (
	// filterSlice is how long a reader evaluates its filter before others have
	// their turn.
	filterSlice = 20 * time.Millisecond
	// recordTime is about how long a filter with loops may take for a record.
	recordTime = 500 * time.Millisecond
	// interruptEvery is after how many rounds of a loop the time is looked at.
	interruptEvery = 16
	// maxRegexWork bounds the bytes of a record times the instructions of the
	// filter's regular expressions: about half a second.
	maxRegexWork = 50_000_000
	// keptFilters is how many compiled filters wait for the next request with
	// the same text.
	keptFilters = 64
)

// filters keeps what all filters of a broker share. It is safe for concurrent
// use.
type filters struct {
	// slots bound how many filters are evaluated or compiled at a time, so that
	// half of the processors is always left to others. The others wait in turn.
	slots chan struct{}
	mu    struct {
		sync.Mutex
		// byText holds elements of recent, whose values are *Filter; the one used
		// last is the first.
		byText map[string]*list.Element
		recent list.List
	}
}

func newFilters() *filters {
	fs := &filters{slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
	fs.mu.byText = map[string]*list.Element{}
	return fs
}

// take waits for a slot.
func (fs *filters) take(ctx context.Context) error {
	select {
	case fs.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case fs.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (fs *filters) give() { <-fs.slots }

// kept is the filter of a text that was compiled lately, or nil.
func (fs *filters) kept(text string) *Filter {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	e := fs.mu.byText[text]
	if e == nil {
		return nil
	}
	fs.mu.recent.MoveToFront(e)
	return e.Value.(*Filter)
}

// keep keeps f, unless another of the same text is kept, which it returns.
func (fs *filters) keep(f *Filter) *Filter {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if e := fs.mu.byText[f.text]; e != nil {
		return e.Value.(*Filter)
	}
	fs.mu.byText[f.text] = fs.mu.recent.PushFront(f)
	if oldest := fs.mu.recent.Back(); fs.mu.recent.Len() > keptFilters {
		delete(fs.mu.byText, fs.mu.recent.Remove(oldest).(*Filter).text)
	}
	return f
}

// Filter is CompileFilter for readers of this broker: one text is compiled
// once while it is in use, and compiling waits for its turn among the filters.
// Errors: also ctx's.
func (b *Broker) Filter(ctx context.Context, text string) (*Filter, error) {
	if f := b.filters.kept(text); f != nil {
		return f, nil
	}
	if err := b.filters.take(ctx); err != nil {
		return nil, err
	}
	defer b.filters.give()
	f, err := CompileFilter(text)
	if err != nil {
		return nil, err
	}
	return b.filters.keep(f), nil
}

// Matcher applies a filter to the records of one reader. It is used by one
// goroutine at a time, between Begin and End.
type Matcher struct {
	filter *Filter
	broker *Broker
	topic  string
	ctx    context.Context // of Begin
	held   bool            // there is a slot
	// budget is the reader's time, from its first record on. until is when it is
	// over, slice when others have a turn; both are zero before that record.
	budget       time.Duration
	until, slice time.Time
	// limit ends the loops of a record that takes too long; it is good for
	// several records and is made anew at renew.
	limit  context.Context
	cancel context.CancelFunc
	renew  time.Time

	partition int32
	rec       *record.Record
	value     ref.Val // nil until it is asked for
}

// Matcher makes a Matcher for the records of a topic. A nil filter gives nil,
// which matches everything.
func (b *Broker) Matcher(f *Filter, topic string) *Matcher {
	if f == nil {
		return nil
	}
	return &Matcher{filter: f, broker: b, topic: topic}
}

// Matcher makes a Matcher for the records of the tail's topic. A nil filter
// gives nil.
func (t *Tail) Matcher(f *Filter) *Matcher { return t.broker.Matcher(f, t.topic.name) }

// Begin waits until the filter may be evaluated, at most until ctx ends, whose
// cause it then returns; then there is nothing to End. Over reports when budget
// is over. Nothing may be held meanwhile that others need.
func (m *Matcher) Begin(ctx context.Context, budget time.Duration) error {
	if err := m.broker.filters.take(ctx); err != nil {
		return err
	}
	m.ctx, m.held, m.budget = ctx, true, budget
	m.until, m.slice = time.Time{}, time.Time{}
	return nil
}

// End lets others have the turn.
func (m *Matcher) End() {
	if m.held {
		m.broker.filters.give()
		m.held = false
	}
	m.rec, m.value, m.ctx = nil, nil, nil
	if m.cancel != nil {
		m.cancel()
		m.cancel, m.limit = nil, nil
	}
}

// Over reports whether the time is over, which it is not before the first
// record, so that every reader gets on; then only End may follow. It gives other
// filters their turn when that has come.
func (m *Matcher) Over() bool {
	now := time.Now()
	switch {
	case m.until.IsZero():
		m.until, m.slice = now.Add(m.budget), now.Add(filterSlice)
		return false
	case now.Before(m.slice):
		return !now.Before(m.until)
	case !now.Before(m.until), m.ctx.Err() != nil:
		return true
	}
	m.broker.filters.give()
	m.held = false
	wait := time.NewTimer(time.Until(m.until))
	defer wait.Stop()
	select {
	case m.broker.filters.slots <- struct{}{}:
		m.held = true
		m.slice = time.Now().Add(filterSlice)
		return m.ctx.Err() != nil
	case <-m.ctx.Done():
	case <-wait.C:
	}
	return true
}

// Verdict is what a filter says of a record.
type Verdict uint8

const (
	// Unmatched is a record that the filter leaves out.
	Unmatched Verdict = iota
	// Matched is a record that the filter lets through.
	Matched
	// Failed is a record of which the filter can say nothing: it asks for a
	// member that is not there, or compares what cannot be compared. It is left
	// out.
	Failed
)

// Match evaluates the filter over a record, which it does not keep. The error
// is ErrFilterBudget with what took too long.
func (m *Matcher) Match(partition int32, rec *record.Record) (Verdict, error) {
	m.partition, m.rec, m.value = partition, rec, nil
	if m.filter.regex > 0 && recordSize(rec)*m.filter.regex > maxRegexWork {
		return Failed, m.spent("is too long for the regular expressions of the filter")
	}
	var out ref.Val
	var err error
	if m.filter.loops {
		m.limitLoops()
		out, _, err = m.filter.program.ContextEval(m.limit, m)
	} else {
		out, _, err = m.filter.program.Eval(m)
	}
	verdict := Unmatched
	switch yes, ok := out.(types.Bool); {
	case err == nil && ok && bool(yes):
		verdict = Matched
	case err == nil && ok:
	case err == nil:
		verdict = Failed
	default:
		verdict = Failed
		if canceled, is := errors.AsType[interpreter.EvalCancelledError](err); is && canceled.Cause == interpreter.CostLimitExceeded {
			return verdict, m.spent(fmt.Sprintf("takes the filter more than %d steps", maxFilterSteps))
		}
		if errors.Is(err, interpreter.InterruptError{}) {
			m.renew = time.Time{}
			return verdict, m.spent("takes the filter too long")
		}
	}
	m.broker.metrics.filtered[verdict].Inc()
	return verdict, nil
}

func (m *Matcher) spent(why string) error {
	return fmt.Errorf("%w: the record at offset %d of partition %d %s; read on behind it, or with a filter that does less",
		ErrFilterBudget, m.rec.Offset, m.partition, why)
}

// limitLoops sees that limit leaves the next record at least recordTime.
func (m *Matcher) limitLoops() {
	now := time.Now()
	if m.cancel != nil && now.Before(m.renew) {
		return
	}
	if m.cancel != nil {
		m.cancel()
	}
	m.limit, m.cancel = context.WithTimeout(m.broker.done, 2*recordTime)
	m.renew = now.Add(recordTime)
}

func recordSize(rec *record.Record) int {
	n := len(rec.Key) + len(rec.Value)
	for i := range rec.Headers {
		n += len(rec.Headers[i].Key) + len(rec.Headers[i].Value)
	}
	return n
}

// ResolveName gives the expression its variables, as it asks for them.
func (m *Matcher) ResolveName(name string) (any, bool) {
	switch name {
	case filterKey:
		return textOrNull(m.rec.Key, "the key"), true
	case filterKeyBytes:
		return bytesOrNull(m.rec.Key), true
	case filterValueStr:
		return textOrNull(m.rec.Value, "the value"), true
	case filterValueBytes:
		return bytesOrNull(m.rec.Value), true
	case filterValue:
		if m.value == nil {
			if m.value = ref.Val(types.NullValue); m.rec.Value != nil {
				m.value = jsonValue(m.rec.Value)
			}
		}
		return m.value, true
	case filterHeaders:
		return &lazyMap{from: headerList(m.rec.Headers)}, true
	case filterOffset:
		return types.Int(m.rec.Offset), true
	case filterPartition:
		return types.Int(m.partition), true
	case filterTimestamp:
		return types.Int(m.rec.Timestamp), true
	case filterTopic:
		return types.String(m.topic), true
	}
	return nil, false
}

// Parent is cel.Activation's: there are no other variables.
func (m *Matcher) Parent() cel.Activation { return nil }
