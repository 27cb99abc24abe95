package measure

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/lab"
)

// established lists a node's established connections to remote whose send
// queues are empty, and how many more there are.
func established(n *lab.Node, remote netip.AddrPort) (idle []Conn, busy int, err error) {
	const tcpEstablished = 1
	var socks []*netlink.Socket
	if err := n.Do(func() (err error) {
		socks, err = netlink.SocketDiagTCP(unix.AF_INET)
		return err
	}); err != nil {
		return nil, 0, fmt.Errorf("list the sockets of %s: %w", n.Name, err)
	}
	for _, s := range socks {
		local, to := addrPort(s.ID.Source, s.ID.SourcePort), addrPort(s.ID.Destination, s.ID.DestinationPort)
		switch {
		case s.State != tcpEstablished || to != remote:
		case s.WQueue > 0:
			busy++
		default:
			idle = append(idle, Conn{local, to})
		}
	}
	return idle, busy, nil
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}
