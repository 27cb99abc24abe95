package session_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// addr is an address as events print it.
func addr(t *testing.T, a net.Addr) netip.AddrPort {
	t.Helper()
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// TestFamilies loses data in both directions of a connection and resets it, and
// holds the addresses of every event against what both processes see.
func TestFamilies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		listen         func(s *scene) *net.TCPListener
		dial           func(s *scene) *net.TCPConn
		client, server string // families of the sockets
		ipv4           bool   // what is on the wire
		mptcp          bool
	}{
		{
			name:   "IPv4",
			listen: func(s *scene) *net.TCPListener { return s.B.Listen("tcp4", s.B.Addr(port).String()) },
			dial:   func(s *scene) *net.TCPConn { return s.A.Dial("tcp", s.B.Addr(port).String()) },
			client: "inet", server: "inet", ipv4: true,
		},
		{
			name:   "IPv6",
			listen: func(s *scene) *net.TCPListener { return s.B.Listen("tcp6", s.B.AddrV6(port).String()) },
			dial:   func(s *scene) *net.TCPConn { return s.A.Dial("tcp", s.B.AddrV6(port).String()) },
			client: "inet6", server: "inet6",
		},
		{
			name:   "IPv4 client of an IPv6 listener",
			listen: func(s *scene) *net.TCPListener { return s.B.Listen("tcp", ":8080") },
			dial:   func(s *scene) *net.TCPConn { return s.A.Dial("tcp", s.B.Addr(port).String()) },
			client: "inet", server: "inet6", ipv4: true,
		},
		{
			name:   "IPv6 client of an IPv6 listener on every address",
			listen: func(s *scene) *net.TCPListener { return s.B.Listen("tcp", ":8080") },
			dial:   func(s *scene) *net.TCPConn { return s.A.Dial("tcp", s.B.AddrV6(port).String()) },
			client: "inet6", server: "inet6",
		},
		{
			name:   "mapped client of an IPv4 listener",
			listen: func(s *scene) *net.TCPListener { return s.B.Listen("tcp4", s.B.Addr(port).String()) },
			dial:   func(s *scene) *net.TCPConn { return s.A.Dial("tcp", s.B.AddrMapped(port).String()) },
			client: "inet6", server: "inet", ipv4: true,
		},
		{
			name:   "MPTCP",
			listen: func(s *scene) *net.TCPListener { return s.B.ListenMPTCP("tcp4", s.B.Addr(port).String()) },
			dial:   func(s *scene) *net.TCPConn { return s.A.DialMPTCP("tcp", s.B.Addr(port).String()) },
			client: "inet", server: "inet", ipv4: true, mptcp: true,
		},
		{
			name:   "MPTCP over IPv6",
			listen: func(s *scene) *net.TCPListener { return s.B.ListenMPTCP("tcp6", s.B.AddrV6(port).String()) },
			dial:   func(s *scene) *net.TCPConn { return s.A.DialMPTCP("tcp", s.B.AddrV6(port).String()) },
			client: "inet6", server: "inet6", mptcp: true,
		},
		{
			name:   "plain client of an MPTCP listener",
			listen: func(s *scene) *net.TCPListener { return s.B.ListenMPTCP("tcp", ":8080") },
			dial:   func(s *scene) *net.TCPConn { return s.A.Dial("tcp", s.B.Addr(port).String()) },
			client: "inet", server: "inet6", ipv4: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := stage(t, session.Config{})
			l := tt.listen(s)
			client := tt.dial(s)
			if multipath, err := client.MultipathTCP(); err != nil {
				t.Fatal(err)
			} else if !multipath {
				tt.mptcp = false // Go asks for it from kernel 5.16 on
			}
			if err := l.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			server, err := l.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			send(t, client, 1)
			receive(t, server, 1)
			send(t, server, 1)
			receive(t, client, 1)
			local, remote := addr(t, client.LocalAddr()), addr(t, client.RemoteAddr())
			if local.Addr().Is4() != tt.ipv4 || addr(t, server.RemoteAddr()) != local {
				t.Fatalf("connection %v to %v", local, remote)
			}

			s.B.Lose(dataTo(port, 1))
			send(t, client, 100)
			receive(t, server, 100)
			s.until("recovery", 5*time.Second, an("recovered", s.A))
			s.A.Lose(testlab.Loss{SrcPort: port, Nth: []int{1}})
			send(t, server, 200)
			receive(t, client, 200)
			s.until("recovery", 5*time.Second, an("recovered", s.B))
			// Not every kernel resets a Multipath TCP connection for a linger
			// of 0, but all do for data that nobody read.
			send(t, client, 10)
			receive(t, server, 1)
			if err := server.SetLinger(0); err != nil {
				t.Fatal(err)
			}
			server.Close()
			s.until("abort", 5*time.Second, an("abort", s.A))
			evs := s.finish()

			for _, end := range []struct {
				n             *testlab.Node
				local, remote netip.AddrPort
				family        string
				bytes         uint32
				reset         string
			}{
				{s.A, local, remote, tt.client, 100, "received"},
				{s.B, remote, local, tt.server, 200, "sent"},
			} {
				connection := func(e *events.Event) bool {
					return in(end.n)(e) && e.Sock != nil && e.Sock.Remote.Port() != 0
				}
				types := make(map[events.Type]int)
				for _, e := range evs {
					if !connection(&e) {
						continue
					}
					types[e.Type]++
					want := events.Sock{Cookie: e.Sock.Cookie, Family: end.family, Local: end.local, Remote: end.remote, MPTCP: tt.mptcp}
					switch {
					case e.State == nil:
					case e.State.New == "SYN_SENT": // the port comes next
						want.Local = netip.AddrPortFrom(end.local.Addr(), 0)
					case e.State.Old == "LISTEN": // a copy of the listener still
						want.Local, want.Remote, want.MPTCP = e.Sock.Local, e.Sock.Remote, false
					}
					if *e.Sock != want || e.Sock.Cookie == 0 {
						t.Errorf("line %d (%s): socket %+v, want %+v", e.Seq, e.Type, *e.Sock, want)
					}
				}
				for _, typ := range []events.Type{"retransmit", "recovered", "abort", "reset"} {
					if types[typ] != 1 {
						t.Errorf("%s: %d events of type %s on the connection, want 1: %v", end.n.Name, types[typ], typ, types)
					}
				}
				cause := map[string]string{"received": "reset-received", "sent": "linger-zero"}[end.reset]
				if end.reset == "sent" && !tt.mptcp {
					cause = "close-with-unread-data"
				}
				if a := one(t, evs, "abort", connection).Abort; a.Cause != cause {
					t.Errorf("%s: abort %+v, want %s", end.n.Name, a, cause)
				}
				for _, e := range pick(evs, "retransmit", connection) {
					// What Multipath TCP adds are options, not bytes.
					if r := e.Retransmit; r.SeqEnd-r.SeqStart != end.bytes {
						t.Errorf("%s: retransmitted %+v", end.n.Name, r)
					}
				}
				for _, e := range pick(evs, "reset", connection) {
					if e.Reset.Direction != end.reset || !e.Reset.Socket {
						t.Errorf("%s: reset %+v", end.n.Name, e.Reset)
					}
				}
			}
			listening := one(t, evs, "state", func(e *events.Event) bool { return e.State.New == "LISTEN" })
			if a := addr(t, l.Addr()); listening.Sock.Local.Port() != a.Port() || listening.Sock.Family != map[bool]string{true: "inet", false: "inet6"}[a.Addr().Is4()] {
				t.Errorf("listener %+v, want %v", listening.Sock, a)
			}
		})
	}
}
