package testlab

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stalled checks that what client sends does not arrive.
func stalled(t *testing.T, client, server net.Conn) {
	t.Helper()

	if _, err := client.Write([]byte("stalled")); err != nil {
		t.Fatal(err)
	}
	if err := server.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := server.Read(make([]byte, 7)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("received %d bytes, %v; want nothing", n, err)
	}
}

// healed checks that what was stalled arrives after all.
func healed(t *testing.T, client, server net.Conn) {
	t.Helper()

	if err := server.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 7)
	if _, err := io.ReadFull(server, buf); err != nil || string(buf) != "stalled" {
		t.Fatalf("received %q, %v", buf, err)
	}
	exchange(t, client, server)
}

func TestLinkFaults(t *testing.T) {
	for name, fault := range map[string]func(*Pair) *Fault{
		"own link down":  func(p *Pair) *Fault { return p.A.LinkDown() },
		"peer link down": func(p *Pair) *Fault { return p.B.LinkDown() },
		"cut":            (*Pair).Cut,
		"cut one way":    func(p *Pair) *Fault { return p.B.Lose(Loss{Frames: true}) },
		"cut acks":       func(p *Pair) *Fault { return p.A.Lose(Loss{Frames: true}) },
	} {
		for _, family := range []string{"ipv4", "ipv6"} {
			t.Run(name+" "+family, func(t *testing.T) {
				t.Parallel()
				p := New(t)
				addr := p.B.Addr(7000)
				if family == "ipv6" {
					addr = p.B.AddrV6(7000)
				}
				client, server := p.A.Connect(p.B, p.B.Listen("tcp", addr.String()))
				exchange(t, client, server)
				before := p.A.Counters()
				f := fault(p)
				if name == "cut acks" {
					// What arrives is never acknowledged, so it comes again.
					if _, err := client.Write([]byte("stalled")); err != nil {
						t.Fatal(err)
					}
				} else {
					stalled(t, client, server)
				}
				if name == "own link down" {
					// Without a route, nothing is sent that could be repeated.
					if d := p.A.Counters().Sub(before); d.Get(t, "TcpRetransSegs") != 0 {
						t.Errorf("%v", d.NonZero())
					}
				} else {
					Eventually(t, 5*time.Second, func() bool {
						return p.A.Counters().Sub(before).Get(t, "TcpRetransSegs") > 0
					})
				}
				f.Undo()
				healed(t, client, server)
			})
		}
	}
}

