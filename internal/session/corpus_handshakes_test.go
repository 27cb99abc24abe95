package session_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// handshakes are what happens before a connection is there.
var handshakes = []situation{
	{
		name: "SYN loss",
		do: func(_ *testing.T, s *scene) {
			s.B.Lose(synOnly(1, 2))
			s.A.Connect(s.B, s.listen())
		},
		a: "RetransSegs 2, TCPSynRetrans 2, TCPTimeouts 2, ActiveOpens 1", b: "PassiveOpens 1",
		again: [2]string{"syn syn", ""},
	},
	{
		name: "SYN-ACK loss, the timer answers",
		do: func(_ *testing.T, s *scene) {
			s.A.Lose(synAcks(1))
			s.B.Lose(synOnly(2, 3, 4, 5))
			s.A.Connect(s.B, s.listen())
		},
		a:     "RetransSegs *, TCPSynRetrans *, TCPTimeouts *, ActiveOpens 1",
		b:     "RetransSegs 1, TCPSynRetrans 1, TCPTimeouts 1, PassiveOpens 1",
		again: [2]string{"syn( syn)*", "synack"},
	},
	{
		name: "SYN-ACK loss, whatever answers",
		do: func(_ *testing.T, s *scene) {
			s.A.Lose(synAcks(1, 2, 3))
			s.A.Connect(s.B, s.listen())
		},
		a:     "RetransSegs *, TCPSynRetrans *, TCPTimeouts *, ActiveOpens 1",
		b:     "RetransSegs *, TCPSynRetrans *, TCPTimeouts *, PassiveOpens 1",
		again: [2]string{"syn( syn)*", "synack( synack)*"},
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
		again: [2]string{"", "synack synack synack"},
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
		name: "refused connect",
		do: func(t *testing.T, s *scene) {
			if _, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String()); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("dial: %v", err)
			}
		},
		a: "AttemptFails 1, ActiveOpens 1", b: "OutRsts 1",
		ends: [2]string{"peer refused SYN_SENT", ""},
	},
	{
		name: "refused connect over IPv6",
		do: func(t *testing.T, s *scene) {
			if _, err := s.A.DialContext(t.Context(), "tcp", s.B.AddrV6(port).String()); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("dial: %v", err)
			}
		},
		a: "AttemptFails 1, ActiveOpens 1", b: "OutRsts 1",
		ends: [2]string{"peer refused SYN_SENT", ""},
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
		a:      "RetransSegs ?, TCPSynRetrans ?, TCPTimeouts ?, AttemptFails 1, ActiveOpens 1",
		again:  [2]string{"( ?syn)*", ""},
		ends:   [2]string{"local unreachable SYN_SENT", ""},
		queued: true,
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
		a:     "RetransSegs *, TCPSynRetrans *, TCPTimeouts *, AttemptFails 1, ActiveOpens 1, TCPAbortOnTimeout 1",
		again: [2]string{"syn( syn)*", ""},
		ends:  [2]string{"local retries-exhausted SYN_SENT", ""},
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
		a:    "ActiveOpens 1",
		ends: [2]string{"local connect-cancelled SYN_SENT", ""},
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
		// Package net tries again, twice.
		ends: [2]string{"local connect-cancelled SYN_SENT, local connect-cancelled SYN_SENT, local connect-cancelled SYN_SENT", ""},
	},
	{
		name: "user timeout of a SYN",
		do: func(t *testing.T, s *scene) {
			s.B.Lose(synOnly())
			_, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String(), testlab.UserTimeout(1500*time.Millisecond))
			if !errors.Is(err, unix.ETIMEDOUT) {
				t.Errorf("dial: %v", err)
			}
		},
		a:     "RetransSegs *, TCPSynRetrans *, TCPTimeouts *, AttemptFails 1, ActiveOpens 1, TCPAbortOnTimeout 1",
		again: [2]string{"syn( syn)*", ""},
		ends:  [2]string{"local user-timeout SYN_SENT", ""},
	},
	{
		name: "host unreachable by ICMP",
		do: func(t *testing.T, s *scene) {
			s.B.Lose(synOnly(1)) // its answer would find connect still at work
			s.B.RejectICMP(port, testlab.In, testlab.HostUnreachable)
			if _, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String()); !errors.Is(err, unix.EHOSTUNREACH) {
				t.Errorf("dial: %v", err)
			}
		},
		a:     "RetransSegs 1, TCPSynRetrans 1, TCPTimeouts 1, AttemptFails 1, ActiveOpens 1",
		again: [2]string{"syn", ""},
		ends:  [2]string{"local unreachable SYN_SENT", ""},
	},
	{
		name: "port unreachable by ICMP",
		do: func(t *testing.T, s *scene) {
			s.B.Lose(synOnly(1)) // its answer would find connect still at work
			s.B.RejectICMP(port, testlab.In, testlab.PortUnreachable)
			if _, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String()); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("dial: %v", err)
			}
		},
		a:     "RetransSegs 1, TCPSynRetrans 1, TCPTimeouts 1, AttemptFails 1, ActiveOpens 1",
		again: [2]string{"syn", ""},
		ends:  [2]string{"peer refused SYN_SENT", ""},
	},
}
