package session_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/evidence"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// clearMargin is longer than what the ledger allows between a count and its
// event.
const clearMargin = 25 * time.Millisecond

// standClear waits until what happens next is certainly after what happened so far,
// so that no event is left in the balance at a reading of the counters.
func standClear() {
	for from := testlab.MonoNow(); apart(testlab.MonoNow(), from) < clearMargin; {
		time.Sleep(time.Millisecond)
	}
}

// ledgers ends the observation and checks what holds of every ledger: it says
// what the kernel counted in the meantime by an independent reading, and the
// saved lines, judged again, give the same.
func (s *scene) ledgers() []events.Event {
	s.t.Helper()
	standClear()
	evs := s.stop()
	sum := evs[len(evs)-1].Summary
	for _, n := range []*testlab.Node{s.A, s.B} {
		counted := n.Counters().Sub(s.before[n])
		g := generation(s.t, sum, n.Name)
		if len(g.Ledger.Lines) < 15 {
			s.t.Errorf("%s: the ledger has %d lines", n.Name, len(g.Ledger.Lines))
		}
		for _, l := range g.Ledger.Lines {
			name := "Tcp" + l.Counter
			if strings.HasPrefix(l.Counter, "TCP") {
				name = "TcpExt" + l.Counter
			}
			if want := counted.Get(s.t, name); l.Kernel != want {
				s.t.Errorf("%s: %s grew by %d, the ledger says %d", n.Name, l.Counter, want, l.Kernel)
			}
		}
	}
	judged, verdict, err := evidence.Judge(evs)
	if err != nil {
		s.t.Fatal(err)
	}
	if d := cmp.Diff(sum.Verdict, verdict, cmpopts.EquateEmpty()); d != "" {
		s.t.Errorf("judged again, the verdict differs: %s", d)
	}
	if d := cmp.Diff(sum.Namespaces, judged, cmpopts.EquateEmpty()); d != "" {
		s.t.Errorf("judged again, the ledgers differ: %s", d)
	}
	return evs
}

func generation(t *testing.T, sum *events.Summary, name string) *events.NamespaceCounts {
	t.Helper()
	for i := range sum.Namespaces {
		if sum.Namespaces[i].Netns.Name == name {
			return &sum.Namespaces[i]
		}
	}
	t.Fatalf("the summary has no namespace %s", name)
	return nil
}

func line(t *testing.T, g *events.NamespaceCounts, counter string) events.LedgerLine {
	t.Helper()
	for _, l := range g.Ledger.Lines {
		if l.Counter == counter {
			return l
		}
	}
	t.Fatalf("no line of %s", counter)
	return events.LedgerLine{}
}

// unexplained are the lines with a difference, in words.
func unexplained(g *events.NamespaceCounts) string {
	var b strings.Builder
	for _, l := range g.Ledger.Lines {
		if l.Difference != 0 || l.Result != evidence.Balanced {
			j, _ := json.Marshal(l)
			fmt.Fprintf(&b, "%s\n", j)
		}
	}
	return b.String()
}

// blast sends SYNs that no socket of A has sent.
func (s *scene) blast(port uint16, count int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := s.BlastSYN(ctx, testlab.Blast{Port: port, Count: count, Rate: 20_000}); err != nil {
		s.t.Fatal(err)
	}
}

// synAcks selects the answers of a listener.
func synAcks(nth ...int) testlab.Loss {
	return testlab.Loss{Mask: testlab.SYN | testlab.ACK, Want: testlab.SYN | testlab.ACK, Nth: nth}
}

// situation is one thing that can happen to a connection, and what the ledger
// must say of it.
type situation struct {
	name  string
	lab   func(*testlab.Pair)
	do    func(t *testing.T, s *scene)
	a, b  string // counters that grew, in the order of the ledger: "RetransSegs 1"; "*": by one or more
	known string // counters whose difference is explained
}

