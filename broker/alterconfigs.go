package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"leat/auth"
	"leat/replication/controller"
)

// TopicConfigs lists the configs in force for a topic, by name.
func (b *Broker) TopicConfigs(_ context.Context, p auth.Principal, name string) ([]ConfigEntry, error) {
	t, err := b.resolve(p, auth.DescribeConfigs, TopicRef{Name: name})
	if err != nil {
		return nil, err
	}
	return b.configs().topicEntries(t.Configs), nil
}

// AlterTopicConfigs changes configs of a topic, all or none; they are in force
// when it returns. With validateOnly nothing changes.
func (b *Broker) AlterTopicConfigs(ctx context.Context, p auth.Principal, name string, changes []ConfigChange, validateOnly bool) error {
	return b.changeTopic(ctx, p, name, validateOnly, func(t *controller.Topic) (map[string]*string, error) {
		return resolveChanges(changes, t.Configs, topicLevel{b.configs(), t.Configs})
	})
}

// ReplaceTopicConfigs sets the configs of a topic to values, all or none: what
// values does not name goes back to its default.
func (b *Broker) ReplaceTopicConfigs(ctx context.Context, p auth.Principal, name string, values map[string]string, validateOnly bool) error {
	return b.changeTopic(ctx, p, name, validateOnly, func(t *controller.Topic) (map[string]*string, error) {
		return resolveChanges(replacing(t.Configs, values), t.Configs, topicLevel{b.configs(), t.Configs})
	})
}

func (b *Broker) changeTopic(ctx context.Context, p auth.Principal, name string, validateOnly bool, plan func(*controller.Topic) (map[string]*string, error)) error {
	if err := b.take(ctx, b.admin); err != nil {
		return err
	}
	defer b.admin.give()
	t, err := b.resolve(p, auth.AlterConfigs, TopicRef{Name: name})
	if err != nil {
		return err
	}
	values, err := plan(t)
	if err != nil || validateOnly {
		return err
	}
	return b.setConfigsInTurn(ctx, t.ID, values)
}

// setConfigsInTurn changes configs of a topic, for who has the turn of b.admin.
func (b *Broker) setConfigsInTurn(ctx context.Context, id TopicID, values map[string]*string) error {
	if err := b.commit(ctx, &controller.SetTopicConfigs{ID: id, Values: values}); err != nil {
		return err
	}
	b.configure(b.proposer.State().Topic(id))
	b.checkSoon()
	return nil
}

// commit proposes an event of one item. What follows from it must be done whether or
// not the client is still there.
func (b *Broker) commit(ctx context.Context, ev controller.Event) error {
	reply, err := b.proposer.Propose(context.WithoutCancel(ctx), ev)
	if err != nil {
		return err
	}
	return reply.Errs[0]
}

// configure puts the configs of a topic into force.
func (b *Broker) configure(t *controller.Topic) {
	s := b.configs().settings(t.Configs)
	for i := range t.Partitions.Len() {
		if part, err := b.partition(t, int32(i)); err == nil {
			part.configure(s)
		}
	}
}

// ConfigResources are what has configs of its own: the topics that p may
// describe, sorted, and the nodes (KIP-1142). It needs auth.DescribeConfigs on
// the cluster.
func (b *Broker) ConfigResources(ctx context.Context, p auth.Principal) (topics []string, nodes []Node, err error) {
	if err := b.allowedCluster(p, auth.DescribeConfigs); err != nil {
		return nil, nil, err
	}
	return b.TopicNames(ctx, p), b.Nodes(), nil
}

