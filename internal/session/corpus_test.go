package session_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// situation is one thing that can happen to a connection, and what must be
// said of it at either end, A first.
type situation struct {
	name   string
	lab    func(*testlab.Pair)
	do     func(t *testing.T, s *scene)
	a, b   string    // counters that grew, in the order of the ledger: "RetransSegs 1"; "*": by one or more; "?": by any number
	again  [2]string // causes of the retransmissions in their order, a regular expression
	ends   [2]string // aborts: "local linger-zero ESTABLISHED", in their order
	known  string    // counters whose difference is explained
	queued bool      // what is sent may wait for the neighbour's address, and never leave
	check  func(t *testing.T, s *scene, evs []events.Event)
}

// situations is the corpus: what else is said of TCP is said of one of these.
var situations = slices.Concat(handshakes, losses, silences, resets, []situation{
	{
		name: "nothing but traffic",
		lab:  quiet,
		do: func(t *testing.T, s *scene) {
			l := s.listen()
			for range 20 {
				exchange(t, s, l)
			}
		},
		// On a busy machine a segment may find its connection closed already.
		a: "OutRsts ?, ActiveOpens 20", b: "OutRsts ?, PassiveOpens 20",
	},
	{
		name: "nothing at all",
		do:   func(*testing.T, *scene) {},
	},
})

// situationOf returns a situation by its name.
func situationOf(t *testing.T, name string) situation {
	t.Helper()
	i := slices.IndexFunc(situations, func(x situation) bool { return x.name == name })
	if i < 0 {
		t.Fatalf("no situation %q", name)
	}
	return situations[i]
}

// play makes a situation happen, clear of the readings of the counters, and
// returns the lines.
func play(t *testing.T, x situation) (*scene, []events.Event) {
	t.Helper()
	lab := testlab.New(t)
	lab.PinNeighbours()
	if x.lab != nil {
		x.lab(lab)
	}
	s := stageIn(t, session.Config{}, lab)
	s.capA, s.capB = lab.A.Capture(testlab.IfName), lab.B.Capture(testlab.IfName)
	standClear()
	x.do(t, s)
	evs := s.ledgers()
	s.capA.Stop()
	s.capB.Stop()
	return s, evs
}

// TestCorpus: in every situation each end says what happened and why, the
// kernel's counters agree, and so do the packets.
func TestCorpus(t *testing.T) {
	t.Parallel()
	for _, x := range situations {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			s, evs := play(t, x)
			balances(t, s, evs, x)
			for i, n := range []*testlab.Node{s.A, s.B} {
				told(t, n, evs, x.again[i], x.ends[i])
			}
			inCapture(t, s.A, s.capA, evs, x.queued)
			inCapture(t, s.B, s.capB, evs, x.queued)
			if x.check != nil {
				x.check(t, s, evs)
			}
		})
	}
}

// told holds the causes of a namespace to what they must be.
func told(t *testing.T, n *testlab.Node, evs []events.Event, again, ends string) {
	t.Helper()
	if got := causes(pick(evs, events.TypeRetransmit, in(n))); !regexp.MustCompile("^(" + again + ")$").MatchString(got) {
		t.Errorf("%s: retransmissions %q, want %q", n.Name, got, again)
	}
	var got []string
	for _, e := range pick(evs, events.TypeAbort, in(n)) {
		got = append(got, fmt.Sprintf("%s %s %s", e.Abort.By, e.Abort.Cause, e.Abort.State))
	}
	if all := strings.Join(got, ", "); all != ends {
		t.Errorf("%s: aborts %q, want %q", n.Name, all, ends)
	}
	for _, e := range evs {
		if in(n)(&e) && (e.Retransmit != nil && e.Retransmit.Cause == "undecided" || e.Abort != nil && e.Abort.Cause == "undecided") {
			t.Errorf("%s: line %d is undecided: %+v %+v", n.Name, e.Seq, e.Retransmit, e.Abort)
		}
	}
}

// inCapture holds retransmissions and resets of a namespace against the
// packets of its interface: to every one its packet within a millisecond, and
// the reverse.
func inCapture(t *testing.T, n *testlab.Node, c *testlab.Capture, evs []events.Event, queued bool) {
	t.Helper()
	packets := c.Packets()
	again := sentAgain(t, packets)
	var handed []events.Event // down to the interface
	for _, e := range pick(evs, events.TypeRetransmit, in(n)) {
		if r := e.Retransmit; r.SendError == "" && r.Segments > 0 {
			handed = append(handed, e)
		}
	}
	match(t, n.Name+": retransmission", again, handed, func(p testlab.Packet, e *events.Event) bool {
		return p.Seq == e.Retransmit.SeqStart && p.SeqEnd() == e.Retransmit.SeqEnd
	}, !queued)

	rst := slices.DeleteFunc(packets, func(p testlab.Packet) bool { return !p.Flags.Has(testlab.RST) })
	match(t, n.Name+": reset", rst, pick(evs, events.TypeReset, in(n)), func(p testlab.Packet, e *events.Event) bool {
		local, remote := p.Dst, p.Src
		if p.Outgoing {
			local, remote = p.Src, p.Dst
		}
		return p.Outgoing == (e.Reset.Direction == "sent") && e.Sock.Local == local && e.Sock.Remote == remote &&
			(e.Reset.Segment == nil || p.Seq == e.Reset.Segment.SeqStart)
	}, true)
}

