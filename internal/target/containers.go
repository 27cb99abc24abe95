package target

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	// settle is how long a new event stream may take to repeat what it kept,
	// before the state is compared: an event says when, a comparison does not.
	settle = 100 * time.Millisecond
	// retryEngine is the pause between attempts to reach the engine.
	retryEngine = 500 * time.Millisecond
)

// containers follows the targets that are, or may become, containers. After
// run has started all of it belongs to run's goroutine, which may wait for
// the engine: nothing else does.
type containers struct {
	all    []*followed
	report func(report)
	since  int64 // the engine's clock at the last event
	eng    *engine
	retry  <-chan time.Time
}

// followed is one target and the container it follows. A name follows the
// container that bears it; a renamed one is kept until another takes the
// name.
type followed struct {
	t   *target
	ref string
	ctr ctr        // as it was when attached, kept up to date by events
	cur *Namespace // token of the attached generation, or nil

	trouble string // why it could not be looked at, as last reported
}

func (c *containers) add(t *target) *followed {
	f := &followed{t: t, ref: t.spec.Name}
	c.all = append(c.all, f)
	return f
}

func (f *followed) found(c ctr, token *Namespace) { f.ctr, f.cur, f.trouble = c, token, "" }

// byName reports whether the target is a name, which a later container may
// bear, and not an id.
func (f *followed) byName() bool {
	return f.ctr.id == "" || !strings.HasPrefix(f.ctr.id, f.ref)
}

// concerns reports whether container id, called name, is or may be f's.
func (f *followed) concerns(id, name string) bool {
	return id == f.ctr.id || name == f.ref || isContainerID(f.ref) && strings.HasPrefix(id, f.ref)
}

// run reads the engine's events until ctx ends, and reads on after a loss.
func (c *containers) run(ctx context.Context) {
	lost, why := uint64(0), error(nil) // when the stream was lost
	for ctx.Err() == nil {
		if eng, err := newEngine(); err == nil {
			if _, err = eng.list(ctx); err == nil {
				c.eng = eng
				why = c.stream(ctx, lost, why)
				lost = monoNow()
			}
			eng.close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryEngine):
		}
	}
}

// stream handles events until the stream ends, and says why. Lost and lostWhy
// are of the stream before, if any.
func (c *containers) stream(ctx context.Context, lost uint64, lostWhy error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events, failed := c.eng.events(ctx, c.since)
	from := c.since
	settled := time.After(settle)
	for {
		select {
		case ev := <-events:
			if ev.nano > from { // not what the stream before had
				c.handle(ctx, ev)
			}
			c.since = max(c.since, ev.nano)
		case <-settled:
			note := ""
			if lost != 0 {
				note = fmt.Sprintf("seen after %v without the engine's events: %v", time.Duration(monoNow()-lost).Round(time.Millisecond), lostWhy)
			}
			c.compare(ctx, note)
		case <-c.retry:
			c.retry = nil
			c.compare(ctx, "")
		case err := <-failed:
			return err
		}
	}
}

// handle takes one event.
func (c *containers) handle(ctx context.Context, ev engineEvent) {
	for _, f := range c.all {
		// An event may be older than the start that was last seen.
		attached := f.cur != nil && f.ctr.id == ev.id && ev.nano >= f.ctr.started
		switch ev.action {
		case "start":
			if f.concerns(ev.id, ev.name) {
				c.refresh(ctx, f, ev.mono, "")
			}
		case "die":
			if attached {
				c.end(f, ev.mono, "container ended with status "+ev.exitCode)
			}
		case "destroy":
			if f.ctr.id == ev.id {
				c.removed(f, ev.mono, "")
			}
		case "rename":
			if f.ctr.id == ev.id {
				f.ctr.name = ev.name
			}
			if ev.name == f.ref {
				c.refresh(ctx, f, ev.mono, "")
			}
		case "pause", "unpause":
			if attached {
				c.setPaused(f, ev.action == "pause", ev.mono, "")
			}
		case "connect", "disconnect":
			if attached {
				c.setNetwork(f, ev.networkID, ev.network, ev.action == "connect", ev.mono, "")
			}
		}
	}
}

// end reports the end of f's generation.
func (c *containers) end(f *followed, mono uint64, detail string) {
	c.report(report{t: f.t, kind: Gone, token: f.cur, mono: mono, detail: detail})
	f.cur = nil
}

// removed ends f's container, and f itself if that was given by its id.
func (c *containers) removed(f *followed, mono uint64, note string) {
	detail := join("container removed", note)
	if f.cur != nil {
		c.end(f, mono, detail)
	}
	if !f.byName() {
		c.report(report{t: f.t, kind: Gone, mono: mono, detail: detail, container: f.ctr.id, final: true})
	}
}

