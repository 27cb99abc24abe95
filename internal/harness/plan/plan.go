package plan

import (
	"fmt"
	"strings"
	"time"
)

// Plan is one experiment.
type Plan struct {
	Name     string        `yaml:"plan"`
	About    string        `yaml:"about"`
	Captures int           `yaml:"captures"` // of each cell
	Deadline time.Duration `yaml:"deadline"` // the client is killed this long after the send
	Window   time.Duration `yaml:"window"`   // how long the version is read after the last heal
	Cells    []Cell        `yaml:"cells"`
}

// Cell is a set of captures made in the same way.
type Cell struct {
	Name       string        `yaml:"name"`
	Order      Order         `yaml:"order"`
	Route      Route         `yaml:"route"`
	Connection Connection    `yaml:"connection"` // of the proxied route
	Idle       time.Duration `yaml:"idle"`       // between the last use of a warm connection and the send
	Faults     []Fault       `yaml:"faults"`
	Predict    Prediction    `yaml:"predict"`
}

// Order says which block of the run a cell belongs to.
type Order string

// The orders. The cells of a block are mixed at random; blocks are not.
const (
	First Order = "first"
	Mixed Order = "mixed" // the default
	Last  Order = "last"
)

// Route is how the request reaches the worker.
type Route string

// The routes.
const (
	Proxied Route = "proxied" // through the control plane
	Direct  Route = "direct"  // to the worker's own endpoint
)

// Connection is the state of the proxy's connection to the worker at the send.
type Connection string

// The connections.
const (
	Warm Connection = "warm" // just used, or idle for as long as the cell says
	Cold Connection = "cold" // there is none: the control plane was killed and started
)

// Fault is something done to a node and undone.
type Fault struct {
	Kind      Kind          `yaml:"kind"`
	Mechanism string        `yaml:"mechanism"` // of a netsplit; empty: unplug
	Node      string        `yaml:"node"`
	At        At            `yaml:"at"`
	Heal      time.Duration `yaml:"heal"` // after the send
}

// Kind is what is done.
type Kind string

// The kinds.
const (
	Netsplit Kind = "netsplit"
	Pause    Kind = "pause"
	Kill     Kind = "kill"
	Neutral  Kind = "neutral" // the whole lifecycle, without effect
)

// Mechanisms are the ways to split a node off. docs/harness.md says what each
// does.
var Mechanisms = []string{"unplug", "unplug-new-mac", "port-down", "drop", "drop-to", "drop-from", "drop-output"}

// At says when a fault is injected.
type At string

// The instants.
const (
	BeforeSend At = "before-send" // the default
	// Queued is when the event says that the request waits in the proxy's
	// connection to the worker. Later than the deadline, the capture is invalid.
	Queued At = "queued"
)

// Prediction is written before anything is measured.
type Prediction struct {
	Landed Landing       `yaml:"landed"`
	From   time.Duration `yaml:"from"` // a landing comes this long after the send, or later
	To     time.Duration `yaml:"to"`   // and not later than this
	By     string        `yaml:"by"`   // what delivers it, or what prevents that
	Why    string        `yaml:"why"`
}

// Landing says in how many captures of a cell the request takes effect.
type Landing string

// The landings.
const (
	Always Landing = "always"
	Never  Landing = "never"
	Either Landing = "either" // a race
)

// Nodes are the roles that a fault can hit.
var Nodes = []string{"client", "controlplane", "worker"}

// LastHeal is when the last fault of the cell is undone, after the send; 0
// without faults.
func (c *Cell) LastHeal() time.Duration {
	var last time.Duration
	for _, f := range c.Faults {
		last = max(last, f.Heal)
	}
	return last
}

// Duration is about how long a capture of the cell takes, its lab apart.
func (p *Plan) Duration(c *Cell) time.Duration {
	d := c.Idle + max(c.LastHeal(), 0) + p.Window
	if c.Connection == Cold {
		d += 2 * time.Second
	}
	return d
}

// Cell returns the cell of a name, or nil.
func (p *Plan) Cell(name string) *Cell {
	for i := range p.Cells {
		if p.Cells[i].Name == name {
			return &p.Cells[i]
		}
	}
	return nil
}

// Agrees compares an outcome with the prediction: landed, and how long after
// the send. It returns "" if they agree, else how they differ.
func (p Prediction) Agrees(landed bool, after time.Duration) string {
	switch {
	case landed && p.Landed == Never:
		return "landed, predicted never"
	case !landed && p.Landed == Always:
		return "did not land, predicted always"
	case landed && after < p.From:
		return fmt.Sprintf("landed after %.1fs, predicted not before %s", after.Seconds(), p.From)
	case landed && after > p.To:
		return fmt.Sprintf("landed after %.1fs, predicted not after %s", after.Seconds(), p.To)
	}
	return ""
}

// String is the prediction in a few words.
func (p Prediction) String() string {
	if p.Landed == Never {
		return "never lands"
	}
	words := map[Landing]string{Always: "lands", Either: "lands or not"}[p.Landed]
	return fmt.Sprintf("%s, %s to %s after the send", words, p.From, p.To)
}

// String names the fault: what, where, how, from when to when.
func (f Fault) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", f.Kind, f.Node)
	if f.Kind == Netsplit {
		fmt.Fprintf(&b, " (%s)", f.Mechanism)
	}
	fmt.Fprintf(&b, " from %s until %s after the send", f.At, f.Heal)
	return b.String()
}
