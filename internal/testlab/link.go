package testlab

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// firstIndex is beyond what the kernel itself gives out in a fresh namespace.
const firstIndex = 100

// IfName is the name of every node's interface.
const IfName = "eth0"

// Link is how a node is connected.
type Link struct {
	// Index of the interface, inside the namespace.
	Index int
	MAC   net.HardwareAddr
	// Addr4 in 198.18.0.0/15, Addr6 in 2001:db8::/32.
	Addr4, Addr6 netip.Addr
}

// Addr returns the node's IPv4 address and port.
func (n *Node) Addr(port uint16) netip.AddrPort { return netip.AddrPortFrom(n.Link.Addr4, port) }

// AddrV6 returns the node's IPv6 address and port.
func (n *Node) AddrV6(port uint16) netip.AddrPort { return netip.AddrPortFrom(n.Link.Addr6, port) }

// AddrMapped returns the node's IPv4 address as an IPv4-mapped IPv6 one.
func (n *Node) AddrMapped(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(n.Link.Addr4.As16()), port)
}

// netlink returns a handle inside the namespace.
func (n *Node) netlink() (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(n.ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", n.Name, err)
	}
	return h, nil
}

// Pair is two nodes joined by a veth pair.
type Pair struct {
	A, B *Node

	subnet uint32
}

// New returns two fresh namespaces joined by a veth pair, with addresses
// 198.18.x.1 and 198.18.x.2 (/24), 2001:db8:x::1 and 2001:db8:x::2 (/64).
// They vanish when the test ends. Tests that run in parallel get different
// names.
func New(t testing.TB) *Pair {
	t.Helper()
	return newPair(t, nil)
}

// NewTwin returns another pair that uses the same addresses as p.
func NewTwin(t testing.TB, p *Pair) *Pair {
	t.Helper()
	return newPair(t, p)
}

func newPair(t testing.TB, twin *Pair) *Pair {
	t.Helper()

	lab := reserve(t)
	p := &Pair{subnet: lab}
	if twin != nil {
		p.subnet = twin.subnet
	}
	p.A = newNode(t, lab, "a")
	p.B = newNode(t, lab, "b")

	if err := connect(p.A, IfName, p.B, IfName); err != nil {
		t.Fatalf("join %s and %s: %v", p.A.Name, p.B.Name, err)
	}
	for i, n := range []*Node{p.A, p.B} {
		if err := n.configure(p.subnet, i+1); err != nil {
			t.Fatalf("configure %s: %v", n.Name, err)
		}
	}
	p.A.waitReady()
	p.B.waitReady()
	return p
}

// connect joins two namespaces by a veth pair, both ends down.
func connect(a *Node, aName string, b *Node, bName string) error {
	h, err := a.netlink()
	if err != nil {
		return err
	}
	defer h.Close()

	// The kernel's defaults reach the new interfaces only if set before.
	for _, n := range []*Node{a, b} {
		for name, value := range map[string]string{
			"net.ipv6.conf.default.accept_dad":           "0",
			"net.ipv6.conf.default.accept_ra":            "0",
			"net.ipv6.conf.all.keep_addr_on_down":        "1",
			"net.ipv6.conf.default.router_solicitations": "0",
		} {
			n.Sysctl(name, value)
		}
	}
	veth := &netlink.Veth{
		LinkAttrs:     netlink.NewLinkAttrs(),
		PeerName:      bName,
		PeerNamespace: netlink.NsFd(b.ns),
	}
	veth.Name = aName
	// The kernel may take a second to activate a link whose peer has the same
	// index.
	veth.Index = firstIndex
	if err := h.LinkAdd(veth); err != nil {
		return fmt.Errorf("create veth pair: %w", err)
	}
	return nil
}

// configure gives the node's interface its addresses and sets it up.
func (n *Node) configure(subnet uint32, host int) error {
	h, err := n.netlink()
	if err != nil {
		return err
	}
	defer h.Close()

	link, err := h.LinkByName(IfName)
	if err != nil {
		return fmt.Errorf("find %s: %w", IfName, err)
	}
	attrs := link.Attrs()
	n.Link = Link{
		Index: attrs.Index,
		MAC:   attrs.HardwareAddr,
		Addr4: netip.AddrFrom4([4]byte{198, 18 + byte(subnet>>8&1), byte(subnet), byte(host)}),
	}
	v6 := netip.MustParseAddr("2001:db8::").As16()
	v6[4], v6[5], v6[15] = byte(subnet>>8), byte(subnet), byte(host)
	n.Link.Addr6 = netip.AddrFrom16(v6)

	for _, p := range []netip.Prefix{
		netip.PrefixFrom(n.Link.Addr4, 24),
		netip.PrefixFrom(n.Link.Addr6, 64),
	} {
		addr := &netlink.Addr{IPNet: &net.IPNet{
			IP:   p.Addr().AsSlice(),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen()),
		}}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		if err := h.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add address %s: %w", p, err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", IfName, err)
	}
	return nil
}

