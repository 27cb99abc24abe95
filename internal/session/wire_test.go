package session_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/loader"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// TestWireMethods watches the same traffic through a netfilter link and
// through a packet socket, which older kernels have to do with: probes, resets
// and recoveries must be the same.
func TestWireMethods(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		before func(t *testing.T, w *wires) // until then nobody watches
		do     func(t *testing.T, w *wires)
		want   map[events.Type]int // events of A and B together, at least; empty: none
	}{
		{
			name: "keepalive",
			do: func(t *testing.T, w *wires) {
				client, _ := w.connect(t, "tcp4", testlab.KeepAlive(time.Second, time.Second, 3))
				w.until(t, "second probe", func(e *events.Event) bool {
					return e.Probe != nil && e.Probe.Direction == "received" && e.Probe.Number == 2
				})
				w.Cut()
				gone(t, client, unix.ETIMEDOUT)
			},
			want: map[events.Type]int{"probe": 7, "reset": 1},
		},
		{
			name: "keepalive over IPv6",
			do: func(t *testing.T, w *wires) {
				w.connect(t, "tcp6", testlab.KeepAlive(time.Second, time.Second, 9))
				w.until(t, "second probe", func(e *events.Event) bool {
					return e.Probe != nil && e.Probe.Direction == "received" && e.Probe.Number == 2
				})
			},
			want: map[events.Type]int{"probe": 4},
		},
		{
			// The first thing that is seen of the connection is a probe, and
			// nothing answers it.
			name: "keepalive of an old connection",
			before: func(t *testing.T, w *wires) {
				w.client, _ = w.connect(t, "tcp4")
			},
			do: func(t *testing.T, w *wires) {
				w.Cut()
				if err := testlab.Set(w.client, testlab.KeepAlive(time.Second, time.Second, 3)); err != nil {
					t.Fatal(err)
				}
				gone(t, w.client, unix.ETIMEDOUT)
			},
			want: map[events.Type]int{"probe": 3, "reset": 1},
		},
		{
			name: "keepalive of a half-closed connection",
			do: func(t *testing.T, w *wires) {
				client, server := w.connect(t, "tcp4", testlab.KeepAlive(time.Second, time.Second, 9))
				if err := server.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				gone(t, client, io.EOF)
				w.until(t, "second probe", func(e *events.Event) bool {
					return e.Probe != nil && e.Probe.Direction == "received" && e.Probe.Number == 2
				})
			},
			want: map[events.Type]int{"probe": 4},
		},
		{
			name: "zero window",
			do: func(t *testing.T, w *wires) {
				client, server := w.A.Connect(w.B, w.B.Listen("tcp4", w.B.Addr(port).String(), testlab.ReceiveBuffer(4096)))
				const size = 200_000
				done := make(chan error, 1)
				go func() {
					_, err := client.Write(make([]byte, size))
					done <- err
				}()
				w.until(t, "third probe", func(e *events.Event) bool {
					return e.Probe != nil && e.Probe.Direction == "received" && e.Probe.Number == 3
				})
				receive(t, server, size)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
			},
			want: map[events.Type]int{"probe": 6},
		},
		{
			name: "refused",
			do: func(t *testing.T, w *wires) {
				_, err := w.A.DialContext(t.Context(), "tcp", w.B.Addr(port).String())
				if !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("dial: %v", err)
				}
			},
			want: map[events.Type]int{"reset": 2},
		},
		{
			name: "linger of zero",
			do: func(t *testing.T, w *wires) {
				client, server := w.connect(t, "tcp4")
				if err := server.SetLinger(0); err != nil {
					t.Fatal(err)
				}
				server.Close()
				gone(t, client, unix.ECONNRESET)
			},
			want: map[events.Type]int{"reset": 2},
		},
		{
			name: "data lost on a half-closed connection",
			do: func(t *testing.T, w *wires) {
				client, server := w.connect(t, "tcp4")
				if err := server.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				gone(t, client, io.EOF)
				w.B.Lose(dataTo(port, 1, 2))
				send(t, client, 100)
				receive(t, server, 100)
				w.until(t, "recovery", an("recovered", w.A))
			},
			want: map[events.Type]int{"retransmit": 2, "recovered": 1},
		},
		{
			name: "host unreachable",
			do: func(t *testing.T, w *wires) {
				client, server := w.connect(t, "tcp4")
				reject := w.B.RejectICMP(port, testlab.In, testlab.HostUnreachable)
				send(t, client, 100)
				w.until(t, "fourth retransmission", func(e *events.Event) bool { return e.Retransmit != nil && e.Retransmit.Attempt == 4 })
				reject.Undo()
				receive(t, server, 100)
				w.until(t, "recovery", an("recovered", w.A))
			},
			want: map[events.Type]int{"icmp": 3},
		},
		{
			name: "prohibited over IPv6",
			do: func(t *testing.T, w *wires) {
				client, server := w.connect(t, "tcp6")
				reject := w.B.RejectICMP(port, testlab.In, testlab.AdminProhibited)
				send(t, client, 100)
				w.until(t, "fourth retransmission", func(e *events.Event) bool { return e.Retransmit != nil && e.Retransmit.Attempt == 4 })
				reject.Undo()
				receive(t, server, 100)
				w.until(t, "recovery", an("recovered", w.A))
			},
			want: map[events.Type]int{"icmp": 3},
		},
		{
			name: "ordinary",
			do: func(t *testing.T, w *wires) {
				l := w.B.Listen("tcp4", w.B.Addr(port).String())
				for range 10 {
					client, server := w.A.Connect(w.B, l)
					for range 10 {
						send(t, client, 100)
						receive(t, server, 100)
						send(t, server, 3000)
						receive(t, client, 3000)
					}
					client.Close()
					gone(t, server, io.EOF)
					server.Close()
				}
			},
			want: map[events.Type]int{},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := &wires{Pair: testlab.New(t)}
			w.PinNeighbours()
			if tt.before != nil {
				tt.before(t, w)
			}
			for _, method := range []string{loader.MethodNetfilter, loader.MethodPacket} {
				if method == loader.MethodNetfilter && !hasNetfilter(t) {
					t.Skip("this kernel has no BPF netfilter link to compare with; the blind spot that the packet socket leaves is declared")
				}
				w.both = append(w.both, observeWith(t, session.Config{Wire: method}, w.A.Name, w.B.Name))
			}
			tt.do(t, w)
			// What waits for another sighting has waited long enough.
			time.Sleep(testlab.Slack(400 * time.Millisecond))
			exact, packet := w.both[0].stop(), w.both[1].stop()
			for _, n := range []*testlab.Node{w.A, w.B} {
				want, got := essence(exact, n), essence(packet, n)
				if !slices.Equal(want, got) {
					t.Errorf("%s: the packet socket shows\n%q\nthe netfilter link\n%q", n.Name, got, want)
				}
			}
			for typ, n := range tt.want {
				if got := len(pick(exact, typ, nil)); got < n {
					t.Errorf("%d events of type %s, want at least %d", got, typ, n)
				}
			}
			if len(tt.want) == 0 {
				none(t, packet, nil, "probe", "reset", "icmp")
			}
			if !declared(packet[0].Session, "probes and resets at the edge are seen by a packet socket") {
				t.Errorf("no blind spot says so: %q", packet[0].Session.BlindSpots)
			}
		})
	}
}

