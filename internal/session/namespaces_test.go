package session_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// TestTwins watches two pairs of namespaces that use the same addresses and
// ports at the same time, and faults one of them.
func TestTwins(t *testing.T) {
	t.Parallel()
	one1 := testlab.New(t)
	two := testlab.NewTwin(t, one1)
	one1.PinNeighbours()
	two.PinNeighbours()
	before := make(map[*testlab.Node]testlab.Counters)
	for _, n := range []*testlab.Node{one1.A, one1.B, two.A, two.B} {
		before[n] = n.Counters()
	}
	o := observe(t, one1.A.Name, one1.B.Name, two.A.Name, two.B.Name)
	const source = 41000
	type pair struct{ client, server *net.TCPConn }
	var pairs [2]pair
	for i, p := range []*testlab.Pair{one1, two} {
		l := p.B.Listen("tcp4", p.B.Addr(port).String())
		pairs[i].client, pairs[i].server = p.A.Connect(p.B, l, testlab.Bind(p.A.Addr(source)))
		send(t, pairs[i].client, 10+i)
		receive(t, pairs[i].server, 10+i)
	}
	if a, b := pairs[0].client, pairs[1].client; a.LocalAddr().String() != b.LocalAddr().String() || a.RemoteAddr().String() != b.RemoteAddr().String() {
		t.Fatalf("the twins differ: %v and %v", a.LocalAddr(), b.LocalAddr())
	}
	// One loses data and is reset, the other is closed in order.
	one1.B.Lose(dataTo(port, 1))
	send(t, pairs[0].client, 100)
	receive(t, pairs[0].server, 100)
	o.until("recovery", 5*time.Second, an("recovered", one1.A))
	send(t, pairs[1].client, 100)
	receive(t, pairs[1].server, 100)
	if err := pairs[0].server.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	cookies := map[string]uint64{
		one1.A.Name: cookie(t, pairs[0].client), one1.B.Name: cookie(t, pairs[0].server),
		two.A.Name: cookie(t, pairs[1].client), two.B.Name: cookie(t, pairs[1].server),
	}
	pairs[0].server.Close()
	pairs[1].client.Close()
	gone(t, pairs[1].server, io.EOF)
	pairs[1].server.Close()
	o.until("abort", 5*time.Second, an("abort", one1.A))
	for _, n := range []*testlab.Node{two.A, two.B} {
		o.until("close", 5*time.Second, func(e *events.Event) bool {
			return in(n)(e) && e.State != nil && e.State.New == "CLOSE"
		})
	}
	evs := o.stop()

	for n, b := range before {
		referee(t, n, b, evs)
	}
	for _, e := range evs {
		if e.Sock == nil || e.Sock.Cookie == 0 || e.Sock.Remote.Port() == 0 {
			continue
		}
		if want := cookies[e.Netns.Name]; e.Sock.Cookie != want && !(e.State != nil && e.State.Old == "LISTEN") {
			t.Errorf("line %d (%s) in %s: socket %d, want %d", e.Seq, e.Type, e.Netns.Name, e.Sock.Cookie, want)
		}
	}
	for _, n := range []*testlab.Node{two.A, two.B} {
		none(t, evs, in(n), "retransmit", "recovered", "reset", "abort", "error")
	}
	one(t, evs, "retransmit", in(one1.A))
	if a := one(t, evs, "abort", in(one1.A)); a.Abort.Cause != "reset-received" {
		t.Errorf("abort: %+v", a.Abort)
	}
	if a := one(t, evs, "abort", in(one1.B)); a.Abort.Cause != "linger-zero" {
		t.Errorf("abort: %+v", a.Abort)
	}
}

// peerExists says whether the node still has its end of the veth pair, which
// the kernel removes with the other one's namespace.
func peerExists(t *testing.T, n *testlab.Node) bool {
	t.Helper()
	err := n.Do(func() error {
		_, err := netlink.LinkByName(testlab.IfName)
		return err
	})
	if missing := (netlink.LinkNotFoundError{}); err != nil && !errors.As(err, &missing) {
		t.Fatal(err)
	}
	return err == nil
}

