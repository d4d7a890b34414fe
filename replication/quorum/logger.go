package quorum

import (
	"fmt"
	"log/slog"

	"go.etcd.io/raft/v3"
)

// raftLogger is Raft's logger. What Raft holds to be the end of everything is a
// panic, which the Core catches.
type raftLogger struct{ l *slog.Logger }

var _ raft.Logger = raftLogger{}

// line is a line that is made only if it is wanted.
type line struct {
	format string
	v      []any
}

// LogValue implements slog.LogValuer.
func (t line) LogValue() slog.Value {
	if t.format == "" {
		return slog.StringValue(fmt.Sprint(t.v...))
	}
	return slog.StringValue(fmt.Sprintf(t.format, t.v...))
}

func text(format string, v []any) slog.Attr { return slog.Any("text", line{format, v}) }

func (r raftLogger) Debug(v ...any)                   { r.l.Debug("raft", text("", v)) }
func (r raftLogger) Debugf(format string, v ...any)   { r.l.Debug("raft", text(format, v)) }
func (r raftLogger) Info(v ...any)                    { r.l.Debug("raft", text("", v)) }
func (r raftLogger) Infof(format string, v ...any)    { r.l.Debug("raft", text(format, v)) }
func (r raftLogger) Warning(v ...any)                 { r.l.Warn("raft", text("", v)) }
func (r raftLogger) Warningf(format string, v ...any) { r.l.Warn("raft", text(format, v)) }
func (r raftLogger) Error(v ...any)                   { r.l.Error("raft", text("", v)) }
func (r raftLogger) Errorf(format string, v ...any)   { r.l.Error("raft", text(format, v)) }
func (r raftLogger) Fatal(v ...any)                   { panic(fmt.Sprint(v...)) }
func (r raftLogger) Fatalf(format string, v ...any)   { panic(fmt.Sprintf(format, v...)) }
func (r raftLogger) Panic(v ...any)                   { panic(fmt.Sprint(v...)) }
func (r raftLogger) Panicf(format string, v ...any)   { panic(fmt.Sprintf(format, v...)) }
