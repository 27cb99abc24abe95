package session_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// Blind spots of drop events.
const (
	blindDropHeaders = "which segment was dropped"
	blindDropByTCP   = "segments that TCP itself drops"
)

// network is a connection from A to B over one family.
type network struct {
	name   string
	listen func(s *scene) *net.TCPListener
}

var networks = []network{
	{"IPv4", func(s *scene) *net.TCPListener { return s.B.Listen("tcp4", s.B.Addr(port).String()) }},
	{"IPv6", func(s *scene) *net.TCPListener { return s.B.Listen("tcp6", s.B.AddrV6(port).String()) }},
}

func (n network) connect(s *scene) (client, server *net.TCPConn) {
	s.t.Helper()
	client, server = s.A.Connect(s.B, n.listen(s))
	send(s.t, client, 1)
	receive(s.t, server, 1)
	send(s.t, server, 1)
	receive(s.t, client, 1)
	return client, server
}

// ours is the cookie that the events of a node give a connection: the kernel's,
// where it gives each socket one.
func ours(t *testing.T, evs []events.Event, n *testlab.Node, c *net.TCPConn) uint64 {
	t.Helper()
	for _, e := range pick(evs, "state", in(n)) {
		if e.State.New != "ESTABLISHED" || e.Sock.Local != addr(t, c.LocalAddr()) || e.Sock.Remote != addr(t, c.RemoteAddr()) {
			continue
		}
		// It may be closed already.
		if v, err := testlab.SocketCookie(c); err == nil && e.Sock.Cookie != v && !declared(evs[0].Session, "cookies of sockets") {
			t.Errorf("the socket is %d, its cookie %d", e.Sock.Cookie, v)
		}
		return e.Sock.Cookie
	}
	t.Fatalf("no event says that %v to %v was established", c.LocalAddr(), c.RemoteAddr())
	return 0
}

// lost selects the drops of what the receiver had not: on a busy machine an
// acknowledgement may be late, and what it acknowledges come again.
func lost(e *events.Event) bool { return !strings.HasPrefix(e.Drop.Reason, "TCP_OLD_") }

// dropsOf are the drops in a node's namespace with a reason.
func dropsOf(evs []events.Event, n *testlab.Node, reason string) []events.Event {
	return pick(evs, "drop", func(e *events.Event) bool { return in(n)(e) && e.Drop.Reason == reason })
}

// TestDropReceived: the receiver's packet filter takes data. The segment, the
// socket it was for and the reason are in the event, and a capture in front of
// the filter has the packet.
func TestDropReceived(t *testing.T) {
	t.Parallel()
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			t.Parallel()
			s := stage(t, session.Config{})
			client, server := n.connect(s)
			capB := s.B.Capture(testlab.IfName)
			filter := s.B.DropTCP(port, testlab.In)
			send(t, client, 100)
			s.until("second retransmission", 10*time.Second, func(e *events.Event) bool { return e.Retransmit != nil && e.Retransmit.Attempt == 2 })
			filter.Undo()
			receive(t, server, 100)
			s.until("recovery", 10*time.Second, an("recovered", s.A))
			evs := s.finish()
			want := ours(t, evs, s.B, server)
			if declared(evs[0].Session, blindDropHeaders) {
				for _, e := range pick(evs, "drop", nil) {
					if e.Sock.Cookie != want || e.Drop.Direction != "received" || e.Drop.Segment != nil {
						t.Errorf("line %d: %+v of %+v", e.Seq, e.Drop, e.Sock)
					}
				}
				return
			}
			drops := dropsOf(evs, s.B, "NETFILTER_DROP")
			if all := pick(evs, "drop", lost); len(drops) < 3 || len(drops) != len(all) {
				t.Fatalf("%d drops by the packet filter of %d, want the segment and two retransmissions at least", len(drops), len(all))
			}
			first := pick(evs, "retransmit", in(s.A))[0].Retransmit
			for _, e := range drops {
				d := e.Drop
				if e.Sock.Cookie != want || e.Sock.Local != addr(t, server.LocalAddr()) || e.Sock.Remote != addr(t, server.RemoteAddr()) {
					t.Errorf("line %d: dropped for %+v, want socket %d from %v to %v", e.Seq, e.Sock, want, server.LocalAddr(), server.RemoteAddr())
				}
				if d.Direction != "received" || d.Device != testlab.IfName || d.Segment == nil {
					t.Fatalf("line %d: %+v", e.Seq, d)
				}
				if d.Segment.SeqStart != first.SeqStart || d.Segment.SeqEnd != d.Segment.SeqStart+100 || d.Segment.Flags != "PSH,ACK" {
					t.Errorf("line %d: segment %+v, sent again was %+v", e.Seq, d.Segment, first)
				}
				seen(t, capB, "drop", e.MonoNS, func(p testlab.Packet) bool {
					return !p.Outgoing && p.Seq == d.Segment.SeqStart && p.SeqEnd() == d.Segment.SeqEnd && p.Ack == d.Segment.Ack
				})
			}
		})
	}
}

