package broker

import (
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"leat/auth"
	"leat/storage/disk"
)

// Options says how a Broker works. The zero value of a field means its
// default; only Path is needed.
type Options struct {
	// Path is the data directory, made if it is missing.
	Path string
	// FS holds the directory; default the operating system.
	FS disk.FS
	// NodeID is this node's id in a fresh directory, at least 1; default 1. A
	// directory that has one keeps it.
	NodeID int32
	// Host and Port are the address of the Kafka door that clients are told.
	Host string
	Port int32
	// Configs are the server's configs by Kafka's names.
	Configs map[string]string
	// Authorizer decides about every call; default auth.AllowAll.
	Authorizer auth.Authorizer
	// Logger gets what an operator must know; default none.
	Logger *slog.Logger
	// Registerer gets the metrics; default none.
	Registerer prometheus.Registerer
	// Now is the clock; default time.Now.
	Now func() time.Time
	// OnFailure is called once when the data directory has failed for good: a
	// sync failed, or a write that could not be undone. The process must end.
	OnFailure func(error)
}

func (o *Options) setDefaults() {
	if o.FS == nil {
		o.FS = disk.OS
	}
	if o.NodeID == 0 {
		o.NodeID = 1
	}
	if o.Authorizer == nil {
		o.Authorizer = auth.AllowAll{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
}

// openers is how many logs open side by side at the start.
func openers() int { return min(32, 2*runtime.GOMAXPROCS(0)) }
