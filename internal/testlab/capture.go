package testlab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"
)

// TCPFlags are the flags of a TCP header.
type TCPFlags uint8

// The flags as they are in the header.
const (
	FIN TCPFlags = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// Has tells whether all of flags are set.
func (f TCPFlags) Has(flags TCPFlags) bool { return f&flags == flags }

func (f TCPFlags) String() string {
	var set []string
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"} {
		if f&(1<<i) != 0 {
			set = append(set, name)
		}
	}
	return strings.Join(set, "|")
}

// Packet is one frame with a TCP segment, or with several that segmentation
// offload left joined.
type Packet struct {
	// MonoNS is when the kernel saw it, on the clock of bpf_ktime_get_ns;
	// the true time is within BoundNS.
	MonoNS, BoundNS uint64
	// Outgoing tells that the namespace sent it.
	Outgoing bool
	IfIndex  int
	Src, Dst netip.AddrPort
	Seq, Ack uint32
	Flags    TCPFlags
	// Window as in the header, not scaled.
	Window uint16
	// Len of the data in bytes.
	Len int

	real  int64
	frame []byte
	wire  int
}

// SeqEnd returns the sequence number after the packet's last.
func (p Packet) SeqEnd() uint32 {
	end := p.Seq + uint32(p.Len)
	if p.Flags.Has(SYN) {
		end++
	}
	if p.Flags.Has(FIN) {
		end++
	}
	return end
}

func (p Packet) String() string {
	dir := "<"
	if p.Outgoing {
		dir = ">"
	}
	return fmt.Sprintf("%d.%09d %s %s > %s %s seq %d ack %d len %d",
		p.MonoNS/1e9, p.MonoNS%1e9, dir, p.Src, p.Dst, p.Flags, p.Seq, p.Ack, p.Len)
}

const (
	// snapLen keeps all headers and enough data to tell segments apart.
	snapLen = 256
	// captureBuffer holds a few hundred thousand frames that are waiting to
	// be read.
	captureBuffer = 512 << 20
	// maxBound is well under the millisecond within which events and packets
	// are compared.
	maxBound = 50 * time.Microsecond
)

// Capture records the TCP packets that a namespace sends and receives.
type Capture struct {
	t     testing.TB
	node  *Node
	fd    int
	file  *os.File
	clock *clockTrack
	done  chan struct{}
	stop  sync.Once

	mu      sync.Mutex
	packets []Packet
	err     error
}

// Capture starts recording on one interface of the node, such as [IfName] or
// "lo", or on all if name is empty. Every packet from here on is recorded; the
// test fails if one was lost.
func (n *Node) Capture(name string) *Capture {
	n.t.Helper()

	c := &Capture{t: n.t, node: n, done: make(chan struct{})}
	if err := c.open(name); err != nil {
		n.t.Fatalf("capture in %s: %v", n.Name, err)
	}
	c.clock = trackClock()
	go c.read()
	n.t.Cleanup(c.Stop)
	return c
}

