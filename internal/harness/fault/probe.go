package fault

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/lab"
)

// A probe is an Ethernet frame of a protocol that nobody speaks. It goes where
// the frames of a connection go, and changes nothing: no address is resolved,
// no socket hears of it, no counter of IP or TCP moves.
const (
	probeProtocol = 0x88b5 // IEEE 802: for local experiments
	probeEvery    = 20 * time.Millisecond
	probeFor      = 100 * time.Millisecond // on a bridge within one machine a frame takes microseconds
	probeLength   = 46                     // the least that Ethernet carries
)

// reaches reports whether a frame sent by one node arrives at another.
func reaches(from, to *lab.Node) (bool, error) {
	in, mac, err := listenFrames(to)
	if err != nil {
		return false, err
	}
	defer unix.Close(in)
	out, index, err := openFrames(from)
	if err != nil {
		return false, err
	}
	defer unix.Close(out)
	if mac == nil || index == 0 {
		return false, nil // one of them has no interface
	}
	addr := &unix.SockaddrLinklayer{Protocol: bigEndian(probeProtocol), Ifindex: index, Halen: uint8(len(mac))}
	copy(addr.Addr[:], mac)
	frame := make([]byte, probeLength)
	rand.Read(frame)
	for end := time.Now().Add(probeFor); time.Now().Before(end); {
		if err := unix.Sendto(out, frame, 0, addr); err != nil && !isUnreachable(err) {
			return false, fmt.Errorf("send a probe from %s: %w", from.Name, err)
		}
		switch got, err := receiveFrame(in, frame, probeEvery); {
		case err != nil:
			return false, fmt.Errorf("receive a probe in %s: %w", to.Name, err)
		case got:
			return true, nil
		}
	}
	return false, nil
}

func bigEndian(n uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], n)
	return binary.NativeEndian.Uint16(b[:])
}

// isUnreachable: what a sender hears when its side of the link is down.
func isUnreachable(err error) bool {
	for _, e := range []error{unix.ENETDOWN, unix.ENXIO, unix.ENODEV, unix.ENOBUFS, unix.EHOSTUNREACH, unix.ENETUNREACH} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// listenFrames opens a socket that hears probes on any interface of the node,
// and finds the hardware address to send them to; nil if there is none.
func listenFrames(n *lab.Node) (fd int, mac net.HardwareAddr, err error) {
	err = n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(bigEndian(probeProtocol)))
		if err != nil {
			return err
		}
		i, err := interfaceOf(n.Addr)
		if err != nil {
			unix.Close(fd)
			return err
		}
		if i != nil {
			mac = i.HardwareAddr
		}
		return nil
	})
	if err != nil {
		return -1, nil, fmt.Errorf("listen for probes in %s: %w", n.Name, err)
	}
	return fd, mac, nil
}

// openFrames opens a socket to send frames through, and finds the node's
// interface; 0 if it has none.
func openFrames(n *lab.Node) (fd, index int, err error) {
	err = n.Do(func() (err error) {
		// Protocol 0: it hears nothing.
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		i, err := interfaceOf(n.Addr)
		if err != nil {
			unix.Close(fd)
			return err
		}
		if i != nil {
			index = i.Index
		}
		return nil
	})
	if err != nil {
		return -1, 0, fmt.Errorf("open a socket for probes in %s: %w", n.Name, err)
	}
	return fd, index, nil
}

// interfaceOf finds the interface that has an address, in this thread's
// namespace; nil if none has it.
func interfaceOf(addr netip.Addr) (*net.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == addr {
				return &i, nil
			}
		}
	}
	return nil, nil
}

// receiveFrame waits for one frame.
func receiveFrame(fd int, want []byte, wait time.Duration) (bool, error) {
	buf := make([]byte, 2*probeLength)
	for end := time.Now().Add(wait); ; {
		left := time.Until(end)
		if left <= 0 {
			return false, nil
		}
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, int(left/time.Millisecond)+1); err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
		n, _, err := unix.Recvfrom(fd, buf, 0)
		switch {
		case err == nil && bytes.Equal(buf[:n], want):
			return true, nil
		case err == nil, errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENETDOWN): // its interface has just gone
		default:
			return false, err
		}
	}
}

// sends reports whether a datagram that a socket of one node sends arrives at
// another: it passes the node's own packet filter, as frames do not.
func sends(from, to *lab.Node) (bool, error) {
	var in *net.UDPConn
	err := to.Do(func() (err error) {
		in, err = net.ListenUDP("udp4", &net.UDPAddr{IP: to.Addr.AsSlice()})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("listen for probes in %s: %w", to.Name, err)
	}
	defer in.Close()
	var out *net.UDPConn
	err = from.Do(func() (err error) {
		out, err = net.DialUDP("udp4", nil, in.LocalAddr().(*net.UDPAddr))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("open a socket for probes in %s: %w", from.Name, err)
	}
	defer out.Close()
	datagram := []byte(rand.Text())
	buf := make([]byte, len(datagram)+1)
	for end := time.Now().Add(probeFor); time.Now().Before(end); {
		if _, err := out.Write(datagram); err != nil && !errors.Is(err, unix.EPERM) && !isUnreachable(err) {
			return false, fmt.Errorf("send a probe from %s: %w", from.Name, err)
		}
		if err := in.SetReadDeadline(time.Now().Add(probeEvery)); err != nil {
			return false, err
		}
		n, err := in.Read(buf)
		switch {
		case err == nil && bytes.Equal(buf[:n], datagram):
			return true, nil
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
		default:
			return false, fmt.Errorf("receive a probe in %s: %w", to.Name, err)
		}
	}
	return false, nil
}
