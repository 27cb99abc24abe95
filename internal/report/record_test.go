package report_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/report"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/target"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

var record = flag.Bool("record", false, "observe the scenes anew and write their evidence to testdata; needs root and a minute and a half")

const port = 8080

// scene is two joined namespaces, called client and worker in the evidence.
type scene struct {
	*testlab.Pair
	t        *testing.T
	names    []string // real name and name in the evidence, alternating
	sessions []*observed
}

// observed is a session that runs beside a scene.
type observed struct {
	file   string
	out    bytes.Buffer
	dir    string // of its control socket
	cancel context.CancelFunc
	done   chan error
}

type buffer struct{ *bytes.Buffer }

func (buffer) Close() error { return nil }

// newScene makes the namespaces. Nothing is watched yet.
func newScene(t *testing.T) *scene {
	t.Helper()
	testlab.Privileged(t)
	p := testlab.New(t)
	p.PinNeighbours()
	return &scene{Pair: p, t: t, names: []string{p.A.Name, "client", p.B.Name, "worker"}}
}

// observe watches namespaces from when it returns. The evidence goes to
// testdata/FILE.jsonl.
func (s *scene) observe(file string, nodes ...*testlab.Node) *observed {
	s.t.Helper()
	var names []string
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return s.observeTargets(file, names...)
}

func (s *scene) observeTargets(file string, names ...string) *observed {
	s.t.Helper()
	o := &observed{file: file, dir: filepath.Join(s.t.TempDir(), "control"), done: make(chan error, 1)}
	cfg := session.Config{ControlDir: o.dir, Version: "test", Command: []string{"sockwatch"}}
	for _, n := range names {
		spec, err := target.ParseSpec(n)
		if err != nil {
			s.t.Fatal(err)
		}
		cfg.Targets = append(cfg.Targets, spec)
		cfg.Command = append(cfg.Command, "--netns", n)
	}
	cfg.Sinks = []sink.Sink{sink.NewJSONL(buffer{&o.out})}
	ready := make(chan struct{})
	cfg.OnReady = func() error { close(ready); return nil }
	ctx, cancel := context.WithCancel(context.Background())
	o.cancel = cancel
	go func() {
		_, err := session.Run(ctx, cfg)
		o.done <- err
	}()
	select {
	case <-ready:
	case err := <-o.done:
		s.t.Fatalf("the session ended before it was ready: %v", err)
	}
	s.sessions = append(s.sessions, o)
	return o
}

// mark places a mark in every session, as sockwatch mark does.
func (s *scene) mark(kind, text string) {
	s.t.Helper()
	line, err := json.Marshal(map[string]any{"mark": map[string]any{
		"text": text, "kind": kind, "mono_ns": testlab.MonoNow(), "by": "scene[1]",
	}})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, o := range s.sessions {
		conn, err := net.Dial("unix", filepath.Join(o.dir, fmt.Sprintf("%d.sock", os.Getpid())))
		if err != nil {
			s.t.Fatal(err)
		}
		if _, err := conn.Write(append(line, '\n')); err != nil {
			s.t.Fatal(err)
		}
		answer, err := io.ReadAll(conn)
		conn.Close()
		if err != nil || !strings.Contains(string(answer), `"ok":true`) {
			s.t.Fatalf("mark: %s %v", answer, err)
		}
	}
}

// finish ends the sessions and returns their evidence, by file, under the
// names of the scene.
func (s *scene) finish() map[string]string {
	s.t.Helper()
	files := make(map[string]string)
	for _, o := range s.sessions {
		o.cancel()
		if err := <-o.done; err != nil {
			s.t.Fatalf("session: %v", err)
		}
		files[o.file] += strings.NewReplacer(s.names...).Replace(o.out.String())
	}
	return files
}

func (s *scene) connect(l *net.TCPListener, opts ...testlab.SockOpt) (client, server *net.TCPConn) {
	s.t.Helper()
	client, server = s.A.Connect(s.B, l, opts...)
	send(s.t, client, 4)
	receive(s.t, server, 4)
	send(s.t, server, 1)
	receive(s.t, client, 1)
	return client, server
}

func (s *scene) listen(opts ...testlab.SockOpt) *net.TCPListener {
	s.t.Helper()
	return s.B.Listen("tcp4", s.B.Addr(port).String(), opts...)
}

