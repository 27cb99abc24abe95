// Command demo is the traffic of hack/demo.sh: plain TCP inside the network
// namespace it is started in.
//
//	demo serve TRANSFER GREET   listens on two addresses
//	demo transfer ADDRESS       sends until its standard input ends
//	demo refused ADDRESS        connects where nobody listens
//	demo unread ADDRESS         closes without reading what came
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "serve":
		return serve(args[1], args[2])
	case len(args) == 2 && args[0] == "transfer":
		return transfer(args[1])
	case len(args) == 2 && args[0] == "refused":
		return refused(args[1])
	case len(args) == 2 && args[0] == "unread":
		return unread(args[1])
	}
	return errors.New("usage: demo serve TRANSFER GREET | transfer ADDRESS | refused ADDRESS | unread ADDRESS")
}

// serve counts what arrives on one address, and greets on the other. It prints
// a line when it listens.
func serve(transfer, greet string) error {
	counter, err := listen(transfer)
	if err != nil {
		return err
	}
	greeter, err := listen(greet)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	errs := make(chan error)
	go func() { errs <- accept(counter, count) }()
	go func() { errs <- accept(greeter, hello) }()
	return <-errs
}

func listen(addr string) (net.Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // one connection, not one with subflows
	return lc.Listen(context.Background(), "tcp", addr)
}

func accept(ln net.Listener, handle func(net.Conn) error) error {
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if err := handle(c); err != nil {
				fmt.Fprintln(os.Stderr, "demo:", err)
			}
		}()
	}
}

func count(c net.Conn) error {
	n, err := io.Copy(io.Discard, c)
	if err != nil {
		return err
	}
	return binary.Write(c, binary.BigEndian, n)
}

func hello(c net.Conn) error {
	if _, err := c.Write([]byte("hello\n")); err != nil {
		return err
	}
	// The other end resets: that is the point of it.
	if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		return err
	}
	return nil
}

// transfer sends a kilobyte ten times a second until its standard input ends,
// and then asks how much has arrived.
func transfer(addr string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()

	var sent int64
	chunk := bytes.Repeat([]byte{'x'}, 1024)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			n, err := c.Write(chunk)
			sent += int64(n)
			if err != nil {
				return fmt.Errorf("after %d bytes: %w", sent, err)
			}
			continue
		case <-stop:
		}
		break
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	var arrived int64
	if err := binary.Read(c, binary.BigEndian, &arrived); err != nil {
		return err
	}
	if arrived != sent {
		return fmt.Errorf("%d bytes sent, %d arrived", sent, arrived)
	}
	fmt.Printf("%d bytes sent, all of them arrived\n", sent)
	return nil
}

func refused(addr string) error {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("somebody listens on %s", addr)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return nil
}

func unread(addr string) error {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return err
	}
	// Wait until something has come, but leave it there.
	rc, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var perr error
	if err := rc.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, perr = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		return !errors.Is(perr, syscall.EAGAIN)
	}); err != nil {
		return err
	}
	if perr != nil {
		return perr
	}
	return c.Close()
}
