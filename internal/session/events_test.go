package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// port is where B listens.
const port = 8080

// scene is two joined namespaces under observation, with the kernel's own
// counters as referee.
type scene struct {
	*testlab.Pair
	*observation

	before     map[*testlab.Node]testlab.Counters
	capA, capB *testlab.Capture // of situations
}

// stage makes a scene. Nothing has happened in it when the observation begins.
func stage(t *testing.T, cfg session.Config) *scene {
	t.Helper()
	lab := testlab.New(t)
	lab.PinNeighbours()
	return stageIn(t, cfg, lab)
}

func stageIn(t *testing.T, cfg session.Config, lab *testlab.Pair) *scene {
	t.Helper()
	s := &scene{Pair: lab, before: make(map[*testlab.Node]testlab.Counters)}
	for _, n := range []*testlab.Node{lab.A, lab.B} {
		s.before[n] = n.Counters()
	}
	s.observation = observeWith(t, cfg, lab.A.Name, lab.B.Name)
	return s
}

// listen starts a server on B.
func (s *scene) listen(opts ...testlab.SockOpt) *net.TCPListener {
	s.t.Helper()
	return s.B.Listen("tcp4", s.B.Addr(port).String(), opts...)
}

// connect makes a connection from A to B that has carried a byte each way.
func (s *scene) connect(opts ...testlab.SockOpt) (client, server *net.TCPConn) {
	s.t.Helper()
	client, server = s.A.Connect(s.B, s.listen(), opts...)
	send(s.t, client, 1)
	receive(s.t, server, 1)
	send(s.t, server, 1)
	receive(s.t, client, 1)
	return client, server
}

func send(t *testing.T, c net.Conn, n int) {
	t.Helper()
	if err := c.SetWriteDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c net.Conn, n int) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// gone waits until the peer's end of the connection is known to be over.
func gone(t *testing.T, c net.Conn, want error) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, want) {
		t.Errorf("read from a connection that ended: %v, want %v", err, want)
	}
}

// in selects the events of a node's namespace.
func in(n *testlab.Node) func(*events.Event) bool {
	return func(e *events.Event) bool { return e.Netns != nil && e.Netns.Name == n.Name }
}

// an selects the events of a type in a node's namespace.
func an(typ events.Type, n *testlab.Node) func(*events.Event) bool {
	return func(e *events.Event) bool { return e.Type == typ && e.Netns != nil && e.Netns.Name == n.Name }
}

// finish ends the observation, holds its events against the counters and
// against what is true of every socket, and returns them.
func (s *scene) finish() []events.Event {
	s.t.Helper()
	evs := s.stop()
	for _, n := range []*testlab.Node{s.A, s.B} {
		referee(s.t, n, s.before[n], evs)
	}
	samePorts(s.t, evs)
	return evs
}

// referee compares the events of a namespace with what the kernel counted in
// it.
func referee(t *testing.T, n *testlab.Node, before testlab.Counters, evs []events.Event) {
	t.Helper()
	counted := n.Counters().Sub(before)
	seen := make(map[string]uint64)
	for _, e := range pick(evs, "retransmit", in(n)) {
		segments := uint64(e.Retransmit.Segments)
		seen["TcpRetransSegs"] += segments
		switch e.Retransmit.Cause {
		case "syn", "synack":
			seen["TcpExtTCPSynRetrans"] += segments
		case "fast":
			seen["TcpExtTCPFastRetrans"] += segments
		case "loss-recovery":
			seen["TcpExtTCPSlowStartRetrans"] += segments
		}
	}
	edge := uint64(0) // older kernels show those that no socket sends at the edge only, beside the packet filter's
	for _, e := range pick(evs, "reset", in(n)) {
		switch {
		case e.Reset.Direction != "sent":
		case e.Reset.SeenBy == "tcp_send_reset":
			seen["TcpOutRsts"]++
		case declared(evs[0].Session, "resets sent without a socket"):
			edge++
		}
	}
	if want := counted.Get(t, "TcpOutRsts"); edge > 0 && seen["TcpOutRsts"] <= want && want <= seen["TcpOutRsts"]+edge {
		seen["TcpOutRsts"] = want
	}
	for _, e := range pick(evs, "probe", in(n)) {
		if e.Probe.Direction == "sent" {
			seen[map[string]string{"keepalive": "TcpExtTCPKeepAlive", "zero-window": "TcpExtTCPWinProbe"}[e.Probe.Kind]]++
		}
	}
	for _, e := range pick(evs, "state", in(n)) {
		switch s := e.State; {
		case s.New == "SYN_SENT":
			seen["TcpActiveOpens"]++
		case s.New == "SYN_RECV":
			seen["TcpPassiveOpens"]++
		case s.New == "CLOSE" && (s.Old == "ESTABLISHED" || s.Old == "CLOSE_WAIT"):
			seen["TcpEstabResets"]++
		case s.New == "CLOSE" && (s.Old == "SYN_SENT" || s.Old == "SYN_RECV"):
			seen["TcpAttemptFails"]++
		}
	}
	for _, e := range pick(evs, "abort", in(n)) {
		switch e.Abort.Cause {
		case "user-timeout", "retries-exhausted", "keepalive":
			seen["TcpExtTCPAbortOnTimeout"]++
		case "connect-cancelled":
			seen["TcpAttemptFails"]-- // the kernel counts no failure
		}
	}
	if declared(evs[0].Session, "retransmissions that failed locally") {
		seen["TcpRetransSegs"] += counted.Get(t, "TcpExtTCPRetransFail")
	}
	for _, name := range []string{
		"TcpRetransSegs", "TcpExtTCPSynRetrans", "TcpExtTCPFastRetrans", "TcpExtTCPSlowStartRetrans",
		"TcpOutRsts", "TcpExtTCPKeepAlive", "TcpExtTCPWinProbe",
		"TcpActiveOpens", "TcpPassiveOpens", "TcpEstabResets", "TcpAttemptFails", "TcpExtTCPAbortOnTimeout",
	} {
		if want := counted.Get(t, name); seen[name] != want {
			t.Errorf("%s: events say %s %d, the kernel %d", n.Name, name, seen[name], want)
		}
	}
}

