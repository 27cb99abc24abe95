package node

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
)

// MonoNS reads the clock that stamps everything, CLOCK_MONOTONIC, in
// nanoseconds. It is the same in every namespace and container.
func MonoNS() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // cannot fail on Linux
	}
	return uint64(ts.Nano())
}

// newLog writes what a program does to w, one JSON object a line.
func newLog(w io.Writer, program string) *slog.Logger {
	return slog.New(monoHandler{slog.NewJSONHandler(w, nil)}).With("program", program)
}

// monoHandler adds the time that counts.
type monoHandler struct{ slog.Handler }

func (h monoHandler) Handle(ctx context.Context, r slog.Record) error {
	r.AddAttrs(slog.Uint64("mono_ns", MonoNS()))
	return h.Handler.Handle(ctx, r)
}

func (h monoHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return monoHandler{h.Handler.WithAttrs(a)}
}

// Line is a line of a node's log. What a line does not have is empty.
type Line struct {
	Time    time.Time `json:"time"`
	MonoNS  uint64    `json:"mono_ns"`
	Level   string    `json:"level"`
	Program string    `json:"program"` // machined or apid
	Msg     string    `json:"msg"`     // see the constants
	Error   string    `json:"error"`

	// Of an applied configuration.
	Version    int    `json:"version"`
	Label      string `json:"label"`
	CallerGone bool   `json:"caller_gone"` // its context had ended when it was done

	// Of a proxied call.
	Method    string `json:"method"`
	Code      string `json:"code"`       // how it ended
	StartedNS uint64 `json:"started_ns"` // when the proxy had its headers
	Peer      string `json:"peer"`
	ProxyFrom string `json:"proxyfrom"` // the mark of the proxy before this one, if any
}

// What lines say.
const (
	MsgServing = "serving"
	MsgApplied = "ApplyConfiguration"
	MsgCall    = "call"
)

// ParseLog reads a log. Lines that are no JSON, such as those of a panic, and
// a last line that breaks off come as text in Msg, without a program.
func ParseLog(b []byte) []Line {
	var all []Line
	for line := range bytes.Lines(b) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		var l Line
		if json.Unmarshal(line, &l) != nil {
			l = Line{Msg: string(line)}
		}
		all = append(all, l)
	}
	return all
}