// TestDropSent: the sender's own packet filter takes data and connection
// requests on the way out.
func TestDropSent(t *testing.T) {
	t.Parallel()
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			t.Parallel()
			s := stage(t, session.Config{})
			client, server := n.connect(s)
			filter := s.A.DropTCP(port, testlab.Out)
			send(t, client, 100)
			s.until("drop", 10*time.Second, an("drop", s.A))
			filter.Undo()
			receive(t, server, 100)
			evs := s.finish()
			want := ours(t, evs, s.A, client)
			blind := declared(evs[0].Session, blindDropHeaders)
			for _, e := range pick(evs, "drop", lost) {
				d := e.Drop
				if e.Sock.Cookie != want || e.Sock.Local != addr(t, client.LocalAddr()) || e.TCP == nil || !in(s.A)(&e) {
					t.Errorf("line %d: dropped for %+v", e.Seq, e.Sock)
				}
				if d.Direction != "sent" || d.SkbLen < 100 || (d.Reason != "NETFILTER_DROP" && !declared(evs[0].Session, "dropped segments carry no reason")) {
					t.Errorf("line %d: %+v", e.Seq, d)
				}
				switch {
				case blind:
				case d.Segment == nil:
					t.Errorf("line %d has no segment", e.Seq)
				case d.Segment.SeqStart != e.TCP.SndUna || d.Segment.SeqEnd != e.TCP.SndUna+100:
					t.Errorf("line %d: segment %+v, snd_una %d", e.Seq, d.Segment, e.TCP.SndUna)
				}
			}
		})
	}
}

// TestDropSYN: a connection request that never leaves is dropped for the socket
// that connects; one that never arrives for none.
func TestDropSYN(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	l := s.listen()
	var c *net.TCPConn
	for _, n := range []*testlab.Node{s.A, s.B} {
		filter := n.DropTCP(port, map[*testlab.Node]testlab.Hook{s.A: testlab.Out, s.B: testlab.In}[n])
		done, before := make(chan *net.TCPConn), testlab.MonoNow()
		go func() { done <- s.A.Dial("tcp", s.B.Addr(port).String()) }()
		s.until("retransmission", 10*time.Second, func(e *events.Event) bool {
			// What could not be sent again is no event everywhere.
			return e.MonoNS > before && (e.Retransmit != nil || e.Drop != nil && n == s.A)
		})
		filter.Undo()
		if c = <-done; c == nil {
			t.Fatal("not connected")
		}
		if server, err := l.Accept(); err != nil {
			t.Fatal(err)
		} else {
			defer server.Close()
		}
	}
	evs := s.finish()
	for _, e := range pick(evs, "drop", nil) {
		sent := in(s.A)(&e)
		if sent != (e.Sock.Cookie != 0) || sent != (e.Drop.Direction == "sent") {
			t.Errorf("line %d: %+v of %+v", e.Seq, e.Drop, e.Sock)
		}
		if g := e.Drop.Segment; g != nil && (g.Flags != "SYN" || g.SeqEnd != g.SeqStart+1) {
			t.Errorf("line %d: segment %+v", e.Seq, g)
		}
	}
	if n := len(pick(evs, "drop", in(s.A))); n < 1 {
		t.Errorf("%d SYNs dropped on the way out, want 1", n)
	}
	if n := len(pick(evs, "drop", in(s.B))); n < 1 && !declared(evs[0].Session, blindDropHeaders) {
		t.Errorf("%d SYNs dropped on the way in, want 1", n)
	}
}

