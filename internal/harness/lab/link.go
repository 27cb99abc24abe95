package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

const (
	// bridgeName is of the bridge in the switch's namespace; each of its ports
	// has the name of the node's role.
	bridgeName = "br0"
	// ifName is of each node's interface.
	ifName = "eth0"
	// ifIndex is of that interface. The kernel may take a second to activate a
	// link whose peer has the same index.
	ifIndex = 100
)

// addBridge makes the bridge in the switch's namespace.
func addBridge(sw netns.NsHandle) error {
	h, err := netlinkAt(sw)
	if err != nil {
		return err
	}
	defer h.Close()
	if _, err := h.LinkByName(bridgeName); err == nil {
		return nil
	}
	off := false
	br := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs(), MulticastSnooping: &off}
	br.Name = bridgeName
	if err := h.LinkAdd(br); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	if err := h.LinkSetUp(br); err != nil {
		return fmt.Errorf("set bridge up: %w", err)
	}
	return nil
}

// addVeth joins a node to the bridge.
func addVeth(ctx context.Context, n *Node, ns, sw netns.NsHandle, mac net.HardwareAddr) error {
	h, err := netlinkAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: n.Role, PeerNamespace: netlink.NsFd(sw)}
	veth.Name, veth.Index, veth.HardwareAddr = ifName, ifIndex, mac
	if err := h.LinkAdd(veth); err != nil {
		return fmt.Errorf("add interface: %w", err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: n.Addr.AsSlice(), Mask: net.CIDRMask(netnsNetwork.Bits(), 32)}}
	if err := h.AddrAdd(veth, address); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	if err := h.LinkSetUp(veth); err != nil {
		return fmt.Errorf("set interface up: %w", err)
	}
	if err := addPort(sw, n.Role); err != nil {
		return err
	}
	return await(ctx, func() (bool, error) {
		link, err := h.LinkByIndex(ifIndex)
		return err == nil && link.Attrs().OperState == netlink.OperUp, err
	})
}

func addPort(sw netns.NsHandle, port string) error {
	h, err := netlinkAt(sw)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(port)
	if err != nil {
		return fmt.Errorf("find port: %w", err)
	}
	br, err := h.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("find bridge: %w", err)
	}
	if err := h.LinkSetMaster(link, br); err != nil {
		return fmt.Errorf("add port to the bridge: %w", err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set port up: %w", err)
	}
	return nil
}

// findLink finds a link by its name; nil if there is none.
func findLink(h *netlink.Handle, name string) (netlink.Link, error) {
	link, err := h.LinkByName(name)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil, nil
	}
	return link, err
}

// delPort removes a node's port, and the node's interface with it.
func delPort(sw netns.NsHandle, port string) error {
	h, err := netlinkAt(sw)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := findLink(h, port)
	if err != nil || link == nil {
		return err
	}
	return h.LinkDel(link)
}

// setPort sets a node's port up or down. One that is not there is not down.
func setPort(sw netns.NsHandle, port string, up bool) error {
	h, err := netlinkAt(sw)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := findLink(h, port)
	switch {
	case err != nil:
		return fmt.Errorf("find port: %w", err)
	case link == nil && up:
		return nil
	case link == nil:
		return errors.New("it is not plugged in")
	case up:
		return h.LinkSetUp(link)
	}
	return h.LinkSetDown(link)
}

// macOf is the hardware address that a node has if it is not given a new one:
// of its IP address, as Docker has it.
func macOf(n *Node) net.HardwareAddr {
	a := n.Addr.As4()
	return append(net.HardwareAddr{0x02, 0x42}, a[:]...)
}

// newMAC is a random one, locally administered.
func newMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	rand.Read(mac) // never fails
	mac[0] = mac[0]&^1 | 2
	return mac
}
