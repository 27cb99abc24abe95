package testlab

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func sockopt(t *testing.T, conn syscall.Conn, level, opt int) int {
	t.Helper()

	var value int
	err := Set(conn, func(fd int) (err error) {
		value, err = unix.GetsockoptInt(fd, level, opt)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestSockOpts(t *testing.T) {
	p := New(t)
	opts := []SockOpt{
		UserTimeout(20 * time.Second), KeepAlive(15*time.Second, 3*time.Second, 4),
		Linger(0), ReceiveBuffer(4096), SendBuffer(8192), SynRetries(2),
	}
	for name, addr := range map[string]netip.AddrPort{
		"ipv4": p.B.Addr(7000), "ipv6": p.B.AddrV6(7001), "mapped": p.B.AddrMapped(7002),
	} {
		t.Run(name, func(t *testing.T) {
			listenAt := netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
			l := p.B.Listen("tcp", listenAt.String(), opts...)
			client := p.A.Dial("tcp", addr.String(), opts...)
			server, err := l.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			for end, conn := range map[string]syscall.Conn{"client": client, "server": server} {
				for _, o := range []struct {
					name             string
					level, opt, want int
				}{
					{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 20000},
					{"SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
					{"TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15},
					{"TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 3},
					{"TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4},
					{"SO_LINGER", unix.SOL_SOCKET, unix.SO_LINGER, 1},
					{"SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF, 8192},
					{"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, 16384},
					{"TCP_SYNCNT", unix.IPPROTO_TCP, unix.TCP_SYNCNT, 2},
					{"SO_PROTOCOL", unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_TCP},
				} {
					if got := sockopt(t, conn, o.level, o.opt); got != o.want {
						t.Errorf("%s: %s is %d, want %d", end, o.name, got, o.want)
					}
				}
			}
		})
	}
}

func TestPlainSocketsHaveNoKeepalive(t *testing.T) {
	p := New(t)
	l := p.B.Listen("tcp", ":7000")
	for _, addr := range []string{p.B.Addr(7000).String(), p.B.AddrV6(7000).String(), p.B.AddrMapped(7000).String()} {
		client := p.A.Dial("tcp", addr)
		server, err := l.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		for _, conn := range []syscall.Conn{client, server} {
			if sockopt(t, conn, unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0 {
				t.Errorf("%s: keepalive is on", addr)
			}
		}
		exchange(t, client, server)
	}
}

func TestMappedSocketsAreIPv6(t *testing.T) {
	p := New(t)
	l := p.B.Listen("tcp", ":7000")
	client := p.A.Dial("tcp", p.B.AddrMapped(7000).String())
	server, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, conn := range []syscall.Conn{client, server} {
		if got := sockopt(t, conn, unix.SOL_SOCKET, unix.SO_DOMAIN); got != unix.AF_INET6 {
			t.Errorf("domain is %d, want AF_INET6", got)
		}
	}
}

func TestMPTCP(t *testing.T) {
	p := New(t)
	l := p.B.ListenMPTCP("tcp", p.B.Addr(7000).String())
	client := p.A.DialMPTCP("tcp", p.B.Addr(7000).String())
	server, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, conn := range []interface{ MultipathTCP() (bool, error) }{client, server} {
		if ok, err := conn.MultipathTCP(); err != nil || !ok {
			t.Errorf("MPTCP is %v, %v", ok, err)
		}
	}
	exchange(t, client, server)
}

func TestDialContextFails(t *testing.T) {
	p := New(t)
	for _, addr := range []string{p.B.Addr(7).String(), p.B.AddrV6(7).String(), p.B.AddrMapped(7).String()} {
		if _, err := p.A.DialContext(t.Context(), "tcp", addr); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: got %v, want connection refused", addr, err)
		}
	}

	p.Cut()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	for _, addr := range []string{p.B.Addr(7).String(), p.B.AddrMapped(7).String()} {
		if _, err := p.A.DialContext(ctx, "tcp", addr); err == nil {
			t.Errorf("%s: connected over a cut link", addr)
		}
	}
}

func TestBind(t *testing.T) {
	p := New(t)
	l := p.B.Listen("tcp", ":7000")
	for _, to := range [][2]netip.AddrPort{
		{p.A.Addr(4000), p.B.Addr(7000)},
		{p.A.AddrV6(4001), p.B.AddrV6(7000)},
		{p.A.AddrMapped(4002), p.B.AddrMapped(7000)},
	} {
		client := p.A.Dial("tcp", to[1].String(), Bind(to[0]))
		server, err := l.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		if got := client.LocalAddr().(interface{ AddrPort() netip.AddrPort }).AddrPort(); got.Port() != to[0].Port() {
			t.Errorf("bound to %s, want %s", got, to[0])
		}
	}
}

func TestBacklog(t *testing.T) {
	p := New(t)
	p.A.Sysctl("net.ipv4.tcp_syn_retries", "1")
	l := p.B.Listen("tcp", p.B.Addr(7000).String())
	if err := SetBacklog(l, 0); err != nil {
		t.Fatal(err)
	}
	before := p.B.Counters()
	p.A.Dial("tcp", p.B.Addr(7000).String())
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := p.A.DialContext(ctx, "tcp", p.B.Addr(7000).String()); err == nil {
		t.Error("a second connection fits in a backlog of 0")
	}
	if got := p.B.Counters().Sub(before).Get(t, "TcpExtListenOverflows"); got == 0 {
		t.Error("no overflow was counted")
	}
}

func TestCookies(t *testing.T) {
	p := New(t)
	client, server := p.A.Connect(p.B, p.B.Listen("tcp", ":0"))
	cookies := make(map[uint64]bool)
	for _, conn := range []syscall.Conn{client, server} {
		first, err := SocketCookie(conn)
		if err != nil || first == 0 {
			t.Fatalf("cookie %d, %v", first, err)
		}
		if second, err := SocketCookie(conn); err != nil || second != first {
			t.Errorf("cookie became %d, %v", second, err)
		}
		cookies[first] = true
	}
	if len(cookies) != 2 {
		t.Errorf("cookies %v are not two", cookies)
	}

	// A socket keeps the namespace it was created in.
	want, err := p.A.NetnsCookie()
	if err != nil || want == 0 {
		t.Fatalf("namespace cookie %d, %v", want, err)
	}
	got, err := sockoptUint64(client, "SO_NETNS_COOKIE", unix.SO_NETNS_COOKIE)
	if err != nil || got != want {
		t.Errorf("the socket is in %d, %v; want %d", got, err, want)
	}
	if other, err := p.B.NetnsCookie(); err != nil || other == want {
		t.Errorf("both namespaces have cookie %d, %v", other, err)
	}
}

func TestInfo(t *testing.T) {
	p := New(t)
	client, _ := p.A.Connect(p.B, p.B.Listen("tcp", ":0"))
	info, err := Info(client)
	if err != nil {
		t.Fatal(err)
	}
	const established = 1
	if info.State != established {
		t.Errorf("state %d, want established", info.State)
	}
}
