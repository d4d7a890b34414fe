package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ClusterCmd groups the cluster commands.
type ClusterCmd struct {
	Describe ClusterDescribeCmd `cmd:"" help:"Show the nodes of the cluster."`
	Config   ClusterConfigCmd   `cmd:"" help:"Show what is set for the cluster or for one node, or change it."`
}

// ClusterDescribeCmd shows the cluster.
type ClusterDescribeCmd struct {
	Connection
	JSON bool `env:"-" help:"Print one JSON object."`
}

// clusterDetail is what `cluster describe --json` prints.
type clusterDetail struct {
	ID         string    `json:"cluster_id"`
	Controller int32     `json:"controller"`
	Topics     int       `json:"topics"`
	Partitions int       `json:"partitions"`
	Nodes      []nodeRow `json:"nodes"`
}

type nodeRow struct {
	Node       int32   `json:"node"`
	Host       string  `json:"host"`
	Port       int32   `json:"port"`
	Rack       *string `json:"rack"`
	Leading    int     `json:"leading"` // partitions
	DiskTotal  *int64  `json:"disk_total_bytes"`
	DiskUsable *int64  `json:"disk_usable_bytes"`
}

// Run prints a row a node.
func (c *ClusterDescribeCmd) Run(ctx context.Context, std IO) error {
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		meta, err := s.admin.Metadata(ctx)
		if err != nil {
			return fmt.Errorf("describe the cluster: %w", err)
		}
		dirs, err := s.admin.DescribeAllLogDirs(ctx, nil)
		if err != nil {
			s.std.sayf("disks are not known: %v", err)
		}
		detail := clusterOf(meta, dirs)
		if c.JSON {
			return quiet(writeJSON(std.Out, detail))
		}
		s.std.sayf("cluster %s with %s, %s and %s", detail.ID,
			count(len(detail.Nodes), "node"), count(detail.Topics, "topic"), count(detail.Partitions, "partition"))
		header := []string{"NODE", "HOST", "PORT", "RACK", "CONTROLLER", "LEADING", "DISK", "FREE"}
		return quiet(writeTable(std.Out, header, len(detail.Nodes), func(i int) []string {
			n := detail.Nodes[i]
			rack, controller, total, usable := "-", "no", "-", "-"
			if n.Rack != nil {
				rack = *n.Rack
			}
			if n.Node == detail.Controller {
				controller = "yes"
			}
			if n.DiskTotal != nil {
				total, usable = humanBytes(*n.DiskTotal), humanBytes(*n.DiskUsable)
			}
			return []string{
				strconv.Itoa(int(n.Node)), n.Host, strconv.Itoa(int(n.Port)), rack, controller, strconv.Itoa(n.Leading), total, usable,
			}
		}))
	})
}

// clusterOf joins what the cluster says of itself with what the nodes say of their disks.
func clusterOf(meta kadm.Metadata, dirs kadm.DescribedAllLogDirs) clusterDetail {
	detail := clusterDetail{ID: meta.Cluster, Controller: meta.Controller, Nodes: []nodeRow{}}
	leading := map[int32]int{}
	for _, t := range meta.Topics {
		detail.Topics++
		for _, p := range t.Partitions {
			detail.Partitions++
			leading[p.Leader]++
		}
	}
	for _, b := range meta.Brokers {
		row := nodeRow{Node: b.NodeID, Host: b.Host, Port: b.Port, Rack: b.Rack, Leading: leading[b.NodeID]}
		if total, usable := diskOf(dirs[b.NodeID]); total >= 0 {
			row.DiskTotal, row.DiskUsable = &total, &usable
		}
		detail.Nodes = append(detail.Nodes, row)
	}
	slices.SortFunc(detail.Nodes, func(a, b nodeRow) int { return cmp.Compare(a.Node, b.Node) })
	return detail
}

// diskOf sums up the volumes of one node; -1 is a size that it did not say.
func diskOf(dirs kadm.DescribedLogDirs) (total, usable int64) {
	total, usable = -1, -1
	for _, d := range dirs.Sorted() {
		if d.TotalBytes >= 0 && d.UsableBytes >= 0 {
			total, usable = max(total, 0)+d.TotalBytes, max(usable, 0)+d.UsableBytes
		}
	}
	return total, usable
}

// ClusterConfigCmd shows or changes configs.
type ClusterConfigCmd struct {
	Connection
	Node     int32    `env:"-" default:"-1" placeholder:"N" help:"The configs of this node; by default those that are set for the whole cluster."`
	Set      []string `env:"-" placeholder:"K=V" sep:"none" help:"Set a config, at once and for every start to come; may be repeated."`
	Delete   []string `env:"-" placeholder:"K" sep:"none" help:"Take away what --set has set; may be repeated."`
	Append   []string `env:"-" placeholder:"K=V" sep:"none" help:"Add V to a config that is a list; may be repeated."`
	Subtract []string `env:"-" placeholder:"K=V" sep:"none" help:"Take V out of a config that is a list; may be repeated."`
	All      bool     `env:"-" help:"Also show what is not set, with the default that holds; needs --node."`
	JSON     bool     `env:"-" help:"Print one JSON array, with what each config means."`
}

// Run changes what it was told to, or else prints a row a config.
func (c *ClusterConfigCmd) Run(ctx context.Context, std IO) error {
	changes, err := parseChanges(
		flagged{"--set", kadm.SetConfig, c.Set}, flagged{"--delete", kadm.DeleteConfig, c.Delete},
		flagged{"--append", kadm.AppendConfig, c.Append}, flagged{"--subtract", kadm.SubtractConfig, c.Subtract})
	switch {
	case err != nil:
		return err
	case c.Node < -1:
		return usagef("--node %d: nodes count from 0", c.Node)
	case c.JSON && len(changes) > 0:
		return usagef("--json prints configs: leave it out of a change")
	case c.All && (c.Node < 0 || len(changes) > 0):
		return usagef("--all shows what a node works with: it needs --node, and no change")
	}
	name, whose := "", "the cluster"
	var nodes []int32
	if c.Node >= 0 {
		name, whose, nodes = strconv.Itoa(int(c.Node)), fmt.Sprintf("node %d", c.Node), []int32{c.Node}
	}
	return c.ask(ctx, std, func(ctx context.Context, s *session) error {
		if err := c.exists(ctx, s); err != nil {
			return err
		}
		if len(changes) > 0 {
			resps, err := s.admin.AlterBrokerConfigs(ctx, changes, nodes...)
			if err := altered(resps, err); err != nil {
				return fmt.Errorf("alter %s: %w", whose, err)
			}
			s.std.sayf("%s altered: %s", whose, describeChanges(changes))
			return nil
		}
		rows, err := describeConfigs(ctx, s, kmsg.ConfigResourceTypeBroker, name)
		if err != nil {
			return fmt.Errorf("configs of %s: %w", whose, err)
		}
		if len(rows) == 0 && !c.JSON {
			s.std.sayf("nothing is set for %s; --node N shows what a node works with", whose)
		}
		return writeConfigs(IO{Out: std.Out, Err: s.std.Err}, whose, rows, c.All, c.JSON)
	})
}

// exists refuses a node that the cluster does not have.
func (c *ClusterConfigCmd) exists(ctx context.Context, s *session) error {
	if c.Node < 0 {
		return nil
	}
	nodes, err := s.admin.ListBrokers(ctx)
	if err != nil {
		return fmt.Errorf("configs of node %d: %w", c.Node, err)
	}
	if !slices.Contains(nodes.NodeIDs(), c.Node) {
		return fmt.Errorf("node %d: no such node at %s", c.Node, c.Server)
	}
	return nil
}