// TestDropAcknowledgements: the sender's packet filter takes what the receiver
// acknowledges. The data comes again, and TCP has it already.
func TestDropAcknowledgements(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	client, server := s.connect()
	filter := s.A.DropTCP(port, testlab.In)
	send(t, client, 100)
	receive(t, server, 100)
	s.until("second retransmission", 10*time.Second, func(e *events.Event) bool { return e.Retransmit != nil && e.Retransmit.Attempt == 2 })
	filter.Undo()
	s.until("recovery", 10*time.Second, an("recovered", s.A))
	evs := s.finish()
	mine, peers := ours(t, evs, s.A, client), ours(t, evs, s.B, server)
	if declared(evs[0].Session, blindDropHeaders) {
		return
	}
	acks := dropsOf(evs, s.A, "NETFILTER_DROP")
	if len(acks) < 2 {
		t.Errorf("%d acknowledgements dropped", len(acks))
	}
	for _, e := range acks {
		if g := e.Drop.Segment; e.Sock.Cookie != mine || g == nil || g.Flags != "ACK" || g.SeqStart != g.SeqEnd {
			t.Errorf("line %d: %+v for %+v", e.Seq, e.Drop.Segment, e.Sock)
		}
	}
	if declared(evs[0].Session, blindDropByTCP) {
		return
	}
	again := pick(evs, "drop", in(s.B))
	if want := len(pick(evs, "retransmit", nil)); len(again) != want {
		t.Errorf("%d of %d retransmissions were dropped as old", len(again), want)
	}
	for _, e := range again {
		g := e.Drop.Segment
		if r := e.Drop.Reason; (r != "TCP_OLD_DATA" && r != "TCP_OLD_SEQUENCE") || e.Sock.Cookie != peers || g == nil || g.SeqEnd-g.SeqStart != 100 {
			t.Errorf("line %d: %+v for %+v", e.Seq, e.Drop, e.Sock)
		}
	}
}

// TestNoDrop: what the kernel frees in the course of things is no drop:
// acknowledgements, closes, TIME_WAIT, probes, resets, refused connections.
func TestNoDrop(t *testing.T) {
	t.Parallel()
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			t.Parallel()
			s := stage(t, session.Config{})
			l := n.listen(s)
			for i := range 20 {
				client, server := s.A.Connect(s.B, l)
				for range 5 {
					send(t, client, 3000)
					receive(t, server, 3000)
					send(t, server, 100_000)
					receive(t, client, 100_000)
				}
				first, second := client, server
				if i%2 == 1 {
					first, second = server, client
				}
				switch i % 3 {
				case 0: // both FINs, TIME_WAIT
					first.Close()
					gone(t, second, io.EOF)
					second.Close()
				case 1: // a half-closed connection goes on
					if err := first.CloseWrite(); err != nil {
						t.Fatal(err)
					}
					gone(t, second, io.EOF)
					send(t, second, 1000)
					receive(t, first, 1000)
					second.Close()
					first.Close()
				case 2:
					if err := first.SetLinger(0); err != nil {
						t.Fatal(err)
					}
					first.Close()
					gone(t, second, unix.ECONNRESET)
					second.Close()
				}
			}
			idle, _ := s.A.Connect(s.B, l, testlab.KeepAlive(time.Second, time.Second, 3))
			defer idle.Close()
			s.until("second probe", 10*time.Second, func(e *events.Event) bool {
				return e.Probe != nil && e.Probe.Number == 1 && e.Probe.Direction == "received"
			})
			l.Close()
			if _, err := s.A.DialContext(t.Context(), "tcp", l.Addr().String()); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("dial a port that nobody listens on: %v", err)
			}
			evs := s.stop()
			selected := lost
			if len(pick(evs, "retransmit", nil)) == 0 {
				selected = nil
			}
			for _, e := range pick(evs, "drop", selected) {
				t.Errorf("line %d: %+v segment %+v of %+v", e.Seq, e.Drop, e.Drop.Segment, e.Sock)
			}
		})
	}
}