// samePorts checks that a socket keeps its addresses from the first event that
// could know them to the last.
func samePorts(t *testing.T, evs []events.Event) {
	t.Helper()
	known := make(map[uint64]events.Sock)
	for _, e := range evs {
		if e.Sock == nil || e.Sock.Cookie == 0 {
			continue
		}
		// The kernel chooses the local port after it has moved to SYN_SENT.
		// A connection that is being accepted has its listener's addresses still.
		if e.State != nil && (e.State.New == "SYN_SENT" || e.State.Old == "LISTEN") {
			continue
		}
		first, ok := known[e.Sock.Cookie]
		if !ok {
			known[e.Sock.Cookie] = *e.Sock
			first = *e.Sock
		}
		if *e.Sock != first || e.Sock.Local.Port() == 0 {
			t.Errorf("line %d (%s): socket is %v, was %v", e.Seq, e.Type, *e.Sock, first)
		}
	}
}

// one returns the only event of a type that satisfies f.
func one(t *testing.T, evs []events.Event, typ events.Type, f func(*events.Event) bool) events.Event {
	t.Helper()
	got := pick(evs, typ, f)
	if len(got) != 1 {
		t.Fatalf("%d events of type %s, want 1", len(got), typ)
	}
	return got[0]
}

// none fails for every event of a type that satisfies f.
func none(t *testing.T, evs []events.Event, f func(*events.Event) bool, types ...events.Type) {
	t.Helper()
	for _, typ := range types {
		for _, e := range pick(evs, typ, f) {
			t.Errorf("unexpected %s: line %d %+v %+v %+v", typ, e.Seq, e.Retransmit, e.Reset, e.Abort)
		}
	}
}

// causes are those of the retransmissions, in order.
func causes(evs []events.Event) string {
	var names []string
	for _, e := range evs {
		names = append(names, e.Retransmit.Cause)
	}
	return strings.Join(names, " ")
}

// attempts checks that a run is numbered from 1.
func attempts(t *testing.T, run []events.Event) {
	t.Helper()
	for i, e := range run {
		if e.Retransmit.Attempt != uint32(i+1) {
			t.Errorf("retransmission %d of the run has attempt %d", i+1, e.Retransmit.Attempt)
		}
	}
}

// synOnly selects connection requests for [testlab.Loss].
func synOnly(nth ...int) testlab.Loss {
	return testlab.Loss{Mask: testlab.SYN | testlab.ACK, Want: testlab.SYN, Nth: nth}
}

func dataTo(port uint16, nth ...int) testlab.Loss {
	return testlab.Loss{DstPort: port, Mask: testlab.SYN, Nth: nth}
}

func TestSYNRetransmitted(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	s.B.Lose(synOnly(1, 2))
	capA := s.A.Capture(testlab.IfName)
	client, _ := s.A.Connect(s.B, s.listen())
	evs := s.finish()
	capA.Stop()

	run := pick(evs, "retransmit", in(s.A))
	if got := causes(run); got != "syn syn" {
		t.Fatalf("causes %q", got)
	}
	attempts(t, run)
	for i, e := range run {
		r := e.Retransmit
		due := int64(1000)
		if one(t, evs, "target", in(s.A)).Target.Sysctls["tcp_syn_linear_timeouts"] == "" {
			due <<= i + 1 // before 6.5 the timeout doubles from the first on
		}
		if r.SeqEnd-r.SeqStart != 1 || r.Segments != 1 || r.NextDueMs != due || e.TCP.State != "SYN_SENT" {
			t.Errorf("retransmitted SYN: %+v in %s", r, e.TCP.State)
		}
		if e.Sock.Local.String() != client.LocalAddr().String() || e.Sock.Remote.String() != client.RemoteAddr().String() {
			t.Errorf("socket %+v, want that of %v", e.Sock, client.LocalAddr())
		}
		seen(t, capA, "retransmitted SYN", e.MonoNS, func(p testlab.Packet) bool {
			return p.Outgoing && p.Flags == testlab.SYN && p.Seq == r.SeqStart
		})
	}
	rec := one(t, evs, "recovered", nil).Recovered
	if !rec.Exact || rec.Retransmits != 2 || rec.Answered != 2 || rec.AckedBytes != 1 || rec.StalledUs < 900_000 || rec.SinceLastUs > 100_000 {
		t.Errorf("recovered: %+v", rec)
	}
	none(t, evs, nil, "reset", "abort", "error", "probe", "arrival")
	none(t, evs, in(s.B), "retransmit")
}

