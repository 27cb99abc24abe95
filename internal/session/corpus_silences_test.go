package session_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
