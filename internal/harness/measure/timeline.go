package measure

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/fault"
	"github.com/sockwatch/sockwatch/internal/harness/plan"
)

// inject makes a fault of the plan, and says which of those in place it is.
func (c *capture) inject(ctx context.Context, f plan.Fault) (int, error) {
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
		return 0, invalidf("%v", err)
	case err != nil:
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, active)
	return len(c.faults) - 1, nil
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
	for i, f := range c.Cell.Faults {
		if f.At == plan.Queued {
			wg.Go(func() {
				i, err := c.hold(ctx, f, c.queued[i])
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
func (c *capture) hold(ctx context.Context, f plan.Fault, queued <-chan uint64) (int, error) {
	deadline := c.run.Plan.Deadline
	select {
	case at := <-queued:
		c.script.sayAt(at, "queued: %d bytes or more in connection %s", len(c.artifact), c.facts.Pinned)
	case <-time.After(time.Until(c.at(deadline))):
		return 0, invalidf("no event said until the deadline that the request is queued on %s", c.facts.Pinned)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	i, err := c.inject(ctx, f)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
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

// at is a time after the send.
func (c *capture) at(d time.Duration) time.Time {
	return time.Now().Add(d - time.Duration(monoNow()-c.facts.Sent))
}

func (c *capture) sleepUntil(ctx context.Context, d time.Duration) error {
	return sleep(ctx, time.Until(c.at(d)))
}