// TestNamespaceGone deletes a namespace with live sockets while it is watched,
// and makes another of the same name.
func TestNamespaceGone(t *testing.T) {
	t.Parallel()
	lab := testlab.New(t)
	lab.PinNeighbours()
	o := observe(t, lab.A.Name, lab.B.Name)
	l := lab.B.Listen("tcp4", lab.B.Addr(port).String())
	client, server := lab.A.Connect(lab.B, l)
	send(t, client, 10)
	receive(t, server, 10)
	inode := lab.B.Inode()

	deleted := testlab.MonoNow()
	lab.B.Release()
	e := o.until("end of the namespace", 5*time.Second, func(e *events.Event) bool {
		return an("target", lab.B)(e) && e.Target.Change == "gone"
	})
	if after := apart(e.MonoNS, deleted); after > 200*time.Millisecond || e.MonoNS < deleted {
		t.Errorf("told %v after the name was deleted", after)
	}
	if e.Netns.Generation != 1 || uint64(e.Netns.Inode) != inode || e.Target.Sockets != 2 {
		t.Errorf("gone: %+v %+v, want generation 1 with 2 sockets", e.Netns, e.Target)
	}
	// The sockets keep the namespace; nothing else may.
	if !peerExists(t, lab.A) {
		t.Error("the namespace went before its sockets")
	}
	server.Close()
	l.Close()
	client.Close()
	closed := time.Now()
	testlab.Eventually(t, 10*time.Second, func() bool { return !peerExists(t, lab.A) })
	if after := time.Since(closed); after > time.Second {
		t.Errorf("the namespace went %v after its last socket", after)
	}

	again := recreate(t, lab.B.Name)
	e = o.until("second generation", 5*time.Second, func(e *events.Event) bool {
		return an("target", lab.B)(e) && e.Target.Change == "attached" && e.Netns.Generation == 2
	})
	blind := time.Duration(e.Target.BlindNS)
	if real := apart(e.MonoNS, deleted); blind <= 0 || blind > real {
		t.Errorf("blind for %v, the name was deleted %v before", blind, real)
	}
	// It is watched like the first.
	listening := again.listen(t)
	o.until("listener in the second generation", 5*time.Second, func(e *events.Event) bool {
		return in(lab.B)(e) && e.Netns.Generation == 2 && e.State != nil && e.State.New == "LISTEN"
	})
	listening.Close()
	evs := o.stop()
	sum := evs[len(evs)-1].Summary
	generations := 0
	for _, n := range sum.Namespaces {
		if n.Netns.Name == lab.B.Name {
			generations++
			if n.Netns.Generation != generations || n.Events["state"] == 0 {
				t.Errorf("summary: %+v", n)
			}
		}
	}
	if generations != 2 {
		t.Errorf("%d generations in the summary", generations)
	}
}

// named is a namespace under a name of the test's choice.
type named struct {
	name string
	ns   netns.NsHandle
}