// BrokerConfigs lists the configs in force for a server, by name; for node -1
// what was set for all servers while they ran, as Kafka does. An unknown node is
// ErrUnknownBroker.
func (b *Broker) BrokerConfigs(_ context.Context, p auth.Principal, node int32) ([]ConfigEntry, error) {
	if err := b.allowedCluster(p, auth.DescribeConfigs); err != nil {
		return nil, err
	}
	if err := b.checkNode(node); err != nil {
		return nil, err
	}
	if node == controller.AllBrokers {
		s := serverConfigs{cluster: b.configs().cluster, static: b.static}
		return slices.DeleteFunc(s.entries(), func(e ConfigEntry) bool { return e.Source != SourceDynamicDefault }), nil
	}
	entries := b.configsOf(node).entries()
	if node == b.NodeID() {
		entries = append(entries, b.fixedConfigs()...)
		slices.SortFunc(entries, byName)
	}
	return entries, nil
}

func (b *Broker) checkNode(node int32) error {
	if _, ok := b.proposer.State().Broker(node); !ok && node != controller.AllBrokers {
		return fmt.Errorf("%w: %d", ErrUnknownBroker, node)
	}
	return nil
}

// fixed are the configs of a server that follow from how it was started.
var fixed = []configDef{
	{"", "advertised.listeners", ConfigString, "", nil, "The address of the Kafka protocol that clients are told."},
	{"", "broker.id", ConfigInt, "", nil, "The id of this node, as node.id."},
	{"", "log.dirs", ConfigString, "", nil, "The data directory."},
	{"", "node.id", ConfigInt, "", nil, "The id of this node."},
}

func (b *Broker) fixedConfigs() []ConfigEntry {
	id := strconv.Itoa(int(b.NodeID()))
	values := map[string]string{
		"advertised.listeners": "PLAINTEXT://" + net.JoinHostPort(b.opts.Host, strconv.Itoa(int(b.opts.Port))),
		"broker.id":            id,
		"log.dirs":             b.opts.Path,
		"node.id":              id,
	}
	out := make([]ConfigEntry, len(fixed))
	for i, d := range fixed {
		v := values[d.server]
		out[i] = ConfigEntry{
			Name: d.server, Value: v, Source: SourceServer, Type: d.kind, ReadOnly: true, Doc: d.doc,
			Synonyms: []ConfigSynonym{{Name: d.server, Value: v, Source: SourceServer}},
		}
	}
	return out
}

// AlterBrokerConfigs changes configs of a server, or with node -1 of all, all or
// none. They are in force when it returns, for every topic that does not set
// its own, and stay so over a restart; what was set at the start ranks below
// them. With validateOnly nothing changes.
func (b *Broker) AlterBrokerConfigs(ctx context.Context, p auth.Principal, node int32, changes []ConfigChange, validateOnly bool) error {
	return b.changeBroker(ctx, p, node, validateOnly, func(set map[string]string, s serverConfigs) (map[string]*string, error) {
		return resolveChanges(changes, set, serverLevel{s})
	})
}

// ReplaceBrokerConfigs sets the configs of a server, or with node -1 of all, to
// values, all or none: what values does not name goes back to what is in force
// without it.
func (b *Broker) ReplaceBrokerConfigs(ctx context.Context, p auth.Principal, node int32, values map[string]string, validateOnly bool) error {
	return b.changeBroker(ctx, p, node, validateOnly, func(set map[string]string, s serverConfigs) (map[string]*string, error) {
		named, err := checkServerConfigs(values)
		if err != nil {
			return nil, err
		}
		return resolveChanges(replacing(set, named), set, serverLevel{s})
	})
}

func (b *Broker) changeBroker(ctx context.Context, p auth.Principal, node int32, validateOnly bool, plan func(map[string]string, serverConfigs) (map[string]*string, error)) error {
	if err := b.allowedCluster(p, auth.AlterConfigs); err != nil {
		return err
	}
	if err := b.take(ctx, b.admin); err != nil {
		return err
	}
	defer b.admin.give()
	if err := b.checkNode(node); err != nil {
		return err
	}
	s := b.configsOf(node)
	set := s.node
	if node == controller.AllBrokers {
		s = serverConfigs{cluster: s.cluster, static: s.static}
		set = s.cluster
	}
	values, err := plan(set, s)
	if err != nil || validateOnly {
		return err
	}
	if err := b.commit(ctx, &controller.SetBrokerConfigs{ID: node, Values: values}); err != nil {
		return err
	}
	for _, t := range b.proposer.State().Topics() {
		b.configure(t)
	}
	b.dir.SetScrubRate(b.configs().number(scrubRate))
	b.dir.SetLowWater(b.configs().number(diskLow))
	b.quotas.configure(b.configs())
	b.checkSoon()
	return nil
}