// waitReady waits until the node can be reached over both families. What is
// sent before is dropped, which would cost a connection a second.
func (n *Node) waitReady() {
	n.t.Helper()

	n.waitUp(IfName)
	// Neighbour solicitations go to a group that the kernel joins in its own
	// time.
	addr := n.Link.Addr6.As16()
	group := fmt.Sprintf("ff0200000000000000000001ff%x", addr[13:])
	Eventually(n.t, 10*time.Second, func() bool {
		var groups []byte
		err := n.Do(func() (err error) {
			groups, err = os.ReadFile("/proc/thread-self/net/igmp6")
			return err
		})
		if err != nil {
			n.t.Fatalf("read multicast groups of %s: %v", n.Name, err)
		}
		return bytes.Contains(groups, []byte(group))
	})
}

// waitUp waits until the kernel has activated a link.
func (n *Node) waitUp(name string) {
	n.t.Helper()

	h, err := n.netlink()
	if err != nil {
		n.t.Fatal(err)
	}
	defer h.Close()
	Eventually(n.t, 10*time.Second, func() bool {
		link, err := h.LinkByName(name)
		if err != nil {
			n.t.Fatalf("find %s in %s: %v", name, n.Name, err)
		}
		return link.Attrs().OperState == netlink.OperUp
	})
}

// setLink sets an interface of the node up or down.
func (n *Node) setLink(name string, up bool) error {
	h, err := n.netlink()
	if err != nil {
		return err
	}
	defer h.Close()

	link, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s in %s: %w", name, n.Name, err)
	}
	if up {
		err = h.LinkSetUp(link)
	} else {
		err = h.LinkSetDown(link)
	}
	if err != nil {
		return fmt.Errorf("set %s in %s: %w", name, n.Name, err)
	}
	return nil
}

// PinNeighbours makes both nodes' neighbour entries permanent, so that a cut
// never turns into an unreachable neighbour.
func (p *Pair) PinNeighbours() {
	p.A.t.Helper()

	for _, e := range [][2]*Node{{p.A, p.B}, {p.B, p.A}} {
		if err := e[0].pin(e[1].Link); err != nil {
			p.A.t.Fatalf("pin neighbours of %s: %v", e[0].Name, err)
		}
	}
}

func (n *Node) pin(peer Link) error {
	h, err := n.netlink()
	if err != nil {
		return err
	}
	defer h.Close()

	for _, addr := range []netip.Addr{peer.Addr4, peer.Addr6} {
		err := h.NeighSet(&netlink.Neigh{
			LinkIndex:    n.Link.Index,
			State:        netlink.NUD_PERMANENT,
			IP:           addr.AsSlice(),
			HardwareAddr: peer.MAC,
		})
		if err != nil {
			return fmt.Errorf("set neighbour %s: %w", addr, err)
		}
	}
	return nil
}

// MinRTO keeps both ends from retransmitting earlier than d.
func (p *Pair) MinRTO(d time.Duration) {
	p.A.t.Helper()

	for _, n := range []*Node{p.A, p.B} {
		if err := n.minRTO(d); err != nil {
			p.A.t.Fatalf("set the retransmission timeout of %s: %v", n.Name, err)
		}
	}
}

// minRTO sets it on the routes: the sysctl is younger.
func (n *Node) minRTO(d time.Duration) error {
	h, err := n.netlink()
	if err != nil {
		return err
	}
	defer h.Close()

	link, err := h.LinkByName(IfName)
	if err != nil {
		return fmt.Errorf("find %s: %w", IfName, err)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.RouteList(link, family)
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			r.RtoMin, r.RtoMinLock = int(d.Milliseconds()), true
			if err := h.RouteReplace(&r); err != nil {
				return fmt.Errorf("replace route to %v: %w", r.Dst, err)
			}
		}
	}
	return nil
}

