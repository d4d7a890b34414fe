package broker

import "time"

// roundTimes says when the rounds of a leadership that are not applied yet were
// appended, in their order.
type roundTimes struct {
	epoch  int32
	rounds []roundTime
}

// roundTime is a round that ends at an offset.
type roundTime struct {
	end   int64
	began time.Time
}

// lead says who leads. The rounds of a leadership that has ended are forgotten: what
// comes to be where they were may be another's.
func (r *roundTimes) lead(epoch int32, leads bool) {
	if !leads || epoch != r.epoch {
		r.epoch, r.rounds = epoch, nil
	}
}

func (r *roundTimes) append(end int64, began time.Time) {
	r.rounds = append(r.rounds, roundTime{end, began})
}

// applied says that everything up to an offset is applied, and finds when the round
// that ends there was appended.
func (r *roundTimes) applied(to int64) (began time.Time, ok bool) {
	n := 0
	for ; n < len(r.rounds) && r.rounds[n].end <= to; n++ {
		began, ok = r.rounds[n].began, r.rounds[n].end == to
	}
	if r.rounds = r.rounds[n:]; len(r.rounds) == 0 {
		r.rounds = nil
	}
	return began, ok
}
