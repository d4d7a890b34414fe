package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"leat/api"
	"leat/auth"
)

// serveConfig is what `leat serve` is told, by flags, LEAT_… variables or a
// YAML file with the flags' names; flags win over variables, variables over the
// file.
type serveConfig struct {
	Config kong.ConfigFlag `help:"Read settings from a YAML file with the names of these flags." placeholder:"FILE" type:"path"`

	DataDir        string            `help:"Directory that holds everything the server keeps." default:"./leat-data"`
	HTTPAddr       string            `name:"http-addr" help:"Address of the HTTP API and the WebSocket door." default:"127.0.0.1:8080"`
	KafkaAddr      string            `help:"Address of the Kafka protocol." default:"127.0.0.1:9092"`
	KafkaAdvertise string            `help:"Address that Kafka clients are told; by default the one that is bound." placeholder:"HOST:PORT"`
	OpsAddr        string            `help:"Address of /metrics, /debug/pprof and health." default:"127.0.0.1:9644"`
	Set            map[string]string `help:"Set a Kafka broker config; repeatable, and in LEAT_SET separated by semicolons." placeholder:"KEY=VALUE"`
	AllowOrigin    []string          `help:"Web origin that may use the HTTP and WebSocket doors from a browser; repeatable." placeholder:"ORIGIN"`
	MaxRequest     int64             `name:"max-request-bytes" help:"Largest HTTP request body, after decompression." default:"16777216"`
	Insecure       bool              `help:"Allow addresses outside loopback although authentication is off."`
	ReadyFile      string            `help:"Write the bound addresses to this file, as JSON, once the server is ready." placeholder:"FILE"`
	LogLevel       slog.Level        `help:"Least important message to log: debug, info, warn, error." default:"info"`
	LogFormat      string            `help:"Form of the log on stderr: text or json." enum:"text,json" default:"text"`
}

// validate enforces the rules that no single flag can check.
func (c *serveConfig) validate() error {
	if c.DataDir == "" {
		return errors.New("--data-dir is empty")
	}
	if info, err := os.Stat(c.ReadyFile); err == nil && info.IsDir() {
		return fmt.Errorf("--ready-file %q is a directory", c.ReadyFile)
	}
	for _, bound := range c.listeners() {
		if _, _, err := net.SplitHostPort(bound.addr); err != nil {
			return fmt.Errorf("%s %q is not HOST:PORT", bound.flag, bound.addr)
		}
		if _, err := net.ResolveTCPAddr("tcp", bound.addr); err != nil {
			return fmt.Errorf("%s %q: %w", bound.flag, bound.addr, err)
		}
		if err := auth.CheckBind(bound.flag, bound.addr, c.Insecure); err != nil {
			return err
		}
	}
	if c.KafkaAdvertise != "" {
		if _, _, err := splitAddr(c.KafkaAdvertise); err != nil {
			return fmt.Errorf("--kafka-advertise: %w", err)
		}
	}
	for _, origin := range c.AllowOrigin {
		if err := api.CheckOrigin(origin); err != nil {
			return fmt.Errorf("--allow-origin: %w", err)
		}
	}
	if c.MaxRequest < 1 {
		return fmt.Errorf("--max-request-bytes %d: must be at least 1", c.MaxRequest)
	}
	return nil
}

// listener is one address to bind and the flag it came from.
type listener struct{ flag, addr string }

func (c *serveConfig) listeners() []listener {
	return []listener{{"--http-addr", c.HTTPAddr}, {"--kafka-addr", c.KafkaAddr}, {"--ops-addr", c.OpsAddr}}
}

// advertised is the address that Kafka clients are told, given the bound one.
func (c *serveConfig) advertised(bound net.Addr) (host string, port int32, err error) {
	addr := c.KafkaAdvertise
	if addr == "" {
		addr = bound.String()
		// Nobody can dial "every interface"; the machine's name is the best guess.
		if tcp, ok := bound.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
			name, err := os.Hostname()
			if err != nil {
				return "", 0, fmt.Errorf("--kafka-advertise is needed: %w", err)
			}
			addr = net.JoinHostPort(name, strconv.Itoa(tcp.Port))
		}
	}
	return splitAddr(addr)
}

func splitAddr(addr string) (host string, port int32, err error) {
	host, digits, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || host == "" || n == 0 {
		return "", 0, fmt.Errorf("%q is not HOST:PORT", addr)
	}
	return host, int32(n), nil
}

func (c *serveConfig) logger(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// yamlFile gives kong the values of a YAML file: a flat map with the flags'
// names, and the broker configs of --set under "config".
type yamlFile struct {
	name   string // for errors
	values map[string]any
}

func loadYAML(r io.Reader) (kong.Resolver, error) {
	f := yamlFile{name: "--config"}
	if file, ok := r.(*os.File); ok {
		f.name = file.Name()
	}
	d := yaml.NewDecoder(r)
	if err := d.Decode(&f.values); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: there is more than one YAML document", f.name)
	}
	return f, nil
}

func yamlName(flag string) string {
	if flag == "set" {
		return "config"
	}
	return flag
}

// Validate refuses names that are no flag of the server, so that a typo does
// not pass for a default.
func (f yamlFile) Validate(app *kong.Application) error {
	known := map[string]bool{}
	for _, n := range app.Children {
		if n.Name == "serve" {
			for _, flag := range n.Flags {
				known[yamlName(flag.Name)] = true
			}
		}
	}
	delete(known, "help")
	for name := range f.values {
		if !known[name] {
			return fmt.Errorf("%s: unknown setting %q", f.name, name)
		}
	}
	return nil
}

// Resolve finds the value of a flag, unless its variable has one: kong would
// let the file win.
func (f yamlFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	for _, name := range flag.Envs {
		if _, set := os.LookupEnv(name); set {
			return nil, nil
		}
	}
	v, ok := f.values[yamlName(flag.Name)]
	if !ok {
		return nil, nil
	}
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			out[k] = fmt.Sprint(e)
		}
		return out, nil
	default:
		return v, nil
	}
}

// A door's connections may take a part of the file descriptors that the process
// does not keep for itself, the most for WebSockets, of which there are many
// and which do little each.
const (
	socketShare = 2
	maxSockets  = 50_000
	kafkaShare  = 6
	httpShare   = 8 // plain requests and streams
	opsConns    = 16
	// reservedFiles are for the metadata store (64 tables and some logs), the
	// operators' door, listeners, and files that are open for a moment; storage
	// keeps a sixth of all for segment files, which the shares above leave.
	reservedFiles = 128
)

// openFileLimit is RLIMIT_NOFILE, which Go has raised to the hard limit.
func openFileLimit() int {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return math.MaxUint16
	}
	return int(min(r.Cur, math.MaxInt32))
}

// sharedFiles is how many of so many descriptors the doors share.
func sharedFiles(limit int) int { return max(limit-reservedFiles, limit/2) }

// atMost is for a http.Server that is to have no more connections than most:
// those beyond are closed as they come.
func atMost(most int64) func(net.Conn, http.ConnState) {
	var open atomic.Int64
	return func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > most {
				_ = c.Close() // nothing was read or written
			}
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		case http.StateActive, http.StateIdle:
		}
	}
}