func (c *Capture) open(name string) error {
	// Protocol 0 receives nothing until it is bound.
	fd, err := c.node.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	c.fd, c.file = fd, os.NewFile(uintptr(fd), "packet")

	ok := false
	defer func() {
		if !ok {
			c.file.Close()
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer); err != nil {
		return fmt.Errorf("set SO_RCVBUFFORCE: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("set SO_TIMESTAMPNS: %w", err)
	}
	filter := tcpOnly()
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	if err := c.node.stamped(); err != nil {
		return err
	}

	addr := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL)}
	if name != "" {
		h, err := c.node.netlink()
		if err != nil {
			return err
		}
		defer h.Close()
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		addr.Ifindex = link.Attrs().Index
	}
	if err := unix.Bind(fd, addr); err != nil {
		return fmt.Errorf("bind to %q: %w", name, err)
	}
	ok = true
	return nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// tcpOnly accepts TCP over IPv4 and over IPv6 without extension headers.
func tcpOnly() []unix.SockFilter {
	const (
		loadHalf = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		loadByte = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		equal    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret      = unix.BPF_RET | unix.BPF_K
	)
	return []unix.SockFilter{
		{Code: loadHalf, K: 12},
		{Code: equal, K: unix.ETH_P_IP, Jt: 0, Jf: 2},
		{Code: loadByte, K: 14 + 9},
		{Code: equal, K: unix.IPPROTO_TCP, Jt: 3, Jf: 4},
		{Code: equal, K: unix.ETH_P_IPV6, Jt: 0, Jf: 3},
		{Code: loadByte, K: 14 + 6},
		{Code: equal, K: unix.IPPROTO_TCP, Jt: 0, Jf: 1},
		{Code: ret, K: 0x40000},
		{Code: ret, K: 0},
	}
}

// stamped returns once the kernel stamps packets. It starts doing so some time
// after the first socket asked for it, and stamps late, on reading, until then.
func (n *Node) stamped() error {
	rx, err := n.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(rx)
	if err := unix.SetsockoptInt(rx, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("set SO_TIMESTAMPNS: %w", err)
	}
	if err := unix.Bind(rx, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return fmt.Errorf("bind to loopback: %w", err)
	}
	addr, err := unix.Getsockname(rx)
	if err != nil {
		return fmt.Errorf("read socket name: %w", err)
	}

	buf, oob := make([]byte, 1), make([]byte, 64)
	for range 1000 {
		if err := unix.Sendto(rx, buf, 0, addr); err != nil {
			return fmt.Errorf("send over loopback: %w", err)
		}
		sent := clockNS(unix.CLOCK_REALTIME)
		time.Sleep(time.Millisecond)
		_, oobn, _, _, err := unix.Recvmsg(rx, buf, oob, unix.MSG_DONTWAIT)
		if err != nil {
			return fmt.Errorf("receive over loopback: %w", err)
		}
		if ns, ok := stampOf(oob[:oobn]); ok && ns <= sent {
			return nil
		}
	}
	return errors.New("the kernel does not stamp packets on arrival")
}

// stampOf returns the SCM_TIMESTAMPNS of a message.
func stampOf(oob []byte) (int64, bool) {
	// The only control message asked for: header and a timespec.
	if len(oob) < unix.SizeofCmsghdr+int(unsafe.Sizeof(unix.Timespec{})) {
		return 0, false
	}
	hdr := (*unix.Cmsghdr)(unsafe.Pointer(&oob[0]))
	if hdr.Level != unix.SOL_SOCKET || hdr.Type != unix.SCM_TIMESTAMPNS {
		return 0, false
	}
	ts := (*unix.Timespec)(unsafe.Pointer(&oob[unix.SizeofCmsghdr]))
	return ts.Nano(), true
}

// read runs until the socket has an error, the deadline of Stop included.
func (c *Capture) read() {
	defer close(c.done)

	raw, err := c.file.SyscallConn()
	if err != nil {
		c.fail(err)
		return
	}
	r := newFrameReader(c)
	for {
		var readErr error
		err := raw.Read(func(fd uintptr) bool {
			readErr = r.next(int(fd))
			return !errors.Is(readErr, unix.EAGAIN)
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := c.drain(r); err != nil {
				c.fail(err)
			}
			return
		case err != nil:
			c.fail(err)
			return
		case errors.Is(readErr, unix.ENETDOWN):
			// The interface went down; the socket lives on.
		case readErr != nil:
			c.fail(readErr)
			return
		}
	}
}

// drain closes the tap and reads what is queued. Binding to another protocol
// waits for packets that are under way to the queue.
func (c *Capture) drain(r *frameReader) error {
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	err := unix.SetsockoptSockFprog(c.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: 1, Filter: &nothing[0]})
	if err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	const lo = 1
	if err := unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: 0, Ifindex: lo}); err != nil {
		return fmt.Errorf("close the tap: %w", err)
	}
	for {
		switch err := r.next(c.fd); {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil && !errors.Is(err, unix.ENETDOWN):
			return err
		}
	}
}

func (c *Capture) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
}

// frameReader reads and decodes frames without an allocation for each but the
// copy that is kept.
type frameReader struct {
	c        *Capture
	buf, oob []byte
	eth      layers.Ethernet
	ip4      layers.IPv4
	ip6      layers.IPv6
	tcp      layers.TCP
	parser   *gopacket.DecodingLayerParser
	decoded  []gopacket.LayerType
}

func newFrameReader(c *Capture) *frameReader {
	r := &frameReader{c: c, buf: make([]byte, snapLen), oob: make([]byte, 128)}
	r.parser = gopacket.NewDecodingLayerParser(layers.LayerTypeEthernet, &r.eth, &r.ip4, &r.ip6, &r.tcp)
	r.parser.IgnoreUnsupported = true
	return r
}

