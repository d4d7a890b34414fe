package controller

import "slices"

// Broker is what is known about one broker.
type Broker struct {
	ID int32
	// UUID names the data directory, Incarnation the life of the process.
	UUID, Incarnation string
	// Epoch names a life of the broker; no two lives in a cluster share one.
	Epoch int64
	Rack  string
	// Endpoints are where it can be reached.
	Endpoints []Endpoint
	// MinLevel and MaxLevel bound the feature levels that it works with. Both 0
	// stand for a broker that registered before level 3 and did not say.
	MinLevel, MaxLevel uint32
	// Fenced says that it leads nothing and is in sync with nobody; ShuttingDown
	// that it is on its way there by itself (KIP-841).
	Fenced, ShuttingDown bool
}

// Endpoint is one address of a broker.
type Endpoint struct {
	Name, Host string
	Port       int32
}

// levels are the feature levels that the broker works with.
func (b *Broker) levels() (low, high uint32) {
	if b.MaxLevel == 0 {
		return 1, clusterLevel - 1
	}
	return b.MinLevel, b.MaxLevel
}

// eligible is the one test that each election, creation and change of an ISR
// goes through: b is alive, stays, and is in the life meant (-1: in any).
func (b *Broker) eligible(epoch int64) bool {
	return b != nil && !b.Fenced && !b.ShuttingDown && (epoch == -1 || epoch == b.Epoch)
}

// Eligible reports whether the broker may lead and be in an ISR: registered, not
// fenced, not shutting down, and in the life that epoch names, where -1 stands
// for any (KIP-841, KIP-903).
func (s *State) Eligible(id int32, epoch int64) bool { return s.brokers[id].eligible(epoch) }

func (b *Broker) equal(o *Broker) bool {
	return b.ID == o.ID && b.UUID == o.UUID && b.Incarnation == o.Incarnation && b.Epoch == o.Epoch && b.Rack == o.Rack &&
		slices.Equal(b.Endpoints, o.Endpoints) && b.MinLevel == o.MinLevel && b.MaxLevel == o.MaxLevel &&
		b.Fenced == o.Fenced && b.ShuttingDown == o.ShuttingDown
}