// TestDropRejected: what the packet filter answers with a reset it drops too.
func TestDropRejected(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	client, server := s.connect()
	s.B.RejectTCP(port, testlab.In)
	send(t, client, 100)
	gone(t, client, unix.ECONNRESET)
	s.until("abort", 10*time.Second, an("abort", s.A))
	evs := s.stop()
	if declared(evs[0].Session, blindDropHeaders) {
		return
	}
	want := ours(t, evs, s.B, server)
	e := one(t, evs, "drop", lost)
	if d := e.Drop; !in(s.B)(&e) || d.Reason != "NETFILTER_DROP" || d.Direction != "received" || d.Segment.SeqEnd-d.Segment.SeqStart != 100 || e.Sock.Cookie != want {
		t.Errorf("%+v segment %+v of %+v", d, d.Segment, e.Sock)
	}
	if r := one(t, evs, "reset", func(e *events.Event) bool { return e.Reset.Socket && e.Reset.Direction == "received" }); r.MonoNS < e.MonoNS-uint64(testlab.Slack(time.Millisecond)) {
		t.Errorf("the reset came %d ns before the drop", e.MonoNS-r.MonoNS)
	}
}

// TestNoDropOfCapture: a capture that nobody reads loses its copies, and TCP
// nothing.
func TestNoDropOfCapture(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	fd, err := s.B.Socket(unix.AF_PACKET, unix.SOCK_RAW, unix.ETH_P_ALL<<8)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096); err != nil {
		t.Fatal(err)
	}
	client, server := s.connect()
	for range 50 {
		send(t, client, 1000)
		receive(t, server, 1000)
		send(t, server, 1000)
		receive(t, client, 1000)
	}
	stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		t.Fatal(err)
	}
	evs := s.finish()
	if stats.Drops == 0 {
		t.Error("the capture lost nothing")
	}
	drops := pick(evs, "drop", nil)
	// Before 6.8 the kernel gives the same reason for it as for any other.
	if len(drops) > 0 && !declared(evs[0].Session, blindDropByTCP) {
		t.Errorf("%d copies that a capture lost are told as drops, first %+v", len(drops), drops[0].Drop)
	}
}

// TestDropOnBridge: a namespace that forwards for others drops what it cannot
// deliver. It has no socket of the connection, and says which segment it was.
func TestDropOnBridge(t *testing.T) {
	t.Parallel()
	b := testlab.NewBridge(t, 2)
	o := observe(t, b.Switch.Name, b.Nodes[0].Name)
	l := b.Nodes[1].Listen("tcp4", b.Nodes[1].Addr(port).String())
	client, server := b.Nodes[0].Connect(b.Nodes[1], l)
	send(t, client, 1)
	receive(t, server, 1)
	down := b.PortDown(1)
	send(t, client, 100)
	o.until("second retransmission", 10*time.Second, func(e *events.Event) bool { return e.Retransmit != nil && e.Retransmit.Attempt == 2 })
	down.Undo()
	receive(t, server, 100)
	evs := o.stop()
	if declared(evs[0].Session, blindDropHeaders) {
		return
	}
	again := pick(evs, "retransmit", nil)[0].Retransmit
	drops := pick(evs, "drop", func(e *events.Event) bool { return in(b.Switch)(e) && e.Drop.Segment.SeqStart == again.SeqStart })
	if len(drops) == 0 {
		t.Fatal("nothing was dropped on the bridge")
	}
	for _, e := range drops {
		if e.Drop.Direction != "received" || e.Drop.Device == "" || e.Sock.Cookie != 0 || e.Sock.Local != addr(t, server.LocalAddr()) || e.Sock.Remote != addr(t, client.LocalAddr()) {
			t.Errorf("line %d: %+v of %+v", e.Seq, e.Drop, e.Sock)
		}
	}
}