var situations = []situation{
	{
		name: "SYN loss",
		do: func(_ *testing.T, s *scene) {
			s.B.Lose(synOnly(1, 2))
			s.A.Connect(s.B, s.listen())
		},
		a: "RetransSegs 2, TCPSynRetrans 2, TCPTimeouts 2, ActiveOpens 1", b: "PassiveOpens 1",
	},
	{
		name: "SYN-ACK loss, the timer answers",
		do: func(_ *testing.T, s *scene) {
			s.A.Lose(synAcks(1))
			s.B.Lose(synOnly(2, 3, 4, 5))
			s.A.Connect(s.B, s.listen())
		},
		a: "RetransSegs *, TCPSynRetrans *, TCPTimeouts *, ActiveOpens 1",
		b: "RetransSegs 1, TCPSynRetrans 1, TCPTimeouts 1, PassiveOpens 1",
	},
	{
		name: "SYN-ACK loss, whatever answers",
		do: func(_ *testing.T, s *scene) {
			s.A.Lose(synAcks(1, 2, 3))
			s.A.Connect(s.B, s.listen())
		},
		a: "RetransSegs *, TCPSynRetrans *, TCPTimeouts *, ActiveOpens 1",
		b: "RetransSegs *, TCPSynRetrans *, TCPTimeouts *, PassiveOpens 1",
	},
	{
		name: "requests given up",
		lab:  func(p *testlab.Pair) { p.B.Sysctl("net.ipv4.tcp_synack_retries", "1") },
		do: func(t *testing.T, s *scene) {
			s.A.Lose(synAcks())
			s.listen()
			s.blast(port, 3)
			// Sent again after one second, given up after two more.
			testlab.Eventually(t, 10*time.Second, func() bool { return s.B.Counters()["TcpExtTCPTimeouts"] == 6 })
			time.Sleep(300 * time.Millisecond) // the timer wheel may be late
		},
		b: "RetransSegs 3, TCPSynRetrans 3, TCPTimeouts 6", known: "TCPTimeouts",
	},
	{
		name: "requests reset by the peer",
		do: func(t *testing.T, s *scene) {
			s.listen()
			s.blast(port, 5)
			testlab.Eventually(t, 10*time.Second, func() bool { return s.B.Counters()["TcpAttemptFails"] == 5 })
		},
		a: "OutRsts 5", b: "AttemptFails 5", known: "AttemptFails",
	},
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
	},
	{
		name: "loss probe of new data",
		lab: func(p *testlab.Pair) {
			p.SmallSegments()
			// Room for one segment: the rest waits, and the probe brings more of it.
			p.A.Sysctl("net.ipv4.tcp_congestion_control", "reno")
		},
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
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
	},
	{
		name: "refused connect",
		do: func(t *testing.T, s *scene) {
			if _, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String()); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("dial: %v", err)
			}
		},
		a: "AttemptFails 1, ActiveOpens 1", b: "OutRsts 1",
	},
	{
		name: "refused connect over IPv6",
		do: func(t *testing.T, s *scene) {
			if _, err := s.A.DialContext(t.Context(), "tcp", s.B.AddrV6(port).String()); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("dial: %v", err)
			}
		},
		a: "AttemptFails 1, ActiveOpens 1", b: "OutRsts 1",
	},
	{
		name: "unreachable",
		do: func(t *testing.T, s *scene) {
			addr := s.B.Link.Addr4.As4()
			addr[3] = 77
			_, err := s.A.DialContext(t.Context(), "tcp", fmt.Sprintf("%v:%d", net.IP(addr[:]), port))
			if !errors.Is(err, unix.EHOSTUNREACH) {
				t.Errorf("dial: %v", err)
			}
		},
		a: "RetransSegs ?, TCPSynRetrans ?, TCPTimeouts ?, AttemptFails 1, ActiveOpens 1",
	},
	{
		name: "SYN retries exhausted",
		do: func(t *testing.T, s *scene) {
			s.B.Lose(synOnly())
			_, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String(), testlab.SynRetries(1))
			if !errors.Is(err, unix.ETIMEDOUT) {
				t.Errorf("dial: %v", err)
			}
		},
		a: "RetransSegs *, TCPSynRetrans *, TCPTimeouts *, AttemptFails 1, ActiveOpens 1, TCPAbortOnTimeout 1",
	},
	{
		name: "connect cancelled",
		do: func(t *testing.T, s *scene) {
			s.B.Lose(synOnly())
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := s.A.DialContext(ctx, "tcp", s.B.Addr(port).String())
				done <- err
			}()
			s.until("SYN_SENT", 5*time.Second, func(e *events.Event) bool { return e.State != nil && e.State.New == "SYN_SENT" })
			cancel()
			if err := <-done; err == nil {
				t.Error("a connection without a server")
			}
		},
		a: "ActiveOpens 1",
	},
	{
		name: "no port to connect from",
		lab: func(p *testlab.Pair) {
			p.A.Sysctl("net.ipv4.ip_local_port_range", "40000 40001")
		},
		do: func(t *testing.T, s *scene) {
			l := s.listen()
			for range 2 {
				s.A.Connect(s.B, l)
			}
			if _, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String()); !errors.Is(err, unix.EADDRNOTAVAIL) {
				t.Errorf("dial without a port: %v", err)
			}
		},
		a: "ActiveOpens 2", b: "PassiveOpens 2",
	},
	{
		name: "close with unread data",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			send(t, client, 5)
			testlab.Eventually(t, 5*time.Second, func() bool {
				info, err := testlab.Info(server)
				return err == nil && info.Bytes_received == 6
			})
			server.Close()
			gone(t, client, unix.ECONNRESET)
		},
		a: "EstabResets 1, ActiveOpens 1", b: "OutRsts 1, EstabResets 1, PassiveOpens 1, TCPAbortOnClose 1",
	},
	{
		name: "linger of zero",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			if err := server.SetLinger(0); err != nil {
				t.Fatal(err)
			}
			server.Close()
			gone(t, client, unix.ECONNRESET)
		},
		a: "EstabResets 1, ActiveOpens 1", b: "OutRsts 1, EstabResets 1, PassiveOpens 1, TCPAbortOnData 1",
	},
	{
		name: "linger of zero after FIN",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			if err := errors.Join(server.CloseWrite(), server.SetLinger(0)); err != nil {
				t.Fatal(err)
			}
			gone(t, client, io.EOF)
			server.Close()
			s.until("abort", 5*time.Second, an("abort", s.B))
			s.until("abort", 5*time.Second, an("abort", s.A))
		},
		a: "EstabResets 1, ActiveOpens 1", b: "OutRsts 1, PassiveOpens 1, TCPAbortOnData 1",
	},
	{
		name: "data after close",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			hold := s.A.Lose(testlab.Loss{})
			server.Close()
			send(t, client, 5)
			s.until("abort", 5*time.Second, an("abort", s.B))
			hold.Undo()
			gone(t, client, unix.ECONNRESET)
		},
		a: "EstabResets 1, ActiveOpens 1", b: "RetransSegs ?, TCPTimeouts ?, TCPLossProbes ?, OutRsts 1, PassiveOpens 1, TCPAbortOnData 1",
	},
	{
		name: "user timeout",
		do: func(t *testing.T, s *scene) {
			client, _ := s.connect(testlab.UserTimeout(time.Second))
			s.Cut()
			send(t, client, 5)
			gone(t, client, unix.ETIMEDOUT)
		},
		a: "RetransSegs *, TCPTimeouts *, TCPLossProbes ?, EstabResets 1, ActiveOpens 1, TCPAbortOnTimeout 1", b: "PassiveOpens 1",
	},
	{
		name: "retries exhausted",
		lab:  func(p *testlab.Pair) { p.A.Sysctl("net.ipv4.tcp_retries2", "2") },
		do: func(t *testing.T, s *scene) {
			client, _ := s.connect()
			s.Cut()
			send(t, client, 5)
			gone(t, client, unix.ETIMEDOUT)
		},
		a: "RetransSegs *, TCPTimeouts *, TCPLossProbes ?, EstabResets 1, ActiveOpens 1, TCPAbortOnTimeout 1", b: "PassiveOpens 1",
	},
	{
		name: "user timeout into a closed window",
		do: func(t *testing.T, s *scene) {
			client, _ := s.A.Connect(s.B, s.listen(testlab.ReceiveBuffer(4096)), testlab.UserTimeout(2*time.Second))
			done := make(chan error, 1)
			go func() {
				_, err := client.Write(make([]byte, 1_000_000))
				done <- err
			}()
			s.until("probe", 10*time.Second, an("probe", s.A))
			if err := <-done; !errors.Is(err, unix.ETIMEDOUT) {
				t.Errorf("write: %v", err)
			}
		},
		a: "RetransSegs ?, TCPTimeouts ?, TCPLossProbes ?, TCPFastRetrans ?, TCPSlowStartRetrans ?, EstabResets 1, ActiveOpens 1, TCPAbortOnTimeout 1, TCPWinProbe *", b: "PassiveOpens 1",
	},
	{
		name: "keepalive",
		do: func(t *testing.T, s *scene) {
			client, _ := s.connect(testlab.KeepAlive(time.Second, time.Second, 2))
			s.until("answered probe", 5*time.Second, an("probe", s.B))
			s.Cut()
			gone(t, client, unix.ETIMEDOUT)
		},
		a: "OutRsts 1, EstabResets 1, ActiveOpens 1, TCPAbortOnTimeout 1, TCPKeepAlive *", b: "PassiveOpens 1",
	},
	{
		name: "destroyed",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			destroy(t, s.A, client)
			gone(t, client, unix.ECONNABORTED)
			gone(t, server, unix.ECONNRESET)
		},
		a: "OutRsts 1, EstabResets 1, ActiveOpens 1", b: "EstabResets 1, PassiveOpens 1",
	},
	{
		name: "listener closed before accept",
		do: func(t *testing.T, s *scene) {
			l := s.listen()
			client := s.A.Dial("tcp", s.B.Addr(port).String())
			s.until("established", 5*time.Second, func(e *events.Event) bool {
				return an("state", s.B)(e) && e.State.New == "ESTABLISHED"
			})
			l.Close()
			gone(t, client, unix.ECONNRESET)
		},
		a: "EstabResets 1, ActiveOpens 1", b: "OutRsts 1, EstabResets 1, PassiveOpens 1",
	},
	{
		name: "thousand SYNs to nobody",
		do: func(t *testing.T, s *scene) {
			s.blast(port, 1000)
			testlab.Eventually(t, 10*time.Second, func() bool { return s.B.Counters()["TcpOutRsts"] == 1000 })
		},
		b: "OutRsts 1000",
	},
	{
		name: "reset by a firewall",
		do: func(t *testing.T, s *scene) {
			l := s.listen()
			client, server := s.A.Connect(s.B, l)
			send(t, client, 1)
			receive(t, server, 1)
			reject := s.B.RejectTCP(port, testlab.In)
			send(t, client, 1)
			gone(t, client, unix.ECONNRESET)
			reject.Undo()
		},
		a: "EstabResets 1, ActiveOpens 1", b: "PassiveOpens 1",
	},
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