func send(t *testing.T, c net.Conn, n int) {
	t.Helper()
	if _, err := c.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c net.Conn, n int) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(90 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// gone waits until the peer's end is known to be over.
func gone(t *testing.T, c net.Conn, want error) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(90 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, want) {
		t.Errorf("read from a connection that ended: %v, want %v", err, want)
	}
}

// acknowledged waits until all that was sent is.
func acknowledged(t *testing.T, c *net.TCPConn) {
	t.Helper()
	testlab.Eventually(t, 10*time.Second, func() bool {
		info, err := testlab.Info(c)
		return err == nil && info.Unacked == 0
	})
}

// closed waits until the kernel has ended the connection.
func closed(t *testing.T, c *net.TCPConn) {
	t.Helper()
	const tcpClose = 7
	testlab.Eventually(t, 90*time.Second, func() bool {
		info, err := testlab.Info(c)
		return err == nil && info.State == tcpClose
	})
}

// finArrived waits for the peer's FIN.
func finArrived(t *testing.T, c *net.TCPConn) {
	t.Helper()
	const tcpCloseWait = 8
	testlab.Eventually(t, 10*time.Second, func() bool {
		info, err := testlab.Info(c)
		return err == nil && info.State == tcpCloseWait
	})
}

// echo answers what it receives, and is killed.
const echo = `package main

import (
	"io"
	"net"
)

func main() {
	l, err := net.Listen("tcp", ":8080")
	if err != nil {
		panic(err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			panic(err)
		}
		go io.Copy(c, c)
	}
}
`

func dataTo(port uint16, nth ...int) testlab.Loss {
	return testlab.Loss{DstPort: port, Mask: testlab.SYN, Nth: nth}
}

