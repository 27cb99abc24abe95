package session_test

import (
	"io"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// TestHalfClosedReaders: a process that has sent FIN and reads an answer to
// its end often holds the socket's lock when the peer's FIN comes, with data
// still unread. That is no abort.
func TestHalfClosedReaders(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	l := s.listen()
	const connections, size = 100, 2 << 20
	for range connections {
		client, server := s.A.Connect(s.B, l)
		done := make(chan error, 1)
		go func() {
			defer server.Close()
			if _, err := io.Copy(io.Discard, server); err != nil {
				done <- err
				return
			}
			_, err := server.Write(make([]byte, size))
			done <- err
		}()
		if err := client.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := client.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, client); n != size || err != nil {
			t.Fatalf("read %d bytes: %v", n, err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		client.Close()
	}
	ended := func(e *events.Event) bool {
		return an(events.TypeState, s.A)(e) && e.State.New == "CLOSE" && e.State.Old == "FIN_WAIT2"
	}
	testlab.Eventually(t, 10*time.Second, func() bool { return len(pick(s.events(), events.TypeState, ended)) == connections })
	evs := s.stop()
	none(t, evs, nil, events.TypeAbort, events.TypeError)
	// On a slow machine an acknowledgement may find nobody left.
	none(t, evs, func(e *events.Event) bool { return e.Reset.Socket }, events.TypeReset)

	// Else this test shows nothing: some ended while their process held the lock.
	unread := pick(evs, events.TypeState, func(e *events.Event) bool { return ended(e) && e.TCP.UnreadBytes > 1 })
	t.Logf("%d of %d ended with data unread", len(unread), connections)
	if len(unread) == 0 {
		t.Error("no connection ended with data unread")
	}
}

// TestHalfClosedAborts: after FIN too, a close with data unread or with
// SO_LINGER 0 resets the connection.
func TestHalfClosedAborts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, cause, reason string
		opts                []testlab.SockOpt
		unread              int
	}{
		{"data unread", "close-with-unread-data", "TCP_ABORT_ON_CLOSE", nil, 100},
		{"linger zero", "linger-zero", "TCP_STATE", []testlab.SockOpt{testlab.Linger(0)}, 0},
		{"both", "close-with-unread-data", "TCP_ABORT_ON_CLOSE", []testlab.SockOpt{testlab.Linger(0)}, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := stage(t, session.Config{})
			client, server := s.connect(tt.opts...)
			if err := client.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, server); err != nil {
				t.Fatal(err)
			}
			s.until("FIN acknowledged", 10*time.Second, func(e *events.Event) bool {
				return an(events.TypeState, s.A)(e) && e.State.New == "FIN_WAIT2"
			})
			if tt.unread > 0 {
				send(t, server, tt.unread)
				testlab.Eventually(t, 10*time.Second, func() bool {
					info, err := testlab.Info(server)
					return err == nil && info.Unacked == 0
				})
			}
			client.Close()
			a := s.until("abort", 10*time.Second, an(events.TypeAbort, s.A))
			s.until("end of the other", 10*time.Second, an(events.TypeAbort, s.B))
			evs := s.finish()

			if x := a.Abort; x.Cause != tt.cause || x.By != "local" || x.State != "FIN_WAIT2" || int(a.TCP.UnreadBytes) != tt.unread {
				t.Errorf("abort: %+v with %d bytes unread", x, a.TCP.UnreadBytes)
			}
			if n := len(pick(evs, events.TypeAbort, in(s.A))); n != 1 {
				t.Errorf("%d aborts", n)
			}
			r := one(t, evs, events.TypeReset, in(s.A))
			if x := r.Reset; x.Direction != "sent" || !x.Socket || !s.blind("resets sent carry no reason") && x.Reason != tt.reason {
				t.Errorf("reset: %+v", x)
			}
			if x := one(t, evs, events.TypeAbort, in(s.B)).Abort; x.Cause != "reset-received" || x.By != "peer" || x.State != "CLOSE_WAIT" {
				t.Errorf("the other end: %+v", x)
			}
		})
	}
}