// exchange opens a connection, carries data both ways and closes it.
func exchange(t *testing.T, s *scene, l *net.TCPListener) {
	t.Helper()
	client, server := s.A.Connect(s.B, l)
	send(t, client, 3000)
	receive(t, server, 3000)
	send(t, server, 3000)
	receive(t, client, 3000)
	client.Close()
	gone(t, server, io.EOF)
	server.Close()
}

// play makes a situation happen, clear of the readings, and returns the lines.
func play(t *testing.T, x situation) (*scene, []events.Event) {
	t.Helper()
	lab := testlab.New(t)
	lab.PinNeighbours()
	if x.lab != nil {
		x.lab(lab)
	}
	s := stageIn(t, session.Config{}, lab)
	standClear()
	x.do(t, s)
	return s, s.ledgers()
}

// TestLedger: in every situation the events add up to what the kernel counted,
// and the verdict says so.
func TestLedger(t *testing.T) {
	t.Parallel()
	for _, x := range situations {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			s, evs := play(t, x)
			checkLedger(t, s, evs, x)
		})
	}
}

// On a kernel that cannot show something a difference may be unprovable, never
// unexplained.
func checkLedger(t *testing.T, s *scene, evs []events.Event, x situation) {
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

// TestLedgerUnderLoad repeats situations while every processor is busy, with
// no pause before and after: what happens at the readings is told apart.
func TestLedgerUnderLoad(t *testing.T) {
	_, stop := testlab.BurnCPU(t, 1)
	defer stop()
	t.Run("together", func(t *testing.T) { // returns when all have
		for _, name := range []string{
			"SYN loss", "timeouts", "refused connect", "linger of zero", "close with unread data",
			"thousand SYNs to nobody", "requests reset by the peer", "nothing but traffic",
		} {
			x := situations[slices.IndexFunc(situations, func(x situation) bool { return x.name == name })]
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				lab := testlab.New(t)
				lab.PinNeighbours()
				if x.lab != nil {
					x.lab(lab)
				}
				s := stageIn(t, session.Config{}, lab)
				x.do(t, s)
				evs := s.stop()
				sum := evs[len(evs)-1].Summary
				if sum.Verdict.State != evidence.Complete {
					t.Errorf("verdict %+v\n%s%s", sum.Verdict, unexplained(generation(t, sum, lab.A.Name)), unexplained(generation(t, sum, lab.B.Name)))
				}
			})
		}
	})
}

