package broker

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"leat/replication/controller"
)

// scrubRate names the config of how fast old segments are read again.
const scrubRate = "leat.scrub.bytes.per.second"

// diskLow names the config of the free space below which records are refused.
const diskLow = "leat.disk.low.bytes"

// serverConfigs are the configs of one server, by server name, from the most
// special place where they are set to the least.
type serverConfigs struct {
	// node was set for this server while it ran, cluster for all servers, and
	// static at the start.
	node, cluster, static map[string]string
}

// configs are the configs in force. The answer stands for the moment.
func (b *Broker) configs() serverConfigs { return b.configsOf(b.NodeID()) }

func (b *Broker) configsOf(node int32) serverConfigs {
	state := b.proposer.State()
	return serverConfigs{node: state.BrokerConfigs(node), cluster: state.BrokerConfigs(controller.AllBrokers), static: b.static}
}

// coarse are the names that set a time in larger units, at the start only. The
// exact name wins over them, and the first of them over the next.
var coarse = []struct {
	name, of string
	unit     time.Duration
	low      int64
}{
	{"log.retention.minutes", "log.retention.ms", time.Minute, -1},
	{"log.retention.hours", "log.retention.ms", time.Hour, -1},
	{"log.roll.hours", "log.roll.ms", time.Hour, 1},
	{"log.roll.jitter.hours", "log.roll.jitter.ms", time.Hour, 0},
}

// takeCoarse moves the coarse names from set to the exact ones in out.
func takeCoarse(set, out map[string]string) error {
	for _, c := range coarse {
		v, ok := set[c.name]
		if !ok {
			continue
		}
		ms := c.unit.Milliseconds()
		if err := longIn(c.low, math.MaxInt32)(v); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrInvalidConfig, c.name, err)
		}
		n := number(v)
		if n > 0 {
			n *= ms
		}
		if _, exact := out[c.of]; !exact {
			out[c.of] = strconv.FormatInt(n, 10)
		}
	}
	return nil
}

// isCoarse says whether a name is one of those.
func isCoarse(name string) bool {
	for _, c := range coarse {
		if c.name == name {
			return true
		}
	}
	return false
}

// checkServerConfigs refuses names that the server does not have and values
// that they do not take, and returns the values by server name.
func checkServerConfigs(set map[string]string) (map[string]string, error) {
	out := map[string]string{}
	for name, v := range set {
		if isCoarse(name) {
			continue
		}
		d, err := settableConfig(name)
		if err != nil {
			return nil, err
		}
		if err := d.check(v); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrInvalidConfig, name, err)
		}
		if _, twice := out[d.server]; twice {
			return nil, fmt.Errorf("%w: %s is set twice, by its two names", ErrInvalidConfig, d.server)
		}
		out[d.server] = v
	}
	return out, takeCoarse(set, out)
}

// settableConfig finds a config of the server by one of its names.
func settableConfig(name string) (*configDef, error) {
	if d := serverConfig(name); d != nil && name != "" {
		return d, nil
	}
	if isCoarse(name) || slices.ContainsFunc(fixed, func(d configDef) bool { return d.server == name }) {
		return nil, fmt.Errorf("%w: %s is not set this way, it follows from how the server was started", ErrInvalidConfig, name)
	}
	return nil, fmt.Errorf("%w: unknown config %q", ErrInvalidConfig, name)
}

// synonyms are the places where a config of the server is set.
func (s serverConfigs) synonyms(d *configDef) []ConfigSynonym {
	out := make([]ConfigSynonym, 0, 5)
	for _, place := range []struct {
		set    map[string]string
		source ConfigSource
	}{{s.node, SourceDynamicBroker}, {s.cluster, SourceDynamicDefault}, {s.static, SourceServer}} {
		if v, ok := place.set[d.server]; ok {
			out = append(out, ConfigSynonym{Name: d.server, Value: v, Source: place.source})
		}
	}
	return append(out, ConfigSynonym{Name: d.server, Value: d.value, Source: SourceDefault})
}

// value is a server config in force.
func (s serverConfigs) value(name string) string {
	v, _ := s.lookup(serverConfig(name))
	return v
}

// lookup is the value in force without a topic, and where it comes from.
func (s serverConfigs) lookup(d *configDef) (string, ConfigSource) {
	if v, ok := s.node[d.server]; ok {
		return v, SourceDynamicBroker
	}
	if v, ok := s.cluster[d.server]; ok {
		return v, SourceDynamicDefault
	}
	if v, ok := s.static[d.server]; ok {
		return v, SourceServer
	}
	return d.value, SourceDefault
}

func (s serverConfigs) number(name string) int64 { return number(s.value(name)) }

// float is a server config that is a number with a fraction.
func (s serverConfigs) float(name string) float64 {
	f, _ := strconv.ParseFloat(s.value(name), 64) // its check let it through
	return f
}

// number reads a value that its check let through.
func number(v string) int64 {
	n, _ := strconv.ParseInt(v, 10, 64)
	return n
}

// topicValue is a topic's config in force, given what was set for the topic.
func (s serverConfigs) topicValue(d *configDef, set map[string]string) (string, ConfigSource) {
	if v, ok := set[d.topic]; ok {
		return v, SourceTopic
	}
	return s.lookup(d)
}

// topicEntries lists all of a topic's configs by name.
func (s serverConfigs) topicEntries(set map[string]string) []ConfigEntry {
	var out []ConfigEntry
	for i := range configs {
		d := &configs[i]
		if d.topic == "" {
			continue
		}
		e := ConfigEntry{Name: d.topic, Type: d.kind, Doc: d.doc}
		if v, ok := set[d.topic]; ok {
			e.Synonyms = append(e.Synonyms, ConfigSynonym{Name: d.topic, Value: v, Source: SourceTopic})
		}
		e.Synonyms = append(e.Synonyms, s.synonyms(d)...)
		e.Value, e.Source = e.Synonyms[0].Value, e.Synonyms[0].Source
		out = append(out, e)
	}
	slices.SortFunc(out, byName)
	return out
}

// entries lists all of the server's configs by name.
func (s serverConfigs) entries() []ConfigEntry {
	var out []ConfigEntry
	for i := range configs {
		d := &configs[i]
		e := ConfigEntry{Name: d.server, Type: d.kind, Doc: d.doc, Synonyms: s.synonyms(d)}
		e.Value, e.Source = e.Synonyms[0].Value, e.Synonyms[0].Source
		out = append(out, e)
	}
	slices.SortFunc(out, byName)
	return out
}

func byName(a, b ConfigEntry) int { return strings.Compare(a.Name, b.Name) }
