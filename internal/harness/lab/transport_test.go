package lab

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/harness/node"
)

// options are what the kernel has of a connection.
type options struct {
	userTimeout    time.Duration
	keepalive      bool
	idle, interval time.Duration
	probes         int
}

// connections reads the options of every connection that the node's processes
// have with peer; port is that of the peer, 0 for any.
func connections(t *testing.T, n *Node, peer netip.Addr, port uint16) []options {
	t.Helper()
	pids, err := n.lab.backend.(*namespaces).cgroup(n).procs()
	if err != nil {
		t.Fatal(err)
	}
	var found []options
	for _, pid := range pids {
		fds, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range fds {
			if to, err := os.Readlink(file); err != nil || !strings.HasPrefix(to, "socket:") {
				continue
			}
			number, err := strconv.Atoi(filepath.Base(file))
			if err != nil {
				t.Fatal(err)
			}
			if o, ok := connection(t, pid, number, peer, port); ok {
				found = append(found, o)
			}
		}
	}
	return found
}

// connection looks at a descriptor of another process.
func connection(t *testing.T, pid, number int, peer netip.Addr, port uint16) (o options, ok bool) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, number, 0)
	if err != nil {
		return o, false // closed meanwhile
	}
	defer unix.Close(fd)
	address, err := unix.Getpeername(fd)
	if err != nil {
		return o, false // it listens
	}
	var got netip.AddrPort
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		got = netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		got = netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	if got.Addr() != peer || port != 0 && got.Port() != port {
		return o, false
	}
	get := func(level, option int) int {
		v, err := unix.GetsockoptInt(fd, level, option)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	o.userTimeout = time.Duration(get(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)) * time.Millisecond
	o.keepalive = get(unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0
	o.idle = time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)) * time.Second
	o.interval = time.Duration(get(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)) * time.Second
	o.probes = get(unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
	return o, true
}

// The two ends of the connection that everything is about differ, and neither
// was told to: it is what grpc-go and Go do by default. With other defaults
// the experiment is another one, and docs/experiment.md wrong.
func TestTransport(t *testing.T) {
	l := newLabOf(t, newSpec(t, Netns))
	worker, cp := nodeOf(t, l, Worker), nodeOf(t, l, Controlplane)
	mustRead(t, l, node.Proxied)

	accepted := connections(t, worker, cp.Addr, 0)
	want := options{userTimeout: 20 * time.Second, keepalive: true, idle: 15 * time.Second, interval: 15 * time.Second, probes: 9}
	if len(accepted) != 1 || accepted[0] != want {
		t.Errorf("the worker's end is %+v, want %+v", accepted, want)
	}
	dialled := connections(t, cp, worker.Addr, node.Port)
	want = options{keepalive: true, idle: 2 * time.Hour, interval: 75 * time.Second, probes: 9}
	if len(dialled) != 1 || dialled[0] != want {
		t.Errorf("the controlplane's end is %+v, want %+v", dialled, want)
	}
}
