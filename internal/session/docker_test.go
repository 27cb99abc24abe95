package session_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// containers is two of them on a network of their own: a client and a worker
// that it sends to, as in the experiment that asked for this tool.
type containers struct {
	*testlab.Docker
	t              *testing.T
	image, network string
	prefix         string
	client, worker *peer
}

const (
	clientHost = "2"
	workerHost = "3"
	workerPort = "8080"

	// patience is for what takes milliseconds, but for the engine in between.
	patience = 20 * time.Second
)

func newContainers(t *testing.T) *containers {
	testlab.Privileged(t)
	d := testlab.NewDocker(t)
	c := &containers{Docker: d, t: t, image: d.ImportBinary(filepath.Join("testdata", "peer"))}
	c.network, c.prefix = d.Network()
	c.client = c.start(testlab.ContainerOptions{Network: c.network, IP: c.prefix + clientHost})
	c.worker = c.start(testlab.ContainerOptions{Network: c.network, IP: c.prefix + workerHost})
	return c
}

func (c *containers) workerAddr() string { return c.prefix + workerHost + ":" + workerPort }

// connect opens a connection from client to worker and warms it.
func (c *containers) connect() {
	c.t.Helper()
	c.worker.must("listen " + c.workerAddr())
	c.client.must("dial " + c.workerAddr())
	c.worker.must("accept")
	c.client.must("send 4")
	c.worker.must("read 4")
}

// peer is a container that runs testdata/peer.
type peer struct {
	*testlab.Container
	t      *testing.T
	name   string
	conn   net.Conn
	answer *bufio.Scanner
}

func (c *containers) start(o testlab.ContainerOptions) *peer {
	c.t.Helper()
	o.Image = c.image
	if o.Name == "" {
		o.Name = c.UniqueName()
	}
	o.Args = []string{o.Name}
	p := &peer{Container: c.StartContainer(o), t: c.t, name: o.Name}
	p.dial()
	return p
}

// dial reaches the program, which takes a moment to start.
func (p *peer) dial() {
	p.t.Helper()
	var err error
	testlab.Eventually(p.t, patience, func() bool {
		err = p.Do(func() (err error) {
			p.conn, err = net.Dial("unix", "@"+p.name)
			return err
		})
		return err == nil
	})
	p.answer = bufio.NewScanner(p.conn)
	p.t.Cleanup(func() { p.conn.Close() })
}

// must asks p to do something, which must work, and returns its answer.
func (p *peer) must(command string) string {
	p.t.Helper()
	p.conn.SetDeadline(time.Now().Add(40 * time.Second))
	if _, err := fmt.Fprintln(p.conn, command); err != nil {
		p.t.Fatalf("%s: %s: %v", p.name, command, err)
	}
	if !p.answer.Scan() {
		p.t.Fatalf("%s: %s: no answer: %v", p.name, command, p.answer.Err())
	}
	answer, ok := strings.CutPrefix(p.answer.Text(), "ok")
	if !ok {
		p.t.Fatalf("%s: %s: %s", p.name, command, p.answer.Text())
	}
	return strings.TrimSpace(answer)
}

// inTarget reports whether an event is of a target, of any type if typ is empty.
func inTarget(target string, typ events.Type) func(*events.Event) bool {
	return func(e *events.Event) bool {
		return e.Netns != nil && e.Netns.Name == target && (typ == "" || e.Type == typ)
	}
}

func changed(target, change string) func(*events.Event) bool {
	return func(e *events.Event) bool { return inTarget(target, events.TypeTarget)(e) && e.Target.Change == change }
}

// pickAll returns the events of any type that satisfy f.
func pickAll(evs []events.Event, f func(*events.Event) bool) []events.Event {
	var out []events.Event
	for i := range evs {
		if f(&evs[i]) {
			out = append(out, evs[i])
		}
	}
	return out
}

// ofTarget are the target events of one change, of one target.
func ofTarget(evs []events.Event, target, change string) []events.Event {
	return pickAll(evs, changed(target, change))
}

