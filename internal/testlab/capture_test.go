package testlab

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"
)

// converse opens a connection, sends data one way, and closes it cleanly.
func converse(t *testing.T, from, to *Node, addr string, data []byte) (client, server netip.AddrPort) {
	t.Helper()

	c, s := from.Connect(to, to.Listen("tcp", addr))
	written := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		written <- errors.Join(err, c.CloseWrite())
	}()
	if got, err := io.Copy(io.Discard, s); err != nil || got != int64(len(data)) {
		t.Fatalf("received %d bytes, %v", got, err)
	}
	if err := errors.Join(<-written, s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("read returned %v, want EOF", err)
	}
	return c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
}

func TestCaptureConversation(t *testing.T) {
	p := New(t)
	for name, addr := range map[string]netip.AddrPort{"ipv4": p.B.Addr(7000), "ipv6": p.B.AddrV6(7000)} {
		t.Run(name, func(t *testing.T) {
			ca, cb := p.A.Capture(IfName), p.B.Capture(IfName)
			before := MonoNow()
			client, server := converse(t, p.A, p.B, addr.String(), make([]byte, 1000))
			after := MonoNow()
			// The last acknowledgement may still be on its way.
			last := func(p Packet) bool { return p.Src == client && p.Flags == ACK && p.Ack != 0 && p.Len == 0 }
			Eventually(t, time.Second, func() bool { return len(cb.Filter(last)) >= 2 })
			ca.Stop()
			cb.Stop()

			pa, pb := ca.Packets(), cb.Packets()
			if len(pa) != len(pb) || len(pa) < 7 {
				t.Fatalf("%d packets at one end, %d at the other:\n%v\n%v", len(pa), len(pb), pa, pb)
			}
			if first := pa[0]; first.Src != client || first.Dst != server || first.Flags != SYN || !first.Outgoing {
				t.Errorf("first packet is %v", first)
			}
			if second := pa[1]; second.Src != server || second.Flags != SYN|ACK || second.Outgoing || second.Ack != pa[0].SeqEnd() {
				t.Errorf("second packet is %v", second)
			}
			data, ok := ca.Find(func(p Packet) bool { return p.Len > 0 })
			if !ok || data.Len != 1000 || data.Seq != pa[0].SeqEnd() || data.Src != client {
				t.Errorf("data packet is %v", data)
			}
			if fins := ca.Filter(func(p Packet) bool { return p.Flags.Has(FIN) }); len(fins) != 2 {
				t.Errorf("%d FIN packets: %v", len(fins), fins)
			}
			// A busy machine may delay some, not all.
			quickest := int64(math.MaxInt64)
			for i := range pa {
				a, b := pa[i], pb[i]
				if a.Seq != b.Seq || a.Ack != b.Ack || a.Flags != b.Flags || a.Len != b.Len || a.Outgoing == b.Outgoing {
					t.Errorf("packet %d differs: %v, %v", i, a, b)
				}
				if a.Outgoing {
					a, b = b, a
				}
				// Now b has sent and a received it.
				took := int64(a.MonoNS - b.MonoNS)
				if took < -int64(a.BoundNS+b.BoundNS) {
					t.Errorf("packet %d was received %d ns before it was sent", i, -took)
				}
				quickest = min(quickest, took)
				a = pa[i]
				if a.MonoNS+a.BoundNS < before || i < len(pa)-1 && a.MonoNS > after+a.BoundNS {
					t.Errorf("packet %d at %d is outside %d to %d", i, a.MonoNS, before, after)
				}
				if a.BoundNS == 0 || a.BoundNS > uint64(maxBound) {
					t.Errorf("packet %d: bound %d ns", i, a.BoundNS)
				}
			}
			if quickest > 1e6 {
				t.Errorf("the ends differ by %d ns or more", quickest)
			}
		})
	}
}

