package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"

	"github.com/sockwatch/sockwatch/internal/target"
)

// Node is one machine of a lab.
type Node struct {
	Role string     // Client, Controlplane or Worker
	Name string     // of its namespace or container: sw-LAB-ROLE
	Addr netip.Addr // on the bridge

	lab *Lab
}

// Direction says which of a node's packets are dropped.
type Direction string

// What others send to the node, what it sends itself, both, or nothing.
const (
	None Direction = ""
	To   Direction = "to"
	From Direction = "from"
	Both Direction = "both"
)

// PlugOptions say how a node's network is made again.
type PlugOptions struct {
	NewMAC bool // another hardware address than before
}

// Condition is what the kernel says of a node.
type Condition struct {
	Alive          bool      `json:"alive"`           // its programs run; of the client, that it exists
	Frozen         bool      `json:"frozen"`          // every process of it
	Plugged        bool      `json:"plugged"`         // it has an interface on the bridge
	PortUp         bool      `json:"port_up"`         // and the bridge's end of it is up
	MAC            string    `json:"mac"`             // of that interface, or empty
	Netns          uint64    `json:"netns"`           // inode of its network namespace, 0 if it has none
	Dropped        Direction `json:"dropped"`         // on the bridge
	DroppedPackets uint64    `json:"dropped_packets"` // there, since that began
	OutputDropped  bool      `json:"output_dropped"`  // in the node's own packet filter
	OutputPackets  uint64    `json:"output_packets"`  // there, since that began
}

// Target names the node for the observer, as --netns takes it.
func (n *Node) Target() string { return n.lab.backend.target(n) }

// Do runs f in the node's network namespace, on a thread of its own. Sockets
// and processes that f makes are the node's. f must not leave that to other
// goroutines.
func (n *Node) Do(f func() error) error {
	return n.do(context.Background(), f)
}

func (n *Node) do(ctx context.Context, f func() error) error {
	spec, err := target.ParseSpec(n.Target())
	if err != nil {
		return err
	}
	ns, err := target.Resolve(ctx, []target.Spec{spec})
	if err != nil {
		return err
	}
	defer ns[0].Close()
	return ns[0].Do(f)
}

// Command prepares a process of the node: in its network namespace, frozen
// with it, killed with it. The command is sockwatch itself, which joins the
// node and becomes the program; its files are those of the host.
func (n *Node) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, n.lab.Binary, n.execArgs(name, args)...)
}

func (n *Node) execArgs(name string, args []string) []string {
	return append([]string{"lab", "exec", "--state-dir", n.lab.stateDir(), "--name", n.lab.Name, n.Role, "--", name}, args...)
}

// Unplug takes the node off the network: its interface is removed, with its
// addresses and routes, as docker network disconnect does.
func (n *Node) Unplug(ctx context.Context) error {
	return n.change(ctx, "unplug", func(b backend) error { return b.unplug(ctx, n) })
}

// Plug undoes Unplug: a new interface with the same address. Plugging a node
// in that is plugged in does nothing but say whether the options can be had.
func (n *Node) Plug(ctx context.Context, o PlugOptions) error {
	return n.change(ctx, "plug in", func(b backend) error { return b.plug(ctx, n, o) })
}

// PortDown sets the bridge's end of the node's interface down: the node loses
// its carrier.
func (n *Node) PortDown(ctx context.Context) error {
	return n.change(ctx, "set the port down of", func(b backend) error { return b.setPort(ctx, n, false) })
}

// PortUp undoes PortDown.
func (n *Node) PortUp(ctx context.Context) error {
	return n.change(ctx, "set the port up of", func(b backend) error { return b.setPort(ctx, n, true) })
}

// DropOnBridge drops the node's frames on the bridge, address resolution
// included; the carrier stays. Another direction replaces the one before.
func (n *Node) DropOnBridge(ctx context.Context, d Direction) error {
	switch d {
	case To, From, Both:
	default:
		return fmt.Errorf("drop on the bridge: no such direction %q", d)
	}
	return n.change(ctx, "drop frames of", func(b backend) error { return b.dropOnBridge(ctx, n, d) })
}

// UndropOnBridge undoes DropOnBridge.
func (n *Node) UndropOnBridge(ctx context.Context) error {
	return n.change(ctx, "no longer drop frames of", func(b backend) error { return b.dropOnBridge(ctx, n, None) })
}

// DropOutput drops the IP packets that the node sends in its own packet
// filter, so that the senders learn of it.
func (n *Node) DropOutput(ctx context.Context) error {
	return n.change(ctx, "drop the output of", func(b backend) error { return b.dropOutput(ctx, n, true) })
}

// UndropOutput undoes DropOutput.
func (n *Node) UndropOutput(ctx context.Context) error {
	return n.change(ctx, "no longer drop the output of", func(b backend) error { return b.dropOutput(ctx, n, false) })
}

// Freeze stops every process of the node, as docker pause does. When it
// returns, they have stopped; the kernel goes on without them.
func (n *Node) Freeze(ctx context.Context) error {
	return n.change(ctx, "freeze", func(b backend) error { return b.freeze(ctx, n, true) })
}

// Thaw undoes Freeze.
func (n *Node) Thaw(ctx context.Context) error {
	return n.change(ctx, "thaw", func(b backend) error { return b.freeze(ctx, n, false) })
}

// Kill ends every process of the node with SIGKILL; its network namespace goes
// with them, as a container's does. What was broken in it is gone too.
func (n *Node) Kill(ctx context.Context) error {
	return n.change(ctx, "kill", func(b backend) error { return b.kill(ctx, n) })
}

// Start undoes Kill: a new network namespace, plugged in, nothing known of its
// neighbours, and the node's programs, which serve when it returns.
func (n *Node) Start(ctx context.Context) error {
	return n.change(ctx, "start", func(b backend) error {
		if err := b.start(ctx, n); err != nil {
			return err
		}
		return n.waitServing(ctx)
	})
}

// Condition reads what holds for the node now.
func (n *Node) Condition(ctx context.Context) (Condition, error) {
	c, err := n.lab.backend.condition(ctx, n)
	if err != nil {
		return c, fmt.Errorf("look at node %s: %w", n.Name, err)
	}
	return c, nil
}

// Log is what the node's programs have written, JSON Lines as package node
// has them, from the beginning, cold starts included.
func (n *Node) Log(ctx context.Context) ([]byte, error) {
	b, err := n.lab.backend.log(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("read the log of node %s: %w", n.Name, err)
	}
	return b, nil
}

// change does something to the node that no other process may do half of at
// the same time.
func (n *Node) change(ctx context.Context, verb string, f func(backend) error) error {
	unlock, err := n.lab.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := f(n.lab.backend); err != nil {
		return fmt.Errorf("%s node %s: %w", verb, n.Name, err)
	}
	return nil
}