func stateTo(target, state string) func(*events.Event) bool {
	return func(e *events.Event) bool { return inTarget(target, events.TypeState)(e) && e.State.New == state }
}

// TestDockerDisconnect: the worker is taken off its network under an open
// transfer and comes back. Its interface is gone meanwhile, and its socket
// knows nothing of it.
func TestDockerDisconnect(t *testing.T) {
	t.Parallel()
	c := newContainers(t)
	client, worker := c.client.name, "docker:"+c.worker.name
	o := observe(t, client, worker)
	c.connect()

	c.worker.Disconnect(c.network)
	off := o.until("disconnect", patience, changed(worker, "disconnected"))
	c.client.must("send 3000")
	o.until("third retransmission", patience, func(e *events.Event) bool {
		return inTarget(client, events.TypeRetransmit)(e) && e.Retransmit.Attempt == 3
	})
	back := testlab.MonoNow()
	c.worker.Connect(c.network, c.prefix+workerHost)
	on := o.until("connect", patience, changed(worker, "connected"))
	c.worker.must("read 3000")
	recovered := o.until("recovery", patience, inTarget(client, events.TypeRecovered))
	evs := o.stop()

	for change, want := range map[string]int{"attached": 1, "disconnected": 1, "connected": 1, "gone": 0, "paused": 0} {
		if n := len(ofTarget(evs, worker, change)); n != want {
			t.Errorf("%d target events %s of the worker, want %d", n, change, want)
		}
	}
	if n := len(pickAll(evs, inTarget(client, events.TypeTarget))); n != 1 {
		t.Errorf("%d target events of the client, want only the attach", n)
	}
	for _, e := range []events.Event{off, on} {
		if e.Target.Detail != c.network || e.Target.Container != c.worker.ID || e.Netns.Generation != 1 || e.Netns.Inode == 0 {
			t.Errorf("%s: %+v %+v", e.Target.Change, e.Target, e.Netns)
		}
	}
	if s := pickAll(evs, func(e *events.Event) bool {
		return inTarget(worker, "")(e) && e.Sock != nil && e.MonoNS > off.MonoNS && e.MonoNS < back
	}); len(s) != 0 {
		t.Errorf("the worker's sockets noticed: %d events, first a %s", len(s), s[0].Type)
	}

	// The client's run: into nothing until the interface is back, then answered.
	run := pick(evs, events.TypeRetransmit, func(e *events.Event) bool { return inTarget(client, "")(e) && e.MonoNS < recovered.MonoNS })
	if len(run) < 4 {
		t.Fatalf("%d retransmissions before the recovery, want at least 4", len(run))
	}
	for i, e := range run {
		r, want := e.Retransmit, "rto"
		if i == 0 {
			want = "tlp"
		}
		if r.Cause != want || r.Attempt != uint32(i+1) || r.SendError != "" || e.MonoNS < off.MonoNS {
			t.Errorf("retransmission %d: %+v", i+1, r)
		}
		if i == 0 {
			continue
		}
		announced, took := time.Duration(run[i-1].Retransmit.NextDueMs)*time.Millisecond, apart(e.MonoNS, run[i-1].MonoNS)
		if took < announced-10*time.Millisecond || took > announced+announced/8+100*time.Millisecond {
			t.Errorf("retransmission %d came after %v, announced for %v", i+1, took, announced)
		}
	}
	last := run[len(run)-1]
	r := recovered.Recovered
	if !r.Exact || r.Retransmits != uint32(len(run)) || r.Answered+1 < r.Retransmits || r.AckedBytes == 0 || r.StalledUs/1000 != (recovered.MonoNS-run[0].MonoNS)/1e6 {
		t.Errorf("recovered: %+v after %d retransmissions", r, len(run))
	}
	if last.MonoNS < back {
		t.Errorf("the last retransmission was sent before the worker was back")
	}
	arrivals := pick(evs, events.TypeArrival, inTarget(worker, ""))
	if len(arrivals) != 1 {
		t.Fatalf("%d arrivals at the worker, want 1", len(arrivals))
	}
	a := arrivals[0]
	if a.Arrival.Segment.SeqStart != last.Retransmit.SeqStart || a.MonoNS < last.MonoNS || a.MonoNS > recovered.MonoNS || a.Arrival.SilenceMs < 1000 {
		t.Errorf("arrival: %+v", a.Arrival)
	}
	if a.Owner == nil || int(a.Owner.PID) != c.worker.PID() || a.Owner.Comm != "app" {
		t.Errorf("owner of the worker's socket: %+v, want process %d", a.Owner, c.worker.PID())
	}
	if n := len(pick(evs, events.TypeAbort, nil)) + len(pick(evs, events.TypeReset, nil)) + len(pick(evs, events.TypeError, nil)); n != 0 {
		t.Errorf("%d aborts, resets and errors of a connection that lived on", n)
	}
}

