package session_test

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// resets are connections that an end takes back, and what a RST does to the
// other.
var resets = []situation{
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
		ends: [2]string{"peer reset-received ESTABLISHED", "local close-with-unread-data ESTABLISHED"},
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
		ends: [2]string{"peer reset-received ESTABLISHED", "local linger-zero ESTABLISHED"},
	},
	{
		name: "linger of zero after FIN",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			if err := errors.Join(server.CloseWrite(), server.SetLinger(0)); err != nil {
				t.Fatal(err)
			}
			gone(t, client, io.EOF)
			s.until("FIN acknowledged", 5*time.Second, func(e *events.Event) bool {
				return an("state", s.B)(e) && e.State.New == "FIN_WAIT2"
			})
			server.Close()
			s.until("abort", 5*time.Second, an("abort", s.B))
			s.until("abort", 5*time.Second, an("abort", s.A))
		},
		a: "EstabResets 1, ActiveOpens 1", b: "OutRsts 1, PassiveOpens 1, TCPAbortOnData 1",
		ends: [2]string{"peer reset-received CLOSE_WAIT", "local linger-zero FIN_WAIT2"},
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
		again: [2]string{"", "( ?(tlp|rto))*"},
		ends:  [2]string{"peer reset-received ESTABLISHED", "local close-with-unread-data FIN_WAIT1"},
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
		ends: [2]string{"local destroyed ESTABLISHED", "peer reset-received ESTABLISHED"},
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
		ends: [2]string{"peer reset-received ESTABLISHED", "local listener-closed ESTABLISHED"},
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
		ends: [2]string{"peer reset-received ESTABLISHED", ""},
	},
	{
		name: "disconnected",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			disconnect(t, client)
			gone(t, server, unix.ECONNRESET)
		},
		a: "OutRsts 1, EstabResets 1, ActiveOpens 1", b: "EstabResets 1, PassiveOpens 1",
		ends: [2]string{"local disconnected ESTABLISHED", "peer reset-received ESTABLISHED"},
	},
	{
		name: "disconnected with data unread",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			send(t, server, 5)
			testlab.Eventually(t, 5*time.Second, func() bool {
				info, err := testlab.Info(client)
				return err == nil && info.Bytes_received == 6
			})
			disconnect(t, client)
			gone(t, server, unix.ECONNRESET)
		},
		a: "OutRsts 1, EstabResets 1, ActiveOpens 1", b: "EstabResets 1, PassiveOpens 1",
		ends: [2]string{"local disconnected ESTABLISHED", "peer reset-received ESTABLISHED"},
	},
	{
		name: "disconnected with a linger of zero",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect(testlab.Linger(0))
			disconnect(t, client)
			gone(t, server, unix.ECONNRESET)
		},
		a: "OutRsts 1, EstabResets 1, ActiveOpens 1", b: "EstabResets 1, PassiveOpens 1",
		ends: [2]string{"local disconnected ESTABLISHED", "peer reset-received ESTABLISHED"},
	},
	{
		name: "half-closed, then disconnected",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			if err := client.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			gone(t, server, io.EOF)
			s.until("FIN acknowledged", 5*time.Second, func(e *events.Event) bool {
				return an("state", s.A)(e) && e.State.New == "FIN_WAIT2"
			})
			disconnect(t, client)
			s.until("abort", 5*time.Second, an("abort", s.B))
		},
		a: "OutRsts 1, ActiveOpens 1", b: "EstabResets 1, PassiveOpens 1",
		ends: [2]string{"local disconnected FIN_WAIT2", "peer reset-received CLOSE_WAIT"},
	},
	{
		name: "reset by a socket in TIME_WAIT",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			if err := client.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			gone(t, server, io.EOF)
			s.until("FIN acknowledged", 5*time.Second, func(e *events.Event) bool {
				return an("state", s.A)(e) && e.State.New == "FIN_WAIT2"
			})
			client.Close() // what is left of it takes no data
			send(t, server, 5)
			s.until("abort", 5*time.Second, an("abort", s.B))
		},
		a: "OutRsts 1, ActiveOpens 1", b: "EstabResets 1, PassiveOpens 1",
		ends: [2]string{"", "peer reset-received CLOSE_WAIT"},
	},
	{
		name: "half open",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			// B forgets the connection, as in a restart, and A does not hear of it.
			deaf := s.A.Lose(testlab.Loss{SrcPort: port, Bare: true})
			destroy(t, s.B, server)
			testlab.Eventually(t, 5*time.Second, func() bool { return deaf.Lost() == 1 })
			deaf.Undo()
			send(t, client, 5)
			gone(t, client, unix.ECONNRESET)
		},
		a: "EstabResets 1, ActiveOpens 1", b: "OutRsts 2, EstabResets 1, PassiveOpens 1",
		ends: [2]string{"peer reset-received ESTABLISHED", "local destroyed ESTABLISHED"},
	},
	{
		name: "resets out of the window",
		do: func(t *testing.T, s *scene) {
			client, server := s.connect()
			p := s.capA.Await(5*time.Second, func(p testlab.Packet) bool { return !p.Outgoing && p.Len == 1 })
			// The second is in the window and not what is expected next: A asks B.
			for _, seq := range []uint32{p.SeqEnd() + 1<<30, p.SeqEnd() + 10} {
				s.B.Forge(testlab.Segment{Src: p.Src, Dst: p.Dst, Seq: seq, Flags: testlab.RST})
			}
			s.until("second reset", 5*time.Second, func(e *events.Event) bool {
				return an("reset", s.A)(e) && e.Reset.Segment.SeqStart == p.SeqEnd()+10
			})
			send(t, client, 5)
			receive(t, server, 5)
		},
		a: "ActiveOpens 1", b: "PassiveOpens 1",
		check: func(t *testing.T, s *scene, evs []events.Event) {
			for n, direction := range map[*testlab.Node]string{s.A: "received", s.B: "sent"} {
				resets := pick(evs, events.TypeReset, in(n))
				if len(resets) != 2 {
					t.Errorf("%s: %d resets, want 2", n.Name, len(resets))
				}
				for _, e := range resets {
					if r := e.Reset; r.Direction != direction || r.Socket || r.SeenBy != "wire" {
						t.Errorf("%s: %+v", n.Name, r)
					}
				}
			}
		},
	},
}

// disconnect ends a connection as connect with the family AF_UNSPEC does.
func disconnect(t *testing.T, c *net.TCPConn) {
	t.Helper()
	err := testlab.Set(c, func(fd int) error {
		sa := unix.RawSockaddr{Family: unix.AF_UNSPEC}
		if _, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa)); errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		t.Fatalf("disconnect: %v", err)
	}
}
