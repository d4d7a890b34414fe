package sim

import (
	"errors"
	"strconv"

	"leat/replication/controller"
	"leat/storage"
)

// renewal deletes a topic and makes it again under the same name, with another id,
// while clients use it.
type renewal struct {
	w              *world
	writer, reader addr
	id             storage.TopicID // that is in use
	producer       *producer
	consumer       *consumer
}

const renewedName = "renewed"

func (w *world) addRenewal(next func() addr) {
	r := &renewal{w: w, writer: next(), reader: next()}
	w.at(0, nil, r.step)
}

// step does what comes next with the topic that has the name.
func (r *renewal) step() {
	w := r.w
	if w.phase != phaseFaults && w.phase != phaseStart {
		return
	}
	w.at(w.between(w.cfg.renew/2, w.cfg.renew*3/2), nil, r.step)
	w.describe(adminAt, func(s *controller.State) {
		if s == nil || w.phase == phaseQuiet {
			return
		}
		t := s.TopicNamed(renewedName)
		switch {
		case t == nil:
			r.create()
		case t.ID == r.id:
			r.remove()
		default:
			r.use(t)
		}
	})
}

// create asks for a topic with an id that is new in each attempt: one that comes
// late must not bring back what was deleted.
func (r *renewal) create() {
	w := r.w
	w.admin(adminAt, &controller.CreateTopics{Topics: []controller.NewTopic{{
		ID: w.newTopicID(), Name: renewedName, Partitions: 1, Replication: int16(min(w.cfg.rf, w.here())),
		Configs: map[string]string{"min.insync.replicas": strconv.Itoa(w.cfg.minISR), "unclean.leader.election.enable": strconv.FormatBool(w.cfg.unclean)},
	}}}, func(reply controller.Reply, err error) {
		if err == nil && errors.Join(reply.Errs...) == nil {
			w.counts.renewed++
		}
	})
}

func (r *renewal) use(t *controller.Topic) {
	w, id := r.w, partID{Topic: t.ID}
	r.end()
	r.id = t.ID
	r.producer = w.addProducer(r.writer, id, pick(w.rng, w.cfg.acks...))
	r.consumer = w.addConsumer(r.reader, id)
}

// end has nobody use the topic any more.
func (r *renewal) end() {
	if r.producer != nil {
		r.producer.done, r.consumer.done = true, true
	}
}

func (r *renewal) remove() {
	w := r.w
	if w.rng.IntN(2) == 0 { // else they use it to the last
		r.end()
	}
	w.admin(adminAt, &controller.DeleteTopics{IDs: []storage.TopicID{r.id}}, func(reply controller.Reply, err error) {
		if err == nil && errors.Join(reply.Errs...) == nil {
			w.counts.topicsDeleted++
		}
	})
}
