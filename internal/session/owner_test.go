package session_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

func init() {
	helpers["sender"] = senderHelper
	helpers["server"] = serverHelper
	helpers["worker"] = workerHelper
}

// program prepares a helper as a process of its own name in a namespace, with
// what it prints line by line.
func program(t *testing.T, n *testlab.Node, name, helper string, args ...string) (cmd *testlab.Cmd, lines *bufio.Scanner, stdin io.WriteCloser) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name)
	if err := os.Symlink(self, path); err != nil {
		t.Fatal(err)
	}
	cmd = n.Command(path, args...)
	cmd.Env = append(os.Environ(), helperEnv+"="+helper)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if stdin, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out), stdin
}

func says(t *testing.T, s *bufio.Scanner) string {
	t.Helper()
	if !s.Scan() {
		t.Fatalf("the helper ended: %v", s.Err())
	}
	return s.Text()
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// waitEOF returns when the test closes its end.
func waitEOF() { _, _ = io.Copy(io.Discard, os.Stdin) }

// senderHelper opens connections to its first argument and, told to by a line,
// writes on all of them.
func senderHelper() {
	dialer := net.Dialer{KeepAlive: -1}
	dialer.SetMultipathTCP(false)
	var conns []net.Conn
	for range senders {
		c, err := dialer.DialContext(context.Background(), "tcp", os.Args[1])
		check(err)
		conns = append(conns, c)
	}
	fmt.Println("connected")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		for _, c := range conns {
			_, err := c.Write(make([]byte, 100))
			check(err)
		}
		fmt.Println("written")
	}
}

const senders = 20

// TestOwnerUnderLoad retransmits by timers while other processes keep every
// processor busy: they are the tasks the timers interrupt, and own nothing.
func TestOwnerUnderLoad(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	l := s.listen()
	cmd, out, stdin := program(t, s.A, "sw-sender", "sender", s.B.Addr(port).String())
	var servers []net.Conn
	for range senders {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		servers = append(servers, c)
	}
	if got := says(t, out); got != "connected" {
		t.Fatal(got)
	}

	burners, stop := testlab.BurnCPU(t, 2)
	cut := s.B.Lose(testlab.Loss{DstPort: port})
	if _, err := io.WriteString(stdin, "write\n"); err != nil {
		t.Fatal(err)
	}
	testlab.Eventually(t, 20*time.Second, func() bool {
		return len(pick(s.events(), "retransmit", func(e *events.Event) bool { return e.Retransmit.Attempt >= 3 })) >= senders
	})
	stop()
	cut.Undo()
	for _, c := range servers {
		receive(t, c, 100)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	evs := s.finish()

	want := events.Owner{PID: uint32(cmd.Process.Pid), Comm: "sw-sender", Via: "connect"}
	types := make(map[events.Type]int)
	for _, e := range evs {
		if !in(s.A)(&e) || e.Sock == nil {
			continue
		}
		types[e.Type]++
		if e.Owner == nil || *e.Owner != want {
			t.Errorf("line %d (%s on CPU %d): owner %+v, want %+v", e.Seq, e.Type, *e.CPU, e.Owner, want)
		}
	}
	if types["retransmit"] < 3*senders || types["recovered"] < senders || types["state"] < 3*senders {
		t.Errorf("events of the sender: %v", types)
	}
	for _, e := range evs {
		for _, pid := range burners {
			if e.Owner != nil && e.Owner.PID == uint32(pid) {
				t.Errorf("line %d: owned by a process that has no socket", e.Seq)
			}
		}
	}
}

// serverHelper listens on its first argument, reads a byte from a connection
// and hands it to a process of its own.
func serverHelper() {
	lc := net.ListenConfig{KeepAlive: -1}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp4", os.Args[1])
	check(err)
	fmt.Println("listening")
	c, err := l.Accept()
	check(err)
	_, err = io.ReadFull(c, make([]byte, 1))
	check(err)
	f, err := c.(*net.TCPConn).File()
	check(err)
	self, err := os.Executable()
	check(err)
	// Its own name for the worker, as the test gave this one its own.
	worker := filepath.Join(filepath.Dir(os.Args[0]), "sw-worker")
	check(os.Symlink(self, worker))
	check(os.Setenv(helperEnv, "worker"))
	p, err := os.StartProcess(worker, []string{worker}, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, f},
	})
	check(err)
	c.Close()
	f.Close()
	fmt.Println("worker", p.Pid)
	_, err = p.Wait()
	check(err)
}

// workerHelper serves descriptor 3, an inherited connection: a line of stdin
// lets it read.
func workerHelper() {
	f := os.NewFile(3, "connection")
	c, err := net.FileConn(f)
	check(err)
	f.Close()
	in := bufio.NewScanner(os.Stdin)
	in.Scan()
	_, err = io.ReadFull(c, make([]byte, 10))
	check(err)
	fmt.Println("read")
	in.Scan()
	_, err = c.Write(make([]byte, 100))
	check(err)
	fmt.Println("written")
	waitEOF()
	c.Close()
}

// TestOwnerOfHandedOver follows a connection that one process accepts and
// begins to read, and another serves.
func TestOwnerOfHandedOver(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	cmd, out, stdin := program(t, s.B, "sw-server", "server", s.B.Addr(port).String())
	if got := says(t, out); got != "listening" {
		t.Fatal(got)
	}
	client := s.A.Dial("tcp", s.B.Addr(port).String())
	send(t, client, 1)
	var workerPID int
	if _, err := fmt.Sscanf(says(t, out), "worker %d", &workerPID); err != nil {
		t.Fatal(err)
	}
	step := func(want string) {
		t.Helper()
		if _, err := io.WriteString(stdin, "go on\n"); err != nil {
			t.Fatal(err)
		}
		if got := says(t, out); got != want {
			t.Fatalf("the worker says %q, want %q", got, want)
		}
	}
	send(t, client, 10)
	step("read")
	s.A.Lose(testlab.Loss{SrcPort: port, Nth: []int{1}})
	step("written")
	receive(t, client, 100)
	s.until("recovery", 5*time.Second, an("recovered", s.B))
	stdin.Close()
	gone(t, client, io.EOF)
	client.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	evs := s.finish()

	server := events.Owner{PID: uint32(cmd.Process.Pid), Comm: "sw-server"}
	worker := events.Owner{PID: uint32(workerPID), Comm: "sw-worker", Via: "recv"}
	if e := one(t, evs, "state", func(e *events.Event) bool { return e.State.New == "LISTEN" }); e.Owner == nil || e.Owner.PID != server.PID || e.Owner.Comm != server.Comm || e.Owner.Via != "listen" {
		t.Errorf("listener's owner %+v, want %+v", e.Owner, server)
	}
	var vias []string
	for _, e := range evs {
		if !in(s.B)(&e) || e.Sock == nil || e.Sock.Remote.Port() == 0 {
			continue
		}
		if e.Owner == nil {
			t.Errorf("line %d (%s): no owner", e.Seq, e.Type)
			continue
		}
		vias = append(vias, string(e.Type)+" "+e.Owner.Via)
		want := worker
		if e.Owner.Via == "listener" {
			want = server
			want.Via = "listener"
		}
		if *e.Owner != want {
			t.Errorf("line %d (%s): owner %+v, want %+v", e.Seq, e.Type, e.Owner, want)
		}
	}
	// Accepted for the listener, read by the server, which nothing tells of;
	// the worker's from its first read on.
	got := strings.Join(vias, ", ")
	if !strings.HasPrefix(got, "state listener, state listener, retransmit recv, recovered recv, state recv") {
		t.Errorf("owners: %s", got)
	}
}
