package api

import (
	"context"
	"fmt"
	"time"

	"leat/broker"
)

// FilterPatience is how long a reader waits for its first turn among the
// filters.
const FilterPatience = 5 * time.Second

// ErrFiltersBusy is the answer to a reader that had no turn in time. It is a
// *Problem.
var ErrFiltersBusy error = Overloaded("the filters of other readers take all the time that is set aside for filters")

// CompileFilter makes the filter that a reader asks for. The errors are
// *Problem about the parameter filter.
func CompileFilter(ctx context.Context, b *broker.Broker, text string) (*broker.Filter, error) {
	turn, cancel := context.WithTimeoutCause(ctx, FilterPatience, ErrFiltersBusy)
	defer cancel()
	f, err := b.Filter(turn, text)
	if err != nil {
		return nil, filterProblem(err)
	}
	return f, nil
}

// EmptyFilter is the error of a filter without a text. It is more likely a
// mistake than the wish to have everything.
func EmptyFilter() error {
	return filterProblem(fmt.Errorf("%w: it is empty", broker.ErrInvalidFilter))
}

func filterProblem(err error) error {
	p := *ProblemOf(err)
	p.Parameter = "filter"
	return &p
}
