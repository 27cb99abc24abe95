package session_test

import (
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// TestICMP: the receiver's packet filter answers data with ICMP errors. Each is
// an event of the sender's socket; one that says that the host is unreachable
// makes the retransmission timer's work be done at once (RFC 6069).
func TestICMP(t *testing.T) {
	t.Parallel()
	for i, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			t.Parallel()
			s := stage(t, session.Config{})
			client, server := n.connect(s)
			reject := s.B.RejectICMP(port, testlab.In, testlab.HostUnreachable)
			send(t, client, 100)
			s.until("fourth retransmission", 10*time.Second, func(e *events.Event) bool { return e.Retransmit != nil && e.Retransmit.Attempt == 4 })
			reject.Undo()
			receive(t, server, 100)
			s.until("recovery", 10*time.Second, an("recovered", s.A))
			evs := s.finish()
			mine := ours(t, evs, s.A, client)

			errs := pick(evs, "icmp", nil)
			if len(errs) < 4 {
				t.Fatalf("%d ICMP errors, want one for the segment and each of four retransmissions but the last", len(errs))
			}
			code := map[bool]string{false: "HOST_UNREACH", true: "ADDR_UNREACH"}[i == 1]
			run := pick(evs, "retransmit", nil)
			for _, e := range errs {
				if c := e.ICMP; c.Type != "DEST_UNREACH" || c.Code != code || c.From != addr(t, client.RemoteAddr()).Addr().String() || c.SeqStart != run[0].Retransmit.SeqStart || c.MTU != 0 {
					t.Errorf("line %d: %+v", e.Seq, c)
				}
				if !in(s.A)(&e) || e.Sock.Cookie != mine || e.Sock.Local != addr(t, client.LocalAddr()) || e.Sock.Remote != addr(t, client.RemoteAddr()) {
					t.Errorf("line %d is of %+v", e.Seq, e.Sock)
				}
			}
			for _, e := range run {
				if c := e.Retransmit.Cause; c != "rto" && c != "tlp" {
					t.Errorf("line %d: cause %s (%s)", e.Seq, c, e.Retransmit.Why)
				}
			}
			if drops := dropsOf(evs, s.B, "NETFILTER_DROP"); len(drops) < 4 && !declared(evs[0].Session, blindDropHeaders) {
				t.Errorf("%d segments were dropped by the packet filter, which answered %d", len(drops), len(errs))
			}
		})
	}
}
