package scratch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Provoked is what happened, by the word of the sockets that took part.
type Provoked struct {
	Client, Server netip.AddrPort
	Retransmits    uint32 // that the client's socket sent (tcpi_total_retrans)
}

// within bounds all of [Pair.Provoke]; it takes about a quarter of a second.
const within = 15 * time.Second

// Provoke makes a connection, loses what the client sends until it has been
// sent again, and has the server reset the connection. Nothing of it is left
// when it returns.
func (p *Pair) Provoke(ctx context.Context) (Provoked, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	deadline, _ := ctx.Deadline()
	client, server, err := p.connect(ctx)
	if err != nil {
		return Provoked{}, err
	}
	defer client.Close()
	defer server.Close()
	if err := errors.Join(client.SetDeadline(deadline), server.SetDeadline(deadline)); err != nil {
		return Provoked{}, err
	}
	got := Provoked{Client: addrPort(client.LocalAddr()), Server: addrPort(server.LocalAddr())}

	// A round trip, so that the timers know how long one takes.
	if err := errors.Join(pass(client, server), pass(server, client)); err != nil {
		return got, err
	}
	// Frames for another hardware address do not arrive.
	other := slices.Clone(p.server.mac)
	other[len(other)-1] ^= 1
	if err := p.Client.Do(func() error { return p.client.knows(p.server, other) }); err != nil {
		return got, err
	}
	if _, err := client.Write([]byte{0}); err != nil {
		return got, fmt.Errorf("send: %w", err)
	}
	err = until(ctx, "nothing was sent again", func() (bool, error) {
		got.Retransmits, err = totalRetrans(client)
		return got.Retransmits > 0, err
	})
	if err != nil {
		return got, err
	}
	if err := p.Client.Do(func() error { return p.client.knows(p.server, p.server.mac) }); err != nil {
		return got, err
	}
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		return got, fmt.Errorf("receive what was sent again: %w", err)
	}
	// Its acknowledgement is underway; one more round trip follows it.
	if err := errors.Join(pass(server, client), pass(client, server)); err != nil {
		return got, err
	}
	if got.Retransmits, err = totalRetrans(client); err != nil {
		return got, err
	}
	if err := errors.Join(server.SetLinger(0), server.Close()); err != nil {
		return got, fmt.Errorf("reset the connection: %w", err)
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		return got, fmt.Errorf("the connection was not reset: %w", err)
	}
	return got, nil
}

func (p *Pair) connect(ctx context.Context) (client, server *net.TCPConn, err error) {
	lc := net.ListenConfig{KeepAlive: -1}
	lc.SetMultipathTCP(false)
	var l net.Listener
	err = p.Server.Do(func() (err error) {
		l, err = lc.Listen(ctx, "tcp4", netip.AddrPortFrom(serverAddr, 0).String())
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	d := net.Dialer{KeepAlive: -1}
	d.SetMultipathTCP(false)
	err = p.Client.Do(func() error {
		c, err := d.DialContext(ctx, "tcp4", l.Addr().String())
		if err == nil {
			client = c.(*net.TCPConn)
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	c, err := l.Accept()
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return client, c.(*net.TCPConn), nil
}

// pass carries a byte from one to the other.
func pass(from, to net.Conn) error {
	if _, err := from.Write([]byte{0}); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	if _, err := io.ReadFull(to, make([]byte, 1)); err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	return nil
}

func totalRetrans(c *net.TCPConn) (n uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var infoErr error
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if infoErr = err; err == nil {
			n = info.Total_retrans
		}
	})
	return n, errors.Join(err, infoErr)
}

func addrPort(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }
