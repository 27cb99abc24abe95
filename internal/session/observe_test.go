package session_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/target"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// memory keeps every line, as it would stand in the file.
type memory struct {
	mu    sync.Mutex
	lines [][]byte
	all   []events.Event
}

func (m *memory) Write(e *events.Event) error {
	line := e.AppendJSON(nil)
	var back events.Event
	if err := json.Unmarshal(line, &back); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = append(m.lines, line)
	m.all = append(m.all, back)
	return nil
}

func (m *memory) Flush() error { return nil }
func (m *memory) Close() error { return nil }

// observation is a session that runs beside a test.
type observation struct {
	t      *testing.T
	mem    *memory
	cancel context.CancelFunc
	done   chan struct{}
	result *session.Result
	err    error
}

// observe watches the named targets until the test stops it or ends.
func observe(t *testing.T, targets ...string) *observation {
	t.Helper()
	return observeWith(t, session.Config{}, targets...)
}

func observeWith(t *testing.T, cfg session.Config, targets ...string) *observation {
	t.Helper()
	testlab.Privileged(t)
	for _, name := range targets {
		spec, err := target.ParseSpec(name)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Targets = append(cfg.Targets, spec)
	}
	ctx, cancel := context.WithCancel(context.Background())
	o := &observation{t: t, mem: &memory{}, cancel: cancel, done: make(chan struct{})}
	cfg.Sinks = append(cfg.Sinks, sink.Sink(o.mem))
	cfg.Notice = func(s string) { t.Log("notice: " + s) }
	ready := make(chan struct{})
	onReady := cfg.OnReady
	cfg.OnReady = func() error {
		close(ready)
		if onReady != nil {
			return onReady()
		}
		return nil
	}
	go func() {
		defer close(o.done)
		o.result, o.err = session.Run(ctx, cfg)
	}()
	t.Cleanup(func() {
		cancel()
		<-o.done
		if t.Failed() || testing.Verbose() {
			o.log()
		}
	})
	select {
	case <-ready:
	case <-o.done:
		t.Fatalf("the session ended before it was ready: %v", o.err)
	case <-time.After(testlab.Slack(30 * time.Second)):
		t.Fatal("the session is not ready after 30 s")
	}
	return o
}

// stop ends the session and returns everything it wrote, after the checks
// that hold for every session.
func (o *observation) stop() []events.Event {
	o.t.Helper()
	o.cancel()
	<-o.done
	if o.err != nil {
		o.t.Fatalf("session: %v", o.err)
	}
	evs := o.events()
	for i, e := range evs {
		if e.Seq != uint64(i+1) {
			o.t.Fatalf("line %d has seq %d", i+1, e.Seq)
		}
	}
	if first := evs[0].Type; first != events.TypeSession {
		o.t.Errorf("first line is %s", first)
	}
	last := evs[len(evs)-1]
	if last.Type != events.TypeSummary {
		o.t.Fatalf("last line is %s", last.Type)
	}
	if last.Summary.Lines != uint64(len(evs)) {
		o.t.Errorf("summary says %d lines, there are %d", last.Summary.Lines, len(evs))
	}
	if k := last.Summary.Kernel; k.Unaccounted != 0 || k.Produced != k.Read+k.Lost {
		o.t.Errorf("records unaccounted for: %+v", k)
	}
	counts := map[string]uint64{}
	for _, e := range evs {
		counts[string(e.Type)]++
	}
	for typ, n := range counts {
		if last.Summary.Events[typ] != n {
			o.t.Errorf("summary says %d events of type %s, there are %d", last.Summary.Events[typ], typ, n)
		}
	}
	verifies(o.t, o.mem.lines)
	return evs
}

// log prints every line without its snapshot, and of very long ones (the
// ledgers of hundreds of namespaces) the beginning.
func (o *observation) log() {
	const limit = 16 << 10
	for _, l := range o.mem.lines {
		s := string(l)
		if i := strings.Index(s, `,"tcp":`); i > 0 {
			s = s[:i] + "}"
		}
		if len(s) > limit {
			s = s[:limit] + "..."
		}
		o.t.Log(s)
	}
}

// blind says whether the session declares that it cannot see something on this
// kernel. A test that needs it asserts what is seen instead.
func (o *observation) blind(spot string) bool {
	o.t.Helper()
	return declared(o.until("header", 5*time.Second, func(e *events.Event) bool { return e.Session != nil }).Session, spot)
}

func declared(s *events.Session, spot string) bool {
	return slices.ContainsFunc(s.BlindSpots, func(b string) bool { return strings.HasPrefix(b, spot) })
}

// events are those written so far.
func (o *observation) events() []events.Event {
	o.mem.mu.Lock()
	defer o.mem.mu.Unlock()
	return append([]events.Event(nil), o.mem.all...)
}

// until waits for an event that satisfies f and returns it.
func (o *observation) until(what string, within time.Duration, f func(*events.Event) bool) events.Event {
	o.t.Helper()
	deadline := time.Now().Add(testlab.Slack(within))
	for {
		evs := o.events()
		for i := range evs {
			if f(&evs[i]) {
				return evs[i]
			}
		}
		if time.Now().After(deadline) {
			o.t.Fatalf("no %s within %v", what, within)
		}
		select {
		case <-o.done:
			o.t.Fatalf("the session ended (%v) before %s", o.err, what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// pick returns the events of one type that satisfy f (nil: all).
func pick(evs []events.Event, typ events.Type, f func(*events.Event) bool) []events.Event {
	var out []events.Event
	for i := range evs {
		if evs[i].Type == typ && (f == nil || f(&evs[i])) {
			out = append(out, evs[i])
		}
	}
	return out
}