// TestDockerCutOffSender: the worker sends while it is off the network. The
// kernel has no route and so never sends: it keeps the data, probes with the
// timer of a closed window, and gives up by the user timeout. The client
// learns of it by the reset of a listener that does not know its connection.
func TestDockerCutOffSender(t *testing.T) {
	t.Parallel()
	c := newContainers(t)
	client, worker := c.client.name, "docker:"+c.worker.name
	o := observe(t, client, worker)
	c.connect()
	c.worker.must("user-timeout 3000")

	c.worker.Disconnect(c.network)
	o.until("disconnect", patience, changed(worker, "disconnected"))
	sent := testlab.MonoNow()
	c.worker.must("send 1000")
	gaveUp := o.until("abort of the worker", patience, inTarget(worker, events.TypeAbort))
	c.worker.Connect(c.network, c.prefix+workerHost)
	o.until("connect", patience, changed(worker, "connected"))
	c.client.must("send 100")
	learnt := o.until("abort of the client", patience, inTarget(client, events.TypeAbort))
	evs := o.stop()

	if a := gaveUp.Abort; a.Cause != "user-timeout" || a.By != "local" || a.State != "ESTABLISHED" {
		t.Errorf("abort of the worker: %+v", a)
	}
	if s := gaveUp.TCP; s.UnsentBytes != 1000 || s.UnackedBytes != 0 || s.UserTimeoutMs != 3000 || s.ProbesOut == 0 {
		t.Errorf("the worker's socket at its end: %+v", s)
	}
	if took := apart(gaveUp.MonoNS, sent); took < 2900*time.Millisecond || took > 5*time.Second {
		t.Errorf("the worker gave up after %v, want 3 s", took)
	}
	for _, typ := range []events.Type{events.TypeRetransmit, events.TypeProbe} {
		if n := len(pick(evs, typ, inTarget(worker, ""))); n != 0 {
			t.Errorf("%d events of type %s: nothing can have been sent", n, typ)
		}
	}
	if e := pick(evs, events.TypeError, inTarget(worker, "")); len(e) != 1 || e[0].Error.Name != "ETIMEDOUT" || e[0].Sock.Cookie != gaveUp.Sock.Cookie {
		t.Errorf("errors of the worker: %+v", e)
	}

	resets := pick(evs, events.TypeReset, nil)
	if len(resets) != 2 {
		t.Fatalf("%d resets, want one sent and one received", len(resets))
	}
	out, got := resets[0], resets[1]
	if out.Netns.Name != worker {
		out, got = got, out
	}
	if x := out.Reset; x.Direction != "sent" || x.Socket || x.Trigger == nil || x.Trigger.SeqEnd-x.Trigger.SeqStart != 100 || out.Sock.Cookie != 0 {
		t.Errorf("the worker's reset: %+v", x)
	}
	if x := got.Reset; x.Direction != "received" || !x.Socket || got.Sock.Local != out.Sock.Remote || got.Sock.Remote != out.Sock.Local {
		t.Errorf("the client's reset: %+v %+v", x, got.Sock)
	}
	if a := learnt.Abort; a.Cause != "reset-received" || a.By != "peer" || learnt.TCP.UnackedBytes != 100 {
		t.Errorf("abort of the client: %+v", a)
	}
}

