package measure

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/fault"
	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/node"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
	"github.com/sockwatch/sockwatch/internal/session"
)

// invalid is why a capture says nothing about its cell. It is a result: the
// run goes on.
type invalid struct{ why string }

func (e invalid) Error() string { return e.why }

// worse is the one of two errors that matters: any other than invalid.
func worse(a, b error) error {
	var bad invalid
	if b == nil || a != nil && errors.As(b, &bad) {
		return a
	}
	return b
}

func invalidf(format string, args ...any) error { return invalid{fmt.Sprintf(format, args...)} }

// capture is one capture being made.
type capture struct {
	plan.Capture
	run *run
	row *Row

	label    string
	artifact []byte
	script   *transcript
	lab      *lab.Lab
	obs      *observation
	facts    Facts
	before   node.Reading
	queued   []<-chan uint64 // for each fault of the cell, gets the time at which the request waited in the pinned connection
	later    string          // a version that moved when the window was over
	laterAt  time.Duration

	mu     sync.Mutex
	faults []*fault.Fault
}

const (
	readTimeout = 5 * time.Second
	readEvery   = time.Second
	upTries     = 3
	// healGrace is how much later than planned the watchdog heals a fault whose
	// harness lives but does not.
	healGrace = 20 * time.Second
)

// make makes the capture. The row is filled in also when it is invalid; an
// error is for what ends the run.
func (c *capture) make(ctx context.Context) error {
	c.label = fmt.Sprintf("%s-%s", c.run.id, c.ID)
	var err error
	if c.artifact, err = node.Artifact(c.label); err != nil {
		return err
	}
	c.script = newTranscript()
	c.script.say("capture %s of plan %s: route %s, connection %s", c.ID, c.run.Plan.Name, c.Cell.Route, c.Cell.Connection)
	name := c.run.labName()
	release, err := c.run.guard.Own(c.run.StateDir, name)
	if err != nil {
		return err
	}
	why, err := judge(ctx, c.inLab(ctx, name))
	if why != "" {
		c.script.say("invalid: %s", why)
		c.row.Valid = why
	}
	// The lab goes away in any case. If it does not, the watchdog tries again.
	if c.lab != nil {
		c.script.say("lab %s down", name)
		if e := c.lab.Down(context.WithoutCancel(ctx)); e != nil {
			return errors.Join(err, e)
		}
	}
	if e := release(); e != nil {
		return errors.Join(err, e)
	}
	if err != nil {
		return err
	}
	return c.conclude()
}

// judge tells what makes a capture invalid from what ends the run. What went
// wrong when the run was ending already says nothing about the capture.
func judge(ctx context.Context, err error) (why string, _ error) {
	var bad invalid
	switch {
	case !errors.As(err, &bad):
		return "", err
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	}
	return bad.why, nil
}

// inLab does everything that needs the lab.
func (c *capture) inLab(ctx context.Context, name string) (err error) {
	if err := c.setUp(ctx, name); err != nil {
		return err
	}
	defer func() {
		res, e := c.obs.close()
		if e != nil {
			err = worse(err, e)
			return
		}
		v := res.Summary.Verdict
		c.row.Verdict = v.State
		if v.By > 0 {
			c.row.Verdict += fmt.Sprintf(" by %d", v.By)
		}
		c.script.say("evidence: %s %s", c.row.Verdict, strings.Join(v.Reasons, "; "))
	}()
	err = c.experiment(ctx)
	// Whatever happened: nothing stays broken, and the logs are kept.
	err = worse(err, c.healAll(ctx))
	c.logs(context.WithoutCancel(ctx))
	return err
}

