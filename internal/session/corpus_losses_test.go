package session_test

import (
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// losses are segments that are sent again and arrive in the end.
var losses = []situation{
	{
		name: "timeouts",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			s.B.Lose(dataTo(port, 1, 2, 3, 4))
			send(t, client, 100)
			receive(t, server, 100)
			s.until("recovery", 5*time.Second, an("recovered", s.A))
		},
		a: "RetransSegs 4, TCPTimeouts 3, TCPLossProbes 1, ActiveOpens 1", b: "PassiveOpens 1",
		again: [2]string{"tlp rto rto rto", ""},
	},
	{
		name: "loss probe",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			s.B.Lose(dataTo(port, 1))
			send(t, client, 100)
			receive(t, server, 100)
			s.until("recovery", 5*time.Second, an("recovered", s.A))
		},
		a: "RetransSegs 1, TCPLossProbes 1, ActiveOpens 1", b: "PassiveOpens 1",
		again: [2]string{"tlp", ""},
	},
	{
		name: "loss probe of new data",
		lab: func(p *testlab.Pair) {
			p.SmallSegments()
			// Room for one segment: the rest waits, and the probe brings more of it.
			p.A.Sysctl("net.ipv4.tcp_congestion_control", "reno")
		},
		do: func(t *testing.T, s *scene) {
			client, server := s.connect(testlab.SendBuffer(1 << 20))
			hold := s.A.Lose(testlab.Loss{SrcPort: port, Bare: true}) // no acknowledgement
			send(t, client, 20*1448)
			testlab.Eventually(t, 5*time.Second, func() bool { return s.A.Counters()["TcpExtTCPLossProbes"] > 0 })
			hold.Undo()
			receive(t, server, 20*1448)
			testlab.Eventually(t, 5*time.Second, func() bool {
				info, err := testlab.Info(client)
				return err == nil && info.Unacked == 0
			})
		},
		a: "RetransSegs ?, TCPTimeouts ?, TCPLossProbes 1, TCPFastRetrans ?, TCPSlowStartRetrans ?, ActiveOpens 1", b: "PassiveOpens 1", known: "TCPLossProbes",
		again: [2]string{"( ?(tlp|rto|fast|loss-recovery))*", ""},
	},
	{
		name: "fast retransmission",
		lab:  func(p *testlab.Pair) { p.SmallSegments() },
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			s.B.Lose(dataTo(port, 2))
			send(t, client, 10_000)
			receive(t, server, 10_000)
			s.until("recovery", 5*time.Second, an("recovered", s.A))
		},
		a: "RetransSegs 1, TCPFastRetrans 1, ActiveOpens 1", b: "PassiveOpens 1",
		again: [2]string{"fast", ""},
	},
	{
		name: "loss recovery",
		lab:  func(p *testlab.Pair) { p.SmallSegments() },
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			s.B.Lose(dataTo(port, 1, 2, 3, 4, 5, 6, 7, 8, 9))
			send(t, client, 8*1448)
			receive(t, server, 8*1448)
			testlab.Eventually(t, 5*time.Second, func() bool {
				info, err := testlab.Info(client)
				return err == nil && info.Unacked == 0
			})
		},
		a: "RetransSegs *, TCPTimeouts 1, TCPLossProbes 1, TCPFastRetrans ?, TCPSlowStartRetrans *, ActiveOpens 1", b: "PassiveOpens 1",
		again: [2]string{"tlp rto( fast| loss-recovery)+", ""},
	},
	{
		name: "retransmissions that fail locally",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			s.B.Lose(dataTo(port, 1))
			send(t, client, 100)
			drop := s.A.DropTCP(port, testlab.Out)
			testlab.Eventually(t, 5*time.Second, func() bool { return s.A.Counters()["TcpExtTCPRetransFail"] >= 3 })
			drop.Undo()
			receive(t, server, 100)
			s.until("recovery", 5*time.Second, an("recovered", s.A))
		},
		a: "RetransSegs *, TCPTimeouts *, TCPLossProbes ?, TCPRetransFail *, ActiveOpens 1", b: "PassiveOpens 1",
		again: [2]string{"(tlp )?rto( rto)*", ""},
	},
	{
		name: "fast retransmission by duplicate acknowledgements",
		lab: func(p *testlab.Pair) {
			p.SmallSegments()
			p.B.Sysctl("net.ipv4.tcp_sack", "0")
			// On a slow machine a timer is faster.
			p.MinRTO(2 * time.Second)
			p.A.Sysctl("net.ipv4.tcp_early_retrans", "0")
		},
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			s.B.Lose(dataTo(port, 2))
			send(t, client, 14_000)
			receive(t, server, 14_000)
			s.until("recovery", 5*time.Second, an("recovered", s.A))
			if n := s.A.Counters().Get(t, "TcpExtTCPRenoRecovery"); n != 1 {
				t.Errorf("%d recoveries by duplicate acknowledgements", n)
			}
		},
		a: "RetransSegs 1, TCPFastRetrans 1, ActiveOpens 1", b: "PassiveOpens 1",
		again: [2]string{"fast", ""},
	},
	{
		name: "many segments in one retransmission",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			s.B.Lose(dataTo(port, 1))
			send(t, client, 100_000)
			receive(t, server, 100_000)
			s.until("recovery", 5*time.Second, an("recovered", s.A))
		},
		a: "RetransSegs *, TCPTimeouts ?, TCPLossProbes ?, TCPFastRetrans ?, TCPSlowStartRetrans ?, ActiveOpens 1", b: "PassiveOpens 1",
		again: [2]string{"((tlp|rto) )*(fast|loss-recovery)( (tlp|rto|fast|loss-recovery))*", ""},
		known: "TCPLossProbes",
		check: func(t *testing.T, s *scene, evs []events.Event) {
			joined := pick(evs, events.TypeRetransmit, func(e *events.Event) bool { return in(s.A)(e) && e.Retransmit.Segments > 1 })
			if len(joined) == 0 {
				t.Error("no retransmission had more than one segment")
			}
		},
	},
	{
		name: "spurious timeout",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			// The answers wait at B until it knows A's address again.
			unknown(t, s.B, s.A)
			deaf := s.A.Lose(testlab.Loss{Frames: true})
			send(t, client, 100)
			receive(t, server, 100)
			s.until("timeout", 5*time.Second, func(e *events.Event) bool {
				return an("retransmit", s.A)(e) && e.Retransmit.Cause == "rto"
			})
			deaf.Undo()
			s.PinNeighbours()
			s.until("recovery", 5*time.Second, an("recovered", s.A))
			if c := s.A.Counters(); c.Get(t, "TcpExtTCPLossUndo")+c.Get(t, "TcpExtTCPSpuriousRTOs") != 1 {
				t.Errorf("the kernel did not find the timeout spurious: %v", c.NonZero())
			}
		},
		a: "RetransSegs *, TCPTimeouts *, TCPLossProbes ?, ActiveOpens 1", b: "PassiveOpens 1",
		again: [2]string{"(tlp )?rto( rto)*", ""},
		check: func(t *testing.T, s *scene, evs []events.Event) {
			rec := one(t, evs, "recovered", in(s.A)).Recovered
			if s.blind("probes and resets at the edge") { // nor are time stamps read
				return
			}
			if !rec.Original || rec.Answered != 0 {
				t.Errorf("recovered: %+v", rec)
			}
		},
	},
	{
		name: "path with a smaller MTU",
		lab:  func(p *testlab.Pair) { p.SmallSegments() },
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			lost := s.B.Lose(dataTo(port, 1, 2, 3, 4))
			send(t, client, 3*1448)
			p := s.capA.Await(5*time.Second, func(p testlab.Packet) bool { return p.Outgoing && p.Len == 1448 })
			s.B.ForgeTooBig(testlab.Segment{Src: p.Src, Dst: p.Dst, Seq: p.Seq, Ack: p.Ack, Flags: p.Flags}, 1000)
			lost.Undo()
			receive(t, server, 3*1448)
			s.until("recovery", 5*time.Second, an("recovered", s.A))
		},
		a: "RetransSegs *, TCPTimeouts ?, TCPLossProbes ?, TCPFastRetrans ?, TCPSlowStartRetrans *, ActiveOpens 1", b: "PassiveOpens 1",
		again: [2]string{"(tlp )?mtu( (mtu|rto|fast|loss-recovery))*", ""},
	},
}

// unknown makes a node forget its neighbour's address: what it sends waits
// until the address is found, for three seconds at most.
func unknown(t *testing.T, n, peer *testlab.Node) {
	t.Helper()
	err := n.Do(func() error {
		link, err := netlink.LinkByName(testlab.IfName)
		if err != nil {
			return err
		}
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: peer.Link.Addr4.AsSlice()})
	})
	if err != nil {
		t.Fatalf("forget a neighbour: %v", err)
	}
}
