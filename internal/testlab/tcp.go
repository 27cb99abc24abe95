package testlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dialTimeout bounds [Node.Dial]; connections of a healthy lab take less than
// a millisecond.
const dialTimeout = 10 * time.Second

// SockOpt sets something on a socket. It runs before bind and connect;
// sockets accepted from a listener inherit all but Bind.
type SockOpt func(fd int) error

// UserTimeout sets TCP_USER_TIMEOUT, in whole milliseconds.
func UserTimeout(d time.Duration) SockOpt {
	return intOpt("TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}

// KeepAlive switches keepalive on: first probe after idle, then one each
// interval, both in whole seconds, until count are unanswered.
func KeepAlive(idle, interval time.Duration, count int) SockOpt {
	return func(fd int) error {
		for _, opt := range []SockOpt{
			intOpt("TCP_KEEPIDLE", unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(idle.Seconds())),
			intOpt("TCP_KEEPINTVL", unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(interval.Seconds())),
			intOpt("TCP_KEEPCNT", unix.IPPROTO_TCP, unix.TCP_KEEPCNT, count),
			intOpt("SO_KEEPALIVE", unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
		} {
			if err := opt(fd); err != nil {
				return err
			}
		}
		return nil
	}
}

// Linger sets SO_LINGER; with 0 seconds, close sends a reset.
func Linger(seconds int) SockOpt {
	return func(fd int) error {
		err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: int32(seconds)})
		if err != nil {
			return fmt.Errorf("set SO_LINGER: %w", err)
		}
		return nil
	}
}

// ReceiveBuffer sets SO_RCVBUF; a small one makes a zero window soon.
func ReceiveBuffer(bytes int) SockOpt {
	return intOpt("SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF, bytes)
}

// SendBuffer sets SO_SNDBUF.
func SendBuffer(bytes int) SockOpt {
	return intOpt("SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, bytes)
}

// SynRetries sets TCP_SYNCNT.
func SynRetries(count int) SockOpt {
	return intOpt("TCP_SYNCNT", unix.IPPROTO_TCP, unix.TCP_SYNCNT, count)
}

// Bind sets the local address of a socket that connects.
func Bind(addr netip.AddrPort) SockOpt {
	return func(fd int) error {
		if err := intOpt("SO_REUSEADDR", unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)(fd); err != nil {
			return err
		}
		if err := unix.Bind(fd, sockaddr(addr)); err != nil {
			return fmt.Errorf("bind to %s: %w", addr, err)
		}
		return nil
	}
}

func intOpt(name string, level, opt, value int) SockOpt {
	return func(fd int) error {
		if err := unix.SetsockoptInt(fd, level, opt, value); err != nil {
			return fmt.Errorf("set %s to %d: %w", name, value, err)
		}
		return nil
	}
}

func sockaddr(addr netip.AddrPort) unix.Sockaddr {
	if addr.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
}

func control(opts []SockOpt) func(string, string, syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error { return apply(raw, opts) }
}

func apply(raw syscall.RawConn, opts []SockOpt) error {
	var err error
	ctl := raw.Control(func(fd uintptr) {
		for _, opt := range opts {
			if err = opt(int(fd)); err != nil {
				return
			}
		}
	})
	return errors.Join(ctl, err)
}

// Set applies options to a socket that exists.
func Set(conn syscall.Conn, opts ...SockOpt) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("use the socket: %w", err)
	}
	return apply(raw, opts)
}

// Listen returns a listener inside the namespace: no MPTCP, and no keepalive
// but what the options ask for. It ends with the test.
//
// An empty host with network "tcp" listens on [::] for both families: what it
// accepts over IPv4 has IPv4-mapped addresses.
func (n *Node) Listen(network, addr string, opts ...SockOpt) *net.TCPListener {
	n.t.Helper()
	return n.listen(network, addr, false, opts)
}

// ListenMPTCP is [Node.Listen] with MPTCP, the default of Go servers.
func (n *Node) ListenMPTCP(network, addr string, opts ...SockOpt) *net.TCPListener {
	n.t.Helper()
	return n.listen(network, addr, true, opts)
}

func (n *Node) listen(network, addr string, mptcp bool, opts []SockOpt) *net.TCPListener {
	n.t.Helper()

	lc := net.ListenConfig{KeepAlive: -1, Control: control(opts)}
	lc.SetMultipathTCP(mptcp)
	var l net.Listener
	err := n.Do(func() (err error) {
		l, err = lc.Listen(context.Background(), network, addr)
		return err
	})
	if err != nil {
		n.t.Fatalf("listen on %s in %s: %v", addr, n.Name, err)
	}
	n.t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

// SetBacklog changes how many connections wait for accept: one more than
// count.
func SetBacklog(l *net.TCPListener, count int) error {
	return Set(l, func(fd int) error {
		if err := unix.Listen(fd, count); err != nil {
			return fmt.Errorf("listen with backlog %d: %w", count, err)
		}
		return nil
	})
}

// Dial connects from inside the namespace: no MPTCP, and no keepalive but what
// the options ask for. It ends the test if that fails; use [Node.DialContext]
// in goroutines and where failure is expected. The connection is closed when
// the test ends.
//
// An IPv4-mapped IPv6 address, as [Node.AddrMapped] returns it, connects an
// IPv6 socket over IPv4.
func (n *Node) Dial(network, addr string, opts ...SockOpt) *net.TCPConn {
	n.t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err := n.DialContext(ctx, network, addr, opts...)
	if err != nil {
		n.t.Fatalf("dial %s in %s: %v", addr, n.Name, err)
	}
	n.t.Cleanup(func() { conn.Close() })
	return conn
}

// DialContext is [Node.Dial] for connections that may fail; the caller closes
// them.
func (n *Node) DialContext(ctx context.Context, network, addr string, opts ...SockOpt) (*net.TCPConn, error) {
	if ap, err := netip.ParseAddrPort(addr); err == nil && ap.Addr().Is4In6() {
		return n.dialMapped(ctx, ap, opts)
	}
	return n.dial(ctx, network, addr, false, opts)
}

// DialMPTCP is [Node.Dial] with MPTCP.
func (n *Node) DialMPTCP(network, addr string, opts ...SockOpt) *net.TCPConn {
	n.t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err := n.dial(ctx, network, addr, true, opts)
	if err != nil {
		n.t.Fatalf("dial %s with MPTCP in %s: %v", addr, n.Name, err)
	}
	n.t.Cleanup(func() { conn.Close() })
	return conn
}

func (n *Node) dial(ctx context.Context, network, addr string, mptcp bool, opts []SockOpt) (*net.TCPConn, error) {
	d := net.Dialer{KeepAlive: -1, Control: control(opts)}
	d.SetMultipathTCP(mptcp)
	var conn net.Conn
	err := n.Do(func() (err error) {
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// dialMapped does what package net refuses to: connect an IPv6 socket to an
// IPv4-mapped address.
func (n *Node) dialMapped(ctx context.Context, addr netip.AddrPort, opts []SockOpt) (*net.TCPConn, error) {
	fd, err := n.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "tcp")
	defer f.Close()

	for _, opt := range opts {
		if err := opt(fd); err != nil {
			return nil, err
		}
	}
	if err := unix.Connect(fd, sockaddr(addr)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	err = Until(ctx, func() bool {
		pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		ready, err := unix.Poll(pfd, 0)
		return err == nil && ready == 1
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	if errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || errno != 0 {
		return nil, fmt.Errorf("connect to %s: %w", addr, errors.Join(err, unix.Errno(errno)))
	}

	keepalive, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
	if err != nil {
		return nil, fmt.Errorf("read SO_KEEPALIVE: %w", err)
	}
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use the socket: %w", err)
	}
	// FileConn has switched keepalive on, with times of its own.
	tcp := conn.(*net.TCPConn)
	if keepalive == 0 {
		err = tcp.SetKeepAlive(false)
	} else {
		err = Set(tcp, opts...)
	}
	runtime.KeepAlive(f)
	if err != nil {
		tcp.Close()
		return nil, err
	}
	return tcp, nil
}

// Connect dials l, which listens on node to, from n, and returns both ends.
func (n *Node) Connect(to *Node, l *net.TCPListener, opts ...SockOpt) (client, server *net.TCPConn) {
	n.t.Helper()

	addr := l.Addr().(*net.TCPAddr).AddrPort()
	if addr.Addr().IsUnspecified() {
		addr = netip.AddrPortFrom(to.Link.Addr4, addr.Port())
	}
	client = n.Dial("tcp", addr.String(), opts...)
	if err := l.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		n.t.Fatalf("set deadline: %v", err)
	}
	server, err := l.AcceptTCP()
	if err != nil {
		n.t.Fatalf("accept in %s: %v", to.Name, err)
	}
	n.t.Cleanup(func() { server.Close() })
	if err := l.SetDeadline(time.Time{}); err != nil {
		n.t.Fatalf("clear deadline: %v", err)
	}
	return client, server
}

// Socket returns a descriptor created inside the namespace, close-on-exec.
// The caller closes it.
func (n *Node) Socket(domain, typ, proto int) (int, error) {
	fd := -1
	err := n.Do(func() (err error) {
		fd, err = unix.Socket(domain, typ|unix.SOCK_CLOEXEC, proto)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("create socket in %s: %w", n.Name, err)
	}
	return fd, nil
}

// SocketCookie returns what bpf_get_socket_cookie returns for the socket.
func SocketCookie(conn syscall.Conn) (uint64, error) {
	return sockoptUint64(conn, "SO_COOKIE", unix.SO_COOKIE)
}

// NetnsCookie returns what bpf_get_netns_cookie returns in the namespace.
func (n *Node) NetnsCookie() (uint64, error) {
	fd, err := n.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)

	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read SO_NETNS_COOKIE: %w", err)
	}
	return cookie, nil
}

func sockoptUint64(conn syscall.Conn, name string, opt int) (uint64, error) {
	var value uint64
	err := Set(conn, func(fd int) (err error) {
		value, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, opt)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	return value, nil
}

// Info returns TCP_INFO of a connection.
func Info(conn syscall.Conn) (*unix.TCPInfo, error) {
	var info *unix.TCPInfo
	err := Set(conn, func(fd int) (err error) {
		info, err = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read TCP_INFO: %w", err)
	}
	return info, nil
}