// The same packets stamped by a BPF program with bpf_ktime_get_ns.
func TestCaptureAgreesWithBPF(t *testing.T) {
	const slots = 64

	p := New(t)
	times, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: slots})
	if err != nil {
		t.Fatal(err)
	}
	defer times.Close()
	const next = -1 // TCX_NEXT
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:    ebpf.SchedCLS,
		License: "GPL",
		Instructions: asm.Instructions{
			// Slot 0 counts, the others keep times. Only TCP is IPv4 here.
			asm.LoadMem(asm.R2, asm.R1, 16, asm.Word), // protocol
			asm.JNE.Imm(asm.R2, 0x0008, "out"),
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, times.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			fetchAdd(asm.R0, asm.R1, 0),
			asm.Add.Imm(asm.R1, 1),
			asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
			asm.LoadMapPtr(asm.R1, times.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Reg(asm.R6, asm.R0),
			asm.FnKtimeGetNs.Call(),
			asm.StoreMem(asm.R6, 0, asm.R0, asm.DWord),
			asm.Mov.Imm(asm.R0, next).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	err = p.B.Do(func() error {
		l, err := link.AttachTCX(link.TCXOptions{Interface: p.B.Link.Index, Program: prog, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	c := p.B.Capture(IfName)
	converse(t, p.A, p.B, p.B.Addr(7000).String(), make([]byte, 100))
	c.Stop()
	got := c.Filter(func(p Packet) bool { return !p.Outgoing })
	if len(got) < 4 {
		t.Fatalf("captured %v", got)
	}
	// A busy machine may run the program late for some packets, not for all.
	quickest := int64(math.MaxInt64)
	for i, pkt := range got {
		var ns uint64
		if err := times.Lookup(uint32(i+1), &ns); err != nil {
			t.Fatal(err)
		}
		d := int64(ns - pkt.MonoNS)
		if d < -int64(pkt.BoundNS) {
			t.Errorf("packet %d: BPF saw it %d ns before its stamp (bound %d ns)", i+1, -d, pkt.BoundNS)
		}
		quickest = min(quickest, d)
	}
	if quickest > 1e6 {
		t.Errorf("BPF saw packets %d ns or more after their stamp", quickest)
	}
}

func TestCaptureLoopback(t *testing.T) {
	n := NewNodes(t, 1)[0]
	for _, name := range []string{"lo", ""} {
		c := n.Capture(name)
		converse(t, n, n, "127.0.0.1:0", []byte("x"))
		c.Stop()
		out := c.Filter(func(p Packet) bool { return p.Outgoing && p.Flags == SYN })
		in := c.Filter(func(p Packet) bool { return !p.Outgoing && p.Flags == SYN })
		if len(out) != 1 || len(in) != 1 {
			t.Errorf("%q: SYN sent %v, received %v", name, out, in)
		}
	}
}

// Bulk data: nothing lost, every byte accounted for.
func TestCaptureBulk(t *testing.T) {
	p := New(t)
	c := p.B.Capture(IfName)
	const size = 64 << 20
	client, _ := converse(t, p.A, p.B, p.B.Addr(7000).String(), make([]byte, size))
	c.Stop()

	syn, ok := c.Find(func(p Packet) bool { return p.Src == client && p.Flags == SYN })
	if !ok {
		t.Fatal("no SYN was captured")
	}
	// Two CPUs may deliver out of order.
	data := c.Filter(func(p Packet) bool { return p.Src == client && p.Len > 0 })
	slices.SortFunc(data, func(a, b Packet) int { return int(int32(a.Seq - b.Seq)) })
	end := syn.SeqEnd()
	for _, pkt := range data {
		if int32(pkt.Seq-end) > 0 {
			t.Fatalf("nothing was captured between %d and %v", end, pkt)
		}
		if next := pkt.Seq + uint32(pkt.Len); int32(next-end) > 0 {
			end = next
		}
	}
	if got := end - syn.SeqEnd(); got != size {
		t.Errorf("captured %d bytes, want %d", got, size)
	}
}

func TestSmallSegments(t *testing.T) {
	p := New(t)
	p.SmallSegments()
	c := p.B.Capture(IfName)
	converse(t, p.A, p.B, p.B.Addr(7000).String(), make([]byte, 100_000))
	c.Stop()
	if big, ok := c.Find(func(p Packet) bool { return p.Len > 1460 }); ok {
		t.Errorf("a packet of several segments: %v", big)
	}
}

func TestCaptureWhileLinkGoesDown(t *testing.T) {
	p := New(t)
	c := p.A.Capture(IfName)
	p.A.LinkDown().Undo()
	converse(t, p.A, p.B, p.B.Addr(7000).String(), []byte("x"))
	c.Stop()
	if _, ok := c.Find(func(p Packet) bool { return p.Len == 1 }); !ok {
		t.Error("nothing was captured after the link came back")
	}
}

func TestWritePcapng(t *testing.T) {
	p := New(t)
	c := p.A.Capture(IfName)
	converse(t, p.A, p.B, p.B.Addr(7000).String(), make([]byte, 5000))
	c.Stop()
	path := filepath.Join(t.TempDir(), "a.pcapng")
	if err := c.WritePcapng(path); err != nil {
		t.Fatal(err)
	}

	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	packets := c.Packets()
	for i, pkt := range packets {
		data, ci, err := r.ReadPacketData()
		if err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
		if ci.Timestamp.UnixNano() != pkt.real || len(data) > snapLen || ci.Length < len(data) {
			t.Errorf("packet %d: %+v", i, ci)
		}
		if got := binary.BigEndian.Uint32(data[14+20+4:]); got != pkt.Seq {
			t.Errorf("packet %d: sequence %d, want %d", i, got, pkt.Seq)
		}
	}
	if _, _, err := r.ReadPacketData(); !errors.Is(err, io.EOF) {
		t.Errorf("after %d packets: %v", len(packets), err)
	}
}

// A step of the wall clock between two pairs must show in the bound.
func TestClockTrackBounds(t *testing.T) {
	c := &clockTrack{pairs: []clockPair{
		{real: 1000, offset: 100, bound: 3},
		{real: 2000, offset: 100, bound: 5},
		{real: 9_002_000, offset: 9_000_100, bound: 4},
	}}
	for _, tt := range []struct {
		real  int64
		mono  uint64
		bound int64
	}{
		{500, 400, 3},
		{1000, 900, 3},
		{1500, 1400, 5},
		{2000, 1900, 5},
		{5_000_000, 5_000_000 - 100 - 4_500_000, 5 + 4_500_000},
		{10_000_000, 999_900, 4},
	} {
		mono, bound := c.mono(tt.real)
		if bound < tt.bound || mono != tt.mono {
			t.Errorf("mono(%d) = %d within %d, want %d within %d", tt.real, mono, bound, tt.mono, tt.bound)
		}
	}
}

func TestReadPairBound(t *testing.T) {
	for range 100 {
		if pair := readPair(); pair.bound <= 0 || pair.bound > int64(maxBound) {
			t.Errorf("bound is %d ns", pair.bound)
		}
	}
	var a, b unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &a); err != nil {
		t.Fatal(err)
	}
	now := MonoNow()
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &b); err != nil {
		t.Fatal(err)
	}
	if now < uint64(a.Nano()) || now > uint64(b.Nano()) {
		t.Errorf("MonoNow is %d, want between %d and %d", now, a.Nano(), b.Nano())
	}
}