// wires is a lab that two sessions watch.
type wires struct {
	*testlab.Pair
	both   []*observation
	client *net.TCPConn
}

func (w *wires) connect(t *testing.T, network string, opts ...testlab.SockOpt) (client, server *net.TCPConn) {
	t.Helper()
	addr := w.B.Addr(port).String()
	if network == "tcp6" {
		addr = w.B.AddrV6(port).String()
	}
	client, server = w.A.Connect(w.B, w.B.Listen(network, addr), opts...)
	send(t, client, 1)
	receive(t, server, 1)
	send(t, server, 1)
	receive(t, client, 1)
	return client, server
}

// until waits for an event of both sessions.
func (w *wires) until(t *testing.T, what string, f func(*events.Event) bool) {
	t.Helper()
	for _, o := range w.both {
		o.until(what, 10*time.Second, f)
	}
}

// essence is what both ways of watching must agree on, in order of time.
func essence(evs []events.Event, n *testlab.Node) []string {
	var out []string
	evs = slices.Clone(evs)
	slices.SortStableFunc(evs, func(a, b events.Event) int { return int(int64(a.MonoNS - b.MonoNS)) })
	for _, e := range evs {
		if !in(n)(&e) {
			continue
		}
		var what string
		switch {
		case e.Probe != nil:
			what = fmt.Sprintf("%s %s %d %v", e.Probe.Kind, e.Probe.Direction, e.Probe.Number, e.Probe.Segment)
		case e.Reset != nil:
			what = fmt.Sprintf("%s %q socket %v seen by %s, %v", e.Reset.Direction, e.Reset.Reason, e.Reset.Socket, e.Reset.SeenBy, e.Reset.Segment)
		case e.Retransmit != nil:
			what = fmt.Sprintf("%s attempt %d", e.Retransmit.Cause, e.Retransmit.Attempt)
		case e.Recovered != nil:
			what = fmt.Sprintf("ack %d of %d bytes after %d, exact %v", e.Recovered.Ack, e.Recovered.AckedBytes, e.Recovered.Retransmits, e.Recovered.Exact)
		case e.ICMP != nil:
			what = fmt.Sprintf("%+v", *e.ICMP)
		case e.Abort != nil:
			what = e.Abort.By + " " + e.Abort.Cause
		default:
			continue
		}
		out = append(out, fmt.Sprintf("%s of %d %v %v: %s", e.Type, e.Sock.Cookie, e.Sock.Local, e.Sock.Remote, what))
	}
	return out
}

func hasNetfilter(t *testing.T) bool {
	t.Helper()
	testlab.Privileged(t)
	o, err := loader.Open(loader.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	return o.WireMethod() == loader.MethodNetfilter
}