// scenes are what the evidence in testdata is of.
var scenes = map[string]func(t *testing.T) map[string]string{
	// 3 KB are sent into a network that is cut for 45 s. The other end is idle;
	// it probes every 15 s and has a user timeout of 20 s, as grpc-go sets them.
	"cut": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("cut-client", s.A)
		s.observe("cut-worker", s.B)
		l := s.listen()
		client, server := s.connect(l)
		if err := testlab.Set(server, testlab.UserTimeout(20*time.Second), testlab.KeepAlive(15*time.Second, 15*time.Second, 9)); err != nil {
			t.Fatal(err)
		}
		s.mark("applied", "link cut")
		begin := time.Now()
		cut := s.Cut()
		send(t, client, 3000)
		time.Sleep(45*time.Second - time.Since(begin))
		l.Close()
		s.mark("healed", "link healed")
		cut.Undo()
		gone(t, client, unix.ECONNRESET)
		return s.finish()
	},

	// The same for 4 s: a retransmission is answered, and both ends close.
	"heal": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("heal", s.A, s.B)
		client, server := s.connect(s.listen())
		cut := s.Cut()
		s.mark("applied", "link cut")
		send(t, client, 3000)
		time.Sleep(4 * time.Second)
		s.mark("healed", "link healed")
		cut.Undo()
		receive(t, server, 3000)
		client.Close()
		gone(t, server, io.EOF)
		server.Close()
		time.Sleep(100 * time.Millisecond)
		return s.finish()
	},

	// Every seventh segment of a transfer is lost once.
	"lossy": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.SmallSegments()
		s.observe("lossy", s.A, s.B)
		client, server := s.connect(s.listen())
		var nth []int
		for i := 30; i < 600; i += 70 {
			nth = append(nth, i)
		}
		s.B.Lose(dataTo(port, nth...))
		go client.Write(make([]byte, 1<<20))
		receive(t, server, 1<<20)
		client.Close()
		gone(t, server, io.EOF)
		server.Close()
		time.Sleep(100 * time.Millisecond)
		return s.finish()
	},

	// Nobody listens; then SYNs are lost, and SYN-ACKs.
	"handshake": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("handshake", s.A, s.B)
		if _, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String()); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatal(err)
		}
		syn := s.B.Lose(testlab.Loss{Mask: testlab.SYN | testlab.ACK, Want: testlab.SYN, Nth: []int{1, 2}})
		l := s.listen()
		client, _ := s.A.Connect(s.B, l)
		syn.Undo()
		client.Close()
		synack := s.A.Lose(testlab.Loss{Mask: testlab.SYN | testlab.ACK, Want: testlab.SYN | testlab.ACK, Nth: []int{1}})
		s.A.Connect(s.B, l)
		synack.Undo()
		return s.finish()
	},

	// Nobody reads for a while, a peer closes with data unread, another with a
	// linger of zero.
	"ends": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("ends", s.A, s.B)
		l := s.listen(testlab.ReceiveBuffer(4096))
		client, server := s.connect(l)
		wrote := make(chan error)
		go func() {
			_, err := client.Write(make([]byte, 100_000))
			wrote <- err
		}()
		time.Sleep(2 * time.Second)
		server.Close()
		if err := <-wrote; !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("write to a connection that was reset: %v", err)
		}
		client, server = s.connect(l)
		if err := server.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		server.Close()
		gone(t, client, unix.ECONNRESET)
		// The user timeout of the end that sends.
		client, _ = s.connect(l, testlab.UserTimeout(time.Second))
		cut := s.Cut()
		send(t, client, 5)
		gone(t, client, unix.ETIMEDOUT)
		cut.Undo()
		return s.finish()
	},

	// Two labs with the same addresses, and the same ports.
	"twins": func(t *testing.T) map[string]string {
		s := newScene(t)
		twin := testlab.NewTwin(t, s.Pair)
		twin.PinNeighbours()
		s.names = append(s.names, twin.A.Name, "client2", twin.B.Name, "worker2")
		s.observe("twins", s.A, s.B, twin.A, twin.B)
		bind := testlab.Bind(s.A.Addr(40000))
		l, l2 := s.listen(), twin.B.Listen("tcp4", twin.B.Addr(port).String())
		client, server := s.connect(l, bind)
		client2, server2 := twin.A.Connect(twin.B, l2, bind)
		s.B.Lose(dataTo(port, 1))
		twin.B.Lose(dataTo(port, 1, 2))
		send(t, client, 10)
		send(t, client2, 20)
		receive(t, server, 10)
		receive(t, server2, 20)
		acknowledged(t, client)
		acknowledged(t, client2)
		return s.finish()
	},

	// A subflow of Multipath TCP.
	"mptcp": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("mptcp", s.A, s.B)
		l := s.B.ListenMPTCP("tcp4", s.B.Addr(port).String())
		client := s.A.DialMPTCP("tcp4", s.B.Addr(port).String())
		server, err := l.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		send(t, client, 4)
		receive(t, server, 4)
		s.B.Lose(dataTo(port, 1))
		send(t, client, 10)
		receive(t, server, 10)
		acknowledged(t, client)
		return s.finish()
	},

	// The connection is older than the trace, and was being retransmitted.
	"born-before": func(t *testing.T) map[string]string {
		s := newScene(t)
		client, server := s.connect(s.listen())
		cut := s.Cut()
		send(t, client, 3000)
		testlab.Eventually(t, 10*time.Second, func() bool {
			info, err := testlab.Info(client)
			return err == nil && info.Retransmits >= 1
		})
		s.observe("born-before", s.A, s.B)
		time.Sleep(time.Second) // the next retransmission falls into the trace
		cut.Undo()
		receive(t, server, 3000)
		acknowledged(t, client)
		return s.finish()
	},

	// A namespace ends under its connection.
	"gone": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("gone", s.A, s.B)
		client, server := s.connect(s.listen())
		_ = server
		cut := s.Cut()
		send(t, client, 3000)
		time.Sleep(time.Second) // for retransmissions into the cut
		s.B.Delete()
		cut.Undo()
		time.Sleep(time.Second) // and one into nothing
		return s.finish()
	},

	// The server is killed with the link up, then the client writes.
	"killed": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("killed", s.A, s.B)
		client, server := s.connect(s.listen())
		server.Close()
		finArrived(t, client)
		// The acknowledgement of a FIN may wait for data.
		time.Sleep(300 * time.Millisecond)
		send(t, client, 15)
		closed(t, client)
		return s.finish()
	},

	// The server is killed behind a link that is down: its FIN cannot leave.
	// Then what the client writes cannot, behind its own.
	"unsent": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("unsent", s.A, s.B)
		l := s.listen()
		client, server := s.connect(l)
		down := s.B.LinkDown()
		s.mark("applied", "worker down")
		server.Close()
		// The FIN is tried again after 0.2, 0.6, 1.4 and 3 s.
		time.Sleep(1600 * time.Millisecond)
		down.Undo()
		s.mark("healed", "worker up")
		send(t, client, 15)
		gone(t, client, unix.ECONNRESET)

		client, _ = s.connect(l, testlab.UserTimeout(2*time.Second))
		down = s.A.LinkDown()
		s.mark("applied", "client down")
		send(t, client, 15)
		gone(t, client, unix.ETIMEDOUT)
		down.Undo()
		return s.finish()
	},

	// Somebody listens, but no SYN arrives.
	"unheard": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("unheard", s.A, s.B)
		client, _ := s.connect(s.listen())
		s.B.Lose(testlab.Loss{Mask: testlab.SYN | testlab.ACK, Want: testlab.SYN})
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if c, err := s.A.DialContext(ctx, "tcp", s.B.Addr(port).String()); err == nil {
			t.Fatalf("connected through a lost SYN: %v", c)
		}
		client.Close()
		return s.finish()
	},

	// A firewall refuses.
	"reject": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("reject", s.A, s.B)
		s.listen()
		s.B.RejectTCP(port, testlab.In)
		if _, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String()); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatal(err)
		}
		return s.finish()
	},

	// An idle connection whose keepalive probes are answered.
	"idle": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("idle", s.A, s.B)
		_, server := s.connect(s.listen())
		if err := testlab.Set(server, testlab.KeepAlive(time.Second, time.Second, 9)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3500 * time.Millisecond) // three keepalives, a second apart
		return s.finish()
	},

	// A process tries to connect until somebody listens.
	"tries": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("tries", s.A, s.B)
		for range 5 {
			if _, err := s.A.DialContext(t.Context(), "tcp", s.B.Addr(port).String()); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatal(err)
			}
		}
		s.connect(s.listen())
		return s.finish()
	},

	// A container is killed with a connection, and started again.
	"restart": func(t *testing.T) map[string]string {
		testlab.Privileged(t)
		d := testlab.NewDocker(t)
		network, prefix := d.Network()
		image := d.ImportBinary(echo)
		server := d.StartContainer(testlab.ContainerOptions{Image: image, Network: network, IP: prefix + "2"})
		host := d.StartContainer(testlab.ContainerOptions{Image: image, Network: network, IP: prefix + "3"})
		s := &scene{t: t, names: []string{"docker:" + host.Name(), "docker:client", "docker:" + server.Name(), "docker:worker", server.Name(), "worker", host.Name(), "client", network, "lab"}}
		s.observeTargets("restart", "docker:"+host.Name(), "docker:"+server.Name())
		var client *net.TCPConn
		err := host.Do(func() error {
			c, err := net.Dial("tcp", prefix+"2:8080")
			if err == nil {
				client = c.(*net.TCPConn)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		send(t, client, 4)
		receive(t, client, 4)
		s.mark("applied", "worker killed")
		server.Kill()
		finArrived(t, client)
		send(t, client, 13)
		time.Sleep(time.Second) // for retransmissions to nobody
		server.Start()
		closed(t, client)
		return s.finish()
	},

	// A port is used again while the other end still has the connection before.
	"reuse": func(t *testing.T) map[string]string {
		s := newScene(t)
		s.observe("reuse", s.A, s.B)
		l := s.listen()
		bind := testlab.Bind(s.A.Addr(40000))
		client, _ := s.connect(l, bind)
		cut := s.Cut()
		if err := client.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		client.Close()
		cut.Undo()
		client, server := s.A.Connect(s.B, l, bind)
		send(t, client, 10)
		receive(t, server, 10)
		return s.finish()
	},
}

// slow are the scenes that are observed only to be recorded.
var slow = []string{"cut", "restart"}

// parts of the story that each scene must have, whatever its times.
var parts = map[string][]string{
	"cut": {
		"worker's end gave up first, by keepalive", "client's end did not learn of it: the RST was not seen to arrive in client",
		"retransmission (rto) of client's end reached worker, whose socket had been gone", "client's end was reset: it accepted a RST sent by worker (NO_SOCKET)",
	},
	"heal": {
		"mark, applied: link cut", "3000 bytes of client's end were sent and not acknowledged", "1448 bytes arrived at worker's end",
		"retransmission of client's end was answered", "client's end closed first, in order",
	},
	"lossy":     {"client's end retransmitted", "answered within", "closed in order"},
	"handshake": {"found no socket: it was answered with a RST (NO_SOCKET)", "client's end was refused", "its process is told ECONNREFUSED", "the 2nd retransmission of client's end was answered", "worker retransmitted its SYN-ACK"},
	"ends": {
		"probes of a window that is shut", "all of them arrived in worker", "worker's end was closed by its process with", "bytes unread; it sent a RST (TCP_ABORT_ON_CLOSE)",
		"client's end was reset: it accepted a RST sent by worker's end (TCP_ABORT_ON_CLOSE)", "SO_LINGER on and a time of 0",
		"client's end gave up first: TCP_USER_TIMEOUT (1 s) had passed with 5 bytes not acknowledged", "worker's end did not learn of it",
	},
	"twins":       {"in client) →", "in worker)\n", "in client2) →", "in worker2)\n", "2 connections in 1 file"},
	"mptcp":       {"MPTCP subflow", "client's end retransmitted"},
	"born-before": {"client's end is older than the trace: ESTABLISHED, 3000 bytes not acknowledged", "in client) ↔", "in worker)\n", "client's end retransmitted"},
	"gone":        {"worker was no longer watched", "was not seen"},
	"killed": {
		"worker's end was closed first, at least for sending, by its process", "the peer's FIN arrived at client's end",
		"reached worker, whose socket had been closed for", "answered with a RST (TCP_TIMEWAIT_SOCKET)",
		"15 bytes were never acknowledged, and worker's end had received none of that in order; the FIN it had received was not read yet; its process is told EPIPE",
	},
	"unsent": {
		"worker's end ended because data arrived after its process had closed it; it sent a RST (TCP_ABORT_ON_DATA); the FIN was never sent",
		"client's end gave up first: TCP_USER_TIMEOUT (2 s) had passed with 15 bytes that did not leave its host, though the peer's window was open (", " of the probe timer failed; its process is told ETIMEDOUT",
	},
	"reject": {
		"a RST left worker that its TCP did not send (inferred: its firewall made it, or a program did)",
		"client's end was refused: a RST answered its SYN, sent by worker; its process is told ECONNREFUSED",
	},
	"idle":  {"1 connection in 1 file, none had trouble"},
	"tries": {"4 more connections of this kind ended like this, each within a second, the last at ", "6 connections in 1 file: 5 with trouble, 1 without"},
	"unheard": {
		"was no socket: worker has that address and was watched all the while, and no socket there took part in this connection, though one listened on that port",
		"client's end was closed by its process while it was connecting",
	},
	"restart": {
		"docker:worker's end was closed first, at least for sending, by its process", "docker:worker was no longer watched", "docker:worker came back as another namespace",
		"of docker:client's end reached docker:worker/2 and found", "docker:client's end was reset: it accepted a RST sent by docker:worker/2", "its process is told EPIPE",
	},
	"reuse": {"it sent a RST (TCP_STATE), which was not seen to arrive in worker", "sent by another socket of client with the same addresses", "it arrived in worker at another socket"},
}

// TestScenes observes real sockets and tells what happened to them. With
// -record it keeps the evidence.
func TestScenes(t *testing.T) {
	for name, scene := range scenes {
		if slices.Contains(slow, name) && !*record {
			continue // told from testdata
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files, r := play(t, scene)
			// The kernel's counters know of events that were not seen: what
			// such a session says of itself is told elsewhere.
			for range 2 {
				if incomplete(r) {
					t.Logf("observed again: %+v", r.Files)
					files, r = play(t, scene)
				}
			}
			if *record {
				for file, lines := range files {
					if err := os.WriteFile(filepath.Join("testdata", file+".jsonl"), []byte(lines), 0o644); err != nil {
						t.Fatal(err)
					}
				}
			}
			text := string(r.AppendText(nil))
			for _, part := range parts[name] {
				if !strings.Contains(text, part) {
					t.Errorf("no %q in\n%s", part, text)
				}
			}
		})
	}
}

func play(t *testing.T, scene func(*testing.T) map[string]string) (map[string]string, *report.Report) {
	t.Helper()
	files := scene(t)
	var c report.Collector
	for _, file := range slices.Sorted(maps.Keys(files)) {
		load(t, &c, file+".jsonl", files[file])
	}
	r, err := c.Report(report.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return files, r
}

func incomplete(r *report.Report) bool {
	for _, f := range r.Files {
		for _, s := range f.Sessions {
			if s.Verdict == "incomplete" {
				return true
			}
		}
	}
	return false
}