// setUp brings up lab and observer and warms or cools the connection. Not too
// many do so at once: it is work, where the rest of a capture is waiting.
func (c *capture) setUp(ctx context.Context, name string) (err error) {
	select {
	case c.run.starting <- struct{}{}:
		defer func() { <-c.run.starting }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	spec := lab.Spec{Name: name, Backend: c.run.Backend, StateDir: c.run.StateDir, Binary: c.run.Binary}
	for try := 1; ; try++ {
		c.lab, err = lab.Up(ctx, spec)
		if err == nil {
			break
		}
		// One that does not come up now and then is no reason to end a long run.
		if !errors.Is(err, lab.ErrNotReady) || try == upTries || ctx.Err() != nil {
			return err
		}
		c.script.say("%v", err)
	}
	c.script.say("lab %s up", name)
	c.facts = Facts{Route: c.Cell.Route, Roles: make(map[string]string), Addrs: make(map[string]netip.Addr)}
	for _, n := range c.lab.Nodes() {
		c.facts.Addrs[n.Role] = n.Addr
		c.facts.Roles[n.Name], c.facts.Roles[n.Target()] = n.Role, n.Role
		cond, err := n.Condition(ctx)
		if err != nil {
			return err
		}
		c.script.say("%s: %s, %s, MAC %s", n.Role, n.Target(), n.Addr, cond.MAC)
	}
	if c.obs, err = c.run.observe(ctx, c.lab, c.run.evidence(c.ID)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_, e := c.obs.close()
			err = errors.Join(err, ignoreStopped(e, err))
		}
	}()
	c.script.say("observer ready")
	if c.Cell.Connection == plan.Cold {
		if err := c.restartControlplane(ctx); err != nil {
			return err
		}
	}
	if c.before, err = c.read(ctx, node.Direct); err != nil {
		return invalidf("the version could not be read before the send: %v", err)
	}
	c.row.Before = fmt.Sprint(c.before.Version)
	c.script.say("version %d", c.before.Version)
	if c.Cell.Connection == plan.Warm {
		return c.warm(ctx)
	}
	return nil
}

// restartControlplane makes the connection cold: the proxy that had it is
// gone, and the new one's kernel knows no neighbour.
func (c *capture) restartControlplane(ctx context.Context) error {
	n, err := c.lab.Node(lab.Controlplane)
	if err != nil {
		return err
	}
	again := c.obs.watch.expect(attached(n, 2))
	c.note("controlplane killed, to be started")
	if err := n.Kill(ctx); err != nil {
		return err
	}
	if err := n.Start(ctx); err != nil {
		return err
	}
	c.note("controlplane started")
	select {
	case <-again:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(readyWithin):
		return invalidf("the observer did not find the controlplane again")
	}
	return nil
}

// warm uses the proxy's connection to the worker and pins it.
func (c *capture) warm(ctx context.Context) error {
	if _, err := c.read(ctx, node.Proxied); err != nil {
		return invalidf("the version could not be read through the controlplane: %v", err)
	}
	n, err := c.lab.Node(lab.Controlplane)
	if err != nil {
		return err
	}
	worker := netip.AddrPortFrom(c.facts.Addrs[lab.Worker], node.Port)
	// What it sent last may not be acknowledged yet.
	for end := time.Now().Add(readTimeout); ; {
		idle, busy, err := established(n, worker)
		if err != nil {
			return err
		}
		if len(idle) == 1 && busy == 0 {
			c.facts.Pinned = &idle[0]
			c.script.say("connection %s", idle[0])
			return nil
		}
		if time.Now().After(end) {
			return invalidf("%d idle connections from controlplane to worker and %d busy ones, want one that is idle", len(idle), busy)
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// experiment is the capture itself, from the first fault to the last reading.
func (c *capture) experiment(ctx context.Context) error {
	if c.Cell.Idle > 0 {
		c.note("idle for %s", c.Cell.Idle)
		if err := sleep(ctx, c.Cell.Idle); err != nil {
			return err
		}
	}
	for _, f := range c.Cell.Faults {
		if f.At == plan.BeforeSend {
			if _, err := c.inject(ctx, f); err != nil {
				return err
			}
		}
	}
	cl, err := c.send(ctx)
	if err != nil {
		return err
	}
	defer cl.stop()
	if err := c.timeline(ctx); err != nil {
		return err
	}
	if len(c.Cell.Faults) == 0 {
		if err := cl.wait(ctx); err != nil {
			return err
		}
	}
	if err := c.window(ctx); err != nil {
		return err
	}
	if err := cl.wait(ctx); err != nil {
		return err
	}
	c.ended(cl)
	if err := c.afterWindow(ctx); err != nil {
		return err
	}
	return c.nodesLive(ctx)
}

func (c *capture) note(format string, args ...any) {
	c.markAt(monoNow(), fmt.Sprintf(format, args...))
}

func (c *capture) markAt(at uint64, text string) {
	c.script.sayAt(at, "%s", text)
	c.obs.mark(session.MarkKinds[0], text, at)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