func TestSYNACKRetransmitted(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	// The first SYN-ACK is lost, and every further SYN, so that the listener's
	// timer brings the second.
	s.A.Lose(testlab.Loss{Mask: testlab.SYN | testlab.ACK, Want: testlab.SYN | testlab.ACK, Nth: []int{1}})
	s.B.Lose(synOnly(2, 3, 4, 5))
	capB := s.B.Capture(testlab.IfName)
	client, _ := s.A.Connect(s.B, s.listen())
	evs := s.finish()
	capB.Stop()

	e := one(t, evs, "retransmit", in(s.B))
	r := e.Retransmit
	if r.Cause != "synack" || r.Attempt != 1 || r.Segments != 1 || r.SeqEnd-r.SeqStart != 1 || r.NextDueMs != 2000 {
		t.Errorf("retransmitted SYN-ACK: %+v", r)
	}
	if e.Sock.Local.String() != client.RemoteAddr().String() || e.Sock.Remote.String() != client.LocalAddr().String() {
		t.Errorf("socket %+v, want the server's of %v", e.Sock, client.LocalAddr())
	}
	if e.Owner == nil || e.Owner.PID != uint32(unix.Getpid()) || e.Owner.Via != "listener" {
		t.Errorf("owner %+v", e.Owner)
	}
	seen(t, capB, "retransmitted SYN-ACK", e.MonoNS, func(p testlab.Packet) bool {
		return p.Outgoing && p.Flags == testlab.SYN|testlab.ACK && p.Seq == r.SeqStart
	})
	for _, e := range pick(evs, "retransmit", in(s.A)) {
		if e.Retransmit.Cause != "syn" {
			t.Errorf("retransmission of the client: %+v", e.Retransmit)
		}
	}
	none(t, evs, nil, "reset", "abort", "error", "probe")
}

func TestTimeoutRetransmits(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	client, server := s.connect()
	capA := s.A.Capture(testlab.IfName)
	s.B.Lose(dataTo(port, 1, 2, 3))
	send(t, client, 100)
	receive(t, server, 100)
	s.until("recovery", 5*time.Second, an("recovered", s.A))
	evs := s.finish()
	capA.Stop()

	run := pick(evs, "retransmit", nil)
	if got := causes(run); got != "tlp rto rto" {
		t.Fatalf("causes %q", got)
	}
	attempts(t, run)
	var una uint32
	for i, e := range run {
		r := e.Retransmit
		if r.SeqEnd-r.SeqStart != 100 || r.Segments != 1 || r.SendError != "" || r.SeqStart != e.TCP.SndUna || e.TCP.UnackedBytes != 100 {
			t.Errorf("retransmission %d: %+v", i+1, r)
		}
		una = e.TCP.SndUna
		seen(t, capA, "retransmission", e.MonoNS, func(p testlab.Packet) bool { return p.Outgoing && p.Seq == r.SeqStart && p.Len == 100 })
	}
	e := one(t, evs, "recovered", nil)
	rec := e.Recovered
	if !rec.Exact || rec.Retransmits != 3 || rec.Answered != 3 || rec.AckedBytes != 100 || rec.Ack != una+100 {
		t.Errorf("recovered: %+v", rec)
	}
	if want := apart(e.MonoNS, run[0].MonoNS) / time.Microsecond; rec.StalledUs != uint64(want) {
		t.Errorf("stalled %d us, want %d", rec.StalledUs, want)
	}
	seen(t, capA, "acknowledgement", e.MonoNS, func(p testlab.Packet) bool { return !p.Outgoing && p.Ack == rec.Ack })
	none(t, evs, nil, "reset", "abort", "error", "probe")
}

func TestFastRetransmit(t *testing.T) {
	t.Parallel()
	lab := testlab.New(t)
	lab.PinNeighbours()
	lab.SmallSegments()
	s := stageIn(t, session.Config{}, lab)
	client, server := s.connect()
	capA := s.A.Capture(testlab.IfName)
	s.B.Lose(dataTo(port, 2))
	send(t, client, 10_000)
	receive(t, server, 10_000)
	s.until("recovery", 5*time.Second, an("recovered", s.A))
	evs := s.finish()
	capA.Stop()

	e := one(t, evs, "retransmit", nil)
	r := e.Retransmit
	if r.Cause != "fast" || r.Attempt != 1 || r.Segments != 1 || r.SeqStart != e.TCP.SndUna || e.TCP.CaState != "Recovery" {
		t.Errorf("retransmission: %+v in %s", r, e.TCP.CaState)
	}
	seen(t, capA, "retransmission", e.MonoNS, func(p testlab.Packet) bool { return p.Outgoing && p.Seq == r.SeqStart && p.SeqEnd() == r.SeqEnd })
	ended := one(t, evs, "recovered", nil)
	rec := ended.Recovered
	if !rec.Exact || rec.Retransmits != 1 || rec.AckedBytes < r.SeqEnd-r.SeqStart {
		t.Errorf("recovered: %+v", rec)
	}
	// On a veth the answer may come faster than any round trip measured before,
	// and then it is rightly not known which transmission was answered.
	faster := rec.SinceLastUs < uint64(ended.TCP.SrttUs)
	if rec.Answered != 1 && !(rec.Answered == 0 && faster) {
		t.Errorf("answered %d, %d us after it was sent, with srtt_us %d", rec.Answered, rec.SinceLastUs, ended.TCP.SrttUs)
	}
	none(t, evs, nil, "reset", "abort", "error", "probe", "arrival")
}