// recreate makes a namespace under a name that is free.
func recreate(t *testing.T, name string) *named {
	t.Helper()
	n := &named{name: name}
	err := onThread(func() (err error) {
		n.ns, err = netns.NewNamed(name)
		if err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		t.Fatalf("create network namespace %s: %v", name, err)
	}
	t.Cleanup(func() { n.delete(t) })
	return n
}

// onThread runs f on a thread that is not used again.
func onThread(f func() error) error {
	err := make(chan error)
	go func() {
		runtime.LockOSThread()
		err <- f()
	}()
	return <-err
}

func (n *named) delete(t *testing.T) {
	t.Helper()
	if !n.ns.IsOpen() {
		return
	}
	n.ns.Close()
	if err := netns.DeleteNamed(n.name); err != nil {
		t.Errorf("delete network namespace %s: %v", n.name, err)
	}
}

// listen opens a listener in the namespace, on loopback.
func (n *named) listen(t *testing.T) net.Listener {
	t.Helper()
	var l net.Listener
	err := onThread(func() (err error) {
		if err := netns.Set(n.ns); err != nil {
			return err
		}
		l, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatalf("listen in %s: %v", n.name, err)
	}
	return l
}

// holdings are what this process holds that must not grow: descriptors by what
// they are, goroutines and threads.
func holdings(t *testing.T) (fds map[string]int, goroutines int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	fds = make(map[string]int)
	for _, e := range entries {
		what, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil {
			continue // the directory itself
		}
		if kind, _, ok := strings.Cut(what, ":["); ok {
			what = kind // socket:[1], net:[2]
		}
		fds[what]++
	}
	return fds, runtime.NumGoroutine()
}

// same waits until what is held is what was held.
func same(t *testing.T, fds map[string]int, goroutines int) {
	t.Helper()
	var left string
	deadline := time.Now().Add(5 * time.Second)
	for {
		now, g := holdings(t)
		left = ""
		for what, n := range now {
			if n > fds[what] {
				left += fmt.Sprintf(" %s: %d, was %d", what, n, fds[what])
			}
		}
		if g > goroutines {
			left += fmt.Sprintf(" goroutines: %d, was %d", g, goroutines)
		}
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("left behind:%s", left)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestNamespaceComesAndGoes re-creates a watched namespace 20 times. Not
// parallel: it counts what the process holds.
func TestNamespaceComesAndGoes(t *testing.T) {
	testlab.Privileged(t)
	name := fmt.Sprintf("sw-%d-0-again", os.Getpid())
	ns := recreate(t, name)
	// The first session leaves what is made once, such as the poller.
	observe(t, name).stop()
	beforeFDs, beforeGoroutines := holdings(t)

	o := observe(t, name)
	baseFDs, baseGoroutines := holdings(t)
	const times = 20
	for i := range times {
		l := ns.listen(t)
		o.until("listener", 5*time.Second, func(e *events.Event) bool {
			return e.State != nil && e.State.New == "LISTEN" && e.Netns.Generation == i+1
		})
		ns.delete(t)
		o.until("end of the namespace", 5*time.Second, func(e *events.Event) bool {
			return e.Target != nil && e.Target.Change == "gone" && e.Netns.Generation == i+1
		})
		l.Close()
		ns = recreate(t, name)
		e := o.until("next generation", 5*time.Second, func(e *events.Event) bool {
			return e.Target != nil && e.Target.Change == "attached" && e.Netns.Generation == i+2
		})
		if e.Target.BlindNS == 0 || time.Duration(e.Target.BlindNS) > 5*time.Second {
			t.Errorf("generation %d: blind for %v", i+2, time.Duration(e.Target.BlindNS))
		}
	}
	same(t, baseFDs, baseGoroutines)
	evs := o.stop()
	if n := len(evs[len(evs)-1].Summary.Namespaces); n != times+1 {
		t.Errorf("%d generations in the summary, want %d", n, times+1)
	}
	same(t, beforeFDs, beforeGoroutines)
}

// TestManyNamespaces watches 500 at once. Not parallel: it counts what the
// process holds, and measures.
func TestManyNamespaces(t *testing.T) {
	testlab.Privileged(t)
	const count = 500
	nodes := testlab.NewNodes(t, count)
	names := make([]string, count)
	for i, n := range nodes {
		names[i] = n.Name
	}
	observe(t, names[0]).stop()
	fds, goroutines := holdings(t)

	start := time.Now()
	o := observeWith(t, session.Config{}, names...)
	attached := time.Since(start)
	if limit := testlab.Slack(20 * time.Second); attached > limit {
		t.Errorf("%d namespaces are watched after %v, want %v", count, attached, limit)
	}
	// A few of them, the first and the last too.
	some := []int{0, 1, 255, 256, 333, 498, 499}
	for _, i := range some {
		l := nodes[i].Listen("tcp4", "127.0.0.1:0")
		client, server := nodes[i].Connect(nodes[i], l)
		if err := server.SetLinger(0); err != nil {
			t.Fatal(err)
		}
		server.Close()
		client.Close()
		l.Close()
	}
	for _, i := range some {
		o.until("reset in "+names[i], 10*time.Second, func(e *events.Event) bool {
			return an("reset", nodes[i])(e) && e.Reset.Direction == "received"
		})
	}
	start = time.Now()
	o.cancel()
	<-o.done
	stopped := time.Since(start)
	evs := o.stop()
	if limit := testlab.Slack(10 * time.Second); stopped > limit {
		t.Errorf("stopped after %v, want %v", stopped, limit)
	}
	t.Logf("%d namespaces: watched after %v, stopped after %v", count, attached.Round(time.Millisecond), stopped.Round(time.Millisecond))

	if n := len(pick(evs, "target", func(e *events.Event) bool { return e.Target.Change == "attached" })); n != count {
		t.Errorf("%d namespaces attached", n)
	}
	busy := make(map[string]bool)
	for _, i := range some {
		busy[names[i]] = true
		none(t, evs, in(nodes[i]), "retransmit")
		// Loopback: both ends are in it.
		aborts := pick(evs, "abort", in(nodes[i]))
		if len(aborts) != 2 || len(pick(evs, "reset", in(nodes[i]))) != 2 {
			t.Errorf("%s: %d aborts and %d resets, want 2 and 2", names[i], len(aborts), len(pick(evs, "reset", in(nodes[i]))))
		}
		for _, e := range aborts {
			if uint64(e.Netns.Inode) != nodes[i].Inode() || e.Netns.Generation != 1 {
				t.Errorf("%s: abort in %+v", names[i], e.Netns)
			}
		}
	}
	for _, e := range evs {
		if e.Sock != nil && !busy[e.Netns.Name] {
			t.Errorf("line %d: %s in %s, where nothing happened", e.Seq, e.Type, e.Netns.Name)
		}
	}
	same(t, fds, goroutines)
}
