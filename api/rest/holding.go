package rest

import (
	"net/http"

	"leat/api"
	"leat/auth"
)

// answerBytes is what every answer with records holds: the first buffers of a
// walk, and that of the text.
const answerBytes = 192 << 10

// holding is what an answer counts for in the budget of answers.
type holding struct {
	budget *api.Budget
	who    auth.Principal
	held   int64
}

func (s *Server) holding(r *http.Request) holding {
	return holding{budget: s.opts.Answers, who: principal(r)}
}

// hold counts what the answer is made in, which has total bytes beside
// answerBytes. What was taken once is kept to the end: what the plan had room
// for the answer has, too.
func (h *holding) hold(total int64) error {
	more := answerBytes + total - h.held
	if more <= 0 {
		return nil
	}
	if err := h.budget.Grow(h.who, h.held, more); err != nil {
		return err
	}
	h.held += more
	return nil
}

func (h *holding) release() {
	h.budget.Give(h.who, h.held)
	h.held = 0
}