// A cut leaves both carriers, a link that is down takes the peer's.
func TestCarrier(t *testing.T) {
	p := New(t)
	carrier := func(n *Node) (up bool) {
		t.Helper()
		err := n.Do(func() error {
			i, err := net.InterfaceByName(IfName)
			if err == nil {
				up = i.Flags&net.FlagRunning != 0
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return up
	}
	Eventually(t, 5*time.Second, func() bool { return carrier(p.A) && carrier(p.B) })
	f := p.Cut()
	if !carrier(p.A) || !carrier(p.B) {
		t.Error("a cut takes the carrier")
	}
	f.Undo()
	f = p.B.LinkDown()
	Eventually(t, 5*time.Second, func() bool { return !carrier(p.A) })
	f.Undo()
	Eventually(t, 5*time.Second, func() bool { return carrier(p.A) && carrier(p.B) })
}

func TestPinNeighbours(t *testing.T) {
	p := New(t)
	p.PinNeighbours()
	// Neighbour discovery is lost too, yet TCP can send.
	f := p.Cut()
	c := p.A.Capture(IfName)
	go func() {
		conn, err := p.A.DialContext(t.Context(), "tcp", p.B.Addr(7).String())
		if err == nil {
			conn.Close()
		}
	}()
	c.Await(5*time.Second, func(p Packet) bool { return p.Flags == SYN && p.Outgoing })
	f.Undo()
}

// Loss on the wire is between the captures of both ends, and the sender's
// stack counts exactly what it had to repeat.
func TestLoseNth(t *testing.T) {
	for name, tt := range map[string]struct {
		nth  []int
		lost uint64
	}{
		"SYN":                 {[]int{1}, 1},
		"first data":          {[]int{2}, 1},
		"first data, twice":   {[]int{2, 3}, 2},
		"SYN, then the third": {[]int{1, 2, 4}, 3},
		"out of reach":        {[]int{1024}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := New(t)
			p.A.Sysctl("net.ipv4.tcp_early_retrans", "0") // no loss probes: timeouts only
			l := p.B.Listen("tcp", ":7000")
			f := p.B.Lose(Loss{DstPort: 7000, Nth: tt.nth})
			ca, cb := p.A.Capture(IfName), p.B.Capture(IfName)
			before := p.A.Counters()

			client, server := p.A.Connect(p.B, l)
			exchange(t, client, server)
			ca.Stop()
			cb.Stop()

			selected := func(p Packet) bool { return p.Dst.Port() == 7000 && (p.Len > 0 || p.Flags.Has(SYN)) }
			sent, received := ca.Filter(selected), cb.Filter(selected)
			if got := f.Lost(); got != tt.lost {
				t.Errorf("lost %d, want %d", got, tt.lost)
			}
			if got := f.Seen(); got != uint64(len(sent)) {
				t.Errorf("saw %d, captured %v", got, sent)
			}
			if len(sent)-len(received) != int(tt.lost) {
				t.Errorf("sent %v, received %v, want %d lost", sent, received, tt.lost)
			}
			lost := make(map[int]bool)
			for _, nth := range tt.nth {
				lost[nth] = true
			}
			var want []Packet
			for i, pkt := range sent {
				if !lost[i+1] {
					want = append(want, pkt)
				}
			}
			for i := range min(len(want), len(received)) {
				if want[i].Seq != received[i].Seq || want[i].Len != received[i].Len {
					t.Errorf("received %v, want %v", received[i], want[i])
				}
			}
			if got := p.A.Counters().Sub(before).Get(t, "TcpRetransSegs"); got != tt.lost {
				t.Errorf("RetransSegs %d, want %d", got, tt.lost)
			}
		})
	}
}

func TestLoseSelects(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		p := New(t)
		addr := p.B.Addr(7000)
		if v6 {
			addr = p.B.AddrV6(7000)
		}
		client, server := p.A.Connect(p.B, p.B.Listen("tcp", addr.String()))
		other := p.B.Lose(Loss{DstPort: 7001, Bare: true})
		source := p.A.Lose(Loss{SrcPort: 7000, Bare: true, Nth: []int{1000}})
		none := p.B.Lose(Loss{DstPort: 7000, Mask: SYN, Want: SYN, Bare: true})
		data := p.B.Lose(Loss{DstPort: 7000, Nth: []int{1000}})
		bare := p.B.Lose(Loss{DstPort: 7000, Bare: true, Nth: []int{1000}})
		c := p.B.Capture(IfName)
		exchange(t, client, server)
		Eventually(t, time.Second, func() bool { return bare.Seen() >= 2 })
		c.Stop()
		if other.Seen() != 0 || none.Seen() != 0 {
			t.Errorf("v6 %v: another port %d, SYN %d, want none", v6, other.Seen(), none.Seen())
		}
		if data.Seen() != 1 {
			t.Errorf("v6 %v: %d segments with data, want 1", v6, data.Seen())
		}
		in := c.Filter(func(p Packet) bool { return !p.Outgoing })
		out := c.Filter(func(p Packet) bool { return p.Outgoing })
		if bare.Seen() != uint64(len(in)) || source.Seen() != uint64(len(out)) {
			t.Errorf("v6 %v: %d in and %d out, captured %v", v6, bare.Seen(), source.Seen(), c.Packets())
		}
	}
}

func TestLoseSlots(t *testing.T) {
	p := New(t)
	var faults []*Fault
	for range wireSlots {
		faults = append(faults, p.B.Lose(Loss{DstPort: 1}))
	}
	if _, err := p.B.wire.add(Loss{}); err == nil {
		t.Error("more rules than slots")
	}
	faults[3].Undo()
	if slot, err := p.B.wire.add(Loss{}); err != nil || slot != 3 {
		t.Errorf("slot %d, %v; want the one that is free", slot, err)
	}
	for _, nth := range []int{0, -1, 1025} {
		if _, err := p.B.wire.add(Loss{Nth: []int{nth}}); err == nil {
			t.Errorf("frame number %d was accepted", nth)
		}
	}
}

func TestDropTCP(t *testing.T) {
	for name, hook := range map[string]Hook{"in": In, "out": Out, "both": Both} {
		t.Run(name, func(t *testing.T) {
			p := New(t)
			l := p.B.Listen("tcp", ":7000")
			client, server := p.A.Connect(p.B, l)
			exchange(t, client, server)
			otherClient, otherServer := p.A.Connect(p.B, p.B.Listen("tcp", ":7001"))

			before := p.B.Counters()
			f := p.B.DropTCP(7000, hook)
			if hook == Out {
				// B's own segments do not get out, and its socket knows.
				stalled(t, server, client)
				if got := p.B.Counters().Sub(before).Get(t, "TcpOutSegs"); got == 0 {
					t.Error("nothing was sent")
				}
			} else {
				stalled(t, client, server)
			}
			exchange(t, otherClient, otherServer)
			f.Undo()
			if hook == Out {
				healed(t, server, client)
			} else {
				healed(t, client, server)
			}
		})
	}

	t.Run("every port", func(t *testing.T) {
		p := New(t)
		client, server := p.A.Connect(p.B, p.B.Listen("tcp", p.B.AddrV6(7000).String()))
		f := p.B.DropTCP(0, In)
		stalled(t, client, server)
		f.Undo()
		healed(t, client, server)
	})
}

func TestRejectTCP(t *testing.T) {
	for _, hook := range []Hook{In, Out} {
		for _, v6 := range []bool{false, true} {
			p := New(t)
			addr := p.B.Addr(7000)
			if v6 {
				addr = p.B.AddrV6(7000)
			}
			l := p.B.Listen("tcp", addr.String())
			client, server := p.A.Connect(p.B, l)
			exchange(t, client, server)
			c := p.A.Capture(IfName)
			f := p.B.RejectTCP(7000, hook)

			sender := client
			if hook == Out {
				sender = server
			}
			if _, err := sender.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if err := sender.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := sender.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("hook %d v6 %v: read returned %v, want connection reset", hook, v6, err)
			}
			if hook == In {
				c.Await(time.Second, func(p Packet) bool { return p.Flags.Has(RST) && p.Src.Port() == 7000 && !p.Outgoing })
				if _, err := p.A.DialContext(t.Context(), "tcp", addr.String()); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("dial returned %v, want connection refused", err)
				}
			}
			f.Undo()
			p.A.Dial("tcp", addr.String())
		}
	}
}

func TestBridgeFaults(t *testing.T) {
	for name, fault := range map[string]func(*Bridge, int) *Fault{
		"unplug":    (*Bridge).Unplug,
		"port down": (*Bridge).PortDown,
		"lose":      func(b *Bridge, i int) *Fault { return b.Nodes[i].Lose(Loss{Frames: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			b := NewBridge(t, 3)
			client, server := b.Nodes[0].Connect(b.Nodes[1], b.Nodes[1].Listen("tcp", ":7000"))
			otherClient, otherServer := b.Nodes[0].Connect(b.Nodes[2], b.Nodes[2].Listen("tcp", ":7000"))
			exchange(t, client, server)
			f := fault(b, 1)
			stalled(t, client, server)
			exchange(t, otherClient, otherServer)
			f.Undo()
			healed(t, client, server)
		})
	}
}
