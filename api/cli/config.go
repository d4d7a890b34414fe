package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// configRow is a config as `topic config --json` and `cluster config --json` print it.
type configRow struct {
	Name          string  `json:"name"`
	Value         *string `json:"value"` // null: none, or secret
	Source        string  `json:"source"`
	ReadOnly      bool    `json:"read_only"`
	Sensitive     bool    `json:"sensitive"`
	Documentation string  `json:"documentation,omitempty"`
}

// describeConfigs asks for the configs of a topic or a node, by name.
func describeConfigs(ctx context.Context, s *session, kind kmsg.ConfigResourceType, name string) ([]configRow, error) {
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.IncludeDocumentation = true
	asked := kmsg.NewDescribeConfigsRequestResource()
	asked.ResourceType, asked.ResourceName = kind, name
	req.Resources = append(req.Resources, asked)
	resp, err := req.RequestWith(ctx, s.Client)
	if err != nil {
		return nil, err
	}
	if len(resp.Resources) != 1 {
		return nil, fmt.Errorf("the server described %d resources", len(resp.Resources))
	}
	resource := resp.Resources[0]
	if err := kerr.ErrorForCode(resource.ErrorCode); err != nil {
		return nil, detailed(err, deref(resource.ErrorMessage))
	}
	rows := []configRow{}
	for _, c := range resource.Configs {
		rows = append(rows, configRow{
			Name: c.Name, Value: c.Value, Source: c.Source.String(), ReadOnly: c.ReadOnly, Sensitive: c.IsSensitive,
			Documentation: deref(c.Documentation),
		})
	}
	slices.SortFunc(rows, func(a, b configRow) int { return cmp.Compare(a.Name, b.Name) })
	return rows, nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// writeConfigs prints the configs of something: all, or what is set, with a word on what is not shown.
func writeConfigs(std IO, whose string, rows []configRow, all, asJSON bool) error {
	if !all {
		shown := slices.DeleteFunc(slices.Clone(rows), func(r configRow) bool { return r.Source == kmsg.ConfigSourceDefaultConfig.String() })
		switch hidden := len(rows) - len(shown); {
		case len(shown) == 0 && hidden > 0:
			std.sayf("nothing is set for %s; --all shows %s", whose, count(hidden, "default"))
		case hidden > 0:
			std.sayf("--all shows %s, too", count(hidden, "default"))
		}
		rows = shown
	}
	if asJSON {
		return quiet(writeJSON(std.Out, rows))
	}
	return quiet(writeTable(std.Out, []string{"CONFIG", "VALUE", "SOURCE"}, len(rows), func(i int) []string {
		value := "-"
		switch {
		case rows[i].Sensitive:
			value = "(secret)"
		case rows[i].Value != nil:
			value = cmp.Or(*rows[i].Value, `""`)
		}
		return []string{rows[i].Name, value, rows[i].Source}
	}))
}

// TopicConfigCmd shows the configs of one topic.
type TopicConfigCmd struct {
	Connection
	Topic string `arg:"" help:"Name of the topic."`
	All   bool   `env:"-" help:"Also show what is not set, with the default that holds."`
	JSON  bool   `env:"-" help:"Print one JSON array, with what each config means."`
}

// Run prints a row a config.
func (c *TopicConfigCmd) Run(ctx context.Context, std IO) error {
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		if _, err := c.existing(ctx, s, c.Topic); err != nil {
			return err
		}
		rows, err := describeConfigs(ctx, s, kmsg.ConfigResourceTypeTopic, c.Topic)
		if err != nil {
			return fmt.Errorf("configs of topic %s: %w", c.Topic, err)
		}
		return writeConfigs(IO{Out: std.Out, Err: s.std.Err}, "topic "+c.Topic, rows, c.All, c.JSON)
	})
}

// flagged is what the user gave to one flag that changes configs.
type flagged struct {
	flag string
	op   kadm.IncrementalOp
	args []string
}

// parseChanges reads K=V, or K to delete; a key may be given once.
func parseChanges(flags ...flagged) ([]kadm.AlterConfig, error) {
	var changes []kadm.AlterConfig
	seen := map[string]bool{}
	for _, f := range flags {
		for _, arg := range f.args {
			change := kadm.AlterConfig{Op: f.op, Name: arg}
			if f.op != kadm.DeleteConfig {
				key, value, ok := strings.Cut(arg, "=")
				if !ok {
					return nil, usagef("%s %q is not K=V", f.flag, arg)
				}
				change.Name, change.Value = key, &value
			}
			switch {
			case change.Name == "" || strings.Contains(change.Name, "="):
				return nil, usagef("%s %q has no name of a config", f.flag, arg)
			case seen[change.Name]:
				return nil, usagef("%s %s: this config is given twice", f.flag, change.Name)
			}
			seen[change.Name] = true
			changes = append(changes, change)
		}
	}
	return changes, nil
}

// describeChanges says what was done, for example `retention.ms=1000, segment.bytes back to default`.
func describeChanges(changes []kadm.AlterConfig) string {
	words := make([]string, len(changes))
	for i, c := range changes {
		switch c.Op {
		case kadm.DeleteConfig:
			words[i] = c.Name + " back to default"
		case kadm.AppendConfig:
			words[i] = c.Name + " gained " + *c.Value
		case kadm.SubtractConfig:
			words[i] = c.Name + " lost " + *c.Value
		default:
			words[i] = c.Name + "=" + *c.Value
		}
	}
	return strings.Join(words, ", ")
}

// altered is the error in the answers to a change of configs.
func altered(resps kadm.AlterConfigsResponses, err error) error {
	if err != nil {
		return err
	}
	if len(resps) == 0 {
		return errors.New("the server said nothing of it")
	}
	for _, r := range resps {
		if r.Err != nil {
			return detailed(r.Err, r.ErrMessage)
		}
	}
	return nil
}