func TestLossRecovery(t *testing.T) {
	t.Parallel()
	lab := testlab.New(t)
	lab.PinNeighbours()
	lab.SmallSegments()
	s := stageIn(t, session.Config{}, lab)
	client, server := s.connect()
	capA := s.A.Capture(testlab.IfName)
	// Eight segments and the loss probe are lost; what the timer sends passes.
	s.B.Lose(dataTo(port, 1, 2, 3, 4, 5, 6, 7, 8, 9))
	const size = 8 * 1448
	send(t, client, size)
	receive(t, server, size)
	testlab.Eventually(t, 5*time.Second, func() bool {
		info, err := testlab.Info(client)
		return err == nil && info.Unacked == 0
	})
	evs := s.finish()
	capA.Stop()

	all := pick(evs, "retransmit", nil)
	if got := causes(all); got != "tlp rto"+strings.Repeat(" loss-recovery", len(all)-2) || len(all) < 5 {
		t.Fatalf("causes %q", got)
	}
	segments := uint32(0)
	for _, e := range all {
		segments += e.Retransmit.Segments
	}
	sent := capA.Filter(func(p testlab.Packet) bool { return p.Outgoing && p.Len > 0 })
	if want := len(sent) - 8; int(segments) != want {
		t.Errorf("%d segments retransmitted, %d in the capture", segments, want)
	}
	// Each acknowledgement begins a new run.
	recovered := pick(evs, "recovered", nil)
	if len(recovered) < 2 {
		t.Fatalf("%d recoveries", len(recovered))
	}
	attempt := uint32(0)
	for _, e := range evs {
		switch {
		case e.Retransmit != nil:
			attempt++
			if e.Retransmit.Attempt != attempt {
				t.Errorf("line %d: attempt %d, want %d", e.Seq, e.Retransmit.Attempt, attempt)
			}
		case e.Recovered != nil:
			if e.Recovered.Retransmits != attempt || !e.Recovered.Exact {
				t.Errorf("line %d: recovered %+v, want %d retransmissions", e.Seq, e.Recovered, attempt)
			}
			attempt = 0
		}
	}
	none(t, evs, nil, "reset", "abort", "error", "probe", "arrival")
}

// TestHalfClosedRecovers loses data on a connection whose other half is
// closed, and a FIN.
func TestHalfClosedRecovers(t *testing.T) {
	t.Parallel()
	for _, lost := range []int{1, 2} { // answered by the loss probe, by the timer
		t.Run(fmt.Sprintf("data lost %d times", lost), func(t *testing.T) {
			t.Parallel()
			s := stage(t, session.Config{})
			client, server := s.connect()
			if err := server.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			gone(t, client, io.EOF)
			nth := []int{1, 2}[:lost]
			s.B.Lose(dataTo(port, nth...))
			send(t, client, 100)
			receive(t, server, 100)
			s.until("recovery", 5*time.Second, an("recovered", s.A))
			evs := s.finish()
			run := pick(evs, "retransmit", in(s.A))
			if got := causes(run); got != []string{"tlp", "tlp rto"}[lost-1] {
				t.Errorf("causes %q", got)
			}
			e := one(t, evs, "recovered", in(s.A))
			if rec := e.Recovered; !rec.Exact || rec.Retransmits != uint32(lost) || rec.AckedBytes != 100 {
				t.Errorf("recovered: %+v", rec)
			}
			if (e.TCP == nil) != s.blind("probes and resets at the edge") || e.TCP != nil && e.TCP.State != "CLOSE_WAIT" {
				t.Errorf("recovered in %+v", e.TCP)
			}
		})
	}
	t.Run("FIN lost", func(t *testing.T) {
		t.Parallel()
		s := stage(t, session.Config{})
		client, server := s.connect()
		s.B.Lose(dataTo(port, 1, 2))
		if err := client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		gone(t, server, io.EOF)
		s.until("recovery", 5*time.Second, an("recovered", s.A))
		evs := s.finish()
		run := pick(evs, "retransmit", in(s.A))
		if got := causes(run); got != "tlp rto" {
			t.Errorf("causes %q", got)
		}
		for _, e := range run {
			if r := e.Retransmit; r.SeqEnd-r.SeqStart != 1 || e.TCP.State != "FIN_WAIT1" {
				t.Errorf("FIN sent again: %+v in %s", r, e.TCP.State)
			}
		}
		if rec := one(t, evs, "recovered", in(s.A)).Recovered; !rec.Exact || rec.Retransmits != 2 || rec.AckedBytes != 1 {
			t.Errorf("recovered: %+v", rec)
		}
		none(t, evs, nil, "reset", "abort", "error")
	})
}

