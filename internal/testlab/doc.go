// Package testlab gives behaviour tests a real network and a referee. Only
// tests import it.
//
// The network is fresh network namespaces, joined by a veth pair ([New]), by a
// bridge ([NewBridge]) or by nothing ([NewNodes]), and real sockets in them.
// Faults break it: frames lost on the wire, all or by number ([Node.Lose],
// [Pair.Cut]), links down, packet filters, bridge ports. The referee is the
// kernel's own counters ([Node.Counters]) and a packet capture on the clock of
// bpf_ktime_get_ns ([Node.Capture]). All of it is undone when the test ends.
//
// A typical test loses one segment and asks both referees how often it was
// sent again:
//
//	func TestRetransmit(t *testing.T) {
//		p := testlab.New(t)
//		l := p.B.Listen("tcp", p.B.Addr(7000).String())
//		client, server := p.A.Connect(p.B, l, testlab.UserTimeout(20*time.Second))
//
//		// Start the observer on p.A.Name here, and wait until it is ready.
//		capture, before := p.A.Capture(testlab.IfName), p.A.Counters()
//		loss := p.B.Lose(testlab.Loss{DstPort: 7000, Nth: []int{1}})
//		fmt.Fprint(client, "x")
//		io.ReadFull(server, make([]byte, 1))
//		loss.Undo()
//
//		capture.Stop()
//		sent := capture.Filter(func(p testlab.Packet) bool { return p.Outgoing && p.Len > 0 })
//		again := p.A.Counters().Sub(before).Get(t, "TcpRetransSegs")
//		if uint64(len(sent)) != 1+again || loss.Lost() != 1 {
//			t.Errorf("sent %v, %d again, %d lost", sent, again, loss.Lost())
//		}
//		// sent[1].MonoNS is within a millisecond of the observer's event.
//	}
//
// Where a frame is lost matters. [Node.Lose] is after the sender's stack and
// capture and before the receiver's, as in a cable. [Node.DropTCP] with [Out]
// is inside the sender's stack, which learns of it; with [In] it is after the
// receiver's capture. [Node.LinkDown] takes the routes of the node and the
// carrier of its peer.
//
// Neighbour entries age during a cut: after some seconds, sockets see their
// peer as unreachable, as in a real network. [Pair.PinNeighbours] prevents it.
package testlab