// SmallSegments switches segmentation offload off on both ends, so that each
// frame on the wire is one TCP segment.
func (p *Pair) SmallSegments() {
	p.A.t.Helper()

	for _, n := range []*Node{p.A, p.B} {
		if err := n.smallSegments(); err != nil {
			p.A.t.Fatalf("switch segmentation offload off in %s: %v", n.Name, err)
		}
	}
}

// smallSegments limits what the stack may hand over at once to one segment.
func (n *Node) smallSegments() error {
	h, err := n.netlink()
	if err != nil {
		return err
	}
	defer h.Close()

	link, err := h.LinkByName(IfName)
	if err != nil {
		return fmt.Errorf("find %s: %w", IfName, err)
	}
	if err := h.LinkSetGSOMaxSegs(link, 1); err != nil {
		return fmt.Errorf("limit segments: %w", err)
	}
	return nil
}

// Bridge is several nodes on one bridge.
type Bridge struct {
	Nodes []*Node
	// Switch holds the bridge br0 and one port for each node, p0, p1, ...
	Switch *Node
}

// NewBridge returns count nodes on one bridge, with addresses as [New]
// gives them, counted from 1.
func NewBridge(t testing.TB, count int) *Bridge {
	t.Helper()

	lab := reserve(t)
	b := &Bridge{Switch: newNode(t, lab, "br")}
	if err := b.Switch.addBridge(); err != nil {
		t.Fatalf("create bridge in %s: %v", b.Switch.Name, err)
	}
	for i := range count {
		n := newNode(t, lab, "n"+strconv.Itoa(i))
		b.Nodes = append(b.Nodes, n)

		if err := connect(n, IfName, b.Switch, b.port(i)); err != nil {
			t.Fatalf("join %s to the bridge: %v", n.Name, err)
		}
		if err := b.plug(i); err != nil {
			t.Fatalf("join %s to the bridge: %v", n.Name, err)
		}
		if err := n.configure(lab, i+1); err != nil {
			t.Fatalf("configure %s: %v", n.Name, err)
		}
		n.waitReady()
		b.Switch.waitUp(b.port(i))
	}
	b.Switch.waitUp(bridgeName)
	return b
}

const bridgeName = "br0"

func (b *Bridge) port(i int) string { return "p" + strconv.Itoa(i) }

func (n *Node) addBridge() error {
	h, err := n.netlink()
	if err != nil {
		return err
	}
	defer h.Close()

	off := false
	br := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs(), MulticastSnooping: &off}
	br.Name = bridgeName
	if err := h.LinkAdd(br); err != nil {
		return fmt.Errorf("add: %w", err)
	}
	if err := h.LinkSetUp(br); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	return nil
}

func (b *Bridge) plug(i int) error {
	h, err := b.Switch.netlink()
	if err != nil {
		return err
	}
	defer h.Close()

	br, err := h.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("find %s: %w", bridgeName, err)
	}
	port, err := h.LinkByName(b.port(i))
	if err != nil {
		return fmt.Errorf("find %s: %w", b.port(i), err)
	}
	if err := h.LinkSetMaster(port, br); err != nil {
		return fmt.Errorf("add %s to the bridge: %w", b.port(i), err)
	}
	if err := h.LinkSetUp(port); err != nil {
		return fmt.Errorf("set %s up: %w", b.port(i), err)
	}
	return nil
}

func (b *Bridge) unplug(i int) error {
	h, err := b.Switch.netlink()
	if err != nil {
		return err
	}
	defer h.Close()

	port, err := h.LinkByName(b.port(i))
	if err != nil {
		return fmt.Errorf("find %s: %w", b.port(i), err)
	}
	if err := h.LinkSetNoMaster(port); err != nil {
		return fmt.Errorf("take %s from the bridge: %w", b.port(i), err)
	}
	return nil
}

// Unplug takes a node's port from the bridge, carrier kept, until the fault is
// undone.
func (b *Bridge) Unplug(i int) *Fault {
	b.Switch.t.Helper()

	if err := b.unplug(i); err != nil {
		b.Switch.t.Fatal(err)
	}
	return newFault(b.Switch.t, func() error { return b.plug(i) })
}

// PortDown sets a node's port down, so that the node loses its carrier, until
// the fault is undone.
func (b *Bridge) PortDown(i int) *Fault {
	b.Switch.t.Helper()
	return b.Switch.linkDown(b.port(i))
}

var errNoLink = errors.New("the node has no link")
