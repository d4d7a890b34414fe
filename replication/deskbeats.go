package replication

import (
	"time"

	"leat/replication/controller"
	"leat/replication/quorum"
)

// beats are heartbeats whose answers wait until it is sure that this node still
// decided when they came. An answer renews a lease, which may only be granted by
// who has to be asked before others are elected: a process that was stopped for a
// while does not know yet, when it goes on, that another one has taken over.
type beats struct {
	// barrier is the read of the quorum that is under way: when it ends well, this
	// node led at some time after the first of asked had come, and so a
	// controller after this one grants each broker a full session from then on.
	barrier quorum.ProposalID
	asked   []Answer
	// next came after the barrier, and needs another one.
	next []Answer
}

func (b *beats) len() int { return len(b.asked) + len(b.next) }

// Heartbeat takes a sign of life of a broker. The answer is given at once if later
// is false, else it is among those of a Done. No more than twice the limit wait.
func (d *Desk) Heartbeat(id quorum.ProposalID, h controller.Heartbeat, now time.Duration) (a Answer, later bool) {
	a.ID = id
	if d.active == nil {
		a.Err = d.notController()
		return a, false
	}
	reply, events := d.active.Heartbeat(h, now)
	d.run(events, now)
	if d.beats.len() >= 2*d.o.Limit {
		a.Err = ErrTooManyProposals
		return a, false
	}
	a.Heartbeat = reply
	d.beats.next = append(d.beats.next, a)
	if len(d.beats.asked) == 0 {
		if refused := d.confirm(); len(refused) > 0 {
			return refused[0], false
		}
	}
	return Answer{}, true
}

// confirm asks the quorum for what waits, if anything does, and returns what it
// cannot be asked for.
func (d *Desk) confirm() []Answer {
	b := &d.beats
	b.asked, b.next = b.next, nil
	if len(b.asked) == 0 {
		return nil
	}
	b.barrier = d.o.NewID()
	if err := d.core.Read(b.barrier); err != nil {
		return d.refuseBeats()
	}
	return nil
}

// confirmed gives the answers of the barrier that has ended, and begins the next.
func (d *Desk) confirmed() []Answer {
	answers := d.beats.asked
	return append(answers, d.confirm()...)
}

// refuseBeats answers all that wait: it is not sure who decides.
func (d *Desk) refuseBeats() []Answer {
	answers := append(d.beats.asked, d.beats.next...)
	d.beats = beats{}
	for i := range answers {
		answers[i] = Answer{ID: answers[i].ID, Err: d.notController()}
	}
	return answers
}