// TestDockerPause: a frozen process does not answer, but its kernel does.
// Data, FIN and new connections are acknowledged, and wait.
func TestDockerPause(t *testing.T) {
	t.Parallel()
	c := newContainers(t)
	client, worker := c.client.name, "docker:"+c.worker.name
	o := observeWith(t, session.Config{ArrivalThreshold: 300 * time.Millisecond}, client, worker)
	c.connect()

	c.worker.Pause()
	frozen := o.until("pause", patience, changed(worker, "paused"))
	arrive := func(n int) events.Event { // each after a silence
		t.Helper()
		before := len(pick(o.events(), events.TypeArrival, inTarget(worker, "")))
		time.Sleep(400 * time.Millisecond)
		c.client.must(fmt.Sprintf("send %d", n))
		var last events.Event
		o.until("arrival", patience, func(*events.Event) bool {
			a := pick(o.events(), events.TypeArrival, inTarget(worker, ""))
			if len(a) == before {
				return false
			}
			last = a[len(a)-1]
			return true
		})
		return last
	}
	first, second := arrive(3000), arrive(2000)
	c.client.must("close-write")
	o.until("FIN acknowledged", patience, stateTo(client, "FIN_WAIT2"))
	fin := o.until("FIN received", patience, stateTo(worker, "CLOSE_WAIT"))
	c.client.must("dial " + c.workerAddr()) // completes up to the backlog
	thawing := testlab.MonoNow()
	c.worker.Unpause()
	thawed := o.until("unpause", patience, changed(worker, "unpaused"))
	if got := c.worker.must("drain"); got != "5000" {
		t.Errorf("the worker read %s bytes, want 5000", got)
	}
	c.worker.must("close")
	o.until("end of the client's socket", patience, stateTo(client, "CLOSE"))
	evs := o.stop()

	for change, want := range map[string]int{"attached": 1, "paused": 1, "unpaused": 1, "gone": 0} {
		if n := len(ofTarget(evs, worker, change)); n != want {
			t.Errorf("%d target events %s of the worker, want %d", n, change, want)
		}
	}
	if frozen.Target.Container != c.worker.ID || thawed.Target.Container != c.worker.ID || frozen.MonoNS > first.MonoNS || thawed.MonoNS < thawing {
		t.Errorf("paused %+v, unpaused %+v", frozen, thawed)
	}
	// What the frozen process has not read is what came.
	for _, tt := range []struct {
		what   string
		e      events.Event
		unread uint32
	}{
		{"first data", first, 0},
		{"more data", second, 3000},
		{"FIN", fin, 5001}, // it counts one
	} {
		if tt.e.TCP.UnreadBytes != tt.unread {
			t.Errorf("%s: %d bytes unread, want %d", tt.what, tt.e.TCP.UnreadBytes, tt.unread)
		}
		if tt.e.MonoNS < frozen.MonoNS || tt.e.MonoNS > thawing {
			t.Errorf("%s came while the worker ran", tt.what)
		}
		if tt.e.Owner == nil || int(tt.e.Owner.PID) != c.worker.PID() {
			t.Errorf("%s: owner %+v", tt.what, tt.e.Owner)
		}
	}
	if first.Arrival.Bytes != 3000 || second.Arrival.Bytes != 2000 {
		t.Errorf("%d and %d bytes arrived", first.Arrival.Bytes, second.Arrival.Bytes)
	}
	// Nothing was sent twice: all of it was acknowledged at once.
	for _, typ := range []events.Type{events.TypeRetransmit, events.TypeReset, events.TypeAbort, events.TypeError, events.TypeProbe} {
		if n := len(pick(evs, typ, nil)); n != 0 {
			t.Errorf("%d events of type %s", n, typ)
		}
	}
	// The second connection was made while nobody could accept it.
	made := pickAll(evs, func(e *events.Event) bool {
		return stateTo(worker, "ESTABLISHED")(e) && e.MonoNS > frozen.MonoNS && e.MonoNS < thawing
	})
	if len(made) != 1 || made[0].State.Old != "SYN_RECV" || made[0].Owner == nil || made[0].Owner.Via != "listener" {
		t.Errorf("connections made while the worker was frozen: %+v", made)
	}
}

