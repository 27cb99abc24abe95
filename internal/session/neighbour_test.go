package session_test

import (
	"bytes"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// neigh changes a neighbour of a node, as ip neigh does.
func neigh(t *testing.T, n *testlab.Node, change func(*netlink.Neigh) error, peer testlab.Link, v6 bool) {
	t.Helper()
	ip := peer.Addr4
	if v6 {
		ip = peer.Addr6
	}
	err := n.Do(func() error {
		return change(&netlink.Neigh{LinkIndex: n.Link.Index, IP: ip.AsSlice(), HardwareAddr: peer.MAC, State: netlink.NUD_REACHABLE})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNeighbourGone: the peer's entry is deleted and nobody answers for it. The
// address is asked for, given up, and answered again when the cut is over; the
// segment that waited is dropped, and its socket told by ICMP.
func TestNeighbourGone(t *testing.T) {
	t.Parallel()
	for i, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			t.Parallel()
			lab := testlab.New(t) // its neighbours are not pinned
			s := stageIn(t, session.Config{}, lab)
			client, server := n.connect(s)
			if s.blind("neighbours: ") {
				none(t, s.finish(), nil, "neighbour")
				return
			}
			before := testlab.MonoNow()
			cut := s.Cut()
			neigh(t, s.A, netlink.NeighDel, s.B.Link, i == 1)
			send(t, client, 100)
			failed := func(e *events.Event) bool {
				return e.Neighbour != nil && e.Neighbour.Change == "failed" && in(s.A)(e) && e.MonoNS > before
			}
			s.until("failure by the kernel", 20*time.Second, func(e *events.Event) bool { return failed(e) && e.Neighbour.PID == 0 })
			s.until("ICMP error", 5*time.Second, func(e *events.Event) bool { return e.ICMP != nil && e.MonoNS > before })
			cut.Undo()
			receive(t, server, 100)
			s.until("recovery", 20*time.Second, an("recovered", s.A))
			evs := s.stop()
			mine := ours(t, evs, s.A, client)

			address := addr(t, client.RemoteAddr()).Addr().String()
			changes := pick(evs, "neighbour", func(e *events.Event) bool {
				return in(s.A)(e) && e.MonoNS > before && e.Neighbour.Address == address
			})
			if len(changes) < 3 {
				t.Fatalf("%d changes of the neighbour, want deleted, failed, resolved", len(changes))
			}
			for _, e := range changes {
				if g := e.Neighbour; g.Device != testlab.IfName || g.Sockets != 1 || e.Sock != nil {
					t.Errorf("line %d: %+v", e.Seq, g)
				}
			}
			if d := changes[0].Neighbour; d.Change != "failed" || d.PID != uint32(os.Getpid()) || d.New != "FAILED" || d.OldLladdr != s.B.Link.MAC.String() {
				t.Errorf("deleted: %+v", d)
			}
			if f := changes[1].Neighbour; f.Change != "failed" || f.PID != 0 || f.Old != "INCOMPLETE" || f.New != "FAILED" || f.NewLladdr != "" {
				t.Errorf("given up: %+v", f)
			}
			if r := changes[len(changes)-1].Neighbour; r.Change != "resolved" || r.NewLladdr != s.B.Link.MAC.String() || r.PID != 0 {
				t.Errorf("resolved: %+v", r)
			}

			icmps := pick(evs, "icmp", func(e *events.Event) bool { return in(s.A)(e) && e.MonoNS > before })
			first := pick(evs, "retransmit", in(s.A))[0]
			code := map[bool]string{false: "HOST_UNREACH", true: "ADDR_UNREACH"}[i == 1]
			for _, e := range icmps {
				c := e.ICMP
				if c.Type != "DEST_UNREACH" || c.Code != code || c.From != addr(t, client.LocalAddr()).Addr().String() || c.SeqStart != first.Retransmit.SeqStart {
					t.Errorf("line %d: %+v", e.Seq, c)
				}
				if e.Sock.Cookie != mine || e.Sock.Remote != addr(t, client.RemoteAddr()) {
					t.Errorf("line %d is about %+v", e.Seq, e.Sock)
				}
			}
			if blind := declared(evs[0].Session, blindDropHeaders); !blind {
				// Neighbour discovery gives no reason.
				drops := dropsOf(evs, s.A, map[bool]string{false: "NEIGH_FAILED", true: "NOT_SPECIFIED"}[i == 1])
				if len(drops) == 0 {
					t.Error("no segment was dropped for want of the neighbour")
				}
				for _, e := range drops {
					if e.Sock.Cookie != mine || e.Drop.Direction != "sent" || e.Drop.Segment.SeqStart != first.Retransmit.SeqStart {
						t.Errorf("line %d: %+v of %+v", e.Seq, e.Drop, e.Sock)
					}
				}
			}
		})
	}
}

// TestNeighbourMoved: the peer gets another hardware address and asks for ours.
func TestNeighbourMoved(t *testing.T) {
	t.Parallel()
	lab := testlab.New(t)
	s := stageIn(t, session.Config{}, lab)
	client, server := s.connect()
	if s.blind("neighbours: ") {
		none(t, s.stop(), nil, "neighbour")
		return
	}
	before := testlab.MonoNow()
	mac := net.HardwareAddr{0x02, 0x11, 0x22, 0x33, 0x44, 0x55}
	// The kernel believes no change within a second of the last.
	testlab.Eventually(t, 10*time.Second, func() bool { return testlab.MonoNow() > before+1_500_000_000 })
	err := s.B.Do(func() error {
		link, err := netlink.LinkByName(testlab.IfName)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(link, mac)
	})
	if err != nil {
		t.Fatal(err)
	}
	send(t, server, 100)
	receive(t, client, 100)
	e := s.until("move", 10*time.Second, func(e *events.Event) bool {
		return e.Neighbour != nil && e.Neighbour.Change == "moved" && in(s.A)(e)
	})
	if g := e.Neighbour; g.OldLladdr != s.B.Link.MAC.String() || g.NewLladdr != mac.String() || g.Address != s.B.Link.Addr4.String() || g.Sockets != 1 || g.PID != 0 {
		t.Errorf("moved: %+v", g)
	}
	if bytes.Equal(mac, s.B.Link.MAC) {
		t.Error("it had that address before")
	}
	s.stop()
}