// TestLocalLoss retransmits into a packet filter that drops on the way out.
func TestLocalLoss(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	client, server := s.connect()
	// Lost on the wire first: what never left is not retransmitted.
	s.B.Lose(dataTo(port, 1))
	send(t, client, 100)
	drop := s.A.DropTCP(port, testlab.Out)
	if s.blind("retransmissions that failed locally") {
		// Here the tracepoint fires for what was handed down only.
		time.Sleep(time.Second) // for attempts that the filter stops
		drop.Undo()
		receive(t, server, 100)
		for _, e := range pick(s.finish(), "retransmit", nil) {
			if e.Retransmit.SendError != "" {
				t.Errorf("retransmission after the filter went: %+v", e.Retransmit)
			}
		}
		return
	}
	s.until("third retransmission", 5*time.Second, func(e *events.Event) bool { return e.Type == "retransmit" && e.Retransmit.Attempt == 3 })
	drop.Undo()
	receive(t, server, 100)
	s.until("recovery", 5*time.Second, an("recovered", s.A))
	evs := s.finish()
	run := pick(evs, "retransmit", nil)
	attempts(t, run)
	for _, e := range run[:3] {
		if e.Retransmit.SendError == "" {
			t.Errorf("a retransmission that the filter dropped has no send error: %+v", e.Retransmit)
		}
	}
	if last := run[len(run)-1].Retransmit; last.SendError != "" {
		t.Errorf("the last retransmission: %+v", last)
	}
}

func TestKeepaliveProbes(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	client, _ := s.connect(testlab.KeepAlive(time.Second, time.Second, 3))
	capA, capB := s.A.Capture(testlab.IfName), s.B.Capture(testlab.IfName)
	// Two are answered, three are not.
	s.until("second probe at the other end", 5*time.Second, func(e *events.Event) bool {
		return an("probe", s.B)(e) && e.Probe.Number == 2
	})
	s.Cut()
	s.until("abort", 10*time.Second, an("abort", s.A))
	gone(t, client, unix.ETIMEDOUT)
	evs := s.finish()
	capA.Stop()
	capB.Stop()

	sent, received := pick(evs, "probe", in(s.A)), pick(evs, "probe", in(s.B))
	if len(sent) != 5 || len(received) != 2 {
		t.Fatalf("%d probes sent, %d received, want 5 and 2", len(sent), len(received))
	}
	for i, e := range sent {
		p := e.Probe
		// What was answered is not counted: the third unanswered one is the last.
		want := []uint32{1, 1, 1, 2, 3}[i]
		if p.Kind != "keepalive" || p.Direction != "sent" || p.Number != want || p.Segment.Flags != "ACK" {
			t.Errorf("probe %d sent: %+v, want number %d", i+1, p, want)
		}
		if s.blind("probes and resets at the edge") {
			if e.TCP != nil {
				t.Errorf("a packet socket shows a snapshot: %+v", e.TCP)
			}
		} else if k := e.TCP.Keepalive; p.Segment.SeqStart != e.TCP.SndUna-1 || !k.On || k.TimeMs != 1000 || k.IntvMs != 1000 || k.Probes != 3 {
			t.Errorf("keepalive %+v", k)
		}
		seen(t, capA, "probe sent", e.MonoNS, func(q testlab.Packet) bool { return q.Outgoing && q.Len == 0 && q.Seq == p.Segment.SeqStart })
	}
	for i, e := range received {
		p := e.Probe
		if p.Kind != "keepalive" || p.Direction != "received" || p.Number != uint32(i+1) || p.Segment != sent[i].Probe.Segment {
			t.Errorf("probe %d received: %+v", i+1, p)
		}
		seen(t, capB, "probe received", e.MonoNS, func(q testlab.Packet) bool { return !q.Outgoing && q.Len == 0 && q.Seq == p.Segment.SeqStart })
	}
	a := one(t, evs, "abort", nil)
	if a.Abort.Cause != "keepalive" || a.Abort.By != "local" || a.Abort.State != "ESTABLISHED" {
		t.Errorf("abort: %+v", a.Abort)
	}
	r := one(t, evs, "reset", nil).Reset
	reason := "TCP_KEEPALIVE_TIMEOUT"
	if s.blind("resets sent carry no reason") {
		reason = ""
	}
	if r.Direction != "sent" || !r.Socket || r.Reason != reason || r.Segment == nil {
		t.Errorf("reset: %+v", r)
	}
	if s.blind("errors reported to the application") {
		none(t, evs, nil, "error")
	} else if e := one(t, evs, "error", nil).Error; e.Name != "ETIMEDOUT" {
		t.Errorf("error: %+v", e)
	}
}

