package session_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

func init() { helpers["reader"] = readerHelper }

// readerHelper listens on its first argument and, for each line of stdin,
// reads as many bytes as that says, in one call that waits for all of them.
func readerHelper() {
	addr := strings.Split(os.Args[1], ":")
	p, err := strconv.Atoi(addr[1])
	check(err)
	sa := &unix.SockaddrInet4{Port: p}
	for i, b := range strings.Split(addr[0], ".") {
		n, err := strconv.Atoi(b)
		check(err)
		sa.Addr[i] = byte(n)
	}
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	check(err)
	check(unix.SetsockoptInt(l, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	check(unix.Bind(l, sa))
	check(unix.Listen(l, 1))
	fmt.Println("listening")
	c, _, err := unix.Accept(l)
	check(err)
	fmt.Println("accepted")
	var n int
	for {
		if _, err := fmt.Scan(&n); err != nil {
			return
		}
		fmt.Println("reads")
		got, _, err := unix.Recvfrom(c, make([]byte, n), unix.MSG_WAITALL)
		check(err)
		fmt.Println("read", got)
	}
}

// freezer is a cgroup that freezes what is in it.
type freezer struct{ dir, file, on, off string }

// freezers are where each version of cgroups may be.
var freezers = map[string][]freezer{
	"version 2": {{"/sys/fs/cgroup", "cgroup.freeze", "1", "0"}, {"/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"}},
	"version 1": {{"/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"}},
}

// newFreezer makes one, or returns nil where the machine has none.
func newFreezer(t *testing.T, places []freezer) *freezer {
	t.Helper()
	testlab.Privileged(t)
	name := fmt.Sprintf("sockwatch-test-%d-%d", os.Getpid(), testlab.MonoNow())
	for _, f := range places {
		f.dir = filepath.Join(f.dir, name)
		if os.Mkdir(f.dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			testlab.Eventually(t, 10*time.Second, func() bool { return os.Remove(f.dir) == nil })
		})
		if _, err := os.Stat(filepath.Join(f.dir, f.file)); err == nil {
			return &f
		}
	}
	return nil
}

func (f *freezer) write(t *testing.T, file, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, file), []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
}

// freeze returns when every process is frozen.
func (f *freezer) freeze(t *testing.T) {
	t.Helper()
	f.write(t, f.file, f.on)
	testlab.Eventually(t, 10*time.Second, func() bool {
		if f.file == "freezer.state" {
			b, err := os.ReadFile(filepath.Join(f.dir, f.file))
			return err == nil && strings.TrimSpace(string(b)) == "FROZEN"
		}
		b, err := os.ReadFile(filepath.Join(f.dir, "cgroup.events"))
		return err == nil && strings.Contains(string(b), "frozen 1")
	})
}

func (f *freezer) thaw(t *testing.T) { t.Helper(); f.write(t, f.file, f.off) }

