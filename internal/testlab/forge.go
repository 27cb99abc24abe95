package testlab

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Segment is a TCP segment, without data and options, that no socket sent.
type Segment struct {
	Src, Dst netip.AddrPort // IPv4
	Seq, Ack uint32
	Flags    TCPFlags
}

// Forge sends a segment from the node. It leaves as what the node's own
// programs send does, by way of the packet filter's output hook.
func (n *Node) Forge(s Segment) {
	n.t.Helper()

	tcp := s.header()
	pseudo := uint32(unix.IPPROTO_TCP) + uint32(len(tcp)) + sum16(s.Src.Addr().AsSlice()) + sum16(s.Dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(tcp[16:], fold(pseudo+sum16(tcp)))
	n.raw(s.Dst.Addr(), ip4(s.Src.Addr(), s.Dst.Addr(), unix.IPPROTO_TCP, tcp))
}

// ForgeTooBig sends the ICMP error of a router for a segment that the receiver
// has sent: it is larger than mtu, and must not be fragmented.
func (n *Node) ForgeTooBig(quoted Segment, mtu uint16) {
	n.t.Helper()

	const unreachable, needFrag = 3, 4
	icmp := []byte{unreachable, needFrag, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(icmp[6:], mtu)
	icmp = append(icmp, ip4(quoted.Src.Addr(), quoted.Dst.Addr(), unix.IPPROTO_TCP, quoted.header())...)
	binary.BigEndian.PutUint16(icmp[2:], fold(sum16(icmp)))
	n.raw(quoted.Src.Addr(), ip4(n.Link.Addr4, quoted.Src.Addr(), unix.IPPROTO_ICMP, icmp))
}

// header returns the TCP header, its checksum left out.
func (s Segment) header() []byte {
	tcp := make([]byte, 20)
	binary.BigEndian.PutUint16(tcp[0:], s.Src.Port())
	binary.BigEndian.PutUint16(tcp[2:], s.Dst.Port())
	binary.BigEndian.PutUint32(tcp[4:], s.Seq)
	binary.BigEndian.PutUint32(tcp[8:], s.Ack)
	tcp[12] = 5 << 4
	tcp[13] = byte(s.Flags)
	binary.BigEndian.PutUint16(tcp[14:], 65535)
	return tcp
}

// ip4 puts an IPv4 header before what it carries, with DF set.
func ip4(src, dst netip.Addr, protocol byte, payload []byte) []byte {
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0}
	ip = append(ip, src.AsSlice()...)
	ip = append(ip, dst.AsSlice()...)
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(payload)))
	binary.BigEndian.PutUint16(ip[10:], fold(sum16(ip)))
	return append(ip, payload...)
}

func (n *Node) raw(dst netip.Addr, packet []byte) {
	n.t.Helper()

	fd, err := n.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err == nil {
		defer unix.Close(fd)
		err = unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: dst.As4()})
	}
	if err != nil {
		n.t.Fatal(fmt.Errorf("send a forged packet from %s: %w", n.Name, err))
	}
}
