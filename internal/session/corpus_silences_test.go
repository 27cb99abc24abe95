package session_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// silences are what a connection does when nobody answers.
var silences = []situation{
	{
		name: "user timeout",
		do: func(t *testing.T, s *scene) {
			client, _ := s.connect(testlab.UserTimeout(time.Second))
			s.Cut()
			send(t, client, 5)
			gone(t, client, unix.ETIMEDOUT)
		},
		a: "RetransSegs *, TCPTimeouts *, TCPLossProbes ?, EstabResets 1, ActiveOpens 1, TCPAbortOnTimeout 1", b: "PassiveOpens 1",
		again: [2]string{"(tlp )?rto( rto)*", ""},
		ends:  [2]string{"local user-timeout ESTABLISHED", ""},
		check: onTime,
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
		again: [2]string{"(tlp )?rto( rto)*", ""},
		ends:  [2]string{"local retries-exhausted ESTABLISHED", ""},
		check: onTime,
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
		again: [2]string{"( ?(tlp|rto|fast|loss-recovery))*", ""},
		ends:  [2]string{"local user-timeout ESTABLISHED", ""},
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
		ends: [2]string{"local keepalive ESTABLISHED", ""},
	},
	{
		// What the user timeout counts from is the first retransmission of the
		// episode, though an acknowledgement has ended its run.
		name: "user timeout in the second run of a loss episode",
		lab:  func(p *testlab.Pair) { p.SmallSegments() },
		do: func(t *testing.T, s *scene) {
			client, server := s.connect(testlab.UserTimeout(2 * time.Second))
			// Two segments, the loss probe; then the first arrives, and no more.
			nth := []int{1, 2, 3}
			for n := 5; n < 40; n++ {
				nth = append(nth, n)
			}
			s.B.Lose(dataTo(port, nth...))
			send(t, client, 2*1448)
			receive(t, server, 1448)
			gone(t, client, unix.ETIMEDOUT)
		},
		a: "RetransSegs *, TCPTimeouts *, TCPLossProbes 1, TCPFastRetrans ?, TCPSlowStartRetrans ?, EstabResets 1, ActiveOpens 1, TCPAbortOnTimeout 1", b: "PassiveOpens 1",
		again: [2]string{"tlp rto( (fast|loss-recovery))*( rto)+", ""},
		ends:  [2]string{"local user-timeout ESTABLISHED", ""},
		check: func(t *testing.T, s *scene, evs []events.Event) {
			if rec := one(t, evs, "recovered", in(s.A)).Recovered; rec.AckedBytes != 1448 {
				t.Errorf("recovered: %+v", rec)
			}
			onTime(t, s, evs)
		},
	},
	{
		name: "retries exhausted into a closed window",
		lab:  func(p *testlab.Pair) { p.A.Sysctl("net.ipv4.tcp_retries2", "2") },
		do: func(t *testing.T, s *scene) {
			client, _ := s.A.Connect(s.B, s.listen(testlab.ReceiveBuffer(4096)))
			done := make(chan error, 1)
			go func() {
				_, err := client.Write(make([]byte, 1_000_000))
				done <- err
			}()
			s.until("probe", 10*time.Second, an("probe", s.A))
			s.Cut()
			if err := <-done; !errors.Is(err, unix.ETIMEDOUT) {
				t.Errorf("write: %v", err)
			}
		},
		a: "RetransSegs ?, TCPTimeouts ?, TCPLossProbes ?, TCPFastRetrans ?, TCPSlowStartRetrans ?, EstabResets 1, ActiveOpens 1, TCPAbortOnTimeout 1, TCPWinProbe *", b: "PassiveOpens 1",
		again: [2]string{"( ?(tlp|rto|fast|loss-recovery))*", ""},
		ends:  [2]string{"local retries-exhausted ESTABLISHED", ""},
	},
	{
		name: "retries exhausted into a closed window, before the user timeout",
		lab:  func(p *testlab.Pair) { p.A.Sysctl("net.ipv4.tcp_retries2", "2") },
		do: func(t *testing.T, s *scene) {
			client, _ := s.A.Connect(s.B, s.listen(testlab.ReceiveBuffer(4096)), testlab.UserTimeout(time.Minute))
			done := make(chan error, 1)
			go func() {
				_, err := client.Write(make([]byte, 1_000_000))
				done <- err
			}()
			s.until("probe", 10*time.Second, an("probe", s.A))
			s.Cut()
			if err := <-done; !errors.Is(err, unix.ETIMEDOUT) {
				t.Errorf("write: %v", err)
			}
		},
		a: "RetransSegs ?, TCPTimeouts ?, TCPLossProbes ?, TCPFastRetrans ?, TCPSlowStartRetrans ?, EstabResets 1, ActiveOpens 1, TCPAbortOnTimeout 1, TCPWinProbe *", b: "PassiveOpens 1",
		again: [2]string{"( ?(tlp|rto|fast|loss-recovery))*", ""},
		ends:  [2]string{"local retries-exhausted ESTABLISHED", ""},
	},
	{
		name: "keepalive with a user timeout",
		do: func(t *testing.T, s *scene) {
			client, _ := s.connect(testlab.KeepAlive(time.Second, time.Second, 9), testlab.UserTimeout(2*time.Second))
			s.until("answered probe", 5*time.Second, an("probe", s.B))
			s.Cut()
			gone(t, client, unix.ETIMEDOUT)
		},
		a: "OutRsts 1, EstabResets 1, ActiveOpens 1, TCPAbortOnTimeout 1, TCPKeepAlive *", b: "PassiveOpens 1",
		ends: [2]string{"local keepalive ESTABLISHED", ""},
	},
	{
		name: "host unreachable by ICMP, connected",
		lab:  func(p *testlab.Pair) { p.A.Sysctl("net.ipv4.tcp_retries2", "3") },
		do: func(t *testing.T, s *scene) {
			client, _ := s.connect()
			s.B.RejectICMP(port, testlab.In, testlab.HostUnreachable)
			send(t, client, 5)
			gone(t, client, unix.EHOSTUNREACH)
		},
		a: "RetransSegs *, TCPTimeouts *, TCPLossProbes ?, EstabResets 1, ActiveOpens 1, TCPAbortOnTimeout 1", b: "PassiveOpens 1",
		again: [2]string{"(tlp )?rto( rto)*", ""},
		ends:  [2]string{"local unreachable ESTABLISHED", ""},
	},
	{
		name: "neighbour gone",
		lab:  func(p *testlab.Pair) { p.A.Sysctl("net.ipv4.tcp_retries2", "4") },
		do: func(t *testing.T, s *scene) {
			client, _ := s.connect()
			unknown(t, s.A, s.B)
			s.Cut()
			send(t, client, 5)
			gone(t, client, unix.EHOSTUNREACH)
		},
		a: "RetransSegs *, TCPTimeouts *, TCPLossProbes ?, EstabResets 1, ActiveOpens 1, TCPAbortOnTimeout 1", b: "PassiveOpens 1",
		again:  [2]string{"(tlp )?rto( rto)*", ""},
		ends:   [2]string{"local unreachable ESTABLISHED", ""},
		queued: true,
	},
}

// onTime holds the retransmissions of A to when they were announced, and its
// abort.
func onTime(t *testing.T, s *scene, evs []events.Event) {
	t.Helper()
	all := append(pick(evs, "retransmit", in(s.A)), one(t, evs, "abort", in(s.A)))
	held := 0
	for i, e := range all[:len(all)-1] {
		r := e.Retransmit
		if r.Cause != "rto" || r.NextDueMs < 0 {
			continue
		}
		if n := all[i+1].Retransmit; n != nil && n.Cause != "rto" {
			continue // an acknowledgement came first
		}
		held++
		// The timer wheel rounds up by at most an eighth.
		next, due := apart(all[i+1].MonoNS, e.MonoNS), time.Duration(r.NextDueMs)*time.Millisecond
		if next < due-10*time.Millisecond || next > due+due/8+testlab.Slack(50*time.Millisecond) {
			t.Errorf("line %d: the next came after %v, announced for %v", e.Seq, next, due)
		}
	}
	if held < 2 {
		t.Errorf("%d times were announced", held)
	}
}