func (c *containers) setPaused(f *followed, paused bool, mono uint64, note string) {
	if f.ctr.paused == paused {
		return
	}
	f.ctr.paused = paused
	kind := Unpaused
	if paused {
		kind = Paused
	}
	c.report(report{t: f.t, kind: kind, token: f.cur, mono: mono, detail: join(f.label(), note)})
}

// setNetwork reports a change of f's networks. The engine may report the same
// one twice.
func (c *containers) setNetwork(f *followed, id, name string, connected bool, mono uint64, note string) {
	if _, was := f.ctr.networks[id]; was == connected {
		return
	}
	kind := Disconnected
	if connected {
		kind = Connected
		f.ctr.networks[id] = name
	} else {
		delete(f.ctr.networks, id)
	}
	c.report(report{t: f.t, kind: kind, token: f.cur, mono: mono, detail: join(name, note)})
}

// label names the container when that is not what the user typed.
func (f *followed) label() string {
	if f.ctr.name == f.ref || !f.byName() {
		return ""
	}
	return "now named " + f.ctr.name
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

// compare looks at every container for what no event told.
func (c *containers) compare(ctx context.Context, note string) {
	for _, f := range c.all {
		c.refresh(ctx, f, 0, note)
	}
}

// find asks for f's container: the one that bears the name, else the one that
// was followed.
func (c *containers) find(ctx context.Context, f *followed) (ctr, error) {
	if f.byName() {
		now, err := c.eng.inspect(ctx, f.ref)
		// The engine also takes the beginning of an id for a reference.
		asID := f.ctr.id == "" && (f.t.spec.Kind == Docker || isContainerID(f.ref))
		if err == nil && now.name != f.ref && !asID {
			err = errNoContainer
		}
		if !errors.Is(err, errNoContainer) || f.ctr.id == "" {
			return now, err
		}
	}
	return c.eng.inspect(ctx, f.ctr.id)
}

// refresh brings f up to the engine's state. Mono is when an event told of a
// change, or 0 when none did.
func (c *containers) refresh(ctx context.Context, f *followed, mono uint64, note string) {
	now, err := c.find(ctx, f)
	if mono == 0 {
		mono = monoNow()
	}
	if err != nil && !errors.Is(err, errNoContainer) {
		c.trouble(ctx, f, err)
		return
	}
	if err != nil && f.ctr.id != "" {
		c.removed(f, mono, note)
	}
	if err != nil {
		return
	}
	same := now.id == f.ctr.id && now.started == f.ctr.started && now.running()
	if f.cur != nil && same {
		f.ctr.name = now.name
		c.setPaused(f, now.paused, mono, note)
		for id, name := range maps.Clone(f.ctr.networks) {
			if _, ok := now.networks[id]; !ok {
				c.setNetwork(f, id, name, false, mono, note)
			}
		}
		for id, name := range now.networks {
			c.setNetwork(f, id, name, true, mono, note)
		}
		return
	}
	if f.cur != nil {
		detail := "container ended"
		switch {
		case now.id != f.ctr.id && now.running():
			detail = "the name was given to container " + now.id
		case now.id != f.ctr.id:
			return // a new bearer that does not run does not end the old one
		}
		c.end(f, mono, join(detail, note))
	}
	if !now.running() {
		return
	}
	got, ns, pidfd, err := c.eng.open(ctx, now.id)
	if err != nil {
		var stopped errNotRunning
		if !errors.As(err, &stopped) && !errors.Is(err, errNoContainer) {
			c.trouble(ctx, f, err)
		}
		return
	}
	c.attach(f, got, ns, pidfd, note)
}

func (c *containers) attach(f *followed, got ctr, ns *Namespace, pidfd *os.File, note string) {
	f.found(got, ns)
	c.report(report{
		t: f.t, kind: Attached, token: ns, pidfd: pidfd, mono: monoNow(), container: got.id,
		detail: join(attachDetail(found{kind: Docker, ctr: got}), f.label(), note),
	})
}

// trouble reports why f could not be looked at, and tries again.
func (c *containers) trouble(ctx context.Context, f *followed, err error) {
	if ctx.Err() != nil {
		return
	}
	if f.cur == nil && f.trouble != err.Error() {
		f.trouble = err.Error()
		c.report(report{t: f.t, kind: Waiting, mono: monoNow(), detail: f.trouble})
	}
	if c.retry == nil {
		c.retry = time.After(checkEvery)
	}
}