// TestLedgerInTraffic attaches to connections that are opened and closed all
// the time, and leaves them so.
func TestLedgerInTraffic(t *testing.T) {
	t.Parallel()
	lab := testlab.New(t)
	lab.PinNeighbours()
	quiet(lab)
	l := lab.B.Listen("tcp4", lab.B.Addr(port).String())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			c, err := lab.A.DialContext(ctx, "tcp4", l.Addr().String())
			if err != nil {
				return
			}
			server, err := l.Accept()
			if err != nil {
				c.Close()
				return
			}
			time.Sleep(time.Millisecond)
			// One end or the other resets.
			_ = server.(*net.TCPConn).SetLinger(0)
			server.Close()
			c.Close()
			// Nobody listens there.
			if c, err := lab.A.DialContext(ctx, "tcp4", lab.B.Addr(port+1).String()); err == nil {
				c.Close()
			}
		}
	}()
	defer func() { cancel(); l.Close(); <-done }()
	for range 5 {
		o := observe(t, lab.A.Name, lab.B.Name)
		o.until("traffic", 30*time.Second, func(e *events.Event) bool { return e.Type == "abort" && e.Seq > 200 })
		evs := o.stop()
		sum := evs[len(evs)-1].Summary
		if sum.Verdict.State != evidence.Complete {
			t.Errorf("verdict %+v\n%s%s", sum.Verdict, unexplained(generation(t, sum, lab.A.Name)), unexplained(generation(t, sum, lab.B.Name)))
		}
	}
}

