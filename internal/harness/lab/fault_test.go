package lab

import (
	"context"
	"errors"
	"net"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sockwatch/sockwatch/internal/harness/node"
)

func itoa(n int) string { return strconv.Itoa(n) }

// reach tries to make a TCP connection from one node to another. The kernel
// answers for who listens.
func reach(t *testing.T, from, to *Node) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", net.JoinHostPort(to.Addr.String(), itoa(node.Port)))
	if err == nil {
		conn.Close()
	}
	return err
}

// Each way to break a node, and how it shows.
func TestFaults(t *testing.T) {
	for _, backend := range []string{Netns, Docker} {
		// Containers take their time: those of one lab are broken one after the
		// other.
		var shared *Lab
		if backend == Docker {
			shared = newLabOf(t, newSpec(t, Docker))
		}
		for _, f := range []struct {
			name        string
			apply, undo func(ctx context.Context, n *Node) error
			holds       func(c Condition) bool
			cuts        bool // the worker is not reached
			answers     bool // but its kernel is
			noCarrier   bool
			localError  error // what a sender in the worker is told
		}{
			{
				name:  "unplug",
				apply: func(ctx context.Context, n *Node) error { return n.Unplug(ctx) },
				undo:  func(ctx context.Context, n *Node) error { return n.Plug(ctx, PlugOptions{}) },
				holds: func(c Condition) bool { return !c.Plugged && c.MAC == "" },
				cuts:  true, noCarrier: true, localError: unix.ENETUNREACH,
			},
			{
				name:  "port down",
				apply: func(ctx context.Context, n *Node) error { return n.PortDown(ctx) },
				undo:  func(ctx context.Context, n *Node) error { return n.PortUp(ctx) },
				holds: func(c Condition) bool { return c.Plugged && !c.PortUp },
				cuts:  true, noCarrier: true,
			},
			{
				name:  "drop both",
				apply: func(ctx context.Context, n *Node) error { return n.DropOnBridge(ctx, Both) },
				undo:  func(ctx context.Context, n *Node) error { return n.UndropOnBridge(ctx) },
				holds: func(c Condition) bool { return c.Dropped == Both && c.DroppedPackets > 0 && c.PortUp },
				cuts:  true,
			},
			{
				name:  "drop to",
				apply: func(ctx context.Context, n *Node) error { return n.DropOnBridge(ctx, To) },
				undo:  func(ctx context.Context, n *Node) error { return n.UndropOnBridge(ctx) },
				holds: func(c Condition) bool { return c.Dropped == To && c.DroppedPackets > 0 },
				cuts:  true,
			},
			{
				name:  "drop from",
				apply: func(ctx context.Context, n *Node) error { return n.DropOnBridge(ctx, From) },
				undo:  func(ctx context.Context, n *Node) error { return n.UndropOnBridge(ctx) },
				holds: func(c Condition) bool { return c.Dropped == From && c.DroppedPackets > 0 },
				cuts:  true,
			},
			{
				name:  "drop output",
				apply: func(ctx context.Context, n *Node) error { return n.DropOutput(ctx) },
				undo:  func(ctx context.Context, n *Node) error { return n.UndropOutput(ctx) },
				holds: func(c Condition) bool { return c.OutputDropped && c.OutputPackets > 0 },
				cuts:  true, localError: unix.EPERM,
			},
			{
				name:    "freeze",
				apply:   func(ctx context.Context, n *Node) error { return n.Freeze(ctx) },
				undo:    func(ctx context.Context, n *Node) error { return n.Thaw(ctx) },
				holds:   func(c Condition) bool { return c.Frozen && c.Alive },
				answers: true,
			},
			{
				name:  "kill",
				apply: func(ctx context.Context, n *Node) error { return n.Kill(ctx) },
				undo:  func(ctx context.Context, n *Node) error { return n.Start(ctx) },
				holds: func(c Condition) bool { return c == Condition{} },
				cuts:  true,
			},
		} {
			t.Run(backend+"/"+f.name, func(t *testing.T) {
				l := shared
				if l == nil {
					t.Parallel()
					l = newLabOf(t, newSpec(t, backend))
				}
				worker, cp := nodeOf(t, l, Worker), nodeOf(t, l, Controlplane)
				before, cookie := conditionOf(t, worker), cookieOf(t, worker)
				mustRead(t, l, node.Proxied)

				for range 2 { // the second time does nothing
					if err := f.apply(t.Context(), worker); err != nil {
						t.Fatal(err)
					}
				}
				if err := reach(t, cp, worker); (err != nil) != f.cuts {
					t.Errorf("the controlplane's connection to the worker: %v", err)
				}
				if _, err := read(t, l, node.Direct); err == nil {
					t.Error("the worker answers")
				}
				if f.localError != nil {
					if err := send(worker, cp); !errors.Is(err, f.localError) {
						t.Errorf("a sender in the worker is told %v, want %v", err, f.localError)
					}
				}
				if f.noCarrier && carrier(t, worker) {
					t.Error("the worker has a carrier")
				}
				c := conditionOf(t, worker)
				if !f.holds(c) {
					t.Errorf("the condition is %+v", c)
				}
				if other := conditionOf(t, cp); !other.Alive || other.Frozen || !other.Plugged || !other.PortUp || other.Dropped != None || other.OutputDropped {
					t.Errorf("of the controlplane it is %+v", other)
				}

				// Undone through another handle, twice.
				for range 2 {
					if err := f.undo(t.Context(), nodeOf(t, l, Worker)); err != nil {
						t.Fatal(err)
					}
				}
				after := conditionOf(t, worker)
				if f.name == "kill" {
					if cookieOf(t, worker) == cookie {
						t.Error("the namespace is the same as before")
					}
					after.Netns = before.Netns
				}
				if after != before {
					t.Errorf("the condition is %+v, was %+v", after, before)
				}
				// Address resolution that began during the fault may still fail.
				eventually(t, func() error { return reach(t, cp, worker) })
				eventually(t, func() error {
					_, err := read(t, l, node.Direct)
					return err
				})
			})
		}
	}
}

