// Command leat is an event-streaming platform in one binary: a partitioned,
// append-only log with doors for HTTP, WebSocket and the Kafka protocol, and the
// command line client. This file only wires: it opens the parts of a server in
// order, waits, and closes them in reverse; and it hands a data directory to the
// check.
package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"leat/api"
	"leat/api/cli"
	"leat/api/kafka"
	"leat/api/rest"
	"leat/api/ws"
	"leat/broker"
	"leat/storage"
	"leat/storage/disk"
	"leat/storage/meta"
	"leat/web"
)

// version is set by the build.
var version = "dev"

//go:embed openapi.yaml
var openapi []byte

// The exit codes beside 0, from sysexits.h where it has one.
const (
	exitFailure = 1
	exitUsage   = 2
	exitIO      = 74  // EX_IOERR: the data directory failed under us, or has no room to start
	exitBusy    = 75  // EX_TEMPFAIL: another process has the data directory
	exitDamaged = 78  // EX_CONFIG: the data directory is damaged or not ours
	exitSignal  = 130 // as a shell has it of what SIGINT has ended
)

// drainTime bounds how long a stop waits for requests under way. WebSocket
// clients are told to come back spread over as long.
const drainTime = 10 * time.Second

// commands is the command line.
type commands struct {
	serving
	Check checkCmd `cmd:"" help:"Verify the data directory of a stopped server; changes nothing."`
	cli.Commands
}

// serving is what of the command line `leat serve` needs. The rest takes a tenth
// of the time that a server takes to start.
type serving struct {
	Serve serveConfig `cmd:"" help:"Run the server."`
	cli.Flags
}

// grammar is the command line, as far as args can ask for it.
func grammar(args []string) any {
	if len(args) > 0 && args[0] == "serve" {
		return &serving{}
	}
	return &commands{}
}

func main() {
	os.Exit(run(os.Args[1:], cli.IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

// run is the whole program; it returns the exit code.
func run(args []string, stdio cli.IO) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once, but not one that came with the
	// first, as from a terminal and from what runs us in it.
	context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, stop) })
	exited := -1
	parser, err := newParser(ctx, grammar(args), stdio, func(code int) { exited = code })
	if err != nil {
		return complain(stdio, err, exitFailure)
	}
	k, err := parser.Parse(args)
	if exited >= 0 { // --help, --version
		return exited
	}
	if err != nil {
		return cli.Misused(stdio, err)
	}
	if err := k.Run(); err != nil {
		return complain(stdio, err, exitCode(err))
	}
	return 0
}

func newParser(ctx context.Context, grammar any, stdio cli.IO, exit func(code int)) (*kong.Kong, error) {
	return kong.New(grammar, append(cli.Options(), kong.Name("leat"), kong.DefaultEnvars("LEAT"),
		kong.Description("Event streaming in one binary. Data on stdout, words on stderr."),
		kong.Configuration(loadYAML), kong.Vars{"version": version}, kong.Writers(stdio.Out, stdio.Err),
		kong.Exit(exit), kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(stdio))...)
}

func complain(stdio cli.IO, err error, code int) int {
	_, _ = fmt.Fprintln(stdio.Err, "leat:", err)
	return code
}

func exitCode(err error) int {
	var damaged *storage.DamagedError
	var corrupt *meta.CorruptError
	switch {
	case errors.Is(err, errInterrupted):
		return exitSignal
	case errors.Is(err, storage.ErrBusy):
		return exitBusy
	case errors.As(err, &damaged), errors.As(err, &corrupt):
		return exitDamaged
	case errors.Is(err, errDisk), errors.Is(err, storage.ErrFailed), errors.Is(err, meta.ErrFailed), errors.Is(err, syscall.EIO),
		errors.Is(err, storage.ErrFull), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return exitIO
	case errors.Is(err, errConfig):
		return exitUsage
	default:
		return cli.ExitCode(err)
	}
}

var (
	errDisk   = errors.New("data directory failed")
	errConfig = errors.New("bad configuration")
)

// Run is `leat serve`.
func (c *serveConfig) Run(ctx context.Context, stdio cli.IO) error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("%w: %w", errConfig, err)
	}
	s := server{config: c, log: c.logger(stdio.Err), failed: make(chan error, 1)}
	if err := s.open(ctx); err != nil {
		return errors.Join(err, s.close())
	}
	err := s.wait(ctx)
	err = errors.Join(err, s.close())
	s.log.Info("stopped")
	return err
}

// server is the parts of a running server, in the order in which they open.
type server struct {
	config           *serveConfig
	log              *slog.Logger
	http, kafka, ops net.Listener
	broker           *broker.Broker
	kafkaDoor        *kafka.Server
	wsDoor           *ws.Server
	restDoor         *rest.Server
	opsDoor          *http.Server
	running          sync.WaitGroup
	failed           chan error // the first failure that ends the server
}