// unread is what the connection of a port has received and nobody has read:
// rx_queue in /proc/net/tcp.
func unread(t *testing.T, n *testlab.Node, port uint16) (bytes uint64) {
	t.Helper()
	var table []byte
	if err := n.Do(func() (err error) {
		table, err = os.ReadFile("/proc/thread-self/net/tcp")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		// sl local_address rem_address st tx_queue:rx_queue ...
		f := strings.Fields(line)
		if !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) || f[3] != "01" {
			continue
		}
		_, rx, _ := strings.Cut(f[4], ":")
		bytes, err := strconv.ParseUint(rx, 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	t.Fatalf("%s has no connection of port %d", n.Name, port)
	return 0
}

// ofOp selects the io events of a node with an op.
func ofOp(n *testlab.Node, op string) func(*events.Event) bool {
	return func(e *events.Event) bool { return in(n)(e) && e.IO.Op == op }
}

// TestFrozenReader freezes the process that reads, once within a read and then
// between two. Its kernel acknowledges all the same, and it reads when it thaws.
func TestFrozenReader(t *testing.T) {
	t.Parallel()
	any := false
	for version, places := range freezers {
		f := newFreezer(t, places)
		if f == nil {
			t.Logf("no freezer of %s", version)
			continue
		}
		any = true
		t.Run(version, func(t *testing.T) { frozenReader(t, f) })
	}
	if !any && os.Getenv("CI") != "" {
		t.Fatal("this machine has no cgroup freezer, but CI is set: this has to run")
	} else if !any {
		t.Skip("this machine has no cgroup freezer")
	}
}

func frozenReader(t *testing.T, f *freezer) {
	s := stage(t, session.Config{IO: true, Segments: true})
	cmd, out, stdin := program(t, s.B, "sw-reader", "reader", s.B.Addr(port).String())
	f.write(t, "cgroup.procs", strconv.Itoa(cmd.Process.Pid))
	defer func() {
		f.thaw(t)
		stdin.Close()
		if t.Failed() {
			_ = cmd.Process.Kill() // it may wait for more
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	say := func(want string) {
		t.Helper()
		if got := says(t, out); got != want {
			t.Fatalf("the reader says %q, want %q", got, want)
		}
	}
	read := func(n int) {
		t.Helper()
		if _, err := fmt.Fprintln(stdin, n); err != nil {
			t.Fatal(err)
		}
		say("reads")
	}
	say("listening")
	client := s.A.Dial("tcp", s.B.Addr(port).String())
	say("accepted")
	acked := func(bytes uint64) {
		t.Helper()
		testlab.Eventually(t, 10*time.Second, func() bool {
			info, err := testlab.Info(client)
			return err == nil && info.Bytes_acked == bytes+1 // the SYN
		})
	}

	read(10)
	send(t, client, 10)
	say("read 10")
	// 100 of the 1000 bytes it waits for have come when it is frozen: the call
	// ends with them.
	read(1000)
	send(t, client, 100)
	acked(110)
	testlab.Eventually(t, 10*time.Second, func() bool { return unread(t, s.B, port) == 0 })
	f.freeze(t)
	frozen := testlab.MonoNow()
	for range 3 {
		send(t, client, 100)
	}
	acked(410)
	thawed := testlab.MonoNow()
	f.thaw(t)
	say("read 100")
	read(300)
	say("read 300")
	blind := s.blind("what applications read (io events)")
	if !blind {
		s.until("the last read", 5*time.Second, func(e *events.Event) bool { return e.IO != nil && e.IO.Op == "read" && e.IO.Bytes == 300 })
	}
	evs := s.finish()

	if !blind {
		reads := pick(evs, "io", ofOp(s.B, "read"))
		want := []struct {
			bytes  uint32
			frozen string
		}{{10, "no"}, {100, "yes"}, {300, "no"}}
		if len(reads) != len(want) {
			t.Fatalf("%d reads, want %d", len(reads), len(want))
		}
		for i, e := range reads {
			if e.IO.Bytes != want[i].bytes || e.IO.Frozen != want[i].frozen {
				t.Errorf("read %d: %+v, want %+v", i+1, e.IO, want[i])
			}
			if o := e.Owner; o == nil || o.PID != uint32(cmd.Process.Pid) || o.Comm != "sw-reader" || o.Via != "recv" {
				t.Errorf("read %d: owner %+v", i+1, e.Owner)
			}
			if e.MonoNS > frozen && e.MonoNS < thawed {
				t.Errorf("read %d while the process was frozen", i+1)
			}
		}
		if last := reads[2]; last.MonoNS < thawed || last.TCP.CopiedSeq-reads[0].TCP.CopiedSeq != 400 || last.TCP.UnreadBytes != 0 {
			t.Errorf("the last read: at %d, thawed at %d, %+v", last.MonoNS, thawed, last.TCP)
		}
		var wrote uint32
		for _, e := range pick(evs, "io", ofOp(s.A, "write")) {
			wrote += e.IO.Bytes
			if e.IO.Frozen != "no" || e.Owner.PID != uint32(os.Getpid()) {
				t.Errorf("line %d: %+v by %+v", e.Seq, e.IO, e.Owner)
			}
		}
		if wrote != 410 {
			t.Errorf("%d bytes were written in the events, 410 by the process", wrote)
		}
	}
	arrived := pick(evs, "io", ofOp(s.B, "arrive"))
	if len(arrived) != 3 && !blind {
		t.Errorf("%d arrivals while the process was frozen, want 3", len(arrived))
	}
	for _, e := range arrived {
		if e.IO.Bytes != 100 || e.IO.Frozen != "yes" || e.Owner == nil || e.Owner.PID != uint32(cmd.Process.Pid) || e.MonoNS < frozen || e.MonoNS > thawed {
			t.Errorf("line %d: %+v of %+v at %d, frozen from %d to %d", e.Seq, e.IO, e.Owner, e.MonoNS, frozen, thawed)
		}
	}
	// The frozen process's kernel took the data and acknowledged it.
	var came, acks int
	for _, e := range pick(evs, "segment", in(s.B)) {
		if e.MonoNS < frozen || e.MonoNS > thawed {
			continue
		}
		switch g := e.Segment; {
		case g.Direction == "received" && g.Bytes == 100:
			came++
		case g.Direction == "sent" && g.Flags == "ACK" && g.Bytes == 0:
			acks++
		}
	}
	if came != 3 || acks == 0 {
		t.Errorf("while it was frozen %d segments came and %d acknowledgements left", came, acks)
	}
}

// TestSegments holds the segment lines against a capture: the same segments, of
// the same sockets, at the same time, in both directions.
func TestSegments(t *testing.T) {
	t.Parallel()
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) {
			t.Parallel()
			s := stage(t, session.Config{Segments: true})
			capB := s.B.Capture(testlab.IfName)
			client, server := n.connect(s)
			s.B.Lose(dataTo(port, 1))
			send(t, client, 500)
			receive(t, server, 500)
			send(t, server, 700)
			receive(t, client, 700)
			s.until("recovery", 10*time.Second, an("recovered", s.A))
			server.Close()
			client.Close()
			s.until("close", 10*time.Second, func(e *events.Event) bool { return e.State != nil && e.State.Old == "LAST_ACK" })
			evs := s.finish()
			capB.Stop()
			mine := ours(t, evs, s.B, server)

			line := func(out bool, seq, end, ack uint32, flags string, window uint32) string {
				return fmt.Sprintf("out %v %d..%d ack %d %s win %d", out, seq, end, ack, flags, window)
			}
			lines := pick(evs, "segment", in(s.B))
			var got, want []string
			known := 0
			for _, e := range lines {
				g := e.Segment
				got = append(got, line(g.Direction == "sent", g.SeqStart, g.SeqEnd, g.Ack, g.Flags, g.Window))
				if e.Sock.Local != addr(t, server.LocalAddr()) || e.Sock.Remote != addr(t, server.RemoteAddr()) {
					t.Errorf("line %d is of %+v", e.Seq, e.Sock)
				}
				switch e.Sock.Cookie {
				case mine:
					known++
				case 0:
				default:
					t.Errorf("line %d is of socket %d, want %d", e.Seq, e.Sock.Cookie, mine)
				}
			}
			for _, p := range capB.Packets() {
				ack := p.Ack
				if !p.Flags.Has(testlab.ACK) {
					ack = 0
				}
				want = append(want, line(p.Outgoing, p.Seq, p.SeqEnd(), ack, strings.ReplaceAll(p.Flags.String(), "|", ","), uint32(p.Window)))
			}
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("the lines say\n%s\nthe capture has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if known < 6 {
				t.Errorf("%d of %d segments are of a known socket", known, len(lines))
			}
		})
	}
}

// TestNotAsked: what is not asked for is neither loaded nor written.
func TestNotAsked(t *testing.T) {
	t.Parallel()
	s := stage(t, session.Config{})
	client, server := s.connect()
	send(t, client, 100)
	receive(t, server, 100)
	evs := s.finish()
	for _, p := range evs[0].Session.Programs {
		if strings.HasPrefix(p.Name, "sock_") {
			t.Errorf("%s is attached", p.Name)
		}
	}
	if len(evs[0].Session.With) != 0 || len(pick(evs, "io", nil))+len(pick(evs, "segment", nil)) != 0 {
		t.Errorf("with %q: %d io lines, %d segments", evs[0].Session.With, len(pick(evs, "io", nil)), len(pick(evs, "segment", nil)))
	}
	if n := evs[len(evs)-1].Summary.Kernel.ByProgram["wire"]; n != 0 {
		t.Errorf("%d segments were recorded at the edge", n)
	}
}