// TestDockerKillStart: the worker is killed and started, twice: with data it
// had not read, and without.
func TestDockerKillStart(t *testing.T) {
	t.Parallel()
	c := newContainers(t)
	client, worker := c.client.name, "docker:"+c.worker.name
	o := observe(t, client, worker)
	generation := func(change string, n int) events.Event {
		t.Helper()
		return o.until(fmt.Sprintf("generation %d %s", n, change), 2*patience, func(e *events.Event) bool {
			return changed(worker, change)(e) && e.Netns.Generation == n
		})
	}
	abort := func(n int) events.Event {
		t.Helper()
		o.until(fmt.Sprintf("abort %d of the client", n), 2*patience, func(*events.Event) bool {
			return len(pick(o.events(), events.TypeAbort, inTarget(client, ""))) == n
		})
		return pick(o.events(), events.TypeAbort, inTarget(client, ""))[n-1]
	}
	one := generation("attached", 1)

	// With 3000 bytes unread: the dying process resets the connection.
	c.connect()
	c.client.must("send 3000")
	c.worker.Kill()
	goneOne := generation("gone", 1)
	reset := abort(1)
	c.worker.Start()
	two := generation("attached", 2)
	c.worker.dial()

	// With nothing unread it says FIN. What the client sends then finds nobody,
	// until the worker is back and knows nothing of it.
	c.connect()
	c.worker.Kill()
	goneTwo := generation("gone", 2)
	o.until("FIN at the client", patience, stateTo(client, "CLOSE_WAIT"))
	c.client.must("send 100")
	started := testlab.MonoNow()
	c.worker.Start()
	three := generation("attached", 3)
	lost := abort(2)
	evs := o.stop()

	if a := reset.Abort; a.Cause != "reset-received" || a.By != "peer" || a.State != "ESTABLISHED" {
		t.Errorf("the client's first abort: %+v", a)
	}
	died := pick(evs, events.TypeAbort, inTarget(worker, ""))
	if len(died) != 1 || died[0].Abort.Cause != "close-with-unread-data" || died[0].Abort.By != "local" || died[0].TCP.UnreadBytes != 3000 || died[0].Netns.Generation != 1 {
		t.Errorf("aborts of the worker: %+v", died)
	}
	sent := pick(evs, events.TypeReset, func(e *events.Event) bool { return inTarget(worker, "")(e) && e.Netns.Generation == 1 })
	if len(sent) != 1 || sent[0].Reset.Direction != "sent" || !sent[0].Reset.Socket {
		t.Fatalf("resets of the worker: %+v", sent)
	}
	if reason := "TCP_ABORT_ON_CLOSE"; !o.blind("resets sent carry no reason") && sent[0].Reset.Reason != reason {
		t.Errorf("the worker's reset has reason %q, want %s", sent[0].Reset.Reason, reason)
	}
	if a := lost.Abort; a.Cause != "reset-received" || a.By != "peer" || a.State != "CLOSE_WAIT" || lost.MonoNS < started || lost.TCP.UnackedBytes != 100 {
		t.Errorf("the client's second abort: %+v", a)
	}
	if n := len(pick(evs, events.TypeRetransmit, func(e *events.Event) bool {
		return inTarget(client, "")(e) && e.Sock.Cookie == lost.Sock.Cookie && e.MonoNS > goneTwo.MonoNS
	})); n == 0 {
		t.Error("the client did not retransmit into nothing")
	}

	// Each generation is a namespace of its own.
	if one.Netns.Cookie == two.Netns.Cookie || two.Netns.Cookie == three.Netns.Cookie {
		t.Errorf("cookies %d, %d and %d", one.Netns.Cookie, two.Netns.Cookie, three.Netns.Cookie)
	}
	if one.Target.BlindNS != 0 || two.Target.BlindNS != two.MonoNS-goneOne.MonoNS || three.Target.BlindNS != three.MonoNS-goneTwo.MonoNS {
		t.Errorf("blind for %d, %d and %d ns", one.Target.BlindNS, two.Target.BlindNS, three.Target.BlindNS)
	}
	for _, e := range []events.Event{one, goneOne, two, goneTwo, three} {
		if e.Target.Container != c.worker.ID {
			t.Errorf("%s: container %s, want %s", e.Target.Change, e.Target.Container, c.worker.ID)
		}
	}
	alive := map[int][2]uint64{1: {one.MonoNS, goneOne.MonoNS}, 2: {two.MonoNS, goneTwo.MonoNS}, 3: {three.MonoNS, 1 << 62}}
	sockets := map[uint64]int{}
	for _, e := range pickAll(evs, inTarget(worker, "")) {
		if e.Sock == nil || e.Type == events.TypeInventory {
			continue
		}
		if at := alive[e.Netns.Generation]; e.MonoNS < at[0] || e.MonoNS > at[1]+uint64(time.Second) {
			t.Errorf("a %s of generation %d at %d, which lived from %d to %d", e.Type, e.Netns.Generation, e.MonoNS, at[0], at[1])
		}
		if was, ok := sockets[e.Sock.Cookie]; ok && was != e.Netns.Generation && e.Sock.Cookie != 0 {
			t.Errorf("socket %d is of generations %d and %d", e.Sock.Cookie, was, e.Netns.Generation)
		}
		sockets[e.Sock.Cookie] = e.Netns.Generation
	}
	listening := map[int]int{}
	for _, e := range pickAll(evs, stateTo(worker, "LISTEN")) {
		listening[e.Netns.Generation]++
	}
	if listening[1] != 1 || listening[2] != 1 || listening[3] != 0 {
		t.Errorf("listeners by generation: %v", listening)
	}
	counted := map[int]bool{}
	for _, n := range evs[len(evs)-1].Summary.Namespaces {
		if n.Netns.Name == worker {
			counted[n.Netns.Generation] = true
		}
	}
	if len(counted) != 3 {
		t.Errorf("the summary counts generations %v of the worker", counted)
	}
}

