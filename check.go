package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"leat/api/cli"
	"leat/broker"
	"leat/storage"
	"leat/storage/disk"
)

// checkCmd is `leat check`.
type checkCmd struct {
	Dir      string `arg:"" help:"Data directory; its server must be stopped."`
	Records  bool   `env:"-" default:"true" negatable:"" help:"Look at every record, too, which expands what is compressed."`
	JSON     bool   `env:"-" help:"Print one JSON object."`
	Progress bool   `env:"-" help:"Say on stderr how far it is, once a second; by default only if stderr is a terminal."`
}

// errInterrupted says that a signal has ended the check.
var errInterrupted = errors.New("the check was interrupted")

// Run prints what is not as it should be, one finding a line, and fails if some
// of it is damage.
func (c *checkCmd) Run(ctx context.Context, stdio cli.IO) error {
	meter := cli.NewMeter(stdio, "checked", c.Progress)
	report, err := storage.Check(ctx, storage.CheckOptions{
		Path: c.Dir, Records: c.Records,
		Meta: func(ctx context.Context, dir string) (*storage.Metadata, error) {
			return broker.Inspect(ctx, disk.OS, dir)
		},
		Progress: func(p storage.CheckProgress) { meter.Show(p.Done, p.Total) },
	})
	meter.End()
	if ctx.Err() != nil {
		err = errInterrupted
	}
	if err != nil {
		if c.JSON {
			err = errors.Join(err, c.print(stdio.Out, &storage.Report{}, err))
		}
		return err
	}
	if err := c.print(stdio.Out, report, nil); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(stdio.Err, "leat: partitions %d, segments %d, batches %d, records %d, bytes %d; findings %d, of them damage %d\n",
		report.Partitions, report.Segments, report.Batches, report.Records, report.Bytes, len(report.Findings)+report.Omitted, report.Damages)
	if report.Damages > 0 {
		return &storage.DamagedError{Path: c.Dir, Err: errors.New("records or metadata are damaged, see the findings")}
	}
	return nil
}

// print writes the report; why says that there is none.
func (c *checkCmd) print(out io.Writer, r *storage.Report, why error) error {
	if !c.JSON {
		for _, f := range r.Findings {
			if _, err := fmt.Fprintln(out, f); err != nil {
				return err
			}
		}
		return nil
	}
	findings := make([]map[string]any, len(r.Findings))
	for i, f := range r.Findings {
		findings[i] = map[string]any{"severity": f.Severity.String(), "path": f.Path, "position": f.Pos, "what": f.What}
	}
	object := map[string]any{
		"cluster_id": r.Identity.ClusterID, "node_id": r.Identity.NodeID, "clean": r.Clean, "partitions": r.Partitions,
		"segments": r.Segments, "batches": r.Batches, "records": r.Records, "bytes": r.Bytes, "quarantined": r.Quarantined,
		"damages": r.Damages, "omitted": r.Omitted, "findings": findings,
	}
	if why != nil {
		object["error"] = why.Error()
	}
	return json.NewEncoder(out).Encode(object)
}
