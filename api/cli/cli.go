package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"
)

// IO is where a command reads its data, writes its data and says its words. Tests give buffers.
type IO struct {
	In       io.Reader
	Out, Err io.Writer
}

// sayf writes one line of words for a person.
func (s IO) sayf(format string, args ...any) {
	_, _ = fmt.Fprintf(s.Err, "leat: "+format+"\n", args...)
}

// count is a number and what it counts, as one says it.
func count[N int | int32 | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Commands are the client's commands, to be embedded in main's command line. Each has a Run method that kong calls
// with what main binds: the context, the IO, and the variables.
type Commands struct {
	Produce    ProduceCmd    `cmd:"" help:"Write a record a line from stdin to a topic."`
	Consume    ConsumeCmd    `cmd:"" help:"Print the records of a topic."`
	Topic      TopicCmd      `cmd:"" help:"Create, list, describe, alter and delete topics."`
	Partition  PartitionCmd  `cmd:"" help:"List partitions and delete records from them."`
	Group      GroupCmd      `cmd:"" help:"List, describe and delete consumer groups, and reset their offsets."`
	Cluster    ClusterCmd    `cmd:"" help:"Show the nodes and their configs, and change those."`
	Bench      BenchCmd      `cmd:"" help:"Put load on a server and measure."`
	Completion CompletionCmd `cmd:"" help:"Print a script that teaches a shell to complete this command line."`
	Version    VersionCmd    `cmd:"" help:"Print the version."`
	Help       HelpCmd       `cmd:"" help:"Show the help of leat or of a command."`
}

// Flags are the flags of every command, to be embedded like Commands.
type Flags struct {
	VersionFlag versionFlag `name:"version" env:"-" help:"Print the version."`
}

// VersionCmd prints the version of the program.
type VersionCmd struct {
	JSON bool `env:"-" help:"Print one JSON object."`
}

// Run prints one line, for example `leat v0.1.0`. The version is kong's variable of that name, which main sets.
func (c *VersionCmd) Run(std IO, vars kong.Vars) error {
	ignoreSIGPIPE()
	if c.JSON {
		return quiet(writeJSON(std.Out, struct {
			Version string `json:"version"`
		}{vars["version"]}))
	}
	_, err := fmt.Fprintln(std.Out, "leat", vars["version"])
	return quiet(err)
}

// UsageError is a command line that cannot be meant: the program exits 2.
type UsageError struct {
	Reason string
}

// Error returns the reason.
func (e *UsageError) Error() string { return e.Reason }

// usagef makes a UsageError.
func usagef(format string, args ...any) error {
	return &UsageError{Reason: fmt.Sprintf(format, args...)}
}

// ExitCode is the exit code for what a command, or kong's parser, returned: 0 nil, 2 a wrong command line, else 1.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if _, ok := errors.AsType[*UsageError](err); ok {
		return 2
	}
	if _, ok := errors.AsType[*kong.ParseError](err); ok {
		return 2
	}
	return 1
}
