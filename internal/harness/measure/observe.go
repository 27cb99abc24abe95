package measure

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/target"
)

// observation is the observer of one capture.
type observation struct {
	cancel context.CancelFunc
	marks  chan session.MarkRequest
	watch  *watcher
	out    sink.Sink

	unmarked atomic.Bool // a mark is missing

	done   chan struct{}
	result *session.Result
	err    error
}

const readyWithin = time.Minute

// observe watches the nodes of a lab and writes the evidence to path. It
// returns when every node is being watched.
func (r *run) observe(ctx context.Context, l *lab.Lab, path string) (*observation, error) {
	var specs []target.Spec
	for _, n := range l.Nodes() {
		spec, err := target.ParseSpec(n.Target())
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	file, err := sink.OpenFile(path, sink.Create)
	if err != nil {
		return nil, &session.OutputError{Err: err}
	}
	o := &observation{
		marks: make(chan session.MarkRequest),
		watch: new(watcher),
		out:   sink.NewJSONL(file),
		done:  make(chan struct{}),
	}
	// It outlives ctx: what ends the capture still belongs in the evidence.
	var own context.Context
	own, o.cancel = context.WithCancel(context.WithoutCancel(ctx))
	ready := make(chan struct{})
	go func() {
		defer close(o.done)
		o.result, o.err = session.Run(own, session.Config{
			Targets: specs,
			IO:      true, // what was written when, and when it was read, is what captures are about
			Marks:   o.marks,
			Sinks:   []sink.Sink{o.out, o.watch},
			OnReady: func() error { close(ready); return nil },
			Version: r.Version, Commit: r.Commit, Command: r.Command,
		})
		if err := o.out.Close(); err != nil && o.err == nil {
			o.err = &session.OutputError{Err: err}
		}
	}()
	select {
	case <-ready:
		return o, nil
	case <-o.done:
		err = o.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(readyWithin):
		err = errors.New("the observer is not ready after a minute")
	}
	_, e := o.close()
	return nil, errors.Join(err, ignoreStopped(e, err))
}

// ignoreStopped: an error that is known already is not repeated.
func ignoreStopped(e, known error) error {
	if e == nil || errors.Is(known, e) {
		return nil
	}
	return e
}

// mark puts a mark into the evidence. If it cannot, close says so.
func (o *observation) mark(kind, text string, monoNS uint64) {
	m, done := session.NewMark(events.Mark{Text: text, Kind: kind, By: "sockwatch measure"}, monoNS)
	select {
	case o.marks <- m:
	case <-o.done:
		o.unmarked.Store(true)
		return
	}
	select {
	case err := <-done:
		if err == nil {
			return
		}
	case <-o.done:
	}
	o.unmarked.Store(true)
}

// close ends the observation.
func (o *observation) close() (*session.Result, error) {
	o.cancel()
	<-o.done
	if o.err == nil && o.unmarked.Load() {
		o.err = errors.New("the observer ended before the capture")
	}
	return o.result, o.err
}

// watcher is a sink that tells who waits for an event.
type watcher struct {
	mu      sync.Mutex
	waiters []*waiter
}

type waiter struct {
	match func(*events.Event) bool
	found chan uint64 // its time
}

// expect returns a channel that gets the time of the first event that matches
// from now on.
func (w *watcher) expect(match func(*events.Event) bool) <-chan uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := &waiter{match, make(chan uint64, 1)}
	w.waiters = append(w.waiters, x)
	return x.found
}

func (w *watcher) Write(e *events.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 0; i < len(w.waiters); {
		if x := w.waiters[i]; x.match(e) {
			x.found <- e.MonoNS
			w.waiters = append(w.waiters[:i], w.waiters[i+1:]...)
			continue
		}
		i++
	}
	return nil
}

func (w *watcher) Flush() error { return nil }
func (w *watcher) Close() error { return nil }

// queued matches the event that shows that at least size bytes wait in a
// connection of a node.
func queued(n *lab.Node, c Conn, size int) func(*events.Event) bool {
	return func(e *events.Event) bool {
		return e.TCP != nil && e.Netns != nil && isNode(e.Netns.Name, n) && e.Sock != nil &&
			e.Sock.Local == c.Local && e.Sock.Remote == c.Remote &&
			int(e.TCP.UnackedBytes)+int(e.TCP.UnsentBytes) >= size
	}
}

// attached matches the event that a node is watched in its nth namespace.
func attached(n *lab.Node, generation int) func(*events.Event) bool {
	return func(e *events.Event) bool {
		return e.Target != nil && e.Target.Change == target.Attached.String() && e.Netns != nil &&
			isNode(e.Netns.Name, n) && e.Netns.Generation >= generation
	}
}

// isNode reports whether the name of a watched namespace is a node's.
func isNode(name string, n *lab.Node) bool { return name == n.Name || name == n.Target() }

func monoNow() uint64 {
	now, err := evidence.MonoNow()
	if err != nil {
		panic(err) // the clock has always been there
	}
	return now
}