// TestLedgerOfGoneNamespace: the counters of a namespace whose name was
// deleted are still read.
func TestLedgerOfGoneNamespace(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	standClear()
	client, _ := s.connect()
	s.Cut()
	send(t, client, 10)
	s.until("retransmission", 5*time.Second, an("retransmit", s.A))
	s.A.Delete()
	s.until("end of the namespace", 5*time.Second, func(e *events.Event) bool {
		return e.Target != nil && e.Target.Change == "gone" && e.Netns.Name == s.A.Name
	})
	evs := s.stop()
	sum := evs[len(evs)-1].Summary
	g := generation(t, sum, s.A.Name)
	if l := line(t, g, "RetransSegs"); sum.Verdict.State != evidence.Complete || g.Verdict.State != evidence.Complete || l.Kernel == 0 || l.Events != int64(l.Kernel) {
		t.Errorf("verdict %+v, %+v", sum.Verdict, l)
	}
	if g.Ledger.Closed.EndNS == 0 || g.Ledger.Opened.EndNS >= g.Ledger.Closed.StartNS {
		t.Errorf("readings %+v and %+v", g.Ledger.Opened, g.Ledger.Closed)
	}
}

// TestSabotagedFile takes events out of what was saved. What counts is missed.
func TestSabotagedFile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		situation string
		node      string // of the event
		typ       events.Type
		counter   string
		but       func(*events.Event) bool
	}{
		{"timeouts", "a", "retransmit", "RetransSegs", nil},
		{"SYN loss", "a", "retransmit", "TCPSynRetrans", nil},
		{"fast retransmission", "a", "retransmit", "TCPFastRetrans", nil},
		{"thousand SYNs to nobody", "b", "reset", "OutRsts", nil},
		{"refused connect", "a", "abort", "AttemptFails", nil},
		{"close with unread data", "b", "abort", "TCPAbortOnClose", nil},
		{"close with unread data", "b", "state", "EstabResets", func(e *events.Event) bool { return e.State.New == "CLOSE" }},
		{"linger of zero", "b", "abort", "TCPAbortOnData", nil},
		{"user timeout", "a", "abort", "TCPAbortOnTimeout", nil},
		{"keepalive", "a", "probe", "TCPKeepAlive", nil},
		{"nothing but traffic", "a", "state", "ActiveOpens", func(e *events.Event) bool { return e.State.New == "SYN_SENT" }},
		{"nothing but traffic", "b", "state", "PassiveOpens", func(e *events.Event) bool { return e.State.New == "SYN_RECV" }},
	} {
		t.Run(tt.situation+" without "+string(tt.typ), func(t *testing.T) {
			t.Parallel()
			x := situations[slices.IndexFunc(situations, func(x situation) bool { return x.name == tt.situation })]
			s, evs := play(t, x)
			name := map[string]string{"a": s.A.Name, "b": s.B.Name}[tt.node]
			is := func(e events.Event) bool {
				return e.Type == tt.typ && e.Netns != nil && e.Netns.Name == name && (tt.but == nil || tt.but(&e))
			}
			// One of them, then all of them: a program that was not attached.
			one := slices.Clone(evs)
			i := slices.IndexFunc(one, is)
			if i < 0 {
				t.Fatalf("no such event: %+v", tt)
			}
			one = slices.Delete(one, i, i+1)
			all := slices.DeleteFunc(slices.Clone(evs), is)
			for what, cut := range map[string][]events.Event{"one": one, "all": all} {
				missing := uint64(len(evs) - len(cut))
				_, verdict, err := evidence.Judge(cut)
				if err != nil {
					t.Fatal(err)
				}
				unprovable := verdict.State == evidence.Unprovable && len(evs[0].Session.CannotShow) > 0
				if (verdict.State != evidence.Incomplete || verdict.By != missing) && !unprovable {
					t.Errorf("without %s: %+v, want incomplete by %d", what, verdict, missing)
				}
				if !slices.ContainsFunc(verdict.Reasons, func(r string) bool { return strings.HasPrefix(r, name+": "+tt.counter+": ") }) {
					t.Errorf("without %s: %q does not name %s", what, verdict.Reasons, tt.counter)
				}
			}
		})
	}
}

