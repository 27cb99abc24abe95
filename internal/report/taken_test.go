package report

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sockwatch/sockwatch/internal/events"
)

// twoEnds is a file of one session that watches both ends of a connection, and
// a bridge between them.
type twoEnds struct {
	f   *FileReader
	n   int
	now uint64
}

var (
	clientNS = events.Netns{Name: "client", Generation: 1, Inode: 1, Cookie: 11}
	workerNS = events.Netns{Name: "worker", Generation: 1, Inode: 2, Cookie: 12}
	bridgeNS = events.Netns{Name: "bridge", Generation: 1, Inode: 3, Cookie: 13}

	clientAddr, workerAddr = netip.MustParseAddrPort("198.18.0.1:40000"), netip.MustParseAddrPort("198.18.0.2:8080")

	clientSock = events.Sock{Cookie: 101, Family: "inet", Local: clientAddr, Remote: workerAddr}
	workerSock = events.Sock{Cookie: 102, Family: "inet", Local: workerAddr, Remote: clientAddr}
)

func (s *twoEnds) add(after uint64, typ events.Type, ns *events.Netns, sock *events.Sock, change func(*events.Event)) {
	s.n++
	s.now += after
	e := &events.Event{Seq: uint64(s.n), Type: typ, MonoNS: s.now, Time: events.WallTime(s.now), Netns: ns, Sock: sock}
	change(e)
	s.f.Add(s.n, e)
}

func (s *twoEnds) tcp(una, nxt, rcv uint32) *events.TCP {
	return &events.TCP{
		State: "ESTABLISHED", SndUna: una, SndNxt: nxt, WriteSeq: nxt, RcvNxt: rcv, CopiedSeq: rcv, UnackedBytes: nxt - una,
		CaState: "Open", PendingTimer: "none", SinceLastAckUs: 1000, SinceLastRcvUs: 1000, SndWnd: 1000,
	}
}

// begin makes the session, in which both sockets exist already.
func begin(c *Collector) *twoEnds {
	s := &twoEnds{f: c.File("both.jsonl"), now: 1e9}
	s.add(0, events.TypeSession, nil, nil, func(e *events.Event) {
		e.Session = &events.Session{BootID: "b", Programs: []events.Program{{Name: "wire", Method: "netfilter"}}}
	})
	s.add(1e6, events.TypeInventory, &clientNS, &clientSock, func(e *events.Event) { e.Inventory, e.TCP = &events.Inventory{}, s.tcp(1000, 1000, 500) })
	s.add(1e6, events.TypeInventory, &workerNS, &workerSock, func(e *events.Event) { e.Inventory, e.TCP = &events.Inventory{}, s.tcp(500, 500, 1000) })
	return s
}

func (s *twoEnds) drop(after uint64, ns *events.Netns, sock events.Sock, reason, direction string) {
	s.add(after, events.TypeDrop, ns, &sock, func(e *events.Event) {
		e.Drop = &events.Drop{Reason: reason, Direction: direction, Device: "eth0", Segment: &events.Segment{SeqStart: 1000, SeqEnd: 1100, Flags: "PSH,ACK"}}
	})
}

func (s *twoEnds) retransmit(after uint64, attempt uint32) {
	s.add(after, events.TypeRetransmit, &clientNS, &clientSock, func(e *events.Event) {
		e.TCP = s.tcp(1000, 1100, 500)
		e.Retransmit = &events.Retransmit{Cause: "rto", Attempt: attempt, SeqStart: 1000, SeqEnd: 1100, Flags: "PSH,ACK", Segments: 1, NextDueMs: 400}
	})
}

func (s *twoEnds) end() {
	s.add(1e6, events.TypeSummary, nil, nil, func(e *events.Event) {
		e.Summary = &events.Summary{Verdict: events.Verdict{State: "complete"}}
	})
}

// told are the texts of the only story, but for how its ends began.
func told(t *testing.T, c *Collector, o Options) []string {
	t.Helper()
	r, err := c.Report(o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Stories) != 1 {
		t.Fatalf("%d stories", len(r.Stories))
	}
	var texts []string
	for _, s := range r.Stories[0].Steps {
		if s.Kind != KindBornBefore && s.Kind != KindEnd && s.Kind != KindOutstanding {
			texts = append(texts, s.Text)
		}
	}
	return texts
}

