package session_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// comm is how the kernel names this process.
func comm(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(self)
	return name[:min(len(name), 15)]
}

// listed are the sockets of a namespace as sock_diag(7) lists them, by cookie;
// those that are not a full socket left out.
func listed(t *testing.T, n *testlab.Node) map[uint64]*netlink.InetDiagTCPInfoResp {
	t.Helper()
	all := make(map[uint64]*netlink.InetDiagTCPInfoResp)
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		err := n.Do(func() error {
			// The package keeps no socket open: each request is made here.
			list, err := netlink.SocketDiagTCPInfo(family)
			for _, s := range list {
				const timeWait, newSynRecv = 6, 12
				if st := s.InetDiagMsg.State; st != timeWait && st != newSynRecv {
					c := s.InetDiagMsg.ID.Cookie
					all[uint64(c[1])<<32|uint64(c[0])] = s
				}
			}
			return err
		})
		if err != nil {
			t.Fatalf("list the sockets of %s: %v", n.Name, err)
		}
	}
	return all
}

func cookie(t *testing.T, c syscall.Conn) uint64 {
	t.Helper()
	v, err := testlab.SocketCookie(c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// about selects the events of a socket.
func about(cookie uint64) func(*events.Event) bool {
	return func(e *events.Event) bool { return e.Sock != nil && e.Sock.Cookie == cookie }
}

// TestBornBeforeTrace holds the inventory against sock_diag and TCP_INFO.
func TestBornBeforeTrace(t *testing.T) {
	t.Parallel()
	lab := testlab.New(t)
	lab.PinNeighbours()
	l4, l6 := lab.B.Listen("tcp4", lab.B.Addr(port).String()), lab.B.Listen("tcp", ":8081")
	type pair struct{ client, server *net.TCPConn }
	var idle []pair
	for range 20 {
		c, s := lab.A.Connect(lab.B, l4)
		send(t, c, 1000)
		receive(t, s, 1000)
		send(t, s, 3000)
		receive(t, c, 3000)
		idle = append(idle, pair{c, s})
	}
	keepalive, _ := lab.A.Connect(lab.B, l4, testlab.KeepAlive(70*time.Second, 7*time.Second, 5), testlab.UserTimeout(9*time.Second))
	unreadC, unread := lab.A.Connect(lab.B, l6)
	send(t, unreadC, 500)
	halfC, half := lab.A.Connect(lab.B, l6)
	if err := halfC.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	testlab.Eventually(t, 5*time.Second, func() bool {
		info, err := testlab.Info(half)
		u, err2 := testlab.Info(unread)
		return err == nil && err2 == nil && info.State == 8 && u.Bytes_received == 500
	})
	s := &scene{Pair: lab, before: make(map[*testlab.Node]testlab.Counters)}
	for _, n := range []*testlab.Node{lab.A, lab.B} {
		s.before[n] = n.Counters()
	}
	s.observation = observeWith(t, session.Config{}, lab.A.Name, lab.B.Name)
	onA, onB := listed(t, lab.A), listed(t, lab.B)
	evs := s.finish()

	if len(onA) != 23 || len(onB) != 25 {
		t.Fatalf("sock_diag lists %d and %d sockets, want 23 and 25", len(onA), len(onB))
	}
	for n, want := range map[*testlab.Node]map[uint64]*netlink.InetDiagTCPInfoResp{lab.A: onA, lab.B: onB} {
		got := pick(evs, "inventory", in(n))
		if len(got) != len(want) {
			t.Errorf("%s: inventory of %d sockets, sock_diag lists %d", n.Name, len(got), len(want))
		}
		for _, e := range got {
			d := want[e.Sock.Cookie]
			if d == nil {
				t.Errorf("%s: %+v is not in sock_diag", n.Name, e.Sock)
				continue
			}
			delete(want, e.Sock.Cookie)
			sameSocket(t, &e, d)
			if e.Owner == nil || *e.Owner != (events.Owner{PID: uint32(os.Getpid()), Comm: comm(t), Via: "proc"}) {
				t.Errorf("%s: owner %+v", n.Name, e.Owner)
			}
		}
		for c := range want {
			t.Errorf("%s: socket %d is not in the inventory", n.Name, c)
		}
	}
	for _, x := range []struct {
		c     syscall.Conn
		check func(*events.TCP) bool
	}{
		{keepalive, func(v *events.TCP) bool {
			return v.State == "ESTABLISHED" && v.UserTimeoutMs == 9000 && v.Keepalive == events.Keepalive{On: true, TimeMs: 70_000, IntvMs: 7000, Probes: 5}
		}},
		{unread, func(v *events.TCP) bool {
			return v.State == "ESTABLISHED" && v.UnreadBytes == 500 && v.BytesReceived == 500
		}},
		{half, func(v *events.TCP) bool { return v.State == "CLOSE_WAIT" }},
		{halfC, func(v *events.TCP) bool { return v.State == "FIN_WAIT2" }},
		{l4, func(v *events.TCP) bool {
			return v.State == "LISTEN" && !v.Keepalive.On && v.Keepalive.TimeMs == 7_200_000
		}},
		{idle[0].client, func(v *events.TCP) bool {
			return v.State == "ESTABLISHED" && v.BytesAcked == 1001 && v.BytesReceived == 3000
		}},
	} {
		if e := one(t, evs, "inventory", about(cookie(t, x.c))); !x.check(e.TCP) {
			t.Errorf("snapshot of %v: %+v", e.Sock, e.TCP)
		}
	}
}

// sameSocket compares an inventory line with what sock_diag says.
func sameSocket(t *testing.T, e *events.Event, d *netlink.InetDiagTCPInfoResp) {
	t.Helper()
	m, i, v := d.InetDiagMsg, d.TCPInfo, e.TCP
	at := func(ip net.IP, p uint16) netip.AddrPort {
		a, _ := netip.AddrFromSlice(ip)
		return netip.AddrPortFrom(a.Unmap(), p)
	}
	family := map[uint8]string{unix.AF_INET: "inet", unix.AF_INET6: "inet6"}[m.Family]
	if e.Sock.Family != family || e.Sock.Local != at(m.ID.Source, m.ID.SourcePort) || e.Sock.Remote != at(m.ID.Destination, m.ID.DestinationPort) {
		t.Errorf("socket %+v, sock_diag says %+v", e.Sock, m.ID)
	}
	if e.Inventory.Inode != uint64(m.INode) {
		t.Errorf("%v: inode %d, sock_diag says %d", e.Sock, e.Inventory.Inode, m.INode)
	}
	states := []string{"", "ESTABLISHED", "SYN_SENT", "SYN_RECV", "FIN_WAIT1", "FIN_WAIT2", "TIME_WAIT", "CLOSE", "CLOSE_WAIT", "LAST_ACK", "LISTEN", "CLOSING"}
	if v.State != states[m.State] {
		t.Errorf("%v: state %s, sock_diag says %s", e.Sock, v.State, states[m.State])
	}
	if v.State == "LISTEN" {
		return // TCP_INFO says other things of a listener
	}
	// Not rttvar: TCP_INFO has tp->mdev_us under that name.
	for _, f := range []struct {
		name      string
		got, want uint64
	}{
		{"rto_us", uint64(v.RTOUs), uint64(i.Rto)},
		{"srtt_us", uint64(v.SrttUs), uint64(i.Rtt)},
		{"retransmits", uint64(v.Retransmits), uint64(i.Retransmits)},
		{"backoff", uint64(v.Backoff), uint64(i.Backoff)},
		{"probes_out", uint64(v.ProbesOut), uint64(i.Probes)},
		{"snd_cwnd", uint64(v.SndCwnd), uint64(i.Snd_cwnd)},
		{"ssthresh", uint64(v.Ssthresh), uint64(i.Snd_ssthresh)},
		{"snd_wnd", uint64(v.SndWnd), uint64(i.Snd_wnd)},
		{"packets_out", uint64(v.PacketsOut), uint64(i.Unacked)},
		{"retrans_out", uint64(v.RetransOut), uint64(i.Retrans)},
		{"lost_out", uint64(v.LostOut), uint64(i.Lost)},
		{"sacked_out", uint64(v.SackedOut), uint64(i.Sacked)},
		{"bytes_acked", v.BytesAcked, i.Bytes_acked},
		{"bytes_received", v.BytesReceived, i.Bytes_received},
		{"unsent_bytes", uint64(v.UnsentBytes), uint64(i.Notsent_bytes)},
		{"unread_bytes", uint64(v.UnreadBytes), uint64(m.RQueue)},
		{"unacked and unsent bytes", uint64(v.UnackedBytes + v.UnsentBytes), uint64(m.WQueue)},
	} {
		if f.got != f.want {
			t.Errorf("%v in %s: %s %d, the kernel says %d", e.Sock, v.State, f.name, f.got, f.want)
		}
	}
}

// TestBornDuringAttach attaches again and again to namespaces in which
// connections come and go all the time: whatever lives on is known.
func TestBornDuringAttach(t *testing.T) {
	t.Parallel()
	lab := testlab.New(t)
	lab.PinNeighbours()
	l := lab.B.Listen("tcp4", lab.B.Addr(port).String())
	accepted := make(chan *net.TCPConn, 64)
	go func() {
		defer close(accepted)
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	type pair struct {
		client, server *net.TCPConn
		local          netip.AddrPort
		a, b           uint64 // cookies
	}
	var (
		mu     sync.Mutex
		kept   []pair
		opened atomic.Uint64
		stop   = make(chan struct{})
		done   = make(chan error, 1)
	)
	go func() {
		done <- func() error {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return nil
				default:
				}
				client, err := lab.A.DialContext(t.Context(), "tcp", lab.B.Addr(port).String())
				if err != nil {
					return err
				}
				server := <-accepted
				opened.Add(1)
				// The machine has other tests to run.
				time.Sleep(5 * time.Millisecond)
				if n%10 != 0 {
					server.Close()
					client.Close()
					continue
				}
				p := pair{client: client, server: server}
				if p.a, err = testlab.SocketCookie(client); err == nil {
					p.b, err = testlab.SocketCookie(server)
				}
				if err != nil {
					return err
				}
				p.local = netip.MustParseAddrPort(client.LocalAddr().String())
				mu.Lock()
				kept = append(kept, p)
				mu.Unlock()
			}
		}()
	}()
	const sessions = 4
	var during [sessions]uint64
	var seen [sessions][]events.Event
	for i := range sessions {
		testlab.Eventually(t, 10*time.Second, func() bool { return opened.Load() > uint64(i+1)*20 })
		before := opened.Load()
		o := observe(t, lab.A.Name, lab.B.Name)
		during[i] = opened.Load() - before
		if i < sessions-1 {
			seen[i] = o.stop()
			continue
		}
		close(stop)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		// After the trace began: one more, whole.
		client, err := lab.A.DialContext(t.Context(), "tcp", lab.B.Addr(port).String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server := <-accepted
		p := pair{client, server, netip.MustParseAddrPort(client.LocalAddr().String()), cookie(t, client), cookie(t, server)}
		kept = append(kept, p)
		for _, p := range kept {
			if err := p.server.SetLinger(0); err != nil {
				t.Fatal(err)
			}
			p.server.Close()
		}
		last := kept[len(kept)-1]
		o.until("abort of the last", 10*time.Second, func(e *events.Event) bool { return e.Abort != nil && about(last.a)(e) })
		seen[i] = o.stop()
	}
	t.Logf("connections opened while attaching: %d", during)
	if max(during[0], during[1], during[2], during[3]) == 0 {
		t.Error("no connection was opened while a session attached")
	}

	remote := lab.B.Addr(port)
	born := map[events.Type]int{}
	for _, p := range kept {
		for _, end := range []struct {
			cookie        uint64
			local, remote netip.AddrPort
		}{{p.a, p.local, remote}, {p.b, remote, p.local}} {
			last := pick(seen[sessions-1], "abort", about(end.cookie))
			if len(last) != 1 || last[0].Sock.Local != end.local || last[0].Sock.Remote != end.remote || last[0].Owner == nil {
				t.Errorf("%v to %v: aborts %+v", end.local, end.remote, last)
			}
			inventory := pick(seen[sessions-1], "inventory", about(end.cookie))
			states := pick(seen[sessions-1], "state", func(e *events.Event) bool { return about(end.cookie)(e) && e.State.New == "ESTABLISHED" })
			if len(inventory) > 1 || len(inventory)+len(states) == 0 {
				t.Errorf("%v to %v: %d times in the inventory, %d times established", end.local, end.remote, len(inventory), len(states))
			}
			if len(states) > 0 {
				born["state"]++
			} else {
				born["inventory"]++
			}
		}
		p.client.Close()
	}
	if born["state"] < 2 || born["inventory"] == 0 {
		t.Errorf("sockets first seen by: %v", born)
	}
	for i, evs := range seen {
		twice := make(map[string]bool)
		for _, e := range pick(evs, "inventory", nil) {
			key := fmt.Sprint(e.Netns.Inode, e.Sock.Cookie)
			if twice[key] {
				t.Errorf("session %d: socket %+v is twice in the inventory", i, e.Sock)
			}
			twice[key] = true
		}
		if n := pick(evs, "lost", nil); len(n) > 0 {
			t.Errorf("session %d lost records: %+v", i, n[0].Lost)
		}
	}
}

// TestPortsAfterClose looks at all that is said of a socket once it is closed,
// when the kernel has cleared its ports.
func TestPortsAfterClose(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	client, server := s.connect()
	local, remote := addr(t, client.LocalAddr()), addr(t, client.RemoteAddr())
	a, b := cookie(t, client), cookie(t, server)
	send(t, client, 5) // stays unread
	testlab.Eventually(t, 5*time.Second, func() bool {
		info, err := testlab.Info(server)
		return err == nil && info.Bytes_received == 6
	})
	server.Close()
	gone(t, client, unix.ECONNRESET)
	client.Close()
	evs := s.finish()
	for _, end := range []struct {
		cookie        uint64
		local, remote netip.AddrPort
		types         []events.Type
	}{
		{a, local, remote, []events.Type{"state", "abort", "reset", "error"}},
		{b, remote, local, []events.Type{"state", "abort", "reset"}},
	} {
		closed := false
		count := make(map[events.Type]int)
		for _, e := range evs {
			if !about(end.cookie)(&e) {
				continue
			}
			if e.State != nil && e.State.New == "CLOSE" {
				closed = true
			}
			count[e.Type]++
			if e.State != nil && (e.State.New == "SYN_SENT" || e.State.Old == "LISTEN") {
				continue
			}
			if e.Sock.Local != end.local || e.Sock.Remote != end.remote {
				t.Errorf("line %d (%s): socket %+v, want %v to %v", e.Seq, e.Type, e.Sock, end.local, end.remote)
			}
		}
		if !closed {
			t.Errorf("%v was not closed", end.local)
		}
		for _, typ := range end.types {
			if count[typ] == 0 && !(typ == "error" && s.blind("errors reported to the application")) {
				t.Errorf("%v: no %s event", end.local, typ)
			}
		}
	}
}