// TestSabotagedObserver takes a namespace out of the programs' filter for a
// while: the session does not notice, its verdict does.
func TestSabotagedObserver(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	standClear()
	l := s.listen()
	exchange(t, s, l)
	inode := uint32(s.A.Inode())
	filter := filterWith(t, inode)
	if err := filter.Delete(inode); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		exchange(t, s, l)
	}
	if err := filter.Put(inode, uint32(1)); err != nil {
		t.Fatal(err)
	}
	exchange(t, s, l)
	standClear()
	evs := s.stop()
	sum := evs[len(evs)-1].Summary
	if sum.Verdict.State != evidence.Incomplete || sum.Verdict.By != 3 || len(sum.Verdict.Reasons) != 1 || !strings.HasPrefix(sum.Verdict.Reasons[0], s.A.Name+": ActiveOpens: the kernel counted 5, 2 are in the events") {
		t.Errorf("verdict %+v", sum.Verdict)
	}
	if g := generation(t, sum, s.B.Name); g.Verdict.State != evidence.Complete {
		t.Errorf("the other namespace: %+v", g.Verdict)
	}
}

// filterWith returns the map of watched namespaces that has inode.
func filterWith(t *testing.T, inode uint32) *ebpf.Map {
	t.Helper()
	var id ebpf.MapID
	for {
		next, err := ebpf.MapGetNextID(id)
		if err != nil {
			t.Fatalf("no filter has namespace %d: %v", inode, err)
		}
		id = next
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue // it is gone
		}
		var value uint32
		if info, err := m.Info(); err == nil && info.Name == "watched" && m.Lookup(inode, &value) == nil {
			t.Cleanup(func() { m.Close() })
			return m
		}
		m.Close()
	}
}

// TestLostRecords: a ring that is too small loses records, which no ledger has
// to find out.
func TestLostRecords(t *testing.T) {
	t.Parallel()
	lab := testlab.New(t)
	lab.PinNeighbours()
	s := stageIn(t, session.Config{RingBytes: 4096}, lab)
	standClear()
	s.blast(port, 1000)
	testlab.Eventually(t, 10*time.Second, func() bool { return s.B.Counters()["TcpOutRsts"] == 1000 })
	standClear()
	evs := s.stop()
	sum := evs[len(evs)-1].Summary
	if sum.Kernel.Lost == 0 {
		t.Fatal("nothing was lost of 1000 records in a ring for eight")
	}
	if sum.Verdict.State != evidence.Incomplete || sum.Verdict.By < sum.Kernel.Lost || !strings.Contains(sum.Verdict.Reasons[0], "records were lost") {
		t.Errorf("%d lost, verdict %+v", sum.Kernel.Lost, sum.Verdict)
	}
	if l := line(t, generation(t, sum, s.B.Name), "OutRsts"); l.Kernel != 1000 || l.Events+int64(sum.Kernel.Lost) < 1000 {
		t.Errorf("%d lost, %+v", sum.Kernel.Lost, l)
	}
}