func TestZeroWindowProbes(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	client, server := s.A.Connect(s.B, s.listen(testlab.ReceiveBuffer(4096)))
	written := make(chan int, 1)
	const size = 200_000
	go func() {
		n, _ := client.Write(make([]byte, size))
		written <- n
	}()
	last := s.until("third probe", 10*time.Second, func(e *events.Event) bool {
		return an("probe", s.B)(e) && e.Probe.Number == 3
	})
	receive(t, server, size)
	if n := <-written; n != size {
		t.Fatalf("%d bytes written", n)
	}
	evs := s.finish()
	first := evs[:last.Seq]
	for _, n := range []*testlab.Node{s.A, s.B} {
		direction := map[*testlab.Node]string{s.A: "sent", s.B: "received"}[n]
		probes := pick(first, "probe", in(n))
		if len(probes) != 3 {
			t.Fatalf("%d probes %s, want 3", len(probes), direction)
		}
		for i, e := range probes {
			if p := e.Probe; p.Kind != "zero-window" || p.Direction != direction || p.Number != uint32(i+1) {
				t.Errorf("probe %d: %+v", i+1, p)
			}
		}
	}
	if e := pick(first, "probe", in(s.A))[2]; s.blind("probes and resets at the edge") {
		if e.TCP != nil {
			t.Errorf("a packet socket shows a snapshot: %+v", e.TCP)
		}
	} else if e.TCP.UnsentBytes == 0 || e.TCP.UnackedBytes != 0 || e.TCP.Backoff == 0 {
		t.Errorf("the prober's snapshot: %+v", e.TCP)
	}
	none(t, evs, nil, "reset", "abort", "error")
}

func TestArrival(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{ArrivalThreshold: 300 * time.Millisecond})
	client, server := s.connect()
	capB := s.B.Capture(testlab.IfName)
	send(t, client, 10) // no silence before
	receive(t, server, 10)
	time.Sleep(600 * time.Millisecond)
	send(t, client, 2000)
	receive(t, server, 2000)
	s.until("arrival", 5*time.Second, an("arrival", s.B))
	evs := s.finish()
	capB.Stop()

	e := one(t, evs, "arrival", nil)
	a := e.Arrival
	if a.SilenceMs < 580 || a.SilenceMs > 2000 || a.Bytes != 2000 || a.Segment.SeqEnd-a.Segment.SeqStart != 2000 || a.Segment.SeqStart != e.TCP.RcvNxt {
		t.Errorf("arrival: %+v", a)
	}
	if e.Sock.Remote.String() != client.LocalAddr().String() {
		t.Errorf("socket %+v", e.Sock)
	}
	seen(t, capB, "arrival", e.MonoNS, func(p testlab.Packet) bool { return !p.Outgoing && p.Seq == a.Segment.SeqStart && p.Len > 0 })
	none(t, evs, nil, "reset", "abort", "error", "probe", "retransmit")
}

