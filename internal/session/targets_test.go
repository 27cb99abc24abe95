package session_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockwatch/sockwatch/internal/events"
	"github.com/sockwatch/sockwatch/internal/session"
	"github.com/sockwatch/sockwatch/internal/sink"
	"github.com/sockwatch/sockwatch/internal/testlab"
)

// processIn starts a process that does nothing in the node's namespace.
func processIn(t *testing.T, n *testlab.Node) (name string, kill func()) {
	t.Helper()
	cmd := exec.Command("nsenter", "--net=/run/netns/"+n.Name, "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(kill)
	testlab.Eventually(t, 10*time.Second, func() bool {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
		return err == nil && to == fmt.Sprintf("net:[%d]", n.Inode())
	})
	return fmt.Sprintf("pid:%d", cmd.Process.Pid), kill
}

// aborts opens a connection in the node, over loopback, and resets it.
func aborts(t *testing.T, n *testlab.Node) {
	t.Helper()
	l := n.Listen("tcp4", "127.0.0.1:0")
	client, server := n.Connect(n, l)
	if err := server.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	server.Close()
	gone(t, client, unix.ECONNRESET)
	client.Close()
	l.Close()
}

// TestAliasLives: of two targets that name one namespace the first ends. What
// happens from then on is of the other, which nobody may take for gone.
func TestAliasLives(t *testing.T) {
	t.Parallel()
	testlab.Privileged(t)
	n := testlab.NewNodes(t, 1)[0]
	pid, kill := processIn(t, n)
	o := observe(t, pid, n.Name)
	held := n.Listen("tcp4", "127.0.0.1:0") // a socket that lives under both names
	aborts(t, n)
	o.until("abort under the first name", 5*time.Second, inTarget(pid, events.TypeAbort))

	killed := testlab.MonoNow()
	kill()
	renamed := o.until("the other name", 5*time.Second, changed(n.Name, "renamed"))
	if late := apart(renamed.MonoNS, killed); renamed.MonoNS < killed || late > time.Second {
		t.Errorf("renamed %v after the process was killed", late)
	}
	was := events.Netns{Name: pid, Generation: 1, Inode: uint32(n.Inode()), Cookie: renamed.Netns.Cookie}
	if renamed.Target.Formerly == nil || *renamed.Target.Formerly != was || renamed.Netns.Generation != 1 || !strings.Contains(renamed.Target.Detail, "ended") {
		t.Errorf("renamed: %+v %+v", renamed.Netns, renamed.Target)
	}
	aborts(t, n)
	o.until("abort under the other name", 5*time.Second, inTarget(n.Name, events.TypeAbort))
	held.Close()
	o.until("end of the held socket", 5*time.Second, func(e *events.Event) bool {
		return inTarget(n.Name, events.TypeState)(e) && e.State.Old == "LISTEN" && e.Sock.Local.String() == held.Addr().String()
	})
	evs := o.stop()

	for _, e := range evs {
		if want := pid; e.Sock != nil {
			if e.Seq > renamed.Seq {
				want = n.Name
			}
			if e.Netns.Name != want {
				t.Errorf("line %d, a %s, is of %s, want %s", e.Seq, e.Type, e.Netns.Name, want)
			}
		}
	}
	alias := ofTarget(evs, pid, "alias")
	if len(alias) != 1 || alias[0].Target.Alias != n.Name {
		t.Errorf("alias lines: %+v", alias)
	}
	for _, name := range []string{pid, n.Name} {
		if gone := ofTarget(evs, name, "gone"); len(gone) != 0 {
			t.Errorf("%s is said to be gone: %+v", name, gone[0].Target)
		}
	}
	sum := evs[len(evs)-1].Summary
	if len(sum.Namespaces) != 1 || sum.Namespaces[0].Netns != *renamed.Netns || len(sum.Namespaces[0].Formerly) != 1 || sum.Namespaces[0].Formerly[0] != was {
		t.Fatalf("summary: %+v", sum.Namespaces)
	}
	if v := sum.Verdict; v.State != "complete" {
		t.Errorf("verdict: %+v", v)
	}
}

// goneClock notes when it was told of the end of each target.
type goneClock struct {
	mu   sync.Mutex
	told map[string]uint64
}

func (g *goneClock) Write(e *events.Event) error {
	if e.Target != nil && e.Target.Change == "gone" {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.told[e.Netns.Name] = testlab.MonoNow()
	}
	return nil
}

func (g *goneClock) Flush() error { return nil }
func (g *goneClock) Close() error { return nil }

func (g *goneClock) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.told)
}

