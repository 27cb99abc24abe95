// Peer runs in a container and does with TCP what it is asked to, one command
// a line, over an abstract Unix socket. That socket belongs to the container's
// network namespace: the test enters it to ask, and needs neither an address
// nor a TCP socket there.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds what waits for the other end.
const patience = 20 * time.Second

// peer has a listener and the connection that was last dialled or accepted;
// those before it stay open.
type peer struct {
	listener *net.TCPListener
	conn     *net.TCPConn
	before   []*net.TCPConn
}

func main() {
	go func() { // process 1 has no default for it
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		<-c
		os.Exit(0)
	}()
	l, err := net.Listen("unix", "@"+os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var p peer
	for {
		c, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for s := bufio.NewScanner(c); s.Scan(); {
			word, arg, _ := strings.Cut(s.Text(), " ")
			answer, err := p.do(word, arg)
			if err != nil {
				answer = "error " + err.Error()
			}
			fmt.Fprintln(c, answer)
		}
		c.Close()
	}
}

func (p *peer) do(word, arg string) (string, error) {
	switch word {
	case "listen":
		lc := net.ListenConfig{KeepAlive: -1}
		lc.SetMultipathTCP(false)
		l, err := lc.Listen(context.Background(), "tcp", arg)
		if err != nil {
			return "", err
		}
		p.listener = l.(*net.TCPListener)
		return "ok " + l.Addr().String(), nil
	case "accept":
		p.listener.SetDeadline(time.Now().Add(patience))
		c, err := p.listener.AcceptTCP()
		return p.use(c, err)
	case "dial":
		d := net.Dialer{KeepAlive: -1, Timeout: patience}
		d.SetMultipathTCP(false)
		c, err := d.Dial("tcp", arg)
		if err != nil {
			return "", err
		}
		return p.use(c.(*net.TCPConn), nil)
	case "user-timeout": // milliseconds
		n, err := strconv.Atoi(arg)
		if err != nil {
			return "", err
		}
		raw, err := p.conn.SyscallConn()
		if err != nil {
			return "", err
		}
		var serr error
		err = raw.Control(func(fd uintptr) {
			serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, n)
		})
		if err == nil {
			err = serr
		}
		return "ok", err
	case "send": // bytes
		n, err := strconv.Atoi(arg)
		if err != nil {
			return "", err
		}
		_, err = p.conn.Write(make([]byte, n))
		return "ok", err
	case "read": // bytes
		n, err := strconv.Atoi(arg)
		if err != nil {
			return "", err
		}
		p.conn.SetReadDeadline(time.Now().Add(patience))
		_, err = io.ReadFull(p.conn, make([]byte, n))
		return "ok", err
	case "drain": // to the end
		p.conn.SetReadDeadline(time.Now().Add(patience))
		n, err := io.Copy(io.Discard, p.conn)
		return fmt.Sprintf("ok %d", n), err
	case "close-write":
		return "ok", p.conn.CloseWrite()
	case "close":
		return "ok", p.conn.Close()
	}
	return "", fmt.Errorf("unknown command %q", word)
}

// use makes c the connection, and answers with its two ends.
func (p *peer) use(c *net.TCPConn, err error) (string, error) {
	if err != nil {
		return "", err
	}
	p.before, p.conn = append(p.before, p.conn), c
	return fmt.Sprintf("ok %s %s", c.LocalAddr(), c.RemoteAddr()), nil
}