// replacing are the changes that lead from set to exactly values.
func replacing(set, values map[string]string) []ConfigChange {
	var changes []ConfigChange
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if _, kept := values[name]; !kept {
			changes = append(changes, ConfigChange{Name: name, Op: ConfigDelete})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		v := values[name]
		changes = append(changes, ConfigChange{Name: name, Value: &v})
	}
	return changes
}

// configLevel is a place where configs are set: a topic, a server, all servers.
type configLevel interface {
	// find gives the config and the name that it has here.
	find(name string) (*configDef, string, error)
	// value is what is in force here.
	value(d *configDef) string
}

type topicLevel struct {
	server serverConfigs
	set    map[string]string
}

func (l topicLevel) find(name string) (*configDef, string, error) {
	d := topicConfig(name)
	if d == nil || name == "" {
		return nil, "", fmt.Errorf("%w: unknown topic config %q", ErrInvalidConfig, name)
	}
	return d, name, nil
}

func (l topicLevel) value(d *configDef) string {
	v, _ := l.server.topicValue(d, l.set)
	return v
}

type serverLevel struct{ server serverConfigs }

func (l serverLevel) find(name string) (*configDef, string, error) {
	d, err := settableConfig(name)
	if err != nil {
		return nil, "", err
	}
	return d, d.server, nil
}

func (l serverLevel) value(d *configDef) string {
	v, _ := l.server.lookup(d)
	return v
}

// resolveChanges checks changes and says what each config is to be set to, nil
// for not at all. set is what is set at the level now.
func resolveChanges(changes []ConfigChange, set map[string]string, level configLevel) (map[string]*string, error) {
	out := map[string]*string{}
	for _, c := range changes {
		d, name, err := level.find(c.Name)
		if err != nil {
			return nil, err
		}
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%w: %q is changed twice", ErrInvalidConfig, name)
		}
		v, err := c.apply(d, level.value(d))
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrInvalidConfig, c.Name, err)
		}
		if _, is := set[name]; !is && v != nil && c.Op != ConfigSet && *v == level.value(d) {
			v = nil // a list that did not change need not be set here
		}
		out[name] = v
	}
	return out, nil
}

// apply is the value after the change, given the one in force; nil takes the
// config away.
func (c *ConfigChange) apply(d *configDef, now string) (*string, error) {
	switch {
	case c.Op < ConfigSet || c.Op > ConfigSubtract:
		return nil, fmt.Errorf("unknown operation %d", c.Op)
	case c.Op == ConfigDelete, c.Op == ConfigSet && c.Value == nil:
		return nil, nil
	case c.Op == ConfigSet:
		return c.Value, d.check(*c.Value)
	case d.kind != ConfigList:
		return nil, errors.New("it is not a list, so nothing can be appended to it or subtracted from it")
	case c.Value == nil:
		return nil, errors.New("there is nothing to append or subtract")
	}
	list := elements(now)
	for _, e := range elements(*c.Value) {
		at := slices.Index(list, e)
		switch {
		case c.Op == ConfigAppend && at < 0:
			list = append(list, e)
		case c.Op == ConfigSubtract && at >= 0:
			list = slices.Delete(list, at, at+1)
		}
	}
	v := strings.Join(list, ",")
	return &v, d.check(v)
}

// elements are those of a list, without the space around them.
func elements(list string) []string {
	var out []string
	for e := range strings.SplitSeq(list, ",") {
		if e = strings.TrimSpace(e); e != "" {
			out = append(out, e)
		}
	}
	return out
}
