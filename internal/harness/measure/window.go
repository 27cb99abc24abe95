package measure

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sockwatch/sockwatch/internal/harness/lab"
	"github.com/sockwatch/sockwatch/internal/harness/node"
)

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
