// Package scratch makes two joined network namespaces that nobody else has,
// and in them what a positive control needs: a retransmission, a reset and the
// aborts that it causes, at known addresses.
//
// The namespaces have no name and no process: they exist as long as this
// process has them open, so that nothing is left of them however it ends.
package scratch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/target"
)

// Pair is two namespaces joined by a veth pair.
type Pair struct {
	Client, Server *target.Namespace

	client, server link
}

// link is one end of the veth pair.
type link struct {
	index int
	mac   net.HardwareAddr
	addr  netip.Addr
}

// ifName is the name of either end, in its own namespace.
const ifName = "eth0"

var (
	clientAddr = netip.MustParseAddr("198.18.0.1")
	serverAddr = netip.MustParseAddr("198.18.0.2")
)

// New makes a pair whose ends know each other's address.
func New(ctx context.Context) (*Pair, error) {
	p := new(Pair)
	if err := p.make(ctx); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Close lets go of the namespaces, which end with that.
func (p *Pair) Close() {
	for _, ns := range []*target.Namespace{p.Client, p.Server} {
		if ns != nil {
			ns.Close()
		}
	}
}

func (p *Pair) make(ctx context.Context) (err error) {
	if p.Client, err = namespace(ctx, "self-test client"); err != nil {
		return err
	}
	if p.Server, err = namespace(ctx, "self-test server"); err != nil {
		return err
	}
	err = p.Client.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: ifName, PeerNamespace: netlink.NsFd(p.Server.File().Fd())}
		veth.Name = ifName
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("make a veth pair: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if p.client, err = configure(p.Client, clientAddr); err != nil {
		return err
	}
	if p.server, err = configure(p.Server, serverAddr); err != nil {
		return err
	}
	for _, ns := range []*target.Namespace{p.Client, p.Server} {
		if err := awaitUp(ctx, ns); err != nil {
			return err
		}
	}
	return errors.Join(p.Client.Do(func() error { return p.client.knows(p.server, p.server.mac) }), p.Server.Do(func() error { return p.server.knows(p.client, p.client.mac) }))
}

// namespace makes a network namespace and opens it.
func namespace(ctx context.Context, name string) (*target.Namespace, error) {
	f, err := unshare()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found, err := target.Resolve(ctx, []target.Spec{{Kind: target.Path, Name: fmt.Sprintf("/proc/self/fd/%d", f.Fd())}})
	if err != nil {
		return nil, fmt.Errorf("open a new network namespace: %w", err)
	}
	found[0].Name = name
	return found[0], nil
}

// unshare makes a network namespace on a thread that ends.
func unshare() (*os.File, error) {
	type made struct {
		f   *os.File
		err error
	}
	c := make(chan made)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if unix.Gettid() == os.Getpid() {
			// The main thread cannot end. While it is held here another is used.
			f, err := unshare()
			c <- made{f, err}
			runtime.UnlockOSThread()
			return
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			c <- made{nil, fmt.Errorf("make a network namespace: %w", err)}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		c <- made{f, err}
	}()
	m := <-c
	return m.f, m.err
}

// configure gives a namespace's end of the pair its address and sets it up.
func configure(ns *target.Namespace, addr netip.Addr) (l link, err error) {
	err = ns.Do(func() error {
		veth, err := netlink.LinkByName(ifName)
		if err != nil {
			return fmt.Errorf("find %s: %w", ifName, err)
		}
		l = link{veth.Attrs().Index, veth.Attrs().HardwareAddr, addr}
		if err := netlink.AddrAdd(veth, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(30, 32)}}); err != nil {
			return fmt.Errorf("add address %s: %w", addr, err)
		}
		if err := netlink.LinkSetUp(veth); err != nil {
			return fmt.Errorf("set %s up: %w", ifName, err)
		}
		return nil
	})
	return l, err
}

// upWithin is how long the kernel takes at most to activate a link.
const upWithin = 5 * time.Second

func awaitUp(ctx context.Context, ns *target.Namespace) error {
	ctx, cancel := context.WithTimeout(ctx, upWithin)
	defer cancel()
	return ns.Do(func() error {
		return until(ctx, ifName+" is not up", func() (bool, error) {
			veth, err := netlink.LinkByName(ifName)
			return err == nil && veth.Attrs().OperState == netlink.OperUp, err
		})
	})
}

// knows sets the hardware address to which what is for the peer is sent.
func (l link) knows(peer link, mac net.HardwareAddr) error {
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: l.index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: peer.addr.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("set the hardware address of %s: %w", peer.addr, err)
	}
	return nil
}

// until asks every few milliseconds.
func until(ctx context.Context, what string, done func() (bool, error)) error {
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		case <-time.After(2 * time.Millisecond):
		}
	}
}