// cookieOf tells a namespace from every other; inode numbers are used again.
func cookieOf(t *testing.T, n *Node) (cookie uint64) {
	t.Helper()
	if err := n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return cookie
}

// eventually tries until there is no error.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var last error
	if await(ctx, func() (bool, error) {
		last = f()
		return last == nil, nil
	}) != nil {
		t.Error(last)
	}
}

// send sends a datagram and says what the kernel says.
func send(from, to *Node) error {
	return from.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Port: 9, Addr: to.Addr.As4()})
	})
}

// carrier says whether the node's interface has one. A node without the
// interface has none.
func carrier(t *testing.T, n *Node) bool {
	t.Helper()
	on := false
	if err := n.Do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			on = on || l.Type() == "veth" && l.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return on
}

// A frozen node's kernel goes on: connections are made, and what was sent is
// read after the thaw.
func TestFreezeKeepsConnections(t *testing.T) {
	l := newLabOf(t, newSpec(t, Netns))
	worker := nodeOf(t, l, Worker)
	mustRead(t, l, node.Proxied)
	if err := worker.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	type result struct {
		out []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		out, err := applyOn(t, l, node.Proxied, "thawed")
		done <- result{out, err}
	}()
	// The request is in the worker's receive queue.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := await(ctx, func() (bool, error) {
		n, err := queued(worker, nodeOf(t, l, Controlplane))
		return n > 2500, err
	}); err != nil {
		t.Fatalf("the request does not arrive: %v", err)
	}
	if err := worker.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.err != nil {
		t.Fatalf("apply: %v: %s", r.err, r.out)
	}
	if r := mustRead(t, l, node.Direct); r.Label != "thawed" || r.Version != 2 {
		t.Errorf("%+v", r)
	}
}

// queued is what waits to be read on connections from another node.
func queued(n, from *Node) (int, error) {
	total := 0
	err := n.Do(func() error {
		all, err := netlink.SocketDiagTCP(unix.AF_INET6)
		for _, s := range all {
			if s.ID.Destination.String() == from.Addr.String() {
				total += int(s.RQueue)
			}
		}
		return err
	})
	return total, err
}