func (s *server) open(ctx context.Context) error {
	begun := time.Now()
	if err := s.listen(ctx); err != nil {
		return err
	}
	host, port, err := s.config.advertised(s.kafka.Addr())
	if err != nil {
		return fmt.Errorf("%w: %w", errConfig, err)
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.broker, err = broker.Open(ctx, broker.Options{
		Path: s.config.DataDir, Host: host, Port: port, Configs: s.config.Set,
		Logger: s.log, Registerer: metrics, OnFailure: func(err error) { s.fail(fmt.Errorf("%w: %w", errDisk, err)) },
	})
	if errors.Is(err, broker.ErrInvalidConfig) {
		return fmt.Errorf("%w: --set or config: %w", errConfig, err)
	}
	if err != nil {
		return err
	}
	files := sharedFiles(openFileLimit())
	sockets := min(files/socketShare, maxSockets)
	s.log.Info("file descriptors", slog.Int("limit", openFileLimit()), slog.Int("websockets", sockets),
		slog.Int("kafka_connections", files/kafkaShare), slog.Int("http_connections", files/httpShare), slog.Int("ops_connections", opsConns),
		slog.Int("idle_segment_files", storage.IdleFiles()), slog.Int("idle_index_mappings", storage.IdleMappings()))
	s.kafkaDoor = kafka.New(kafka.Options{
		Broker: s.broker, Logger: s.log, Registerer: metrics, MaxConnections: files / kafkaShare,
	})
	budget, answers := api.NewBudgetOf(s.broker.InFlightLimits), api.NewBudgetOf(s.broker.InFlightLimits)
	feed := api.NewFeed(api.FeedOptions{Answers: answers, Registerer: metrics})
	s.wsDoor = ws.New(ws.Options{
		Broker: s.broker, Feed: feed, Logger: s.log, Registerer: metrics, AllowOrigins: s.config.AllowOrigin,
		MaxConnections: sockets, MaxRequestBytes: s.config.MaxRequest, Budget: budget, Drain: drainTime,
	})
	s.restDoor = rest.New(rest.Options{
		Broker: s.broker, Feed: feed, Logger: s.log, Registerer: metrics, MaxRequestBytes: s.config.MaxRequest,
		MaxConnections: files / httpShare, Budget: budget, Answers: answers, AllowOrigins: s.config.AllowOrigin, OpenAPI: openapi, Web: web.Handler(),
		WebSocket: s.wsDoor, Ready: s.broker.Ready,
	})
	s.opsDoor = &http.Server{
		Handler: s.opsHandler(metrics), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, ConnState: atMost(opsConns),
	}
	s.start(ctx)
	if err := s.announce(); err != nil {
		return err
	}
	if s.config.Insecure {
		s.log.Warn("there is no authentication: whoever reaches the addresses may read, write and delete everything")
	}
	s.log.Info("ready", slog.String("http", s.http.Addr().String()), slog.String("kafka", s.kafka.Addr().String()),
		slog.String("kafka_advertised", net.JoinHostPort(host, strconv.Itoa(int(port)))), slog.String("ops", s.ops.Addr().String()), slog.String("data_dir", s.config.DataDir),
		slog.String("cluster_id", s.broker.ClusterID()), slog.Int("node_id", int(s.broker.NodeID())),
		slog.String("version", version), slog.String("took", time.Since(begun).String()))
	return nil
}

// listen binds every address before anything else happens, so that a busy port
// leaves no trace on disk.
func (s *server) listen(ctx context.Context) error {
	var lc net.ListenConfig
	for i, slot := range []*net.Listener{&s.http, &s.kafka, &s.ops} {
		bind := s.config.listeners()[i]
		l, err := lc.Listen(ctx, "tcp", bind.addr)
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%s %s: the port is in use by another process", bind.flag, bind.addr)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", bind.flag, err)
		}
		*slot = l
	}
	return nil
}

// start serves every listener until close.
func (s *server) start(ctx context.Context) {
	serve := context.WithoutCancel(ctx)
	s.running.Go(func() { s.fail(s.kafkaDoor.Serve(serve, s.kafka)) })
	s.running.Go(func() { s.fail(s.restDoor.Serve(serve, s.http)) })
	s.running.Go(func() {
		if err := s.opsDoor.Serve(s.ops); !errors.Is(err, http.ErrServerClosed) {
			s.fail(err)
		}
	})
}

// fail ends the server with err; only the first counts.
func (s *server) fail(err error) {
	if err == nil {
		return
	}
	select {
	case s.failed <- err:
	default:
	}
}

func (s *server) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		s.log.Info("stopping")
		return nil
	case err := <-s.failed:
		s.log.Error("stopping", slog.Any("err", err))
		return err
	}
}

// close is open in reverse.
func (s *server) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	var errs []error
	if s.restDoor != nil {
		var doors sync.WaitGroup
		var wsErr, httpErr, kafkaErr error
		doors.Go(func() { wsErr = s.wsDoor.Shutdown(ctx) })
		doors.Go(func() { httpErr = s.restDoor.Shutdown(ctx) })
		doors.Go(func() { kafkaErr = s.kafkaDoor.Shutdown(ctx) })
		doors.Wait()
		errs = append(errs, wsErr, httpErr, kafkaErr)
	}
	if s.broker != nil {
		errs = append(errs, s.broker.Close())
	}
	if s.opsDoor != nil {
		errs = append(errs, s.opsDoor.Close())
	}
	for _, l := range []net.Listener{s.http, s.kafka, s.ops} {
		if l != nil {
			// The doors close their listeners; this is for those not yet served.
			_ = l.Close()
		}
	}
	s.running.Wait()
	return errors.Join(errs...)
}

// opsHandler is the operators' door.
func (s *server) opsHandler(metrics *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.broker.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ready\n")
	})
	return mux
}

// announce writes the ready file, whole or not at all.
func (s *server) announce() error {
	name := s.config.ReadyFile
	if name == "" {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"http": s.http.Addr().String(), "kafka": s.kafka.Addr().String(), "ops": s.ops.Addr().String(), "peer": nil,
		"node_id": s.broker.NodeID(), "cluster_id": s.broker.ClusterID(), "pid": os.Getpid(),
	})
	if err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".tmp")
	if err := os.WriteFile(tmp, append(body, '\n'), 0o644); err != nil {
		return fmt.Errorf("--ready-file: %w", err)
	}
	if err := os.Rename(tmp, name); err != nil {
		return fmt.Errorf("--ready-file: %w", err)
	}
	return nil
}

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
