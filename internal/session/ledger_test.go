package session_test

import (
	"context"
	"encoding/json"
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
			x := situationOf(t, name)
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
			x := situationOf(t, tt.situation)
			s, evs := play(t, x)
			if v := evs[len(evs)-1].Summary.Verdict; v.State != evidence.Complete && len(evs[0].Session.CannotShow) == 0 {
				t.Fatalf("before the sabotage: %+v", v)
			}
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
