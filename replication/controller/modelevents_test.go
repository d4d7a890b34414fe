package controller

import (
	"fmt"
	"slices"
	"strconv"

	"leat/storage"
)

// event is anything that can happen, most of it with arguments that fit.
func (m *model) event() Event {
	switch m.rng.IntN(20) {
	case 0, 1:
		return m.register()
	case 2, 3, 4:
		id, epoch := m.broker()
		return &Unfence{ID: id, Epoch: epoch}
	case 5, 6:
		id, epoch := m.broker()
		return &Fence{ID: id, Epoch: epoch}
	case 7:
		id, epoch := m.broker()
		return &ShutDown{ID: id, Epoch: epoch}
	case 8:
		if m.rng.IntN(5) > 0 {
			return m.alter()
		}
		id, epoch := m.broker()
		return &Unregister{ID: id, Epoch: epoch}
	case 9:
		return m.create()
	case 10, 11:
		return m.reassign()
	case 12:
		return m.configure()
	case 13:
		if m.rng.IntN(4) > 0 {
			return &Elect{IDs: m.ids(), Kind: Preferred}
		}
		return &Elect{IDs: m.ids(), Kind: Unclean}
	default:
		return m.alter()
	}
}

// broker is one of the registered, sometimes in a life that is over or unknown.
func (m *model) broker() (id int32, epoch int64) {
	ids := m.state.Brokers()
	if len(ids) == 0 || m.rng.IntN(50) == 0 {
		return 99, 1
	}
	id = ids[m.rng.IntN(len(ids))]
	epoch = m.state.brokers[id].Epoch
	if m.rng.IntN(30) == 0 {
		epoch += int64(m.rng.IntN(3)) - 1
	}
	return id, epoch
}

func (m *model) register() Event {
	m.lives++
	id := 1 + m.rng.Int32N(6)
	ev := &Register{
		ID: id, UUID: fmt.Sprint("u", id), Incarnation: fmt.Sprint("life", m.lives), PreviousEpoch: -1, Known: m.state.BrokerEpoch(id), Rack: fmt.Sprint("r", m.rng.IntN(3)),
		MinLevel: 1, MaxLevel: Level, ReadyNow: m.rng.IntN(4) == 0, Unclean: m.ids(),
	}
	if old := m.state.brokers[id]; old != nil {
		ev.UUID = old.UUID
		if m.rng.IntN(3) > 0 {
			ev.PreviousEpoch = old.Epoch
		}
		switch m.rng.IntN(15) {
		case 0:
			ev.Incarnation = old.Incarnation
		case 1:
			ev.UUID = fmt.Sprint("new", m.lives)
		case 2:
			ev.Known = int64(m.rng.IntN(int(m.state.nextEpoch))) - 1
		}
	}
	return ev
}

// ids are up to three partitions.
func (m *model) ids() (out []storage.ID) {
	for t, i := range m.state.partitions() {
		if m.rng.IntN(3) == 0 && len(out) < 3 {
			out = append(out, storage.ID{Topic: t.ID, Partition: int32(i)})
		}
	}
	return out
}

func (m *model) create() Event {
	if m.topics == 3 {
		id := id(1 + byte(m.rng.IntN(3)))
		if t := m.state.Topic(id); t != nil && t.Partitions.Len() < 3 {
			return &AddPartitions{Topics: []MorePartitions{{ID: id, Count: int32(t.Partitions.Len()) + 1}}}
		}
		return m.alter()
	}
	m.topics++
	return &CreateTopics{Topics: []NewTopic{{
		ID: id(m.topics), Name: fmt.Sprint("t", m.topics), Partitions: 1 + m.rng.Int32N(2), Replication: 1 + int16(m.rng.IntN(4)),
	}}}
}

func (m *model) reassign() Event {
	ev := &Reassign{}
	for _, id := range m.ids() {
		r := Reassignment{ID: id}
		if m.rng.IntN(3) > 0 {
			brokers := m.state.Brokers()
			m.rng.Shuffle(len(brokers), func(i, j int) { brokers[i], brokers[j] = brokers[j], brokers[i] })
			r.Replicas = brokers[:min(len(brokers), 1+m.rng.IntN(4))]
		}
		ev.Partitions = append(ev.Partitions, r)
	}
	return ev
}

func (m *model) configure() Event {
	values := map[string]*string{}
	if m.rng.IntN(2) == 0 {
		values[minISRConfig] = m.maybe(strconv.Itoa(m.rng.IntN(4)))
	}
	if m.rng.IntN(3) == 0 {
		values[uncleanConfig] = m.maybe(strconv.FormatBool(m.rng.IntN(4) == 0))
	}
	if m.rng.IntN(3) == 0 {
		return &SetBrokerConfigs{ID: AllBrokers, Values: values}
	}
	return &SetTopicConfigs{ID: id(1 + byte(m.rng.IntN(3))), Values: values}
}

func (m *model) maybe(v string) *string {
	if m.rng.IntN(3) == 0 {
		return nil
	}
	return &v
}

// alter is what the leader of a partition may ask for, now and then with something
// wrong in it.
func (m *model) alter() Event {
	for t, i := range m.state.partitions() {
		p := t.Partitions.At(i)
		leader := m.state.brokers[p.Leader]
		if leader == nil || m.rng.IntN(3) > 0 {
			continue
		}
		a := AlterPartition{ID: storage.ID{Topic: t.ID, Partition: int32(i)}, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.Epoch, Recovered: m.rng.IntN(2) == 0}
		if m.rng.IntN(20) == 0 {
			a.LeaderEpoch += m.rng.Int32N(3) - 1
		}
		if m.rng.IntN(20) == 0 {
			a.PartitionEpoch += m.rng.Int32N(3) - 1
		}
		for _, r := range p.Replicas {
			in := slices.Contains(p.ISR, r)
			if m.rng.IntN(3) == 0 {
				in = !in
			}
			if r == p.Leader {
				in = m.rng.IntN(30) > 0
			}
			member := Member{ID: r, Epoch: -1}
			if b := m.state.brokers[r]; b != nil && m.rng.IntN(3) > 0 {
				member.Epoch = b.Epoch
			}
			if in && (m.state.Eligible(r, member.Epoch) || m.rng.IntN(10) == 0) {
				a.ISR = append(a.ISR, member)
			}
		}
		return &AlterPartitions{Broker: p.Leader, BrokerEpoch: leader.Epoch, Partitions: []AlterPartition{a}}
	}
	asker, epoch := m.broker()
	return &AlterPartitions{Broker: asker, BrokerEpoch: epoch, Partitions: []AlterPartition{{ID: storage.ID{Topic: id(byte(m.rng.IntN(4)))}}}}
}