// next keeps one frame.
func (r *frameReader) next(fd int) error {
	n, oobn, _, from, err := unix.Recvmsg(fd, r.buf, r.oob, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
	if err != nil {
		return err
	}
	ll, ok := from.(*unix.SockaddrLinklayer)
	if !ok {
		return fmt.Errorf("frame from an address of type %T", from)
	}
	stamp, ok := stampOf(r.oob[:oobn])
	if !ok {
		return errors.New("frame without a time stamp")
	}
	p := Packet{
		Outgoing: ll.Pkttype == unix.PACKET_OUTGOING,
		IfIndex:  ll.Ifindex,
		real:     stamp,
		wire:     n,
		frame:    append([]byte(nil), r.buf[:min(n, len(r.buf))]...),
	}
	if err := r.decode(&p); err != nil {
		return fmt.Errorf("decode frame %x: %w", p.frame, err)
	}

	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.c.packets = append(r.c.packets, p)
	return nil
}

func (r *frameReader) decode(p *Packet) error {
	if err := r.parser.DecodeLayers(p.frame, &r.decoded); err != nil {
		return err
	}
	var src, dst netip.Addr
	segment, tcp := 0, false
	for _, layer := range r.decoded {
		switch layer {
		case layers.LayerTypeIPv4:
			src, _ = netip.AddrFromSlice(r.ip4.SrcIP.To4())
			dst, _ = netip.AddrFromSlice(r.ip4.DstIP.To4())
			segment = int(r.ip4.Length) - 4*int(r.ip4.IHL)
		case layers.LayerTypeIPv6:
			src, _ = netip.AddrFromSlice(r.ip6.SrcIP)
			dst, _ = netip.AddrFromSlice(r.ip6.DstIP)
			segment = int(r.ip6.Length)
		case layers.LayerTypeTCP:
			tcp = true
		}
	}
	if !tcp {
		return fmt.Errorf("no TCP segment in it, only %v", r.decoded)
	}
	p.Src = netip.AddrPortFrom(src, uint16(r.tcp.SrcPort))
	p.Dst = netip.AddrPortFrom(dst, uint16(r.tcp.DstPort))
	p.Seq, p.Ack, p.Window = r.tcp.Seq, r.tcp.Ack, r.tcp.Window
	p.Len = segment - 4*int(r.tcp.DataOffset)
	// The flags byte of the header is clearer than eight booleans.
	p.Flags = TCPFlags(r.tcp.Contents[13])
	return nil
}

// Stop ends the recording. It fails the test if a packet was lost or its time
// is not known well enough. Stopping twice does nothing.
func (c *Capture) Stop() {
	c.t.Helper()

	c.stop.Do(func() {
		if err := c.file.SetReadDeadline(time.Unix(1, 0)); err != nil {
			c.t.Errorf("stop capture in %s: %v", c.node.Name, err)
			return
		}
		<-c.done
		c.clock.close()

		stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err != nil {
			c.fail(fmt.Errorf("read PACKET_STATISTICS: %w", err))
		} else if stats.Drops != 0 {
			c.fail(fmt.Errorf("%d of %d packets lost", stats.Drops, stats.Packets))
		} else if got := len(c.packets); got != int(stats.Packets) {
			c.fail(fmt.Errorf("%d of %d packets read", got, stats.Packets))
		}
		c.file.Close()

		for _, p := range c.Packets() {
			if p.BoundNS > uint64(maxBound) {
				c.fail(fmt.Errorf("clocks moved by %d ns against each other around packet %v", p.BoundNS, p))
				break
			}
		}
		if c.err != nil {
			c.t.Errorf("capture in %s: %v", c.node.Name, c.err)
		}
	})
}

// Packets returns what was recorded so far, in the order of the kernel. A
// packet takes a moment to get here; [Capture.Stop] waits for all.
func (c *Capture) Packets() []Packet {
	// A pair after the newest packet brackets it.
	c.clock.add()

	c.mu.Lock()
	packets := append([]Packet(nil), c.packets...)
	c.mu.Unlock()

	for i := range packets {
		mono, bound := c.clock.mono(packets[i].real)
		packets[i].MonoNS, packets[i].BoundNS = mono, uint64(bound)
	}
	return packets
}

// Filter returns the recorded packets that match.
func (c *Capture) Filter(match func(Packet) bool) []Packet {
	var found []Packet
	for _, p := range c.Packets() {
		if match(p) {
			found = append(found, p)
		}
	}
	return found
}

// Find returns the first recorded packet that matches.
func (c *Capture) Find(match func(Packet) bool) (Packet, bool) {
	for _, p := range c.Packets() {
		if match(p) {
			return p, true
		}
	}
	return Packet{}, false
}

// Await waits for a packet that matches and ends the test if none comes within
// the deadline.
func (c *Capture) Await(deadline time.Duration, match func(Packet) bool) Packet {
	c.t.Helper()

	var found Packet
	Eventually(c.t, deadline, func() (ok bool) {
		found, ok = c.Find(match)
		return ok
	})
	return found
}

// WritePcapng writes what was recorded so far as a pcapng file, with wall
// times. Frames are cut to their headers.
func (c *Capture) WritePcapng(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	defer f.Close()

	intf := pcapgo.DefaultNgInterface
	intf.Name, intf.LinkType, intf.SnapLength = c.node.Name, layers.LinkTypeEthernet, snapLen
	options := pcapgo.DefaultNgWriterOptions
	options.SectionInfo = pcapgo.NgSectionInfo{Hardware: runtime.GOARCH, OS: runtime.GOOS, Application: "testlab"}
	w, err := pcapgo.NewNgWriterInterface(f, intf, options)
	if err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	for _, p := range c.Packets() {
		err := w.WritePacket(gopacket.CaptureInfo{
			Timestamp:     time.Unix(0, p.real),
			CaptureLength: len(p.frame),
			Length:        p.wire,
		}, p.frame)
		if err != nil {
			return fmt.Errorf("write capture: %w", err)
		}
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	return f.Close()
}