// TestDockerRemoved: a container that was removed is waited for by its name.
func TestDockerRemoved(t *testing.T) {
	t.Parallel()
	c := newContainers(t)
	worker := c.worker.name
	o := observe(t, worker)
	c.worker.must("listen " + c.workerAddr())
	c.worker.Remove()
	gone := o.until("gone", 2*patience, changed(worker, "gone"))
	next := c.start(testlab.ContainerOptions{Name: worker, Network: c.network, IP: c.prefix + workerHost})
	back := o.until("the next of its name", 2*patience, func(e *events.Event) bool {
		return changed(worker, "attached")(e) && e.Netns.Generation == 2
	})
	next.must("listen " + c.workerAddr())
	o.until("its listener", patience, func(e *events.Event) bool {
		return stateTo(worker, "LISTEN")(e) && e.Netns.Generation == 2
	})
	evs := o.stop()

	if gone.Target.Container != c.worker.ID || back.Target.Container != next.ID || next.ID == c.worker.ID {
		t.Errorf("gone %+v, back %+v", gone.Target, back.Target)
	}
	if back.Target.BlindNS == 0 || back.Netns.Cookie == gone.Netns.Cookie {
		t.Errorf("back: %+v %+v", back.Target, back.Netns)
	}
	if n := len(ofTarget(evs, worker, "gone")); n != 1 {
		t.Errorf("gone %d times", n)
	}
	// Its listener ended with it, before it was gone: an orderly end.
	closed := pickAll(evs, func(e *events.Event) bool { return stateTo(worker, "CLOSE")(e) && e.State.Old == "LISTEN" })
	if len(closed) != 1 || closed[0].Netns.Generation != 1 {
		t.Errorf("ends of listeners: %+v", closed)
	}
	if n := len(pick(evs, events.TypeAbort, nil)); n != 0 {
		t.Errorf("%d aborts", n)
	}
}