// TestOrdinary is the control: traffic without a fault shows none.
func TestOrdinary(t *testing.T) {
	t.Parallel()
	lab := testlab.New(t)
	lab.PinNeighbours()
	lab.MinRTO(5 * time.Second)
	for _, n := range []*testlab.Node{lab.A, lab.B} {
		// A busy machine keeps a receiver waiting for tens of milliseconds, after
		// which the kernel would really send again.
		n.Sysctl("net.ipv4.tcp_early_retrans", "0")
		n.Sysctl("net.ipv4.tcp_recovery", "0")
		n.Sysctl("net.ipv4.tcp_reordering", "100")
	}
	s := stageIn(t, session.Config{ArrivalThreshold: 10 * time.Second}, lab)
	l := s.listen()
	const conns, size = 50, 100_000
	for range conns {
		client, server := s.A.Connect(s.B, l)
		done := make(chan error, 1)
		go func() {
			_, err := client.Write(make([]byte, size))
			if err == nil {
				err = client.CloseWrite()
			}
			done <- err
		}()
		if n, err := io.Copy(io.Discard, server); err != nil || n != size {
			t.Fatalf("received %d bytes: %v", n, err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		send(t, server, 10)
		receive(t, client, 10)
		server.Close()
		gone(t, client, io.EOF)
		client.Close()
	}
	evs := s.finish()
	none(t, evs, nil, "retransmit", "reset", "abort", "error", "recovered", "probe", "arrival", "lost")
	for _, n := range []*testlab.Node{s.A, s.B} {
		opened := pick(evs, "state", func(e *events.Event) bool { return in(n)(e) && e.State.New == "ESTABLISHED" })
		closed := pick(evs, "state", func(e *events.Event) bool { return in(n)(e) && e.State.New == "CLOSE" && e.State.Old != "LISTEN" })
		if len(opened) != conns || len(closed) != conns {
			t.Errorf("%s: %d connections opened, %d closed, want %d", n.Name, len(opened), len(closed), conns)
		}
	}
}

// destroy does what ss -K does.
func destroy(t *testing.T, n *testlab.Node, c net.Conn) {
	t.Helper()
	err := n.Do(func() error { return netlink.SocketDestroy(c.LocalAddr(), c.RemoteAddr()) })
	if err != nil {
		t.Fatalf("destroy a socket: %v", err)
	}
}

// TestAborts provokes each way for a connection to end other than by FIN.
func TestAborts(t *testing.T) {
	t.Parallel()
	type want struct {
		by, cause, state string
		errno            string // of the error event; empty: none
		sent, received   string // reason of the reset sent, "yes" for one received; empty: none
	}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, s *scene)
		a, b *want // of the client and of the server; nil: no abort
		// Resets of the namespace that no socket of this test sent.
		loneB string
	}{
		{
			name: "refused",
			do: func(t *testing.T, s *scene) {
				_, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String())
				if !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("dial: %v", err)
				}
			},
			a:     &want{by: "peer", cause: "refused", state: "SYN_SENT", errno: "ECONNREFUSED", received: "yes"},
			loneB: "NO_SOCKET",
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
			a: &want{by: "peer", cause: "reset-received", state: "ESTABLISHED", errno: "ECONNRESET", received: "yes"},
			// The kernel disconnects, which reports the error to the closing process.
			b: &want{by: "local", cause: "linger-zero", state: "ESTABLISHED", errno: "ECONNRESET", sent: "TCP_STATE"},
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
			a: &want{by: "peer", cause: "reset-received", state: "ESTABLISHED", errno: "ECONNRESET", received: "yes"},
			b: &want{by: "local", cause: "close-with-unread-data", state: "ESTABLISHED", sent: "TCP_ABORT_ON_CLOSE"},
		},
		{
			name: "data after close",
			do: func(t *testing.T, s *scene) {
				client, server := s.connect()
				// The peer does not hear of the close before it sends.
				hold := s.A.Lose(testlab.Loss{})
				server.Close()
				send(t, client, 5)
				s.until("abort", 5*time.Second, an("abort", s.B))
				hold.Undo()
				gone(t, client, unix.ECONNRESET)
			},
			a: &want{by: "peer", cause: "reset-received", state: "ESTABLISHED", errno: "ECONNRESET", received: "yes"},
			b: &want{by: "local", cause: "close-with-unread-data", state: "FIN_WAIT1", sent: "TCP_ABORT_ON_DATA"},
		},
		{
			name: "user timeout",
			do: func(t *testing.T, s *scene) {
				client, _ := s.connect(testlab.UserTimeout(time.Second))
				s.Cut()
				send(t, client, 5)
				gone(t, client, unix.ETIMEDOUT)
			},
			a: &want{by: "local", cause: "user-timeout", state: "ESTABLISHED", errno: "ETIMEDOUT"},
		},
		{
			name: "retries exhausted",
			do: func(t *testing.T, s *scene) {
				s.A.Sysctl("net.ipv4.tcp_retries2", "2")
				client, _ := s.connect()
				s.Cut()
				send(t, client, 5)
				gone(t, client, unix.ETIMEDOUT)
			},
			a: &want{by: "local", cause: "retries-exhausted", state: "ESTABLISHED", errno: "ETIMEDOUT"},
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
			a: &want{by: "local", cause: "retries-exhausted", state: "SYN_SENT", errno: "ETIMEDOUT"},
		},
		{
			name: "connect cancelled",
			do: func(t *testing.T, s *scene) {
				s.B.Lose(synOnly())
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
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
			a: &want{by: "local", cause: "connect-cancelled", state: "SYN_SENT"},
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
			a: &want{by: "local", cause: "unreachable", state: "SYN_SENT", errno: "EHOSTUNREACH"},
		},
		{
			name: "destroyed",
			do: func(t *testing.T, s *scene) {
				client, server := s.connect()
				destroy(t, s.A, client)
				gone(t, client, unix.ECONNABORTED)
				gone(t, server, unix.ECONNRESET)
			},
			a: &want{by: "local", cause: "destroyed", state: "ESTABLISHED", errno: "ECONNABORTED", sent: "TCP_STATE"},
			b: &want{by: "peer", cause: "reset-received", state: "ESTABLISHED", errno: "ECONNRESET", received: "yes"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := stage(t, session.Config{})
			capA, capB := s.A.Capture(testlab.IfName), s.B.Capture(testlab.IfName)
			tt.do(t, s)
			evs := s.finish()
			capA.Stop()
			capB.Stop()
			for _, end := range []struct {
				n    *testlab.Node
				c    *testlab.Capture
				want *want
				lone string
			}{{s.A, capA, tt.a, ""}, {s.B, capB, tt.b, tt.loneB}} {
				w := end.want
				if w == nil {
					w = &want{}
					none(t, evs, in(end.n), "abort")
				} else if e := one(t, evs, "abort", in(end.n)); e.Abort.By != w.by || e.Abort.Cause != w.cause || e.Abort.State != w.state {
					t.Errorf("%s: abort %+v, want %+v", end.n.Name, e.Abort, w)
				} else if e.Sock.Local.Port() == 0 || e.Sock.Remote.Port() == 0 {
					t.Errorf("%s: abort of %+v", end.n.Name, e.Sock)
				}
				if w.errno == "" || s.blind("errors reported to the application") {
					none(t, evs, in(end.n), "error")
				} else if e := one(t, evs, "error", in(end.n)); e.Error.Name != w.errno {
					t.Errorf("%s: error %+v, want %s", end.n.Name, e.Error, w.errno)
				}
				resets := pick(evs, "reset", in(end.n))
				var got []string
				for _, e := range resets {
					r := e.Reset
					direction := "<"
					if r.Direction == "sent" {
						direction = ">"
					}
					who := " socket "
					if !r.Socket {
						who = " none "
					}
					got = append(got, direction+who+r.Reason)
					seen(t, end.c, "reset", e.MonoNS, func(p testlab.Packet) bool {
						return p.Outgoing == (r.Direction == "sent") && p.Flags.Has(testlab.RST)
					})
				}
				var expect []string
				reasons := !s.blind("resets sent carry no reason")
				if w.sent != "" && reasons {
					expect = append(expect, "> socket "+w.sent)
				} else if w.sent != "" {
					expect = append(expect, "> socket ")
				}
				if w.received != "" {
					expect = append(expect, "< socket ")
				}
				if end.lone != "" && reasons {
					expect = append(expect, "> none "+end.lone)
				} else if end.lone != "" {
					expect = append(expect, "> none ")
				}
				if fmt.Sprint(got) != fmt.Sprint(expect) {
					t.Errorf("%s: resets %q, want %q", end.n.Name, got, expect)
				}
				rst := end.c.Filter(func(p testlab.Packet) bool { return p.Flags.Has(testlab.RST) })
				if len(rst) != len(resets) {
					t.Errorf("%s: %d resets, %d in the capture: %v", end.n.Name, len(resets), len(rst), rst)
				}
			}
		})
	}
}