// TestManyGone deletes many watched namespaces at once: each is let go of at
// once, or what the user deleted lives on. Not parallel: it counts what the
// process holds, and measures.
func TestManyGone(t *testing.T) {
	testlab.Privileged(t)
	const count = 300
	nodes := testlab.NewNodes(t, count)
	names := make([]string, count)
	for i, n := range nodes {
		names[i] = n.Name
	}
	clock := &goneClock{told: make(map[string]uint64)}
	o := observeWith(t, session.Config{Sinks: []sink.Sink{clock}}, names...)
	watching, goroutines := holdings(t)
	deleted := make(map[string]uint64)
	for _, n := range nodes {
		deleted[n.Name] = testlab.MonoNow()
		n.Release()
	}
	over := testlab.MonoNow()
	testlab.Eventually(t, 20*time.Second, func() bool { return clock.count() == count })
	var late []time.Duration
	last := uint64(0)
	for name, at := range clock.told {
		late = append(late, time.Duration(at-deleted[name]))
		last = max(last, at)
	}
	slices.Sort(late)
	// Deleting takes a millisecond each, and no longer when many are.
	median, most := late[count/2], late[count-1]
	t.Logf("deleted in %v; let go of %v later (median), %v (at most)", time.Duration(over-deleted[names[0]]), median, most)
	if limit := testlab.Slack(500 * time.Millisecond); most > limit {
		t.Errorf("let go of %v after it was deleted (median %v), want %v at most", most, median, limit)
	}
	watching["net"] -= count // each was a descriptor, beside its links
	same(t, watching, goroutines)
	evs := o.stop()
	for _, e := range pick(evs, events.TypeTarget, func(e *events.Event) bool { return e.Target.Change == "gone" }) {
		if e.MonoNS < deleted[e.Netns.Name] || e.MonoNS > clock.told[e.Netns.Name] {
			t.Errorf("%s: gone at %d, deleted at %d", e.Netns.Name, e.MonoNS, deleted[e.Netns.Name])
		}
	}
}

// TestDockerSharedLives: of two containers that share a network the one that
// has it ends. The other is watched on, under its own name.
func TestDockerSharedLives(t *testing.T) {
	t.Parallel()
	c := newContainers(t)
	owner, guest := c.client.name, c.start(testlab.ContainerOptions{Network: "container:" + c.client.name})
	o := observe(t, owner, "docker:"+guest.name)
	talk := func() {
		t.Helper()
		guest.must("dial " + guest.must("listen 127.0.0.1:0"))
		guest.must("accept")
	}
	talk()
	o.until("connection under the owner's name", patience, stateTo(owner, "ESTABLISHED"))
	c.client.Kill()
	renamed := o.until("the guest's name", patience, changed("docker:"+guest.name, "renamed"))
	talk()
	o.until("connection under the guest's name", patience, stateTo("docker:"+guest.name, "ESTABLISHED"))
	guest.Pause()
	paused := o.until("pause", patience, changed("docker:"+guest.name, "paused"))
	guest.Unpause()
	o.until("end of the pause", patience, changed("docker:"+guest.name, "unpaused"))
	guest.Kill()
	ended := o.until("end of the guest", patience, changed("docker:"+guest.name, "gone"))
	evs := o.stop()

	if renamed.Target.Container != guest.ID || renamed.Target.Formerly == nil || renamed.Target.Formerly.Name != owner {
		t.Errorf("renamed: %+v", renamed.Target)
	}
	for _, e := range []events.Event{paused, ended} {
		if e.Target.Container != guest.ID || e.Target.Alias != "" || *e.Netns != *renamed.Netns {
			t.Errorf("%s: %+v %+v", e.Target.Change, e.Netns, e.Target)
		}
	}
	for _, e := range evs {
		if e.Seq > renamed.Seq && e.Netns != nil && e.Netns.Name == owner {
			t.Errorf("line %d, a %s, is of the container that ended", e.Seq, e.Type)
		}
	}
	alias := ofTarget(evs, owner, "alias")
	if len(alias) != 1 || alias[0].Target.Alias != "docker:"+guest.name || alias[0].Target.Container != guest.ID {
		t.Errorf("alias lines: %+v", alias)
	}
	if sum := evs[len(evs)-1].Summary; len(sum.Namespaces) != 1 || sum.Namespaces[0].Verdict.State != "complete" {
		t.Errorf("summary: %+v", sum.Namespaces)
	}
}