// TestDockerShared: two containers, one namespace (network container:NAME).
// It is watched once, as long as one of them is there, and each end of a
// connection between them is its own process's.
func TestDockerShared(t *testing.T) {
	t.Parallel()
	c := newContainers(t)
	guest := c.start(testlab.ContainerOptions{Network: "container:" + c.worker.name})
	host := c.worker.name
	o := observe(t, host, "docker:"+guest.name)
	// Both listen and connect in it.
	addr := guest.must("listen 127.0.0.1:0")
	c.worker.must("dial " + addr)
	guest.must("accept")
	c.worker.Kill()
	o.until("end of the first", 2*patience, changed("docker:"+guest.name, "renamed"))
	o.until("FIN at the second", patience, func(e *events.Event) bool { return e.State != nil && e.State.New == "CLOSE_WAIT" })
	more := guest.must("listen 127.0.0.1:0") // still watched
	guest.must("dial " + more)
	port := func(e *events.Event) bool {
		return e.State != nil && e.Sock.Remote.String() == more && e.State.New == "ESTABLISHED"
	}
	late := o.until("a connection after it", patience, port)
	evs := o.stop()

	if late.Netns.Name != "docker:"+guest.name || late.Netns.Generation != 1 || late.Owner == nil || int(late.Owner.PID) != guest.PID() {
		t.Errorf("after the end of the first: %+v, owner %+v, want process %d", late.Netns, late.Owner, guest.PID())
	}
	// Each end of a connection is told once, and belongs to its own process.
	both := pickAll(evs, func(e *events.Event) bool {
		return e.State != nil && e.State.New == "ESTABLISHED" && (e.Sock.Remote.String() == addr || e.Sock.Local.String() == addr)
	})
	owners := map[uint32]int{}
	for _, e := range both {
		if e.Owner != nil {
			owners[e.Owner.PID]++
		}
	}
	if len(both) != 2 || len(owners) != 2 || owners[uint32(guest.PID())] != 1 {
		t.Errorf("%d ends of one connection, owners %v", len(both), owners)
	}
}

// TestDockerHost: a container without a namespace of its own (network host).
func TestDockerHost(t *testing.T) {
	t.Parallel()
	c := newContainers(t)
	p := c.start(testlab.ContainerOptions{Network: "host"})
	name := "docker:" + p.name
	o := observe(t, name)
	addr := p.must("listen 127.0.0.1:0")
	p.must("dial " + addr)
	p.must("accept")
	p.must("send 10")
	pid := uint32(p.PID())
	var host, its unix.Stat_t
	if err := errors.Join(unix.Stat("/proc/self/ns/net", &host), unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &its)); err != nil {
		t.Fatal(err)
	}
	mine := func(e *events.Event) bool {
		return e.Sock != nil && (e.Sock.Local.String() == addr || e.Sock.Remote.String() == addr)
	}
	p.Kill()
	gone := o.until("gone", 2*patience, changed(name, "gone"))
	evs := o.stop()

	if host.Ino != its.Ino || gone.Netns.Inode != uint32(host.Ino) {
		t.Errorf("namespace %d was watched, the container's is %d, the host's %d", gone.Netns.Inode, its.Ino, host.Ino)
	}
	// The listener answers the end of both its sockets; they die with 10 bytes unread.
	states := map[string]int{}
	for _, e := range pick(evs, events.TypeState, mine) {
		states[e.State.Old+" "+e.State.New]++
		if e.Owner == nil || e.Owner.PID != pid || e.Netns.Name != name {
			t.Errorf("%+v of %+v, want process %d", e.State, e.Owner, pid)
		}
	}
	if states["CLOSE LISTEN"] != 1 || states["SYN_SENT ESTABLISHED"] != 1 || states["SYN_RECV ESTABLISHED"] != 1 || states["LISTEN CLOSE"] != 1 {
		t.Errorf("states: %v", states)
	}
}