// TestResetsWithoutSocket are the resets that no tracepoint of a socket shows.
func TestResetsWithoutSocket(t *testing.T) {
	t.Parallel()
	t.Run("sent by a packet filter", func(t *testing.T) {
		t.Parallel()
		s := stage(t, session.Config{})
		capB := s.B.Capture(testlab.IfName)
		s.listen()
		s.B.RejectTCP(port, testlab.In)
		if _, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String()); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("dial: %v", err)
		}
		evs := s.finish()
		capB.Stop()
		e := one(t, evs, "reset", in(s.B))
		r := e.Reset
		if r.Direction != "sent" || r.Socket || r.Reason != "" || r.SeenBy != "wire" || r.Segment == nil || r.Trigger != nil || e.Owner != nil {
			t.Errorf("reset: %+v of %+v", r, e.Owner)
		}
		if e.Sock.Cookie != 0 || e.Sock.Local != s.B.Addr(port) || e.Sock.Remote.Addr() != s.A.Link.Addr4 {
			t.Errorf("reset of %+v", e.Sock)
		}
		seen(t, capB, "reset", e.MonoNS, func(p testlab.Packet) bool {
			return p.Outgoing && p.Flags.Has(testlab.RST) && p.Seq == r.Segment.SeqStart && p.Ack == r.Segment.Ack
		})
		if a := one(t, evs, "abort", in(s.A)).Abort; a.Cause != "refused" {
			t.Errorf("abort: %+v", a)
		}
		if got := one(t, evs, "reset", in(s.A)).Reset; !got.Socket || got.Direction != "received" || got.Segment == nil || *got.Segment != *r.Segment {
			t.Errorf("received %+v, sent %+v", got, r)
		}
	})
	t.Run("received by none", func(t *testing.T) {
		t.Parallel()
		s := stage(t, session.Config{})
		const count = 10
		if _, err := s.BlastSYN(t.Context(), testlab.Blast{Port: port, Count: count, Rate: 1000}); err != nil {
			t.Fatal(err)
		}
		testlab.Eventually(t, 5*time.Second, func() bool {
			return len(pick(s.events(), "reset", in(s.A))) == count
		})
		evs := s.finish()
		sent := pick(evs, "reset", in(s.B))
		if len(sent) != count {
			t.Fatalf("%d resets sent, want %d", len(sent), count)
		}
		for i, e := range sent {
			r := e.Reset
			if r.Direction != "sent" || r.Socket || r.SeenBy != "tcp_send_reset" && !s.blind("resets sent without a socket") ||
				r.Reason != "NO_SOCKET" && !s.blind("resets sent carry no reason") {
				t.Errorf("reset %d sent: %+v", i+1, r)
			}
			if r.Trigger != nil && (r.Trigger.Flags != "SYN" || r.Trigger.SeqStart != uint32(i)) {
				t.Errorf("reset %d answers %+v", i+1, r.Trigger)
			}
		}
		byPort := make(map[netip.AddrPort]bool)
		for _, e := range pick(evs, "reset", nil) {
			if !in(s.A)(&e) {
				continue
			}
			r := e.Reset
			byPort[e.Sock.Local] = true
			if r.Direction != "received" || r.Socket || r.SeenBy != "wire" || r.Segment == nil || e.Sock.Remote != s.B.Addr(port) {
				t.Errorf("reset received: %+v of %+v", r, e.Sock)
			}
		}
		for i := range uint16(count) {
			if !byPort[s.A.Addr(1024+i)] {
				t.Errorf("no reset received for port %d", 1024+i)
			}
		}
		none(t, evs, nil, "abort", "error", "state")
	})
}