// match pairs packets with events of the same, each with the nearest one that
// is left. both says that no event may be left over either. Of hundreds, one in
// a hundred may be late: a busy machine takes the processor away between the
// hook and the tap.
func match(t *testing.T, what string, packets []testlab.Packet, evs []events.Event, same func(testlab.Packet, *events.Event) bool, both bool) {
	t.Helper()
	left, late := slices.Clone(evs), 0
	for _, p := range packets {
		best := -1
		for i := range left {
			if same(p, &left[i]) && (best < 0 || apart(p.MonoNS, left[i].MonoNS) < apart(p.MonoNS, left[best].MonoNS)) {
				best = i
			}
		}
		if best < 0 {
			t.Errorf("%s in the capture, and no event: %v", what, p)
			continue
		}
		if d := apart(p.MonoNS, left[best].MonoNS); d > testlab.Slack(nearMs*time.Millisecond) {
			if late++; late > len(packets)/100 {
				t.Errorf("%s: packet (%v) and event are %v apart", what, p, d)
			}
		}
		left = slices.Delete(left, best, best+1)
	}
	if !both {
		return
	}
	for _, e := range left {
		t.Errorf("%s: line %d has no packet in the capture: %+v %+v", what, e.Seq, e.Retransmit, e.Reset)
	}
}

// sentAgain returns the packets whose sequence numbers the namespace had sent
// before.
func sentAgain(t *testing.T, packets []testlab.Packet) (again []testlab.Packet) {
	t.Helper()
	type flow struct{ src, dst netip.AddrPort }
	ends := make(map[flow]uint32)
	for _, p := range packets {
		if !p.Outgoing || p.SeqEnd() == p.Seq {
			continue
		}
		key := flow{p.Src, p.Dst}
		end, ok := ends[key]
		switch {
		case !ok || p.Flags.Has(testlab.SYN) && p.SeqEnd() != end, // another connection
			int32(p.Seq-end) >= 0:
			ends[key] = p.SeqEnd()
		case int32(p.SeqEnd()-end) <= 0:
			again = append(again, p)
		default:
			t.Errorf("half of a packet had been sent before %d: %v", end, p)
			ends[key] = p.SeqEnd()
		}
	}
	return again
}

// balances holds the ledgers to the counters that must have grown. On a kernel
// that cannot show something a difference may be unprovable, never unexplained.
func balances(t *testing.T, s *scene, evs []events.Event, x situation) {
	t.Helper()
	sum := evs[len(evs)-1].Summary
	gaps := len(evs[0].Session.CannotShow) > 0
	good := func(v events.Verdict) bool {
		return v.State == evidence.Complete && len(v.Reasons) == 0 || gaps && v.State == evidence.Unprovable
	}
	if !good(sum.Verdict) {
		t.Errorf("verdict %+v", sum.Verdict)
	}
	for n, grew := range map[*testlab.Node]string{s.A: x.a, s.B: x.b} {
		g := generation(t, sum, n.Name)
		if !good(g.Verdict) {
			t.Errorf("%s: %+v", n.Name, g.Verdict)
		}
		want := make(map[string]string)
		for _, w := range strings.Split(grew, ", ") {
			name, count, _ := strings.Cut(w, " ")
			want[name] = count
		}
		for _, l := range g.Ledger.Lines {
			switch w := want[l.Counter]; {
			case w == "?", w == "*" && l.Kernel > 0, w == fmt.Sprint(l.Kernel), w == "" && l.Kernel == 0:
			default:
				t.Errorf("%s: %s grew by %d, want %q", n.Name, l.Counter, l.Kernel, w)
			}
			if l.Difference != 0 && !gaps && !slices.Contains(strings.Split(x.known, ", "), l.Counter) {
				t.Errorf("%s: %+v", n.Name, l)
			}
		}
	}
}

// quiet keeps a busy machine from sending again what is only late.
func quiet(p *testlab.Pair) {
	p.MinRTO(5 * time.Second)
	for _, n := range []*testlab.Node{p.A, p.B} {
		n.Sysctl("net.ipv4.tcp_early_retrans", "0")
		n.Sysctl("net.ipv4.tcp_recovery", "0")
		n.Sysctl("net.ipv4.tcp_reordering", "100")
	}
}
