package cli

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// Options are what kong is told so that the command line speaks with one voice: how help looks, and what is said of a
// value that is no number or no duration.
func Options() []kong.Option {
	options := []kong.Option{
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)),
		kong.PostBuild(func(k *kong.Kong) error {
			k.Model.HelpFlag.Help = "Show this help."
			return nil
		}),
	}
	for kind, bits := range map[reflect.Kind]int{
		reflect.Int: strconv.IntSize, reflect.Int8: 8, reflect.Int16: 16, reflect.Int32: 32, reflect.Int64: 64,
	} {
		options = append(options, kong.KindMapper(kind, decodeInt(bits)))
	}
	return append(options, kong.KindMapper(reflect.Float64, kong.MapperFunc(decodeFloat)), kong.KindMapper(reflect.String, kong.MapperFunc(decodeString)))
}

func decodeString(ctx *kong.DecodeContext, target reflect.Value) error {
	text, err := value(ctx, "a value")
	if err == nil {
		target.SetString(text)
	}
	return err
}

func decodeInt(bits int) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		text, err := value(ctx, "a whole number")
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(text, 10, bits)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return fmt.Errorf("%s is out of range", text)
		case err != nil:
			return fmt.Errorf("want a whole number, not %q", text)
		}
		target.SetInt(n)
		return nil
	}
}

func decodeFloat(ctx *kong.DecodeContext, target reflect.Value) error {
	text, err := value(ctx, "a number")
	if err != nil {
		return err
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return fmt.Errorf("want a number, not %q", text)
	}
	target.SetFloat(f)
	return nil
}

func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	const want = "a time such as 500ms, 30s or 2m"
	text, err := value(ctx, want)
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("want %s, not %q", want, text)
	}
	target.SetInt(int64(d))
	return nil
}

// value takes the value of a flag, from the command line or a file of settings.
func value(ctx *kong.DecodeContext, want string) (string, error) {
	token := ctx.Scan.Pop()
	if !token.IsValue() {
		return "", fmt.Errorf("want %s", want)
	}
	if f, ok := token.Value.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64), nil
	}
	return fmt.Sprint(token.Value), nil
}

// Misused says what is wrong with a command line that kong's parser returned err for, and returns the exit code. Where
// only a command is missing, that is the help of what there is.
func Misused(std IO, err error) int {
	where := "leat"
	if parse, ok := errors.AsType[*kong.ParseError](err); ok && parse.Context != nil {
		node := parse.Context.Selected()
		if node == nil {
			node = parse.Context.Model.Node
		}
		if parse.Context.Error == nil && !node.Leaf() {
			parse.Context.Stdout = std.Err
			_ = parse.Context.PrintUsage(false)
			return ExitCode(err)
		}
		where = node.FullPath()
	}
	std.sayf("%v; see %s --help", err, where)
	return ExitCode(err)
}

// HelpCmd shows help.
type HelpCmd struct {
	Command []string `arg:"" optional:"" help:"Command to explain, for example topic create; by default leat itself."`
}

// Run prints what `leat COMMAND --help` prints.
func (c *HelpCmd) Run(k *kong.Context) error {
	ignoreSIGPIPE()
	asked, err := kong.Trace(k.Kong, c.Command)
	if err != nil {
		return err
	}
	if asked.Error != nil {
		return usagef("help %s: %v", strings.Join(c.Command, " "), asked.Error)
	}
	return quiet(asked.PrintUsage(false))
}

// versionFlag is --version, which prints what `leat version` prints.
type versionFlag bool

// BeforeReset is called by kong if the flag is given.
func (versionFlag) BeforeReset(k *kong.Kong, vars kong.Vars) error {
	_, err := fmt.Fprintln(k.Stdout, k.Model.Name, vars["version"])
	k.Exit(0)
	return err
}