// Kill and start: new namespace, no neighbours, the configuration is kept, the
// version is not.
func TestColdStart(t *testing.T) {
	l := newLabOf(t, newSpec(t, Netns))
	worker, cp := nodeOf(t, l, Worker), nodeOf(t, l, Controlplane)
	if _, err := applyOn(t, l, node.Proxied, "cold"); err != nil {
		t.Fatal(err)
	}
	before := mustRead(t, l, node.Direct)
	if n := neighbours(t, worker); n == 0 {
		t.Error("the worker has no neighbours before")
	}
	// Nobody else is there, who by asking for a node would become known to it.
	client := nodeOf(t, l, Client)
	if err := client.Unplug(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*Node{worker, cp} {
		if err := n.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []*Node{worker, cp} {
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if found := neighbours(t, n); found != 0 {
			t.Errorf("%s has %d neighbours after a cold start", n.Role, found)
		}
	}
	if err := client.Plug(t.Context(), PlugOptions{}); err != nil {
		t.Fatal(err)
	}
	after := mustRead(t, l, node.Direct)
	if after.Version != 1 || after.Label != "cold" || after.BootNS <= before.BootNS {
		t.Errorf("%+v after %+v", after, before)
	}
	if _, err := applyOn(t, l, node.Proxied, "cold-2"); err != nil {
		t.Fatal(err)
	}
}

func neighbours(t *testing.T, n *Node) int {
	t.Helper()
	count := 0
	if err := n.Do(func() error {
		all, err := netlink.NeighList(0, netlink.FAMILY_V4)
		for _, e := range all {
			if e.State&(netlink.NUD_NOARP|netlink.NUD_PERMANENT) == 0 {
				count++
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return count
}

func TestNewMAC(t *testing.T) {
	l := newLabOf(t, newSpec(t, Netns))
	worker := nodeOf(t, l, Worker)
	mustRead(t, l, node.Proxied)
	seen := map[string]bool{conditionOf(t, worker).MAC: true}
	for range 2 {
		if err := worker.Unplug(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := worker.Plug(t.Context(), PlugOptions{NewMAC: true}); err != nil {
			t.Fatal(err)
		}
		seen[conditionOf(t, worker).MAC] = true
	}
	if len(seen) != 3 {
		t.Errorf("hardware addresses %v, want three", seen)
	}
	if err := worker.Unplug(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := worker.Plug(t.Context(), PlugOptions{}); err != nil {
		t.Fatal(err)
	}
	if mac := conditionOf(t, worker).MAC; mac != macOf(worker).String() {
		t.Errorf("hardware address %s, want %s again", mac, macOf(worker))
	}
}

// A node that was killed in the middle of another fault starts whole.
func TestStartIsWhole(t *testing.T) {
	l := newLabOf(t, newSpec(t, Netns))
	n := nodeOf(t, l, Controlplane)
	for name, f := range map[string]func(context.Context) error{
		"unplug": n.Unplug, "freeze": n.Freeze, "drop output": n.DropOutput, "port down": n.PortDown,
	} {
		if err := f(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := n.Kill(t.Context()); err != nil {
			t.Fatalf("%s: kill: %v", name, err)
		}
		if err := n.Start(t.Context()); err != nil {
			t.Fatalf("%s: start: %v", name, err)
		}
		c := conditionOf(t, n)
		if !c.Alive || c.Frozen || !c.Plugged || !c.PortUp || c.OutputDropped {
			t.Errorf("%s: %+v", name, c)
		}
		mustRead(t, l, node.Proxied)
	}
}

func TestDirection(t *testing.T) {
	l := newLabOf(t, newSpec(t, Netns))
	n := nodeOf(t, l, Worker)
	if err := n.DropOnBridge(t.Context(), "sideways"); err == nil {
		t.Error("a direction that there is not is accepted")
	}
	for _, d := range []Direction{To, From, Both, To} {
		if err := n.DropOnBridge(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if c := conditionOf(t, n); c.Dropped != d || c.DroppedPackets != 0 {
			t.Errorf("%+v, want dropped %s", c, d)
		}
	}
}

// A proxy that cannot reach a node says so inside a reply, and calls the call
// itself a success; a node that is asked for alone is an error of the call.
func TestUnreachable(t *testing.T) {
	l := newLabOf(t, newSpec(t, Netns))
	worker, cp := nodeOf(t, l, Worker), nodeOf(t, l, Controlplane)
	if err := worker.Unplug(t.Context()); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	out, err := applyOn(t, l, node.Proxied, "unreachable")
	if err == nil {
		t.Error("the client ended well")
	}
	// The kernel gives up asking for the address.
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	for _, want := range []string{`"code":"Unavailable"`, "node " + worker.Addr.String() + ": ", "no route to host"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the client wrote %s, want %s", out, want)
		}
	}
	if _, err := l.ReadVersion(t.Context(), node.Proxied); status.Code(err) != codes.Unavailable {
		t.Errorf("read: %v", err)
	}
	codes := make(map[string]string)
	for _, line := range logOf(t, cp) {
		if line.Msg == node.MsgCall && !strings.HasPrefix(line.Peer, "127.") {
			codes[path.Base(line.Method)] = line.Code
		}
	}
	if codes["ApplyConfiguration"] != "OK" || codes["Get"] != "Unavailable" {
		t.Errorf("the controlplane's calls ended with %v", codes)
	}
}
