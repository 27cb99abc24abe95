package lab

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/node"
)

// plugged says whether a node has its interface, with its address, and the
// bridge the other end of it.
func plugged(ns, sw netns.NsHandle, port string) (bool, error) {
	h, err := netlinkAt(ns)
	if err != nil {
		return false, err
	}
	defer h.Close()
	link, err := findLink(h, ifName)
	if err != nil || link == nil || link.Attrs().Flags&1 == 0 {
		return false, err
	}
	addresses, err := h.AddrList(link, netlink.FAMILY_V4)
	if err != nil || len(addresses) == 0 {
		return false, err
	}
	var c Condition
	err = readPort(sw, port, &c)
	return c.Plugged, err
}

// readPort reads what the switch knows of a node's port.
func readPort(sw netns.NsHandle, port string, c *Condition) error {
	h, err := netlinkAt(sw)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := findLink(h, port)
	if err != nil || link == nil {
		return err
	}
	c.Plugged = link.Attrs().MasterIndex != 0
	c.PortUp = link.Attrs().RawFlags&unix.IFF_UP != 0
	return nil
}

// readInside reads what the node's own namespace knows.
func readInside(ns netns.NsHandle, n *Node, c *Condition) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(ns), &st); err != nil {
		return fmt.Errorf("stat namespace: %w", err)
	}
	c.Netns = st.Ino
	d, err := droppedBy(ns, nftables.TableFamilyINet, outputTable)
	if err != nil {
		return err
	}
	c.OutputDropped, c.OutputPackets = d.direction != None, d.packets
	h, err := netlinkAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		if link.Type() == "veth" {
			c.MAC = link.Attrs().HardwareAddr.String()
		}
	}
	if n.Role == Client {
		c.Alive = true
		return nil
	}
	return onThread(func() (err error) {
		if err := netns.Set(ns); err != nil {
			return err
		}
		c.Alive, err = listening(node.Port)
		return err
	})
}

// listening says whether a TCP socket listens on port in this thread's
// namespace.
func listening(port uint16) (bool, error) {
	const listen = "0A"
	want := fmt.Sprintf(":%04X", port)
	for _, family := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile("/proc/thread-self/net/" + family)
		if err != nil {
			if os.IsNotExist(err) {
				continue
			}
			return false, err
		}
		s := bufio.NewScanner(bytes.NewReader(b))
		for s.Scan() {
			f := strings.Fields(s.Text())
			if len(f) > 3 && strings.HasSuffix(f[1], want) && f[3] == listen {
				return true, nil
			}
		}
	}
	return false, nil
}