func equal(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("told\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// TestWhatTookIt: a drop in the receiver's namespace, in the sender's, or on a
// bridge between, is what the retransmission repeats.
func TestWhatTookIt(t *testing.T) {
	bridged := events.Sock{Family: "inet", Local: workerAddr, Remote: clientAddr}
	for _, tt := range []struct {
		name  string
		ns    *events.Netns
		sock  events.Sock
		way   string
		where string
	}{
		{"receiver", &workerNS, workerSock, "received", "worker, on the way in"},
		{"sender", &clientNS, clientSock, "sent", "client, on the way out"},
		{"bridge", &bridgeNS, bridged, "received", "bridge, on the way in"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := new(Collector)
			s := begin(c)
			s.drop(1e6, tt.ns, tt.sock, "NETFILTER_DROP", tt.way)
			s.retransmit(2_000e6, 1)
			s.end()
			place, _, _ := strings.Cut(tt.where, ",")
			equal(t, told(t, c, Options{}),
				"a segment (PSH,ACK, 100 bytes) of client's end was dropped in "+tt.where+" (NETFILTER_DROP, at eth0)",
				"client's end retransmitted once (rto); what it repeats had been dropped in "+place+" (NETFILTER_DROP), 2 s before; no acknowledgement; the next was due 400 ms later",
			)
		})
	}
}

// TestNotTaken: what the receiver had already took nothing; a namespace on the
// way with the same addresses and other numbers is another network.
func TestNotTaken(t *testing.T) {
	c := new(Collector)
	s := begin(c)
	s.retransmit(1_000e6, 1)
	s.drop(1e6, &workerNS, workerSock, "TCP_OLD_DATA", "received")
	s.add(1e6, events.TypeDrop, &bridgeNS, &events.Sock{Family: "inet", Local: workerAddr, Remote: clientAddr}, func(e *events.Event) {
		e.Drop = &events.Drop{Reason: "NETFILTER_DROP", Direction: "received", Segment: &events.Segment{SeqStart: 77_000, SeqEnd: 77_100, Flags: "ACK"}}
	})
	s.end()
	equal(t, told(t, c, Options{}),
		"client's end retransmitted once (rto); no acknowledgement; the next was due 400 ms later",
		"the 1st retransmission (rto) of client's end reached worker, which had it already (TCP_OLD_DATA, at eth0)",
	)
}

// TestNeighbourStory: an address that nobody answers for any more, what was
// said about it, and what the process read when it was over.
func TestNeighbourStory(t *testing.T) {
	c := new(Collector)
	s := begin(c)
	neighbour := func(after uint64, change string, pid uint32) {
		s.add(after, events.TypeNeighbour, &clientNS, nil, func(e *events.Event) {
			e.Neighbour = &events.Neighbour{Change: change, Address: "198.18.0.2", Device: "eth0", NewLladdr: "02:00:00:00:00:02", OldLladdr: "02:00:00:00:00:01", PID: pid}
			if pid != 0 {
				e.Neighbour.Comm = "ip"
			}
		})
	}
	neighbour(1e6, "resolved", 0) // the first time
	neighbour(1e6, "failed", 42)
	s.retransmit(1_000e6, 1)
	neighbour(1_000e6, "failed", 0)
	for range 2 {
		s.add(1e6, events.TypeICMP, &clientNS, &clientSock, func(e *events.Event) {
			e.ICMP = &events.ICMP{Type: "DEST_UNREACH", Code: "HOST_UNREACH", From: "198.18.0.1", SeqStart: 1000}
		})
	}
	neighbour(1_000e6, "resolved", 0)
	for range 3 {
		s.add(1e6, events.TypeIO, &workerNS, &workerSock, func(e *events.Event) {
			e.IO, e.Owner = &events.IO{Op: "read", Bytes: 50, Frozen: "no"}, &events.Owner{PID: 7, Comm: "apid", Via: "recv"}
		})
	}
	s.retransmit(1_000e6, 2)
	s.end()
	equal(t, told(t, c, Options{}),
		"client's entry for the neighbour 198.18.0.2 was deleted by ip 42",
		"client's end retransmitted 2 times until +3.005 s (rto); no acknowledgement; the next was due 400 ms after the last",
		"nobody answers for the address 198.18.0.2 at eth0 of client",
		"client was told by its own kernel that a segment was not delivered (ICMP DEST_UNREACH HOST_UNREACH), 2 times until +1.002 s",
		"02:00:00:00:00:02 answers for the address 198.18.0.2 at eth0 of client",
		"the process of worker's end read 150 bytes in 3 calls until +2.005 s",
	)
}
