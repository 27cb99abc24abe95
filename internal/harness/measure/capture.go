package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sockwatch/sockwatch/internal/evidence"
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
	queued   <-chan uint64 // gets the time at which the request waited in the pinned connection
	later    string        // a version that moved when the window was over
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
	err = c.inLab(ctx, name)
	var bad invalid
	if errors.As(err, &bad) {
		c.script.say("invalid: %s", bad.why)
		c.row.Valid, err = bad.why, nil
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
			if err := c.inject(ctx, f); err != nil {
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

// nodesLive: what a node that died meanwhile did not do says nothing.
func (c *capture) nodesLive(ctx context.Context) error {
	for _, n := range c.lab.Nodes() {
		cond, err := n.Condition(ctx)
		if err != nil {
			return err
		}
		if !cond.Alive {
			return invalidf("node %s has died", n.Role)
		}
	}
	return nil
}

// inject makes a fault of the plan.
func (c *capture) inject(ctx context.Context, f plan.Fault) error {
	in := &fault.Injector{Guard: c.run.guard, Mark: func(kind, text string, at uint64) {
		c.script.sayAt(at, "%s: %s", kind, text)
		c.obs.mark(kind, text, at)
	}}
	active, err := in.Inject(ctx, c.lab, fault.Spec{
		Kind: f.Kind, Mechanism: f.Mechanism, Node: f.Node,
		HealBy: c.run.Plan.Deadline + f.Heal + healGrace,
	})
	switch {
	case errors.Is(err, fault.ErrNoEffect), errors.Is(err, fault.ErrUnwell):
		return invalidf("%v", err)
	case err != nil:
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, active)
	return nil
}

// timeline waits for what is to happen after the send, and does it.
func (c *capture) timeline(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	failed := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
		cancel(err)
	}
	heal := func(i int, at time.Duration) {
		if err := c.sleepUntil(ctx, at); err != nil {
			failed(err)
			return
		}
		if err := c.heal(ctx, i); err != nil {
			failed(err)
		}
	}
	for i, f := range c.Cell.Faults {
		if f.At == plan.BeforeSend {
			wg.Go(func() { heal(c.index(i), f.Heal) })
		}
	}
	for _, f := range c.Cell.Faults {
		if f.At == plan.Queued {
			wg.Go(func() {
				i, err := c.hold(ctx, f)
				if err != nil {
					failed(err)
					return
				}
				heal(i, f.Heal)
			})
		}
	}
	wg.Wait()
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// index of the nth fault of the cell among those in place: those before the
// send were made in the order of the plan.
func (c *capture) index(n int) (i int) {
	for _, f := range c.Cell.Faults[:n] {
		if f.At == plan.BeforeSend {
			i++
		}
	}
	return i
}

// hold waits for the event that the request is queued in the pinned
// connection, and then makes the fault.
func (c *capture) hold(ctx context.Context, f plan.Fault) (int, error) {
	deadline := c.run.Plan.Deadline
	select {
	case at := <-c.queued:
		c.script.sayAt(at, "queued: %d bytes or more in connection %s", len(c.artifact), c.facts.Pinned)
	case <-time.After(time.Until(c.at(deadline))):
		return 0, invalidf("no event said until the deadline that the request is queued on %s", c.facts.Pinned)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if err := c.inject(ctx, f); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i := len(c.faults) - 1
	if applied := c.faults[i].Times.Applied; applied > c.facts.Sent+uint64(deadline) {
		return 0, invalidf("%s of %s came %.1f s after the send, later than the deadline", f.Kind, f.Node, c.facts.after(applied))
	}
	return i, nil
}

// heal heals the ith fault.
func (c *capture) heal(ctx context.Context, i int) error {
	c.mu.Lock()
	f := c.faults[i]
	c.mu.Unlock()
	if f.Times.HealIntended != 0 {
		return nil
	}
	if err := f.Heal(ctx); err != nil {
		if errors.Is(err, fault.ErrNotWell) {
			return invalidf("%v", err)
		}
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.facts.Healed = max(c.facts.Healed, f.Times.Healed)
	return nil
}

// healAll heals what is still in place, the last first.
func (c *capture) healAll(ctx context.Context) error {
	var err error
	for i := range slices.Backward(c.faults) {
		err = worse(err, c.heal(ctx, i))
	}
	return err
}

// client is the process that sends the request.
type client struct {
	cmd   *exec.Cmd
	out   bytes.Buffer
	timer *time.Timer
	done  chan struct{}
	ended uint64
}

// send starts the client, which is killed at the deadline.
func (c *capture) send(ctx context.Context) (*client, error) {
	n, err := c.lab.Node(lab.Client)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(c.lab.Dir, "artifact.yaml")
	if err := os.WriteFile(file, c.artifact, 0o600); err != nil {
		return nil, err
	}
	if c.facts.Pinned != nil {
		from, err := c.lab.Node(lab.Controlplane)
		if err != nil {
			return nil, err
		}
		c.queued = c.obs.watch.expect(queued(from, *c.facts.Pinned, len(c.artifact)))
	}
	cl := &client{done: make(chan struct{})}
	// Not ctx: it is killed at its deadline, or with its lab.
	cl.cmd = n.Command(context.WithoutCancel(ctx), c.lab.Binary, "node", "apply", "--route", string(c.Cell.Route), file)
	cl.cmd.Stdout, cl.cmd.Stderr = &cl.out, &cl.out
	c.facts.Sent = monoNow()
	if err := cl.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the client: %w", err)
	}
	cl.timer = time.AfterFunc(c.run.Plan.Deadline, func() { _ = cl.cmd.Process.Kill() })
	go func() {
		_ = cl.cmd.Wait()
		cl.ended = monoNow()
		close(cl.done)
	}()
	c.row.SentNS = c.facts.Sent
	c.row.Sent = time.Now().UTC().Add(-time.Duration(monoNow() - c.facts.Sent)).Format(time.RFC3339Nano)
	c.markAt(c.facts.Sent, "sent: the client starts")
	return cl, nil
}

func (cl *client) stop() {
	cl.timer.Stop()
	_ = cl.cmd.Process.Kill()
	<-cl.done
}

func (cl *client) wait(ctx context.Context) error {
	select {
	case <-cl.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ended takes down how the client ended.
func (c *capture) ended(cl *client) {
	c.facts.Ended = cl.ended
	c.row.Ended = c.facts.after(cl.ended)
	state := cl.cmd.ProcessState
	c.row.RC = state.ExitCode()
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		c.row.RC = 128 + int(ws.Signal())
	}
	c.markAt(cl.ended, fmt.Sprintf("the client ended, status %d", c.row.RC))
	for line := range bytes.Lines(cl.out.Bytes()) {
		c.script.say("client: %s", bytes.TrimSpace(line))
		var o node.Outcome
		if json.Unmarshal(line, &o) == nil && o.Event == "end" {
			c.row.Client = strings.TrimSpace(o.Code + " " + o.Error)
		}
	}
}

// window reads the version once a second.
func (c *capture) window(ctx context.Context) error {
	start := time.Now()
	c.row.Healed = -1
	if c.facts.Healed != 0 {
		c.row.Healed = c.facts.after(c.facts.Healed)
	}
	c.note("reading the version for %s", c.run.Plan.Window)
	for n := 0; ; n++ {
		next := start.Add(time.Duration(n) * readEvery)
		if next.Sub(start) >= c.run.Plan.Window {
			break
		}
		if err := sleep(ctx, time.Until(next)); err != nil {
			return err
		}
		r, err := c.read(ctx, node.Direct)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			c.row.After = Unknown
			c.script.say("version not read: %v", err)
			continue
		}
		c.seen(r)
	}
	c.facts.Closed = monoNow()
	switch {
	case c.row.FirstSeen >= 0:
		c.row.Landed = Yes
	case c.row.After != Unknown:
		c.row.Landed = No
	}
	return nil
}

// seen takes down a reading.
func (c *capture) seen(r node.Reading) {
	c.row.After = fmt.Sprint(r.Version)
	if r.Label == c.label && c.row.FirstSeen < 0 {
		c.row.FirstSeen = c.facts.after(monoNow())
		c.row.Updated = r.Updated.UTC().Format(time.RFC3339)
		c.script.say("version %d, updated %s: it has landed", r.Version, c.row.Updated)
	}
}

// afterWindow reads the version once more, last of all before the lab is taken
// down.
func (c *capture) afterWindow(ctx context.Context) error {
	r, err := c.read(ctx, node.Direct)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		c.script.say("version not read after the window: %v", err)
		return nil
	}
	if v := fmt.Sprint(r.Version); c.row.After != Unknown && v != c.row.After {
		c.later, c.laterAt = v, time.Duration(monoNow()-c.facts.Sent)
		c.script.say("version %s after the window", v)
	}
	return nil
}

func (c *capture) read(ctx context.Context, route node.Route) (node.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return c.lab.ReadVersion(ctx, route)
}

// logs keeps what the nodes' programs wrote, and takes down the request's part.
func (c *capture) logs(ctx context.Context) {
	for _, n := range c.lab.Nodes() {
		b, err := n.Log(ctx)
		if err != nil {
			c.script.say("no log of %s: %v", n.Role, err)
			continue
		}
		c.script.section("log of "+n.Role, b)
		for _, l := range node.ParseLog(b) {
			switch {
			case l.Msg == node.MsgApplied && l.Label == c.label:
				c.row.Lines++
				if c.facts.Applied == 0 && c.facts.Sent != 0 {
					c.facts.Applied = l.MonoNS
					c.row.Applied = c.facts.after(l.MonoNS)
				}
			case l.Msg != node.MsgCall || !strings.HasSuffix(l.Method, "/"+node.MsgApplied):
			case n.Role == lab.Controlplane:
				c.facts.ProxyCall = &l
			case n.Role == lab.Worker:
				c.facts.WorkerCall = &l
			}
		}
	}
}

// conclude explains the capture from what is saved of it.
func (c *capture) conclude() error {
	r := c.row
	if r.Landed != Unknown && (r.Landed == Yes) != (r.Lines > 0) && r.Valid == Yes {
		r.Valid = fmt.Sprintf("version and log disagree: landed %s, %d lines", r.Landed, r.Lines)
	}
	b, err := json.MarshalIndent(c.facts, "", "  ")
	if err == nil {
		err = writeFile(c.run.facts(c.ID), append(b, '\n'))
	}
	if err != nil {
		return &session.OutputError{Err: err}
	}
	if r.Valid == Yes {
		x, err := derive(c.run.Dir, c.ID)
		if err != nil {
			return err
		}
		r.explain(x, c.Cell.Predict)
		c.script.say("landed: %s; predicted: %s; as predicted: %s", r.Landed, c.Cell.Predict, r.Agrees)
		c.script.say("%s", r.Explanation)
	}
	if err := c.script.write(c.run.transcript(c.ID), c.facts.Sent); err != nil {
		return &session.OutputError{Err: err}
	}
	return nil
}

// derive explains a capture from the files in dir.
func derive(dir, id string) (x explained, err error) {
	b, err := os.ReadFile(filepath.Join(dir, factsDir, id+".json"))
	if err != nil {
		return x, err
	}
	if err := json.Unmarshal(b, &x.facts); err != nil {
		return x, fmt.Errorf("%s/%s.json: %w", factsDir, id, err)
	}
	f, err := evidence.ReadFile(filepath.Join(dir, evidenceDir, id+".jsonl"))
	if err != nil {
		return x, err
	}
	x.Explanation = Explain(f.Events, x.facts)
	return x, nil
}

// explained is an explanation with what it rests on.
type explained struct {
	Explanation
	facts Facts
}

// explain fills in what follows from the evidence.
func (r *Row) explain(x explained, p plan.Prediction) {
	if x.Connection != nil {
		r.Connection = x.Connection.String()
	}
	r.DeliveredBy, r.WorkerEnd, r.OtherEnd, r.Explanation = x.DeliveredBy, x.WorkerEnd, x.OtherEnd, x.Text
	if !x.Decided {
		r.Explanation = undecided + x.Text
	}
	if x.DeliveredNS != 0 {
		r.Delivered = x.facts.after(x.DeliveredNS)
	}
	r.Agrees = Unknown
	if r.Landed != Unknown {
		if r.Agrees = p.Agrees(r.Landed == Yes, time.Duration(r.landedAfter()*float64(time.Second))); r.Agrees == "" {
			r.Agrees = Yes
		}
	}
}

const undecided = "undecided: "

// landedAfter is when it landed: as the daemon says, else when it was seen.
func (r *Row) landedAfter() float64 {
	if r.Applied >= 0 {
		return r.Applied
	}
	return r.FirstSeen
}

func (c *capture) note(format string, args ...any) {
	c.markAt(monoNow(), fmt.Sprintf(format, args...))
}

func (c *capture) markAt(at uint64, text string) {
	c.script.sayAt(at, "%s", text)
	c.obs.mark(session.MarkKinds[0], text, at)
}

// at is a time after the send.
func (c *capture) at(d time.Duration) time.Time {
	return time.Now().Add(d - time.Duration(monoNow()-c.facts.Sent))
}

func (c *capture) sleepUntil(ctx context.Context, d time.Duration) error {
	return sleep(ctx, time.Until(c.at(d)))
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
